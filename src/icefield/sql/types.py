"""Which column types the SQL door knows, in PostgreSQL's, Iceberg's and Arrow's words: one table, read both ways.

Contract: a type is here only if every value of one side that the other side can hold survives the way there and back
bit by bit. What is not here is refused with a sentence that says why and what to take instead.

A PostgreSQL type is stored as an Iceberg type that every engine reads. Where that alone does not tell which type it
was (a uuid is stored as a string), format_type()'s text is *remembered* beside it (``ColumnType.remembered``). Iceberg
wins: what is remembered and does not fit the Iceberg type that is there now is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

NUMERIC_OID = 1700
MAX_PRECISION = 38
LIST = "list"


@dataclass(frozen=True, slots=True)
class ColumnType:
    oid: int
    sql: str
    """Written so that no object of the client's can be meant instead."""
    shown: str
    """format_type()'s text."""
    iceberg: str
    """The Iceberg type; ``list`` for an array, whose whole type ``iceberg_json`` gives."""
    typmod: int = -1
    element: ColumnType | None = None
    """Of an array: the type of what is in it. ``typmod`` is the element's, as in PostgreSQL."""
    element_required: bool = False
    """Another engine made a list whose elements cannot be NULL."""

    @property
    def scalar(self) -> ColumnType:
        """Itself, or what an array is made of."""
        return self if self.element is None else self.element

    @property
    def precision(self) -> int:
        return (self.typmod - 4) >> 16 & 0xFFFF if self.oid == NUMERIC_OID else 0

    @property
    def scale(self) -> int:
        return self.typmod - 4 & 0x7FF if self.oid == NUMERIC_OID else 0

    @property
    def length(self) -> int | None:
        """Of varchar(n), char(n) and fixed[n]: n, in characters or bytes."""
        if self.oid in (VARCHAR_OID, CHAR_OID) and self.typmod > 4:
            return self.typmod - 4
        fixed = _FIXED.fullmatch(self.iceberg)
        return int(fixed[1]) if fixed else None

    @property
    def remembered(self) -> str | None:
        """What must be kept beside the Iceberg type so that ``from_iceberg`` gives this again; None: nothing."""
        return None if _alone(self) == self else self.shown

    def iceberg_json(self, next_id: Callable[[], int]) -> str | dict[str, Any]:
        """As it stands in an Iceberg schema. ``next_id`` gives fresh field ids: a list's elements have one."""
        if self.element is None:
            return self.iceberg
        return {
            "type": LIST,
            "element-id": next_id(),
            "element": self.element.iceberg_json(next_id),
            "element-required": self.element_required,
        }

    def arrow(self) -> pa.DataType:
        """How its values are stored: what Spark gives and takes."""
        import pyarrow as pa

        if self.element is not None:
            return pa.list_(pa.field("element", self.element.arrow()))
        if self.oid == NUMERIC_OID:
            return pa.decimal128(self.precision, self.scale)
        return {
            "boolean": pa.bool_(),
            "int": pa.int32(),
            "long": pa.int64(),
            "float": pa.float32(),
            "double": pa.float64(),
            "string": pa.string(),
            "uuid": pa.string(),
            "date": pa.date32(),
            "timestamp": pa.timestamp("us"),
            "timestamptz": pa.timestamp("us", "UTC"),
        }.get(self.iceberg, pa.binary())


class Unsupported(Exception):
    """Why a type cannot be a lake column's here; ``hint`` says what to take instead."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


# The table ------------------------------------------------------------------------------------------------------------

BOOL_OID, BYTEA_OID, TEXT_OID, JSON_OID, JSONB_OID, UUID_OID = 16, 17, 25, 114, 3802, 2950
INT2_OID, INT4_OID, INT8_OID, FLOAT4_OID, FLOAT8_OID = 21, 23, 20, 700, 701
CHAR_OID, VARCHAR_OID = 1042, 1043
DATE_OID, TIME_OID, TIMESTAMP_OID, TIMESTAMPTZ_OID, INTERVAL_OID = 1082, 1083, 1114, 1184, 1186

_SCALARS = {
    kind.oid: kind
    for kind in (
        # Where two share an Iceberg type, the one that it means by itself comes first.
        ColumnType(BOOL_OID, "pg_catalog.bool", "boolean", "boolean"),
        ColumnType(INT4_OID, "pg_catalog.int4", "integer", "int"),
        ColumnType(INT2_OID, "pg_catalog.int2", "smallint", "int"),
        ColumnType(INT8_OID, "pg_catalog.int8", "bigint", "long"),
        ColumnType(FLOAT4_OID, "pg_catalog.float4", "real", "float"),
        ColumnType(FLOAT8_OID, "pg_catalog.float8", "double precision", "double"),
        ColumnType(TEXT_OID, "pg_catalog.text", "text", "string"),
        ColumnType(VARCHAR_OID, "pg_catalog.varchar", "character varying", "string"),
        ColumnType(UUID_OID, "pg_catalog.uuid", "uuid", "string"),
        ColumnType(TIME_OID, "pg_catalog.time", "time without time zone", "string"),
        ColumnType(INTERVAL_OID, "pg_catalog.interval", "interval", "string"),
        ColumnType(JSON_OID, "pg_catalog.json", "json", "string"),
        ColumnType(JSONB_OID, "pg_catalog.jsonb", "jsonb", "string"),
        ColumnType(BYTEA_OID, "pg_catalog.bytea", "bytea", "binary"),
        ColumnType(DATE_OID, "pg_catalog.date", "date", "date"),
        ColumnType(TIMESTAMP_OID, "pg_catalog.timestamp", "timestamp without time zone", "timestamp"),
        ColumnType(TIMESTAMPTZ_OID, "pg_catalog.timestamptz", "timestamp with time zone", "timestamptz"),
    )
}
_ARRAYS = {
    1000: BOOL_OID,
    1001: BYTEA_OID,
    1005: INT2_OID,
    1007: INT4_OID,
    1009: TEXT_OID,
    1014: CHAR_OID,
    1015: VARCHAR_OID,
    1016: INT8_OID,
    1021: FLOAT4_OID,
    1022: FLOAT8_OID,
    1115: TIMESTAMP_OID,
    1182: DATE_OID,
    1183: TIME_OID,
    1185: TIMESTAMPTZ_OID,
    1187: INTERVAL_OID,
    1231: NUMERIC_OID,
    199: JSON_OID,
    2951: UUID_OID,
    3807: JSONB_OID,
}
_ARRAY_OIDS = {scalar: array for array, scalar in _ARRAYS.items()}
_PLAIN = {kind.iceberg: kind for kind in reversed(_SCALARS.values())}
_BY_NAME = {kind.shown: kind for kind in _SCALARS.values()}
KNOWN = (
    "boolean, smallint, integer, bigint, real, double precision, numeric(p,s), text, varchar, char(n), bytea, uuid,"
    " date, time, timestamp, timestamptz, interval, json, jsonb, and arrays of them"
)

_INSTEAD = {
    18: 'take text or char(1); "char" is PostgreSQL\'s internal type',
    19: "take text",
    26: "take bigint",
    142: "take text",
    790: "take numeric(p,s)",
    829: "take text",
    869: "take text",
    650: "take text",
    1266: "Iceberg has no time with a zone; take time or text",
    1560: "take text",
    1562: "take text",
    4072: "take text",
}
_NOT_READ = {
    "time": "Spark, which reads the lake for this door, has no such type",
    "timestamp_ns": "PostgreSQL's timestamps have microseconds",
    "timestamptz_ns": "PostgreSQL's timestamps have microseconds",
}

_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_FIXED = re.compile(r"fixed\[(\d+)\]")
_REMEMBERED = re.compile(r"(?P<word>[a-z]+(?: varying)?)(?:\((?P<numbers>[0-9,]+)\))?(?P<rest>(?: [a-z ]+)?)")
_INTERVAL = re.compile(r"interval(?P<fields>(?: [a-z]+)*)(?:\((?P<precision>\d)\))?")
_TIMED = (TIME_OID, TIMESTAMP_OID, TIMESTAMPTZ_OID)
_MICROSECONDS = 6

# interval's typmod: which fields, and how many digits of the seconds
_FULL_RANGE, _FULL_PRECISION = 0x7FFF, 0xFFFF
_YEAR, _MONTH, _DAY, _HOUR, _MINUTE, _SECOND = 1 << 2, 1 << 1, 1 << 3, 1 << 10, 1 << 11, 1 << 12
_FIELDS = {
    "": _FULL_RANGE,
    " year": _YEAR,
    " month": _MONTH,
    " day": _DAY,
    " hour": _HOUR,
    " minute": _MINUTE,
    " second": _SECOND,
    " year to month": _YEAR | _MONTH,
    " day to hour": _DAY | _HOUR,
    " day to minute": _DAY | _HOUR | _MINUTE,
    " day to second": _DAY | _HOUR | _MINUTE | _SECOND,
    " hour to minute": _HOUR | _MINUTE,
    " hour to second": _HOUR | _MINUTE | _SECOND,
    " minute to second": _MINUTE | _SECOND,
}
_FIELDS_SHOWN = {mask: fields for fields, mask in _FIELDS.items()}


# Making types ---------------------------------------------------------------------------------------------------------


def decimal(precision: int, scale: int) -> ColumnType:
    return ColumnType(
        NUMERIC_OID,
        f"pg_catalog.numeric({precision},{scale})",
        f"numeric({precision},{scale})",
        f"decimal({precision}, {scale})",
        (precision << 16 | scale) + 4,
    )


def array(element: ColumnType, *, element_required: bool = False) -> ColumnType:
    return ColumnType(
        _ARRAY_OIDS[element.oid],
        f"{element.sql}[]",
        f"{element.shown}[]",
        LIST,
        element.typmod,
        element,
        element_required,
    )


def _sized(oid: int, length: int) -> ColumnType:
    word, shown = ("varchar", "character varying") if oid == VARCHAR_OID else ("bpchar", "character")
    return ColumnType(oid, f"pg_catalog.{word}({length})", f"{shown}({length})", "string", length + 4)


def _timed(oid: int, digits: int) -> ColumnType:
    plain = _SCALARS[oid]
    if digits == _MICROSECONDS:
        return plain
    word, _, zone = plain.shown.partition(" ")
    return ColumnType(oid, f"{plain.sql}({digits})", f"{word}({digits}) {zone}", plain.iceberg, digits)


def _interval(fields: int, digits: int) -> ColumnType:
    plain = _SCALARS[INTERVAL_OID]
    if digits >= _MICROSECONDS:
        digits = _FULL_PRECISION
    if fields == _FULL_RANGE and digits == _FULL_PRECISION:
        return plain
    # interval is a word of the grammar's: no object of the client's can be meant
    shown = f"interval{_FIELDS_SHOWN[fields]}" + ("" if digits == _FULL_PRECISION else f"({digits})")
    return ColumnType(INTERVAL_OID, shown, shown, plain.iceberg, fields << 16 | digits)


# From Iceberg ---------------------------------------------------------------------------------------------------------


def from_iceberg(kind: Any, remembered: str | None = None) -> ColumnType:
    """``kind`` as it stands in an Iceberg schema: a text, or an object for nested types."""
    if isinstance(kind, str):
        return _fitting(_from_name(kind), remembered)
    nested = kind.get("type", "nested") if isinstance(kind, dict) else "nested"
    if nested != LIST:
        raise Unsupported(f"type {nested} is not supported yet", f"The SQL door knows: {KNOWN}.")
    inner = kind.get("element")
    if not isinstance(inner, str):
        what = inner.get("type", "nested") if isinstance(inner, dict) else "nested"
        raise Unsupported(f"type list of {what} is not supported yet", f"The SQL door knows: {KNOWN}.")
    if remembered is not None:
        remembered = remembered[:-2] if remembered.endswith("[]") else None
    element = _fitting(_from_name(inner), remembered)
    return array(element, element_required=bool(kind.get("element-required", False)))


def _from_name(kind: str) -> ColumnType:
    plain = _PLAIN.get(kind)
    if plain is not None:
        return plain
    if kind == "uuid":
        return ColumnType(UUID_OID, "pg_catalog.uuid", "uuid", "uuid")
    if _FIXED.fullmatch(kind):
        return ColumnType(BYTEA_OID, "pg_catalog.bytea", "bytea", kind)
    found = _DECIMAL.fullmatch(kind)
    if found:
        precision, scale = int(found[1]), int(found[2])
        if 1 <= precision <= MAX_PRECISION and scale <= precision:
            return decimal(precision, scale)
    why = _NOT_READ.get(kind)
    raise Unsupported(f"type {kind} is not supported{f': {why}' if why else ' yet'}", f"The SQL door knows: {KNOWN}.")


def _fitting(plain: ColumnType, remembered: str | None) -> ColumnType:
    """What is remembered, if it is stored as ``plain`` is; else ``plain``."""
    known = _from_shown(remembered) if remembered is not None else None
    return known if known is not None and known.iceberg == plain.iceberg else plain


def _alone(kind: ColumnType) -> ColumnType:
    if kind.element is None:
        return _from_name(kind.iceberg)
    return array(_alone(kind.element), element_required=kind.element_required)


def _from_shown(text: str) -> ColumnType | None:
    """A scalar by format_type()'s text; None if it is none of ours: it may be of a later Icefield."""
    plain = _BY_NAME.get(text)
    if plain is not None:
        return plain
    spans = _INTERVAL.fullmatch(text)
    if spans:
        fields = _FIELDS.get(spans["fields"])
        digits = int(spans["precision"]) if spans["precision"] else _FULL_PRECISION
        return None if fields is None else _interval(fields, digits)
    found = _REMEMBERED.fullmatch(text)
    if not found or not found["numbers"]:
        return None
    try:
        numbers = [int(number) for number in found["numbers"].split(",")]
    except ValueError:
        return None
    if found["word"] == "numeric" and len(numbers) == 2 and 1 <= numbers[0] <= MAX_PRECISION:
        return decimal(*numbers) if numbers[1] <= numbers[0] else None
    if len(numbers) != 1:
        return None
    if not found["rest"]:
        oid = {"character varying": VARCHAR_OID, "character": CHAR_OID}.get(found["word"])
        return _sized(oid, numbers[0]) if oid is not None and 1 <= numbers[0] <= 10485760 else None
    timed = _BY_NAME.get(found["word"] + found["rest"])
    return _timed(timed.oid, numbers[0]) if timed and timed.oid in _TIMED and numbers[0] <= _MICROSECONDS else None


# From PostgreSQL ------------------------------------------------------------------------------------------------------


def from_postgres(oid: int, typmod: int, shown: str) -> ColumnType:
    """``oid`` and ``typmod`` as in pg_attribute; ``shown`` is format_type's text, for the refusal."""
    element = _ARRAYS.get(oid)
    if element is not None:
        return array(from_postgres(element, typmod, shown))
    if oid == NUMERIC_OID:
        return _numeric(typmod, shown)
    if oid == CHAR_OID:
        if typmod < 5:
            raise Unsupported(
                f"{shown} without a length is not supported in an Iceberg table: blanks at its end would be lost",
                "Take text, or give the length.",
            )
        return _sized(oid, typmod - 4)
    plain = _SCALARS.get(oid)
    if plain is None:
        hint = _INSTEAD.get(oid)
        raise Unsupported(
            f"type {shown} is not supported in an Iceberg table yet",
            (f"{hint[0].upper()}{hint[1:]}. " if hint else "") + f"Supported are: {KNOWN}.",
        )
    if typmod < 0:
        return plain
    if oid == VARCHAR_OID:
        return _sized(oid, typmod - 4)
    if oid == INTERVAL_OID:
        return _interval(typmod >> 16 & _FULL_RANGE, typmod & 0xFFFF)
    return _timed(oid, typmod) if oid in _TIMED else plain


def _numeric(typmod: int, shown: str) -> ColumnType:
    if typmod < 4:
        raise Unsupported(
            "numeric without precision and scale cannot be stored in Iceberg",
            "Give both, as in numeric(18,2); at most 38 digits.",
        )
    precision = (typmod - 4) >> 16 & 0xFFFF
    scale = ((typmod - 4 & 0x7FF) ^ 1024) - 1024
    if precision > MAX_PRECISION:
        raise Unsupported(f"{shown} has more than 38 digits", "Iceberg stores at most numeric(38,s).")
    if not 0 <= scale <= precision:
        raise Unsupported(f"{shown} cannot be stored in Iceberg", "The scale must lie between 0 and the precision.")
    return decimal(precision, scale)


# Widening -------------------------------------------------------------------------------------------------------------

_PROMOTED = {("int", "long"), ("float", "double")}
_NUMBERS = (INT2_OID, INT4_OID, INT8_OID)
_FLOATS = (FLOAT4_OID, FLOAT8_OID)
_UNLIMITED = 1 << 30


def widens_to(old: ColumnType, new: ColumnType) -> bool:
    """Whether a column may become ``new`` by its metadata alone: files stay as they are, and every value in them then
    means what PostgreSQL's cast would have made of it. True for equal types."""
    if old == new:
        return True
    if old.element is not None and new.element is not None:
        return old.element_required == new.element_required and widens_to(old.element, new.element)
    if old.element is not None or new.element is not None:
        return False
    if old.oid == new.oid == NUMERIC_OID:
        return old.scale == new.scale and old.precision <= new.precision
    if old.iceberg != new.iceberg and (old.iceberg, new.iceberg) not in _PROMOTED:
        return False
    for ladder in (_NUMBERS, _FLOATS):
        if old.oid in ladder and new.oid in ladder:
            return ladder.index(old.oid) <= ladder.index(new.oid)
    if old.oid in (CHAR_OID, VARCHAR_OID):
        # char's blanks at the end are not stored, and its casts to the others take them away
        if new.oid == VARCHAR_OID or new.oid == old.oid:
            return (old.length or _UNLIMITED) <= (new.length or _UNLIMITED)
        return new.oid == TEXT_OID
    if new.oid in (VARCHAR_OID, TEXT_OID) and new.length is None:
        # uuid, jsonb … may have been written by others in another form than PostgreSQL's cast to text gives
        return old.oid in (TEXT_OID, JSON_OID)
    if old.oid == new.oid:
        return _digits(old) <= _digits(new) and (old.oid != INTERVAL_OID or new.typmod >> 16 in (-1, old.typmod >> 16))
    return False


def _digits(kind: ColumnType) -> int:
    if kind.typmod < 0:
        return _MICROSECONDS
    return min(kind.typmod & 0xFFFF, _MICROSECONDS)
