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
SCRIPT = [
    "CREATE SCHEMA d",
    "CREATE ICEBERG TABLE d.acc (id serial PRIMARY KEY, name varchar(10) NOT NULL, balance numeric(12,2) DEFAULT 0"
    " CONSTRAINT positive CHECK (balance >= 0), at timestamp DEFAULT '2024-02-03 04:05:06', UNIQUE (name, at))",
    "INSERT INTO d.acc (name) VALUES ('ann'), ('bob'), ('cid')",
    # columns
    "ALTER TABLE d.acc ADD COLUMN note text",
    "ALTER TABLE d.acc ADD note text",
    "ALTER TABLE d.acc ADD COLUMN IF NOT EXISTS note int",
    "ALTER TABLE d.acc ADD COLUMN xmin int",
    "ALTER TABLE d.acc ADD COLUMN must int NOT NULL",
    "ALTER TABLE d.acc ADD COLUMN score int NOT NULL DEFAULT 7, ADD COLUMN since date DEFAULT '2020-02-29',"
    " ADD COLUMN f real DEFAULT 0.1, ADD u uuid DEFAULT 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11',"
    " ADD iv interval DEFAULT '1 day 02:00', ADD b bytea DEFAULT '\\x01ff', ADD t time DEFAULT '12:34:56.789',"
    " ADD ok boolean DEFAULT (NOT false), ADD c char(3) DEFAULT 'x', ADD j jsonb DEFAULT '{\"a\":  1}',"
    " ADD amount numeric(8,3) DEFAULT 1.0005, ADD z timestamptz DEFAULT '2024-01-01 12:00+02', ADD v varchar(3) DEFAULT 'äöü'",
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
    "ALTER TABLE d.acc ALTER COLUMN remark SET NOT NULL",
    "ALTER TABLE d.acc ALTER remark SET DEFAULT upper('q'), ALTER COLUMN balance DROP DEFAULT",
    "INSERT INTO d.acc (name) VALUES ('fay')",
    "UPDATE d.acc SET remark = 'r' || id WHERE remark IS NULL",
    "ALTER TABLE d.acc ALTER COLUMN remark SET NOT NULL",
    "INSERT INTO d.acc (name, remark) VALUES ('gil', NULL)",
    "ALTER TABLE d.acc ALTER COLUMN remark DROP NOT NULL, ALTER COLUMN since SET DEFAULT CURRENT_DATE",
    "ALTER TABLE d.acc ALTER COLUMN id DROP NOT NULL",
    "ALTER TABLE d.acc ALTER COLUMN id SET DEFAULT 'x'",
    # types
    "ALTER TABLE d.acc ALTER COLUMN name TYPE varchar(40), ALTER score TYPE bigint, ALTER f TYPE double precision,"
    " ALTER COLUMN balance SET DATA TYPE numeric(20,2), ALTER v TYPE text",
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
    for statement in SCRIPT:
        plain = statement.replace("ICEBERG ", "", 1)
        expected = answer(second, plain)
        if plain != statement and version == 3 and "TABLE d.acc (" in statement:
            statement += V3
        found = answer(lake, statement)
        failed += len(expected) == 4
        if found != expected:
            different.append((statement, found, expected))
        if statement.startswith(("ALTER", "COMMENT", "CREATE")) and len(expected) == 2:
            wanted = shape(second, "d", "d2")
            for who, connection in (("same", lake), ("other", other)):
                shown = shape(connection, "d", "d2")
                for part, rows in wanted.items():
                    if shown[part] != rows:
                        different.append(
                            (
                                statement,
                                who,
                                [r for r in shown[part] if r not in rows],
                                [r for r in rows if r not in shown[part]],
                            )
                        )
    with psycopg.connect(up.dsn(), autocommit=True) as third:
        if shape(third, "d", "d2", bounds=BOUNDS) != shape(second, "d", "d2", bounds=BOUNDS):
            different.append("a new session sees something else")
    for connection in (lake, second):
        connection.execute("DROP SCHEMA d, d2 CASCADE")
    assert different == []
    assert 25 <= failed <= 40


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
