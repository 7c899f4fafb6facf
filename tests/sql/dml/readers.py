"""What other engines find in a table that the door changed: Spark, PyIceberg and DuckDB, each in its own words.

Rows are compared as texts in one spelling (``spelled``), so that neither precision nor NULL nor -0 gets lost.
"""

from __future__ import annotations

import datetime
import sysconfig
import threading
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

from dml.asking import Answer
from icefield.engine.spark.session import Binding
from support.spark_client import SparkClient

_BOOLEAN, _FLOAT, _TIMESTAMP, _TIMESTAMPTZ = 16, 701, 1114, 1184
DUCKDB_EXTENSIONS = ("avro", "httpfs", "iceberg")


class Reader(Protocol):
    name: str

    def rows(self, branch: str, place: str) -> list[str]:
        """Of a table (``schema.name``) on a branch, spelled and sorted."""
        ...


def spelled(values: Iterable[Any]) -> str:
    return repr([_spelled(value) for value in values])


def _spelled(value: Any) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value)
        case datetime.datetime():
            return _moment(value.replace(tzinfo=None).isoformat(" "))
        case list():
            return "{" + ",".join("NULL" if one is None else str(one) for one in value) + "}"
        case int() | str() | Decimal() | datetime.date():
            return str(value)
    raise AssertionError(f"{value!r} has no spelling")


def _moment(text: str) -> str:
    """Without the zeros that only some write."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def spelled_answer(answer: Answer) -> list[str]:
    """Of PostgreSQL's own texts."""
    assert answer.error is None, answer.error
    kinds = [kind for _, kind, _ in answer.columns]
    return sorted(
        spelled(_of_postgres(kind, value) for kind, value in zip(kinds, row, strict=True)) for row in answer.rows
    )


def _of_postgres(kind: int, value: str | None) -> Any:
    if value is None:
        return None
    if kind == _BOOLEAN:
        return value == "t"
    if kind == _FLOAT:
        return float(value)
    if kind == _TIMESTAMPTZ:
        assert value.endswith("+00"), value
        return _moment(value[:-3])
    return _moment(value) if kind == _TIMESTAMP else value


class SparkReader:
    name = "Spark"

    def __init__(self, url: str, spark: SparkClient) -> None:
        self._url, self._spark = url, spark
        self._bound: set[str] = set()
        self._lock = threading.Lock()

    def rows(self, branch: str, place: str) -> list[str]:
        with self._lock:
            return self._rows(branch, place)

    def _rows(self, branch: str, place: str) -> list[str]:
        if branch not in self._bound:
            self._bound.add(branch)
            for key, value in Binding(self._url, f"lake@{branch}").conf(branch).items():
                self._spark.sql(f"SET `{key}`=`{value}`")
        described = self._spark.sql(f"DESCRIBE TABLE {branch}.{place}")
        columns = []
        for name, kind in ((str(row[0]), str(row[1])) for row in described):
            if not name or name.startswith("#"):
                break
            # Python's datetime has neither every moment nor the session's time zone.
            columns.append(f"CAST({name} AS STRING)" if kind.startswith(("timestamp", "date")) else name)
        return sorted(spelled(row) for row in self._spark.sql(f"SELECT {', '.join(columns)} FROM {branch}.{place}"))


class PyIcebergReader:
    name = "PyIceberg"

    def __init__(self, url: str) -> None:
        self._url = url

    def rows(self, branch: str, place: str) -> list[str]:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog(branch, type="rest", uri=self._url, warehouse=f"lake@{branch}")
        return _of_arrow(catalog.load_table(place).scan().to_arrow())


class DuckDbReader:
    name = "DuckDB"

    def __init__(self, url: str) -> None:
        import duckdb

        self._url = url
        self._bound: set[str] = set()
        self._lock = threading.Lock()
        packages = Path(sysconfig.get_paths()["purelib"])
        self._duck = duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
        for name in DUCKDB_EXTENSIONS:
            folder = packages / f"duckdb_extension_{name}" / "extensions"
            (extension,) = folder.glob(f"v*/{name}.duckdb_extension")
            self._duck.execute(f"LOAD '{extension}'")

    def rows(self, branch: str, place: str) -> list[str]:
        with self._lock:
            return self._rows(branch, place)

    def _rows(self, branch: str, place: str) -> list[str]:
        if branch not in self._bound:
            self._bound.add(branch)
            self._duck.execute(
                f"ATTACH 'lake@{branch}' AS {branch} (TYPE iceberg, ENDPOINT '{self._url}', AUTHORIZATION_TYPE 'none')"
            )
        return _of_arrow(self._duck.execute(f"SELECT * FROM {branch}.{place}").to_arrow_table())

    def close(self) -> None:
        self._duck.close()


def _of_arrow(table: Any) -> list[str]:
    columns: Sequence[list[Any]] = [column.to_pylist() for column in table.columns]
    return sorted(spelled(row) for row in zip(*columns, strict=True))
