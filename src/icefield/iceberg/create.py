"""A createTable body becomes a table's first metadata, with ids of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from icefield.iceberg.properties import (
    DEFAULT_FORMAT_VERSION,
    NEW_TABLE_DEFAULTS,
    check_new_table,
    format_version_of,
    unreserved,
)
from icefield.iceberg.schemas import assign_fresh_ids, read_schema
from icefield.iceberg.shapes import INT32_MAX, Json, as_bool, as_object, as_text_map, maybe_text, need, need_text
from icefield.iceberg.snapshots import ROW_LINEAGE_VERSION, no_current_snapshot
from icefield.iceberg.sort_orders import UNSORTED, check_sort_order, fresh_sort_order, read_sort_order
from icefield.iceberg.specs import (
    NO_FIELD_ID,
    UNPARTITIONED,
    check_spec,
    fresh_spec,
    highest_partition_field_id,
    read_spec,
)
from icefield.model.names import check_level


@dataclass(frozen=True, slots=True)
class _Request:
    version: int
    schema: Json
    spec: Json
    order: Json
    properties: dict[str, str]
    location: str | None


def validate_create(request: Any) -> None:
    """The body of a createTable request is one that ``new_table`` will take. Raises BadRequest or NotSupported."""
    _build(_read(request))


def new_table(request: Any, *, table_uuid: str, location: str, now_ms: int) -> Json:
    """The metadata of a new, empty table. ``location`` is decided by the caller; the request's own is only checked."""
    read = _read(request)
    schema, last_column_id, spec, order = _build(read)
    meta = empty_metadata(read.version)
    meta["table-uuid"] = table_uuid
    meta["location"] = strip_slash(location)
    meta["last-updated-ms"] = now_ms
    meta["last-column-id"] = last_column_id
    meta["current-schema-id"] = schema["schema-id"]
    meta["schemas"] = [schema]
    meta["default-spec-id"] = spec["spec-id"]
    meta["partition-specs"] = [spec]
    meta["last-partition-id"] = highest_partition_field_id([spec])
    meta["default-sort-order-id"] = order["order-id"]
    meta["sort-orders"] = [order]
    meta["properties"] = {**NEW_TABLE_DEFAULTS, **unreserved(read.properties)}
    return meta


def empty_metadata(version: int) -> Json:
    """Metadata of format ``version`` that still lacks uuid, location, time, schema, spec and order."""
    meta: Json = {
        "format-version": version,
        "last-sequence-number": 0,
        "last-column-id": 0,
        "schemas": [],
        "partition-specs": [],
        "last-partition-id": NO_FIELD_ID,
        "sort-orders": [],
        "properties": {},
        "current-snapshot-id": no_current_snapshot(version),
        "refs": {},
        "snapshots": [],
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
    }
    if version >= ROW_LINEAGE_VERSION:
        meta["next-row-id"] = 0
    return meta


def strip_slash(location: str) -> str:
    """As Java stores locations: ``s3://bucket/t/`` is ``s3://bucket/t``, ``file:///`` stays a root."""
    while location.endswith("/") and not location.endswith("://") and len(location) > 1:
        location = location[:-1]
    return location


def _read(request: Any) -> _Request:
    obj = as_object(request, "request")
    name = need_text(obj, "name", "")
    check_level(name, "name")
    location = maybe_text(obj, "location", "")
    if obj.get("stage-create") is not None:
        as_bool(obj["stage-create"], "stage-create")
    properties: dict[str, str] = {}
    if obj.get("properties") is not None:
        properties = as_text_map(obj["properties"], "properties")
    check_new_table(properties, "properties")
    version = format_version_of(properties, "properties") or DEFAULT_FORMAT_VERSION
    # ids are only names inside the request here: any 32-bit number will do
    schema = read_schema(need(obj, "schema", ""), "schema", version=version, max_id=INT32_MAX)
    spec, order = UNPARTITIONED, UNSORTED
    if obj.get("partition-spec") is not None:
        spec = read_spec(obj["partition-spec"], "partition-spec")
    if obj.get("write-order") is not None:
        order = read_sort_order(obj["write-order"], "write-order")
    return _Request(version, schema, spec, order, properties, location)


def _build(read: _Request) -> tuple[Json, int, Json, Json]:
    numbered = assign_fresh_ids(read.schema)
    spec = fresh_spec(read.spec, numbered.new_ids, "partition-spec")
    check_spec(spec, numbered.schema, "partition-spec")
    order = fresh_sort_order(read.order, numbered.new_ids, "write-order")
    check_sort_order(order, numbered.schema, "write-order")
    return numbered.schema, numbered.last_id, spec, order
