"""Repos, refs and commits: what resolves, what moves, what is refused."""

from __future__ import annotations

import dataclasses
import json
import threading
from typing import Any

import pytest

from icefield.graph.diff import EntryDiff
from icefield.graph.graph import Graph, HeadMoved, Resolved
from icefield.graph.keys import Key
from icefield.model.entries import Entry, EntryKind
from icefield.model.errors import AlreadyExists, BadRequest, NoSuchRef, NoSuchRepo, ReadOnly
from icefield.model.names import Identifier
from icefield.store.port import Store
from icefield.store.records import CommitRecord, RefLogRecord, RefRecord, SegmentRecord

from .samples import Counting, HandClock, table

ORDERS, LINES = Identifier(("sales",), "orders"), Identifier(("sales",), "lines")
SALES = Entry("ns-sales", EntryKind.NAMESPACE, properties=(("owner", "ann"),))


@pytest.fixture
def head(store: Store, graph: Graph) -> RefRecord:
    with store.write() as writer:
        graph.create_repo(writer, "lake", properties={"client-gc": "refuse"}, principal="ann")
    return at(store, graph, "main")


def at(store: Store, graph: Graph, ref: str | None = None) -> RefRecord:
    found = resolve(store, graph, ref).ref_record
    assert found is not None
    return found


def resolve(store: Store, graph: Graph, ref: str | None = None) -> Resolved:
    with store.read() as reader:
        return graph.resolve(reader, "lake", ref)


def publish(
    store: Store, graph: Graph, ref: RefRecord, changes: dict[Key, Entry | None], **options: Any
) -> tuple[CommitRecord, RefRecord]:
    with store.read() as reader:
        base = graph.commit(reader, ref.head)
    edit = graph.tree(base).edit(changes)
    words: dict[str, Any] = {"message": "m", "principal": "ann", "details": {}} | options
    with store.write() as writer:
        return graph.publish(writer, ref, edit, **words)


def branch(store: Store, graph: Graph, name: str, commit: CommitRecord) -> RefRecord:
    with store.write() as writer:
        return graph.create_branch(writer, "lake", name, commit)


def test_a_repo_begins_with_an_empty_commit_on_its_default_branch(store: Store, graph: Graph, head: RefRecord) -> None:
    with store.read() as reader:
        repo = graph.repo(reader, "lake")
        assert graph.repos(reader) == [repo]
        assert graph.refs(reader, "lake") == [head]
    assert (repo.default_branch, json.loads(repo.properties)) == ("main", {"client-gc": "refuse"})
    found = resolve(store, graph)
    assert (found.kind, found.name, found.ref_record) == ("branch", "main", head)
    assert (found.commit.parent, found.commit.root, found.commit.principal) == (None, None, "ann")
    assert list(graph.tree(found.commit).items()) == []


def test_two_repos_know_nothing_of_each_other(store: Store, graph: Graph, head: RefRecord) -> None:
    with store.write() as writer:
        graph.create_repo(writer, "shop", default_branch="trunk")
    with store.read() as reader:
        shop = graph.resolve(reader, "shop", None)
        assert shop.name == "trunk"
        with pytest.raises(NoSuchRef):
            graph.resolve(reader, "lake", shop.commit.id)
        with pytest.raises(NoSuchRef):
            graph.resolve(reader, "shop", "main")
    with pytest.raises(NoSuchRef, match="has no commit"):
        branch(store, graph, "x", shop.commit)
    with store.write() as writer, pytest.raises(BadRequest, match="repo 'shop'"):
        graph.publish(writer, head, None, message="", principal="", details={}, merged=shop.commit)


def test_names_that_are_refused(store: Store, graph: Graph, head: RefRecord) -> None:
    commit = resolve(store, graph).commit
    with store.write() as writer:
        with pytest.raises(AlreadyExists, match="'lake'"):
            graph.create_repo(writer, "lake")
        with pytest.raises(BadRequest):
            graph.create_repo(writer, "a b")
        with pytest.raises(BadRequest):
            graph.create_branch(writer, "lake", "a..b", commit)
        with pytest.raises(AlreadyExists, match="already has a branch 'main'"):
            graph.create_tag(writer, "lake", "main", commit)
        with pytest.raises(NoSuchRepo, match="did you mean 'lake'"):
            graph.create_branch(writer, "lale", "dev", commit)
        with pytest.raises(NoSuchRef, match="has no commit"):
            graph.create_branch(writer, "lake", "dev", dataclasses.replace(commit, seq=99))


def test_what_does_not_resolve_is_told_what_would(store: Store, graph: Graph, head: RefRecord) -> None:
    branch(store, graph, "develop", resolve(store, graph).commit)
    with store.read() as reader:
        with pytest.raises(NoSuchRepo, match="no repo 'lakes'; did you mean 'lake'"):
            graph.resolve(reader, "lakes", None)
        with pytest.raises(NoSuchRepo):
            graph.refs(reader, "nothing")
        with pytest.raises(NoSuchRef, match="did you mean 'develop'"):
            graph.resolve(reader, "lake", "devlop")
        with pytest.raises(NoSuchRef, match="branches and tags: develop, main"):
            graph.resolve(reader, "lake", "zzz")


def test_commits_resolve_by_id_and_by_its_beginning(store: Store, graph: Graph, head: RefRecord) -> None:
    commit, _ = publish(store, graph, head, {("sales",): SALES})
    for text in (commit.id, commit.id[:8], commit.id[:20]):
        assert resolve(store, graph, text) == Resolved("commit", commit.id, None, commit)
    for text in (commit.id[:7], commit.id + "0", commit.id[:-1] + "g", commit.id.upper()):
        if text != commit.id:
            with pytest.raises(NoSuchRef):
                resolve(store, graph, text)
    branch(store, graph, commit.id[:8], resolve(store, graph, "main").commit)
    assert resolve(store, graph, commit.id[:8]).kind == "branch"


def test_an_id_that_two_commits_begin_with_is_ambiguous(store: Store, graph: Graph, head: RefRecord) -> None:
    first = resolve(store, graph).commit
    with store.write() as writer:
        for seq, end in ((90, "1"), (91, "2"), (92, "f")):
            writer.insert(dataclasses.replace(first, seq=seq, id="abcdef0123" + end * 30))
    with pytest.raises(NoSuchRef, match="several commits"):
        resolve(store, graph, "abcdef01")
    assert resolve(store, graph, "abcdef0123f").commit.seq == 92
    assert resolve(store, graph, "abcdef01231").commit.seq == 90
    with pytest.raises(NoSuchRef, match="no branch, tag or commit"):
        resolve(store, graph, "abcdef0124")


def test_publish_moves_the_branch_and_nothing_else(store: Store, graph: Graph, head: RefRecord) -> None:
    first = resolve(store, graph).commit
    dev = branch(store, graph, "dev", first)
    with store.write() as writer:
        graph.create_tag(writer, "lake", "v1", first)
    commit, moved = publish(
        store, graph, head, {("sales",): SALES, ORDERS: table(1)}, message="hello", details={"operation": "test"}
    )
    assert moved == dataclasses.replace(head, head=commit.seq) == at(store, graph, "main")
    assert (commit.parent, commit.merged, commit.message, commit.principal) == (first.seq, None, "hello", "ann")
    assert json.loads(commit.details) == {
        "operation": "test",
        "entries": [{"name": "sales", "change": "created"}, {"name": "sales.orders", "change": "created"}],
    }
    assert list(graph.tree(commit).items()) == [(("sales",), SALES), (ORDERS, table(1))]
    for name in ("dev", "v1"):
        assert resolve(store, graph, name).commit == first
    other, _ = publish(store, graph, dev, {("sales",): SALES, ORDERS: table(1)})
    assert other.id != commit.id
    with store.read() as reader:
        log = reader.find(RefLogRecord, repo="lake", ref="main")
    assert [entry.head for entry in log] == [first.seq, commit.seq]


def test_two_branches_with_the_same_change_have_two_commits(store: Store, graph: Graph, head: RefRecord) -> None:
    dev = branch(store, graph, "dev", resolve(store, graph).commit)
    one, _ = publish(store, graph, head, {ORDERS: table(1)})
    two, _ = publish(store, graph, dev, {ORDERS: table(1)})
    assert (one.parent, one.time_ms, one.generation) == (two.parent, two.time_ms, two.generation)
    assert one.id != two.id
    assert graph.diff(one, two) == []


def test_publish_on_a_head_that_moved_changes_nothing(store: Store, graph: Graph, head: RefRecord) -> None:
    commit, moved = publish(store, graph, head, {ORDERS: table(1)})
    with store.read() as reader:
        base = graph.commit(reader, head.head)
        segments = len(reader.find(SegmentRecord))
    edit = graph.tree(base).edit({LINES: table(2)})
    with store.write() as writer, pytest.raises(HeadMoved) as caught:
        graph.publish(writer, head, edit, message="", principal="", details={})
    assert (caught.value.expected, caught.value.found) == (head, moved)
    with store.read() as reader:
        assert len(reader.find(CommitRecord)) == 2
        assert len(reader.find(SegmentRecord)) == segments
    with store.write() as writer, pytest.raises(ValueError, match="another tree"):
        graph.publish(writer, moved, edit, message="", principal="", details={})
    assert resolve(store, graph).commit == commit


def test_a_branch_dropped_and_made_again_is_another(store: Store, graph: Graph, head: RefRecord) -> None:
    commit = resolve(store, graph).commit
    dev = branch(store, graph, "dev", commit)
    with store.write() as writer:
        assert graph.drop_ref(writer, "lake", "dev", kind="branch") == dev
    with store.write() as writer, pytest.raises(HeadMoved) as caught:
        graph.publish(writer, dev, None, message="", principal="", details={})
    assert caught.value.found is None
    assert branch(store, graph, "dev", commit).id != dev.id
    with store.write() as writer, pytest.raises(HeadMoved):
        graph.publish(writer, dev, None, message="", principal="", details={})


def test_what_may_not_be_dropped(store: Store, graph: Graph, head: RefRecord) -> None:
    with store.write() as writer:
        tag = graph.create_tag(writer, "lake", "v1", graph.resolve(writer, "lake").commit)
        with pytest.raises(BadRequest, match="default branch"):
            graph.drop_ref(writer, "lake", "main")
        with pytest.raises(NoSuchRef, match="is a tag, not a branch"):
            graph.drop_ref(writer, "lake", "v1", kind="branch")
        with pytest.raises(NoSuchRef, match="did you mean 'main'"):
            graph.drop_ref(writer, "lake", "mai")
        with pytest.raises(ReadOnly, match="tag"):
            graph.publish(writer, tag, None, message="", principal="", details={})
        assert graph.drop_ref(writer, "lake", "v1", kind="tag") == tag


def test_graph_time_goes_on_when_the_clock_does_not(
    store: Store, graph: Graph, clock: HandClock, head: RefRecord
) -> None:
    times: list[int] = []
    for now in (clock.now, clock.now, clock.now - 500, clock.now + 10, clock.now + 10):
        clock.now = now
        commit, head = publish(store, graph, head, {ORDERS: table(1, len(times))})
        times.append(commit.time_ms)
    assert times == [1_000_001, 1_000_002, 1_000_003, 1_000_010, 1_000_011]
    with store.read() as reader:
        moves = [entry.time_ms for entry in reader.find(RefLogRecord, repo="lake", ref="main")]
    assert moves == [1_000_000, *times]


def test_one_seed_gives_one_history(store: Store, graph: Graph, head: RefRecord) -> None:
    from icefield.store.memory import MemoryStore

    commit, _ = publish(store, graph, head, {ORDERS: table(1)})
    other_store = MemoryStore()
    other = Graph(other_store, HandClock(), Counting())
    with other_store.write() as writer:
        other.create_repo(writer, "lake", properties={"client-gc": "refuse"}, principal="ann")
    again, _ = publish(other_store, other, at(other_store, other, "main"), {ORDERS: table(1)})
    assert again == commit


def test_a_merge_has_two_parents_and_a_fast_forward_none_of_its_own(
    store: Store, graph: Graph, clock: HandClock, head: RefRecord
) -> None:
    first = resolve(store, graph).commit
    dev = branch(store, graph, "dev", first)
    clock.now += 1000
    theirs, dev = publish(store, graph, dev, {LINES: table(2)})
    clock.now -= 1000
    ours, head = publish(store, graph, head, {ORDERS: table(1)})
    merge, head = publish(store, graph, head, {LINES: table(2)}, merged=theirs)
    assert (merge.parent, merge.merged, merge.generation) == (ours.seq, theirs.seq, 3)
    assert merge.time_ms == theirs.time_ms + 1
    with store.write() as writer:
        moved = graph.move(writer, dev, merge)
        assert moved.head == merge.seq
        with pytest.raises(HeadMoved):
            graph.move(writer, dev, merge)
        with pytest.raises(BadRequest, match="no descendant"):
            graph.move(writer, moved, ours)
    with store.read() as reader:
        assert [commit.seq for commit in graph.log(reader, merge)] == [merge.seq, theirs.seq, ours.seq, first.seq]
        assert graph.merge_bases(reader, merge, theirs) == (theirs,)
        assert graph.merge_bases(reader, ours, theirs) == (first,)
        assert [entry.head for entry in reader.find(RefLogRecord, ref="dev")] == [first.seq, theirs.seq, merge.seq]


def test_a_commit_without_a_change_keeps_the_tree(store: Store, graph: Graph, head: RefRecord) -> None:
    commit, head = publish(store, graph, head, {ORDERS: table(1)})
    with store.write() as writer:
        empty, head = graph.publish(writer, head, None, message="", principal="", details={"entries": "mine"})
    same, head = publish(store, graph, head, {ORDERS: table(1)})
    assert empty.root == same.root == commit.root
    assert json.loads(empty.details) == {"entries": "mine"}
    assert json.loads(same.details) == {}


def test_what_a_writer_made_is_read_through_it_and_undone_with_it(store: Store, graph: Graph, head: RefRecord) -> None:
    class Undo(Exception):
        pass

    first = resolve(store, graph).commit

    def twice(turn: int, keep: bool) -> CommitRecord:
        with store.write() as writer:
            tree = graph.tree(first, writer)
            one, ref = graph.publish(
                writer, head, tree.edit({ORDERS: table(turn)}), message="", principal="", details={}
            )
            edit = graph.tree(one, writer).edit({LINES: table(turn)})
            two, ref = graph.publish(writer, ref, edit, message="", principal="", details={})
            assert graph.tree(two, writer).get(ORDERS) == table(turn)
            assert graph.is_ancestor(writer, first, two)
            assert graph.merge_bases(writer, one, two) == (one,)
            assert graph.log(writer, two) == [two, one, first]
            if not keep:
                raise Undo
        return two

    for turn in (1, 2):
        with pytest.raises(Undo):
            twice(turn, keep=False)
    # Numbers that were undone are given again: nothing of what was undone may be remembered.
    commit = twice(3, keep=True)
    assert list(graph.tree(commit).items()) == [(LINES, table(3)), (ORDERS, table(3))]
    with store.read() as reader:
        assert [found.time_ms for found in graph.log(reader, commit)] == [1_000_002, 1_000_001, 1_000_000]


def test_diff_sees_by_entry(store: Store, graph: Graph, head: RefRecord) -> None:
    moved, gone, swapped = Identifier(("old",), "t"), Identifier(("s",), "gone"), Identifier(("s",), "swapped")
    kept: dict[Key, Entry | None] = {Identifier(("s",), f"t{number}"): table(number) for number in range(300)}
    before: dict[Key, Entry | None] = {("s",): SALES, moved: table(1001), gone: table(1002), swapped: table(1003)}
    a, head = publish(store, graph, head, {**kept, **before})
    to, new = Identifier(("new",), "t"), Identifier(("s",), "new")
    richer = dataclasses.replace(SALES, properties=(("owner", "bob"),))
    after: dict[Key, Entry | None] = {
        ("s",): richer,
        moved: None,
        to: table(1001, 5),
        gone: None,
        swapped: table(1004),
        new: table(1005),
        Identifier(("s",), "t7"): table(7, 1),
    }
    b, head = publish(store, graph, head, after)
    expected = [
        EntryDiff("renamed", moved, table(1001), to, table(1001, 5)),
        EntryDiff("changed", ("s",), SALES, ("s",), richer),
        EntryDiff("dropped", gone, table(1002), None, None),
        EntryDiff("created", None, None, new, table(1005)),
        EntryDiff("dropped", swapped, table(1003), None, None),
        EntryDiff("created", None, None, swapped, table(1004)),
        EntryDiff("changed", Identifier(("s",), "t7"), table(7), Identifier(("s",), "t7"), table(7, 1)),
    ]
    assert graph.diff(a, b) == expected
    assert [(found.name, found.kind, found.id == found.entry.id) for found in expected][:3] == [
        ("new.t", "table", True),
        ("s", "namespace", True),
        ("s.gone", "table", True),
    ]
    assert {entry["name"]: entry["change"] for entry in json.loads(b.details)["entries"]}["new.t"] == "renamed"
    backwards = {(found.change, found.key) for found in graph.diff(b, a)}
    assert backwards >= {("renamed", moved), ("created", gone), ("dropped", new), ("changed", ("s",))}
    assert graph.diff(a, a) == []


def test_two_names_that_change_places_are_two_renames(store: Store, graph: Graph, head: RefRecord) -> None:
    a, head = publish(store, graph, head, {ORDERS: table(1), LINES: table(2)})
    b, head = publish(store, graph, head, {ORDERS: table(2), LINES: table(1)})
    assert graph.diff(a, b) == [
        EntryDiff("renamed", ORDERS, table(1), LINES, table(1)),
        EntryDiff("renamed", LINES, table(2), ORDERS, table(2)),
    ]


def test_a_commit_of_very_many_entries_names_some_and_counts_all(store: Store, graph: Graph, head: RefRecord) -> None:
    commit, _ = publish(store, graph, head, {Identifier(("s",), f"t{n:05d}"): table(n) for n in range(1500)})
    details = json.loads(commit.details)
    assert (len(details["entries"]), details["entries-total"]) == (1000, 1500)
    assert len(list(graph.tree(commit).items())) == 1500


def test_writers_of_one_branch_lose_nothing(store: Store, graph: Graph, head: RefRecord) -> None:
    moved: list[int] = []
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(15):
                while True:
                    try:
                        key = Identifier((f"n{number}",), f"t{turn}")
                        publish(store, graph, at(store, graph, "main"), {key: table(number * 100 + turn)})
                        break
                    except HeadMoved:
                        moved.append(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    final = resolve(store, graph).commit
    assert len(list(graph.tree(final).items())) == 60
    with store.read() as reader:
        log = graph.log(reader, final, limit=1000)
        assert len(log) == 61
        assert [commit.parent for commit in log] == [*(commit.seq for commit in log[1:]), None]
        assert len(reader.find(CommitRecord)) == 61
