"""Where the rows of a fill came from: by ordinal, the data file and position (and in format 3 the row id) of each.

The brain knows nothing of this. It holds the rows in the order of the fetch; what it says about the n-th of them is
said to the engine with what stands here at n.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefield.engine.port import FetchedFrom

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


class Origin:
    """Collected while a fetch runs, whole when it is over."""

    def __init__(self) -> None:
        self.source: FetchedFrom | None = None
        self._parts: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch, columns: int) -> None:
        """The identity columns that stand behind the table's own."""
        self._parts.append(batch.select(range(columns, batch.num_columns)))

    def take(self, other: Origin) -> None:
        self.source, self._parts = other.source, other._parts

    @property
    def keeps_row_ids(self) -> bool:
        return self.source is not None and self.source.format_version >= 3

    def deleted(self, ordinals: np.ndarray) -> pa.Table:
        """These rows as the engine's ``RowChange`` names them."""
        import pyarrow as pa

        if not self._parts or not len(ordinals):
            return pa.table(
                {"file": pa.array([], pa.int32()), "pos": pa.array([], pa.int64()), "row_id": pa.array([], pa.int64())}
            )
        found = self._table().take(pa.array(ordinals))
        row_ids = found.column("_row_id") if "_row_id" in found.column_names else pa.nulls(len(ordinals), pa.int64())
        return pa.table({"file": found.column("_file"), "pos": found.column("_pos"), "row_id": row_ids})

    def row_ids(self, ordinals: pa.Array) -> pa.Array:
        """The row ids at these ordinals; null where the ordinal is."""
        import pyarrow as pa

        if not self._parts:
            return pa.nulls(len(ordinals), pa.int64())
        taken = self._table().column("_row_id").take(ordinals)
        return taken.combine_chunks() if isinstance(taken, pa.ChunkedArray) else taken

    def alive(self) -> list[int]:
        """By file number: how many rows there are."""
        import numpy as np

        if self.source is None:
            return []
        counts = np.zeros(len(self.source.files), dtype=np.int64)
        for part in self._parts:
            counts += np.bincount(part.column("_file").to_numpy(zero_copy_only=False), minlength=len(counts))
        return [int(count) for count in counts]

    def _table(self) -> pa.Table:
        import pyarrow as pa

        return pa.Table.from_batches(self._parts).combine_chunks()
