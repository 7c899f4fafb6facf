"""Every live file goes, in one snapshot, and no row is read: how many they were is what the files say of themselves."""

from __future__ import annotations

from icefield.engine.port import Changed
from icefield.engine.spark.changes.landing import Check, writing
from icefield.engine.spark.changes.overwrite import validate
from icefield.engine.spark.internals import LiveTable


def truncate_live(table: LiveTable, check: Check) -> Changed:
    tasks = table.tasks()
    if not tasks.size():
        return Changed()
    java = table.java_vm
    rows = sum(java.longs(tasks, java.then(java.file_of_task, java.records_of_file)))
    dead = sum(java.longs(java.deletes_of(tasks), java.records_of_file))
    overwrite = table.java.newOverwrite()
    overwrite.overwriteByRowFilter(java.iceberg.expressions.Expressions.alwaysTrue())
    validate(table, overwrite)
    with writing(table) as written:
        written.commit(overwrite, check)
    return Changed(rows_deleted=rows - dead, files_removed=tasks.size(), way="truncate")
