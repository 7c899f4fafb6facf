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
_FEW = 5_000
"""New rows that are fetched by their places, and not by reading the whole table again."""
_AGGREGATED = "pg_catalog.string_agg(pg_catalog.tidsend(place), ''::pg_catalog.bytea) {}"


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
        target.places = await _places(link, target)
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
    deleted = np.empty(0, dtype=np.int64)
    new: np.ndarray | None = None
    if target.places is not None:
        left, new = await _left_and_new(link, target)
        deleted = _missing(target.places, left)
    if new is not None and not len(new):
        table = rows.arrow_schema(shadow.columns).empty_table()
    else:
        table = await _export(link, shadow, _source(target, new))
        if new is not None and len(new) != table.num_rows:
            raise RuntimeError(f"{len(new)} new rows are under {shadow.sql_name}, and {table.num_rows} came out")
    replaced = 0
    if target.origin.keeps_row_ids:
        ordinals: pa.Array = pa.nulls(table.num_rows, pa.int64())
        if new is not None and len(new) and len(deleted):
            ordinals = _replaced(new, await _notes(link, shadow.oid), target.places)
            replaced = table.num_rows - ordinals.null_count
        table = table.append_column(pa.field("_row_id", pa.int64()), target.origin.row_ids(ordinals))
    return Difference(deleted, table, replaced)


def _source(target: Target, new: np.ndarray | None) -> str:
    """A FROM clause: the new rows, in the order of their places; few of them without a look at the others."""
    if new is None or len(new) > _FEW:
        return target.new_rows
    places = ",".join(f'"({place >> 16},{place & 0xFFFF})"' for place in new.tolist())
    return f"{target.source} WHERE ctid OPERATOR(pg_catalog.=) ANY ('{{{places}}}'::pg_catalog.tid[])"


async def _export(link: BrainLink, shadow: Shadow, source: str) -> pa.Table:
    # A scan that joins another one in the middle of a table would not be in the order of places.
    await link.query(
        "SAVEPOINT icefield_export; SET LOCAL synchronize_seqscans = off;"
        " SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL enable_seqscan = on;"
        " SET LOCAL enable_indexscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL extra_float_digits = 1"
    )
    check = rows.check_query(shadow.columns, source)
    if check is not None:
        answer = (await link.query(check)).rows[0]
        for column, bad in zip(rows.checked(shadow.columns), answer, strict=True):
            if bad == "t":
                raise rows.refuse(column, str(shadow))
    data = b"".join([part async for part in link.copy_out(rows.export_query(shadow.columns, source))])
    await link.query("ROLLBACK TO SAVEPOINT icefield_export; RELEASE SAVEPOINT icefield_export")
    return await asyncio.to_thread(rows.import_csv, data, shadow.columns)


async def _places(link: BrainLink, target: Target) -> np.ndarray:
    """Of all rows, ascending."""
    (places,) = await link.fetch_binary(
        f"SELECT {_AGGREGATED.format('')} FROM (SELECT ctid AS place FROM {target.source}) AS q"
    )
    return _sorted(places)


async def _left_and_new(link: BrainLink, target: Target) -> tuple[np.ndarray, np.ndarray]:
    """The places of rows that are as the fill left them, and of all others, ascending."""
    left, new = (_AGGREGATED.format(f"FILTER (WHERE {which})") for which in ("old", "NOT old"))
    answer = await link.fetch_binary(
        f"SELECT {left}, {new} FROM (SELECT ctid AS place,"
        f" xmin OPERATOR(pg_catalog.=) '{target.xid}'::pg_catalog.xid AS old FROM {target.source}) AS q"
    )
    return _sorted(answer[0]), _sorted(answer[1])


def _sorted(raw: bytes | None) -> np.ndarray:
    """Several workers, or a scan that joins another in the middle, give places in any order."""
    import numpy as np

    return np.sort(_numbers(raw), kind="stable")


async def _notes(link: BrainLink, oid: int) -> dict[int, int]:
    """New place -> old place of every update."""
    (notes,) = await link.fetch_binary(
        "SELECT pg_catalog.string_agg(pg_catalog.tidsend(old_place)"
        " OPERATOR(pg_catalog.||) pg_catalog.tidsend(new_place), ''::pg_catalog.bytea)"
        f" FROM pg_catalog.{TRACE} WHERE relation OPERATOR(pg_catalog.=) {oid}"
    )
    pairs = _numbers(notes).reshape(-1, 2)
    return dict(zip(pairs[:, 1].tolist(), pairs[:, 0].tolist(), strict=True))


def _numbers(sent: bytes | None) -> np.ndarray:
    import numpy as np

    raw = np.frombuffer(sent or b"", dtype=np.dtype([("block", ">u4"), ("offset", ">u2")]))
    return (raw["block"].astype(np.int64) << 16) | raw["offset"].astype(np.int64)


def _missing(places: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Ordinals of the places that are not left."""
    import numpy as np

    if len(left) == len(places):
        return np.empty(0, dtype=np.int64)
    # A table of flags: one for every place that a page may have, most of which exist.
    places, left = _dense(places), _dense(left)
    there = np.zeros(int(places[-1]) + 1, dtype=np.bool_)
    there[left] = True
    missing: np.ndarray = np.flatnonzero(~there[places])
    return missing


def _dense(places: np.ndarray) -> np.ndarray:
    """At most 291 rows fit into a page of the brain's size."""
    dense: np.ndarray = ((places >> 16) << 9) | (places & 0x1FF)
    return dense


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
    # A row that was not updated replaces none, even at a place that another had before a TRUNCATE.
    known = (places[at_most] == found) & (found != new)
    return pa.array(at_most, mask=~known)
