"""Rows through the brain and back are the same bits; what one side cannot hold is refused, not bent."""

from __future__ import annotations

import datetime as dt
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


@settings(max_examples=40, deadline=None)
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


def refusals(link: BrainLink, loop: Any, literal: str, column: str) -> Sequence[Column]:
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


@pytest.mark.parametrize(
    ("oid", "typmod", "iceberg"),
    [
        (16, -1, "boolean"),
        (23, -1, "int"),
        (20, -1, "long"),
        (701, -1, "double"),
        (25, -1, "string"),
        (1082, -1, "date"),
        (1114, 6, "timestamp"),
        (1184, -1, "timestamptz"),
        (1700, (12 << 16 | 2) + 4, "decimal(12, 2)"),
        (1700, (38 << 16 | 38) + 4, "decimal(38, 38)"),
    ],
)
def test_types_read_the_same_from_both_sides(oid: int, typmod: int, iceberg: str) -> None:
    here = types.from_postgres(oid, typmod, "shown")
    assert here.iceberg == iceberg
    assert types.from_iceberg(iceberg) == here


@pytest.mark.parametrize(
    ("oid", "typmod"),
    [
        (1700, -1),
        (1700, (39 << 16 | 2) + 4),
        (1700, (2 << 16 | 3) + 4),
        (1700, (5 << 16 | 0x7FE) + 4),
        (1043, 14),
        (700, -1),
        (1114, 3),
        (3802, -1),
        (2950, -1),
        (1007, -1),
    ],
)
def test_other_types_are_refused_with_a_hint(oid: int, typmod: int) -> None:
    with pytest.raises(types.Unsupported) as caught:
        types.from_postgres(oid, typmod, "that type")
    assert caught.value.hint


@pytest.mark.parametrize(
    "iceberg", ["float", "uuid", "binary", "fixed[3]", "time", "timestamp_ns", "decimal(39, 1)", {"type": "list"}, 7]
)
def test_other_iceberg_types_are_refused(iceberg: Any) -> None:
    with pytest.raises(types.Unsupported):
        types.from_iceberg(iceberg)
