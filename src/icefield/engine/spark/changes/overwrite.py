"""One ``OverwriteFiles``: data files go as a whole, others come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from icefield.engine.spark.changes.landing import Check, Written
from icefield.engine.spark.internals import LiveTable


def drop_and_add(
    table: LiveTable, gone: Any, deletes: Iterable[Any], added: Any, written: Written, check: Check
) -> None:
    """``deletes``: delete files that only files which go have."""
    java = table.java_vm
    useless = java.iceberg.util.DeleteFileSet.create()
    for file in deletes:
        useless.add(file)
    overwrite = table.java.newOverwrite()
    overwrite.deleteFiles(java.iceberg.util.DataFileSet.of(gone), useless)
    added.forEach(java.consumer(overwrite, "OverwriteFiles", "addFile", "DataFile"))
    validate(table, overwrite)
    written.commit(overwrite, check)


def validate(table: LiveTable, overwrite: Any) -> None:
    """Nothing may have changed since the snapshot that was looked at."""
    overwrite.validateFromSnapshot(table.snapshot_id)
    overwrite.conflictDetectionFilter(table.java_vm.iceberg.expressions.Expressions.alwaysTrue())
    overwrite.validateNoConflictingData()
    overwrite.validateNoConflictingDeletes()
