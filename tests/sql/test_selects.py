"""SELECTs over a lake and over a second PostgreSQL with the same rows: rows, order, types, SQLSTATE, position equal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from psycopg import pq
from selects import SELECTS, SETUP

from icefield.sql.brain.cluster import BrainTemplate, Cluster
from support.up import Up

pytestmark = [pytest.mark.sql, pytest.mark.spark]


@dataclass(frozen=True)
class Answer:
    columns: tuple[tuple[bytes | None, int, int], ...] = ()
    rows: tuple[tuple[bytes | None, ...], ...] = ()
    tag: bytes | None = None
    error: tuple[bytes | None, ...] | None = None


def ask(connection: psycopg.Connection, statement: str, *, prepared: bool) -> Answer:
    query = statement.encode()
    result = connection.pgconn.exec_params(query, []) if prepared else connection.pgconn.exec_(query)
    if result.status == pq.ExecStatus.FATAL_ERROR:
        fields = (
            pq.DiagnosticField.SQLSTATE,
            pq.DiagnosticField.MESSAGE_PRIMARY,
            pq.DiagnosticField.STATEMENT_POSITION,
        )
        return Answer(error=tuple(result.error_field(field) for field in fields))
    width = range(result.nfields)
    return Answer(
        tuple((result.fname(at), result.ftype(at), result.fmod(at)) for at in width),
        tuple(tuple(result.get_value(row, at) for at in width) for row in range(result.ntuples)),
        result.command_status,
    )


@pytest.fixture(scope="module")
def second() -> Iterator[psycopg.Connection]:
    with (
        Cluster.clone(BrainTemplate()) as cluster,
        psycopg.connect(
            host=str(cluster.socket_dir),
            user=cluster.superuser,
            password=cluster.superuser_password,
            dbname="postgres",
            autocommit=True,
        ) as connection,
    ):
        for statement in SETUP:
            connection.execute(statement.format(iceberg="").encode())
        yield connection


@pytest.fixture(scope="module")
def lake(up: Up) -> Iterator[psycopg.Connection]:
    with psycopg.connect(up.dsn(), autocommit=True) as connection:
        for statement in SETUP:
            connection.execute(statement.format(iceberg="ICEBERG").encode())
        yield connection


def test_there_are_enough_of_them() -> None:
    assert len(set(SELECTS)) >= 200


@pytest.mark.parametrize("prepared", [False, True], ids=["simple", "extended"])
def test_every_select_is_answered_as_postgresql_does(
    lake: psycopg.Connection, second: psycopg.Connection, prepared: bool
) -> None:
    different = []
    failing = 0
    for statement in SELECTS:
        expected = ask(second, statement, prepared=prepared)
        found = ask(lake, statement, prepared=prepared)
        failing += expected.error is not None
        if found != expected:
            different.append((statement, expected, found))
    assert different == []
    assert 25 <= failing <= 45
