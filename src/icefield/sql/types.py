"""Which column types the SQL door knows, in PostgreSQL's, Iceberg's and Arrow's words: one table, read both ways.

Contract: a type is here only if every value of one side that the other side can hold survives the way there and back
bit by bit. What is not here is refused with a sentence that says why and what to take instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

NUMERIC_OID = 1700
MAX_PRECISION = 38


@dataclass(frozen=True, slots=True)
class ColumnType:
    oid: int
    sql: str
    """Written so that no object of the client's can be meant instead."""
    iceberg: str
    precision: int = 0
    scale: int = 0

    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        if self.oid == NUMERIC_OID:
            return pa.decimal128(self.precision, self.scale)
        return {
            16: pa.bool_(),
            20: pa.int64(),
            23: pa.int32(),
            25: pa.string(),
            701: pa.float64(),
            1082: pa.date32(),
            1114: pa.timestamp("us"),
            1184: pa.timestamp("us", "UTC"),
        }[self.oid]


_PLAIN = {
    kind.iceberg: kind
    for kind in (
        ColumnType(16, "pg_catalog.bool", "boolean"),
        ColumnType(23, "pg_catalog.int4", "int"),
        ColumnType(20, "pg_catalog.int8", "long"),
        ColumnType(701, "pg_catalog.float8", "double"),
        ColumnType(25, "pg_catalog.text", "string"),
        ColumnType(1082, "pg_catalog.date", "date"),
        ColumnType(1114, "pg_catalog.timestamp", "timestamp"),
        ColumnType(1184, "pg_catalog.timestamptz", "timestamptz"),
    )
}
_BY_OID = {kind.oid: kind for kind in _PLAIN.values()}
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
KNOWN = "boolean, integer, bigint, double precision, numeric(p,s), text, date, timestamp, timestamptz"

_INSTEAD = {
    21: "take integer",
    26: "take bigint",
    700: "take double precision",
    1042: "take text",
    1043: "take text",
    19: "take text",
    114: "take text",
    3802: "take text",
    2950: "uuid comes later; take text",
    17: "bytea comes later",
    1083: "time comes later; take text",
    1266: "Iceberg has no time with a zone; take text",
    1186: "Iceberg has no interval; take text",
    790: "take numeric(p,s)",
}


class Unsupported(Exception):
    """Why a type cannot be a lake column's here; ``hint`` says what to take instead."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


def decimal(precision: int, scale: int) -> ColumnType:
    return ColumnType(
        NUMERIC_OID,
        f"pg_catalog.numeric({precision},{scale})",
        f"decimal({precision}, {scale})",
        precision,
        scale,
    )


def from_iceberg(kind: Any) -> ColumnType:
    """``kind`` as it stands in an Iceberg schema: a text, or an object for nested types."""
    if not isinstance(kind, str):
        nested = kind.get("type", "nested") if isinstance(kind, dict) else "nested"
        raise Unsupported(f"type {nested} is not supported yet", f"The SQL door knows: {KNOWN}.")
    plain = _PLAIN.get(kind)
    if plain is not None:
        return plain
    found = _DECIMAL.fullmatch(kind)
    if found:
        precision, scale = int(found[1]), int(found[2])
        if 1 <= precision <= MAX_PRECISION and scale <= precision:
            return decimal(precision, scale)
    raise Unsupported(f"type {kind} is not supported yet", f"The SQL door knows: {KNOWN}.")


def from_postgres(oid: int, typmod: int, shown: str) -> ColumnType:
    """``shown`` is format_type's text, for the refusal."""
    if oid == NUMERIC_OID:
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
    plain = _BY_OID.get(oid)
    if plain is None:
        hint = _INSTEAD.get(oid)
        raise Unsupported(
            f"type {shown} is not supported in an Iceberg table yet",
            (f"{hint[0].upper()}{hint[1:]}. " if hint else "") + f"Supported are: {KNOWN}.",
        )
    if typmod not in (-1, 6):
        raise Unsupported(
            f"type {shown} is not supported in an Iceberg table: Iceberg's timestamps have microseconds",
            "Leave the precision out.",
        )
    return plain
