"""statement_timeout and cancel cover the whole of a statement: the brain's part, Spark's, and what lies between."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from icefield.pgwire import messages as m
from support.up import Up
from support.wire import Wire, run, sqlstates, values

pytestmark = [pytest.mark.sql, pytest.mark.spark]
Connection = psycopg.Connection[tuple[Any, ...]]
BIG = "INSERT INTO late.big SELECT g, repeat('x', 20) FROM generate_series(1, 3000000) g"


@pytest.fixture(scope="module")
def lake(up: Up) -> Iterator[Connection]:
    with psycopg.connect(up.dsn(), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA late")
        connection.execute("CREATE ICEBERG TABLE late.t (a int)")
        connection.execute("INSERT INTO late.t VALUES (1), (2)")
        connection.execute("CREATE ICEBERG TABLE late.big (a int, b text)")
        yield connection


def stopped(connection: Connection, statement: str, **how: Any) -> tuple[str, float]:
    begun = time.monotonic()
    with pytest.raises(psycopg.errors.QueryCanceled) as caught:
        connection.execute(statement.encode(), **how)
    return caught.value.diag.message_primary or "", time.monotonic() - begun


def usable(connection: Connection) -> bool:
    return connection.execute("SELECT count(*), 1 FROM late.t").fetchall() == [(2, 1)]


@pytest.mark.parametrize("prepare", [None, True], ids=["simple", "extended"])
def test_the_brains_part(lake: Connection, client: Connection, prepare: bool | None) -> None:
    usable(client)
    client.execute("SET statement_timeout = '300ms'")
    message, seconds = stopped(client, "SELECT pg_sleep(60)", prepare=prepare)
    assert message == "canceling statement due to statement timeout"
    assert seconds < 20
    client.execute("SET statement_timeout = 0")
    assert usable(client)


def test_the_engines_part(lake: Connection, client: Connection) -> None:
    client.execute("SET statement_timeout = '4s'")
    message, seconds = stopped(client, BIG)
    assert message == "canceling statement due to statement timeout"
    assert seconds < 60
    client.execute("RESET statement_timeout")
    assert usable(client)
    assert lake.execute("SELECT count(*) FROM late.big").fetchall() == [(0,)]


def test_where_the_timeout_may_come_from(lake: Connection, up: Up, client: Connection) -> None:
    with psycopg.connect(up.dsn() + " options='-c statement_timeout=300'", autocommit=True) as connection:
        assert stopped(connection, "SELECT pg_sleep(60)")[0].endswith("statement timeout")
        connection.execute("SET statement_timeout = '1min'")
        assert usable(connection)
    client.execute("SELECT set_config('statement_timeout', '300', false)")
    assert stopped(client, "SELECT pg_sleep(60)")[0].endswith("statement timeout")
    client.execute("SET statement_timeout = 0")
    client.execute("BEGIN")
    client.execute("SET LOCAL statement_timeout = '300ms'")
    assert stopped(client, "SELECT pg_sleep(60)")[0].endswith("statement timeout")
    assert client.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
    client.execute("ROLLBACK")
    client.execute("SELECT pg_sleep(0.6)")
    assert usable(client)


def test_each_statement_has_its_own_time(lake: Connection, client: Connection) -> None:
    client.execute("SET statement_timeout = '900ms'")
    for _ in range(3):
        client.execute("SELECT pg_sleep(0.5)")
    client.execute("SELECT pg_sleep(0.5); SELECT pg_sleep(0.5); SELECT pg_sleep(0.5)")


def test_nothing_of_a_stopped_statement_stays(lake: Connection, client: Connection) -> None:
    client.execute("CREATE TEMP TABLE mine (a int)")
    client.execute("SET statement_timeout = '400ms'")
    stopped(client, "WITH x AS (INSERT INTO mine SELECT 1 RETURNING a) SELECT a, pg_sleep(60) FROM x")
    client.execute("SET statement_timeout = 0")
    assert client.execute("SELECT count(*) FROM mine").fetchall() == [(0,)]


@pytest.mark.parametrize("after", [0.3, 1.5, 4.0, 7.0])
def test_cancel_at_any_time(lake: Connection, client: Connection, after: float) -> None:
    """The brain runs first, then its rows are read, then Spark writes them: wherever it is, it stops."""
    usable(client)
    timer = threading.Timer(after, client.cancel_safe)
    timer.start()
    begun = time.monotonic()
    error: psycopg.Error | None = None
    try:
        client.execute(BIG)
    except psycopg.errors.QueryCanceled as caught:
        error = caught
    timer.join()
    assert error is None or error.diag.message_primary == "canceling statement due to user request"
    expected = 0 if error else 3_000_000  # it was done already: on a fast machine that may be
    assert time.monotonic() - begun < 90
    assert usable(client)
    assert lake.execute("SELECT count(*) FROM late.big").fetchall() == [(expected,)]
    if expected:
        lake.execute("TRUNCATE late.big")


def test_all_runs_of_a_statement_share_its_time(up: Up, lake: Connection) -> None:
    """COPY meets a conflict after its data have come; the second run must end in what is left of the time."""
    lake.execute("CREATE ICEBERG TABLE late.k (id int PRIMARY KEY)")
    wire = Wire(up.sql_port)
    try:
        wire.ask(*run("SELECT count(*) FROM late.k"), *run("SET statement_timeout = '3s'"))
        wire.send(m.Query("COPY late.k FROM STDIN"))
        wire.until(m.CopyInResponse)
        lake.execute("INSERT INTO late.k VALUES (1)")
        time.sleep(3.2)
        wire.send(m.CopyData(b"2\n"), m.CopyDone())
        assert sqlstates(wire.until(m.ReadyForQuery)) == ["57014"]
        assert values(wire.ask(*run("SELECT count(*) FROM late.k"))) == [(b"1",)]
    finally:
        wire.close()


def test_a_cancel_that_comes_too_late_is_nobodys(lake: Connection, client: Connection) -> None:
    for _ in range(5):
        assert usable(client)
        client.cancel_safe()
        assert usable(client)


def test_cancel_while_a_client_feeds_a_copy(lake: Connection, client: Connection) -> None:
    timer = threading.Timer(0.5, client.cancel_safe)
    timer.start()
    with pytest.raises(psycopg.errors.QueryCanceled):
        _feed(client)
    timer.join()
    assert usable(client)


def _feed(client: Connection) -> None:
    """Drivers hear of an error only at the end of their data."""
    with client.cursor().copy("COPY late.t FROM STDIN") as into:
        for _ in range(60):
            into.write(b"3\n" * 1000)
            time.sleep(0.05)
