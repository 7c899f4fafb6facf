"""A statement that is its own transaction runs again when somebody else changed the lake meanwhile, and only that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from icefield.model.conflicts import Conflict
from icefield.model.errors import CommitConflict, Unavailable
from icefield.pgwire import messages as m
from icefield.pgwire.errors import PgError
from icefield.pgwire.sqlstate import to_pg_error
from icefield.sql.retries import conflict_of
from support.up import Up
from support.wire import Wire, run, sqlstates, values

Connection = psycopg.Connection[tuple[Any, ...]]
slow_parts = [pytest.mark.sql, pytest.mark.spark]


def test_what_a_conflict_of_ours_is() -> None:
    conflict = CommitConflict("both", [Conflict("s.t", "both-changed", "changed on both sides")])
    found = conflict_of(conflict)
    assert found is not None
    assert found.detail == "s.t: changed on both sides"
    assert conflict_of(to_pg_error(conflict)) is not None
    assert conflict_of(PgError("40001", "ours")) is not None
    raised = PgError.from_fields({"S": "ERROR", "C": "40001", "M": "theirs", "R": "exec_stmt_raise"})
    assert conflict_of(raised) is None
    for other in (Unavailable("later"), PgError("40P01", "deadlock"), ValueError()):
        assert conflict_of(other) is None


@pytest.fixture
def table(up: Up, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"again.t{abs(hash(request.node.name)) % 10**8}"
    with psycopg.connect(up.dsn(), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA IF NOT EXISTS again")
        connection.execute(f"CREATE ICEBERG TABLE {name} (id int, n int)".encode())
        connection.execute(f"INSERT INTO {name} VALUES (1, 0), (2, 0)".encode())
        yield name
        connection.execute(f"DROP TABLE {name}".encode())


@pytest.fixture
def other(up: Up) -> Iterator[Connection]:
    with psycopg.connect(up.dsn(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def wire(up: Up) -> Iterator[Wire]:
    connection = Wire(up.sql_port)
    yield connection
    connection.close()


def rows(connection: Connection, query: str) -> list[tuple[Any, ...]]:
    return connection.execute(query.encode()).fetchall()


def fails(connection: Connection, statement: str) -> psycopg.Error:
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(statement.encode())
    return caught.value


class TestMeetings:
    """A COPY that waits for data, or a series that was only flushed, has its view: then another client lands."""

    pytestmark = slow_parts

    def test_what_a_flush_pinned_gives_way_to_a_newer_view(self, wire: Wire, other: Connection, table: str) -> None:
        wire.send(
            m.Parse("u", f"UPDATE {table} SET n = n + $1 WHERE id = 1 RETURNING n"),
            m.Describe(m.Target.STATEMENT, "u"),
            m.Flush(),
        )
        wire.until(m.RowDescription)
        other.execute(f"UPDATE {table} SET n = n + 10 WHERE id = 1".encode())
        answer = wire.ask(m.Bind("", "u", (0,), (b"1",), ()), m.Execute(""))
        assert values(answer) == [(b"11",)]
        assert m.CommandComplete("UPDATE 1") in answer
        assert rows(other, f"SELECT id, n FROM {table} ORDER BY id") == [(1, 11), (2, 0)]
        assert values(wire.ask(m.Bind("", "u", (0,), (b"2",), ()), m.Execute(""))) == [(b"13",)]

    def test_no_retries_and_a_bad_setting(self, wire: Wire, other: Connection, table: str) -> None:
        other.execute(f"CREATE ICEBERG TABLE {table}_k (id int PRIMARY KEY)".encode())
        try:
            for number, (setting, sqlstate) in enumerate((("0", "40001"), ("often", "22023"), ("-1", "22023"))):
                wire.ask(*run(f"SET icefield.commit_retries = '{setting}'"))
                wire.send(m.Query(f"COPY {table}_k FROM STDIN"))
                wire.until(m.CopyInResponse)
                other.execute(f"INSERT INTO {table}_k VALUES ({number})".encode())
                wire.send(m.CopyData(b"77\n"), m.CopyDone())
                answer = wire.until(m.ReadyForQuery)
                assert sqlstates(answer) == [sqlstate]
                if sqlstate == "40001":
                    (error,) = (message for message in answer if isinstance(message, m.ErrorResponse))
                    assert "could not serialize access" in error.fields["M"]
                    assert f"{table}_k" in error.fields["D"]
            assert rows(other, f"SELECT id FROM {table}_k ORDER BY id") == [(0,), (1,), (2,)]
        finally:
            other.execute(f"DROP TABLE {table}_k".encode())

    def test_a_transaction_of_the_clients_own_is_not_run_again(
        self, client: Connection, other: Connection, table: str
    ) -> None:
        client.execute("BEGIN")
        client.execute(f"UPDATE {table} SET n = 5 WHERE id = 1".encode())
        other.execute(f"UPDATE {table} SET n = 7 WHERE id = 1".encode())
        error = fails(client, "COMMIT")
        assert error.sqlstate == "40001"
        assert table in (error.diag.message_detail or "")
        assert rows(client, f"SELECT n FROM {table} WHERE id = 1") == [(7,)]

    def test_a_text_of_two_statements_is_not_run_again(self, wire: Wire, other: Connection, table: str) -> None:
        wire.ask(*run("CREATE TEMP TABLE w (a int)"))
        wire.send(m.Query(f"COPY w FROM STDIN; UPDATE {table} SET n = n + 1 WHERE id = 1"))
        wire.until(m.CopyInResponse)
        other.execute(f"UPDATE {table} SET n = n + 10 WHERE id = 1".encode())
        wire.send(m.CopyData(b"1\n"), m.CopyDone())
        assert sqlstates(wire.until(m.ReadyForQuery)) == ["40001"]
        assert values(wire.ask(*run("SELECT count(*) FROM w"))) == [(b"0",)]
        assert rows(other, f"SELECT n FROM {table} WHERE id = 1") == [(10,)]

    def test_a_series_of_two_statements_is_not_run_again(self, wire: Wire, other: Connection, table: str) -> None:
        wire.send(*run(f"UPDATE {table} SET n = n + 1 WHERE id = 1"), *run("SELECT 1"), m.Flush())
        wire.until(m.DataRow)
        other.execute(f"UPDATE {table} SET n = n + 10 WHERE id = 1".encode())
        assert sqlstates(wire.ask()) == ["40001"]
        assert rows(other, f"SELECT n FROM {table} WHERE id = 1") == [(10,)]

    def test_the_clients_own_40001_is_told_at_once(self, client: Connection, table: str) -> None:
        client.execute("CREATE TEMP SEQUENCE raised")
        statement = (
            "DO $$ BEGIN PERFORM nextval('raised'); RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'mine'; END $$"
        )
        with pytest.raises(psycopg.errors.SerializationFailure, match="mine"):
            client.execute(statement)
        assert rows(client, "SELECT last_value FROM raised") == [(1,)]

    def test_no_update_is_lost_among_many(self, up: Up, table: str) -> None:
        errors: list[BaseException] = []

        def count(prepare: bool | None) -> None:
            try:
                with psycopg.connect(up.dsn(), autocommit=True) as connection:
                    connection.execute("SET icefield.commit_retries = 100")
                    for _ in range(3):
                        if prepare is None:
                            connection.execute(f"UPDATE {table} SET n = n + 1".encode())
                        else:
                            connection.execute(f"UPDATE {table} SET n = n + %s".encode(), (1,), prepare=prepare)
            except BaseException as caught:
                errors.append(caught)

        threads = [threading.Thread(target=count, args=(prepare,)) for prepare in (None, True, False)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        with psycopg.connect(up.dsn()) as connection:
            assert rows(connection, f"SELECT n FROM {table}") == [(9,), (9,)]

    @pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])
    def test_copy_runs_again_with_the_same_data(
        self, wire: Wire, other: Connection, table: str, extended: bool
    ) -> None:
        """Into a table with a key: what COPY adds is checked against all rows, so that it is no blind append."""
        other.execute(f"CREATE ICEBERG TABLE {table}_k (id int PRIMARY KEY, n int)".encode())
        try:
            text = f"COPY {table}_k FROM STDIN"
            wire.send(*((*run(text), m.Sync()) if extended else (m.Query(text),)))
            wire.until(m.CopyInResponse)
            wire.send(m.CopyData(b"1\t1\n"))
            other.execute(f"INSERT INTO {table}_k VALUES (2, 2)".encode())
            wire.send(m.CopyData(b"3\t3\n"), m.CopyDone(), *([m.Sync()] if extended else []))
            assert m.CommandComplete("COPY 2") in wire.until(m.ReadyForQuery)
            assert rows(other, f"SELECT id FROM {table}_k ORDER BY 1") == [(1,), (2,), (3,)]
            wire.send(*((*run(text), m.Sync()) if extended else (m.Query(text),)))
            wire.until(m.CopyInResponse)
            wire.send(m.CopyData(b"4\t1\n"))
            other.execute(f"INSERT INTO {table}_k VALUES (4, 2)".encode())
            wire.send(m.CopyDone(), *([m.Sync()] if extended else []))
            assert sqlstates(wire.until(m.ReadyForQuery)) == ["23505"]  # it is not there twice
        finally:
            other.execute(f"DROP TABLE {table}_k".encode())
