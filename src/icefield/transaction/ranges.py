"""The ids law: every id a writer may take is handed out once, to one (table, ref). See README.md, "Ids".

A range is given the first time a (table, ref) is seen. A publish that brings the ref's metadata above its range (a
fast-forward, a merge, a transaction) gives it a fresh one in the same store transaction. Main's first range begins at
the file's own counters, so a table that was never branched looks like any other catalog's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icefield.iceberg.metadata import counters, raise_counters
from icefield.store.port import StoreReader, StoreWriter
from icefield.store.records import RangeRecord, RangeTopRecord

FIELDS = "field"
PARTITION_FIELDS = "partition-field"
ROWS = "row"

WIDTH = {FIELDS: 1_000, PARTITION_FIELDS: 1_000, ROWS: 1 << 32}
HIGHEST = {FIELDS: 2_147_483_447, PARTITION_FIELDS: 2_147_483_647, ROWS: (1 << 63) - 1}
"""Where ranges end at the latest. Iceberg reserves the field ids above for metadata columns."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose ranges apply: the branch's, and a transaction's own for row ids."""

    ref: str
    transaction: str | None = None

    def owner(self, kind: str) -> str:
        # Field ids are 32 bits: a transaction borrows its branch's range, and a column added inside conflicts at
        # COMMIT if the table's schema moved meanwhile. Row ids get a range of the transaction's own.
        return self.transaction if kind == ROWS and self.transaction is not None else self.ref


@dataclass(frozen=True, slots=True)
class Positions:
    """The next id of each kind that a writer of this ref may take, and where its range ends."""

    next: Mapping[str, int]
    high: Mapping[str, int]

    def raised(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """The metadata as this ref's writers must see it."""
        return raise_counters(
            metadata,
            last_column_id=self.next[FIELDS] - 1,
            last_partition_id=self.next[PARTITION_FIELDS] - 1,
            next_row_id=self.next.get(ROWS),
        )


def first_free(metadata: dict[str, Any]) -> dict[str, int]:
    """The lowest id of each kind above all that the metadata holds."""
    found = counters(metadata)
    free = {FIELDS: found["last-column-id"] + 1, PARTITION_FIELDS: found["last-partition-id"] + 1}
    if metadata["format-version"] >= 3:
        free[ROWS] = found.get("next-row-id") or 0
    return free


def positions(reader: StoreReader, entry: str, scope: Scope, metadata: dict[str, Any]) -> Positions | None:
    """None if a range is missing or used up: ``ensure`` must run first."""
    following: dict[str, int] = {}
    high: dict[str, int] = {}
    for kind, free in first_free(metadata).items():
        record = reader.get(RangeRecord, entry, kind, scope.owner(kind))
        if record is None or (free >= record.high and record.high < HIGHEST[kind]):
            return None
        # Where a kind's ids are used up, the range is empty: whatever is taken from there is a conflict.
        following[kind] = max(record.low, min(free, HIGHEST[kind]))
        high[kind] = record.high
    return Positions(following, high)


def ensure(writer: StoreWriter, entry: str, scope: Scope, metadata: dict[str, Any]) -> Positions:
    """Hands out what is missing, in the caller's store transaction."""
    for kind, free in first_free(metadata).items():
        owner = scope.owner(kind)
        record = writer.get(RangeRecord, entry, kind, owner)
        if record is None or free >= record.high:
            _allocate(writer, entry, kind, owner, free, before=record)
    found = positions(writer, entry, scope, metadata)
    assert found is not None
    return found


def _allocate(writer: StoreWriter, entry: str, kind: str, owner: str, free: int, *, before: RangeRecord | None) -> None:
    top_record = writer.get(RangeTopRecord, entry, kind)
    top = top_record.top if top_record is not None else 0
    low = min(max(free, top), HIGHEST[kind])
    # What it needed of its own range. Ids that lie far above it came from another one, and say nothing of its needs.
    used = free - before.low if before is not None and free <= 2 * before.high - before.low else 0
    width = min(max(WIDTH[kind], 2 * used if used > WIDTH[kind] else 0), HIGHEST[kind] - low)
    writer.put(RangeRecord(entry, kind, owner, low, low + width))
    writer.put(RangeTopRecord(entry, kind, low + width))


def renew(writer: StoreWriter, entry: str, scope: Scope, metadata: dict[str, Any]) -> None:
    """After a publish: if what landed holds ids from elsewhere, the ref's old range lies below them and must go.

    Ids from this ref's own range leave it alone; ids at or above its end came with a merge or a transaction.
    """
    for kind, free in first_free(metadata).items():
        owner = scope.owner(kind)
        record = writer.get(RangeRecord, entry, kind, owner)
        if record is None or free >= record.high:
            _allocate(writer, entry, kind, owner, free, before=None)


def give_back(writer: StoreWriter, transaction: str) -> None:
    """A transaction ended without landing: nothing was written in its row ranges that anybody can reach."""
    for record in writer.find(RangeRecord, ref=transaction):
        settle(writer, record.entry, transaction, None)


def settle(writer: StoreWriter, entry: str, transaction: str, landed: dict[str, Any] | None) -> None:
    """A transaction's row range ends with it. Unused and topmost, it is handed out again; else it stays taken."""
    record = writer.get(RangeRecord, entry, ROWS, transaction)
    if record is None:
        return
    writer.delete(RangeRecord, entry, ROWS, transaction)
    used = landed is not None and landed.get("next-row-id", 0) > record.low
    top = writer.get(RangeTopRecord, entry, ROWS)
    if not used and top is not None and top.top == record.high:
        writer.put(RangeTopRecord(entry, ROWS, record.low))
