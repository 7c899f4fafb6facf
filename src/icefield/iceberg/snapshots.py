"""Snapshots, snapshot refs and statistics files as they stand in metadata: reading untrusted ones, small questions."""

from __future__ import annotations

from typing import Any, Final

from icefield.iceberg.shapes import (
    INT32_MAX,
    INT64_MAX,
    Json,
    as_int,
    as_list,
    as_object,
    as_snapshot_id,
    as_text,
    as_text_map,
    bad,
    describe,
    join,
    maybe_int,
    maybe_long,
    maybe_text,
    need,
    need_list,
    need_long,
    need_object,
    need_text,
    no_nulls,
)

MAIN: Final = "main"
ROW_LINEAGE_VERSION: Final = 3
OPERATIONS: Final = ("append", "replace", "overwrite", "delete")


# --- reading ---------------------------------------------------------------------------------------------------------


def read_snapshot(value: Any, path: str, *, version: int) -> Json:
    """A canonical snapshot as a client adds it to a table of format ``version``."""
    obj = as_object(value, path)
    snapshot: Json = {"snapshot-id": as_snapshot_id(need(obj, "snapshot-id", path), join(path, "snapshot-id"))}
    parent = read_snapshot_id_or_none(obj.get("parent-snapshot-id"), join(path, "parent-snapshot-id"))
    if parent is not None:
        snapshot["parent-snapshot-id"] = parent
    snapshot["sequence-number"] = need_long(obj, "sequence-number", path)
    snapshot["timestamp-ms"] = need_long(obj, "timestamp-ms", path)
    snapshot["manifest-list"] = need_text(obj, "manifest-list", path)
    summary_path = join(path, "summary")
    summary = as_text_map(need(obj, "summary", path), summary_path)
    operation = summary.get("operation")
    if operation not in OPERATIONS:
        found = "missing" if operation is None else describe(operation)
        raise bad(join(summary_path, "operation"), f"must be one of {', '.join(OPERATIONS)}; it is {found}")
    snapshot["summary"] = summary
    schema_id = maybe_int(obj, "schema-id", path)
    if schema_id is not None:
        snapshot["schema-id"] = schema_id
    if version >= ROW_LINEAGE_VERSION:
        # below format 3 row ids mean nothing, and would collide with real ones after an upgrade
        snapshot["first-row-id"] = need_long(obj, "first-row-id", path)
        snapshot["added-rows"] = need_long(obj, "added-rows", path)
    if obj.get("key-id") is not None:
        raise bad(join(path, "key-id"), "names an encryption key; encrypted tables are not supported")
    return snapshot


def read_snapshot_id_or_none(value: Any, path: str) -> int | None:
    """Absent, null and -1 (old writers) all mean no snapshot."""
    if value is None or (value == -1 and isinstance(value, int)):
        return None
    return as_snapshot_id(value, path)


def read_snapshot_ref(obj: Json, path: str) -> Json:
    """``{"snapshot-id", "type"}`` and the retention that was given."""
    ref: Json = {"snapshot-id": as_snapshot_id(need(obj, "snapshot-id", path), join(path, "snapshot-id"))}
    kind = need_text(obj, "type", path).lower()
    if kind not in {"branch", "tag"}:
        raise bad(join(path, "type"), f"must be branch or tag, not {describe(kind)}")
    ref["type"] = kind
    keep = maybe_int(obj, "min-snapshots-to-keep", path, low=1)
    age = maybe_long(obj, "max-snapshot-age-ms", path, low=1)
    ref_age = maybe_long(obj, "max-ref-age-ms", path, low=1)
    for key, number in (
        ("min-snapshots-to-keep", keep),
        ("max-snapshot-age-ms", age),
        ("max-ref-age-ms", ref_age),
    ):
        if number is None:
            continue
        if kind == "tag" and key != "max-ref-age-ms":
            raise bad(join(path, key), "does not apply to a tag")
        ref[key] = number
    return ref


def read_statistics(value: Any, path: str) -> Json:
    obj = as_object(value, path)
    result = read_partition_statistics(obj, path)
    result["file-footer-size-in-bytes"] = need_long(obj, "file-footer-size-in-bytes", path)
    key_metadata = maybe_text(obj, "key-metadata", path)
    if key_metadata is not None:
        result["key-metadata"] = key_metadata
    result["blob-metadata"] = [
        _read_blob(item, f"{path}.blob-metadata[{i}]") for i, item in enumerate(need_list(obj, "blob-metadata", path))
    ]
    return result


def _read_blob(value: Any, path: str) -> Json:
    obj = as_object(value, path)
    blob: Json = {
        "type": need_text(obj, "type", path),
        "snapshot-id": as_int(need(obj, "snapshot-id", path), join(path, "snapshot-id"), low=-(2**63), high=2**63 - 1),
        "sequence-number": need_long(obj, "sequence-number", path, low=-1),
        "fields": [as_int(item, f"{path}.fields[{i}]") for i, item in enumerate(need_list(obj, "fields", path))],
    }
    if obj.get("properties") is not None:
        blob["properties"] = as_text_map(obj["properties"], join(path, "properties"))
    return blob


def read_partition_statistics(value: Any, path: str) -> Json:
    obj = as_object(value, path)
    return {
        "snapshot-id": as_snapshot_id(need(obj, "snapshot-id", path), join(path, "snapshot-id")),
        "statistics-path": need_text(obj, "statistics-path", path),
        "file-size-in-bytes": need_long(obj, "file-size-in-bytes", path),
    }


def check_stored_snapshot(value: Any, path: str) -> Json:
    """A snapshot in a metadata file, perhaps by an old writer: what is there must be of the right type."""
    obj = as_object(value, path)
    if _plainly_good(obj):
        return obj
    as_snapshot_id(need(obj, "snapshot-id", path), join(path, "snapshot-id"))
    no_nulls(obj, ("parent-snapshot-id", "sequence-number", "summary"), path)
    read_snapshot_id_or_none(obj.get("parent-snapshot-id"), join(path, "parent-snapshot-id"))
    maybe_long(obj, "sequence-number", path)
    need_long(obj, "timestamp-ms", path)
    if "manifest-list" in obj:
        need_text(obj, "manifest-list", path)
    else:
        manifests = as_list(need(obj, "manifests", path), join(path, "manifests"))
        for i, item in enumerate(manifests):
            as_text(item, f"{path}.manifests[{i}]")
    if obj.get("summary") is not None:
        as_text_map(need_object(obj, "summary", path), join(path, "summary"))
    maybe_int(obj, "schema-id", path)
    if maybe_long(obj, "first-row-id", path) is not None:
        need_long(obj, "added-rows", path)
    maybe_long(obj, "added-rows", path)
    return obj


def _plainly_good(obj: Json) -> bool:
    """Most snapshots of a long table, told without making a path for every field. False only means: look closer."""
    get = obj.get
    numbers = (get("snapshot-id"), get("timestamp-ms"), get("sequence-number", 0), get("parent-snapshot-id", 0))
    small = (get("schema-id", 0), get("first-row-id", 0), get("added-rows", 0))
    if not all(type(number) is int and 0 <= number <= INT64_MAX for number in (*numbers, *small)):
        return False
    if small[0] > INT32_MAX or ("first-row-id" in obj and "added-rows" not in obj):
        return False
    location, summary = get("manifest-list"), get("summary")
    if type(location) is not str or not location or not location.isascii() or type(summary) is not dict:
        return False
    return all(type(text) is str and text.isascii() and key.isascii() for key, text in summary.items())


# --- questions to checked metadata -----------------------------------------------------------------------------------


def current_snapshot_id(meta: Json) -> int | None:
    """None for a table without snapshots, however its writer spelt that."""
    number = meta.get("current-snapshot-id")
    return None if number is None or number == -1 else int(number)


def no_current_snapshot(version: int) -> int | None:
    """How Java spells "no current snapshot": -1 before format 3, null since."""
    return None if version >= ROW_LINEAGE_VERSION else -1


def snapshot_refs(meta: Json) -> dict[str, Json]:
    """The table's snapshot refs; ``main`` is implied by the current snapshot where an old writer left it out."""
    refs: dict[str, Json] = meta.get("refs") or {}
    current = current_snapshot_id(meta)
    if current is not None and MAIN not in refs:
        return {**refs, MAIN: {"snapshot-id": current, "type": "branch"}}
    return refs


def snapshots_by_id(meta: Json) -> dict[int, Json]:
    return {snapshot["snapshot-id"]: snapshot for snapshot in meta.get("snapshots") or []}
