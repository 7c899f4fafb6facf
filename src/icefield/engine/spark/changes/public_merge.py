"""The same change by public SQL and DataFrames alone: for the day when the internal classes are others.

Slower, since Spark looks for the rows in the whole table, but held by the same tests. On merge-on-read tables it is a
``MERGE`` by file and position. A copy-on-write table does not show these to a ``MERGE``: in format 3 the row id is the
key (and a clause that never fires makes Spark allow it), in format 2 the whole table is overwritten. A row that is not
there any more raises an error inside the statement, so nothing lands.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icefield.engine.port import Changed
from icefield.engine.spark.changes.landing import Check
from icefield.engine.spark.changes.wanted import Wanted
from icefield.engine.spark.spool import Spool
from icefield.engine.spark.tables import PublicTable
from icefield.model.errors import CommitConflict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_GONE = "icefield: a row is not there any more"
_DELETE, _UPDATE, _INSERT = 0, 1, 2


def change_by_sql(table: PublicTable, wanted: Wanted, spool: Spool, merge_on_read: bool, check: Check) -> Changed:
    folder = Path(tempfile.mkdtemp(prefix="icefield-deleted-"))
    try:
        deleted = _deleted(table, wanted, folder)
        rows = spool.frame(table.session)
        check()
        if not merge_on_read and not table.has_lineage:
            _overwrite(table, wanted, deleted, rows)
        else:
            key = ("_file", "_pos") if merge_on_read else ("_row_id",)
            _merge(table, _change_set(table, deleted, rows), key)
    except Exception as error:
        if _GONE in str(error):
            raise CommitConflict(f"a row of table {table.what} was changed or deleted since it was read") from error
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    summary = table.summary()
    return Changed(
        rows_written=spool.rows,
        rows_deleted=wanted.rows,
        files_added=int(summary.get("added-data-files", "0")),
        files_removed=int(summary.get("deleted-data-files", "0")),
        files_with_deletes=len(wanted.files) if merge_on_read else 0,
        way="public",
    )


def truncate_by_sql(table: PublicTable, check: Check) -> Changed:
    if table.snapshot_id is None or not table.files()[0]:
        return Changed()
    rows = table.frame({}).count()
    check()
    table.session.sql(f"DELETE FROM {table.sql}")
    summary = table.summary()
    return Changed(
        rows_deleted=rows,
        files_removed=int(summary.get("deleted-data-files", "0")),
        way="public",
    )


def _deleted(table: PublicTable, wanted: Wanted, folder: Path) -> DataFrame:
    """Path, position and row id of each row that goes."""
    import pyarrow.parquet as pq

    pq.write_table(wanted.by_path(), folder / "deleted.parquet")
    return table.session.read.schema("__file string, __pos bigint, __row_id bigint").parquet(str(folder))


def _change_set(table: PublicTable, deleted: DataFrame, rows: DataFrame) -> DataFrame:
    """One row per change, of what kind it is, its columns under numbers."""
    from pyspark.sql import functions as F

    names = table.schema().names
    columns = [F.col(_ticked(name)).alias(f"c{n}") for n, name in enumerate(names)]
    kept = F.col("_row_id") if table.has_lineage else F.lit(None).cast("bigint")
    new = rows.select(kept.alias("__kept"), *columns)
    nothing = [F.lit(None).cast(field.dataType).alias(f"c{n}") for n, field in enumerate(table.schema())]
    where = ["__file", "__pos", "__row_id"]
    values = [f"c{n}" for n in range(len(names))]
    replaced = new.where("__kept IS NOT NULL").withColumnRenamed("__kept", "__row_id")
    nowhere = [
        F.lit(None).cast(kind).alias(name) for name, kind in zip(where, ("string", "bigint", "bigint"), strict=True)
    ]
    changes = deleted.join(replaced.select("__row_id"), "__row_id", "left_anti").select(
        F.lit(_DELETE).alias("__kind"), *where, *nothing
    )
    changes = changes.unionByName(
        deleted.join(replaced, "__row_id").select(F.lit(_UPDATE).alias("__kind"), *where, *values)
    )
    return changes.unionByName(new.where("__kept IS NULL").select(F.lit(_INSERT).alias("__kind"), *nowhere, *values))


def _merge(table: PublicTable, changes: DataFrame, key: tuple[str, ...]) -> None:
    names = [_ticked(name) for name in table.schema().names]
    values = [f"s.c{n}" for n in range(len(names))]
    on = " AND ".join(f"t.{column} = s._{column}" for column in key)
    sets = ", ".join(f"t.{name} = {value}" for name, value in zip(names, values, strict=True))
    insert = f"INSERT ({', '.join(names)}) VALUES ({', '.join(values)})"
    view = f"icefield_changes_{uuid.uuid4().hex}"
    changes.createOrReplaceTempView(view)
    try:
        table.session.sql(
            f"MERGE INTO {table.sql} t USING {view} s ON {on} "
            f"WHEN MATCHED AND s.__kind = {_DELETE} THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {sets} "
            f"WHEN NOT MATCHED AND s.__kind = {_INSERT} THEN {insert} "
            f"WHEN NOT MATCHED AND raise_error('{_GONE}') IS NULL THEN {insert}"
            + ("" if "_pos" in key else " WHEN NOT MATCHED BY SOURCE AND 1 = 0 THEN DELETE")
        )
    finally:
        table.session.catalog.dropTempView(view)


def _overwrite(table: PublicTable, wanted: Wanted, deleted: DataFrame, rows: DataFrame) -> None:
    from pyspark.sql import functions as F

    names = [_ticked(name) for name in table.schema().names]
    here = table.frame({}).select(*names, F.col("_file").alias("__file"), F.col("_pos").alias("__pos"))
    found = here.select("__file", "__pos").join(deleted, ["__file", "__pos"], "left_semi").count()
    if found != wanted.rows:
        raise CommitConflict(f"{wanted.rows - found} of the rows to be deleted are not in table {table.what}")
    kept = here.join(deleted.select("__file", "__pos"), ["__file", "__pos"], "left_anti").select(*names)
    writer: Any = kept.unionByName(rows.select(*names)).writeTo(table.sql)
    for option, value in (
        ("validate-from-snapshot-id", str(table.snapshot_id)),
        ("isolation-level", "serializable"),
        ("check-nullability", "false"),
    ):
        writer = writer.option(option, value)
    writer.overwrite(F.lit(True))


def _ticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
