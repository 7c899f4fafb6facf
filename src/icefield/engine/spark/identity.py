"""Where each fetched row stands: the number of its data file, its position, its row id.

A path per row would cost more than the row. So Spark sends the path's 64-bit hash, and here each batch's hashes become
numbers; the hashes of all files of the snapshot are known from planning it, and are checked to be distinct.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from icefield.engine.port import FILE, POSITION, ROW_ID, EngineFailed, FetchedFrom
from icefield.engine.spark.tables import ReadTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

COLUMNS = (FILE, POSITION, ROW_ID)


class Identity:
    """One table at one snapshot, and its files by number."""

    def __init__(self, table: ReadTable) -> None:
        self._table = table
        table.check_names()
        files, hashes = table.files()
        self._numbers = Numbers(hashes)
        self.source = FetchedFrom(table.snapshot_id, table.format_version, tuple(files))
        self.columns = COLUMNS if table.has_lineage else COLUMNS[:2]

    def frame(self, options: dict[str, str]) -> DataFrame:
        return self._table.frame(options)

    @property
    def expressions(self) -> list[str]:
        return [f"xxhash64(_file) AS {FILE}", *self.columns[1:]]

    def schema(self, hashed: pa.Schema) -> pa.Schema:
        """The schema of numbered batches."""
        import pyarrow as pa

        place = len(hashed) - len(self.columns)
        return hashed.set(place, pa.field(FILE, pa.int32(), nullable=False))

    def numbered(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        import pyarrow as pa

        columns = batch.columns
        place = len(columns) - len(self.columns)
        columns[place] = pa.array(self._numbers.of(columns[place].to_numpy()))
        return pa.RecordBatch.from_arrays(columns, schema=schema)


class Numbers:
    """From the hash of a path to the number of the file."""

    def __init__(self, hashes: Sequence[int]) -> None:
        import numpy as np

        known = np.array(hashes, dtype=np.int64)
        self._order = np.argsort(known).astype(np.int32)
        self._sorted = known[self._order]
        if (self._sorted[1:] == self._sorted[:-1]).any():
            raise EngineFailed("two data files of this table have paths of the same hash: rewrite one of them")

    def of(self, hashes: Any) -> Any:
        """File numbers of rows. Rows come file by file, so there is little to look up."""
        import numpy as np

        if not len(hashes):
            return np.empty(0, dtype=np.int32)
        starts = np.concatenate(([0], np.flatnonzero(hashes[1:] != hashes[:-1]) + 1))
        wanted = hashes[starts]
        found = np.searchsorted(self._sorted, wanted)
        if not len(self._sorted) or (self._sorted[np.minimum(found, len(self._sorted) - 1)] != wanted).any():
            raise EngineFailed("a row came from a data file that is not of the snapshot that was planned")
        return np.repeat(self._order[found], np.diff(np.append(starts, len(hashes))))
