"""The data files that lose rows: found in the table, with the deletes they have, and checked against the change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from icefield.engine.spark.changes.wanted import Wanted
from icefield.engine.spark.internals import LiveTable
from icefield.model.errors import CommitConflict


@dataclass(frozen=True, slots=True)
class Losing:
    """A file that loses some of its rows, and keeps others."""

    task: Any
    path: str
    index: Any
    """All its positions that are to be deleted, old and new."""
    file_index: Any
    """The same without those of delete files that other data files need as well: they stay."""
    first: int
    replaced: Sequence[Any]
    """Delete files that ``index`` stands for and that may go."""
    equality: Sequence[Any]


class Touched:
    """Raises ``CommitConflict`` for a row that is not there, or no more."""

    def __init__(self, table: LiveTable, wanted: Wanted) -> None:
        self._table, self._wanted, self._java = table, wanted, table.java_vm
        java = self._java
        path = java.path_of_task
        self.tasks = java.among(table.tasks(), path, wanted.files) if wanted.files else java.jvm.java.util.ArrayList()
        paths = java.texts(self.tasks, path)
        place = {path: n for n, path in enumerate(paths)}
        records = java.longs(self.tasks, java.then(java.file_of_task, java.records_of_file))
        deletes = java.longs(self.tasks, java.deletes_of_task)
        self._loader = java.iceberg.data.BaseDeleteLoader(java.opener(table.java.io()))
        self.losing: list[Losing] = []
        gone: list[str] = []
        self.gone_deletes: list[Any] = []
        """Delete files that only files which go have."""
        for number, (file, alive) in enumerate(zip(wanted.files, wanted.alive, strict=True)):
            if file not in place:
                raise CommitConflict(f"{file} is no data file of table {table.what} any more")
            at = place[file]
            positions = wanted.positions_of(number)
            if positions[0] < 0 or positions[-1] >= records[at]:
                raise CommitConflict(f"{file} of table {table.what} has no row at a position that is to be deleted")
            before = self._deletes_of(self.tasks.get(at), file) if deletes[at] else _NO_DELETES
            if not before.equality and records[at] - before.count != alive:
                raise CommitConflict(
                    f"{file} of table {table.what} has {records[at] - before.count} rows, {alive} were read of it"
                )
            if len(positions) == alive:
                self._check_new(number, before)
                gone.append(file)
                self.gone_deletes += before.scoped
            else:
                self.losing.append(self._losing(number, self.tasks.get(at), file, before))
        java_gone = java.among(self.tasks, path, gone) if gone else java.jvm.java.util.ArrayList()
        self.gone = java.mapped(java_gone, java.file_of_task)
        """Data files that lose all their rows."""

    @cached_property
    def _all_positions(self) -> Any:
        array = self._java.long_array(self._wanted.positions)
        return self._java.iceberg.relocated.com.google.common.primitives.Longs.asList(array)

    def _index(self, number: int) -> Any:
        start, end = self._wanted.bounds(number)
        positions = self._java.iceberg.io.CloseableIterable.of(self._all_positions.subList(start, end))
        return self._java.iceberg.deletes.Deletes.toPositionIndex(positions)

    def _deletes_of(self, task: Any, path: str) -> _Deletes:
        position: list[Any] = []
        equality: list[Any] = []
        for file in task.deletes():
            (equality if str(file.content()) == "EQUALITY_DELETES" else position).append(file)
        return _Deletes(
            [file for file in position if self._java.iceberg.util.ContentFileUtil.isFileScoped(file)],
            equality,
            self._load(position, path) if position else None,
            [file for file in position if not self._java.iceberg.util.ContentFileUtil.isFileScoped(file)],
        )

    def _load(self, files: Sequence[Any], path: str) -> Any:
        listed = self._java.jvm.java.util.ArrayList()
        for file in files:
            listed.add(file)
        return self._loader.loadPositionDeletes(listed, path)

    def _check_new(self, number: int, before: _Deletes) -> Any:
        """The positions, with those deleted before; none may be among both."""
        index = self._index(number)
        if before.index is not None:
            start, end = self._wanted.bounds(number)
            index.merge(before.index)
            if int(index.cardinality()) != end - start + before.count:
                raise CommitConflict(
                    f"a row of {self._wanted.files[number]} of table {self._table.what} was deleted already"
                )
        return index

    def _losing(self, number: int, task: Any, path: str, before: _Deletes) -> Losing:
        index = self._check_new(number, before)
        file_index = index
        if before.shared:
            file_index = self._index(number)
            if before.scoped:
                file_index.merge(self._load(before.scoped, path))
        first = int(self._wanted.positions_of(number)[0])
        return Losing(task, path, index, file_index, first, before.scoped, before.equality)


@dataclass(frozen=True, slots=True)
class _Deletes:
    scoped: list[Any]
    """Position deletes for this data file alone."""
    equality: list[Any]
    index: Any
    shared: Sequence[Any] = ()
    """Position deletes for others as well."""

    @property
    def count(self) -> int:
        return 0 if self.index is None else int(self.index.cardinality())


_NO_DELETES = _Deletes([], [], None)
