"""An overlay: staged changes seen over a pinned base tree. It answers what a tree answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from icefield.graph.tree import TreeView
from icefield.model.entries import Entry, EntryKind
from icefield.model.names import Identifier, Namespace
from icefield.transaction.changes import Key


class OverlayView:
    def __init__(self, base: TreeView, after: Mapping[Key, Entry | None]) -> None:
        self._base = base
        self._after = after

    @property
    def base(self) -> TreeView:
        return self._base

    @property
    def after(self) -> Mapping[Key, Entry | None]:
        """What the staged changes leave under each name that they touch."""
        return self._after

    def get(self, key: Key) -> Entry | None:
        return self._after[key] if key in self._after else self._base.get(key)

    def namespaces(self, parent: Namespace) -> list[tuple[Namespace, Entry]]:
        found = dict(self._base.namespaces(parent))
        for key, entry in self._after.items():
            if isinstance(key, tuple) and key[:-1] == parent:
                found.pop(key, None)
                if entry is not None:
                    found[key] = entry
        return sorted(found.items())

    def children(self, namespace: Namespace, kind: EntryKind | None = None) -> list[tuple[Identifier, Entry]]:
        found = dict(self._base.children(namespace, kind))
        for key, entry in self._after.items():
            if isinstance(key, Identifier) and key.namespace == namespace:
                found.pop(key, None)
                if entry is not None and kind in (None, entry.kind):
                    found[key] = entry
        return sorted(found.items(), key=lambda item: item[0].name)

    def has_children(self, namespace: Namespace) -> bool:
        return bool(self.children(namespace) or self.namespaces(namespace))

    def items(self) -> Iterator[tuple[Key, Entry]]:
        for key, entry in self._base.items():
            if key not in self._after:
                yield key, entry
        for key, staged in self._after.items():
            if staged is not None:
                yield key, staged
