"""Every record the store keeps. Fields are str, int, bytes, bool or None; JSON is a str.

Adding a field or a kind = a dataclass here + a table in ``store/sql/tables.py`` + a migration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class RepoRecord:
    KEY: ClassVar[tuple[str, ...]] = ("name",)
    name: str
    default_branch: str
    created_ms: int
    properties: str
    """JSON object: ``client-gc`` and the like."""


@dataclass(frozen=True, slots=True)
class RefRecord:
    """A branch or a tag. ``head`` is a commit's number. A branch moves by ``StoreWriter.replace`` (compare-and-set)."""

    KEY: ClassVar[tuple[str, ...]] = ("repo", "name")
    repo: str
    name: str
    kind: str
    head: int
    id: str
    """Made at creation, so that a branch dropped and made again is another one (allocator ranges belong to it)."""
    created_ms: int


@dataclass(frozen=True, slots=True)
class RefLogRecord:
    """Where a ref stood: one row per move."""

    KEY: ClassVar[tuple[str, ...]] = ("seq",)
    seq: int
    repo: str
    ref: str
    head: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A node of the commit graph. ``seq`` is its internal number, ``id`` the hash that users see."""

    KEY: ClassVar[tuple[str, ...]] = ("seq",)
    seq: int
    repo: str
    id: str
    parent: int | None
    merged: int | None
    """The second parent: set by a merge."""
    generation: int
    time_ms: int
    principal: str
    message: str
    root: int | None
    """The tree's root node; None is the empty tree."""
    details: str
    """JSON: what happened (operation, transaction id, entries touched)."""


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """Tree nodes written together, packed in one row. Node id = segment id << 16 | index. Ids are never reused."""

    KEY: ClassVar[tuple[str, ...]] = ("id",)
    id: int
    nodes: bytes


@dataclass(frozen=True, slots=True)
class RangeRecord:
    """Ids of one kind that writers of (entry, ref) may take: ``low <= id < high``. See transaction/README.md."""

    KEY: ClassVar[tuple[str, ...]] = ("entry", "kind", "ref")
    entry: str
    kind: str
    ref: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class RangeTopRecord:
    """The first id of this kind never handed out for this entry, on any ref."""

    KEY: ClassVar[tuple[str, ...]] = ("entry", "kind")
    entry: str
    kind: str
    top: int


@dataclass(frozen=True, slots=True)
class SequenceRecord:
    """The first number of a column's sequence never handed out, on any branch. It outlives the table."""

    KEY: ClassVar[tuple[str, ...]] = ("entry", "field")
    entry: str
    field: int
    next: int


@dataclass(frozen=True, slots=True)
class LandedRecord:
    """The retry law: this snapshot, posted with this digest, has landed on this ref."""

    KEY: ClassVar[tuple[str, ...]] = ("entry", "ref", "snapshot_id")
    entry: str
    ref: str
    snapshot_id: int
    digest: str
    commit: int


@dataclass(frozen=True, slots=True)
class OutcomeRecord:
    """The first outcome of something that may be asked for again (COMMIT, merge), by its id."""

    KEY: ClassVar[tuple[str, ...]] = ("key",)
    key: str
    outcome: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A symbolic ref: it points at a ref or, after BEGIN, at a transaction."""

    KEY: ClassVar[tuple[str, ...]] = ("id",)
    id: str
    repo: str
    token_hash: str
    principal: str
    ref: str
    view: int
    """The commit that the session's statements see (autocommit); moves when a statement is marked."""
    epoch: int
    transaction: str | None
    statement: int
    """Number of the newest marked statement; 0 = never marked."""
    in_flight: str
    """JSON list of the statements that have not returned yet."""
    lease_ms: int
    expires_ms: int
    closed: bool


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    KEY: ClassVar[tuple[str, ...]] = ("id",)
    id: str
    repo: str
    session: str
    ref: str
    base: int
    isolation: str
    message: str
    state: str
    """open, committing, committed, rolled-back, failed"""
    version: int
    """Moves with every staged change; part of what answers a fresh metadata location."""
    started_ms: int


@dataclass(frozen=True, slots=True)
class StagedRecord:
    """One staged change of a transaction's overlay, in order. A savepoint is a position in this list."""

    KEY: ClassVar[tuple[str, ...]] = ("transaction", "position")
    transaction: str
    position: int
    change: str
    """JSON, see transaction/overlay.py."""


@dataclass(frozen=True, slots=True)
class SavepointRecord:
    KEY: ClassVar[tuple[str, ...]] = ("transaction", "depth")
    transaction: str
    depth: int
    name: str
    position: int


@dataclass(frozen=True, slots=True)
class DeletionRecord:
    """A file that may go, once nothing reaches it and the reader grace has passed. Nothing deletes it yet."""

    KEY: ClassVar[tuple[str, ...]] = ("location",)
    location: str
    reason: str
    enqueued_ms: int
    not_before_ms: int


@dataclass(frozen=True, slots=True)
class SettingRecord:
    """Server-wide facts: the load-token key, the data folder's format."""

    KEY: ClassVar[tuple[str, ...]] = ("name",)
    name: str
    value: str


ALL_KINDS: tuple[type, ...] = (
    RepoRecord,
    RefRecord,
    RefLogRecord,
    CommitRecord,
    SegmentRecord,
    RangeRecord,
    RangeTopRecord,
    SequenceRecord,
    LandedRecord,
    OutcomeRecord,
    SessionRecord,
    TransactionRecord,
    StagedRecord,
    SavepointRecord,
    DeletionRecord,
    SettingRecord,
)
