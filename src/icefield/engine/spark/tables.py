"""A table as a change sees it: at which snapshot it is, what it is made of; and that by public means alone.

``internals.LiveTable`` knows the same, and more, by Iceberg's own classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from icefield.engine.port import EngineFailed
from icefield.engine.spark.session import quoted
from icefield.model.errors import CommitConflict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LINEAGE = ("_row_id", "_last_updated_sequence_number")
RESERVED = frozenset({"_file", "_pos", "_deleted", "_spec_id", "_partition", *LINEAGE})
"""A column of such a name would hide what identity is read from."""


class ReadTable:
    """What is known of a table whose rows are read with identity."""

    snapshot_id: int | None
    format_version: int

    def __init__(self, session: SparkSession, namespace: Sequence[str], name: str) -> None:
        self.session = session
        self.namespace = namespace
        self.name = name
        self.what = ".".join((*namespace, name))

    @property
    def has_lineage(self) -> bool:
        return self.format_version >= 3

    def expect(self, snapshot_id: int | None) -> None:
        if self.snapshot_id != snapshot_id:
            raise CommitConflict(
                f"table {self.what} was changed since its rows were read: it is at snapshot {self.snapshot_id}, "
                f"the rows were read at {snapshot_id}"
            )

    def check_names(self) -> None:
        taken = sorted(RESERVED.intersection(self.schema().names))
        if taken:
            raise EngineFailed(
                f'table {self.what} has a column "{taken[0]}", a name that Iceberg keeps for itself: rename it, '
                "then its rows can be updated and deleted"
            )

    def schema(self) -> StructType:
        raise NotImplementedError

    def property(self, name: str, default: str) -> str:
        raise NotImplementedError

    def files(self) -> tuple[list[str], list[int]]:
        """The paths of its data files, and their hashes (``xxhash64`` of Spark SQL)."""
        raise NotImplementedError

    def frame(self, options: dict[str, str]) -> DataFrame:
        """Its rows; the metadata columns can be selected."""
        raise NotImplementedError

    def summary(self) -> Mapping[str, str]:
        """Of the snapshot that is the current one by now."""
        raise NotImplementedError


class PublicTable(ReadTable):
    """By SQL. Each question loads the table again: within a statement, the session's view does not move."""

    def __init__(self, session: SparkSession, namespace: Sequence[str], name: str) -> None:
        super().__init__(session, namespace, name)
        self.sql = quoted(namespace, name)
        self._frame = session.table(self.sql)
        self._properties = self._ask()
        self.format_version = int(self._properties["format-version"])
        told = self._properties["current-snapshot-id"]
        self.snapshot_id = None if told == "none" else int(told)

    def _ask(self) -> dict[str, str]:
        return {row[0]: row[1] for row in self.session.sql(f"SHOW TBLPROPERTIES {self.sql}").collect()}

    def schema(self) -> StructType:
        return self._frame.schema

    def property(self, name: str, default: str) -> str:
        return self._properties.get(name, default)

    def files(self) -> tuple[list[str], list[int]]:
        live = self.session.sql(
            f"SELECT file_path, xxhash64(file_path) FROM {self.sql}.`files` WHERE content = 0"
        ).collect()
        return [row[0] for row in live], [row[1] for row in live]

    def frame(self, options: dict[str, str]) -> DataFrame:
        return self.session.read.options(**options).table(self.sql)

    def summary(self) -> dict[str, str]:
        snapshot = self._ask()["current-snapshot-id"]
        asked = f"SELECT summary FROM {self.sql}.`snapshots` WHERE snapshot_id = {snapshot}"
        return dict(self.session.sql(asked).collect()[0][0])
