"""What the drivers in Python never send: portals taken in pieces, Flush, several statements before one Sync."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from icefield.pgwire import messages as m
from support.up import Up
from support.wire import Wire, kinds, run, sqlstates, values

pytestmark = [pytest.mark.sql, pytest.mark.spark]


@pytest.fixture(scope="module")
def table(up: Up) -> str:
    with psycopg.connect(up.dsn(), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA w")
        connection.execute("CREATE ICEBERG TABLE w.t (a int)")
        connection.execute("INSERT INTO w.t VALUES (1), (2), (3)")
    return "w.t"


@pytest.fixture
def wire(up: Up, table: str) -> Iterator[Wire]:
    connection = Wire(up.sql_port)
    yield connection
    connection.close()


def test_a_portal_is_taken_in_pieces(wire: Wire) -> None:
    assert kinds(wire.ask(*run("BEGIN"))) == ["ParseComplete", "BindComplete", "CommandComplete", "ReadyForQuery"]
    first = wire.ask(m.Parse("s", "SELECT a FROM w.t ORDER BY a"), m.Bind("p", "s"), m.Execute("p", 2))
    assert values(first) == [(b"1",), (b"2",)]
    assert kinds(first)[-2:] == ["PortalSuspended", "ReadyForQuery"]
    assert values(wire.ask(*run("SELECT count(*) FROM w.t"))) == [(b"3",)]
    second = wire.ask(m.Execute("p", 2))
    assert values(second) == [(b"3",)]
    assert m.CommandComplete("SELECT 1") in second
    assert m.CommandComplete("SELECT 0") in wire.ask(m.Execute("p", 2))
    assert sqlstates(wire.ask(m.Bind("p", "s"))) == ["42P03"]
    assert wire.ask()[-1] == m.ReadyForQuery(b"E")
    wire.ask(*run("ROLLBACK"))
    assert sqlstates(wire.ask(m.Execute("p", 2))) == ["34000"]


def test_exactly_as_many_rows_as_asked_for_is_still_suspended(wire: Wire) -> None:
    wire.ask(*run("BEGIN"))
    found = wire.ask(m.Parse("", "SELECT a FROM w.t"), m.Bind("p", ""), m.Execute("p", 3), m.Execute("p", 3))
    assert kinds(found)[2:] == ["DataRow"] * 3 + ["PortalSuspended", "CommandComplete", "ReadyForQuery"]


def test_flush_answers_before_sync(wire: Wire) -> None:
    wire.send(m.Parse("", "SELECT a FROM w.t WHERE a = $1"), m.Describe(m.Target.STATEMENT, ""), m.Flush())
    described = wire.until(m.RowDescription)
    assert m.ParameterDescription((23,)) in described
    wire.send(m.Bind("", "", (), (b"2",), ()), m.Execute(""), m.Flush())
    assert values(wire.until(m.CommandComplete)) == [(b"2",)]
    assert wire.ask()[-1] == m.ReadyForQuery(b"I")


def test_after_an_error_everything_is_skipped_and_undone(wire: Wire) -> None:
    found = wire.ask(*run("INSERT INTO w.t VALUES (9)"), *run("SELECT 1 / 0"), *run("SELECT 1"))
    assert sqlstates(found) == ["22012"]
    assert kinds(found)[-2:] == ["ErrorResponse", "ReadyForQuery"]
    assert values(wire.ask(*run("SELECT count(*) FROM w.t"))) == [(b"3",)]


def test_our_own_statements_are_prepared_and_described(wire: Wire) -> None:
    found = wire.ask(
        m.Parse("b", "SHOW BRANCHES"),
        m.Describe(m.Target.STATEMENT, "b"),
        m.Bind("", "b"),
        m.Describe(m.Target.PORTAL, ""),
        m.Execute(""),
        m.Close(m.Target.STATEMENT, "b"),
    )
    assert kinds(found)[:5] == [
        "ParseComplete",
        "ParameterDescription",
        "RowDescription",
        "BindComplete",
        "RowDescription",
    ]
    assert kinds(found)[-3:] == ["CommandComplete", "CloseComplete", "ReadyForQuery"]
    assert sqlstates(wire.ask(m.Bind("", "b"))) == ["26000"]
    assert sqlstates(wire.ask(m.Parse("", "SELECT 1; SELECT 2"))) == ["42601"]
    assert kinds(wire.ask(*run(""))) == ["ParseComplete", "BindComplete", "EmptyQueryResponse", "ReadyForQuery"]
    assert kinds(wire.ask(*run("DISCARD ALL")))[-2:] == ["CommandComplete", "ReadyForQuery"]


@pytest.mark.parametrize(
    ("sql", "status", "count"),
    [
        ("BEGIN; INSERT INTO w.multi VALUES (1); COMMIT", b"I", b"1"),
        ("INSERT INTO w.multi VALUES (1); BEGIN; INSERT INTO w.multi VALUES (2); ROLLBACK", b"I", b"0"),
        ("INSERT INTO w.multi VALUES (1); COMMIT; SELECT 1 / 0", b"I", b"1"),
        ("SELECT 1; BEGIN; INSERT INTO w.multi VALUES (1); COMMIT; SELECT 2", b"I", b"1"),
        ("BEGIN; INSERT INTO w.multi VALUES (1); SELECT 1 / 0", b"E", None),
    ],
)
def test_transaction_commands_inside_one_query(wire: Wire, sql: str, status: bytes, count: bytes | None) -> None:
    wire.ask(*run("CREATE ICEBERG TABLE w.multi (a int)"))
    try:
        wire.send(m.Query(sql))
        assert wire.until(m.ReadyForQuery)[-1] == m.ReadyForQuery(status)
        if count is None:
            wire.ask(*run("ROLLBACK"))
        assert values(wire.ask(*run("SELECT count(*) FROM w.multi"))) == [(count or b"0",)]
    finally:
        wire.ask(*run("DROP TABLE w.multi"))
