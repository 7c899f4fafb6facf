"""The server in front of a real PostgreSQL, as real clients see it: psycopg and the wheel's psql."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from icefield.model.errors import BadRequest, Unavailable
from icefield.pgwire import messages as m
from icefield.pgwire.codec import backend_frames, decode_backend, encode
from icefield.pgwire.server import Limits, PgServer
from icefield.sql.brain.binaries import psql_path

pytestmark = pytest.mark.sql


class RawClient:
    """What no driver sends."""

    def __init__(self, door, *, start=True):
        self.socket = socket.create_connection(("127.0.0.1", door.port), timeout=30)
        self.frames = backend_frames()
        if start:
            self.send(m.StartupMessage({"user": "u", "database": "postgres"}))
            self.until(m.ReadyForQuery)

    def send(self, *messages):
        self.socket.sendall(b"".join(x if isinstance(x, bytes) else encode(x) for x in messages))

    def next(self):
        while (frame := self.frames.next()) is None:
            data = self.socket.recv(65536)
            if not data:
                return None
            self.frames.feed(data)
        return decode_backend(frame)

    def until(self, cls):
        got = []
        while (message := self.next()) is not None:
            got.append(message)
            if isinstance(message, cls):
                break
        return got

    def close(self):
        self.socket.close()


@pytest.fixture
def raw(door):
    client = RawClient(door)
    yield client
    client.close()


def eventually(condition, timeout_s=10):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.01)


def psql(door, *commands, stdin=None):
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "PGCONNECT_TIMEOUT": "20"}
    args = [arg for command in commands for arg in ("-c", command)]
    return subprocess.run(
        [psql_path(), "-X", "-At", "-h", "127.0.0.1", "-p", str(door.port), "-U", "me", "-d", "postgres", *args],
        input=stdin,
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
    )


# psql ----------------------------------------------------------------------------------------------------------------


def test_psql_sees_rows_errors_with_positions_and_catalogs(door):
    result = psql(
        door,
        stdin="create temp table t(a int, b text);\ninsert into t values (1,'ä'),(2,null) returning a;\n"
        "select * from t order by a;\nselect nope from t;\n\\d t\n\\echo :SQLSTATE\nselect $1::int + 1 \\bind 41 \\g\n"
        "select 1 as one \\gdesc\nselect 'x'; select 'y';\n",
    )
    lines = result.stdout.splitlines()
    assert lines[:5] == ["CREATE TABLE", "1", "2", "INSERT 0 2", "1|ä"]
    assert "a|integer|||" in lines
    assert "42" in lines
    assert "one|integer" in lines
    assert lines[-2:] == ["x", "y"]
    assert 'column "nope" does not exist' in result.stderr
    assert "LINE 1: select nope from t;\n               ^" in result.stderr


def test_psql_copies_in_and_out(door):
    result = psql(door, stdin="create temp table t(a int);\ncopy t from stdin;\n1\n2\n\\.\ncopy t to stdout;\n")
    assert result.stdout.splitlines() == ["CREATE TABLE", "COPY 2", "1", "2"]
    result = psql(door, stdin="create temp table t(a int);\ncopy t from stdin;\n1\nx\n3\n\\.\nselect 'on';\n")
    assert result.stdout.splitlines() == ["CREATE TABLE", "on"]
    assert "COPY t, line 2" in result.stderr


def test_a_transaction_that_failed_says_so(door):
    result = psql(door, stdin="begin;\nselect 1/0;\nselect 1;\ncommit;\nselect 'again';\n")
    assert result.stdout.splitlines() == ["BEGIN", "ROLLBACK", "again"]
    assert "current transaction is aborted" in result.stderr


# psycopg -------------------------------------------------------------------------------------------------------------


def test_psycopg_simple_and_extended(door):
    with door.connect() as connection:
        assert connection.execute("SELECT %s::int + 1, %s", (41, "x")).fetchone() == (42, "x")
        assert connection.execute("SELECT 1; SELECT 2").nextset() is True
        with pytest.raises(psycopg.errors.UndefinedColumn) as caught:
            connection.execute("SELECT  nope")
        assert caught.value.diag.statement_position == "9"
        connection.rollback()
        cursor = connection.cursor(binary=True)
        assert cursor.execute("SELECT 7::int8").fetchone() == (7,)


def test_psycopg_pipelines_end_as_they_do_without_us(door, cluster):
    direct = psycopg.connect(
        host=str(cluster.socket_dir), user=cluster.superuser, password=cluster.superuser_password, dbname="postgres"
    )
    assert _pipelines(door.connect()) == _pipelines(direct)


def _pipelines(connection):
    """Several series, one with an error in its middle; what each left behind."""
    left = []
    with connection:
        connection.autocommit = True
        connection.execute("CREATE TEMP TABLE t(a int)")
        with pytest.raises(psycopg.errors.DivisionByZero):
            _failing_pipeline(connection)
        left.append(connection.execute("SELECT array_agg(a) FROM t").fetchone())
        with connection.pipeline():
            cursors = [connection.execute("INSERT INTO t VALUES (%s) RETURNING a", (i,)) for i in range(10, 60)]
        left += [cursor.fetchone() for cursor in cursors]
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO t VALUES (%s)", [(i,) for i in range(100, 400)])
        left.append(connection.execute("SELECT count(*), sum(a) FROM t").fetchone())
    assert left[0] == ([1],)
    return left


def _failing_pipeline(connection):
    with connection.pipeline() as pipeline:
        connection.execute("INSERT INTO t VALUES (1)")
        pipeline.sync()
        connection.execute("SELECT 1/0")
        connection.execute("INSERT INTO t VALUES (2)")
        pipeline.sync()


def _abandoned_copy(connection):
    with connection.cursor().copy("COPY t FROM STDIN") as copy:
        copy.write_row((1, "x"))
        raise ZeroDivisionError


def test_psycopg_server_side_cursor_and_copy(door):
    with door.connect() as connection:
        with connection.cursor("named") as cursor:
            cursor.itersize = 10
            cursor.execute("SELECT generate_series(1, 100)")
            assert sum(row[0] for row in cursor) == 5050
        connection.execute("CREATE TEMP TABLE t(a int, b text)")
        with connection.cursor().copy("COPY t FROM STDIN") as copy:
            for i in range(1000):
                copy.write_row((i, "x" * 100))
        with connection.cursor().copy("COPY t TO STDOUT") as copy:
            assert len(list(copy.rows())) == 1000
        with pytest.raises(ZeroDivisionError):
            _abandoned_copy(connection)
        connection.rollback()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_statement_is_cancelled_and_the_session_goes_on(door):
    with door.connect(autocommit=True) as connection:
        timer = threading.Timer(0.3, connection.cancel_safe)
        timer.start()
        started = time.monotonic()
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("SELECT pg_sleep(30)")
        assert time.monotonic() - started < 10
        timer.join()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_cancel_with_a_wrong_secret_does_nothing(door):
    with door.connect(autocommit=True) as connection:
        pid = connection.info.backend_pid
        stranger = RawClient(door, start=False)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(connection.execute, "SELECT pg_sleep(0.6)")
            time.sleep(0.2)
            stranger.send(m.CancelRequest(pid, 12345))
            assert stranger.next() is None
            assert running.result(20).fetchone() is not None


def test_parameters_and_statuses_reach_the_client(door):
    with door.connect(application_name="mine") as connection:
        assert connection.info.parameter_status("application_name") == "mine"
        connection.execute("SET application_name = 'other'")
        assert connection.info.parameter_status("application_name") == "other"
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS


def test_an_unknown_database_is_refused_with_the_brains_words(door):
    with pytest.raises(psycopg.OperationalError, match='database "nowhere" does not exist'):
        door.connect(dbname="nowhere")


def test_the_clients_encoding_may_be_another(door):
    with door.connect(client_encoding="latin1", autocommit=True) as connection:
        assert connection.execute("SELECT 'é', length('é')").fetchone() == ("é", 1)
        connection.execute('CREATE TEMP TABLE "é"(a int)')
        assert connection.execute("SELECT relname FROM pg_class WHERE relname = %s", ("é",)).fetchone() == ("é",)


# faults --------------------------------------------------------------------------------------------------------------


def test_an_unexpected_exception_is_one_clean_error_with_a_request_id(door, caplog):
    with door.connect(autocommit=True) as connection:
        with caplog.at_level(logging.ERROR), pytest.raises(psycopg.errors.InternalError_) as caught:
            psycopg.ClientCursor(connection).execute("SELECT 'boom'")
        record = next(r for r in caplog.records if r.name == "icefield.pgwire")
        assert record.request_id in str(caught.value)
        assert record.exc_info[0] is ZeroDivisionError
        assert "Traceback" not in str(caught.value)
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_garbage_gets_a_protocol_error_and_the_end(door, raw):
    raw.send(b"\x01garbage")
    last = raw.until(m.ErrorResponse)[-1]
    assert (last.fields["C"], last.fields["S"]) == ("08P01", "FATAL")
    assert raw.next() is None
    for data in (b"\x00\x00\x00\x00", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00" + b"x" * 600):
        client = RawClient(door, start=False)
        client.send(data)
        assert isinstance(client.next(), m.ErrorResponse)
        assert client.next() is None


def test_a_broken_body_fails_one_series_only(raw):
    raw.send(b"B\x00\x00\x00\x05x", m.Execute(""), m.Sync(), m.Query("SELECT 1"))
    first = raw.until(m.ReadyForQuery)
    assert [type(x) for x in first] == [m.ErrorResponse, m.ReadyForQuery]
    assert first[0].fields["C"] == "08P01"
    assert m.DataRow((b"1",)) in raw.until(m.ReadyForQuery)


def test_function_calls_are_refused(raw):
    raw.send(m.FunctionCall(b"\x00\x00\x00\x01"))
    error, ready = raw.until(m.ReadyForQuery)
    assert (error.fields["C"], ready) == ("0A000", m.ReadyForQuery(b"I"))


def test_newer_protocols_are_negotiated_down(door):
    client = RawClient(door, start=False)
    client.send(m.StartupMessage({"user": "u", "database": "postgres", "_pq_.new": "1"}, minor=2))
    assert client.next() == m.NegotiateProtocolVersion(0, ("_pq_.new",))
    assert isinstance(client.until(m.ReadyForQuery)[-1], m.ReadyForQuery)
    client.close()


@pytest.mark.parametrize(
    ("parameters", "sqlstate"), [({"database": "postgres"}, "28000"), ({"user": "u", "replication": "1"}, "0A000")]
)
def test_startups_that_are_refused(door, parameters, sqlstate):
    client = RawClient(door, start=False)
    client.send(m.StartupMessage(parameters))
    error = client.next()
    assert (error.fields["C"], error.fields["S"]) == (sqlstate, "FATAL")
    assert client.next() is None


def test_encryption_is_declined(door):
    client = RawClient(door, start=False)
    client.send(m.SSLRequest())
    assert client.socket.recv(10) == b"N"
    client.send(m.GSSENCRequest())
    assert client.socket.recv(10) == b"N"
    client.send(m.StartupMessage({"user": "u", "database": "postgres"}))
    assert isinstance(client.until(m.ReadyForQuery)[-1], m.ReadyForQuery)
    client.close()


def test_max_rows_suspends_a_portal(raw):
    raw.send(m.Parse("", "SELECT generate_series(1,3)"), m.Bind("", ""), m.Execute("", 2), m.Execute("", 2), m.Sync())
    kinds = [type(x) for x in raw.until(m.ReadyForQuery)]
    assert kinds[2:] == [m.DataRow, m.DataRow, m.PortalSuspended, m.DataRow, m.CommandComplete, m.ReadyForQuery]


def test_flush_sends_what_is_there_without_a_sync(raw):
    raw.send(m.Parse("s", "SELECT 1"), m.Describe(m.Target.STATEMENT, "s"), m.Flush())
    assert [type(raw.next()) for _ in range(3)] == [m.ParseComplete, m.ParameterDescription, m.RowDescription]
    raw.send(m.Close(m.Target.STATEMENT, "s"), m.Sync())
    assert [type(x) for x in raw.until(m.ReadyForQuery)] == [m.CloseComplete, m.ReadyForQuery]


# bounds --------------------------------------------------------------------------------------------------------------


def test_too_many_clients(open_door):
    door = open_door(Limits(max_connections=2))
    with door.connect() as first, door.connect():
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            door.connect()
        first.close()
        eventually(lambda: door.server.connections < 2)
        door.connect().close()


def test_a_client_that_never_starts_is_dropped(open_door):
    door = open_door(Limits(startup_s=0.2))
    client = RawClient(door, start=False)
    assert client.next() is None


def test_an_idle_session_is_ended_when_asked_for(open_door):
    door = open_door(Limits(idle_s=0.2))
    client = RawClient(door)
    error = client.next()
    assert (error.fields["C"], error.fields["S"]) == ("57P05", "FATAL")


def test_a_statement_longer_than_the_limit_is_refused(open_door):
    client = RawClient(open_door(Limits(message_bytes=1000)))
    client.send(m.Query("SELECT '" + "x" * 1000 + "'"))
    error = client.next()
    assert (error.fields["C"], "1000" in error.fields["M"]) == ("08P01", True)


def test_a_slow_reader_bounds_what_waits_for_it(door):
    """400 MB for a client that reads nothing: memory must not follow, and the rows must all be there in the end."""
    client = RawClient(door)
    before = _rss_mb()
    rows, width = 4000, 100_000
    client.send(m.Query(f"SELECT repeat('x', {width}) FROM generate_series(1, {rows})"))
    time.sleep(1.5)
    assert _rss_mb() - before < 60
    received = 0
    tail = b""
    while not tail.endswith(encode(m.ReadyForQuery(b"I"))):
        data = client.socket.recv(1 << 20)
        received += len(data)
        tail = (tail + data)[-10:]
    assert received > rows * width
    client.close()


def _rss_mb():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def test_a_client_that_dies_has_its_statement_cancelled(open_door):
    door = open_door(Limits(gone_client_s=0.2))
    client = RawClient(door)
    client.send(m.Query("SELECT pg_sleep(60) /* gone */"))
    with door.connect(autocommit=True) as watcher:
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(60) /* gone%' AND state = 'active'"
        )
        eventually(lambda: watcher.execute(query).fetchone() == (1,))
        client.close()
        eventually(lambda: watcher.execute(query).fetchone() == (0,))
        eventually(lambda: door.server.connections == 1)


def test_a_client_that_only_closes_its_sending_side_gets_its_answer(door):
    client = RawClient(door)
    client.send(m.Query("SELECT pg_sleep(0.3), 42"))
    client.socket.shutdown(socket.SHUT_WR)
    assert any(isinstance(x, m.DataRow) and x.values[1] == b"42" for x in client.until(m.ReadyForQuery))


def test_many_clients_at_once(door):
    def work(n):
        with door.connect(autocommit=True) as connection:
            return sum(connection.execute("SELECT %s::int", (i,)).fetchone()[0] for i in range(20)) + n

    with ThreadPoolExecutor(10) as pool:
        assert list(pool.map(work, range(20))) == [190 + n for n in range(20)]


# stopping ------------------------------------------------------------------------------------------------------------


def test_stopping_tells_idle_clients_and_waits_for_busy_ones(open_door):
    door = open_door()
    idle, busy = RawClient(door), RawClient(door)
    busy.send(m.Query("SELECT pg_sleep(0.5), 1"))
    eventually(lambda: any(s.link.owing for s in door.factory.sessions))
    door.run(door.server.stop(grace_s=10))
    assert idle.next().fields["C"] == "57P01"
    answer = busy.until(m.ErrorResponse)
    assert any(isinstance(x, m.DataRow) for x in answer)
    assert answer[-1].fields["C"] == "57P01"
    assert all(session.link.closed for session in door.factory.sessions)
    with pytest.raises(OSError):
        RawClient(door)


def test_stopping_does_not_wait_for_ever(open_door):
    door = open_door()
    busy = RawClient(door)
    busy.send(m.Query("SELECT pg_sleep(100)"))
    eventually(lambda: any(s.link.owing for s in door.factory.sessions))
    started = time.monotonic()
    door.run(door.server.stop(grace_s=0.3))
    assert time.monotonic() - started < 10
    assert busy.until(m.ErrorResponse)[-1].fields["C"] in ("57014", "57P01")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.org", "::"])
def test_without_principals_only_loopback_is_listened_on(host):
    with pytest.raises(BadRequest, match="loopback"):
        PgServer(None, host=host)


def test_a_port_that_is_taken_is_said_so(door):
    second = PgServer(door.factory, port=door.port)
    with pytest.raises(Unavailable, match=f"{door.port}.*choose another port"):
        door.run(second.start())
