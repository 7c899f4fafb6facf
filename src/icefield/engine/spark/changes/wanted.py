"""What a change takes away, checked as far as it can be without the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from icefield.engine.port import RowChange
from icefield.model.errors import BadRequest

if TYPE_CHECKING:
    import pyarrow as pa

VERBS = ("update", "delete", "merge")


class Wanted:
    """The deleted rows by file. ``files[i]`` loses the rows at ``positions_of(i)``, ascending."""

    def __init__(self, change: RowChange) -> None:
        import numpy as np

        self._change = change
        if change.verb not in VERBS:
            raise BadRequest(f"verb must be one of {', '.join(VERBS)}, not {change.verb!r}", field="verb")
        source, deleted = change.source, change.deleted
        if len(change.alive) != len(source.files):
            raise BadRequest("alive must have one count for each file of the source", field="alive")
        for name in ("file", "pos"):
            if deleted.column(name).null_count:
                raise BadRequest(f"deleted.{name} must not be null", field=f"deleted.{name}")
        file = deleted.column("file").to_numpy()
        position = deleted.column("pos").to_numpy()
        order = np.lexsort((position, file))
        file, self.positions = file[order], position[order].astype(np.int64)
        if len(file) and not (file[0] >= 0 and file[-1] < len(source.files)):
            raise BadRequest("deleted.file is not a number of a file of the source", field="deleted.file")
        if ((file[1:] == file[:-1]) & (self.positions[1:] == self.positions[:-1])).any():
            raise BadRequest("a row is deleted twice in one change", field="deleted")
        numbers, starts = np.unique(file, return_index=True)
        self._bounds = np.append(starts, len(file)).tolist()
        self.files = [source.files[n] for n in numbers.tolist()]
        self.alive = [int(change.alive[n]) for n in numbers.tolist()]
        for path, alive, start, end in zip(self.files, self.alive, self._bounds, self._bounds[1:], strict=False):
            if end - start > alive:
                raise BadRequest(f"{end - start} rows are deleted of {path}, which had {alive}", field="deleted")
        self.rows = len(file)

    def bounds(self, number: int) -> tuple[int, int]:
        return self._bounds[number], self._bounds[number + 1]

    def positions_of(self, number: int) -> Any:
        start, end = self.bounds(number)
        return self.positions[start:end]

    def by_path(self) -> pa.Table:
        """Path, position and row id of each row."""
        import pyarrow as pa

        file = self._change.deleted.column("file").combine_chunks()
        paths = pa.DictionaryArray.from_arrays(file, pa.array(self._change.source.files, pa.string()))
        columns = [paths, self._change.deleted.column("pos"), self._change.deleted.column("row_id")]
        return pa.table(columns, names=["__file", "__pos", "__row_id"])

    def kept(self, rows: Iterable[pa.RecordBatch], column: str) -> Iterator[pa.RecordBatch]:
        """``rows`` as they pass; in the end, the row ids that they keep must be those of deleted rows, each once."""
        import numpy as np

        seen = []
        for batch in rows:
            ids = batch.column(batch.schema.get_field_index(column)).drop_null()
            if len(ids):
                seen.append(ids.to_numpy())
            yield batch
        if not seen:
            return
        kept = np.concatenate(seen)
        gone = self._change.deleted.column("row_id").drop_null().to_numpy()
        if len(np.unique(kept)) != len(kept):
            raise BadRequest("two rows are to have the same row id", field=column)
        if not np.isin(kept, gone).all():
            raise BadRequest("a row is to keep the row id of a row that is not replaced", field=column)
