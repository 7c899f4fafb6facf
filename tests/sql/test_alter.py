"""ALTER TABLE and COMMENT ON over a lake with rows and over a second PostgreSQL: answers, catalogs and rows equal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from ddl_compare import BOUNDS, answer, shape

from icefield.sql.brain.cluster import BrainTemplate, Cluster
from support.up import Up

pytestmark = [pytest.mark.sql, pytest.mark.spark]
Connection = psycopg.Connection[tuple[Any, ...]]

V3 = " WITH ('format-version' = 3)"
LOOK = "SELECT * FROM d.acc ORDER BY id"
NOT_NULL = "ALTER TABLE d.acc ALTER COLUMN remark SET NOT NULL"
SCRIPT = [
    "CREATE SCHEMA d",
    """CREATE ICEBERG TABLE d.acc (id serial PRIMARY KEY, name varchar(10) NOT NULL, balance numeric(12,2) DEFAULT 0
        CONSTRAINT positive CHECK (balance >= 0), at timestamp DEFAULT '2024-02-03 04:05:06', UNIQUE (name, at))""",
    "INSERT INTO d.acc (name) VALUES ('ann'), ('bob'), ('cid')",
    # columns
    "ALTER TABLE d.acc ADD COLUMN note text",
    "ALTER TABLE d.acc ADD note text",
    "ALTER TABLE d.acc ADD COLUMN IF NOT EXISTS note int",
    "ALTER TABLE d.acc ADD COLUMN xmin int",
    "ALTER TABLE d.acc ADD COLUMN must int NOT NULL",
    """ALTER TABLE d.acc ADD COLUMN score int NOT NULL DEFAULT 7, ADD COLUMN since date DEFAULT '2020-02-29',
        ADD COLUMN f real DEFAULT 0.1, ADD u uuid DEFAULT 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11',
        ADD iv interval DEFAULT '1 day 02:00', ADD b bytea DEFAULT '\\x01ff', ADD t time DEFAULT '12:34:56.789',
        ADD ok boolean DEFAULT (NOT false), ADD c char(3) DEFAULT 'x', ADD j jsonb DEFAULT '{"a":  1}',
        ADD amount numeric(8,3) DEFAULT 1.0005, ADD z timestamptz DEFAULT '2024-01-01 12:00+02',
        ADD v varchar(3) DEFAULT 'äöü'""",
    LOOK,
    "ALTER TABLE d.acc ADD COLUMN bad int DEFAULT 1 / 0",
    "ALTER TABLE d.acc ADD COLUMN low int DEFAULT 3 CHECK (low > 5)",
    "ALTER TABLE d.acc ADD COLUMN one int DEFAULT 3 UNIQUE",
    "ALTER TABLE d.acc ADD COLUMN arr int[] DEFAULT '{1,NULL}' NOT NULL, ADD n bigserial UNIQUE CHECK (n > 0)",
    "ALTER TABLE d.acc ADD COLUMN ident bigint GENERATED ALWAYS AS IDENTITY (START 10 INCREMENT 5)",
    LOOK.replace("*", "id, arr, array_agg(n) OVER () @> '{1,2,3}', array_agg(ident) OVER () @> '{10,15,20}'"),
    "INSERT INTO d.acc (name, balance) VALUES ('dan', 4)",
    "INSERT INTO d.acc (name, ident) VALUES ('eva', 1)",
    "ALTER TABLE d.acc DROP COLUMN at, DROP COLUMN IF EXISTS nosuch",
    "ALTER TABLE d.acc DROP COLUMN nosuch",
    "ALTER TABLE d.acc RENAME COLUMN note TO remark",
    "ALTER TABLE d.acc RENAME nosuch TO x",
    "ALTER TABLE d.acc RENAME score TO balance",
    LOOK.replace("*", "id, remark, score, n, ident, balance"),
    # NOT NULL and DEFAULT
    NOT_NULL,
    "ALTER TABLE d.acc ALTER remark SET DEFAULT upper('q'), ALTER COLUMN balance DROP DEFAULT",
    "INSERT INTO d.acc (name) VALUES ('fay')",
    "UPDATE d.acc SET remark = 'r' || id WHERE remark IS NULL",
    "ALTER TABLE d.acc ALTER COLUMN remark SET NOT NULL",
    "INSERT INTO d.acc (name, remark) VALUES ('gil', NULL)",
    "ALTER TABLE d.acc ALTER COLUMN remark DROP NOT NULL, ALTER COLUMN since SET DEFAULT CURRENT_DATE",
    "ALTER TABLE d.acc ALTER COLUMN id DROP NOT NULL",
    "ALTER TABLE d.acc ALTER COLUMN id SET DEFAULT 'x'",
    # types
    """ALTER TABLE d.acc ALTER COLUMN name TYPE varchar(40), ALTER score TYPE bigint, ALTER f TYPE double precision,
        ALTER COLUMN balance SET DATA TYPE numeric(20,2), ALTER v TYPE text""",
    "INSERT INTO d.acc (name, balance, score) VALUES ('a longer name', 123456789012345678.91, 5000000000)",
    LOOK.replace("*", "id, name, balance, score, round(f::numeric, 3), v"),
    # constraints
    "ALTER TABLE d.acc ADD CONSTRAINT small CHECK (balance < 100)",
    "ALTER TABLE d.acc ADD CONSTRAINT small CHECK (balance < 1e18 AND score >= 7)",
    "ALTER TABLE d.acc ADD CONSTRAINT small CHECK (true)",
    "ALTER TABLE d.acc ADD UNIQUE (score)",
    "ALTER TABLE d.acc ADD CONSTRAINT its_name UNIQUE NULLS NOT DISTINCT (name)",
    "INSERT INTO d.acc (name) VALUES ('ann')",
    "INSERT INTO d.acc (name, score) VALUES ('hal', 1)",
    "ALTER TABLE d.acc DROP CONSTRAINT positive, RENAME CONSTRAINT small TO little",
    "ALTER TABLE d.acc DROP CONSTRAINT positive",
    "ALTER TABLE d.acc DROP CONSTRAINT positive",
    "ALTER TABLE d.acc DROP CONSTRAINT IF EXISTS positive",
    "ALTER TABLE d.acc RENAME CONSTRAINT small TO little",
    "INSERT INTO d.acc (name, balance) VALUES ('ivy', -1)",
    "ALTER TABLE d.acc ADD PRIMARY KEY (name)",
    "ALTER TABLE d.acc DROP CONSTRAINT acc_pkey, ADD CONSTRAINT named PRIMARY KEY (name, n)",
    "ALTER TABLE d.acc ADD CHECK (remark <> 'x'), ADD COLUMN more text CHECK (more <> remark)",
    "ALTER TABLE d.acc RENAME COLUMN remark TO note",
    "INSERT INTO d.acc (name, note, more) VALUES ('jim', 'same', 'same')",
    "ALTER TABLE d.acc DROP COLUMN note",
    "ALTER TABLE d.acc DROP CONSTRAINT acc_score_not_null",
    # sequences
    "ALTER TABLE d.acc ALTER COLUMN ident SET GENERATED BY DEFAULT",
    "INSERT INTO d.acc (name, ident) VALUES ('kim', 1)",
    "ALTER TABLE d.acc ALTER COLUMN id TYPE bigint",
    "ALTER TABLE d.acc ALTER COLUMN ident DROP IDENTITY, ALTER COLUMN n DROP DEFAULT",
    "ALTER TABLE d.acc ALTER COLUMN ident DROP IDENTITY",
    "INSERT INTO d.acc (name, n) VALUES ('leo', 5)",
    "ALTER TABLE d.acc ALTER COLUMN ident ADD GENERATED ALWAYS AS IDENTITY (START 1000)",
    # comments and names
    "COMMENT ON TABLE d.acc IS 'what''s \\ it'",
    "COMMENT ON COLUMN d.acc.name IS 'who'",
    "COMMENT ON COLUMN d.acc.nosuch IS 'who'",
    "ALTER TABLE d.acc RENAME TO account",
    "ALTER TABLE IF EXISTS d.acc RENAME TO account",
    "ALTER TABLE d.account ADD UNIQUE (id)",
    "CREATE ICEBERG TABLE d.acc (id serial PRIMARY KEY, name text UNIQUE NOT NULL)",
    "ALTER TABLE d.account RENAME TO acc",
    "CREATE SCHEMA d2",
    "ALTER TABLE d.account SET SCHEMA d2",
    "ALTER TABLE d2.account SET SCHEMA nosuch",
    "COMMENT ON COLUMN d2.account.name IS NULL",
    "SELECT count(*), count(DISTINCT name) FROM d2.account",
    "ALTER TABLE d.acc ADD COLUMN late text DEFAULT 'l'",
    "ALTER TABLE d.acc ADD",
    "ALTER TABLE d.nosuch ADD COLUMN a int",
]
REFUSED = [
    ("ALTER COLUMN a TYPE smallint", "smallint"),
    ("ALTER COLUMN a TYPE bigint USING a + 1", "USING"),
    ("ALTER COLUMN b TYPE varchar(3)", "character varying(3)"),
    ("ADD FOREIGN KEY (a) REFERENCES e.r (a)", "REFERENCES"),
    ("ADD CHECK (a > 0) NOT VALID", "NOT VALID"),
    ("ADD UNIQUE (a) DEFERRABLE", "DEFERRABLE"),
    ("ADD COLUMN g int GENERATED ALWAYS AS (a + 1) STORED", "GENERATED"),
    ("ALTER COLUMN a SET STATISTICS 100", "SET STATISTICS"),
    ("ALTER COLUMN i RESTART WITH 5", "RESTART"),
    ("ENABLE ROW LEVEL SECURITY", "ENABLE ROW"),
    ("OWNER TO CURRENT_USER", "OWNER TO"),
    ("REPLICA IDENTITY FULL", "REPLICA IDENTITY"),
    ("ADD COLUMN a_bucket int", "partition field"),
    ("DROP COLUMN b, DROP COLUMN d, DROP COLUMN a CASCADE", "partitioned"),
    ("SET ('icefield.unique.x' = '1')", "SQL door"),
    ("SET ('format-version' = 1)", "format version 2"),
    ("SET ('format-version' = x)", "whole number"),
]


@pytest.fixture(scope="module")
def second() -> Iterator[Connection]:
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
        yield connection


@pytest.fixture(scope="module")
def lake(up: Up) -> Iterator[Connection]:
    with psycopg.connect(up.dsn(), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA e")
        connection.execute(
            "CREATE ICEBERG TABLE e.r (a int UNIQUE, b text, d date, i int GENERATED ALWAYS AS IDENTITY)"
            " PARTITION BY (bucket(4, a))"
        )
        yield connection


@pytest.fixture
def other(up: Up) -> Iterator[Connection]:
    with psycopg.connect(up.dsn(), autocommit=True) as connection:
        yield connection


def metadata(up: Up, schema: str, name: str) -> dict[str, Any]:
    return dict(up.http().get(f"/v1/lake/namespaces/{schema}/tables/{name}").body["metadata"])


def current(told: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in told["schemas"] if one["schema-id"] == told["current-schema-id"])


@pytest.mark.parametrize("version", [3, 2])
def test_a_table_is_altered_as_postgresql_does_it(
    lake: Connection, second: Connection, other: Connection, up: Up, version: int
) -> None:
    different: list[Any] = []
    failed = 0

    def compare(after: str, who: str, connection: Connection, **more: str) -> None:
        shown, wanted = shape(connection, "d", "d2", **more), shape(second, "d", "d2", **more)
        for part, rows in wanted.items():
            if shown[part] != rows:
                odd = [row for row in shown[part] if row not in rows]
                different.append((after, who, part, odd, [row for row in rows if row not in shown[part]]))

    # In format 2 what differs is how new columns get their values: that comes first in the script.
    script = SCRIPT if version == 3 else [*SCRIPT[: SCRIPT.index(NOT_NULL)], "CREATE SCHEMA d2"]
    for statement in script:
        expected = answer(second, statement.replace("ICEBERG ", "", 1))
        found = answer(lake, statement + V3 if version == 3 and "ICEBERG" in statement else statement)
        failed += len(expected) == 4
        if found != expected:
            different.append((statement, found, expected))
        if statement.startswith(("ALTER", "COMMENT", "CREATE")) and len(expected) == 2:
            compare(statement, "same", lake)
            compare(statement, "other", other)
    with psycopg.connect(up.dsn(), autocommit=True) as third:
        compare("", "new", third, bounds=BOUNDS)
    for connection in (lake, second):
        connection.execute("DROP SCHEMA d, d2 CASCADE")
    assert different == []
    assert failed == (30 if version == 3 else 10)


@pytest.mark.parametrize(("change", "what"), REFUSED)
def test_what_a_lake_table_cannot_do_is_refused_and_nothing_happens(
    lake: Connection, up: Up, change: str, what: str
) -> None:
    before = metadata(up, "e", "r")
    with pytest.raises(psycopg.Error) as caught:
        lake.execute(f"ALTER TABLE e.r {change}".encode())
    assert caught.value.sqlstate in ("0A000", "22023", "42701", "42P16")
    assert what in str(caught.value)
    assert metadata(up, "e", "r") == before


def test_a_constant_default_of_a_new_column_rewrites_nothing_in_format_3(lake: Connection, up: Up) -> None:
    lake.execute(f"CREATE ICEBERG TABLE e.third (a int){V3}".encode())
    lake.execute("INSERT INTO e.third VALUES (1), (2)")
    before = metadata(up, "e", "third")
    lake.execute("ALTER TABLE e.third ADD COLUMN b int DEFAULT 7, ADD COLUMN c timestamptz NOT NULL DEFAULT now()")
    after = metadata(up, "e", "third")
    assert after["current-snapshot-id"] == before["current-snapshot-id"]
    b, c = current(after)["fields"][1:]
    assert (b["initial-default"], b["write-default"], b["required"]) == (7, 7, False)
    assert c["required"]
    assert "write-default" not in c
    lake.execute("ALTER TABLE e.third ALTER COLUMN b SET DEFAULT 8")
    lake.execute("INSERT INTO e.third (a) VALUES (3)")
    assert lake.execute("SELECT a, b, count(c) OVER () FROM e.third ORDER BY a").fetchall() == [
        (1, 7, 3),
        (2, 7, 3),
        (3, 8, 3),
    ]
    b = current(metadata(up, "e", "third"))["fields"][1]
    assert (b["initial-default"], b["write-default"]) == (7, 8)
    lake.execute("ALTER TABLE e.third ALTER COLUMN b DROP DEFAULT")
    b = current(metadata(up, "e", "third"))["fields"][1]
    assert (b["initial-default"], b.get("write-default")) == (7, None)


def test_properties_and_the_format_version(lake: Connection, other: Connection, up: Up) -> None:
    lake.execute("CREATE ICEBERG TABLE e.props (a int DEFAULT 5, b text)")
    lake.execute("""ALTER TABLE e.props SET ("write.delete.mode" = 'merge-on-read', x.y = z, 'comment' = 'it''s')""")
    told = metadata(up, "e", "props")
    assert {k: told["properties"][k] for k in ("write.delete.mode", "x.y", "comment")} == {
        "write.delete.mode": "merge-on-read",
        "x.y": "z",
        "comment": "it's",
    }
    for connection in (lake, other):
        assert connection.execute("SELECT obj_description('e.props'::regclass)").fetchone() == ("it's",)
    lake.execute("ALTER TABLE e.props RESET ('x.y', comment, nosuch)")
    assert not {"x.y", "comment"} & metadata(up, "e", "props")["properties"].keys()
    assert other.execute("SELECT obj_description('e.props'::regclass)").fetchone() == (None,)
    lake.execute("ALTER TABLE e.props SET ('format-version' = '3')")
    told = metadata(up, "e", "props")
    assert told["format-version"] == 3
    assert current(told)["fields"][0]["write-default"] == 5
    lake.execute("ALTER TABLE e.props SET ('format-version' = 3)")
    lake.execute("CREATE TEMP TABLE local (a int)")
    lake.execute("ALTER TABLE local SET (fillfactor = 70)")
    assert lake.execute("ALTER TABLE IF EXISTS nosuch SET (fillfactor = 70)").statusmessage == "ALTER TABLE"
    with lake.transaction(force_rollback=True):
        lake.execute("SET TRANSACTION READ ONLY")
        with pytest.raises(psycopg.Error) as caught:
            lake.execute("ALTER TABLE e.props SET (a = b)")
        assert caught.value.sqlstate == "25006"


def test_what_is_rolled_back_did_not_happen(lake: Connection, other: Connection, up: Up) -> None:
    lake.execute("CREATE ICEBERG TABLE e.undone (a int CONSTRAINT plus CHECK (a > 0))")
    before = shape(other, "e")
    told = metadata(up, "e", "undone")
    with lake.transaction(force_rollback=True):
        lake.execute("ALTER TABLE e.undone ADD COLUMN b serial, DROP CONSTRAINT plus")
        lake.execute("INSERT INTO e.undone VALUES (-1)")
        lake.execute("SAVEPOINT s")
        lake.execute("ALTER TABLE e.undone RENAME TO renamed")
        lake.execute("ALTER TABLE e.renamed DROP COLUMN b, ALTER COLUMN a SET DEFAULT 3")
        assert lake.execute("SELECT * FROM e.renamed").fetchall() == [(-1,)]
        assert shape(other, "e") == before
        lake.execute("ROLLBACK TO s")
        assert lake.execute("SELECT * FROM e.undone").fetchall() == [(-1, 1)]
    assert shape(lake, "e") == before
    assert metadata(up, "e", "undone") == told


def test_a_promise_about_rows_lands_only_over_the_rows_that_were_looked_at(lake: Connection, other: Connection) -> None:
    lake.execute("CREATE ICEBERG TABLE e.raced (a int)")
    lake.execute("INSERT INTO e.raced VALUES (1)")
    lake.execute("BEGIN")
    lake.execute("ALTER TABLE e.raced ALTER COLUMN a SET NOT NULL, ADD UNIQUE (a)")
    other.execute("INSERT INTO e.raced VALUES (NULL), (1)")
    with pytest.raises(psycopg.errors.SerializationFailure):
        lake.execute("COMMIT")
    assert lake.execute("SELECT count(*) FROM e.raced").fetchone() == (3,)
    with lake.transaction():
        lake.execute("ALTER TABLE e.raced ADD COLUMN b int")
        other.execute("INSERT INTO e.raced VALUES (2)")
    assert other.execute("SELECT a, b FROM e.raced WHERE a = 2").fetchall() == [(2, None)]


def test_what_another_engine_broke_can_be_read_and_repaired(lake: Connection, other: Connection, up: Up) -> None:
    lake.execute(
        "CREATE ICEBERG TABLE e.broken (a int, b int, c int DEFAULT 4, d text, UNIQUE (a, b),"
        " CONSTRAINT sums CHECK (a + b > 0))"
    )
    lake.execute("INSERT INTO e.broken VALUES (1, 2)")
    told = metadata(up, "e", "broken")
    schema = current(told)
    schema = {**schema, "fields": [one for one in schema["fields"] if one["name"] != "b"]}
    assert (
        up.http()
        .post(
            "/v1/lake/namespaces/e/tables/broken",
            {
                "requirements": [{"type": "assert-table-uuid", "uuid": told["table-uuid"]}],
                "updates": [
                    {"action": "add-schema", "schema": schema, "last-column-id": told["last-column-id"]},
                    {"action": "set-current-schema", "schema-id": -1},
                    {
                        "action": "set-properties",
                        "updates": {"icefield.default.3": "nosuch(1)", "icefield.default.4": "1;"},
                    },
                ],
            },
        )
        .status
        == 200
    )
    for connection in (lake, other):
        assert connection.execute("SELECT * FROM e.broken").fetchall() == [(1, 4, None)]
        with pytest.raises(psycopg.Error) as caught:
            connection.execute("INSERT INTO e.broken VALUES (2)")
        assert caught.value.sqlstate == "0A000"
        assert "broken_a_b_key" in str(caught.value) or "sums" in str(caught.value) or "default" in str(caught.value)
    lake.execute("ALTER TABLE e.broken RENAME CONSTRAINT broken_a_b_key TO old_key")
    lake.execute("ALTER TABLE e.broken DROP CONSTRAINT old_key, ALTER COLUMN c DROP DEFAULT")
    lake.execute("ALTER TABLE e.broken ALTER COLUMN d SET DEFAULT 'd'")
    with pytest.raises(psycopg.Error, match="sums"):
        other.execute("INSERT INTO e.broken VALUES (2)")
    other.execute("ALTER TABLE e.broken DROP CONSTRAINT sums")
    for connection in (lake, other):
        connection.execute("INSERT INTO e.broken VALUES (2)")
    assert lake.execute("SELECT * FROM e.broken ORDER BY a").fetchall() == [
        (1, 4, None),
        (2, None, "d"),
        (2, None, "d"),
    ]
    assert not [name for name in metadata(up, "e", "broken")["properties"] if name.startswith("icefield.unique")]


def test_what_hangs_on_a_table_stays_when_it_is_altered(lake: Connection, other: Connection) -> None:
    lake.execute("CREATE ICEBERG TABLE e.hung (a int, b text)")
    for connection in (lake, other):
        connection.execute("CREATE TEMP VIEW hanging AS SELECT a FROM e.hung")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist):
        lake.execute("ALTER TABLE e.hung DROP COLUMN a")
    lake.execute("ALTER TABLE e.hung ADD COLUMN c int DEFAULT 1, ADD CHECK (a > 0)", prepare=True)
    lake.execute("ALTER TABLE e.hung RENAME b TO bb")
    lake.execute("INSERT INTO e.hung VALUES (1)")
    assert lake.execute("SELECT * FROM hanging").fetchall() == [(1,)]
    # Elsewhere the shadow is made anew when columns change, and stays when only rules and defaults do.
    other.execute("SELECT 1 FROM e.hung")
    other.execute("CREATE TEMP VIEW again AS SELECT a, c FROM e.hung")
    lake.execute("ALTER TABLE e.hung ADD UNIQUE (a), ALTER COLUMN c DROP DEFAULT")
    assert other.execute("SELECT * FROM again").fetchall() == [(1, 1)]
    lake.execute("DROP VIEW hanging")
    lake.execute("ALTER TABLE e.hung DROP COLUMN a")
    assert other.execute("SELECT * FROM e.hung").fetchall() == [(None, 1)]
