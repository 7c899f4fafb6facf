"""What a statement did to a target: read out of the brain as the rows that are gone and the rows that are new.

A target is filled into a fresh file (TRUNCATE, then COPY), where the places of rows (ctid) ascend in the order of the
fetch: the n-th place is the n-th row. The statement runs in another subtransaction than the fill. So afterwards:

- a row that still has the fill's ``xmin`` is untouched; the places that such rows no longer have are *deleted*;
- a row with another ``xmin`` is *new*. Where a deleted row was updated, a trigger has noted its old and new place, and
  so a chain of notes leads from a new row to the row that it replaces.

``xmin``, and not ``cmin``: after an exception that PL/pgSQL caught, ``cmin`` may be a combined one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from icefield.pgwire.brain_link import BrainLink
from icefield.sql import rows
from icefield.sql.origin import Origin
from icefield.sql.shadows import Shadow

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

TRACE = "icefield_trace"
"""Of the trigger and of the table in pg_catalog that it writes to; both are made in ``brain/pool.py``."""
FORGET = "icefield_forget_trace"


@dataclass(slots=True)
class Target:
    """A shadow that may be changed, filled."""

    shadow: Shadow
    origin: Origin
    count: int = 0
    xid: str | None = None
    """Of the fill; None if there were no rows."""
    places: np.ndarray | None = None
    """By ordinal, ascending."""

    @property
    def source(self) -> str:
        return f"ONLY {self.shadow.sql_name}"

    @property
    def new_rows(self) -> str:
        """A FROM clause: the rows that the statement left there."""
        if self.xid is None:
            return self.source
        return f"{self.source} WHERE xmin OPERATOR(pg_catalog.<>) '{self.xid}'::pg_catalog.xid"


@dataclass(frozen=True, slots=True)
class Difference:
    deleted: np.ndarray
    """Ordinals of the rows that are gone or replaced, ascending."""
    rows: pa.Table
    """New rows; in format 3 with a last column ``_row_id``."""
    replaced: int
    """How many of the new rows replace another."""

    @property
    def empty(self) -> bool:
        return not len(self.deleted) and not self.rows.num_rows


async def prepare(link: BrainLink, target: Target) -> None:
    """After the fill, before the statement."""
    sql_name = target.shadow.sql_name
    first = await link.query(f"SELECT xmin::pg_catalog.text FROM {target.source} LIMIT 1")
    target.xid = first.scalar()
    if target.xid is not None:
        target.places = await _places(link, f"SELECT ctid AS place FROM {target.source}")
        if len(target.places) != target.count:
            raise RuntimeError(f"{target.count} rows were put under {sql_name}, and {len(target.places)} are there")
    if target.origin.keeps_row_ids and target.xid is not None:
        await link.query(
            f"SELECT pg_catalog.{FORGET}();"  # what a statement noted that was not undone
            "SET LOCAL icefield.ddl = 'on';"
            f"CREATE TRIGGER {TRACE} AFTER UPDATE ON {sql_name} FOR EACH ROW EXECUTE FUNCTION pg_catalog.{TRACE}();"
            "SET LOCAL icefield.ddl = 'off'"
        )


async def read(link: BrainLink, target: Target) -> Difference:
    """Raises PgError for a value that the lake cannot hold. Runs in a savepoint of its own, and leaves nothing."""
    import numpy as np
    import pyarrow as pa

    shadow = target.shadow
    # A scan that joins another one in the middle of a table would not be in the order of places.
    await link.query(
        "SAVEPOINT icefield_export; SET LOCAL synchronize_seqscans = off;"
        " SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL extra_float_digits = 1"
    )
    deleted = np.empty(0, dtype=np.int64)
    if target.places is not None:
        left = await _places(
            link,
            f"SELECT ctid AS place FROM {target.source}"
            f" WHERE xmin OPERATOR(pg_catalog.=) '{target.xid}'::pg_catalog.xid",
        )
        deleted = np.flatnonzero(~np.isin(target.places, left, assume_unique=True))
    check = rows.check_query(shadow.columns, target.new_rows)
    if check is not None:
        answer = (await link.query(check)).rows[0]
        for column, bad in zip(rows.checked(shadow.columns), answer, strict=True):
            if bad == "t":
                raise rows.refuse(column, str(shadow))
    data = b"".join([part async for part in link.copy_out(rows.export_query(shadow.columns, target.new_rows))])
    table = await asyncio.to_thread(rows.import_csv, data, shadow.columns)
    replaced = 0
    if target.origin.keeps_row_ids:
        ordinals: pa.Array = pa.nulls(table.num_rows, pa.int64())
        if len(deleted) and table.num_rows:
            new = await _places(link, f"SELECT ctid AS place FROM {target.new_rows}")
            notes = await _notes(link, shadow.oid)
            ordinals = _replaced(new, notes, target.places)
            replaced = table.num_rows - ordinals.null_count
        table = table.append_column(pa.field("_row_id", pa.int64()), target.origin.row_ids(ordinals))
    await link.query("ROLLBACK TO SAVEPOINT icefield_export; RELEASE SAVEPOINT icefield_export")
    return Difference(deleted, table, replaced)


async def _places(link: BrainLink, query: str) -> np.ndarray:
    """The places that ``query`` gives, in its order, as numbers that ascend as they do."""
    answer = await link.query(
        "SELECT pg_catalog.encode(pg_catalog.string_agg(pg_catalog.tidsend(place), ''::pg_catalog.bytea), 'hex')"
        f" FROM ({query}) AS q"
    )
    return _numbers(answer.scalar())


async def _notes(link: BrainLink, oid: int) -> dict[int, int]:
    """New place -> old place of every update."""
    answer = await link.query(
        "SELECT pg_catalog.encode(pg_catalog.string_agg(pg_catalog.tidsend(old_place)"
        " OPERATOR(pg_catalog.||) pg_catalog.tidsend(new_place), ''::pg_catalog.bytea), 'hex')"
        f" FROM pg_catalog.{TRACE} WHERE relation OPERATOR(pg_catalog.=) {oid}"
    )
    pairs = _numbers(answer.scalar()).reshape(-1, 2)
    return dict(zip(pairs[:, 1].tolist(), pairs[:, 0].tolist(), strict=True))


def _numbers(hexed: str | None) -> np.ndarray:
    import numpy as np

    raw = np.frombuffer(bytes.fromhex(hexed or ""), dtype=np.dtype([("block", ">u4"), ("offset", ">u2")]))
    return (raw["block"].astype(np.int64) << 16) | raw["offset"].astype(np.int64)


def _replaced(new: np.ndarray, notes: dict[int, int], places: np.ndarray | None) -> pa.Array:
    """For each new row the ordinal of the filled row that it replaces, or null."""
    import numpy as np
    import pyarrow as pa

    assert places is not None
    origins = []
    for place in new.tolist():
        while place in notes:
            place = notes[place]
        origins.append(place)
    found = np.array(origins, dtype=np.int64)
    at = np.searchsorted(places, found)
    at_most = np.minimum(at, len(places) - 1)
    known = places[at_most] == found
    return pa.array(at_most, mask=~known)
