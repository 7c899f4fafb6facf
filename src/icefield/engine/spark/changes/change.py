"""Rows taken away and rows added, in one snapshot: what every way has in common, and which way it is.

``write.<verb>.mode`` of the table decides between merge-on-read and copy-on-write, as it does for Spark's own
statements. ``ICEFIELD_CHANGE_WAY=public`` does the same by public SQL alone, slower, without any internal class; so
does a worker that finds the internal classes to be others than those that are pinned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from icefield.engine.port import ROW_ID, Changed, RowChange
from icefield.engine.spark.changes.landing import Check, writing
from icefield.engine.spark.changes.public_merge import change_by_sql, truncate_by_sql
from icefield.engine.spark.changes.rewrite import rewrite
from icefield.engine.spark.changes.row_delta import row_delta
from icefield.engine.spark.changes.touched import Touched
from icefield.engine.spark.changes.truncate import truncate_live
from icefield.engine.spark.changes.wanted import Wanted
from icefield.engine.spark.internals import LiveTable
from icefield.engine.spark.rows import append_spooled
from icefield.engine.spark.session import quoted
from icefield.engine.spark.spool import Spool, spooled
from icefield.engine.spark.tables import LINEAGE, PublicTable, ReadTable
from icefield.model.errors import BadRequest, CommitConflict

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

WAY_VARIABLE = "ICEFIELD_CHANGE_WAY"
PUBLIC = "public"


def table_of(session: SparkSession, namespace: Sequence[str], name: str, way: str) -> ReadTable:
    return (PublicTable if way == PUBLIC else LiveTable)(session, namespace, name)


def make_change(
    table: ReadTable, change: RowChange, schema: pa.Schema, rows: Iterable[pa.RecordBatch], check: Check
) -> Changed:
    wanted = Wanted(change)
    table.expect(change.source.snapshot_id)
    if table.format_version != change.source.format_version:
        raise CommitConflict(f"table {table.what} has another format version than when its rows were read")
    table.check_names()
    target = table.schema()
    if table.has_lineage and wanted.rows:
        target = _with_lineage(target)
    schema, rows = _without_row_ids(schema, rows, wanted, keep=table.has_lineage)
    with spooled(table.what, target, schema, rows) as spool:
        check()
        if not wanted.rows and not spool.rows:
            return Changed()
        if not wanted.rows:
            return _append(table, spool)
        # As Spark has it: what the table says of the verb, or else copy-on-write. Format 1 knows no deletes.
        mode = table.property(f"write.{change.verb}.mode", "copy-on-write")
        merge_on_read = mode == "merge-on-read" and table.format_version > 1
        if isinstance(table, PublicTable):
            return change_by_sql(table, wanted, spool, merge_on_read, check)
        assert isinstance(table, LiveTable)
        touched = Touched(table, wanted)
        check()
        with writing(table) as written:
            if merge_on_read:
                return row_delta(table, touched, spool, change.verb, wanted.rows, written, check)
            remaining = sum(wanted.alive) - wanted.rows
            return rewrite(table, touched, spool, change.verb, wanted.rows, remaining, written, check)


def truncate(table: ReadTable, snapshot_id: int | None, check: Check) -> Changed:
    table.expect(snapshot_id)
    if isinstance(table, PublicTable):
        return truncate_by_sql(table, check)
    assert isinstance(table, LiveTable)
    return truncate_live(table, check)


def _append(table: ReadTable, spool: Spool) -> Changed:
    append_spooled(table.session, quoted(table.namespace, table.name), spool)
    files = int(table.summary().get("added-data-files", "0"))
    return Changed(rows_written=spool.rows, files_added=files, way="append")


def _with_lineage(target: StructType) -> StructType:
    """New rows inherit what is NULL: the row id, and for every row the sequence number of this change."""
    from pyspark.sql.types import LongType, StructField, StructType

    return StructType([*target.fields, *(StructField(name, LongType(), True) for name in LINEAGE)])


def _without_row_ids(
    schema: pa.Schema, rows: Iterable[pa.RecordBatch], wanted: Wanted, *, keep: bool
) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """Checks the row ids as they pass; takes the column off where the table has none, or every row is a new one."""
    import pyarrow as pa

    place = schema.get_field_index(ROW_ID)
    if place < 0:
        return schema, rows
    if schema.field(place).type != pa.int64():
        raise BadRequest(f"{ROW_ID} must be int64", field=ROW_ID)
    rows = wanted.kept(rows, ROW_ID)
    if keep and wanted.rows:
        return schema, rows
    less = schema.remove(place)

    def cut() -> Iterable[pa.RecordBatch]:
        for batch in rows:
            if batch.column(place).null_count != batch.num_rows:
                raise BadRequest(f"there is no row that could keep its {ROW_ID}", field=ROW_ID)
            columns = [column for n, column in enumerate(batch.columns) if n != place]
            yield pa.RecordBatch.from_arrays(columns, schema=less)

    return less, cut()
