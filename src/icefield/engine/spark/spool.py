"""Rows on their way in: from the door's Arrow batches through a Parquet file, which Spark then reads.

So neither Python nor the driver holds the rows. They are put into the table's columns as they pass: order, types, and
NULL only where it may be.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icefield.model.errors import BadRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Spool:
    folder: Path
    schema: StructType
    rows: int
    bytes: int

    def frame(self, session: SparkSession) -> DataFrame:
        return (
            session.read.schema(self.schema)
            .option("datetimeRebaseMode", "CORRECTED")
            .option("int96RebaseMode", "CORRECTED")
            .parquet(str(self.folder))
        )


@contextmanager
def spooled(what: str, target: StructType, given: pa.Schema, rows: Iterable[pa.RecordBatch]) -> Iterator[Spool]:
    """``rows``, whose schema is ``given``, in the columns of ``target``; a column that is not given is NULL."""
    from pyspark.sql.pandas.types import to_arrow_schema

    fitted = _Fitted(what, to_arrow_schema(target), given)
    folder = Path(tempfile.mkdtemp(prefix="icefield-rows-"))
    try:
        file = folder / "rows.parquet"
        count = _write(file, fitted, rows)
        yield Spool(folder, target, count, file.stat().st_size)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Fitted:
    """Batches in the columns of the table."""

    def __init__(self, what: str, arrow: pa.Schema, given: pa.Schema) -> None:
        known = set(arrow.names)
        for column in given.names:
            if column not in known:
                raise BadRequest(f'table {what} has no column "{column}"', field=column)
            if given.names.count(column) > 1:
                raise BadRequest(f'column "{column}" is given more than once', field=column)
        self._what = what
        self.schema = arrow
        self._source = [given.names.index(field.name) if field.name in given.names else None for field in arrow]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        columns: list[Any] = []
        for field, source in zip(self.schema, self._source, strict=True):
            column = pa.nulls(batch.num_rows, field.type) if source is None else batch.column(source)
            if not field.nullable and column.null_count:
                raise BadRequest(
                    f'null value in column "{field.name}" of table {self._what}, which is required', field=field.name
                )
            if column.type != field.type:
                try:
                    column = column.cast(field.type)
                except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                    raise BadRequest(
                        f'a value of column "{field.name}" does not fit {field.type}: {error}', field=field.name
                    ) from None
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _write(file: Path, fitted: _Fitted, rows: Iterable[pa.RecordBatch]) -> int:
    import pyarrow.parquet as pq

    count = 0
    with pq.ParquetWriter(file, fitted.schema, compression="snappy", coerce_timestamps="us") as writer:
        for batch in rows:
            if batch.num_rows:
                writer.write_batch(fitted(batch))
                count += batch.num_rows
    return count
