"""The tree of a commit: every name with its entry, as a copy-on-write B+tree.

A tree never changes. ``edit`` gives the nodes of another one, which shares all that the edit did not touch (README.md).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from icefield.graph import keys
from icefield.graph.keys import Key
from icefield.graph.nodes import Inner, Leaf, Node, NodeSource, absolute, common_prefix, entry_bytes, pack
from icefield.model.entries import Entry, EntryKind
from icefield.model.names import Identifier, Namespace

TARGET_BYTES = 1024
"""A node's size when many are made at once."""
MAX_BYTES = 1408
"""Above it, a node is split."""
_STEPS = 4
"""Entries walked over before it is cheaper to search the next namespace from the root."""


class TreeView(Protocol):
    """Names and entries to be read, whatever holds them: a commit's tree, or a transaction's overlay on one."""

    def get(self, key: Key) -> Entry | None: ...

    def namespaces(self, parent: Namespace) -> list[tuple[Namespace, Entry]]: ...

    def children(self, namespace: Namespace, kind: EntryKind | None = None) -> list[tuple[Identifier, Entry]]: ...

    def has_children(self, namespace: Namespace) -> bool: ...

    def items(self) -> Iterator[tuple[Key, Entry]]: ...


@dataclass(frozen=True, slots=True)
class TreeEdit:
    """A tree that is not stored yet: ``Graph.publish`` stores it."""

    base: int | None
    """The root of the tree that was edited."""
    root: int | None
    """The new root, by its position among the new nodes if it is negative."""
    segments: tuple[bytes, ...]
    changes: Mapping[Key, tuple[Entry | None, Entry | None]]
    """What really changed, in key order: before and after."""

    def root_id(self, first_segment: int) -> int | None:
        return None if self.root is None else absolute(self.root, first_segment)


class Tree:
    def __init__(self, nodes: NodeSource, root: int | None) -> None:
        self._nodes = nodes
        self.root = root

    def get(self, key: Key) -> Entry | None:
        if self.root is None:
            return None
        wanted = keys.encode(key)
        node = self._nodes.get(self.root)
        while isinstance(node, Inner):
            node = self._nodes.get(node.children[_child_of(node, wanted)])
        place = bisect_left(node.keys, wanted)
        return node.entries[place] if place < len(node.keys) and node.keys[place] == wanted else None

    def namespaces(self, parent: Namespace) -> list[tuple[Namespace, Entry]]:
        """The namespaces directly in this one; ``()`` for the top level."""
        depth = len(parent) + 1
        found: list[tuple[Namespace, Entry]] = []
        low: bytes | None
        low, high = keys.below(parent)
        while low is not None:
            low = self._collect_namespaces(low, high, depth, found)
        return found

    def _collect_namespaces(
        self, low: bytes, high: bytes, depth: int, found: list[tuple[Namespace, Entry]]
    ) -> bytes | None:
        """Says where to go on if it met a big namespace, whose entries are better jumped over."""
        steps = 0
        inside: bytes = b""
        for data, entry in self._scan(low, high):
            if data < inside:
                steps += 1
                if steps > _STEPS:
                    return inside
                continue
            key = keys.decode(data)
            namespace = key if isinstance(key, tuple) else key.namespace
            if isinstance(key, tuple) and len(key) == depth:
                found.append((key, entry))
            inside = keys.subtree(namespace[:depth])[1]
            steps = 0
        return None

    def children(self, namespace: Namespace, kind: EntryKind | None = None) -> list[tuple[Identifier, Entry]]:
        """The tables and views directly in a namespace, in order of their names."""
        low, high = keys.entries_in(namespace)
        return [
            (Identifier(namespace, data[len(low) :].decode()), entry)
            for data, entry in self._scan(low, high)
            if kind is None or entry.kind == kind
        ]

    def has_children(self, namespace: Namespace) -> bool:
        """Is there a table, view or namespace in it?"""
        return next(self._scan(*keys.inside(namespace)), None) is not None

    def items(self) -> Iterator[tuple[Key, Entry]]:
        """Everything, a namespace before what is in it."""
        for data, entry in self._scan(b"", None):
            yield keys.decode(data), entry

    def by_id(self, entry_id: str) -> tuple[Key, Entry] | None:
        """Reads the whole tree."""
        return next(((key, entry) for key, entry in self.items() if entry.id == entry_id), None)

    def edit(self, changes: Mapping[Key, Entry | None]) -> TreeEdit:
        """This tree with each key set to its entry, or taken out (None)."""
        rows = sorted((keys.encode(key), key, entry) for key, entry in changes.items())
        builder = _Builder(self._nodes)
        root = builder.apply(self.root, rows)
        if not builder.changes:
            return TreeEdit(self.root, self.root, (), {})
        return TreeEdit(self.root, root, pack(builder.nodes), builder.changes)

    def _scan(self, low: bytes, high: bytes | None) -> Iterator[tuple[bytes, Entry]]:
        """Entries with low <= key < high (None: to the end)."""
        if self.root is not None:
            yield from self._scan_node(self._nodes.get(self.root), low, high)

    def _scan_node(self, node: Node, low: bytes, high: bytes | None) -> Iterator[tuple[bytes, Entry]]:
        if isinstance(node, Leaf):
            start = bisect_left(node.keys, low)
            end = len(node.keys) if high is None else bisect_left(node.keys, high)
            for place in range(start, end):
                yield node.keys[place], node.entries[place]
            return
        first = _child_of(node, low)
        end = len(node.children) if high is None else max(bisect_left(node.keys, high), first + 1)
        # More and more in one trip: many scans end with the first.
        size = 1
        while first < end:
            for child in self._nodes.get_many(node.children[first : min(first + size, end)]):
                yield from self._scan_node(child, low, high)
            first += size
            size *= 4


def diff(a: Tree, b: Tree) -> dict[Key, tuple[Entry | None, Entry | None]]:
    """What differs, in key order: the entry in ``a`` and in ``b``. Nodes that both trees share are not read.

    Level by level, from the top, without what both sides have. A node stands once in a tree, so its parents on the two
    sides are both shared or both not: taking shared nodes out of both sides never hides a difference.
    """
    left, right = _Frontier(a), _Frontier(b)
    level = max(left.level, right.level)
    while level > 0:
        shared = left.ids(level) & right.ids(level)
        left.expand(level, shared)
        right.expand(level, shared)
        level -= 1
    shared = left.ids(0) & right.ids(0)
    before, after = left.entries(shared), right.entries(shared)
    return {
        keys.decode(data): (before.get(data), after.get(data))
        for data in sorted(before.keys() | after.keys())
        if before.get(data) != after.get(data)
    }


class _Frontier:
    """One side of a diff: the nodes of the level that it has come down to."""

    def __init__(self, tree: Tree) -> None:
        self._source = tree._nodes
        self._ids = [] if tree.root is None else [tree.root]
        self.level = -1 if tree.root is None else self._source.get(tree.root).level

    def ids(self, level: int) -> set[int]:
        return set(self._ids) if self.level == level else set()

    def expand(self, level: int, shared: set[int]) -> None:
        if self.level != level:
            return
        nodes = self._source.get_many([node_id for node_id in self._ids if node_id not in shared])
        self._ids = [child for node in nodes if isinstance(node, Inner) for child in node.children]
        self.level -= 1

    def entries(self, shared: set[int]) -> dict[bytes, Entry]:
        found: dict[bytes, Entry] = {}
        for node in self._source.get_many([node_id for node_id in self._ids if node_id not in shared]):
            if isinstance(node, Leaf):
                found.update(zip(node.keys, node.entries, strict=True))
        return found


Row = tuple[bytes, Key, Entry | None]
Piece = tuple[bytes, int]
"""Where a node's range begins, and its id (negative: by position among the new ones)."""


class _Builder:
    """Makes the new nodes of an edit, children before parents. Nodes left too small are not merged (they stay few)."""

    def __init__(self, source: NodeSource) -> None:
        self._source = source
        self.nodes: list[Node] = []
        self.changes: dict[Key, tuple[Entry | None, Entry | None]] = {}

    def apply(self, root: int | None, rows: Sequence[Row]) -> int | None:
        if root is None:
            level, pieces = 0, self._edit_leaf(None, Leaf([], []), b"", rows)
        else:
            node = self._source.get(root)
            level, pieces = node.level, self._edit(root, node, b"", rows)
        while len(pieces) > 1:
            level += 1
            pieces = self._inners(level, b"", pieces)
        return self._lowered(pieces[0][1]) if pieces else None

    def _lowered(self, reference: int) -> int:
        """A root needs two children; without them its child is the root."""
        node = self._node(reference)
        while isinstance(node, Inner) and len(node.children) == 1:
            if reference < 0 and -reference == len(self.nodes):
                self.nodes.pop()
            reference = node.children[0]
            node = self._node(reference)
        return reference

    def _node(self, reference: int) -> Node:
        return self.nodes[-reference - 1] if reference < 0 else self._source.get(reference)

    def _edit(self, node_id: int, node: Node, low: bytes, rows: Sequence[Row]) -> list[Piece]:
        if isinstance(node, Leaf):
            return self._edit_leaf(node_id, node, low, rows)
        parts = _share_out(node, rows)
        touched = self._source.get_many([node.children[place] for place, _ in parts])
        pieces: list[Piece] = []
        position = 0
        for (place, mine), child in zip(parts, touched, strict=True):
            pieces.extend(zip(node.keys[position:place], node.children[position:place], strict=True))
            # What lies before keys[0] is in child 0 too: its range begins where this node's does.
            pieces.extend(self._edit(node.children[place], child, node.keys[place] if place else low, mine))
            position = place + 1
        pieces.extend(zip(node.keys[position:], node.children[position:], strict=True))
        if [reference for _, reference in pieces] == node.children:
            return [(low, node_id)]
        return self._inners(node.level, low, pieces)

    def _edit_leaf(self, node_id: int | None, leaf: Leaf, low: bytes, rows: Sequence[Row]) -> list[Piece]:
        content = dict(zip(leaf.keys, leaf.entries, strict=True))
        same = True
        for data, key, entry in rows:
            before = content.get(data)
            if before == entry:
                continue
            same = False
            self.changes[key] = (before, entry)
            if entry is None:
                del content[data]
            else:
                content[data] = entry
        if same:
            return [] if node_id is None else [(low, node_id)]
        return self._leaves(low, sorted(content.items()))

    def _leaves(self, low: bytes, content: Sequence[tuple[bytes, Entry]]) -> list[Piece]:
        if not content:
            return []
        prefix = len(common_prefix((content[0][0], content[-1][0])))
        sizes = [len(data) - prefix + len(entry_bytes(entry)) + 2 for data, entry in content]
        pieces: list[Piece] = []
        last: bytes | None = None
        for part in _cut(sizes, least=1):
            mine = content[part]
            first = mine[0][0]
            begin = low if last is None else _separator(last, first)
            pieces.append((begin, self._add(Leaf([data for data, _ in mine], [entry for _, entry in mine]))))
            last = mine[-1][0]
        return pieces

    def _inners(self, level: int, low: bytes, pieces: Sequence[Piece]) -> list[Piece]:
        if not pieces:
            return []
        prefix = len(common_prefix((pieces[0][0], pieces[-1][0])))
        sizes = [len(begin) - prefix + 11 for begin, _ in pieces]
        made: list[Piece] = []
        for part in _cut(sizes, least=4):
            mine = pieces[part]
            node = Inner(level, [begin for begin, _ in mine], [reference for _, reference in mine])
            made.append((mine[0][0] if made else low, self._add(node)))
        return made

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return -len(self.nodes)


def _child_of(node: Inner, data: bytes) -> int:
    return max(bisect_right(node.keys, data) - 1, 0)


def _share_out(node: Inner, rows: Sequence[Row]) -> list[tuple[int, Sequence[Row]]]:
    """The rows of each child that has any."""
    parts: list[tuple[int, Sequence[Row]]] = []
    start = 0
    while start < len(rows):
        place = _child_of(node, rows[start][0])
        end = len(rows)
        if place + 1 < len(node.keys):
            end = bisect_left(rows, node.keys[place + 1], start, key=lambda row: row[0])
        parts.append((place, rows[start:end]))
        start = end
    return parts


def _cut(sizes: Sequence[int], *, least: int) -> list[slice]:
    """Where to cut a run of this many bytes each into nodes of even size: one if it fits, else of TARGET_BYTES or less.

    On average a node gets ``least`` elements or more, however long they are.
    """
    total = sum(sizes)
    if total <= MAX_BYTES:
        return [slice(0, len(sizes))]
    count = max(min(-(-total // TARGET_BYTES), len(sizes) // least), 1)
    starts: list[int] = []
    passed, current = 0, -1
    for place, size in enumerate(sizes):
        mine = (2 * passed + size) * count // (2 * total)
        if mine != current:
            starts.append(place)
            current = mine
        passed += size
    return [slice(start, end) for start, end in pairwise((*starts, len(sizes)))]


def _separator(last: bytes, first: bytes) -> bytes:
    """The shortest bytes above ``last`` that are not above ``first``."""
    return first[: len(common_prefix((last, first))) + 1]
