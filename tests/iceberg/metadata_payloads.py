"""What real clients send and store, as JSON: shared by the tests of the metadata engine."""

from __future__ import annotations

import copy
from typing import Any

from icefield.iceberg.metadata import apply_updates, new_table

NOW = 1_790_000_000_000
UUID = "0b6f3c52-7c5e-4f0e-9a0f-0d8a3a1e6f01"
LOCATION = "file:///lake/sales/orders"

Json = dict[str, Any]


def spark_create(version: str = "2") -> Json:
    """Spark's CREATE TABLE: ids from 0, an explicit spec, the format version as a property."""
    return {
        "name": "orders",
        "location": None,
        "schema": {
            "type": "struct",
            "schema-id": 0,
            "fields": [
                {"id": 0, "name": "id", "required": False, "type": "long"},
                {"id": 1, "name": "ts", "required": False, "type": "timestamptz"},
                {
                    "id": 2,
                    "name": "address",
                    "required": False,
                    "type": {
                        "type": "struct",
                        "fields": [
                            {"id": 5, "name": "street", "required": False, "type": "string"},
                            {"id": 6, "name": "zip", "required": False, "type": "int"},
                        ],
                    },
                },
                {
                    "id": 3,
                    "name": "tags",
                    "required": False,
                    "type": {"type": "list", "element-id": 7, "element": "string", "element-required": False},
                },
                {
                    "id": 4,
                    "name": "prices",
                    "required": False,
                    "type": {
                        "type": "map",
                        "key-id": 8,
                        "key": "string",
                        "value-id": 9,
                        "value": "decimal(10,2)",
                        "value-required": False,
                    },
                },
            ],
        },
        "partition-spec": {
            "spec-id": 0,
            "fields": [{"name": "ts_day", "transform": "day", "source-id": 1, "field-id": 1000}],
        },
        "write-order": None,
        "properties": {"owner": "ann", "format-version": version},
        "stage-create": False,
    }


def pyiceberg_create() -> Json:
    """PyIceberg numbers from 1, and always sends spec and order."""
    return {
        "name": "orders",
        "location": None,
        "schema": {
            "type": "struct",
            "fields": [
                {"id": 1, "name": "id", "type": "long", "required": True},
                {"id": 2, "name": "region", "type": "string", "required": False, "doc": "where"},
            ],
            "schema-id": 0,
            "identifier-field-ids": [1],
        },
        "partition-spec": {"spec-id": 0, "fields": []},
        "write-order": {
            "order-id": 1,
            "fields": [{"source-id": 2, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}],
        },
        "stage-create": False,
        "properties": {},
    }


def duckdb_create() -> Json:
    """DuckDB leaves out what it does not use."""
    return {
        "name": "orders",
        "schema": {
            "type": "struct",
            "schema-id": 0,
            "identifier-field-ids": [],
            "fields": [{"name": "id", "id": 1, "type": "int", "required": False}],
        },
        "partition-spec": {"spec-id": 0, "fields": []},
        "properties": {"format-version": "2"},
    }


def table(version: int = 2) -> Json:
    return new_table(spark_create(str(version)), table_uuid=UUID, location=LOCATION, now_ms=NOW)


def snapshot(number: int, meta: Json, *, parent: int | None = None, rows: int = 10, **more: Any) -> Json:
    """A snapshot that fits ``meta``, as Java writes it."""
    made: Json = {
        "snapshot-id": number,
        "sequence-number": meta["last-sequence-number"] + 1,
        "timestamp-ms": NOW + meta["last-sequence-number"] + 1,
        "summary": {"operation": "append", "added-records": str(rows), "engine-name": "spark"},
        "manifest-list": f"{LOCATION}/metadata/snap-{number}.avro",
        "schema-id": meta.get("current-schema-id", 0),
    }
    if parent is not None:
        made["parent-snapshot-id"] = parent
    if meta["format-version"] >= 3:
        made["first-row-id"] = meta["next-row-id"]
        made["added-rows"] = rows
    return {**made, **more}


def insert(number: int, meta: Json, **more: Any) -> list[Json]:
    """What Spark's INSERT posts."""
    current = meta.get("current-snapshot-id")
    parent = None if current in {None, -1} else current
    return [
        {"action": "add-snapshot", "snapshot": snapshot(number, meta, parent=parent, **more)},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number},
    ]


def with_snapshots(count: int, version: int = 2) -> Json:
    """A table with snapshots 1 to ``count``, one after the other on main."""
    meta = table(version)
    for number in range(1, count + 1):
        meta = apply_updates(meta, insert(number, meta), now_ms=NOW + number)
    return meta


def spark_ctas(staged: Json) -> list[Json]:
    """Java's create transaction: the staged table as updates, then what the query wrote."""
    empty = {**staged, "last-sequence-number": 0, "current-snapshot-id": None}
    return copy.deepcopy(
        [
            {"action": "assign-uuid", "uuid": staged["table-uuid"]},
            {"action": "upgrade-format-version", "format-version": staged["format-version"]},
            {"action": "add-schema", "schema": staged["schemas"][0], "last-column-id": staged["last-column-id"]},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": staged["partition-specs"][0]},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-location", "location": staged["location"]},
            {"action": "set-properties", "updates": staged["properties"]},
            *insert(77, empty),
        ]
    )


def with_column(meta: Json, field_id: int, name: str, kind: Any = "string", **more: Any) -> Json:
    """The current schema and one more column, under the id a client would guess for it."""
    current = next(row for row in meta["schemas"] if row["schema-id"] == meta["current-schema-id"])
    field = {"id": field_id, "name": name, "required": False, "type": kind, **more}
    return {**current, "schema-id": current["schema-id"] + 1, "fields": [*current["fields"], field]}


def add_column(meta: Json, field_id: int, name: str, **more: Any) -> list[Json]:
    """Spark's ALTER TABLE ADD COLUMN."""
    return [
        {"action": "add-schema", "schema": with_column(meta, field_id, name, **more), "last-column-id": field_id},
        {"action": "set-current-schema", "schema-id": -1},
    ]
