"""Every client writes, every client reads what the others wrote, on the branch it stands on and on no other."""

from __future__ import annotations

import subprocess
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa

from icefield.sql.brain.binaries import psql_path
from support.spark_client import SparkClient, SparkFailed
from support.up import Up

pytestmark = [pytest.mark.spark, pytest.mark.sql]


def psql(up: Up, statement: str, database: str = "lake") -> list[str]:
    done = subprocess.run(
        [str(psql_path()), up.dsn(database), "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", statement],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def everybody_sees(
    table: str, rows: list[tuple[int, str | None]], branch: str, up: Up, spark: SparkClient, duck: Any, pyiceberg: Any
) -> None:
    """Six clients, one answer."""
    database = "lake" if branch == "lake" else f"lake@{branch}"
    query = f"select id, v from sales.{table} order by id"
    assert [tuple(r) for r in spark.sql(query.replace("sales.", f"{branch}.sales."))] == rows, "Spark"
    assert duck.execute(query.replace("sales.", f"{branch}.sales.")).fetchall() == rows, "DuckDB"
    scanned = pyiceberg[branch].load_table(f"sales.{table}").scan(selected_fields=("id", "v")).to_arrow()
    assert sorted(zip(scanned["id"].to_pylist(), scanned["v"].to_pylist(), strict=True)) == rows, "PyIceberg"
    with psycopg.connect(up.dsn(database)) as connection:
        assert connection.execute(query).fetchall() == rows, "psycopg"
    engine = sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(up.dsn(database)))
    with engine.connect() as connection:
        assert [tuple(r) for r in connection.execute(sa.text(query))] == rows, "SQLAlchemy"
    engine.dispose()
    assert psql(up, query, database) == [f"{i}|{'' if v is None else v}" for i, v in rows], "psql"


@pytest.fixture(scope="module")
def shared(up: Up, spark: SparkClient) -> None:
    """Two tables that stand on both branches."""
    for version in (2, 3):
        spark.sql(
            f"create table lake.sales.shared{version} (id bigint, v string) using iceberg "
            f"tblproperties ('format-version' = '{version}')"
        )
    assert up.http().post("/api/v1/repos/lake/merge", {"from": "main", "into": "dev"}).status == 200


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("version", [2, 3])
def test_each_sees_what_the_others_wrote_on_its_branch_alone(
    version: int, up: Up, spark: SparkClient, duck: Any, pyiceberg: dict[str, Any]
) -> None:
    table = f"shared{version}"
    spark.sql(f"insert into lake.sales.{table} values (1, 'spark')")
    duck.execute(f"insert into lake.sales.{table} values (2, 'duckdb')")
    with psycopg.connect(up.dsn()) as connection:
        connection.execute(f"insert into sales.{table} values (3, 'psycopg'), (%s, %s)", (4, None))
    psql(up, f"insert into sales.{table} select 5, 'psql'")
    engine = sa.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(up.dsn()))
    with engine.begin() as connection:
        reflected = sa.Table(table, sa.MetaData(), schema="sales", autoload_with=connection)
        assert [(c.name, str(c.type)) for c in reflected.columns] == [("id", "BIGINT"), ("v", "TEXT")]
        connection.execute(sa.insert(reflected).values(id=6, v="sqlalchemy"))
    engine.dispose()
    rows: list[tuple[int, str | None]] = [
        (1, "spark"),
        (2, "duckdb"),
        (3, "psycopg"),
        (4, None),
        (5, "psql"),
        (6, "sqlalchemy"),
    ]
    if version == 2:
        pyiceberg["lake"].load_table(f"sales.{table}").append(pa.table({"id": [7], "v": ["pyiceberg"]}))
        rows.append((7, "pyiceberg"))
    everybody_sees(table, rows, "lake", up, spark, duck, pyiceberg)
    everybody_sees(table, [], "dev", up, spark, duck, pyiceberg)
    with psycopg.connect(up.dsn("lake@dev")) as connection:
        connection.execute(f"insert into sales.{table} values (100, 'on dev')")
    everybody_sees(table, [(100, "on dev")], "dev", up, spark, duck, pyiceberg)
    everybody_sees(table, rows, "lake", up, spark, duck, pyiceberg)


@pytest.mark.parametrize("version", [2, 3])
def test_spark_does_all_it_does_elsewhere(version: int, up: Up, spark: SparkClient) -> None:
    t = f"lake.sales.spark{version}"
    spark.sql(
        f"create table {t} (id bigint, v string, at timestamp) using iceberg partitioned by (bucket(4, id), days(at)) "
        f"tblproperties ('format-version' = '{version}', 'write.delete.mode' = 'merge-on-read', "
        "'write.update.mode' = 'merge-on-read', 'write.merge.mode' = 'merge-on-read')"
    )
    spark.sql(
        f"insert into {t} select id, concat('v', id), timestamp '2026-01-01 00:00:00' + make_interval(0,0,0,int(id)) "
        "from range(20)"
    )
    (first,) = spark.sql(f"select snapshot_id from {t}.snapshots")[0]
    spark.sql(
        f"create table {t}_ctas using iceberg tblproperties ('format-version' = '{version}') as select * from {t}"
    )
    assert spark.sql(f"select count(*), sum(id) from {t}_ctas") == [[20, 190]]
    spark.sql(f"update {t} set v = 'updated' where id < 3")
    spark.sql(f"delete from {t} where id between 5 and 9")
    spark.sql(
        f"merge into {t} using (select 4L id, 'merged' v union all select 50L, 'new') s "
        f"on {t.split('.')[-1]}.id = s.id "
        "when matched then update set v = s.v "
        "when not matched then insert (id, v, at) values (s.id, s.v, timestamp '2026-02-01 00:00:00')"
    )
    spark.sql(f"alter table {t} add column extra int")
    spark.sql(f"alter table {t} rename column v to name")
    spark.sql(f"insert into {t} values (60, 'wide', timestamp '2026-03-01 00:00:00', 7)")
    found = {row[0]: (row[1], row[2]) for row in spark.sql(f"select id, name, extra from {t}")}
    expected = {i: (f"v{i}", None) for i in range(20) if not 5 <= i <= 9}
    expected |= {0: ("updated", None), 1: ("updated", None), 2: ("updated", None), 4: ("merged", None)}
    expected |= {50: ("new", None), 60: ("wide", 7)}
    assert found == expected
    assert spark.sql(f"select count(*) from {t} version as of {first}") == [[20]]
    with psycopg.connect(up.dsn()) as connection:
        rows = connection.execute(f"select id, name, extra from sales.spark{version}").fetchall()
    assert {r[0]: (r[1], r[2]) for r in rows} == expected
    if version == 3:
        (ids,) = spark.sql(f"select count(distinct _row_id), count(*) from {t}")
        assert ids[0] == ids[1]
    spark.sql(f"create or replace table {t}_ctas using iceberg as select id from {t}")
    assert spark.sql(f"select count(*) from {t}_ctas") == [[len(expected)]]
    properties = dict(
        up.http().get(f"/v1/lake/namespaces/sales/tables/spark{version}_ctas").body["metadata"]["properties"]
    )
    assert not any("tx-" in value for value in properties.values())


def test_expire_and_purge_on_main_destroy_nothing_that_dev_holds(up: Up, spark: SparkClient) -> None:
    spark.sql("create table lake.sales.held (id bigint) using iceberg")
    for number in range(3):
        spark.sql(f"insert into lake.sales.held values ({number})")
    http = up.http()
    assert http.post("/api/v1/repos/lake/branches", {"name": "holds"}).status == 200
    spark.sql("delete from lake.sales.held where id = 0")
    with pytest.raises(SparkFailed, match="GC is disabled"):
        spark.sql(
            "call lake.system.expire_snapshots(table => 'sales.held', older_than => timestamp '2036-01-01 00:00:00')"
        )
    with pytest.raises(SparkFailed, match="GC is disabled"):
        spark.sql("drop table lake.sales.held purge")
    assert http.delete("/v1/lake/namespaces/sales/tables/held?purgeRequested=true").status == 204
    with psycopg.connect(up.dsn("lake@holds")) as connection:
        assert connection.execute("select id from sales.held order by id").fetchall() == [(0,), (1,), (2,)]


def test_five_ways_append_to_one_table_at_the_same_time(
    up: Up, spark: SparkClient, pyiceberg: dict[str, Any], in_threads: Any
) -> None:
    """Spark autocommit, the SDK, PyIceberg, psycopg and psql: all land, once."""
    import icefield

    spark.sql("create table lake.sales.busy (id bigint, who string) using iceberg")
    rounds = 6

    def by_spark() -> None:
        for number in range(rounds):
            spark.sql(f"insert into lake.sales.busy values ({number}, 'spark')")

    def by_pyiceberg() -> None:
        for number in range(rounds):
            pyiceberg["lake"].load_table("sales.busy").append(pa.table({"id": [number], "who": ["pyiceberg"]}))

    def by_sql() -> None:
        with psycopg.connect(up.dsn(), autocommit=True) as connection:
            for number in range(rounds):
                connection.execute("insert into sales.busy values (%s, 'sql')", (number,))

    def by_sdk() -> None:
        with icefield.connect(up.url) as lake:
            for number in range(rounds):
                with lake.transaction(message=f"round {number}"):
                    lake.spark.sql(f"insert into sales.busy values ({number}, 'sdk')")

    in_threads(by_spark, by_pyiceberg, by_sql, by_sdk)
    found = spark.sql("select who, count(*), count(distinct id) from lake.sales.busy group by who order by who")
    assert found == [[who, rounds, rounds] for who in ("pyiceberg", "sdk", "spark", "sql")]


def test_psql_describes_tables_as_it_does_at_home(up: Up, spark: SparkClient) -> None:
    spark.sql(
        "create table lake.sales.described (id bigint not null, price decimal(12,2), at timestamp_ntz) using iceberg"
    )
    listed = "\n".join(psql(up, r"\dt sales.*"))
    assert "described" in listed
    told = psql(up, r"\d sales.described")
    assert any(line.startswith("id|bigint|") and "not null" in line for line in told), told
    assert any(line.startswith("price|numeric(12,2)|") for line in told), told
    assert any(line.startswith("at|timestamp without time zone|") for line in told), told
