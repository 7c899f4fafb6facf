"""Columns as Iceberg's JSON: schema, partition spec, identifier fields, the JSON form of a default's value."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from icefield.pgwire.errors import PgError
from icefield.sql.ddl import remembered
from icefield.sql.ddl.remembered import Memory
from icefield.sql.shadows import Column
from icefield.sql.statements import PartitionPart
from icefield.sql.types import ColumnType

Json = dict[str, Any]


def iceberg_field(column: Column, next_id: Callable[[], int]) -> Json:
    field: Json = {
        "id": column.field_id,
        "name": column.name,
        "required": column.required,
        "type": column.type.iceberg_json(next_id),
    }
    if column.comment is not None:
        field["doc"] = column.comment
    return field


def iceberg_schema(columns: Sequence[Column], memory: Memory) -> Json:
    """Of a new table. Columns have the ids 1, 2, 3 …, what is nested in them the next, as on the server."""
    last = len(columns)

    def next_id() -> int:
        nonlocal last
        last += 1
        return last

    schema: Json = {
        "type": "struct",
        "schema-id": 0,
        "fields": [iceberg_field(column, next_id) for column in columns],
    }
    identifiers = identifier_ids(memory, {field["id"]: field for field in schema["fields"]})
    if identifiers:
        schema["identifier-field-ids"] = identifiers
    return schema


def identifier_ids(memory: Memory, fields: Mapping[int, Json]) -> list[int]:
    """The primary key, where Iceberg can have it: of required fields that are neither nested nor floats."""
    primary = next((key for key in memory.keys if key.primary), None)
    if primary is None:
        return []
    for field_id in primary.field_ids:
        kind = fields[field_id]["type"]
        if not fields[field_id]["required"] or not isinstance(kind, str) or kind in ("float", "double"):
            return []
    return sorted(primary.field_ids)


def type_properties(columns: Sequence[Column]) -> dict[str, str]:
    """What the Iceberg types do not tell."""
    return {
        f"{remembered.PG_TYPE}{column.field_id}": column.type.remembered
        for column in columns
        if column.type.remembered is not None
    }


def json_value(value: Any) -> Any:
    """A stored value as Iceberg's JSON for a single value; None where it has none."""
    match value:
        case bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case decimal.Decimal():
            return format(value, "f")
        case datetime.datetime():
            text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return text if value.tzinfo is None else f"{text}+00:00"
        case datetime.date():
            return value.isoformat()
        case bytes():
            return value.hex()
        case _:
            return None


def some_value(kind: ColumnType) -> Any:
    """A value of the type in Iceberg's JSON, no matter which; None where it has none."""
    if kind.iceberg.startswith("decimal"):
        return format(decimal.Decimal(0).scaleb(-kind.scale), "f")
    return {
        "boolean": False,
        "int": 0,
        "long": 0,
        "float": 0.0,
        "double": 0.0,
        "string": "",
        "binary": "",
        "date": "1970-01-01",
        "timestamp": "1970-01-01T00:00:00.000000",
        "timestamptz": "1970-01-01T00:00:00.000000+00:00",
    }.get(kind.iceberg)


_DATES = ("date", "timestamp", "timestamptz")
_SUITS = {
    "bucket": ("int", "long", "decimal", "string", "binary", *_DATES),
    "truncate": ("int", "long", "decimal", "string", "binary"),
    "year": _DATES,
    "month": _DATES,
    "day": _DATES,
    "hour": ("timestamp", "timestamptz"),
}
_SHORT = {"bucket": "bucket", "truncate": "trunc"}


def partition_spec(parts: Sequence[PartitionPart], columns: Sequence[Column]) -> Json:
    by_name = {column.name: column for column in columns}
    fields: list[Json] = []
    names: set[str] = set()
    for number, part in enumerate(parts):
        if part.column not in by_name:
            raise PgError("42703", f'column "{part.column}" does not exist', position=part.at + 1)
        source = by_name[part.column]
        word, _, width = part.transform.partition("[")
        iceberg = source.type.iceberg
        if iceberg == "list" or (word in _SUITS and iceberg.partition("(")[0] not in _SUITS[word]):
            takes = ", ".join(_SUITS[word]) if word in _SUITS else "everything but arrays"
            raise PgError(
                "42804",
                f'{word} cannot be applied to column "{part.column}" of type {iceberg}',
                hint=f"It takes: {takes}.",
                position=part.at + 1,
            )
        name = part.column if word == "identity" else f"{part.column}_{word if not width else _SHORT[word]}"
        if name in names or (word != "identity" and name in by_name):
            raise PgError("42P16", f'partition field "{name}" is there twice', position=part.at + 1)
        names.add(name)
        fields.append(
            {"name": name, "transform": part.transform, "source-id": source.field_id, "field-id": 1000 + number}
        )
    return {"spec-id": 0, "fields": fields}
