"""Copy-on-write: the files that lose rows are written again without them, and with the rows that replace them.

What goes is told to Spark's readers as deletion vectors that no snapshot ever has: so rewriting is reading. The
readers apply what else deletes rows, and keep row ids and sequence numbers.
"""

from __future__ import annotations

from typing import Any

from icefield.engine.port import Changed
from icefield.engine.spark.changes.deletes import write_vectors
from icefield.engine.spark.changes.landing import Check, Written, writing
from icefield.engine.spark.changes.layout import LITTLE_BYTES, distribution, new_rows, split_options
from icefield.engine.spark.changes.overwrite import drop_and_add
from icefield.engine.spark.changes.staged import Staged
from icefield.engine.spark.changes.touched import Touched
from icefield.engine.spark.internals import LiveTable
from icefield.engine.spark.spool import Spool
from icefield.model.errors import CommitConflict


def rewrite(
    table: LiveTable,
    touched: Touched,
    spool: Spool,
    verb: str,
    deleted: int,
    remaining: int,
    written: Written,
    check: Check,
) -> Changed:
    """``remaining``: how many rows the touched files keep."""
    java = table.java_vm
    added: Any = java.jvm.java.util.ArrayList()
    if touched.losing:
        with writing(table) as vectors:
            added = _write_again(table, touched, spool, verb, vectors)
            written.add(added)
            vectors.remove()
    elif spool.rows:
        with Staged(table) as staged:
            added = staged.write(*new_rows(table, spool, verb))
            written.add(added)
    found = sum(java.longs(added, java.records_of_file))
    if found != remaining + spool.rows:
        raise CommitConflict(
            f"{remaining} rows of table {table.what} were to stay and {spool.rows} to come, but {found} were written"
        )
    check()
    gone = java.mapped(touched.tasks, java.file_of_task)
    deletes = [*touched.gone_deletes, *(file for losing in touched.losing for file in losing.replaced)]
    drop_and_add(table, gone, deletes, added, written, check)
    return Changed(
        rows_written=spool.rows,
        rows_deleted=deleted,
        files_added=added.size(),
        files_removed=gone.size(),
        way="rewrite",
    )


def _write_again(table: LiveTable, touched: Touched, spool: Spool, verb: str, vectors: Written) -> Any:
    java = table.java_vm
    tasks = _without_deleted(table, touched, vectors)
    sizes = java.longs(tasks, java.then(java.file_of_task, java.bytes_of_file))
    with Staged(table) as staged:
        kept = staged.read(tasks, split_options(sizes))
        frame = kept.unionByName(spool.frame(table.session)) if spool.rows else kept
        if sum(sizes) + spool.bytes <= LITTLE_BYTES:
            return staged.write(
                frame.coalesce(1 if table.is_partitioned else len(sizes)), {"distribution-mode": "none"}
            )
        if not table.is_partitioned and spool.bytes <= LITTLE_BYTES:
            frame = frame.coalesce(len(sizes))  # new rows go along with old ones: no file is added
        return staged.write(frame, {"distribution-mode": distribution(table, verb)})


def _without_deleted(table: LiveTable, touched: Touched, vectors: Written) -> Any:
    """Tasks that read what stays of the files."""
    java = table.java_vm
    tasks = java.jvm.java.util.ArrayList()
    by_path = {str(vector.referencedDataFile()): vector for vector in write_vectors(table, touched.losing, vectors)}
    schema = java.iceberg.SchemaParser.toJson(table.java.schema())
    everything = java.iceberg.expressions.Expressions.alwaysTrue()
    residual = java.iceberg.expressions.ResidualEvaluator.unpartitioned(everything)
    specs: dict[int, str] = {}
    for losing in touched.losing:
        data = losing.task.file()
        spec = int(data.specId())
        if spec not in specs:
            specs[spec] = java.iceberg.PartitionSpecParser.toJson(table.java.specs().get(spec))
        deletes = java.gateway.new_array(java.iceberg.DeleteFile, 1 + len(losing.equality))
        for n, file in enumerate((by_path[losing.path], *losing.equality)):
            deletes[n] = file
        tasks.add(java.iceberg.BaseFileScanTask(data, deletes, schema, specs[spec], residual))
    return tasks
