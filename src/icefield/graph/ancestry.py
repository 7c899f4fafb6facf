"""Questions about the shape of the graph: merge bases, ancestors, log.

Commits are numbered in the order they were made, and most have near parents: what is not known is read in blocks by
number. Generation = 1 + the largest of the parents', so an order by generation visits a commit after its descendants.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from icefield.store.port import StoreReader
from icefield.store.records import CommitRecord

BLOCK_MAX = 512
CACHE_COMMITS = 200_000


@dataclass(frozen=True, slots=True)
class Bones:
    """Of a commit only what its place in the graph says."""

    seq: int
    parents: tuple[int, ...]
    generation: int
    time_ms: int


class BonesCache:
    """Bounded. Commits never change; only committed ones may enter."""

    def __init__(self, limit: int = CACHE_COMMITS) -> None:
        self._limit = limit
        self._known: dict[int, Bones] = {}
        self._lock = threading.Lock()

    def get(self, seq: int) -> Bones | None:
        return self._known.get(seq)

    def add(self, bones: dict[int, Bones]) -> None:
        with self._lock:
            if len(self._known) + len(bones) > self._limit:
                self._known = {}
            self._known.update(bones)


class Ancestry:
    """The graph as one reader sees it."""

    def __init__(self, reader: StoreReader, shared: BonesCache) -> None:
        self._reader = reader
        self._shared = shared
        # What a writer sees may yet be undone, and its numbers be given again.
        self._may_share = not hasattr(reader, "insert")
        self._own: dict[int, Bones] = {}
        self._block = 1

    def merge_bases(self, a: CommitRecord, b: CommitRecord) -> tuple[CommitRecord, ...]:
        """All best common ancestors, newest first: none of them is an ancestor of another.

        Paint-down: each side colours its ancestors; a commit with both colours is a base, and all before it are stale.
        """
        left, right, stale = 1, 2, 4
        colours: dict[int, int] = {}
        queue: list[tuple[int, int]] = []
        fresh = 0
        """How many in the queue are not stale."""

        def paint(bones: Bones, colour: int) -> None:
            nonlocal fresh
            had = colours.get(bones.seq)
            if had is None:
                heappush(queue, (-bones.generation, -bones.seq))
                fresh += not colour & stale
            else:
                fresh -= not had & stale and bool(colour & stale)
            colours[bones.seq] = (had or 0) | colour

        paint(self._bones(a.seq), left)
        paint(self._bones(b.seq), right)
        bases: list[int] = []
        while fresh:
            seq = -heappop(queue)[1]
            colour = colours[seq]
            fresh -= not colour & stale
            if colour == left | right:
                bases.append(seq)
                colour |= stale
            for parent in self._bones(seq).parents:
                paint(self._bones(parent), colour)
        return self._records(sorted(bases, reverse=True))

    def is_ancestor(self, a: CommitRecord, b: CommitRecord) -> bool:
        """Is ``a`` reached from ``b``? A commit reaches itself."""
        queue, seen = [b.seq], {b.seq}
        while queue:
            seq = queue.pop()
            if seq == a.seq:
                return True
            for parent in self._bones(seq).parents:
                if parent not in seen and self._bones(parent).generation >= a.generation:
                    seen.add(parent)
                    queue.append(parent)
        return False

    def log(self, commit: CommitRecord, limit: int, before: CommitRecord | None) -> list[CommitRecord]:
        """``commit`` and its ancestors, newest first. ``before``: the last of the previous page."""
        found: list[int] = []
        for bones in self._newest_first(commit.seq):
            if len(found) >= limit:
                break
            if before is None or (bones.time_ms, bones.seq) < (before.time_ms, before.seq):
                found.append(bones.seq)
        return list(self._records(found))

    def _newest_first(self, seq: int) -> Iterator[Bones]:
        """By graph time, in which a parent is always older."""
        queue: list[tuple[int, int]] = []
        seen: set[int] = set()

        def meet(number: int) -> None:
            if number not in seen:
                seen.add(number)
                heappush(queue, (-self._bones(number).time_ms, -number))

        meet(seq)
        while queue:
            bones = self._bones(-heappop(queue)[1])
            yield bones
            for parent in bones.parents:
                meet(parent)

    def _records(self, seqs: list[int]) -> tuple[CommitRecord, ...]:
        records = self._reader.get_many(CommitRecord, seqs)
        return tuple(records[seq] for seq in seqs)

    def _bones(self, seq: int) -> Bones:
        bones = self._shared.get(seq) or self._own.get(seq)
        return self._read(seq) if bones is None else bones

    def _read(self, seq: int) -> Bones:
        """Reads a block that ends with this commit; the longer the walk, the larger the blocks."""
        block = range(max(seq - self._block + 1, 1), seq + 1)
        self._block = min(self._block * 2, BLOCK_MAX)
        read = {number: _bones_of(record) for number, record in self._reader.get_many(CommitRecord, block).items()}
        if seq not in read:
            raise LookupError(f"commit {seq} is not in the store")
        if self._may_share:
            self._shared.add(read)
        else:
            self._own.update(read)
        return read[seq]


def _bones_of(record: CommitRecord) -> Bones:
    parents = tuple(parent for parent in (record.parent, record.merged) if parent is not None)
    return Bones(record.seq, parents, record.generation, record.time_ms)
