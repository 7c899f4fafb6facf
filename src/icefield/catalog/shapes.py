"""The shape of the lake at a place: every table with its schema. The SQL door keeps its shadows by it.

The fingerprint covers what shadows are made from: names, schemas (with docs, defaults and identifier fields), partition
specs, format versions, comments and the properties that begin with ``icefield.``. It stays the same while rows come
and go, and while properties change that are none of a shadow's business.

A lake of ten thousand tables is asked for its shape before every statement, and nearly always nothing has changed, or
the rows of one table have. So shapes are remembered by the root of their tree, a new root is compared with the last one
(which costs what has changed), and what a table adds is remembered by its metadata file, which never changes.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from icefield.catalog.places import Place
from icefield.graph.tree import Tree, TreeView
from icefield.graph.tree import diff as tree_diff
from icefield.model.entries import Entry, EntryKind
from icefield.model.names import Identifier
from icefield.transaction.changes import Key
from icefield.transaction.metadata_files import MetadataFiles
from icefield.transaction.overlay import OverlayView
from icefield.transaction.table_commits import REMEMBERED

REMEMBERED_SHAPES = 16
REMEMBERED_BYTES = 64 * 1024 * 1024
"""Of tables' schemas and properties, as JSON."""

COVERED = ("comment",)
"""Properties that shadows depend on, besides those that the SQL door itself keeps in the table."""

V = TypeVar("V")


class Lately(Generic[V]):
    """What was used last, up to a size."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._guard = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()

    def get(self, key: Hashable) -> V | None:
        with self._guard:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: V, size: int = 1) -> None:
        with self._guard:
            _, before = self._kept.pop(key, (None, 0))
            self._kept[key] = (value, size)
            self._size += size - before
            while self._size > self._limit and len(self._kept) > 1:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._size -= dropped


@dataclass(frozen=True, slots=True)
class Piece:
    """What one metadata file adds to the shape, as JSON."""

    digest: bytes
    told: Mapping[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class Line:
    """A namespace or a table of a shape."""

    digest: bytes
    entry: Entry


@dataclass(frozen=True, slots=True)
class Shape:
    tree: Tree | None
    """What the next one is compared with; None for what a transaction sees."""
    lines: Mapping[Key, Line]
    fingerprint: str


NOTHING = Shape(None, {}, "")


class Shapes:
    def __init__(self, metadata: MetadataFiles) -> None:
        self._metadata = metadata
        self._pieces: Lately[Piece] = Lately(REMEMBERED_BYTES)
        self._shapes: Lately[Shape] = Lately(REMEMBERED_SHAPES)
        self._last: dict[str, Shape] = {}
        self._computing = threading.Lock()

    def answer(self, place: Place, unless: str | None) -> dict[str, Any]:
        """The shape of the lake there, or only that it is still the one with the fingerprint ``unless``."""
        shape = self.at(place)
        if shape.fingerprint == unless:
            return {"unchanged": True, "commit": place.commit.id}
        found = [(key, line.entry) for key, line in shape.lines.items()]
        tables = [(key, entry) for key, entry in found if isinstance(key, Identifier)]
        tables.sort(key=lambda each: (each[0].namespace, each[0].name))
        return {
            "commit": place.commit.id,
            "fingerprint": shape.fingerprint,
            "namespaces": sorted(list(key) for key, _ in found if isinstance(key, tuple)),
            "tables": [self._told(key, entry) for key, entry in tables],
        }

    def at(self, place: Place) -> Shape:
        key, view = _remembered_by(place.view), place.view
        found = self._shapes.get(key)
        if found is not None:
            return found
        # One at a time: whoever waits finds most of the work done.
        with self._computing:
            found = self._shapes.get(key)
            if found is None:
                found = (
                    self._overlaid(place.repo, view) if isinstance(view, OverlayView) else self._of(place.repo, view)
                )
                self._shapes.put(key, found)
            return found

    def _overlaid(self, repo: str, view: OverlayView) -> Shape:
        base = self._shapes.get(_remembered_by(view.base)) or self._of(repo, view.base)
        return self._changed(base, view.after.items(), None)

    def _of(self, repo: str, view: TreeView) -> Shape:
        assert isinstance(view, Tree)
        last = self._last.get(repo, NOTHING)
        changes: Iterable[tuple[Key, Entry | None]]
        if last.tree is None:
            changes = view.items()
        else:
            changes = ((key, entry) for key, (_, entry) in tree_diff(last.tree, view).items())
        found = self._changed(last, changes, view)
        self._last[repo] = found
        self._shapes.put(_remembered_by(view), found)
        return found

    def _changed(self, last: Shape, changes: Iterable[tuple[Key, Entry | None]], tree: Tree | None) -> Shape:
        lines = dict(last.lines)
        same = last is not NOTHING
        for key, entry in changes:
            before = lines.get(key)
            after = self._line(key, entry) if entry is not None else None
            if after is not None:
                lines[key] = after
            elif before is not None:
                del lines[key]
            same = same and (before and before.digest) == (after and after.digest)
        return Shape(tree, lines, last.fingerprint if same else _fingerprint(lines))

    def _line(self, key: Key, entry: Entry) -> Line | None:
        if isinstance(key, tuple):
            return Line(_digest(["namespace", key]), entry)
        if entry.kind is not EntryKind.TABLE or entry.metadata_location is None:
            return None
        piece = self._piece(entry.metadata_location)
        return Line(_digest([key.namespace, key.name, entry.id, piece.digest]), entry)

    def _piece(self, location: str) -> Piece:
        found = self._pieces.get(location)
        if found is None:
            found = _piece_of(self._metadata.load(location))
            self._pieces.put(location, found, sum(len(bytes(each)) for each in found.told.values()))
        return found

    def _told(self, key: Identifier, entry: Entry) -> dict[str, Any]:
        assert entry.metadata_location is not None
        return {
            "namespace": list(key.namespace),
            "name": key.name,
            "id": entry.id,
            "kind": entry.kind.value,
            **self._piece(entry.metadata_location).told,
            "metadata-location": entry.metadata_location,
        }


def _piece_of(metadata: dict[str, Any]) -> Piece:
    properties = metadata.get("properties") or {}
    schema = _current(metadata, "schemas", "schema-id", "current-schema-id")
    spec = _current(metadata, "partition-specs", "spec-id", "default-spec-id")
    version = metadata["format-version"]
    covered = {k: v for k, v in properties.items() if k in COVERED or k.startswith(REMEMBERED)}
    told = {
        "schema": schema,
        "partition-spec": spec,
        "format-version": version,
        "properties": properties,
        "snapshot-id": metadata.get("current-snapshot-id"),
    }
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in told.items()}
    return Piece(_digest([schema, spec, version, covered]), raw)


def _current(metadata: dict[str, Any], many: str, key: str, current: str) -> dict[str, Any] | None:
    wanted = metadata.get(current)
    return next((each for each in metadata.get(many) or () if each.get(key) == wanted), None)


def _remembered_by(view: TreeView) -> Hashable:
    """Equal where two views show the same. Nodes are never numbered anew, so a root names one tree for ever."""
    if isinstance(view, OverlayView):
        return (_remembered_by(view.base), frozenset(view.after.items()))
    assert isinstance(view, Tree)
    return view.root


def _digest(value: Any) -> bytes:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).digest()[:16]


def _fingerprint(lines: Mapping[Key, Line]) -> str:
    """Of the lines as a set: however a shape came about, it has one fingerprint."""
    return hashlib.sha256(b"".join(sorted(line.digest for line in lines.values()))).hexdigest()[:32]
