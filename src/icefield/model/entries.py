"""What a tree holds under a name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EntryKind(StrEnum):
    NAMESPACE = "namespace"
    TABLE = "table"
    VIEW = "view"


@dataclass(frozen=True, slots=True)
class Entry:
    """A namespace, table or view at a commit. ``id`` is made by the server and never names two things.

    ``metadata_location`` is set for tables and views, ``properties`` (sorted pairs) for namespaces.
    ``location`` is a table's server-assigned folder: two entries never share one.
    """

    id: str
    kind: EntryKind
    metadata_location: str | None = None
    location: str | None = None
    properties: tuple[tuple[str, str], ...] = ()
