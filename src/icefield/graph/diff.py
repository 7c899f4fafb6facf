"""What differs between two trees, told by entry: an entry that has another name is renamed, not dropped and created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from icefield.graph.keys import Key
from icefield.graph.tree import Tree, diff
from icefield.model.entries import Entry, EntryKind

Change = Literal["created", "dropped", "changed", "renamed"]


@dataclass(frozen=True, slots=True)
class EntryDiff:
    """One entry on both sides. ``renamed`` says nothing about its content: compare ``from_entry`` and ``to_entry``."""

    change: Change
    from_key: Key | None
    from_entry: Entry | None
    to_key: Key | None
    to_entry: Entry | None

    @property
    def key(self) -> Key:
        """Its name now, or the last it had."""
        key = self.to_key if self.to_key is not None else self.from_key
        if key is None:
            raise ValueError("a difference without an entry")
        return key

    @property
    def entry(self) -> Entry:
        entry = self.to_entry if self.to_entry is not None else self.from_entry
        if entry is None:
            raise ValueError("a difference without an entry")
        return entry

    @property
    def id(self) -> str:
        return self.entry.id

    @property
    def kind(self) -> EntryKind:
        return self.entry.kind

    @property
    def name(self) -> str:
        return dotted(self.key)


def dotted(key: Key) -> str:
    return ".".join(key) if isinstance(key, tuple) else str(key)


def diff_trees(a: Tree, b: Tree) -> list[EntryDiff]:
    """In order of the names in ``b``, or in ``a`` for what ``b`` has not."""
    return describe(diff(a, b))


def describe(changes: Mapping[Key, tuple[Entry | None, Entry | None]]) -> list[EntryDiff]:
    """Differences by key, in key order, as differences by entry."""
    before = {old.id: (key, old) for key, (old, _) in changes.items() if old is not None}
    after = {new.id for _, new in changes.values() if new is not None}
    found: list[EntryDiff] = []
    for key, (old, new) in changes.items():
        # Another entry took the place: two differences, unless either has only moved.
        if old is not None and old.id not in after:
            found.append(EntryDiff("dropped", key, old, None, None))
        if new is None:
            continue
        was = before.get(new.id)
        if was is None:
            found.append(EntryDiff("created", None, None, key, new))
        else:
            found.append(EntryDiff("changed" if was[0] == key else "renamed", was[0], was[1], key, new))
    return found
