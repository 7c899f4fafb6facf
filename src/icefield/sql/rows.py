"""Rows on their way between Arrow and the brain: binary COPY in, CSV out. Exact, or an error.

In: Arrow record batches become PostgreSQL's binary COPY format (pgpq; what it has no type for is given to it as bytes,
see values.py). What PostgreSQL cannot hold, or what another engine wrote so that it cannot be understood, is refused.
Out: new rows leave the brain as text that says everything whatever the session's settings are (dates as days,
timestamps as microseconds, bytes and intervals in hexadecimal, arrays as JSON of their elements' text; floats with all
their digits, which needs extra_float_digits > 0) and become Arrow again. Everything here blocks: call it in a thread.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icefield.pgwire.errors import PgError
from icefield.sql import types, values
from icefield.sql.shadows import Column
from icefield.sql.types import ColumnType

if TYPE_CHECKING:
    import pyarrow as pa

# What PostgreSQL's types hold, counted as Arrow counts (from 1970).
_DATE_RANGE = (-2440588, 2145042905)
_TIMESTAMP_RANGE = (-210866803200000000, 2**63 - 1)
_SMALLINT_RANGE = (-(2**15), 2**15 - 1)

_TIMESTAMPS = (types.TIMESTAMP_OID, types.TIMESTAMPTZ_OID)
_TEXTS = (types.TEXT_OID, types.VARCHAR_OID, types.CHAR_OID, types.JSON_OID, types.JSONB_OID)
_SHOWN_LENGTH = 100


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field(c.name, c.type.arrow(), nullable=not c.required) for c in columns])


# Into the brain -------------------------------------------------------------------------------------------------------

# What pgpq makes right arrays of. It marks elements of other types wrongly, and PostgreSQL refuses them.
_OWN_ARRAYS = frozenset(
    (
        types.BOOL_OID,
        types.INT2_OID,
        types.INT4_OID,
        types.INT8_OID,
        types.FLOAT4_OID,
        types.FLOAT8_OID,
        types.NUMERIC_OID,
        types.TEXT_OID,
        types.BYTEA_OID,
        types.DATE_OID,
        types.TIMESTAMP_OID,
    )
)
# Made into the bytes of PostgreSQL's binary fields before pgpq.
_FIELDS: dict[int, Callable[[Any], Any]] = {
    types.UUID_OID: values.uuid_fields,
    types.TIME_OID: values.time_fields,
    types.INTERVAL_OID: values.interval_fields,
    types.JSONB_OID: values.jsonb_fields,
}
_ELEMENTS = {
    types.VARCHAR_OID: values.text_fields,
    types.CHAR_OID: values.text_fields,
    types.JSON_OID: values.text_fields,
    types.TIMESTAMPTZ_OID: values.timestamp_fields,
    **_FIELDS,
}
_FIELD_BYTES = {types.UUID_OID: 16, types.TIME_OID: 8, types.INTERVAL_OID: 16}


def _brain_type(kind: ColumnType) -> pa.DataType:
    """What pgpq is given."""
    import pyarrow as pa

    if kind.element is not None:
        return pa.list_(_brain_type(kind.element)) if kind.element.oid in _OWN_ARRAYS else pa.binary()
    if kind.oid == types.INT2_OID:
        return pa.int16()
    return pa.binary(_FIELD_BYTES.get(kind.oid, -1)) if kind.oid in _FIELDS else kind.arrow()


def _to_brain(kind: ColumnType, array: pa.Array) -> pa.Array:
    """Stored values -> values of ``_brain_type``. Raises NotUnderstood."""
    if kind.element is not None and kind.element.oid not in _OWN_ARRAYS:
        return values.array_fields(kind.element.oid, array, _ELEMENTS[kind.element.oid])
    fields = _FIELDS.get(kind.oid)
    return array.cast(_brain_type(kind)) if fields is None else fields(array)


class CopyEncoder:
    """Record batches of one table -> the bytes of ``COPY … (FORMAT binary)``."""

    def __init__(self, table: str, columns: Sequence[Column]) -> None:
        import pgpq
        import pyarrow as pa

        self._table = table
        # (column, as it is stored, whether it must be converted)
        self._columns: list[tuple[Column, pa.DataType, bool]] = []
        fields = []
        for column in columns:
            stored, given = column.type.arrow(), _brain_type(column.type)
            self._columns.append((column, stored, stored != given))
            # Every field nullable: NOT NULL is the shadow's to check, and then with PostgreSQL's own error.
            fields.append(pa.field(column.name, given))
        self._schema = pa.schema(fields)
        self._encoder = pgpq.ArrowToPostgresBinaryEncoder(self._schema)

    def header(self) -> bytes:
        return bytes(self._encoder.write_header())

    def batch(self, batch: pa.RecordBatch) -> bytes:
        import pyarrow as pa

        arrays = []
        for (column, stored, convert), array in zip(self._columns, batch.columns, strict=True):
            try:
                cast = array if array.type == stored else array.cast(stored)
            except pa.ArrowException as error:
                raise PgError(
                    "58030",
                    f'column "{column.name}" of table "{self._table}" came from the lake as {array.type},'
                    f" not as {stored}: {error}",
                ) from None
            try:
                self._check(column, cast)
                arrays.append(_to_brain(column.type, cast) if convert else cast)
            except values.NotUnderstood as error:
                raise self._not_understood(column, error.value) from None
            except UnicodeDecodeError:
                raise self._refusal("22021", column, "that is not UTF-8") from None
        return bytes(self._encoder.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema)))

    def finish(self) -> bytes:
        return bytes(self._encoder.finish())

    def _check(self, column: Column, array: pa.Array) -> None:
        import pyarrow as pa

        kind = column.type
        if kind.element is not None:
            kind, array = kind.element, array.flatten()
        if kind.oid == types.DATE_OID:
            self._check_range(column, array.view(pa.int32()), _DATE_RANGE, "22008")
        elif kind.oid in _TIMESTAMPS:
            self._check_range(column, array.view(pa.int64()), _TIMESTAMP_RANGE, "22008")
        elif kind.oid == types.INT2_OID:
            self._check_range(column, array, _SMALLINT_RANGE, "22003")
        elif kind.oid in _TEXTS:
            if _has_nul(array):
                raise self._refusal("22021", column, "with a NUL byte, which PostgreSQL's texts cannot have")
            if kind.length is not None:
                self._check_length(column, array, kind.length)

    def _check_range(self, column: Column, numbers: pa.Array, limits: tuple[int, int], sqlstate: str) -> None:
        import pyarrow.compute as pc

        low, high = limits
        edges = pc.min_max(numbers).as_py()
        if edges["min"] is not None and (edges["min"] < low or edges["max"] > high):
            shown = column.type.scalar.shown.removesuffix(" without time zone")
            raise self._refusal(sqlstate, column, f"that lies outside the range of PostgreSQL's {shown}")

    def _check_length(self, column: Column, texts: pa.StringArray, length: int) -> None:
        """PostgreSQL cuts off blanks that are too many, as its input does; anything else is too long."""
        import pyarrow as pa
        import pyarrow.compute as pc

        longest = pc.max(pc.binary_length(texts)).as_py()
        if longest is None or longest <= length:
            return
        try:
            long = texts.filter(pc.greater(pc.utf8_length(pc.utf8_rtrim(texts, " ")), length))
        except pa.ArrowInvalid:
            raise self._refusal("22021", column, "that is not UTF-8") from None
        if len(long):
            raise self._not_understood(column, long[0].as_py())

    def _not_understood(self, column: Column, value: str) -> PgError:
        shown = value if len(value) <= _SHOWN_LENGTH else value[:_SHOWN_LENGTH] + "…"
        return PgError(
            "58030",
            f'column "{column.name}" of table "{self._table}" holds a value that is not of type'
            f' {column.type.scalar.shown}: "{shown}"',
            hint="It was written by another engine, which can correct it.",
        )

    def _refusal(self, sqlstate: str, column: Column, what: str) -> PgError:
        return PgError(
            sqlstate,
            f'column "{column.name}" of table "{self._table}" holds a value {what}',
            hint="It was written by another engine, which can read it.",
        )


def _has_nul(texts: pa.StringArray) -> bool:
    import numpy as np

    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return False
    ends = np.frombuffer(offsets, np.int32)
    used = np.frombuffer(data, np.uint8)[ends[texts.offset] : ends[texts.offset + len(texts)]]
    return bool(len(used)) and not used.min()


# Out of the brain -----------------------------------------------------------------------------------------------------


def export_query(columns: Sequence[Column], source: str) -> str:
    """A COPY of ``source`` (a FROM clause and what follows) as text that ``import_csv`` reads back exactly.

    The first column is a constant, so that a row of NULLs is not an empty line.
    """
    return (
        "COPY (SELECT 1, "
        + ", ".join(_exported(c.type, quote_ident(c.name)) for c in columns)
        + f" FROM {source}) TO STDOUT (FORMAT csv, FORCE_QUOTE *, ENCODING 'UTF8')"
    )


def _exported(kind: ColumnType, value: str) -> str:
    if kind.element is not None:
        one = _exported(kind.element, "u.e")
        if one == "u.e" or kind.element.oid == types.CHAR_OID:
            return f"pg_catalog.array_to_json({value}::pg_catalog.text[])"
        return (
            f"CASE WHEN {value} IS NOT NULL THEN pg_catalog.array_to_json(ARRAY(SELECT ({one})::pg_catalog.text"
            f" FROM pg_catalog.unnest({value}) WITH ORDINALITY AS u(e, n) ORDER BY u.n)) END"
        )
    if kind.oid == types.DATE_OID:
        return f"({value} OPERATOR(pg_catalog.-) '1970-01-01'::pg_catalog.date)"
    if kind.oid in _TIMESTAMPS:
        # extract gives an exact numeric; a microsecond is its sixth digit
        return f"(pg_catalog.extract('epoch', {value}) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8"
    if kind.oid == types.TIME_OID:
        # as an interval, midnight at the day's end stays 24:00
        return f"pg_catalog.to_char({value}::pg_catalog.interval, 'HH24:MI:SS.US')"
    if kind.oid == types.INTERVAL_OID:
        return f"pg_catalog.encode(pg_catalog.interval_send({value}), 'hex')"
    if kind.oid == types.BYTEA_OID:
        return f"pg_catalog.encode({value}, 'hex')"
    if kind.oid == types.CHAR_OID:
        return f"{value}::pg_catalog.text"  # without the blanks at its end
    return value


def import_csv(data: bytes, columns: Sequence[Column]) -> pa.Table:
    """What ``export_query`` gave, as Arrow."""
    import pyarrow as pa
    from pyarrow import csv

    schema = arrow_schema(columns)
    if not data:
        return schema.empty_table()
    names = [str(at) for at in range(len(columns))]
    table = csv.read_csv(
        io.BytesIO(data),
        read_options=csv.ReadOptions(
            column_names=["", *names], use_threads=False, block_size=max(len(data) + 1, 1 << 20)
        ),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types={"": pa.int8(), **{name: _read_as(c.type) for name, c in zip(names, columns, strict=True)}},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        ),
    )
    arrays = []
    for name, column in zip(names, columns, strict=True):
        array = table.column(name).combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
        arrays.append(_stored(column.type, array))
    return pa.Table.from_arrays(arrays, schema=schema)


def _read_as(kind: ColumnType) -> pa.DataType:
    """What pyarrow reads the text as."""
    import pyarrow as pa

    if kind.element is not None or kind.oid in (types.BYTEA_OID, types.INTERVAL_OID):
        return pa.string()
    if kind.oid == types.DATE_OID:
        return pa.int32()
    return pa.int64() if kind.oid in _TIMESTAMPS else kind.arrow()


def _stored(kind: ColumnType, array: pa.Array) -> pa.Array:
    """What was read -> as it is stored."""
    if kind.element is not None:
        return _stored_lists(kind.element, array)
    if kind.oid == types.BYTEA_OID:
        return values.unhex(array)
    if kind.oid == types.INTERVAL_OID:
        return values.interval_texts(array)
    return array if array.type == kind.arrow() else array.view(kind.arrow())


def _stored_lists(element: ColumnType, texts: pa.StringArray) -> pa.ListArray:
    """JSON arrays of the elements' texts -> lists."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import json

    kind = pa.list_(pa.field("element", element.arrow()))
    if not len(texts):
        return pa.array([], kind)
    lines = pc.binary_join_element_wise('{"":', texts.fill_null("null"), "}", "")
    data = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "\n")[0].as_buffer()
    read = json.read_json(
        pa.BufferReader(data),
        read_options=json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=json.ParseOptions(explicit_schema=pa.schema([("", pa.list_(pa.string()))])),
    )
    lists = pa.concat_arrays(read.column(0).chunks)
    elements = _stored(element, lists.values.cast(_read_as(element)))
    return pa.ListArray.from_arrays(lists.offsets, elements, type=kind, mask=lists.is_null())


# What the lake cannot hold --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a column's values may be in PostgreSQL, but not in the lake."""

    column: Column
    test: str
    """SQL: whether a row's value is such; may be NULL for no."""
    sqlstate: str
    what: str
    hint: str

    @property
    def name(self) -> str:
        return self.column.name


def check_query(columns: Sequence[Column], source: str) -> str | None:
    """One row of booleans, in ``checked`` order: whether some row of ``source`` fails the check."""
    checks = checked(columns)
    if not checks:
        return None
    return "SELECT " + ", ".join(f"pg_catalog.bool_or({check.test})" for check in checks) + f" FROM {source}"


def checked(columns: Sequence[Column]) -> list[Check]:
    return [check for column in columns for check in _checks(column)]


def refuse(check: Check, table: str) -> PgError:
    return PgError(
        check.sqlstate, f'column "{check.name}" of table "{table}" cannot hold {check.what}', hint=check.hint
    )


def _checks(column: Column) -> list[Check]:
    name, kind = quote_ident(column.name), column.type
    found = []
    if kind.element is not None:
        found.append(
            Check(
                column,
                f"pg_catalog.array_ndims({name}) OPERATOR(pg_catalog.>) 1"
                f" OR pg_catalog.array_lower({name}, 1) OPERATOR(pg_catalog.<>) 1",
                "0A000",
                "an array of several dimensions, or one that does not begin at 1: Iceberg has lists",
                "Store arrays of one dimension; array(SELECT unnest(...)) makes one that begins at 1.",
            )
        )
        if kind.element_required:
            found.append(
                Check(
                    column,
                    f"EXISTS (SELECT FROM pg_catalog.unnest({name}) AS u(e) WHERE u.e IS NULL)",
                    "23502",
                    "an array with NULL in it",
                    "Another engine made the column a list whose elements are required.",
                )
            )
    bad = _bad(kind.scalar, name if kind.element is None else "u.e")
    if bad is not None:
        test, sqlstate, what, hint = bad
        if kind.element is not None:
            test = f"EXISTS (SELECT FROM pg_catalog.unnest({name}) AS u(e) WHERE {test})"
        found.append(Check(column, test, sqlstate, what, hint))
    return found


def _bad(kind: ColumnType, value: str) -> tuple[str, str, str, str] | None:
    """Test, SQLSTATE, what it is, hint."""
    if kind.oid == types.NUMERIC_OID:
        return (
            f"{value} OPERATOR(pg_catalog.=) 'NaN'::pg_catalog.numeric",
            "22003",
            "NaN: Iceberg's decimals are numbers only",
            "Store NULL instead, or make the column double precision.",
        )
    if kind.oid == types.BYTEA_OID and kind.length is not None:
        return (
            f"pg_catalog.octet_length({value}) OPERATOR(pg_catalog.<>) {kind.length}",
            "22026",
            f"values of another length than {kind.length} bytes: its Iceberg type is {kind.iceberg}",
            "Cut the value, or make it longer.",
        )
    if kind.oid == types.DATE_OID:
        first, last = (
            f"{value} OPERATOR(pg_catalog.<) '0001-01-01'::pg_catalog.date",
            f"{value} OPERATOR(pg_catalog.>) '9999-12-31'::pg_catalog.date",
        )
    elif kind.oid in _TIMESTAMPS:
        first = f"{value} OPERATOR(pg_catalog.<) '0001-01-01 00:00:00+00'::{kind.sql}"
        last = f"{value} OPERATOR(pg_catalog.>=) '10000-01-01 00:00:00+00'::{kind.sql}"
    else:
        return None
    return (
        f"NOT pg_catalog.isfinite({value}) OR {first} OR {last}",
        "22008",
        f"infinity, or a {kind.shown.removesuffix(' without time zone')} outside the years 1 to 9999",
        "Iceberg knows no infinite dates, and engines disagree about other years. Store NULL instead.",
    )


def quote_ident(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
