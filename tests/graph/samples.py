"""A hand-driven clock, entries, names, and a tree kept in a memory store."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from icefield.graph.keys import Key
from icefield.graph.nodes import CommittedNodes, NodeCache
from icefield.graph.tree import Tree, TreeEdit
from icefield.model.entries import Entry, EntryKind
from icefield.model.names import Identifier, Namespace
from icefield.store.memory import MemoryStore
from icefield.store.records import SegmentRecord


class HandClock:
    def __init__(self, now: int = 1_000_000) -> None:
        self.now = now

    def now_ms(self) -> int:
        return self.now


class Counting:
    """Randomness that counts."""

    def __init__(self) -> None:
        self.count = 0

    def uuid(self) -> str:
        self.count += 1
        return f"00000000-0000-4000-8000-{self.count:012d}"

    def token(self) -> str:
        return self.uuid()

    def snapshot_id(self) -> int:
        self.count += 1
        return self.count


def table(number: int, version: int = 0) -> Entry:
    location = f"file:///lake/sales/t{number}-{number * 7919 % 65521:04x}"
    metadata = f"{location}/metadata/{version:05d}-{number}.metadata.json"
    return Entry(f"{number:08d}-0000-4000-8000-000000000000", EntryKind.TABLE, metadata, location)


class Shelf:
    """Trees without commits: stores an edit's segments as ``publish`` does, and gives the tree back."""

    def __init__(self, cache_bytes: int = 1 << 20) -> None:
        self.store = MemoryStore()
        self.nodes = CommittedNodes(self.store, NodeCache(cache_bytes))
        self.empty = Tree(self.nodes, None)

    def keep(self, edit: TreeEdit) -> Tree:
        with self.store.write() as writer:
            writer.next_id("commit")
            numbers = [writer.next_id("segment") for _ in edit.segments]
            for number, segment in zip(numbers, edit.segments, strict=True):
                writer.insert(SegmentRecord(number, segment))
        return Tree(self.nodes, edit.root_id(numbers[0] if numbers else 0))

    def tree(self, content: Mapping[Key, Entry]) -> Tree:
        return self.keep(self.empty.edit(content))


# Names that meet each other often, with all that could break an encoding or a separator.
levels = st.one_of(
    st.sampled_from(["a", "b", "ab", "a.b", ".", "\u00e9", "e\u0301", "\xff", "\uffff", "\U0001f9ca", "\x01", "a\x01"]),
    st.sampled_from(["", "\x00", "a\x00", "\x00\x00", "\x00\x01", "\x00\x02", "\x00\xff", "\x00a", "\x02"]),
    st.sampled_from(["long" * 60, "long" * 60 + "er"]),
    st.text(max_size=4),
)
namespaces: st.SearchStrategy[Namespace] = st.lists(levels, max_size=3).map(tuple)
identifiers = st.builds(Identifier, namespaces, levels)
names: st.SearchStrategy[Key] = st.one_of(namespaces, identifiers)
entries = st.builds(
    Entry,
    st.integers(0, 30).map(lambda number: f"{number:036d}"),
    st.sampled_from(list(EntryKind)),
    st.one_of(st.none(), st.sampled_from(["", "s3://b/t", "s3://b/t/m.json", "\U0001f9ca" * 50])),
    st.one_of(st.none(), st.sampled_from(["", "s3://b/t", "\U0001f9ca" * 49])),
    st.lists(st.tuples(st.text(max_size=5), st.text(max_size=300)), max_size=4).map(tuple),
)
