"""Data files written by Spark's executors without a commit, and scan tasks that Spark reads instead of a table.

Iceberg's own compaction works this way: under the name of a group, a table is put where ``format("iceberg")`` finds
it; what is written to the group is kept for whoever asks, what is read from it are the tasks staged for it.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from icefield.engine.spark.internals import LiveTable

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import DataFrame


class Staged:
    """A group of the table, while the context lasts."""

    def __init__(self, table: LiveTable) -> None:
        self._table = table
        self._group = f"icefield-{uuid.uuid4()}"  # no slash: it would be a path
        spark = table.java_vm.iceberg.spark
        self._cache = spark.SparkTableCache.get()
        self._tasks = spark.ScanTaskSetManager.get()
        self._written = spark.FileRewriteCoordinator.get()

    def __enter__(self) -> Staged:
        self._cache.add(self._group, self._table.java)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._cache.remove(self._group)
        self._tasks.removeTasks(self._table.java, self._group)
        self._written.clearRewrite(self._table.java, self._group)

    def read(self, tasks: Any, options: dict[str, str]) -> DataFrame:
        self._tasks.stageTasks(self._table.java, self._group, tasks)
        return self._table.session.read.format("iceberg").options(**options).load(self._group)

    def write(self, frame: DataFrame, options: dict[str, str]) -> Any:
        """A list of the data files that now are there, and that no snapshot has."""
        spec = str(self._table.java.spec().specId())
        # Required columns were checked on the way into the spool; a file's columns are nullable for Spark.
        fixed = {"output-spec-id": spec, "check-nullability": "false"}
        frame.write.format("iceberg").mode("append").options(**fixed, **options).save(self._group)
        return self._table.java_vm.collected(self._written.fetchNewFiles(self._table.java, self._group))
