"""Rows on their way between Arrow and the brain: binary COPY in, CSV out. Exact, or an error.

In: Arrow record batches become PostgreSQL's binary COPY format (pgpq). What PostgreSQL cannot hold is refused before
it could wrap around. Out: new rows leave the brain as text that says everything (dates as days, timestamps as
microseconds, floats with all their digits) and become Arrow again. Everything here blocks: call it in a thread.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from icefield.pgwire.errors import PgError
from icefield.sql.shadows import Column

if TYPE_CHECKING:
    import pyarrow as pa

# What PostgreSQL's types hold, counted as Arrow counts (from 1970).
_DATE_RANGE = (-2440588, 2145042905)
_TIMESTAMP_RANGE = (-210866803200000000, 2**63 - 1)

_FLOAT = 701
_NUMERIC = 1700
_DATE = 1082
_TIMESTAMPS = (1114, 1184)
_EPOCH = {1114: "timestamp '1970-01-01'", 1184: "timestamptz '1970-01-01 00:00:00+00'"}
_TOO_LATE = {1114: "timestamp '294247-01-10 04:00:54.775808'", 1184: "timestamptz '294247-01-10 04:00:54.775808+00'"}


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field(c.name, c.type.arrow(), nullable=not c.required) for c in columns])


class CopyEncoder:
    """Record batches of one table -> the bytes of ``COPY … (FORMAT binary)``."""

    def __init__(self, table: str, columns: Sequence[Column]) -> None:
        import pgpq
        import pyarrow as pa

        self._table = table
        self._columns = columns
        # Every field nullable: NOT NULL is the shadow's to check, and then with PostgreSQL's own error.
        self._schema = pa.schema([pa.field(c.name, c.type.arrow()) for c in columns])
        self._encoder = pgpq.ArrowToPostgresBinaryEncoder(self._schema)

    def header(self) -> bytes:
        return bytes(self._encoder.write_header())

    def batch(self, batch: pa.RecordBatch) -> bytes:
        import pyarrow as pa

        arrays = []
        for column, array in zip(self._columns, batch.columns, strict=True):
            wanted = column.type.arrow()
            try:
                cast = array if array.type == wanted else array.cast(wanted)
            except pa.ArrowException as error:
                raise PgError(
                    "58030",
                    f'column "{column.name}" of table "{self._table}" came from the lake as {array.type},'
                    f" not as {wanted}: {error}",
                ) from None
            self._check(column, cast)
            arrays.append(cast)
        return bytes(self._encoder.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema)))

    def finish(self) -> bytes:
        return bytes(self._encoder.finish())

    def _check(self, column: Column, array: pa.Array) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if column.type.oid == _DATE:
            low, high = _DATE_RANGE
            numbers = array.view(pa.int32())
        elif column.type.oid in _TIMESTAMPS:
            low, high = _TIMESTAMP_RANGE
            numbers = array.view(pa.int64())
        else:
            return
        edges = pc.min_max(numbers).as_py()
        if edges["min"] is not None and (edges["min"] < low or edges["max"] > high):
            raise PgError(
                "22008",
                f'column "{column.name}" of table "{self._table}" holds a value that lies outside the range of'
                f" PostgreSQL's {column.type.sql.removeprefix('pg_catalog.')}",
                hint="It was written by another engine, which can read it.",
            )


def export_query(columns: Sequence[Column], source: str) -> str:
    """A COPY of ``source`` (a FROM clause and what follows) as text that ``import_csv`` reads back exactly.

    The first column is a constant, so that a row of NULLs is not an empty line.
    """
    return (
        "COPY (SELECT 1, "
        + ", ".join(_exported(c) for c in columns)
        + f" FROM {source}) TO STDOUT (FORMAT csv, FORCE_QUOTE *, ENCODING 'UTF8')"
    )


def _exported(column: Column) -> str:
    name = quote_ident(column.name)
    if column.type.oid == _DATE:
        return f"({name} OPERATOR(pg_catalog.-) date '1970-01-01')"
    if column.type.oid in _TIMESTAMPS:
        # extract gives an exact numeric; a microsecond is its sixth digit
        return f"(pg_catalog.extract('epoch', {name}) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8"
    return name


def check_query(columns: Sequence[Column], source: str) -> str | None:
    """Per column that may hold what Iceberg cannot: whether it does. One row of booleans, in ``checked`` order."""
    tests = [test for c in columns if (test := _bad(c)) is not None]
    if not tests:
        return None
    return "SELECT " + ", ".join(f"pg_catalog.bool_or({test})" for test in tests) + f" FROM {source}"


def checked(columns: Sequence[Column]) -> list[Column]:
    return [c for c in columns if _bad(c) is not None]


def _bad(column: Column) -> str | None:
    name = quote_ident(column.name)
    if column.type.oid == _NUMERIC:
        return f"{name} OPERATOR(pg_catalog.=) 'NaN'::pg_catalog.numeric"
    if column.type.oid == _DATE:
        return (
            f"NOT pg_catalog.isfinite({name}) OR {name} OPERATOR(pg_catalog.<) date '0001-01-01'"
            f" OR {name} OPERATOR(pg_catalog.>) date '9999-12-31'"
        )
    if column.type.oid in _TIMESTAMPS:
        kind = column.type.sql
        return (
            f"NOT pg_catalog.isfinite({name}) OR {name} OPERATOR(pg_catalog.<) '0001-01-01 00:00:00+00'::{kind}"
            f" OR {name} OPERATOR(pg_catalog.>=) '10000-01-01 00:00:00+00'::{kind}"
        )
    return None


def refuse(column: Column, table: str) -> PgError:
    shown = column.type.sql.removeprefix("pg_catalog.")
    if column.type.oid == _NUMERIC:
        return PgError(
            "22003",
            f'column "{column.name}" of table "{table}" cannot hold NaN: Iceberg\'s decimals are numbers only',
            hint="Store NULL instead, or make the column double precision.",
        )
    return PgError(
        "22008",
        f'column "{column.name}" of table "{table}" cannot hold infinity, or a {shown} outside the years 1 to 9999',
        hint="Iceberg knows no infinite dates, and engines disagree about other years. Store NULL instead.",
    )


def import_csv(data: bytes, columns: Sequence[Column]) -> pa.Table:
    """What ``export_query`` gave, as Arrow."""
    import pyarrow as pa
    from pyarrow import csv

    schema = arrow_schema(columns)
    if not data:
        return schema.empty_table()
    names = ["", *(str(at) for at in range(len(columns)))]
    types = {name: _read_as(field.type) for name, field in zip(names[1:], schema, strict=True)}
    table = csv.read_csv(
        io.BytesIO(data),
        read_options=csv.ReadOptions(column_names=names, use_threads=False, block_size=max(len(data) + 1, 1 << 20)),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types={"": pa.int8(), **types},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        ),
    )
    arrays = []
    for name, field in zip(names[1:], schema, strict=True):
        array = table.column(name).combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
        arrays.append(array if array.type == field.type else array.view(field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _read_as(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_date(kind):
        return pa.int32()
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return kind


def quote_ident(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
