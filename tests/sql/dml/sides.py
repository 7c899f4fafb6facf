"""The two sides of a comparison: a plain PostgreSQL, and a lake; or, to prove the corpus, two PostgreSQLs.

A side has its tables made once. ``connect`` stands on them, and whoever comes rolls back what he did; ``fresh`` gives a
connection that stands on a copy of its own, to do what it likes: a database on PostgreSQL, a branch in a lake.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from dml.asking import Connection
from dml.tables import Variant, steps
from icefield.sql.brain.cluster import Cluster
from support.spark_client import SparkClient
from support.up import Up


class Side(Protocol):
    def connect(self) -> Connection: ...

    def fresh(self) -> tuple[Connection, str]:
        """And the name of the copy: a database, a branch."""
        ...


class PostgresSide:
    def __init__(self, cluster: Cluster, variants: Sequence[Variant], *, shuffled: bool = False) -> None:
        self._cluster = cluster
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        with_admin = Connection(self.dsn("postgres"))
        with_admin.must("CREATE DATABASE base")
        making = Connection(self.dsn("base"))
        for step in steps(variants, lake=False, shuffled=shuffled):
            making.must(step.sql.replace("{", "").replace("}", "") if step.elsewhere else step.sql)
        making.close()
        self._admin = with_admin

    def dsn(self, copy: str) -> str:
        return (
            f"host={self._cluster.socket_dir} user={self._cluster.superuser}"
            f" password={self._cluster.superuser_password} dbname={copy}"
        )

    def connect(self) -> Connection:
        """A database each, too: transactions would wait for each other's rows and tables, in a lake they do not."""
        return self.fresh()[0]

    def fresh(self) -> tuple[Connection, str]:
        """Nobody is ever connected to ``base``, so that it can be a template."""
        with self._lock:
            copy = f"copy_{next(self._numbers)}"
            self._admin.must(f"CREATE DATABASE {copy} TEMPLATE base STRATEGY file_copy")
        return Connection(self.dsn(copy)), copy


class LakeSide:
    def __init__(self, up: Up, spark: SparkClient, variants: Sequence[Variant]) -> None:
        self._up = up
        self._numbers = itertools.count(1)
        making, *others = (Connection(self.dsn()) for _ in range(2))
        found = list(steps(variants, lake=True))
        for step in found:
            if step.sql.startswith("CREATE"):
                making.must(step.sql)
        inserts = [step.sql for step in found if step.sql.startswith("INSERT")]
        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(_all, at, inserts[n::2]) for n, at in enumerate((making, *others))]:
                done.result()
        for step in found:
            if step.elsewhere:
                spark.sql(step.sql.replace("{", "lake.").replace("}", ""))
        for connection in (making, *others):
            connection.close()

    def dsn(self, copy: str | None = None) -> str:
        return self._up.dsn("lake" if copy is None else f"lake@{copy}")

    def connect(self) -> Connection:
        return Connection(self.dsn())

    def fresh(self) -> tuple[Connection, str]:
        copy = f"copy{next(self._numbers)}"
        answer = self._up.http().post("/api/v1/repos/lake/branches", {"name": copy, "from": "main"})
        assert answer.status == 200, answer.body
        return Connection(self.dsn(copy)), copy


def _all(connection: Connection, statements: Sequence[str]) -> None:
    for statement in statements:
        connection.must(statement)
