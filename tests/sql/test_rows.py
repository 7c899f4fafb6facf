"""Rows through the brain and back are the same bits; what one side cannot hold is refused, not bent."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefield.pgwire.brain_link import BrainLink
from icefield.pgwire.errors import PgError
from icefield.sql import rows, types
from icefield.sql.brain.pool import Brain
from icefield.sql.shadows import Column

pytestmark = pytest.mark.sql

COLUMNS = tuple(
    Column(name, types.from_iceberg(iceberg), required=False)
    for name, iceberg in {
        "b": "boolean",
        "i": "int",
        "l": "long",
        "d": "double",
        "n": "decimal(38, 10)",
        "m": "decimal(5, 0)",
        "t": "string",
        "day": "date",
        "at": "timestamp",
        "tz": "timestamptz",
        'we"ird ä': "string",
    }.items()
)
SCHEMA = rows.arrow_schema(COLUMNS)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["", "\\N", "NULL", '"', '""', "\r\n", ",", "\\.", "\\", "é", "t", " "]
)
FIRST, LAST = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001
VALUES = {
    "b": st.booleans(),
    "i": st.integers(-(2**31), 2**31 - 1),
    "l": st.integers(-(2**63), 2**63 - 1),
    "d": st.floats(width=64),
    "n": st.decimals(allow_nan=False, allow_infinity=False, places=10, min_value=-(10**27), max_value=10**27),
    "m": st.integers(-99999, 99999).map(Decimal),
    "t": TEXT,
    "day": st.dates(),
    "at": st.datetimes(FIRST, LAST),
    "tz": st.datetimes(FIRST, LAST).map(lambda at: at.replace(tzinfo=dt.UTC)),
    'we"ird ä': TEXT,
}
ROW = st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()})


@pytest.fixture(scope="module")
def link(brain: Brain, loop: Any) -> BrainLink:
    declared = ", ".join(f"{rows.quote_ident(c.name)} {c.type.sql}" for c in COLUMNS)
    loop(brain.admin.query(f"CREATE TEMP TABLE shadow ({declared})"))
    return brain.admin


async def through(link: BrainLink, batch: pa.RecordBatch) -> pa.Table:
    encoder = rows.CopyEncoder("shadow", COLUMNS)
    await link.query("TRUNCATE shadow")
    data = [encoder.header(), encoder.batch(batch), encoder.finish()]
    await link.copy_in("COPY shadow FROM STDIN (FORMAT binary, ENCODING 'UTF8')", data)
    query = rows.export_query(COLUMNS, "ONLY shadow")
    return rows.import_csv(b"".join([part async for part in link.copy_out(query)]), COLUMNS)


def bits(table: pa.Table | pa.RecordBatch) -> list[list[Any]]:
    """Floats by their bytes: NaN is NaN, and -0 is not 0."""
    found = []
    for name, column in zip(table.schema.names, table.columns, strict=True):
        values = column.to_pylist()
        found.append([name, *(v.hex() if isinstance(v, float) else v for v in values)])
    return found


@settings(max_examples=25, deadline=None)
@given(st.lists(ROW, max_size=8))
def test_there_and_back_is_the_same(link: BrainLink, loop: Any, values: list[dict[str, Any]]) -> None:
    batch = pa.RecordBatch.from_pylist(values, schema=SCHEMA)
    back = loop(through(link, batch))
    assert back.schema == SCHEMA
    assert bits(back) == bits(batch)


def test_special_floats_keep_their_meaning_in_the_brain(link: BrainLink, loop: Any) -> None:
    values = [float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, 1.7976931348623157e308]
    batch = pa.RecordBatch.from_pylist([{"d": value} for value in values], schema=SCHEMA)
    loop(through(link, batch))
    assert [row[0] for row in loop(link.query("SELECT d FROM shadow ORDER BY ctid")).rows] == [
        "NaN",
        "Infinity",
        "-Infinity",
        "-0",
        "5e-324",
        "1.7976931348623157e+308",
    ]


@pytest.mark.parametrize(
    ("column", "number", "kind"),
    [
        ("day", 2**31 - 1, pa.int32()),
        ("day", -(2**31), pa.int32()),
        ("at", -(2**63), pa.int64()),
        ("tz", -(2**62), pa.int64()),
    ],
)
def test_what_postgresql_cannot_hold_is_refused(column: str, number: int, kind: pa.DataType) -> None:
    field = SCHEMA.field(column)
    one = tuple(c for c in COLUMNS if c.name == column)
    batch = pa.RecordBatch.from_arrays([pa.array([number], kind).view(field.type)], schema=pa.schema([field]))
    with pytest.raises(PgError) as caught:
        rows.CopyEncoder("s.t", one).batch(batch)
    assert caught.value.sqlstate == "22008"
    assert column in caught.value.message


def refusals(link: BrainLink, loop: Any, literal: str, column: str) -> Sequence[rows.Check]:
    quoted = rows.quote_ident(column)
    loop(link.query(f"TRUNCATE shadow; INSERT INTO shadow ({quoted}) VALUES ({literal}), (NULL)"))
    answer = loop(link.query(rows.check_query(COLUMNS, "ONLY shadow") or "")).rows[0]
    return [c for c, bad in zip(rows.checked(COLUMNS), answer, strict=True) if bad == "t"]


@pytest.mark.parametrize(
    ("column", "literal"),
    [
        ("n", "'NaN'"),
        ("day", "'infinity'"),
        ("day", "'0001-12-31 BC'"),
        ("day", "'10000-01-01'"),
        ("at", "'-infinity'"),
        ("at", "'0044-03-15 12:00 BC'"),
        ("tz", "'infinity'"),
        ("tz", "'294276-12-31 23:59:59+00'"),
    ],
)
def test_what_iceberg_cannot_hold_is_found(link: BrainLink, loop: Any, column: str, literal: str) -> None:
    found = refusals(link, loop, literal, column)
    assert [c.name for c in found] == [column]
    assert rows.refuse(found[0], "s.t").sqlstate in ("22003", "22008")


@pytest.mark.parametrize(
    ("column", "literal"),
    [("n", "0"), ("day", "'0001-01-01'"), ("day", "'9999-12-31'"), ("tz", "'9999-12-31 23:59:59.999999+00'")],
)
def test_what_iceberg_can_hold_is_let_through(link: BrainLink, loop: Any, column: str, literal: str) -> None:
    assert refusals(link, loop, literal, column) == []


# Every type, alone and in arrays --------------------------------------------------------------------------------------

INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TEXTS = {sql: TEXT.map(lambda text, n=n: text[:n]) for sql, n in {"varchar(5)": 5, "char(4)": 4}.items()}
JSON = st.recursive(
    st.none() | st.booleans() | INT64 | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
JSON_TEXT = st.builds(
    lambda value, ascii_only, indent: json.dumps(value, ensure_ascii=ascii_only, indent=indent),
    JSON,
    st.booleans(),
    st.none() | st.integers(0, 2),
) | st.sampled_from(
    [
        *("123456789012345678901234567890.1234567890", "1e400", "-0.0", '"\\u00e4\\ud83d\\ude00"', '{"a": 1,  "a": 2}'),
        *(' [1 , "\\\\"] ', '"\\u0001"', '{"": {}}', "[]", '"a\\/b"'),
    ]
)


def _moment(at: dt.datetime) -> str:
    return at.isoformat(" ")


def _interval(months: int, days: int, micros: int) -> str:
    return f"{months:+d} mons {days:+d} days {micros:+d} microseconds"


def _any_case(value: Any, upper: bool) -> str:
    return str(value).upper() if upper else str(value)


FLOATS = ["NaN", "Infinity", "-Infinity", "-0", "0"]
LITERALS: dict[str, st.SearchStrategy[str]] = {
    "boolean": st.sampled_from(["t", "f"]),
    "smallint": st.integers(-(2**15), 2**15 - 1).map(str),
    "integer": INT32.map(str),
    "bigint": INT64.map(str),
    "real": st.floats(width=32).map(repr) | st.sampled_from([*FLOATS, "1e-45", "3.4028235e38", "16777217", "0.1"]),
    "double precision": st.floats().map(repr) | st.sampled_from([*FLOATS, "5e-324", "1.7976931348623157e308"]),
    "numeric(38,10)": VALUES["n"].map(str),
    "numeric(5,0)": VALUES["m"].map(str),
    "text": TEXT,
    "varchar": TEXT,
    **TEXTS,
    "bytea": st.binary(max_size=20).map(lambda value: "\\x" + value.hex()),
    "uuid": st.builds(_any_case, st.uuids(), st.booleans()),
    "json": JSON_TEXT,
    "jsonb": JSON_TEXT,
    "date": st.dates().map(str),
    "time": st.times().map(str) | st.sampled_from(["24:00", "00:00", "23:59:59.999999"]),
    "time(3)": st.times().map(str) | st.just("23:59:59.9999"),
    "timestamp": st.datetimes(FIRST, LAST).map(_moment) | st.sampled_from([_moment(FIRST), _moment(LAST)]),
    "timestamp(0)": st.datetimes(FIRST, dt.datetime(9999, 12, 31)).map(_moment),  # noqa: DTZ001
    "timestamptz": st.datetimes(FIRST, LAST).map(_moment).map("{}+00".format),
    "interval": st.builds(_interval, INT32, INT32, INT64)
    | st.builds(_interval, st.integers(-30, 30), st.integers(-2, 2), st.integers(-(10**11), 10**11))
    | st.sampled_from(["infinity", "-infinity", "0 s", "-0.000001 s", "-1.5 s", "59.999999 s", "2562047788 h"]),
    "interval day to second(2)": st.builds(_interval, st.just(0), st.integers(-2, 2), st.integers(-(10**9), 10**9)),
}


def _array(elements: list[str | None]) -> str:
    quoted = (
        '"' + one.replace("\\", "\\\\").replace('"', '\\"') + '"' if one is not None else "NULL" for one in elements
    )
    return "{" + ",".join(quoted) + "}"


LITERALS |= {f"{sql}[]": st.lists(st.none() | one, max_size=4).map(_array) for sql, one in LITERALS.items()}

# What must not matter: every one of these changes how values are written as text.
ODD_SETTINGS = (
    "SET datestyle = 'SQL, DMY'; SET intervalstyle = sql_standard; SET bytea_output = escape;"
    " SET timezone = 'America/St_Johns'; SET extra_float_digits = 1"
)
# Names of the client's that could be meant instead of PostgreSQL's.
HIDING = "; ".join(
    f"CREATE TEMP TABLE {name} (e int)" for name in ("date", "timestamptz", "text", "int8", "numeric", "u", "unnest")
)


async def known(link: BrainLink, table: str) -> Column:
    """The table's one column, as Icefield sees it."""
    answer = await link.query(
        "SELECT atttypid, atttypmod, format_type(atttypid, atttypmod) FROM pg_attribute"
        f" WHERE attrelid = '{table}'::regclass AND attnum = 1"
    )
    oid, typmod, shown = answer.rows[0]
    return Column("v", types.from_postgres(int(oid or 0), int(typmod or 0), shown or ""), required=False)


def _literals(values: Sequence[str | None]) -> str:
    return ", ".join("(NULL)" if one is None else "('" + one.replace("'", "''") + "')" for one in values)


async def copied(link: BrainLink, query: str) -> bytes:
    return b"".join([part async for part in link.copy_out(query)])


def same_bytes(kind: types.ColumnType, array: pa.Array) -> bool:
    """Whether the encoder's bytes are those that PostgreSQL itself would send."""
    if kind.scalar.oid == types.CHAR_OID:
        return False  # PostgreSQL puts the blanks to it when it reads
    # pgpq's empty arrays have a dimension of 0 elements, PostgreSQL's have no dimension
    return kind.element is None or 0 not in [len(one) for one in array.to_pylist() if one is not None]


@pytest.mark.parametrize("sql", LITERALS)
def test_every_type_there_and_back(brain: Brain, loop: Any, sql: str) -> None:
    async def run(link: BrainLink, column: Column, values: list[str | None], cut: int) -> None:
        await link.query("TRUNCATE a, b" + (f"; INSERT INTO a VALUES {_literals(values)}" if values else ""))
        check = rows.check_query([column], "ONLY a")
        if check is not None:
            assert "t" not in (await link.query(check)).rows[0]
        stored = rows.import_csv(await copied(link, rows.export_query([column], "ONLY a")), [column])
        assert stored.schema.field("v").type == column.type.arrow()
        assert stored.num_rows == len(values)
        (batch,) = stored.to_batches() or [pa.RecordBatch.from_pylist([], schema=stored.schema)]
        encoder = rows.CopyEncoder("b", [column])
        # in two parts, the second of which begins inside Arrow's buffers
        parts = [encoder.header(), encoder.batch(batch[:cut]), encoder.batch(batch[cut:]), encoder.finish()]
        await link.copy_in("COPY b FROM STDIN (FORMAT binary)", parts)
        here, there = [await link.query(f"SELECT v::pg_catalog.text FROM {table} ORDER BY ctid") for table in "ab"]
        assert there.rows == here.rows
        binary = await copied(link, "COPY a TO STDOUT (FORMAT binary)")
        assert await copied(link, "COPY b TO STDOUT (FORMAT binary)") == binary
        if same_bytes(column.type, batch.column(0)):
            assert b"".join(parts) == binary

    async def prepare() -> tuple[BrainLink, Column]:
        link = await brain.open_client({})
        await link.query(f"{ODD_SETTINGS}; CREATE TEMP TABLE a (v {sql}); CREATE TEMP TABLE b (v {sql}); {HIDING}")
        return link, await known(link, "a")

    link, column = loop(prepare())
    rough = settings(max_examples=8, deadline=None)
    of_values = given(st.lists(st.none() | LITERALS[sql], max_size=12), st.integers(0, 12))
    rough(of_values(lambda values, cut: loop(run(link, column, values, cut))))()
    loop(link.close())


@settings(max_examples=60, deadline=None)
@given(st.lists(LITERALS["interval"], min_size=1, max_size=8))
def test_intervals_are_stored_as_iso_8601_style_prints_them(link: BrainLink, loop: Any, values: list[str]) -> None:
    column = text_column("interval")
    source = f"(VALUES {_literals(values)}) AS x(w) CROSS JOIN LATERAL (SELECT w::interval) AS y(v)"

    async def both() -> tuple[list[Any], list[Any]]:
        stored = rows.import_csv(await copied(link, rows.export_query([column], source)), [column])
        printed = await link.query(f"SET intervalstyle = iso_8601; SELECT v::text FROM {source}; RESET intervalstyle")
        return stored.column(0).to_pylist(), [row[0] for row in printed.rows]

    stored, printed = loop(both())
    assert stored == printed


@pytest.mark.parametrize(
    ("sql", "literal", "stored"),
    [
        ("time", "'9:05'", "09:05:00.000000"),
        ("time", "'24:00'", "24:00:00.000000"),
        ("time", "'23:59:59.000001'", "23:59:59.000001"),
        ("char(5)", "'ab '", "ab"),
        ("varchar(5)", "'ab '", "ab "),
        ("uuid", "'A0EEBC999C0B4EF8BB6D6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("json", """'{"b":1,  "a":2}'""", '{"b":1,  "a":2}'),
        ("jsonb", """'{"b":1,  "a":1.20}'""", '{"a": 1.20, "b": 1}'),
        ("interval", "'-1 day -0.5 s'", "P-1DT-0.5S"),
        ("interval", "'-infinity'", "-infinity"),
        ("bytea", "'\\x00ff'", b"\x00\xff"),
        ("smallint", "-1", -1),
        ("char(3)[]", "'{a,NULL,\"b \"}'", ["a", None, "b"]),
        ("time[]", "'{9:05}'", ["09:05:00.000000"]),
        ("interval[]", "'{1 day,infinity}'", ["P1D", "infinity"]),
    ],
)
def test_what_other_engines_see(link: BrainLink, loop: Any, sql: str, literal: str, stored: Any) -> None:
    async def read() -> Any:
        await link.query(f"DROP TABLE IF EXISTS pg_temp.seen; CREATE TEMP TABLE seen (v {sql})")
        await link.query(f"INSERT INTO seen VALUES ({literal})")
        column = await known(link, "pg_temp.seen")
        return rows.import_csv(await copied(link, rows.export_query([column], "seen")), [column])

    assert loop(read()).column(0).to_pylist() == [stored]


BEYOND = {
    "numeric(5,2)": ("NaN", "22003"),
    "date": ("infinity", "22008"),
    "timestamp": ("-infinity", "22008"),
    "timestamptz": ("10000-01-01 00:00:00+00", "22008"),
    "timestamp(0)": ("0001-12-31 BC", "22008"),
}


@pytest.mark.parametrize(
    ("sql", "literal", "sqlstate"),
    [
        *((sql, literal, sqlstate) for sql, (literal, sqlstate) in BEYOND.items()),
        *((f"{sql}[]", f'{{NULL,"{literal}"}}', sqlstate) for sql, (literal, sqlstate) in BEYOND.items()),
        ("int[]", "{{1,2},{3,4}}", "0A000"),
        ("int[]", "[0:1]={1,2}", "0A000"),
        ("text[]", "[2:2]={x}", "0A000"),
        ("json[]", '[2:2]={"{}"}', "0A000"),
    ],
)
def test_what_the_lake_cannot_hold_is_refused(brain: Brain, loop: Any, sql: str, literal: str, sqlstate: str) -> None:
    async def errors() -> list[PgError]:
        async with await brain.open_client({}) as link:
            await link.query(f"CREATE TEMP TABLE a (v {sql}); INSERT INTO a VALUES (NULL), ('{literal}'), (NULL)")
            column = await known(link, "a")
            answer = (await link.query(rows.check_query([column], "a") or "")).rows[0]
            checks = zip(rows.checked([column]), answer, strict=True)
            return [rows.refuse(check, "s.t") for check, bad in checks if bad == "t"]

    (error,) = loop(errors())
    assert error.sqlstate == sqlstate
    assert '"v" of table "s.t"' in error.message
    assert error.hint


@pytest.mark.parametrize(
    ("iceberg", "good", "bad", "sqlstate"),
    [
        ("fixed[2]", "'\\x0001'", "'\\x000102'", "22026"),
        ({"type": "list", "element": "string", "element-required": True}, "'{}'", "'{NULL}'", "23502"),
        ({"type": "list", "element": "fixed[1]"}, "'{}'", "'{\"\\\\x\"}'", "22026"),
    ],
)
def test_limits_of_columns_that_others_made(
    link: BrainLink, loop: Any, iceberg: Any, good: str, bad: str, sqlstate: str
) -> None:
    column = Column("v", types.from_iceberg(iceberg), required=False)
    found = []
    for literal in (good, bad):
        query = rows.check_query([column], f"(VALUES ({literal}::{column.type.sql}), (NULL)) AS x(v)")
        answer = loop(link.query(query or "")).rows[0]
        checks = zip(rows.checked([column]), answer, strict=True)
        found.append([rows.refuse(check, "t").sqlstate for check, bad in checks if bad == "t"])
    assert found == [[], [sqlstate]]


# What other engines wrote --------------------------------------------------------------------------------------------


def encoded(column: Column, array: pa.Array) -> bytes:
    """The fields' bytes alone, of one value."""
    encoder = rows.CopyEncoder("s.t", [column])
    encoder.header()
    data = encoder.batch(pa.RecordBatch.from_arrays([array], ["v"])) + encoder.finish()
    (size,) = struct.unpack_from(">i", data, 2)
    return data[6 : 6 + size]


def text_column(sql: str) -> Column:
    return Column("v", types.from_iceberg("string", sql), required=False)


def _spoiled(canonical: st.SearchStrategy[str], letters: str) -> st.SearchStrategy[str]:
    """A proper value with some letters taken away or put in."""

    def spoil(text: str, at: int, cut: int, put: str) -> str:
        at %= len(text) + 1
        return text[:at] + put + text[at + cut :]

    return st.builds(spoil, canonical, st.integers(0, 40), st.integers(0, 2), st.text(letters, max_size=2))


ISO_INTERVAL = st.builds(
    lambda parts, times: "P" + "".join(parts) + ("T" + "".join(times) if times else ""),
    st.lists(st.builds("{}{}".format, INT32 | st.integers(-20, 20), st.sampled_from("YMWD")), max_size=4),
    st.lists(
        st.builds("{}{}".format, st.integers(-(10**10), 10**10) | st.floats(-9, 9), st.sampled_from("HMS")), max_size=3
    ),
)
OTHERS = {
    "uuid": st.uuids().map(str)
    | st.uuids().map(lambda one: one.hex)
    | st.uuids().map(lambda one: "{" + str(one).upper() + "}")
    | _spoiled(st.uuids().map(str), "-{}aGA \n"),
    "time without time zone": st.times().map(str)
    | st.times().map(lambda at: at.strftime("%I:%M %p"))
    | _spoiled(st.times().map(str), "0123456789:. apmAPM\n")
    | _spoiled(st.just("24:00:00.000000"), "0123456789:."),
    "interval": ISO_INTERVAL | _spoiled(ISO_INTERVAL, "0123456789-+.PTYMWDHS \n"),
}


@pytest.mark.parametrize("sql", OTHERS)
def test_what_others_wrote_is_understood_as_postgresql_would(link: BrainLink, loop: Any, sql: str) -> None:
    """Or refused; but never understood otherwise, and never what PostgreSQL does not understand."""
    column = text_column(sql)
    send = {"uuid": "uuid_send", "interval": "interval_send"}.get(sql, "time_send")

    async def postgres(text: str) -> str | None:
        try:
            answer = await link.query(f"SELECT encode({send}('{text}'::{sql}), 'hex')")
        except PgError:
            return None
        return answer.rows[0][0]

    @settings(max_examples=60, deadline=None)
    @given(OTHERS[sql])
    def check(text: str) -> None:
        there = loop(postgres(text))
        if there is None:
            with pytest.raises(PgError, match="not of type"):
                encoded(column, pa.array([text]))
        else:
            with contextlib.suppress(PgError):
                assert encoded(column, pa.array([text])).hex() == there

    check()


@pytest.mark.parametrize(
    ("sql", "text", "same"),
    [
        ("uuid", "A0EEBC999C0B4EF8BB6D6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("uuid", "{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("time without time zone", "9:00", "09:00:00.000000"),
        ("time without time zone", "9:00 pm", "21:00:00.000000"),
        ("time without time zone", "09:00:00.5", "09:00:00.500000"),
        ("time without time zone", "24:00", "24:00:00.000000"),
        ("interval", "P1W", "P7D"),
        ("interval", "P14M", "P1Y2M"),
        ("interval", "PT-9223372036854.775808S", "PT-2562047788H-54.775808S"),
    ],
)
@pytest.mark.parametrize("many", [False, True])
def test_other_forms_of_a_value_are_understood(sql: str, text: str, same: str, many: bool) -> None:
    """Alone, and in an array."""
    column = text_column(f"{sql}[]" if many else sql)
    if many:
        column = Column("v", types.from_iceberg({"type": "list", "element": "string"}, f"{sql}[]"), required=False)
    pack = (lambda one: [[one, None]]) if many else (lambda one: [one])
    assert encoded(column, pa.array(pack(text))) == encoded(column, pa.array(pack(same)))


@pytest.mark.parametrize(
    ("sql", "value", "sqlstate"),
    [
        ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1", "58030"),
        ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1g", "58030"),
        ("uuid", "", "58030"),
        ("time without time zone", "25:00:00.000000", "58030"),
        ("time without time zone", "24:00:00.000001", "58030"),
        ("time without time zone", "12:60:00.000000", "58030"),
        ("time without time zone", "noon", "58030"),
        ("interval", "P", "58030"),
        ("interval", "P1DT", "58030"),
        ("interval", "P1D\n", "58030"),
        ("interval", "P178956970Y8M", "58030"),
        ("interval", "PT9999999999999H", "58030"),
        ("interval", "INTERVAL '1' DAY", "58030"),
        ("character varying(2)", "äöü", "58030"),
        ("character(2)", "a b", "58030"),
        ("character varying(2)", "a\0", "22021"),
        ("text", "a\0b", "22021"),
        ("json", "\0", "22021"),
    ],
)
def test_what_cannot_be_understood_is_refused(sql: str, value: str, sqlstate: str) -> None:
    whole = text_column(sql)
    many = Column("v", types.from_iceberg({"type": "list", "element": "string"}, f"{sql}[]"), required=False)
    for column, array in (
        (whole, pa.array(["ignored", value])[1:]),
        (many, pa.array([["ignored"], [None, value]])[1:]),
    ):
        with pytest.raises(PgError) as caught:
            encoded(column, array)
        assert caught.value.sqlstate == sqlstate
        assert '"v" of table "s.t"' in caught.value.message
        assert sqlstate != "58030" or value in caught.value.message


def test_a_long_value_is_not_repeated_whole() -> None:
    with pytest.raises(PgError) as caught:
        encoded(text_column("uuid"), pa.array(["x" * 10000]))
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("sql", ["uuid", "time without time zone", "interval", "character varying(1)"])
def test_bytes_that_are_no_text_are_refused(sql: str) -> None:
    with pytest.raises(PgError) as caught:
        encoded(text_column(sql), pa.array([b"\xff\xfe"]).view(pa.string()))
    assert caught.value.sqlstate in ("22021", "58030")


@pytest.mark.parametrize(("sql", "text"), [("character varying(2)", "ab   "), ("character(2)", "a      ")])
def test_blanks_that_are_too_many_are_cut_off(link: BrainLink, loop: Any, sql: str, text: str) -> None:
    async def read() -> list[Any]:
        await link.query(f"DROP TABLE IF EXISTS pg_temp.cut; CREATE TEMP TABLE cut (v {sql})")
        encoder = rows.CopyEncoder("cut", [text_column(sql)])
        batch = pa.RecordBatch.from_arrays([pa.array([text])], ["v"])
        parts = [encoder.header(), encoder.batch(batch), encoder.finish()]
        await link.copy_in("COPY cut FROM STDIN (FORMAT binary)", parts)
        return list((await link.query(f"SELECT v = '{text}'::{sql}, octet_length(v) FROM cut")).rows)

    assert loop(read()) == [("t", "2")]


@pytest.mark.parametrize("number", [-32769, 32768])
@pytest.mark.parametrize("many", [False, True])
def test_an_integer_too_large_for_smallint_is_refused(number: int, many: bool) -> None:
    column = Column("v", types.from_iceberg("int", "smallint"), required=False)
    if many:
        column = Column("v", types.from_iceberg({"type": "list", "element": "int"}, "smallint[]"), required=False)
    with pytest.raises(PgError) as caught:
        encoded(column, pa.array([[number]] if many else [number], column.type.arrow()))
    assert caught.value.sqlstate == "22003"


def test_what_the_engine_gives_may_have_other_names_and_sizes() -> None:
    """Spark may send a list whose elements are required, or large; a column of another type is refused."""
    column = Column("v", types.from_iceberg({"type": "list", "element": "int"}), required=False)
    plain = encoded(column, pa.array([[1, 2]], column.type.arrow()))
    for kind in (pa.large_list(pa.int32()), pa.list_(pa.field("x", pa.int32(), nullable=False)), pa.list_(pa.int64())):
        assert encoded(column, pa.array([[1, 2]], kind)) == plain
    with pytest.raises(PgError) as caught:
        encoded(column, pa.array([[2**40]]))
    assert caught.value.sqlstate == "58030"
