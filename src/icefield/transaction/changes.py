"""Changes: what one client asked to be done to one entry. They are staged in an overlay, or landed at once.

``UpdateTable`` keeps the client's own words (updates, requirements) besides the result, because landing on a newer
head applies the words again; every other change is fully told by the entries before and after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from icefield.model.entries import Entry, EntryKind
from icefield.model.names import Identifier, Namespace

Key = Namespace | Identifier


@dataclass(frozen=True, slots=True)
class Change:
    operation: str
    """create, drop, change, rename: the word that log and diff show."""
    entries: Mapping[Key, Entry | None]
    """What the tree holds afterwards under each name touched."""
    words: TableWords | None = None
    """Set for a commit to an existing table."""
    superseded: tuple[str, ...] = ()
    """Files that no commit will ever reach because of this change."""


@dataclass(frozen=True, slots=True)
class TableWords:
    """A client's commit to an existing table, as it was said (without what we had laid over)."""

    entry: str
    updates: list[dict[str, Any]]
    requirements: list[dict[str, Any]]
    strict: bool = False
    """Its meaning depends on rows it read: landing never rebases it, even where its files look like an append."""
    files: tuple[str, ...] = field(default=())
    """Manifest lists the snapshots name, as the overlay holds them (renumbered ones differ from the client's)."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Snapshot id -> digest of the add-snapshot as posted: a retry is recognised by it."""


def key_name(key: Key) -> str:
    return str(key) if isinstance(key, Identifier) else ".".join(key)


def to_json(change: Change) -> str:
    document = {
        "operation": change.operation,
        "entries": [[_key_to_json(k), _entry_to_json(e)] for k, e in change.entries.items()],
        "superseded": list(change.superseded),
        "words": None
        if change.words is None
        else {
            "entry": change.words.entry,
            "updates": change.words.updates,
            "requirements": change.words.requirements,
            "strict": change.words.strict,
            "files": list(change.words.files),
            "digests": dict(change.words.digests),
        },
    }
    return msgspec.json.encode(document).decode()


def from_json(text: str) -> Change:
    document = msgspec.json.decode(text)
    words = document["words"]
    return Change(
        document["operation"],
        {_key_from_json(k): _entry_from_json(e) for k, e in document["entries"]},
        None
        if words is None
        else TableWords(
            words["entry"],
            words["updates"],
            words["requirements"],
            words["strict"],
            tuple(words["files"]),
            words["digests"],
        ),
        tuple(document["superseded"]),
    )


def entries_after(changes: Iterable[Change]) -> dict[Key, Entry | None]:
    after: dict[Key, Entry | None] = {}
    for change in changes:
        after.update(change.entries)
    return after


def _key_to_json(key: Key) -> dict[str, Any]:
    if isinstance(key, Identifier):
        return {"namespace": list(key.namespace), "name": key.name}
    return {"namespace": list(key)}


def _key_from_json(document: dict[str, Any]) -> Key:
    namespace = tuple(document["namespace"])
    return Identifier(namespace, document["name"]) if "name" in document else namespace


def _entry_to_json(entry: Entry | None) -> Any:
    if entry is None:
        return None
    return [entry.id, entry.kind.value, entry.metadata_location, entry.location, [list(p) for p in entry.properties]]


def _entry_from_json(document: Any) -> Entry | None:
    if document is None:
        return None
    id_, kind, metadata_location, location, properties = document
    return Entry(id_, EntryKind(kind), metadata_location, location, tuple((k, v) for k, v in properties))
