"""What holds of every table metadata: checked when a file comes from outside, and by the tests after every change."""

from __future__ import annotations

from typing import Any, Final

from icefield.iceberg import sort_orders, specs
from icefield.iceberg.properties import supported_version
from icefield.iceberg.schemas import DEFAULTS_VERSION, fields_by_id, read_schema
from icefield.iceberg.shapes import (
    INT32_MAX,
    INT64_MAX,
    Json,
    as_int,
    as_list,
    as_object,
    as_text,
    as_text_map,
    as_uuid,
    bad,
    join,
    maybe_list,
    need,
    need_int,
    need_list,
    need_long,
    need_text,
    no_nulls,
)
from icefield.iceberg.snapshots import (
    MAIN,
    ROW_LINEAGE_VERSION,
    check_stored_snapshot,
    read_partition_statistics,
    read_snapshot_id_or_none,
    read_snapshot_ref,
    read_statistics,
    snapshot_refs,
)

CLOCK_TOLERANCE_MS: Final = 60_000
"""How far Java lets logs go back in time."""
_NO_NULLS: Final = (
    "properties",
    "schemas",
    "partition-specs",
    "sort-orders",
    "snapshots",
    "refs",
    "statistics",
    "partition-statistics",
)


def check_metadata(meta: Any) -> None:
    """Raises BadRequest naming the field that is wrong, NotSupported for another format version.

    What it accepts Java can load and every function of this package can work on. Unknown fields are let be.
    """
    obj = as_object(meta, "metadata")
    version = supported_version(need_int(obj, "format-version", "", low=1), "format-version")
    as_uuid(need(obj, "table-uuid", ""), "table-uuid")
    need_text(obj, "location", "")
    no_nulls(obj, _NO_NULLS, "")
    if "properties" in obj:
        as_text_map(obj["properties"], "properties")
    if maybe_list(obj, "encryption-keys", ""):
        raise bad("encryption-keys", "are not supported: encrypted tables can't be served")
    schema = _check_schemas(obj)
    _check_specs(obj, schema)
    _check_sort_orders(obj, schema)
    _check_snapshots(obj, version)
    _check_logs(obj)
    for i, item in enumerate(maybe_list(obj, "statistics", "")):
        read_statistics(item, f"statistics[{i}]")
    for i, item in enumerate(maybe_list(obj, "partition-statistics", "")):
        read_partition_statistics(item, f"partition-statistics[{i}]")


def _check_schemas(obj: Json) -> Json:
    last = need_int(obj, "last-column-id", "")
    current = need_int(obj, "current-schema-id", "")
    found: Json | None = None
    seen: set[int] = set()
    for i, item in enumerate(need_list(obj, "schemas", "")):
        path = f"schemas[{i}]"
        # whatever version: Java, too, loads types that are newer than the table
        schema = read_schema(item, path, version=DEFAULTS_VERSION, max_id=INT32_MAX)
        need(item, "type", path)
        number = need_int(schema, "schema-id", path)
        if number in seen:
            raise bad(f"{path}.schema-id", f"{number} is used twice")
        seen.add(number)
        if number == current:
            found = schema
        for field in fields_by_id(schema).values():
            if field.id > last:
                raise bad("last-column-id", f"is {last}, below field {field.id} ({field.name!a}) of schema {number}")
    if found is None:
        raise bad("current-schema-id", f"is {current}, but there is no such schema")
    return found


def _check_specs(obj: Json, schema: Json) -> None:
    last = need_int(obj, "last-partition-id", "")
    default = need_int(obj, "default-spec-id", "")
    seen: set[int] = set()
    for i, item in enumerate(need_list(obj, "partition-specs", "")):
        path = f"partition-specs[{i}]"
        spec = specs.read_spec(item, path, known_transforms=False)
        for k, field in enumerate(item["fields"]):
            no_nulls(field, ("field-id",), f"{path}.fields[{k}]")
        number = need_int(spec, "spec-id", path)
        if number in seen:
            raise bad(f"{path}.spec-id", f"{number} is used twice")
        seen.add(number)
        highest = specs.highest_partition_field_id([spec])
        if highest > last and spec["fields"]:
            raise bad("last-partition-id", f"is {last}, below partition field {highest} of spec {number}")
        if number == default:
            specs.check_spec(spec, schema, path)
        else:
            specs.check_names(spec, schema, path)
    if default not in seen:
        raise bad("default-spec-id", f"is {default}, but there is no such partition spec")


def _check_sort_orders(obj: Json, schema: Json) -> None:
    default = need_int(obj, "default-sort-order-id", "")
    seen: set[int] = set()
    for i, item in enumerate(need_list(obj, "sort-orders", "")):
        path = f"sort-orders[{i}]"
        order = sort_orders.read_sort_order(item, path, known_transforms=False)
        number = need_int(order, "order-id", path)
        if number in seen:
            raise bad(f"{path}.order-id", f"{number} is used twice")
        seen.add(number)
        if (number == sort_orders.UNSORTED_ID) == bool(order["fields"]):
            raise bad(f"{path}.order-id", f"is {number}; 0 is for the unsorted order, and only for it")
        if number == default:
            sort_orders.check_sort_order(order, schema, path)
    if default not in seen:
        raise bad("default-sort-order-id", f"is {default}, but there is no such sort order")


def _check_snapshots(obj: Json, version: int) -> None:
    last_sequence = need_long(obj, "last-sequence-number", "")
    next_row = need_long(obj, "next-row-id", "") if version >= ROW_LINEAGE_VERSION else None
    known: set[int] = set()
    for i, item in enumerate(maybe_list(obj, "snapshots", "")):
        path = f"snapshots[{i}]"
        snapshot = check_stored_snapshot(item, path)
        number = snapshot["snapshot-id"]
        if number in known:
            raise bad(f"{path}.snapshot-id", f"{number} is used twice")
        known.add(number)
        sequence = snapshot.get("sequence-number") or 0
        if sequence > last_sequence:
            raise bad("last-sequence-number", f"is {last_sequence}, below the {sequence} of snapshot {number}")
        first = snapshot.get("first-row-id")
        if next_row is not None and first is not None:
            after = first + (snapshot.get("added-rows") or 0)
            if after > next_row:
                raise bad("next-row-id", f"is {next_row}, below the row ids of snapshot {number}, which end at {after}")
    current = read_snapshot_id_or_none(obj.get("current-snapshot-id"), "current-snapshot-id")
    if current is not None and current not in known:
        raise bad("current-snapshot-id", f"is {current}, but there is no such snapshot")
    refs = obj.get("refs")
    if refs is not None:
        for name, item in as_object(refs, "refs").items():
            path = f"refs[{as_text(name, 'a key of refs', empty=True)!a}]"
            ref = read_snapshot_ref(as_object(item, path), path)
            if ref["snapshot-id"] not in known:
                raise bad(join(path, "snapshot-id"), f"is {ref['snapshot-id']}, but there is no such snapshot")
    main = snapshot_refs(obj).get(MAIN)
    if main is not None and main["snapshot-id"] != current:
        shown = "not set" if current is None else current
        raise bad("current-snapshot-id", f"is {shown}, but snapshot ref main is at {main['snapshot-id']}")
    if main is not None and main["type"].lower() != "branch":
        raise bad("refs['main'].type", "must be branch")


def _check_logs(obj: Json) -> None:
    updated = need_long(obj, "last-updated-ms", "")
    last = None
    for i, item in enumerate(maybe_list(obj, "snapshot-log", "")):
        path = f"snapshot-log[{i}]"
        entry = as_object(item, path)
        as_int(need(entry, "snapshot-id", path), join(path, "snapshot-id"), low=-INT64_MAX - 1, high=INT64_MAX)
        last = _later(entry, path, last)
    _not_before(updated, last, "snapshot-log")
    last = None
    for i, item in enumerate(as_list(obj.get("metadata-log") or [], "metadata-log")):
        path = f"metadata-log[{i}]"
        entry = as_object(item, path)
        need_text(entry, "metadata-file", path)
        last = _later(entry, path, last)
    _not_before(updated, last, "metadata-log")


def _later(entry: Json, path: str, last: int | None) -> int:
    moment = need_long(entry, "timestamp-ms", path)
    if last is not None and moment < last - CLOCK_TOLERANCE_MS:
        raise bad(join(path, "timestamp-ms"), "is before the entry it follows")
    return moment


def _not_before(updated: int, last: int | None, log: str) -> None:
    if last is not None and updated < last - CLOCK_TOLERANCE_MS:
        raise bad("last-updated-ms", f"is before the last entry of {log}")
