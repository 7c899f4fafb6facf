"""Delete files written by the driver: deletion vectors, and for format 2 one file of positions per data file.

The positions are in Java already, as bitmaps; nothing is called for each row.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from icefield.engine.spark.changes.landing import Written
from icefield.engine.spark.changes.touched import Losing
from icefield.engine.spark.internals import LiveTable


def write_vectors(table: LiveTable, losing: Sequence[Losing], written: Written) -> Any:
    """One deletion vector for each file, in one Puffin file: a Java list of them."""
    java = table.java_vm
    nothing_before = java.lookup(java.jvm.java.util.HashMap())
    writer = java.iceberg.deletes.BaseDVFileWriter(_files(table, "PUFFIN"), nothing_before)
    try:
        for file in losing:
            data = file.task.file()
            writer.delete(file.path, file.index, table.java.specs().get(data.specId()), data.partition())
    finally:
        writer.close()
    vectors = writer.result().deleteFiles()
    written.add(vectors)
    return vectors


def write_positions(table: LiveTable, losing: Sequence[Losing], written: Written) -> Any:
    """One delete file for each data file: a Java list of them."""
    java = table.java_vm
    kind = table.property("write.delete.format.default", table.property("write.format.default", "parquet"))
    files = _files(table, kind.upper())
    builder = getattr(java.iceberg.data, "GenericFileWriterFactory$Builder")(table.java)
    writers = builder.deleteFileFormat(_format(table, kind.upper())).build()
    by_file = java.iceberg.deletes.DeleteGranularity.FILE
    # The bitmaps come in as "what was deleted before", so one position of each is enough to say here.
    before = java.jvm.java.util.HashMap()
    for file in losing:
        before.put(file.path, file.file_index)
    known = java.lookup(before)
    position = java.iceberg.deletes.PositionDelete.create()
    specs: dict[int, Any] = {}
    deletes = java.jvm.java.util.ArrayList()
    try:
        for file in losing:
            data = file.task.file()
            number, partition = int(data.specId()), data.partition()
            if number not in specs:
                specs[number] = table.java.specs().get(number)
            spec = specs[number]
            writer = writers.newPositionDeleteWriter(files.newOutputFile(spec, partition), spec, partition)
            sorting = java.iceberg.deletes.SortingPositionOnlyDeleteWriter(java.supplier(writer), by_file, known)
            try:
                sorting.write(position.set(file.path, file.first))
            finally:
                sorting.close()
            deletes.addAll(sorting.result().deleteFiles())
    finally:
        written.add(deletes)
    return deletes


def _files(table: LiveTable, kind: str) -> Any:
    builder = table.java_vm.iceberg.io.OutputFileFactory.builderFor(table.java, 0, 0)
    return builder.format(_format(table, kind)).operationId(str(uuid.uuid4())).build()


def _format(table: LiveTable, kind: str) -> Any:
    return table.java_vm.iceberg.FileFormat.valueOf(kind)
