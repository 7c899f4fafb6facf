"""COPY of lake tables, both ways, in every format, with everything that can go wrong in the middle of the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from icefield.pgwire import messages as m
from support.up import Up
from support.wire import Wire, kinds, run, sqlstates, values

pytestmark = [pytest.mark.sql, pytest.mark.spark]
Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture(scope="module")
def lake(up: Up) -> Iterator[Connection]:
    with psycopg.connect(up.dsn(), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA cp")
        yield connection


@pytest.fixture
def table(lake: Connection) -> Iterator[str]:
    lake.execute("CREATE ICEBERG TABLE cp.t (a int, b text)")
    yield "cp.t"
    lake.execute("DROP TABLE cp.t")


@pytest.fixture
def wire(up: Up, table: str) -> Iterator[Wire]:
    connection = Wire(up.sql_port)
    yield connection
    connection.close()


def copy(connection: Connection, statement: str, data: bytes) -> str | None:
    cursor = connection.cursor()
    with cursor.copy(statement.encode()) as into:
        into.write(data)
    return cursor.statusmessage


def copied(connection: Connection, statement: str) -> bytes:
    with connection.cursor().copy(statement.encode()) as out:
        return b"".join(bytes(part) for part in out)


def rows(connection: Connection, query: str = "SELECT a, b FROM cp.t ORDER BY a, b") -> list[tuple[Any, ...]]:
    return connection.execute(query.encode()).fetchall()


def test_text_csv_and_their_options(lake: Connection, client: Connection, table: str) -> None:
    assert copy(client, "COPY cp.t FROM STDIN", b"1\tx\n2\t\\N\n") == "COPY 2"
    assert copy(client, "COPY cp.t (b, a) FROM STDIN", b"y\t3\n\\.\n") == "COPY 1"
    assert copy(client, "COPY cp.t (a) FROM STDIN (FORMAT csv, HEADER)", b"a\n4\n") == "COPY 1"
    assert copy(client, "COPY cp.t FROM STDIN WITH CSV QUOTE ''''", b"5,'q,'''\n") == "COPY 1"
    assert copy(client, "COPY cp.t FROM STDIN WHERE a > 6", b"6\tno\n7\tyes\n") == "COPY 1"
    assert copy(client, "COPY cp.t FROM STDIN", b"") == "COPY 0"
    assert rows(lake) == [(1, "x"), (2, None), (3, "y"), (4, None), (5, "q,'"), (7, "yes")]
    log = rows(client, "SHOW LOG LIMIT 5")
    assert [row[5] for row in log] == [["cp.t"]] * 5  # one commit each, and none for nothing


@pytest.mark.parametrize("form", ["text", "csv", "binary"])
def test_what_goes_out_comes_in_again(lake: Connection, client: Connection, table: str, form: str) -> None:
    data = [(1, "a\tb\\c\n"), (2, None), (3, ""), (4, 'q"é,'), (None, "\\N")]
    cursor = client.cursor()
    with cursor.copy("COPY cp.t FROM STDIN") as into:
        for row in data:
            into.write_row(row)
    whole = copied(client, f"COPY cp.t TO STDOUT (FORMAT {form})")
    query = copied(client, f"COPY (SELECT a, b FROM cp.t) TO STDOUT (FORMAT {form})")
    assert len(whole) == len(query) > 0
    client.execute("CREATE TEMP TABLE back (a int, b text)")
    for text in (whole, query):
        assert copy(client, f"COPY back FROM STDIN (FORMAT {form})", text) == "COPY 5"
    assert copy(client, f"COPY cp.t FROM STDIN (FORMAT {form})", whole) == "COPY 5"
    both = sorted((*data, *data), key=str)
    assert sorted(rows(client, "SELECT a, b FROM back"), key=str) == both
    assert sorted(rows(lake), key=str) == both


def test_a_column_list_and_rows_of_a_branch(lake: Connection, client: Connection, table: str) -> None:
    copy(client, "COPY cp.t FROM STDIN", b"1\tx\n2\ty\n")
    assert copied(client, "COPY cp.t (b) TO STDOUT") == b"x\ny\n"
    assert copied(client, "COPY (SELECT max(a) FROM cp.t) TO STDOUT WITH (FORMAT csv, HEADER)") == b"max\n2\n"


BROKEN = [
    (b"1\tx\nbad\ty\n", "22P02", "line 2"),
    (b"1\tx\n2\n", "22P04", "line 2"),
    (b"1\tx\n2\ty\tz\n", "22P04", "line 2"),
    (b"1\tx\n2\t\xff\n", "22021", "line 2"),
]


@pytest.mark.parametrize(("data", "sqlstate", "where"), BROKEN)
def test_an_error_in_the_middle_of_the_data(
    lake: Connection, client: Connection, table: str, data: bytes, sqlstate: str, where: str
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        copy(client, "COPY cp.t FROM STDIN", data)
    assert caught.value.sqlstate == sqlstate
    assert where in (caught.value.diag.context or "")
    assert rows(client) == []
    with client.transaction():
        copy(client, "COPY cp.t FROM STDIN", b"1\tx\n")
        with pytest.raises(psycopg.Error), client.transaction():
            copy(client, "COPY cp.t FROM STDIN", data)
        assert rows(client) == [(1, "x")]
    assert rows(lake) == [(1, "x")]


def test_a_client_that_gives_up(wire: Wire, lake: Connection) -> None:
    wire.send(m.Query("COPY cp.t FROM STDIN"))
    wire.until(m.CopyInResponse)
    wire.send(m.CopyData(b"1\tx\n"), m.CopyFail("no more"))
    failed = wire.until(m.ReadyForQuery)
    assert sqlstates(failed) == ["57014"]
    assert "no more" in next(message.fields["M"] for message in failed if isinstance(message, m.ErrorResponse))
    wire.send(m.Query("COPY cp.t FROM STDIN"))
    wire.until(m.CopyInResponse)
    wire.send(m.CopyData(b"1\tx\n"), m.Query("SELECT 1"))
    assert sqlstates(wire.until(m.ReadyForQuery)) == ["08P01"]
    assert rows(lake) == []
    assert values(wire.ask(*run("SELECT 1"))) == [(b"1",)]


def test_the_extended_protocol(wire: Wire, lake: Connection) -> None:
    def ask(data: bytes, *after: m.Message) -> list[m.BackendMessage]:
        # As libpq: a Sync right after Execute, which COPY ignores, and another at the end.
        wire.send(*run("COPY cp.t FROM STDIN"), m.Sync())
        wire.until(m.CopyInResponse)
        wire.send(m.CopyData(data), m.CopyDone(), *after, m.Sync())
        return wire.until(m.ReadyForQuery)

    assert kinds(ask(b"1\tx\n")) == ["CommandComplete", "ReadyForQuery"]
    assert sqlstates(ask(b"x\tx\n")) == ["22P02"]
    assert values(ask(b"2\ty\n", *run("SELECT count(*) FROM cp.t"))) == [(b"2",)]
    assert sqlstates(ask(b"3\tz\n", *run("SELECT 1 / 0"))) == ["22012"]
    wire.send(*run("COPY cp.t FROM STDIN"), m.Flush())
    wire.until(m.CopyInResponse)
    wire.send(m.CopyData(b"4\tw\n"), m.CopyDone(), m.Flush())
    assert m.CommandComplete("COPY 1") in wire.until(m.CommandComplete)
    assert rows(lake) == [(1, "x"), (2, "y")]  # it is committed at Sync
    assert kinds(wire.ask()) == ["ReadyForQuery"]
    assert rows(lake) == [(1, "x"), (2, "y"), (4, "w")]
    wire.ask(*run("BEGIN"))
    assert ask(b"5\tv\n")[-1] == m.ReadyForQuery(b"T")
    wire.ask(*run("ROLLBACK"))
    assert rows(lake) == [(1, "x"), (2, "y"), (4, "w")]
    out = wire.ask(*run("COPY (SELECT a FROM cp.t ORDER BY a) TO STDOUT"))
    assert b"".join(message.data for message in out if isinstance(message, m.CopyData)) == b"1\n2\n4\n"


def test_functions_that_read_the_lake_while_data_come(lake: Connection, client: Connection, table: str) -> None:
    """The statement must run again, over a fill that it turned out to need: with the same data."""
    copy(lake, "COPY cp.t FROM STDIN", b"1\tx\n2\ty\n")
    client.execute("CREATE TEMP TABLE mine (a int, n bigint)")
    client.execute(
        "CREATE FUNCTION pg_temp.count_t() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN NEW.n := (SELECT count(*) FROM cp.t); RETURN NEW; END $$"
    )
    client.execute("CREATE TRIGGER c BEFORE INSERT ON mine FOR EACH ROW EXECUTE FUNCTION pg_temp.count_t()")
    assert copy(client, "COPY mine (a) FROM STDIN", b"7\n8\n") == "COPY 2"
    assert rows(client, "SELECT a, n FROM mine ORDER BY a") == [(7, 2), (8, 2)]


def test_more_data_than_memory_should_hold(lake: Connection, client: Connection, table: str) -> None:
    line = b"12345\t" + b"x" * 90 + b"\n"
    cursor = client.cursor()
    with cursor.copy("COPY cp.t FROM STDIN") as into:
        for _ in range(120):
            into.write(line * 1000)  # 12 MB: past what is kept in memory
    assert cursor.statusmessage == "COPY 120000"
    assert rows(lake, "SELECT count(*), min(length(b)) FROM cp.t") == [(120000, 90)]


@pytest.mark.parametrize(
    "statement",
    [
        "COPY cp.t FROM '/etc/hostname'",
        "COPY cp.t TO '/tmp/icefield-never'",
        "COPY cp.t FROM PROGRAM 'true'",
        "COPY (SELECT 1) TO PROGRAM 'cat'",
    ],
)
def test_files_and_programs_of_the_server_are_nobodys(client: Connection, table: str, statement: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        client.execute(statement.encode())
