"""The SQL door over a running lake: transactions, the law of unfilled shadows, DDL, refusals, both protocols."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import errors as pg

from icefield.sql.brain.binaries import psql_path
from support.up import Up

pytestmark = [pytest.mark.sql, pytest.mark.spark]
Connection = psycopg.Connection[tuple[Any, ...]]


def rows(connection: Connection, query: str, *params: Any) -> list[tuple[Any, ...]]:
    return connection.execute(query.encode(), params or None).fetchall()


def fails(connection: Connection, statement: str) -> psycopg.Error:
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(statement.encode())
    return caught.value


@pytest.fixture(scope="module")
def lake(up: Up) -> Iterator[Connection]:
    """``t.base`` has three rows, ``t.empty`` none; tests write to tables of their own."""
    with psycopg.connect(up.dsn(), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA t")
        connection.execute("CREATE ICEBERG TABLE t.base (a int, b text)")
        connection.execute("CREATE TABLE t.empty (a int) USING iceberg")
        connection.execute("INSERT INTO t.base VALUES (1, 'x'), (2, 'y'), (2, 'y')")
        yield connection


@pytest.fixture
def other(up: Up) -> Iterator[Connection]:
    with psycopg.connect(up.dsn(), autocommit=True) as connection:
        yield connection


def test_inserted_rows_are_there_for_everybody_in_one_snapshot(lake: Connection, other: Connection, up: Up) -> None:
    lake.execute(
        "CREATE ICEBERG TABLE t.ins (a bigint NOT NULL, b numeric(10,2), c timestamptz) PARTITION BY (bucket(4, a))"
    )
    assert lake.execute(
        "INSERT INTO t.ins VALUES (1, 1.005, '2024-01-01 12:00+02'), (2, NULL, NULL)"
    ).statusmessage == ("INSERT 0 2")
    assert lake.execute("INSERT INTO t.ins SELECT a + 10, b, c FROM t.ins").rowcount == 2
    assert lake.execute("INSERT INTO t.ins SELECT a, b, c FROM t.ins WHERE false").statusmessage == "INSERT 0 0"
    assert rows(other, "SELECT a, b::text, c::text FROM t.ins ORDER BY a") == [
        (1, "1.01", "2024-01-01 10:00:00+00"),
        (2, None, None),
        (11, "1.01", "2024-01-01 10:00:00+00"),
        (12, None, None),
    ]
    log = up.http().get("/api/v1/repos/lake/log?limit=3").body["commits"]
    assert [len(commit["entries"]) for commit in log] == [1, 1, 1]
    assert fails(lake, "INSERT INTO t.ins VALUES (NULL, 1, NULL)").sqlstate == "23502"


def test_an_insert_with_functions_and_local_tables(lake: Connection, client: Connection) -> None:
    client.execute("CREATE ICEBERG TABLE t.fn (a int, b text)")
    client.execute("CREATE TEMP TABLE seen (a int)")
    client.execute(
        "CREATE FUNCTION pg_temp.note(int) RETURNS text LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO seen VALUES ($1); RETURN (SELECT max(b) FROM t.base); END $$"
    )
    assert client.execute("INSERT INTO t.fn SELECT a, pg_temp.note(a) FROM t.base FOR UPDATE").rowcount == 3
    assert client.execute("WITH x AS (SELECT a FROM seen) INSERT INTO t.fn SELECT a, 'w' FROM x").rowcount == 3
    assert rows(client, "SELECT a, b FROM t.fn ORDER BY b, a") == [
        (1, "w"),
        (2, "w"),
        (2, "w"),
        (1, "y"),
        (2, "y"),
        (2, "y"),
    ]
    assert rows(client, "SELECT count(*) FROM seen") == [(3,)]
    client.execute("INSERT INTO t.fn DEFAULT VALUES")
    assert rows(client, "SELECT count(*) FROM t.fn WHERE a IS NULL AND b IS NULL") == [(1,)]


# The law of unfilled shadows -----------------------------------------------------------------------------------------

HIDING = {
    "view": ("CREATE TEMP VIEW v AS SELECT count(*) AS n FROM t.base", "SELECT n FROM v"),
    "sql function": (
        "CREATE FUNCTION pg_temp.f() RETURNS bigint LANGUAGE sql AS $$ SELECT count(*) FROM t.base $$",
        "SELECT pg_temp.f()",
    ),
    "plpgsql function that swallows the error of an empty table": (
        """CREATE FUNCTION pg_temp.g() RETURNS bigint LANGUAGE plpgsql AS $$ DECLARE x text; BEGIN
        SELECT b INTO STRICT x FROM t.base WHERE a = 1; RETURN 3;
        EXCEPTION WHEN no_data_found THEN RETURN 0; END $$""",
        "SELECT pg_temp.g()",
    ),
    "dynamic sql": (
        """CREATE FUNCTION pg_temp.h() RETURNS bigint LANGUAGE plpgsql AS $$ DECLARE n bigint; BEGIN
        EXECUTE 'SELECT count(*) FROM t.' || 'base' INTO n; RETURN n; END $$""",
        "SELECT pg_temp.h()",
    ),
    "prepared": ("PREPARE p AS SELECT count(*) FROM t.base", "EXECUTE p"),
    "subquery": (None, "SELECT (SELECT count(*) FROM t.base)"),
    "in a filter": (None, "SELECT 3 WHERE EXISTS (SELECT FROM t.base)"),
    "sample": (None, "SELECT count(*) FROM t.base TABLESAMPLE system (100)"),
    "for update": (None, "SELECT count(*) FROM (SELECT * FROM t.base FOR UPDATE) x"),
}


@pytest.mark.parametrize("name", HIDING)
def test_no_way_of_reading_finds_an_empty_shadow(lake: Connection, client: Connection, name: str) -> None:
    before, query = HIDING[name]
    if before is not None:
        client.execute(before.encode())
    for _ in range(2):
        assert rows(client, query) == [(3,)]
    with client.transaction():
        assert rows(client, query) == [(3,)]
        assert rows(client, query) == [(3,)]


def test_an_error_that_only_an_empty_shadow_raises_is_not_told(lake: Connection, client: Connection) -> None:
    client.execute("CREATE TEMP VIEW v AS SELECT count(*) AS n FROM t.base")
    assert rows(client, "SELECT 6 / n FROM v") == [(2,)]
    client.execute("DO $$ BEGIN IF (SELECT count(*) FROM t.base) <> 3 THEN RAISE 'wrong'; END IF; END $$")
    assert fails(client, "DO $$ BEGIN PERFORM 1 / (a - a) FROM t.base; END $$").sqlstate == "22012"


def test_sampling_through_a_view_is_seen_even_where_it_fails(lake: Connection, client: Connection) -> None:
    client.execute("CREATE TEMP VIEW v AS SELECT count(*) AS n FROM t.base TABLESAMPLE system (100)")
    assert rows(client, "SELECT 6 / n FROM v") == [(2,)]
    body = "BEGIN PERFORM FROM t.base TABLESAMPLE system (100); END"
    assert fails(client, f"DO $$ {body} $$").sqlstate == "0A000"


def test_a_view_of_the_session_is_written_through(lake: Connection, client: Connection) -> None:
    client.execute("CREATE ICEBERG TABLE t.below (a int, b text)")
    client.execute("CREATE TEMP VIEW w AS SELECT a, b FROM t.below WHERE a < 10 WITH CHECK OPTION")
    assert rows(client, "INSERT INTO w VALUES (1, 'x'), (2, 'y') RETURNING a") == [(1,), (2,)]
    assert client.execute("UPDATE w SET a = a + 1").statusmessage == "UPDATE 2"
    assert fails(client, "UPDATE w SET a = 10").sqlstate == "44000"
    assert client.execute("DELETE FROM w WHERE a = 3").statusmessage == "DELETE 1"
    assert rows(client, "SELECT a, b FROM t.below") == [(2, "x")]


def test_what_a_statement_leaves_behind_stays(lake: Connection, client: Connection) -> None:
    client.execute("CREATE TEMP TABLE mine AS SELECT * FROM t.base")
    assert client.execute("INSERT INTO mine SELECT * FROM t.base").rowcount == 3
    assert client.execute("UPDATE mine SET b = 'z' FROM t.base WHERE mine.a = t.base.a").rowcount == 6
    assert rows(client, "SELECT DISTINCT b FROM mine") == [("z",)]
    assert rows(client, "SELECT set_config('app.x', count(*)::text, false) FROM t.base") == [("3",)]
    assert rows(client, "SHOW app.x") == [("3",)]
    client.execute(
        "CREATE FUNCTION pg_temp.log() RETURNS int LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO mine SELECT a, 'logged' FROM t.base; RETURN 1; END $$"
    )
    client.execute("SELECT pg_temp.log()")
    assert rows(client, "SELECT count(*) FROM mine WHERE b = 'logged'") == [(3,)]
    assert rows(client, "SELECT count(*) FROM t.base") == [(3,)]


def test_cursors_keep_their_rows(lake: Connection, client: Connection) -> None:
    with client.transaction():
        client.execute("DECLARE c SCROLL CURSOR FOR SELECT b FROM t.base ORDER BY b")
        assert rows(client, "FETCH 1 FROM c") == [("x",)]
        assert rows(client, "SELECT count(*) FROM t.base") == [(3,)]
        assert rows(client, "FETCH ALL FROM c") == [("y",), ("y",)]
        assert rows(client, "FETCH ABSOLUTE 1 FROM c") == [("x",)]
        with client.cursor("named") as cursor:
            cursor.itersize = 2
            cursor.execute("SELECT a FROM t.base ORDER BY a")
            assert [row[0] for row in cursor] == [1, 2, 2]
    client.execute(
        "CREATE FUNCTION pg_temp.n(int) RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT count(*) + $1 FROM t.base $$"
    )
    client.execute(
        "CREATE FUNCTION pg_temp.d(int) RETURNS bigint LANGUAGE plpgsql VOLATILE AS"
        " $$ BEGIN RETURN (SELECT count(*) + $1 FROM t.base); END $$"
    )
    client.execute("BEGIN")
    declare = "DECLARE c CURSOR FOR SELECT pg_temp.n(g) FROM generate_series(1, 3) g"
    assert fails(client, declare).sqlstate == "0A000"
    client.execute("ROLLBACK")
    client.execute("BEGIN")
    client.execute(declare.replace("pg_temp.n", "pg_temp.d"))
    assert fails(client, "FETCH 1 FROM c").sqlstate == "0A000"
    client.execute("ROLLBACK")


REFUSED = [
    "CREATE INDEX ON t.base (a)",
    "CREATE TABLE t.plain (a int)",
    "CREATE TABLE t.plain AS SELECT * FROM t.base",
    "CREATE TABLE t.plain USING iceberg AS SELECT * FROM t.base",
    "SELECT * INTO t.plain FROM t.base",
    "CREATE VIEW t.v AS SELECT 1",
    "CREATE MATERIALIZED VIEW t.v AS SELECT 1",
    "CREATE SEQUENCE t.s",
    "CREATE TRIGGER g BEFORE INSERT ON t.base EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE RULE r AS ON INSERT TO t.base DO INSTEAD NOTHING",
    "GRANT SELECT ON t.base TO public",
    "VACUUM t.base",
    "DO $$ BEGIN DROP TABLE t.empty; END $$",
    "DO $$ BEGIN CREATE TABLE t.plain (a int); END $$",
    "BEGIN ISOLATION LEVEL SERIALIZABLE",
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    "SET default_transaction_isolation = serializable",
    "PREPARE TRANSACTION 'x'",
    "LISTEN x",
    "SELECT pg_advisory_lock(1)",
    "CREATE ICEBERG TABLE t.bad (a int, b int GENERATED ALWAYS AS (a) STORED)",
    'CREATE ICEBERG TABLE t.bad (a text COLLATE "C")',
    "CREATE ICEBERG TABLE t.bad (a int PRIMARY KEY DEFERRABLE)",
    "CREATE ICEBERG TABLE t.bad (a int PRIMARY KEY, b int REFERENCES t.bad)",
    "DO $$ BEGIN ALTER TABLE t.base ADD COLUMN c int; END $$",
    "CREATE ICEBERG TABLE t.bad (a xml)",
    "CREATE ICEBERG TABLE t.bad (a numeric)",
    "CREATE ICEBERG TABLE t.bad (a numeric[])",
    "CREATE ICEBERG TABLE t.bad AS SELECT 1",
]


@pytest.mark.parametrize("statement", REFUSED)
def test_what_is_beyond_this_version_is_refused_and_changes_nothing(lake: Connection, statement: str) -> None:
    error = fails(lake, statement)
    assert error.sqlstate == "0A000"
    assert error.diag.message_primary
    assert rows(lake, "SELECT count(*) FROM t.base") == [(3,)]


def test_refusals_point_at_the_column(lake: Connection) -> None:
    statement = "CREATE ICEBERG TABLE t.bad (ok int, odd name)"
    error = fails(lake, statement)
    assert error.diag.statement_position == str(statement.index("name") + 1)
    assert "text" in (error.diag.message_hint or "")


# Transactions --------------------------------------------------------------------------------------------------------


def test_a_transaction_over_tables_and_ddl_with_savepoints(
    lake: Connection, client: Connection, other: Connection
) -> None:
    client.execute("BEGIN")
    client.execute("CREATE ICEBERG TABLE t.tx (a int)")
    client.execute("INSERT INTO t.tx VALUES (1)")
    client.execute("SAVEPOINT s")
    client.execute("INSERT INTO t.tx VALUES (2)")
    client.execute("DROP TABLE t.empty")
    assert fails(client, "SELECT * FROM t.empty").sqlstate == "42P01"
    assert fails(client, "SELECT 1").sqlstate == "25P02"
    client.execute("ROLLBACK TO s")
    assert rows(client, "SELECT a FROM t.tx") == [(1,)]
    assert rows(client, "SELECT a FROM t.empty") == []
    client.execute("RELEASE s")
    assert fails(other, "SELECT * FROM t.tx").sqlstate == "42P01"
    client.execute("COMMIT")
    assert rows(other, "SELECT a FROM t.tx") == [(1,)]
    other.execute("DROP TABLE t.tx")
    assert fails(client, "SELECT * FROM t.tx").sqlstate == "42P01"


def test_a_rolled_back_transaction_leaves_nothing(lake: Connection, client: Connection) -> None:
    client.execute("BEGIN")
    client.execute("CREATE ICEBERG TABLE t.gone (a int)")
    client.execute("INSERT INTO t.base VALUES (7, 'gone')")
    assert fails(client, "SELECT 1 / 0").sqlstate == "22012"
    assert client.execute("COMMIT").statusmessage == "ROLLBACK"
    assert rows(client, "SELECT count(*) FROM t.base") == [(3,)]
    assert rows(client, "SELECT to_regclass('t.gone')") == [(None,)]


def test_a_transaction_sees_one_commit_of_the_lake(lake: Connection, client: Connection, other: Connection) -> None:
    other.execute("CREATE ICEBERG TABLE t.moving (a int)")
    client.execute("BEGIN")
    assert rows(client, "SHOW transaction_isolation") == [("repeatable read",)]
    other.execute("INSERT INTO t.moving VALUES (1)")
    assert rows(client, "SELECT count(*) FROM t.moving") == [(0,)]
    client.execute("COMMIT")
    assert rows(client, "SELECT count(*) FROM t.moving") == [(1,)]


def test_a_conflict_is_40001_and_says_what_with(lake: Connection, client: Connection, other: Connection) -> None:
    client.execute("BEGIN")
    client.execute("CREATE ICEBERG TABLE t.both (a int)")
    other.execute("CREATE ICEBERG TABLE t.both (b text)")
    error = fails(client, "COMMIT")
    assert error.sqlstate == "40001"
    assert "t.both" in (error.diag.message_detail or "")
    assert client.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert [column.name for column in client.execute("SELECT * FROM t.both").description or ()] == ["b"]


def test_appends_of_two_transactions_both_land(lake: Connection, client: Connection, other: Connection) -> None:
    other.execute("CREATE ICEBERG TABLE t.two (a int)")
    client.execute("BEGIN")
    client.execute("INSERT INTO t.two VALUES (1)")
    other.execute("INSERT INTO t.two VALUES (2)")
    client.execute("COMMIT")
    assert rows(other, "SELECT a FROM t.two ORDER BY a") == [(1,), (2,)]


def test_statements_of_one_query_are_one_transaction(lake: Connection, client: Connection) -> None:
    client.execute("CREATE ICEBERG TABLE t.multi (a int)")
    assert fails(client, "INSERT INTO t.multi VALUES (1); SELECT 1 / 0").sqlstate == "22012"
    error = fails(client, "INSERT INTO t.multi VALUES (1); SELEC 2")
    assert (error.sqlstate, error.diag.statement_position) == ("42601", "33")
    error = fails(client, "INSERT INTO t.multi VALUES (1); SELECT nope")
    assert (error.sqlstate, error.diag.statement_position) == ("42703", "40")
    assert rows(client, "SELECT count(*) FROM t.multi") == [(0,)]
    client.execute("INSERT INTO t.multi VALUES (1); INSERT INTO t.multi SELECT a + 1 FROM t.multi")
    assert rows(client, "SELECT a FROM t.multi ORDER BY a") == [(1,), (2,)]


def test_a_pipeline_is_one_transaction(lake: Connection, client: Connection) -> None:
    client.execute("CREATE ICEBERG TABLE t.pipe (a int)")
    with client.pipeline():
        before = client.execute("SELECT count(*) FROM t.pipe")
        client.execute("INSERT INTO t.pipe VALUES (%s)", (1,))
        after = client.execute("SELECT a FROM t.pipe WHERE a = %s", (1,))
    assert (before.fetchall(), after.fetchall()) == ([(0,)], [(1,)])
    with contextlib.suppress(pg.InvalidTextRepresentation), client.pipeline():
        client.execute("INSERT INTO t.pipe VALUES (2)")
        client.execute("INSERT INTO t.pipe VALUES (%s)", ("x",))
    assert rows(client, "SELECT a FROM t.pipe") == [(1,)]


def test_read_only_transactions(lake: Connection, client: Connection) -> None:
    client.execute("BEGIN READ ONLY")
    assert rows(client, "SELECT count(*) FROM t.base") == [(3,)]
    assert rows(client, "SHOW transaction_read_only") == [("on",)]
    assert fails(client, "INSERT INTO t.base VALUES (1, 'x')").sqlstate == "25006"
    client.execute("ROLLBACK")
    client.execute("BEGIN READ ONLY")
    assert fails(client, "CREATE ICEBERG TABLE t.never (a int)").sqlstate == "25006"
    client.execute("ROLLBACK")


# Branches ------------------------------------------------------------------------------------------------------------


def test_branches_and_tags(lake: Connection, client: Connection, up: Up) -> None:
    http = up.http()
    assert http.post("/api/v1/repos/lake/branches", {"name": "audit"}).status == 200
    assert http.post("/api/v1/repos/lake/tags", {"name": "v1"}).status == 200
    assert {(name, current) for name, _, _, current in rows(client, "SHOW BRANCHES")} >= {
        ("main", True),
        ("audit", False),
    }
    client.execute("USE BRANCH audit")
    client.execute("CREATE ICEBERG TABLE t.only_audit (a int)")
    with psycopg.connect(up.dsn("lake@audit")) as beside:
        assert rows(beside, "SELECT current_database(), count(*) FROM t.only_audit") == [("lake@audit", 0)]
    client.execute("BEGIN")
    assert fails(client, "USE BRANCH main").sqlstate == "25001"
    client.execute("ROLLBACK")
    client.execute("USE BRANCH main")
    assert fails(client, "SELECT * FROM t.only_audit").sqlstate == "42P01"
    assert fails(client, "USE BRANCH nope").sqlstate == "3D000"
    with psycopg.connect(up.dsn("lake@v1")) as tagged:
        assert rows(tagged, "SELECT count(*) FROM t.base") == [(3,)]
        assert fails(tagged, "INSERT INTO t.base VALUES (1, 'x')").sqlstate == "25006"
    for database in ("nope", "lake@nope"):
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            psycopg.connect(up.dsn(database))


# Clients -------------------------------------------------------------------------------------------------------------


def psql(up: Up, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        [str(psql_path()), up.dsn(), "-X", "-v", "ON_ERROR_STOP=1", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_psql(lake: Connection, up: Up) -> None:
    assert "b      | text" in psql(up, "-c", "\\d t.base")
    assert "base" in psql(up, "-c", "\\dt t.*")
    assert psql(up, "-A", "-t", "-v", "FETCH_COUNT=2", "-c", "SELECT a FROM t.base ORDER BY a").split() == [
        "1",
        "2",
        "2",
    ]
    assert "integer" in psql(up, stdin="SELECT a FROM t.base \\gdesc\n")
    assert psql(up, stdin="\\copy (SELECT b FROM t.base ORDER BY b) TO STDOUT\n").split() == ["x", "y", "y"]
    loaded = psql(
        up,
        "-A",
        "-t",
        stdin="CREATE TEMP TABLE m (a int);\n\\copy m FROM STDIN\n1\n2\n\\.\nSELECT sum(m.a * t.a) FROM m, t.base t;\n",
    )
    assert loaded.split()[-1] == "15"


def test_sqlalchemy_reflects(lake: Connection, up: Up) -> None:
    engine = sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(up.dsn()))
    inspector = sa.inspect(engine)
    assert "t" in inspector.get_schema_names()
    assert {"base", "empty"} <= set(inspector.get_table_names("t"))
    assert [(c["name"], str(c["type"])) for c in inspector.get_columns("base", "t")] == [
        ("a", "INTEGER"),
        ("b", "TEXT"),
    ]
    with engine.begin() as connection, connection.begin_nested():
        assert connection.execute(sa.text("SELECT count(*) FROM t.base WHERE a = :a"), {"a": 2}).scalar() == 2
    engine.dispose()


def test_extended_protocol(lake: Connection, client: Connection) -> None:
    for _ in range(2):
        assert client.execute("SELECT b FROM t.base WHERE a = %s", (1,), prepare=True).fetchall() == [("x",)]
    binary = client.cursor(binary=True)
    assert binary.execute("SELECT a, b FROM t.base WHERE a = 1").fetchall() == [(1, "x")]
    with pytest.raises(pg.InvalidTextRepresentation):
        client.execute("SELECT * FROM t.base WHERE a = %s::int", ("x",))
    assert [row[3] for row in client.execute("SHOW BRANCHES", prepare=True) if row[0] == "main"] == [True]


def test_a_prepared_statement_outlives_a_change_of_its_table(
    lake: Connection, client: Connection, other: Connection
) -> None:
    other.execute("CREATE ICEBERG TABLE t.shape (a int)")
    query = "SELECT count(*) FROM t.shape WHERE a > %s"
    assert client.execute(query, (0,), prepare=True).fetchall() == [(0,)]
    other.execute("DROP TABLE t.shape")
    other.execute("CREATE ICEBERG TABLE t.shape (b text, a bigint)")
    other.execute("INSERT INTO t.shape VALUES ('x', 5)")
    assert client.execute(query, (0,), prepare=True).fetchall() == [(1,)]


def test_settings_are_reported_and_kept(client: Connection) -> None:
    client.execute("SET TimeZone = 'Asia/Kolkata'")
    assert client.info.parameter_status("TimeZone") == "Asia/Kolkata"
    client.execute("BEGIN")
    client.execute("SET TimeZone = 'UTC'")
    client.execute("ROLLBACK")
    assert client.info.parameter_status("TimeZone") == "Asia/Kolkata"
    client.execute("DISCARD ALL")
    assert rows(client, "SHOW default_transaction_isolation") == [("repeatable read",)]


def test_warnings_of_transaction_commands(client: Connection) -> None:
    heard: list[str] = []
    client.add_notice_handler(lambda notice: heard.append(notice.sqlstate or ""))
    client.execute("COMMIT")
    client.execute("ROLLBACK")
    client.execute("BEGIN")
    client.execute("BEGIN")
    client.execute("ROLLBACK AND CHAIN")
    client.execute("COMMIT")
    client.execute("SET TRANSACTION READ ONLY")
    assert heard == ["25P01", "25P01", "25001", "25P01"]
    for statement in ("SAVEPOINT a", "RELEASE a", "ROLLBACK TO a", "LOCK TABLE x", "DECLARE c CURSOR FOR SELECT 1"):
        assert fails(client, statement).sqlstate == "25P01"


# When things go wrong ------------------------------------------------------------------------------------------------


def test_too_many_rows(lake: Connection, client: Connection) -> None:
    client.execute("SET icefield.max_fetched_rows = 2")
    error = fails(client, "SELECT count(*) FROM t.base")
    assert error.sqlstate == "54000"
    assert "icefield.max_fetched_rows" in (error.diag.message_hint or "")
    client.execute("SET icefield.max_fetched_rows = 'many'")
    assert fails(client, "SELECT count(*) FROM t.base").sqlstate == "22023"
    client.execute("RESET icefield.max_fetched_rows")
    assert rows(client, "SELECT count(*) FROM t.base") == [(3,)]


def test_what_iceberg_cannot_hold_is_refused(lake: Connection, client: Connection) -> None:
    client.execute("CREATE ICEBERG TABLE t.edges (d date, n numeric(5,1), at timestamp)")
    for values, sqlstate in (
        ("('infinity', NULL, NULL)", "22008"),
        ("(NULL, 'NaN', NULL)", "22003"),
        ("(NULL, NULL, '0001-01-01 BC')", "22008"),
        ("(NULL, 100000, NULL)", "22003"),
    ):
        assert fails(client, f"INSERT INTO t.edges VALUES {values}").sqlstate == sqlstate
    assert rows(client, "SELECT count(*) FROM t.edges") == [(0,)]


def test_a_table_with_other_types_is_named_in_the_refusal(lake: Connection, client: Connection, up: Up) -> None:
    fields = [{"id": 1, "name": "id", "required": False, "type": "time"}]
    body = {"name": "odd", "schema": {"type": "struct", "schema-id": 0, "fields": fields}}
    assert up.http().post("/v1/lake/namespaces/t/tables", body).status == 200
    error = fails(client, "SELECT * FROM t.odd")
    assert error.sqlstate == "0A000"
    assert "type time" in (error.diag.message_primary or "")
    assert error.diag.statement_position == "15"
    assert fails(client, "CREATE ICEBERG TABLE t.odd (a int)").sqlstate == "42P07"


def test_a_statement_can_be_cancelled(lake: Connection, client: Connection) -> None:
    timer = threading.Timer(0.5, client.cancel_safe)
    timer.start()
    begun = time.monotonic()
    assert fails(client, "SELECT pg_sleep(60) FROM t.base").sqlstate == "57014"
    assert time.monotonic() - begun < 30
    timer.join()
    assert rows(client, "SELECT count(*) FROM t.base") == [(3,)]


def test_dropping_a_schema_drops_what_is_in_it(lake: Connection, client: Connection, other: Connection) -> None:
    client.execute("CREATE SCHEMA doomed")
    client.execute("CREATE ICEBERG TABLE doomed.a (a int)")
    assert fails(client, "DROP SCHEMA doomed").sqlstate == "2BP01"
    client.execute("DROP SCHEMA doomed CASCADE")
    assert rows(other, "SELECT to_regnamespace('doomed')") == [(None,)]
    client.execute("DROP SCHEMA IF EXISTS doomed")
    client.execute("CREATE ICEBERG TABLE in_public (a int)")
    assert rows(other, "SELECT a FROM public.in_public") == []
    client.execute("CREATE ICEBERG TABLE IF NOT EXISTS in_public (b text)")
    assert fails(client, "CREATE ICEBERG TABLE in_public (b text)").sqlstate == "42P07"
    client.execute("DROP TABLE in_public")
