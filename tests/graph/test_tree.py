"""Laws of the tree: it is a dict of names with ranges, it never changes, and its differences are those of dicts."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icefield.graph import keys
from icefield.graph import tree as tree_module
from icefield.graph.keys import Key
from icefield.graph.nodes import SEGMENT_NODES, Inner
from icefield.graph.tree import MAX_BYTES, Tree, diff
from icefield.model.entries import Entry, EntryKind
from icefield.model.names import Identifier, Namespace

from .samples import Shelf, entries, names, namespaces, table

Model = dict[Key, Entry]


def wide_names(count: int, seed: int) -> list[Key]:
    """Namespaces of very different sizes, nested, with awkward names, and deep common prefixes."""
    draw = random.Random(seed)
    pieces = ["a", "b", "a.b", "x\x00y", "\x01", "\u00e9", "\U0001f9ca", "common/prefix/" * 8]
    spaces: list[Namespace] = [()]
    while len(spaces) < count // 40:
        parent = draw.choice(spaces)
        if len(parent) < 5:
            spaces.append((*parent, draw.choice(pieces) + str(draw.randrange(50))))
    found: set[Key] = {space for space in spaces if space}
    while len(found) < count:
        space = spaces[min(int(draw.expovariate(0.02)), len(spaces) - 1)]
        found.add(Identifier(space, draw.choice(pieces) + str(draw.randrange(count))))
    return sorted(found, key=keys.encode)


POOL = wide_names(200, 5)


def many(seed: int, size: int) -> dict[Key, Entry | None]:
    """More changes than hypothesis likes to draw one by one; runs of neighbours among them."""
    draw = random.Random(seed)
    start = draw.randrange(len(POOL))
    picked = draw.choice([POOL[start : start + size], draw.sample(POOL, size)])
    odds = draw.random()
    return {key: None if draw.random() < odds else table(draw.randrange(1000)) for key in picked}


edits = st.lists(
    st.one_of(
        st.builds(many, st.integers(0, 1 << 32), st.sampled_from([1, 3, 20, 100])),
        st.dictionaries(names, st.one_of(st.none(), entries), max_size=20),
    ),
    max_size=8,
)
quiet = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)


def apply(model: Model, edit: dict[Key, Entry | None]) -> Model:
    return {key: entry for key, entry in (model | edit).items() if entry is not None}


def in_order(model: Model) -> list[tuple[Key, Entry]]:
    return sorted(model.items(), key=lambda item: keys.encode(item[0]))


def check_equal(tree: Tree, model: Model) -> None:
    assert list(tree.items()) == in_order(model)
    assert (tree.root is None) == (not model)


def check_questions(tree: Tree, model: Model, namespace: Namespace) -> None:
    depth = len(namespace)
    ordered = in_order(model)
    assert tree.namespaces(namespace) == [
        (key, entry)
        for key, entry in ordered
        if isinstance(key, tuple) and len(key) == depth + 1 and key[:depth] == namespace
    ]
    children = [(key, entry) for key, entry in ordered if isinstance(key, Identifier) and key.namespace == namespace]
    assert tree.children(namespace) == children
    for kind in EntryKind:
        assert tree.children(namespace, kind) == [child for child in children if child[1].kind == kind]
    assert tree.has_children(namespace) == any(
        (key if isinstance(key, tuple) else key.namespace)[:depth] == namespace and key != namespace for key in model
    )


def check_sound(tree: Tree) -> None:
    """Every node's keys are in order and in the range that leads to it: what routing rests on."""

    def check(node_id: int, level: int | None, low: bytes, high: bytes | None) -> None:
        node = tree._nodes.get(node_id)
        assert level in (None, node.level)
        assert node.keys == sorted(set(node.keys))
        if not isinstance(node, Inner):
            assert all(low <= key and (high is None or key < high) for key in node.keys)
            assert len(node.keys) == len(node.entries) > 0
            return
        assert len(node.keys) == len(node.children) > 0
        ends = [*node.keys[1:], high]
        for place, (child, end) in enumerate(zip(node.children, ends, strict=True)):
            check(child, node.level - 1, node.keys[place] if place else low, end)

    if tree.root is not None:
        check(tree.root, None, b"", None)


def brute_diff(a: Model, b: Model) -> dict[Key, Any]:
    return {key: (a.get(key), b.get(key)) for key in a.keys() | b.keys() if a.get(key) != b.get(key)}


@pytest.fixture
def small_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few names already make a deep tree, in several segments."""
    monkeypatch.setattr(tree_module, "TARGET_BYTES", 100)
    monkeypatch.setattr(tree_module, "MAX_BYTES", 140)


@quiet
@given(edits, st.lists(names, max_size=5), st.lists(namespaces, max_size=5))
def test_a_tree_is_a_dict_and_older_trees_stay(
    small_nodes: None, history: list[dict[Key, Entry | None]], asked: list[Key], asked_in: list[Namespace]
) -> None:
    shelf = Shelf()
    model: Model = {}
    tree = shelf.empty
    versions: list[tuple[Tree, Model]] = []
    for changes in history:
        edit = tree.edit(changes)
        after = apply(model, changes)
        assert edit.changes == brute_diff(model, after)
        assert list(edit.changes) == sorted(edit.changes, key=keys.encode)
        tree, model = shelf.keep(edit), after
        versions.append((tree, model))
    for old, content in versions:
        check_equal(old, content)
        check_sound(old)
    mentioned: set[Key] = {*asked, *(key for changes in history for key in changes)}
    for key in mentioned:
        assert tree.get(key) == model.get(key)
    parents = {key[:-1] if isinstance(key, tuple) else key.namespace for key in mentioned}
    for namespace in {(), *asked_in, *parents}:
        check_questions(tree, model, namespace)
    for a, before in versions:
        for b, after in versions:
            found = diff(a, b)
            assert found == brute_diff(before, after)
            assert list(found) == sorted(found, key=keys.encode)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 1 << 32))
def test_a_tree_that_is_edited_for_long_is_a_dict(small_nodes: None, seed: int) -> None:
    draw = random.Random(seed)
    shelf = Shelf()
    tree, model = shelf.empty, Model()
    for _ in range(30):
        changes = many(draw.randrange(1 << 32), draw.choice([1, 3, 20, 100]))
        tree, model = shelf.keep(tree.edit(changes)), apply(model, changes)
        check_sound(tree)
    check_equal(tree, model)
    assert [tree.get(key) for key in POOL] == [model.get(key) for key in POOL]


@pytest.mark.parametrize("cache_bytes", [1 << 12, 1 << 26])
def test_ten_thousand_names_edited_for_a_while(cache_bytes: int) -> None:
    draw = random.Random(7)
    every = wide_names(12_000, 7)
    shelf = Shelf(cache_bytes)
    model: Model = {key: table(number) for number, key in enumerate(every)}
    tree = shelf.tree(model)
    check_equal(tree, model)
    first, content = tree, model
    for turn in range(14):
        size = draw.choice([1, 1, 3, 30, 600])
        start = draw.randrange(len(every))
        picked = every[start : start + size] if turn % 3 == 0 else draw.sample(every, size)
        changes = {key: draw.choice([None, table(draw.randrange(10**6), turn)]) for key in picked}
        if turn == 8:
            changes = dict.fromkeys(every[3000:9000], None)
        before_tree, before = tree, model
        tree, model = shelf.keep(tree.edit(changes)), apply(model, changes)
        assert diff(before_tree, tree) == brute_diff(before, model)
        if turn % 8 == 2:
            check_sound(tree)
            check_equal(tree, model)
            for namespace in draw.sample([key for key in every if isinstance(key, tuple)], 30):
                check_questions(tree, model, namespace)
    check_questions(tree, model, ())
    check_equal(tree, model)
    check_equal(first, content)
    assert diff(first, tree) == brute_diff(content, model)
    assert diff(tree, shelf.empty) == brute_diff(model, {})
    assert diff(shelf.empty, tree) == brute_diff({}, model)
    for key in draw.sample(every, 500):
        assert tree.get(key) == model.get(key)
    emptied = shelf.keep(tree.edit(dict.fromkeys(model, None)))
    check_equal(emptied, {})


def test_the_same_content_in_another_shape_has_no_difference() -> None:
    every = wide_names(2_000, 3)
    model: Model = {key: table(number) for number, key in enumerate(every)}
    shelf = Shelf()
    at_once = shelf.tree(model)
    piecemeal = shelf.empty
    shuffled = random.Random(1).sample(every, len(every))
    for start in range(0, len(shuffled), 50):
        piecemeal = shelf.keep(piecemeal.edit({key: model[key] for key in shuffled[start : start + 50]}))
    check_equal(piecemeal, model)
    assert diff(at_once, piecemeal) == {}


def test_setting_what_is_there_changes_nothing() -> None:
    shelf = Shelf()
    tree = shelf.tree({Identifier(("s",), f"t{number}"): table(number) for number in range(500)})
    edit = tree.edit({Identifier(("s",), "t7"): table(7), Identifier(("s",), "none"): None, ("gone",): None})
    assert (edit.root, edit.segments, edit.changes) == (tree.root, (), {})
    assert shelf.empty.edit({}).root is None
    assert shelf.empty.edit({("a",): None}).root is None


def test_one_change_makes_one_path_of_nodes() -> None:
    shelf = Shelf()
    model: Model = {Identifier((f"n{number % 30}",), f"t{number}"): table(number) for number in range(20_000)}
    tree = shelf.tree(model)
    edit = tree.edit({Identifier(("n5",), "t5015"): table(5015, 1)})
    assert len(edit.segments) == 1
    assert len(edit.segments[0]) < 2_500
    assert edit.changes == {Identifier(("n5",), "t5015"): (table(5015), table(5015, 1))}


def test_nodes_keep_to_their_size_and_segments_to_theirs() -> None:
    shelf = Shelf()
    model: Model = {Identifier((f"n{number % 30}",), f"t{number}"): table(number) for number in range(5_000)}
    model[("big",)] = Entry("id", EntryKind.NAMESPACE, properties=tuple((f"k{i:04d}", "v" * 90) for i in range(1_000)))
    model |= {("deep",) * 5 + (f"{'y' * 500}{i}" * 1,): table(i) for i in range(50)}
    tree = shelf.tree(model)
    check_equal(tree, model)
    assert tree.root is not None
    queue, depth = [tree.root], 0
    sizes: list[int] = []
    while queue:
        nodes = shelf.nodes.get_many(queue)
        sizes.extend(len(node.keys) for node in nodes if not isinstance(node, Inner))
        queue = [child for node in nodes if isinstance(node, Inner) for child in node.children]
        depth += 1
    assert depth <= 5
    assert max(sizes) < MAX_BYTES // 50
    assert sum(sizes) / len(sizes) > 5
    assert SEGMENT_NODES < 1 << 16


def test_by_id() -> None:
    shelf = Shelf()
    key = Identifier(("s",), "t7")
    tree = shelf.tree({Identifier(("s",), f"t{number}"): table(number) for number in range(100)})
    assert tree.by_id(table(7).id) == (key, table(7))
    assert tree.by_id("none") is None


def test_diff_reads_what_changed_and_not_the_tree() -> None:
    shelf = Shelf()
    model: Model = {Identifier((f"n{number % 30}",), f"t{number}"): table(number) for number in range(20_000)}
    tree = shelf.tree(model)
    other = shelf.keep(tree.edit({Identifier(("n5",), f"t{number}"): table(number, 1) for number in (5, 5015)}))
    read: list[int] = []

    class Counted:
        def get(self, node_id: int) -> Any:
            return self.get_many([node_id])[0]

        def get_many(self, node_ids: Any) -> Any:
            read.extend(node_ids)
            return shelf.nodes.get_many(node_ids)

    assert len(diff(Tree(Counted(), tree.root), Tree(Counted(), other.root))) == 2
    assert 0 < len(read) < 30


def test_a_missing_segment_is_named() -> None:
    shelf = Shelf()
    with pytest.raises(LookupError, match="segment 77 of the tree is not in the store"):
        Tree(shelf.nodes, 77 << 16).get(("a",))


def test_threads_share_the_cache() -> None:
    shelf = Shelf(1 << 14)
    model: Model = {Identifier((f"n{number % 30}",), f"t{number}"): table(number) for number in range(3_000)}
    tree = shelf.tree(model)
    wrong: list[object] = []

    def work(seed: int) -> None:
        draw = random.Random(seed)
        try:
            for number in draw.sample(range(3_000), 400):
                key = Identifier((f"n{number % 30}",), f"t{number}")
                if tree.get(key) != table(number):
                    wrong.append(key)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
