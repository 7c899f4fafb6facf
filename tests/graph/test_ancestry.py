"""Laws of the graph's shape, against brute force on random graphs."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from icefield.graph.ancestry import Ancestry, BonesCache
from icefield.store.memory import MemoryStore
from icefield.store.records import CommitRecord

Shape = list[tuple[int, int | None]]
"""Commit i + 1 has these parents, by position."""


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    count = draw(st.integers(1, 24))
    near = draw(st.integers(1, 24))
    shape: Shape = []
    for number in range(1, count):
        parent = draw(st.integers(max(0, number - near), number - 1))
        merged = draw(st.one_of(st.none(), st.integers(max(0, number - near), number - 1)))
        shape.append((parent, None if merged == parent else merged))
    return shape


def build(shape: Shape, time_gap: int = 1) -> tuple[MemoryStore, list[CommitRecord]]:
    store = MemoryStore()
    commits: list[CommitRecord] = []
    with store.write() as writer:
        for number, (parent, merged) in enumerate([(None, None), *shape]):
            parents = [commits[place] for place in (parent, merged) if place is not None]
            commit = CommitRecord(
                seq=number * 3 + 5,
                repo="lake",
                id=f"{number:040x}",
                parent=None if parent is None else commits[parent].seq,
                merged=None if merged is None else commits[merged].seq,
                generation=1 + max((one.generation for one in parents), default=0),
                time_ms=max([number // time_gap, *(one.time_ms + 1 for one in parents)]),
                principal="",
                message="",
                root=None,
                details="{}",
            )
            writer.insert(commit)
            commits.append(commit)
    return store, commits


def ancestors(shape: Shape) -> list[set[int]]:
    """Of every commit by position, itself included."""
    found: list[set[int]] = [{0}]
    for number, (parent, merged) in enumerate(shape, 1):
        found.append({number} | found[parent] | (set() if merged is None else found[merged]))
    return found


@settings(max_examples=150, deadline=None)
@given(shapes(), st.booleans())
def test_merge_bases_and_ancestors_are_those_of_brute_force(shape: Shape, through_writer: bool) -> None:
    store, commits = build(shape)
    reach = ancestors(shape)
    shared = BonesCache()
    with store.write() if through_writer else store.read() as reader:
        for a, b in itertools.combinations_with_replacement(range(len(commits)), 2):
            common = reach[a] & reach[b]
            best = {one for one in common if not any(one in reach[other] for other in common - {one})}
            for left, right in ((a, b), (b, a)):
                found = Ancestry(reader, shared).merge_bases(commits[left], commits[right])
                assert found == tuple(commits[one] for one in sorted(best, reverse=True))
            assert Ancestry(reader, shared).is_ancestor(commits[a], commits[b]) == (a in reach[b])
            assert Ancestry(reader, shared).is_ancestor(commits[b], commits[a]) == (b in reach[a])


@settings(max_examples=80, deadline=None)
@given(shapes(), st.integers(1, 5), st.integers(1, 6))
def test_log_gives_every_ancestor_once_newest_first_in_pages(shape: Shape, time_gap: int, page: int) -> None:
    store, commits = build(shape, time_gap)
    reach = ancestors(shape)
    shared = BonesCache()
    with store.read() as reader:
        log = Ancestry(reader, shared).log(commits[-1], 1000, None)
        assert {commit.seq for commit in log} == {commits[one].seq for one in reach[-1]}
        assert len(log) == len(reach[-1])
        times = [(commit.time_ms, commit.seq) for commit in log]
        assert times == sorted(times, reverse=True)
        pages: list[CommitRecord] = []
        while part := Ancestry(reader, shared).log(commits[-1], page, pages[-1] if pages else None):
            assert len(part) <= page
            pages.extend(part)
        assert pages == log


def test_a_criss_cross_has_two_bases() -> None:
    #      1 - 3
    #  0 <   X     both merge the other side's 1 and 2
    #      2 - 4
    store, commits = build([(0, None), (0, None), (1, 2), (2, 1)])
    with store.read() as reader:
        assert Ancestry(reader, BonesCache()).merge_bases(commits[3], commits[4]) == (commits[2], commits[1])


def test_roots_of_two_repos_have_no_base() -> None:
    store, commits = build([(0, None)])
    _, others = build([(0, None)])
    stranger = CommitRecord(1, "shop", "f" * 40, None, None, 1, 1, "", "", None, "{}")
    with store.write() as writer:
        writer.insert(stranger)
    with store.read() as reader:
        assert Ancestry(reader, BonesCache()).merge_bases(commits[1], stranger) == ()
        assert not Ancestry(reader, BonesCache()).is_ancestor(stranger, commits[1])
    assert others[1].seq == commits[1].seq


def test_a_long_history_is_read_in_blocks_and_then_from_memory() -> None:
    store, commits = build([(number, None) for number in range(3000)])
    shared = BonesCache()
    trips = 0

    class Counted:
        def __init__(self, reader: object) -> None:
            self.reader = reader

        def get_many(self, kind: type, keys: object) -> object:
            nonlocal trips
            trips += 1
            return self.reader.get_many(kind, keys)  # type: ignore[attr-defined]

    with store.read() as reader:
        assert Ancestry(Counted(reader), shared).is_ancestor(commits[0], commits[-1])  # type: ignore[arg-type]
        assert trips < 40
        trips = 0
        assert Ancestry(Counted(reader), shared).is_ancestor(commits[0], commits[-1])  # type: ignore[arg-type]
        assert trips == 0


def test_a_small_cache_forgets_and_the_answer_stays() -> None:
    store, commits = build([(number, None) for number in range(500)])
    shared = BonesCache(limit=16)
    with store.read() as reader:
        assert len(Ancestry(reader, shared).log(commits[-1], 1000, None)) == 501
        assert len(shared._known) <= 600
