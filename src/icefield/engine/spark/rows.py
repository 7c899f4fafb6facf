"""Rows between a bound Spark session and Arrow, in bounded memory.

Out: Spark's own Arrow batches, one partition at a time, handed on as they are. In: through a spool, which Spark then
appends in one snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from icefield.engine.port import FetchedFrom, TooManyRows
from icefield.engine.spark.identity import Identity
from icefield.engine.spark.session import quoted
from icefield.engine.spark.spool import Spool, spooled
from icefield.engine.spark.tables import ReadTable
from icefield.model.errors import BadRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_SPLIT_BYTES = 32 << 20
"""A partition's rows pass through the driver's heap as a whole: keep partitions small."""


class Fetch:
    """One table's rows as Arrow record batch messages. ``schema`` is theirs; with identity, ``source`` is known."""

    def __init__(
        self,
        session: SparkSession,
        namespace: Sequence[str],
        name: str,
        columns: Sequence[str] | None,
        max_rows: int | None,
        *,
        identity: ReadTable | None = None,
    ) -> None:
        """With ``identity``, which is the table again, each row says where it stands."""
        from pyspark.serializers import NoOpSerializer
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.util import _local_iterator_from_socket

        options = {"split-size": str(_SPLIT_BYTES)}
        self._identity = Identity(identity) if identity is not None else None
        self.source: FetchedFrom | None = None
        if self._identity is not None:
            self.source = self._identity.source
            frame = self._identity.frame(options)
        else:
            frame = session.read.options(**options).table(quoted(namespace, name))
        have = [field.name for field in frame.schema]
        for column in columns or ():
            if column not in have:
                raise BadRequest(f'table {".".join((*namespace, name))} has no column "{column}"', field=column)
        if columns is not None or self._identity is not None:
            wanted = ["`" + column.replace("`", "``") + "`" for column in (have if columns is None else columns)]
            frame = frame.selectExpr(*wanted, *(self._identity.expressions if self._identity else ()))
        self._raw: pa.Schema = to_arrow_schema(frame.schema)
        self.schema = self._identity.schema(self._raw) if self._identity else self._raw
        self.rows = 0
        self._max_rows = max_rows
        self._what = ".".join((*namespace, name))
        batches = frame._jdf.toArrowBatchRdd()
        served = session._jvm.org.apache.spark.api.python.PythonRDD.toLocalIteratorAndServe(batches, True)
        self._messages: Iterable[bytes] = _local_iterator_from_socket(served, NoOpSerializer())

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """(number of rows, message), none of them empty."""
        import pyarrow as pa

        for message in self._messages:
            batch = pa.ipc.read_record_batch(pa.py_buffer(message), self._raw)
            count = batch.num_rows
            if not count:
                continue
            self.rows += count
            if self._max_rows is not None and self.rows > self._max_rows:
                raise TooManyRows(
                    f"table {self._what} has more than {self._max_rows} rows, the most that may be fetched",
                    self._max_rows,
                )
            if self._identity is None:
                yield count, message
            else:
                yield count, self._identity.numbered(batch, self.schema).serialize()


def append(
    session: SparkSession, namespace: Sequence[str], name: str, schema: pa.Schema, rows: Iterable[pa.RecordBatch]
) -> int:
    """One snapshot with all rows, or none. No rows: no snapshot."""
    table = quoted(namespace, name)
    target = session.table(table).schema
    with spooled(".".join((*namespace, name)), target, schema, rows) as spool:
        if spool.rows:
            append_spooled(session, table, spool)
        return spool.rows


def append_spooled(session: SparkSession, table: str, spool: Spool) -> None:
    # Required columns were checked on the way into the file; a file's columns are nullable for Spark.
    spool.frame(session).writeTo(table).option("check-nullability", "false").append()
