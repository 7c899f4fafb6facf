"""Tree nodes: their form in memory, their bytes, and where they are read from.

A node never changes once stored, so a decoded node may be shared by everybody, for ever. A node's id is
``segment << 16 | index``. Nodes of one edit that point at each other do so by position in the edit (-1 is the first),
so that they can be built and packed before the store has given their segments a number; those numbers must follow
each other, and a segment knows which part of its edit it is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec
import zstandard

from icefield.model.entries import Entry, EntryKind
from icefield.store.port import Store, StoreReader
from icefield.store.records import SegmentRecord

SEGMENT_NODES = 32
"""Nodes in a segment at most: reading one node unpacks its whole segment."""
CACHE_BYTES = 64 << 20
_INDEX_BITS = 16
_DECODE_ALL = 8
"""Up to so many nodes, a segment is one commit's path through the tree, and wanted as a whole."""


class Leaf(msgspec.Struct, frozen=True, gc=False):
    keys: list[bytes]
    entries: list[Entry]
    level: int = 0


class Inner(msgspec.Struct, frozen=True, gc=False):
    """Child i holds the keys from ``keys[i]`` up to ``keys[i + 1]``; child 0 also what lies before ``keys[0]``."""

    level: int
    keys: list[bytes]
    children: list[int]


Node = Leaf | Inner


class _StoredEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    id: str
    kind: int
    shared: int
    """How many leading characters of ``location`` the metadata location begins with."""
    metadata: str | None
    location: str | None
    properties: tuple[tuple[str, str], ...]


class _StoredNode(msgspec.Struct, frozen=True, array_like=True, gc=False):
    level: int
    prefix: bytes
    keys: list[bytes]
    """Without the prefix."""
    children: list[int]
    entries: list[_StoredEntry]


class _NodeToStore(msgspec.Struct, frozen=True, array_like=True, gc=False):
    level: int
    prefix: bytes
    keys: list[bytes]
    children: list[int]
    entries: list[msgspec.Raw]


class _Segment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    part: int
    """0 for the edit's first segment."""
    size: int
    """How many nodes a full segment of this edit has."""
    nodes: list[bytes]


_KINDS = (EntryKind.NAMESPACE, EntryKind.TABLE, EntryKind.VIEW)
_CODES = {kind: code for code, kind in enumerate(_KINDS)}
_encode = msgspec.msgpack.Encoder().encode
_decode_node = msgspec.msgpack.Decoder(_StoredNode).decode
_decode_segment = msgspec.msgpack.Decoder(_Segment).decode


class _Codecs(threading.local):
    """zstd objects may not be used by two threads at once."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=3, write_checksum=True).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_codecs = _Codecs()


def entry_bytes(entry: Entry) -> bytes:
    metadata, location = entry.metadata_location, entry.location
    shared = 0
    if metadata is not None and location and metadata.startswith(location):
        shared = len(location)
        metadata = metadata[shared:]
    return _encode(_StoredEntry(entry.id, _CODES[entry.kind], shared, metadata, location, entry.properties))


def _entry(stored: _StoredEntry) -> Entry:
    metadata = stored.metadata
    if stored.shared and metadata is not None and stored.location is not None:
        metadata = stored.location[: stored.shared] + metadata
    return Entry(stored.id, _KINDS[stored.kind], metadata, stored.location, stored.properties)


def node_bytes(node: Node) -> bytes:
    prefix = common_prefix(node.keys)
    keys = [key[len(prefix) :] for key in node.keys]
    if isinstance(node, Leaf):
        entries = [msgspec.Raw(entry_bytes(entry)) for entry in node.entries]
        return _encode(_NodeToStore(0, prefix, keys, [], entries))
    return _encode(_NodeToStore(node.level, prefix, keys, node.children, []))


def common_prefix(keys: Sequence[bytes]) -> bytes:
    """``keys`` in order."""
    if not keys:
        return b""
    first, last = keys[0], keys[-1]
    for place, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return first[:place]
    return first[: len(last)]


def pack(nodes: Sequence[Node]) -> tuple[bytes, ...]:
    """The nodes of an edit, as segments to be stored under numbers that follow each other."""
    parts = range(0, len(nodes), SEGMENT_NODES)
    return tuple(
        _codecs.compress(
            _encode(_Segment(part, SEGMENT_NODES, [node_bytes(node) for node in nodes[start : start + SEGMENT_NODES]]))
        )
        for part, start in enumerate(parts)
    )


def absolute(reference: int, first_segment: int, size: int = SEGMENT_NODES) -> int:
    """The id of a node that is known by its position in an edit (negative), or as it is."""
    if reference >= 0:
        return reference
    part, index = divmod(-reference - 1, size)
    return (first_segment + part) << _INDEX_BITS | index


def _unpack(number: int, blob: bytes, wanted: Iterable[int]) -> dict[int, tuple[Node, int]]:
    """Decoded nodes by id with their size in bytes: those wanted, or all of a small segment."""
    segment = _decode_segment(_codecs.decompress(blob))
    indexes: Iterable[int] = range(len(segment.nodes)) if len(segment.nodes) <= _DECODE_ALL else wanted
    first = number - segment.part
    found: dict[int, tuple[Node, int]] = {}
    for index in indexes:
        data = segment.nodes[index]
        found[number << _INDEX_BITS | index] = (_node(_decode_node(data), first, segment.size), len(data))
    return found


def _node(stored: _StoredNode, first: int, size: int) -> Node:
    keys = [stored.prefix + key for key in stored.keys]
    if stored.level == 0:
        return Leaf(keys, [_entry(entry) for entry in stored.entries])
    children = [child if child >= 0 else absolute(child, first, size) for child in stored.children]
    return Inner(stored.level, keys, children)


class NodeCache:
    """Decoded nodes of committed segments, bounded: in two generations, and what is used moves to the young one."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._half = limit // 2
        self._young: dict[int, tuple[Node, int]] = {}
        self._old: dict[int, tuple[Node, int]] = {}
        self._size = 0
        self._lock = threading.Lock()

    def get(self, node_id: int) -> Node | None:
        held = self._young.get(node_id)
        if held is None:
            held = self._old.get(node_id)
            if held is None:
                return None
            self._keep({node_id: held})
        return held[0]

    def add(self, nodes: dict[int, tuple[Node, int]]) -> None:
        # Objects weigh about three times their bytes.
        self._keep({node_id: (node, 300 + 3 * size) for node_id, (node, size) in nodes.items()})

    def _keep(self, nodes: dict[int, tuple[Node, int]]) -> None:
        with self._lock:
            for node_id, held in nodes.items():
                if node_id not in self._young:
                    self._young[node_id] = held
                    self._size += held[1]
            if self._size > self._half:
                self._old, self._young, self._size = self._young, {}, 0


class NodeSource(Protocol):
    def get(self, node_id: int) -> Node: ...

    def get_many(self, node_ids: Sequence[int]) -> list[Node]:
        """In the order asked for, with one trip to the store at most."""
        ...


class CommittedNodes:
    """Nodes from committed segments, through the shared cache."""

    def __init__(self, store: Store, cache: NodeCache) -> None:
        self._store = store
        self._cache = cache

    def get(self, node_id: int) -> Node:
        node = self._cache.get(node_id)
        return self._fetch([node_id])[node_id] if node is None else node

    def get_many(self, node_ids: Sequence[int]) -> list[Node]:
        cached = [self._cache.get(node_id) for node_id in node_ids]
        missing = [node_id for node_id, node in zip(node_ids, cached, strict=True) if node is None]
        fetched = self._fetch(missing) if missing else {}
        return [fetched[node_id] if node is None else node for node_id, node in zip(node_ids, cached, strict=True)]

    def _fetch(self, node_ids: Sequence[int]) -> dict[int, Node]:
        with self._store.read() as reader:
            found = _read(reader, node_ids)
        self._cache.add(found)
        return {node_id: found[node_id][0] for node_id in node_ids}


class OwnNodes:
    """Nodes seen by one reader or writer, whose segments may yet be undone: shared with nobody."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._nodes: dict[int, Node] = {}

    def get(self, node_id: int) -> Node:
        return self.get_many([node_id])[0]

    def get_many(self, node_ids: Sequence[int]) -> list[Node]:
        missing = [node_id for node_id in node_ids if node_id not in self._nodes]
        if missing:
            self._nodes.update({node_id: node for node_id, (node, _) in _read(self._reader, missing).items()})
        return [self._nodes[node_id] for node_id in node_ids]


def _read(reader: StoreReader, node_ids: Iterable[int]) -> dict[int, tuple[Node, int]]:
    wanted: dict[int, list[int]] = {}
    for node_id in node_ids:
        wanted.setdefault(node_id >> _INDEX_BITS, []).append(node_id & ((1 << _INDEX_BITS) - 1))
    segments = reader.get_many(SegmentRecord, list(wanted))
    found: dict[int, tuple[Node, int]] = {}
    for number, indexes in wanted.items():
        segment: Any = segments.get(number)
        if segment is None:
            raise LookupError(f"segment {number} of the tree is not in the store")
        found.update(_unpack(number, segment.nodes, indexes))
    return found
