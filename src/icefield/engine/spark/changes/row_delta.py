"""Merge-on-read: new data files, and deletes for the rows that go, in one ``RowDelta``. No row of the table is read."""

from __future__ import annotations

from typing import Any

from icefield.engine.port import Changed
from icefield.engine.spark.changes.deletes import write_positions, write_vectors
from icefield.engine.spark.changes.landing import Check, Written
from icefield.engine.spark.changes.layout import new_rows
from icefield.engine.spark.changes.overwrite import drop_and_add
from icefield.engine.spark.changes.staged import Staged
from icefield.engine.spark.changes.touched import Touched
from icefield.engine.spark.internals import LiveTable
from icefield.engine.spark.spool import Spool


def row_delta(
    table: LiveTable, touched: Touched, spool: Spool, verb: str, deleted: int, written: Written, check: Check
) -> Changed:
    java = table.java_vm
    added: Any = java.jvm.java.util.ArrayList()
    if spool.rows:
        with Staged(table) as staged:
            added = staged.write(*new_rows(table, spool, verb))
        written.add(added)
    check()
    if not touched.losing:  # files go as a whole: that needs no deletes
        drop_and_add(table, touched.gone, touched.gone_deletes, added, written, check)
    else:
        _commit(table, touched, added, written, check)
    return Changed(
        rows_written=spool.rows,
        rows_deleted=deleted,
        files_added=added.size(),
        files_removed=touched.gone.size(),
        files_with_deletes=len(touched.losing),
        way="row-delta",
    )


def _commit(table: LiveTable, touched: Touched, added: Any, written: Written, check: Check) -> None:
    java = table.java_vm
    write = write_vectors if table.format_version >= 3 else write_positions
    deletes = write(table, touched.losing, written)
    delta = table.java.newRowDelta()
    added.forEach(java.consumer(delta, "RowDelta", "addRows", "DataFile"))
    deletes.forEach(java.consumer(delta, "RowDelta", "addDeletes", "DeleteFile"))
    touched.gone.forEach(java.consumer(delta, "RowDelta", "removeRows", "DataFile"))
    for file in touched.gone_deletes:
        delta.removeDeletes(file)
    referenced = java.jvm.java.util.ArrayList()
    for losing in touched.losing:
        referenced.add(losing.path)
        for file in losing.replaced:
            delta.removeDeletes(file)
    # Whoever changed the table since then may have moved or deleted what the positions stand for.
    delta.validateFromSnapshot(table.snapshot_id)
    delta.conflictDetectionFilter(java.iceberg.expressions.Expressions.alwaysTrue())
    delta.validateDataFilesExist(referenced)
    delta.validateDeletedFiles()
    delta.validateNoConflictingDataFiles()
    delta.validateNoConflictingDeleteFiles()
    written.commit(delta, check)
