"""Rows between a bound Spark session and Arrow, in bounded memory.

Out: Spark's own Arrow batches, one partition at a time, handed on as they are. In: through a Parquet file that Spark
then appends in one snapshot, so that neither Python nor the driver holds the rows.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icefield.engine.port import TooManyRows
from icefield.engine.spark.session import CATALOG
from icefield.model.errors import BadRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_SPLIT_BYTES = 32 << 20
"""A partition's rows pass through the driver's heap as a whole: keep partitions small."""


def quoted(namespace: Sequence[str], name: str) -> str:
    return ".".join("`" + part.replace("`", "``") + "`" for part in (CATALOG, *namespace, name))


class Fetch:
    """One table's rows as Arrow record batch messages. ``schema`` is theirs."""

    def __init__(
        self,
        session: SparkSession,
        namespace: Sequence[str],
        name: str,
        columns: Sequence[str] | None,
        max_rows: int | None,
    ) -> None:
        from pyspark.serializers import NoOpSerializer
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.util import _local_iterator_from_socket

        frame = session.read.option("split-size", str(_SPLIT_BYTES)).table(quoted(namespace, name))
        if columns is not None:
            have = {field.name for field in frame.schema}
            for column in columns:
                if column not in have:
                    raise BadRequest(f'table {".".join((*namespace, name))} has no column "{column}"', field=column)
            frame = frame.select(*("`" + column.replace("`", "``") + "`" for column in columns))
        self.schema: pa.Schema = to_arrow_schema(frame.schema)
        self.rows = 0
        self._max_rows = max_rows
        self._what = ".".join((*namespace, name))
        batches = frame._jdf.toArrowBatchRdd()
        served = session._jvm.org.apache.spark.api.python.PythonRDD.toLocalIteratorAndServe(batches, True)
        self._messages: Iterable[bytes] = _local_iterator_from_socket(served, NoOpSerializer())

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """(number of rows, message), none of them empty."""
        import pyarrow as pa

        for message in self._messages:
            count = pa.ipc.read_record_batch(pa.py_buffer(message), self.schema).num_rows
            if not count:
                continue
            self.rows += count
            if self._max_rows is not None and self.rows > self._max_rows:
                raise TooManyRows(
                    f"table {self._what} has more than {self._max_rows} rows, the most that may be fetched",
                    self._max_rows,
                )
            yield count, message


def append(
    session: SparkSession, namespace: Sequence[str], name: str, schema: pa.Schema, rows: Iterable[pa.RecordBatch]
) -> int:
    """One snapshot with all rows, or none. No rows: no snapshot."""
    from pyspark.sql.pandas.types import to_arrow_schema

    table = quoted(namespace, name)
    target = session.table(table).schema
    fitted = _Fitted(".".join((*namespace, name)), to_arrow_schema(target), schema)
    folder = Path(tempfile.mkdtemp(prefix="icefield-rows-"))
    try:
        count = _spool(folder / "rows.parquet", fitted, rows)
        if not count:
            return 0
        frame = (
            session.read.schema(target)
            .option("datetimeRebaseMode", "CORRECTED")
            .option("int96RebaseMode", "CORRECTED")
            .parquet(str(folder))
        )
        # Required columns were checked on the way into the file; a file's columns are nullable for Spark.
        frame.writeTo(table).option("check-nullability", "false").append()
        return count
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Fitted:
    """Batches in the columns of the table: order, types, and NULL only where it may be."""

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


def _spool(file: Path, fitted: _Fitted, rows: Iterable[pa.RecordBatch]) -> int:
    import pyarrow.parquet as pq

    count = 0
    with pq.ParquetWriter(file, fitted.schema, compression="snappy", coerce_timestamps="us") as writer:
        for batch in rows:
            if batch.num_rows:
                writer.write_batch(fitted(batch))
                count += batch.num_rows
    return count
