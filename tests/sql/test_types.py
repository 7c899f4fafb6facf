"""Every type is the same seen from PostgreSQL, from Iceberg and from what is remembered; widening tells the truth."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from icefield.pgwire.brain_link import BrainLink
from icefield.sql import rows, types
from icefield.sql.brain.pool import Brain
from icefield.sql.shadows import Column

pytestmark = pytest.mark.sql

SCALARS = {
    "boolean": ("boolean", None),
    "smallint": ("int", "smallint"),
    "integer": ("int", None),
    "bigint": ("long", None),
    "real": ("float", None),
    "double precision": ("double", None),
    "numeric(12,2)": ("decimal(12, 2)", None),
    "numeric(38,38)": ("decimal(38, 38)", None),
    "numeric(5)": ("decimal(5, 0)", None),
    "text": ("string", None),
    "character varying": ("string", "character varying"),
    "character varying(20)": ("string", "character varying(20)"),
    "character varying(10485760)": ("string", "character varying(10485760)"),
    "character(1)": ("string", "character(1)"),
    "character(7)": ("string", "character(7)"),
    "bytea": ("binary", None),
    "uuid": ("string", "uuid"),
    "json": ("string", "json"),
    "jsonb": ("string", "jsonb"),
    "date": ("date", None),
    "time": ("string", "time without time zone"),
    "time(0)": ("string", "time(0) without time zone"),
    "timestamp": ("timestamp", None),
    "timestamp(3)": ("timestamp", "timestamp(3) without time zone"),
    "timestamptz": ("timestamptz", None),
    "timestamptz(0)": ("timestamptz", "timestamp(0) with time zone"),
    "interval": ("string", "interval"),
    "interval(3)": ("string", "interval(3)"),
    "interval(6)": ("string", "interval"),
    "interval second(3)": ("string", "interval second(3)"),
    "interval year to month": ("string", "interval year to month"),
    "interval day to second(0)": ("string", "interval day to second(0)"),
}
MANY = {**SCALARS, **{f"{sql}[]": (iceberg, told and f"{told}[]") for sql, (iceberg, told) in SCALARS.items()}}


@pytest.fixture(scope="module")
def link(brain: Brain) -> BrainLink:
    return brain.admin


async def seen(link: BrainLink, sql_types: list[str]) -> list[tuple[int, int, str]]:
    """What PostgreSQL makes of the types' names: OID, typmod, format_type's text."""
    columns = ", ".join(f"c{at} {sql}" for at, sql in enumerate(sql_types))
    answer = await link.query(
        f"DROP TABLE IF EXISTS pg_temp.seen; CREATE TEMP TABLE seen ({columns});"
        " SELECT atttypid, atttypmod, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 'pg_temp.seen'::regclass AND attnum > 0 ORDER BY attnum"
    )
    return [(int(oid or 0), int(typmod or 0), shown or "") for oid, typmod, shown in answer.rows]


def ids() -> Iterator[int]:
    return itertools.count(7)


def test_a_type_is_the_same_from_every_side(link: BrainLink, loop: Any) -> None:
    found = {
        sql: types.from_postgres(oid, typmod, shown)
        for sql, (oid, typmod, shown) in zip(MANY, loop(seen(link, list(MANY))), strict=True)
    }
    for sql, kind in found.items():
        iceberg, remembered = MANY[sql]
        assert kind.remembered == remembered, sql
        fresh = ids()
        written = json.loads(json.dumps(kind.iceberg_json(lambda fresh=fresh: next(fresh))))
        if sql.endswith("[]"):
            expected: Any = {"type": "list", "element-id": 7, "element": iceberg, "element-required": False}
        else:
            expected = iceberg
        assert written == expected, sql
        assert types.from_iceberg(written, remembered) == kind
        # what is remembered twice over does no harm
        assert types.from_iceberg(written, kind.shown) == kind


def test_its_sql_makes_the_same_column_again(link: BrainLink, loop: Any) -> None:
    before = loop(seen(link, list(MANY)))
    kinds = [types.from_postgres(*one) for one in before]
    after = loop(seen(link, [kind.sql for kind in kinds]))
    for (oid, typmod, shown), kind, again in zip(before, kinds, after, strict=True):
        assert again == (kind.oid, kind.typmod, kind.shown)
        assert oid == kind.oid
        if "(6)" not in shown:  # microseconds are all that there are
            assert (typmod, shown) == (kind.typmod, kind.shown)


@pytest.mark.parametrize(
    ("iceberg", "remembered", "sql"),
    [
        ("long", "smallint", "pg_catalog.int8"),  # another engine widened the column
        ("double", "real", "pg_catalog.float8"),
        ("string", "integer", "pg_catalog.text"),
        ("string", "numeric(5,2)", "pg_catalog.text"),
        ("string", "circle", "pg_catalog.text"),
        ("string", "uuid[]", "pg_catalog.text"),
        ("string", "", "pg_catalog.text"),
        ("string", "character varying(0)", "pg_catalog.text"),
        ("string", "character varying(99999999)", "pg_catalog.text"),
        ("string", "character varying(,)", "pg_catalog.text"),
        ("string", "character varying(5,2)", "pg_catalog.text"),
        ("string", "time(9) without time zone", "pg_catalog.text"),
        ("string", "interval fortnight", "pg_catalog.text"),
        ("string", "uuid; DROP TABLE x", "pg_catalog.text"),
        ("uuid", "uuid", "pg_catalog.uuid"),
        ("decimal(9, 2)", "numeric(5,2)", "pg_catalog.numeric(9,2)"),
        ({"type": "list", "element-id": 3, "element": "int"}, "smallint", "pg_catalog.int4[]"),
        ({"type": "list", "element-id": 3, "element": "long"}, "smallint[]", "pg_catalog.int8[]"),
        ({"type": "list", "element-id": 3, "element": "string"}, "uuid[][]", "pg_catalog.text[]"),
    ],
)
def test_iceberg_wins_over_what_is_remembered(iceberg: Any, remembered: str, sql: str) -> None:
    assert types.from_iceberg(iceberg, remembered).sql == sql


@pytest.mark.parametrize(
    ("iceberg", "sql", "remembered"),
    [
        ("float", "pg_catalog.float4", None),
        ("binary", "pg_catalog.bytea", None),
        ("fixed[16]", "pg_catalog.bytea", None),
        ("uuid", "pg_catalog.uuid", None),
        ({"type": "list", "element-id": 3, "element": "uuid", "element-required": True}, "pg_catalog.uuid[]", None),
        ({"type": "list", "element-id": 3, "element": "decimal(9,3)"}, "pg_catalog.numeric(9,3)[]", None),
    ],
)
def test_types_of_other_engines_are_known(iceberg: Any, sql: str, remembered: str | None) -> None:
    kind = types.from_iceberg(iceberg)
    assert kind.sql == sql
    assert kind.remembered == remembered
    again = kind.iceberg_json(lambda: 3)
    assert types.from_iceberg(again) == kind


@pytest.mark.parametrize(
    ("iceberg", "reason"),
    [
        ("time", "Spark"),
        ("timestamp_ns", "microseconds"),
        ("timestamptz_ns", "microseconds"),
        ("variant", "variant"),
        ("unknown", "unknown"),
        ("geometry(srid:1)", "geometry"),
        ("decimal(39, 1)", "decimal"),
        ("decimal(0, 0)", "decimal"),
        ("decimal(3, 4)", "decimal"),
        ({"type": "list"}, "list"),
        ({"type": "list", "element": {"type": "list", "element": "int"}}, "list of list"),
        ({"type": "list", "element": {"type": "struct", "fields": []}}, "list of struct"),
        ({"type": "list", "element": "time"}, "time"),
        ({"type": "map"}, "map"),
        ({"type": "struct", "fields": []}, "struct"),
        (7, "nested"),
    ],
)
def test_other_iceberg_types_are_refused(iceberg: Any, reason: str) -> None:
    with pytest.raises(types.Unsupported) as caught:
        types.from_iceberg(iceberg, "text")
    assert reason in caught.value.reason
    assert caught.value.hint


def test_other_postgresql_types_are_refused_with_a_hint(link: BrainLink, loop: Any) -> None:
    odd = [
        *("numeric", "numeric(39,2)", "numeric(2,3)", "numeric(5,-2)", "bpchar", '"char"', "name", "oid", "money"),
        *("timetz", "bit(3)", "varbit", "inet", "xml", "int4range", "tsvector", "point", "jsonpath", "regclass"),
        *("numeric[]", "numeric(40,1)[]", "bpchar[]", "name[]", "int4range[]", "int4multirange"),
    ]
    for sql, (oid, typmod, shown) in zip(odd, loop(seen(link, odd)), strict=True):
        with pytest.raises(types.Unsupported) as caught:
            types.from_postgres(oid, typmod, shown)
        assert caught.value.hint, sql


# Widening -------------------------------------------------------------------------------------------------------------

SAMPLES = {
    "boolean": ["t"],
    "smallint": ["-32768", "32767", "0"],
    "integer": ["-2147483648", "7"],
    "bigint": ["9223372036854775807"],
    "real": ["1.1", "NaN", "-0", "1e-45", "Infinity"],
    "double precision": ["1.1"],
    "numeric(5,2)": ["999.99", "-1.50"],
    "numeric(9,2)": ["1234567.80"],
    "numeric(9,3)": ["123456.789"],
    "text": ["a  ", ""],
    "varchar": ["a  ", ""],
    "varchar(3)": ["a  ", "äöü"],
    "varchar(5)": ["abcd "],
    "char(3)": ["a", "äöü", ""],
    "char(5)": ["a", "abc  "],
    "json": ['{"b": 1,  "a": 1e2, "b": "\\u00e4"}'],
    "jsonb": ['{"b": 1,  "a": 1e2}'],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "bytea": ["\\x00ff"],
    "date": ["2024-02-29"],
    "time": ["24:00", "12:00:00.123456"],
    "time(3)": ["12:00:00.123"],
    "timestamp": ["2024-02-29 12:00:00.123456"],
    "timestamp(3)": ["2024-02-29 12:00:00.123"],
    "timestamptz": ["2024-02-29 12:00:00.123456+00"],
    "interval": ["1 year 2 days 3.456789 s"],
    "interval(3)": ["1 year 2 days 3.456 s"],
    "interval second(3)": ["3.456 s"],
    "interval year to month": ["14 mons"],
    "interval year": ["1 year"],
    "integer[]": ["{1,NULL}"],
    "bigint[]": ["{1,NULL}"],
    "varchar(3)[]": ["{a  ,NULL}"],
    "text[]": ["{a,NULL}"],
}
WIDER = {
    *(("smallint", "integer"), ("smallint", "bigint"), ("integer", "bigint"), ("real", "double precision")),
    *(("numeric(5,2)", "numeric(9,2)"), ("varchar(3)", "varchar(5)"), ("varchar(3)", "varchar"), ("varchar", "text")),
    *(("varchar(3)", "text"), ("varchar(5)", "varchar"), ("varchar(5)", "text"), ("char(3)", "char(5)")),
    *(("char(3)", "varchar(3)"), ("char(3)", "varchar(5)"), ("char(3)", "varchar"), ("char(3)", "text")),
    *(("char(5)", "varchar(5)"), ("char(5)", "varchar"), ("char(5)", "text"), ("text", "varchar"), ("json", "text")),
    *(("json", "varchar"), ("time(3)", "time"), ("timestamp(3)", "timestamp"), ("interval(3)", "interval")),
    *(("interval second(3)", "interval"), ("interval year to month", "interval"), ("interval year", "interval")),
    *(("integer[]", "bigint[]"), ("varchar(3)[]", "text[]")),
}


def test_widening_is_what_a_cast_would_have_made(link: BrainLink, loop: Any) -> None:
    async def through(old: str, new: str, before: types.ColumnType, after: types.ColumnType) -> None:
        values = ", ".join(f"('{one}')" for one in SAMPLES[old])
        await link.query(
            f"DROP TABLE IF EXISTS pg_temp.o, pg_temp.w; CREATE TEMP TABLE o (v {old}); INSERT INTO o VALUES {values};"
            f" CREATE TEMP TABLE w (v {new})"
        )
        columns = [Column("v", before, False)]
        data = b"".join([part async for part in link.copy_out(rows.export_query(columns, "pg_temp.o"))])
        stored = rows.import_csv(data, columns).column("v").cast(after.arrow())  # what Iceberg's readers do
        encoder = rows.CopyEncoder("w", [Column("v", after, False)])
        batch = pa.RecordBatch.from_arrays([stored.combine_chunks()], ["v"])
        parts = [encoder.header(), encoder.batch(batch), encoder.finish()]
        await link.copy_in("COPY pg_temp.w FROM STDIN (FORMAT binary)", parts)
        cast = await link.query(f"SELECT v::{new}::text, (v::{new})::{new}::text FROM pg_temp.o ORDER BY ctid")
        there = await link.query("SELECT v::text, v::text FROM pg_temp.w ORDER BY ctid")
        assert there.rows == cast.rows, (old, new)

    kinds = [types.from_postgres(*one) for one in loop(seen(link, list(SAMPLES)))]
    found = {
        (old, new)
        for (old, before), (new, after) in itertools.permutations(zip(SAMPLES, kinds, strict=True), 2)
        if types.widens_to(before, after)
    }
    by_name = dict(zip(SAMPLES, kinds, strict=True))
    for old, new in sorted(found):
        loop(through(old, new, by_name[old], by_name[new]))
    assert found == WIDER
    assert all(types.widens_to(kind, kind) for kind in kinds)
    one = {"type": "list", "element-id": 3, "element": "int"}
    assert not types.widens_to(types.from_iceberg(one), types.from_iceberg({**one, "element-required": True}))
    assert not types.widens_to(types.from_iceberg("fixed[3]"), types.from_iceberg("binary"))
    assert not types.widens_to(types.from_iceberg("string", "uuid"), types.from_iceberg("uuid"))
