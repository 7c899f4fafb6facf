"""What the drivers in Python never send: portals taken in pieces, Flush, several statements before one Sync."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import time, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Json, Jsonb
from psycopg.types.numeric import Float4, Int2

from icefield.pgwire import messages as m
from icefield.pgwire.codec import backend_frames, decode_backend, encode
from icefield.sql.brain.pool import Brain
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


SERIES = {
    "insert": "INSERT INTO %s SELECT g FROM generate_series(11, 15) g RETURNING a",
    "insert without rows to return": "INSERT INTO %s SELECT g FROM generate_series(11, 15) g",
    "update": "UPDATE %s SET a = a + 20 RETURNING a, 'x'",
    "delete": "DELETE FROM %s WHERE a > 1 RETURNING *",
    "merge": "MERGE INTO %s t USING generate_series(1, 4) g ON t.a = g WHEN MATCHED THEN UPDATE SET a = 0"
    " WHEN NOT MATCHED THEN INSERT VALUES (g) RETURNING merge_action(), t.a",
    "with": "WITH x AS (INSERT INTO %s VALUES (7), (8) RETURNING a) SELECT a FROM x",
    "select": "SELECT a FROM %s",
    "execute": "EXECUTE sel",
    "explain": "EXPLAIN (COSTS off) SELECT 1 UNION ALL SELECT 2",
    "show": "SHOW work_mem",
    "values": "VALUES (1), (2), (3), (4)",
}


@pytest.mark.parametrize("name", SERIES)
@pytest.mark.parametrize("max_rows", [1, 3, 0])
def test_pieces_and_tags_are_those_of_postgresql(wire: Wire, brain: Brain, loop: Any, name: str, max_rows: int) -> None:
    """The same series of Execute, on a temporary table of a brain and on a lake table."""

    async def on_brain(statement: str) -> list[m.BackendMessage]:
        async with await brain.open_client({}) as link:
            await link.query("CREATE TEMP TABLE z AS SELECT g AS a FROM generate_series(1, 3) g")
            await link.query("PREPARE sel AS SELECT g FROM generate_series(1, 3) g; BEGIN")
            found: list[m.BackendMessage] = []
            async for answer in link.relay(b"".join(encode(message) for message in series(statement))):
                frames = backend_frames()
                frames.feed(answer.data)
                while (frame := frames.next()) is not None:
                    found.append(decode_backend(frame))
            return found

    def series(statement: str) -> list[m.Message]:
        executes = [m.Execute("p", max_rows) for _ in range(4)]
        return [m.Parse("", statement), m.Bind("p", ""), m.Describe(m.Target.PORTAL, "p"), *executes, m.Sync()]

    def seen(messages: list[m.BackendMessage]) -> list[object]:
        """Types of columns without the tables that they come from."""
        return [
            [(column.name, column.type_oid, column.format) for column in message.fields]
            if isinstance(message, m.RowDescription)
            else (message.fields["C"], message.fields["M"])
            if isinstance(message, m.ErrorResponse)
            else message
            for message in messages
        ]

    expected = seen(loop(on_brain(SERIES[name].replace("%s", "z"))))
    wire.ask(*run("PREPARE sel AS SELECT g FROM generate_series(1, 3) g"))
    wire.ask(*run("BEGIN"))
    wire.send(*series(SERIES[name].replace("%s", "w.t")))
    assert seen(wire.until(m.ReadyForQuery)) == expected
    wire.ask(*run("ROLLBACK"))


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


def test_binary_parameters_and_results_of_every_type(up: Up) -> None:
    """In as binary, out as binary and as text: what a driver gave is what it gets."""
    types = {
        "smallint": Int2(-32768),
        "real": Float4(1.1),
        "varchar(5)": "é'x",
        "char(3)": "a  ",
        "time": time(23, 59, 59, 999999),
        "uuid": UUID("0123456789abcdef0123456789ABCDEF"),
        "bytea": b"\x00\xff\\",
        "jsonb": Jsonb({"a": [1, None, "é"]}),
        "json": Json({"b": 1.5}),
        "interval": timedelta(days=-3, seconds=5, microseconds=7),
        "int[]": [1, None, 3],
        "text[]": ["a", "", None, 'q"'],
        "uuid[]": [UUID(int=1)],
    }
    names = ", ".join(f"c{number} {kind}" for number, kind in enumerate(types))
    marks = ", ".join(["%b"] * len(types))
    with psycopg.connect(up.dsn(), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA IF NOT EXISTS w")
        connection.execute(f"CREATE ICEBERG TABLE w.kinds ({names})".encode())
        given = tuple(types.values())
        binary = connection.cursor(binary=True)
        query = f"INSERT INTO w.kinds VALUES ({marks}) RETURNING *".encode()
        (returned,) = binary.execute(query, given).fetchall()
        binary.execute(query, (None,) * len(types))
        in_binary = binary.execute("SELECT * FROM w.kinds ORDER BY c0").fetchall()
        in_text = connection.execute("SELECT * FROM w.kinds ORDER BY c0").fetchall()
        expected = tuple(value.obj if isinstance(value, Json | Jsonb) else value for value in given)
        assert [
            value if kind != "real" else round(value, 5) for kind, value in zip(types, returned, strict=True)
        ] == list(expected)
        assert in_binary[0] == returned
        assert in_text[0][2:] == returned[2:]
        assert in_binary[1] == in_text[1] == (None,) * len(types)
        for number, (kind, value) in enumerate(types.items()):
            if kind in ("json", "real"):
                continue  # has no =, or is not what Python calls it
            found = connection.execute(
                f"SELECT count(*) FROM w.kinds WHERE c{number} = %b::{kind}".encode(), (value,)
            ).fetchall()
            assert (kind, found) == (kind, [(1,)])
        connection.execute("DROP TABLE w.kinds")
