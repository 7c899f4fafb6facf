"""The updates of a table commit, one function each, applied in order to a draft.

``apply_updates`` is pure: it answers new metadata and leaves base and updates as they are. It raises BadRequest naming
the update and its field, NotSupported for what this version does not do, StaleSnapshot (a CommitConflict) for a
snapshot that is numbered for an older head, CommitConflict where a change reuses what somebody else took first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from icefield.iceberg import sort_orders, specs
from icefield.iceberg.create import strip_slash
from icefield.iceberg.draft import Draft
from icefield.iceberg.properties import (
    DEFAULT_FORMAT_VERSION,
    FORMAT_VERSION,
    format_version_of,
    supported_version,
    unreserved,
)
from icefield.iceberg.schemas import canonical, highest_field_id, read_schema, same_schema
from icefield.iceberg.shapes import (
    Json,
    as_int,
    as_list,
    as_object,
    as_snapshot_id,
    as_text,
    as_text_map,
    as_uuid,
    bad,
    describe,
    join,
    maybe_int,
    need,
    need_int,
    need_list,
    need_text,
)
from icefield.iceberg.snapshots import (
    MAIN,
    ROW_LINEAGE_VERSION,
    current_snapshot_id,
    no_current_snapshot,
    read_partition_statistics,
    read_snapshot,
    read_snapshot_id_or_none,
    read_snapshot_ref,
    read_statistics,
)
from icefield.iceberg.stale import StaleSnapshot
from icefield.model.errors import BadRequest, CommitConflict, NotSupported

LAST_ADDED: Final = -1
"""As an id in an update: the one that was added last in the same commit."""


def apply_updates(base: Json | None, updates: Any, *, now_ms: int) -> Json:
    """The metadata after a commit. ``base`` None: the updates create the table (what assert-create goes with)."""
    rows = [as_object(item, f"updates[{i}]") for i, item in enumerate(as_list(updates, "updates"))]
    if base is None:
        version = _initial_version(rows)
    else:
        version = supported_version(base["format-version"], "format-version")
    draft = Draft(base, version=version, now_ms=now_ms)
    for i, update in enumerate(rows):
        path = f"updates[{i}]"
        action = _action(update, path)
        try:
            UPDATES[action](draft, update, path)
        except BadRequest as error:
            raise BadRequest(f"{action}: {error.message}", field=error.field) from None
        except NotSupported as error:
            raise NotSupported(f"{action}: {error.message}") from None
    return draft.finish()


def _action(update: Json, path: str) -> str:
    action = need_text(update, "action", path).lower()
    if action not in UPDATES:
        raise bad(join(path, "action"), f"names no update that can be applied to a table: {describe(action)}")
    return action


def _initial_version(rows: list[Json]) -> int:
    """A new table begins at the version its commit upgrades to, as in Java."""
    for i, update in enumerate(rows):
        if update.get("action") == "upgrade-format-version":
            return _version(update, f"updates[{i}]")
    return DEFAULT_FORMAT_VERSION


def _version(update: Json, path: str) -> int:
    return supported_version(need_int(update, "format-version", path, low=1), join(path, "format-version"))


# --- the table itself ------------------------------------------------------------------------------------------------


def _assign_uuid(draft: Draft, update: Json, path: str) -> None:
    uuid = as_uuid(need(update, "uuid", path), join(path, "uuid"))
    known = draft.meta.get("table-uuid")
    if known is None:
        draft.meta["table-uuid"] = uuid
    elif known.lower() != uuid.lower():
        raise bad(join(path, "uuid"), f"is {uuid}, but the table already has uuid {known}, which never changes")


def _upgrade_format_version(draft: Draft, update: Json, path: str) -> None:
    _upgrade(draft, _version(update, path), join(path, "format-version"))


def _upgrade(draft: Draft, version: int, path: str) -> None:
    if version < draft.version:
        raise bad(path, f"is {version}, but the table has {draft.version}: a table can't be downgraded")
    if version == draft.version:
        return
    draft.meta["format-version"] = version
    if version >= ROW_LINEAGE_VERSION:
        # Java can't read format 3 without it; old rows keep null row ids
        draft.meta.setdefault("next-row-id", 0)
        if current_snapshot_id(draft.meta) is None:
            draft.meta["current-snapshot-id"] = no_current_snapshot(version)


def _set_location(draft: Draft, update: Json, path: str) -> None:
    draft.meta["location"] = strip_slash(need_text(update, "location", path))


def _set_properties(draft: Draft, update: Json, path: str) -> None:
    key = "updates" if "updates" in update or "updated" not in update else "updated"
    at = join(path, key)
    properties = as_text_map(need(update, key, path), at)
    if FORMAT_VERSION in properties:
        # an order, not a value: Java's own table API turns it into an upgrade
        version = format_version_of(properties, at)
        if version is not None:
            _upgrade(draft, version, f"{at}[{FORMAT_VERSION!r}]")
    draft.properties().update(unreserved(properties))


def _remove_properties(draft: Draft, update: Json, path: str) -> None:
    key = "removals" if "removals" in update or "removed" not in update else "removed"
    removals = [as_text(item, f"{path}.{key}[{i}]", empty=True) for i, item in enumerate(need_list(update, key, path))]
    properties = draft.properties()
    for name in removals:
        properties.pop(name, None)


# --- schemas ---------------------------------------------------------------------------------------------------------


def _add_schema(draft: Draft, update: Json, path: str) -> None:
    at = join(path, "schema")
    schema = read_schema(need(update, "schema", path), at, version=draft.version)
    # checked for its type only: the client computed it from what it was served, which may be raised above the truth
    maybe_int(update, "last-column-id", path)
    given = schema.pop("schema-id", None)
    schema_id = _schema_id(draft, schema)
    if draft.by_id("schemas", "schema-id", schema_id) is None:
        draft.rows("schemas").append({"type": "struct", "schema-id": schema_id, **schema})
        draft.meta["last-column-id"] = max(draft.meta["last-column-id"], highest_field_id(schema))
        draft.reshaped = True
    if given is not None:
        draft.client_schema_ids[given] = schema_id
    draft.last_schema = schema_id


def _schema_id(draft: Draft, schema: Json) -> int:
    """The id of an equal schema, else one above all. The client's own number is only a guess at this."""
    fresh = draft.meta.get("current-schema-id", 0)
    for other in draft.meta["schemas"]:
        known: int = other.get("schema-id", 0)
        if same_schema(canonical(other), schema):
            return known
        fresh = max(fresh, known + 1)
    return int(fresh)


def _set_current_schema(draft: Draft, update: Json, path: str) -> None:
    number = _chosen(update, "schema-id", path, draft.last_schema, "add-schema")
    if draft.by_id("schemas", "schema-id", number) is None:
        raise bad(join(path, "schema-id"), f"names schema {number}, which the table does not have")
    if draft.meta.get("current-schema-id") != number:
        draft.meta["current-schema-id"] = number
        draft.reshaped = True


def _remove_schemas(draft: Draft, update: Json, path: str) -> None:
    ids = _int_set(update, "schema-ids", path)
    if draft.meta.get("current-schema-id") in ids:
        raise bad(join(path, "schema-ids"), "names the table's current schema")
    draft.removed_schemas |= ids
    draft.replace_rows("schemas", [schema for schema in draft.meta["schemas"] if schema.get("schema-id") not in ids])
    draft.reshaped = True


def _chosen(update: Json, key: str, path: str, last_added: int | None, adder: str) -> int:
    number = need_int(update, key, path, low=LAST_ADDED)
    if number != LAST_ADDED:
        return number
    if last_added is None:
        raise bad(join(path, key), f"is -1, the last one added, but this commit has no {adder} before it")
    return last_added


def _int_set(update: Json, key: str, path: str) -> set[int]:
    return {as_int(item, f"{path}.{key}[{i}]") for i, item in enumerate(need_list(update, key, path))}


# --- partition specs -------------------------------------------------------------------------------------------------


def _add_spec(draft: Draft, update: Json, path: str) -> None:
    at = join(path, "spec")
    spec = specs.read_spec(need(update, "spec", path), at)
    existing = draft.meta["partition-specs"]
    known = next((other for other in existing if specs.same_fields(spec, other)), None)
    if known is not None:
        draft.last_spec = known["spec-id"]
    else:
        draft.last_spec = 1 + max((other["spec-id"] for other in existing), default=-1)
        specs.check_spec(spec, canonical(draft.current_schema(path)), at)
        fields = specs.with_field_ids(spec, existing, draft.meta["last-partition-id"], at)
        added = {"spec-id": draft.last_spec, "fields": fields}
        draft.rows("partition-specs").append(added)
        highest = specs.highest_partition_field_id([added])
        draft.meta["last-partition-id"] = max(draft.meta["last-partition-id"], highest)
        draft.reshaped = True
    if "spec-id" in spec:
        draft.client_spec_ids[spec["spec-id"]] = draft.last_spec


def _set_default_spec(draft: Draft, update: Json, path: str) -> None:
    number = _chosen(update, "spec-id", path, draft.last_spec, "add-spec")
    if draft.by_id("partition-specs", "spec-id", number) is None:
        raise bad(join(path, "spec-id"), f"names partition spec {number}, which the table does not have")
    if draft.meta.get("default-spec-id") != number:
        draft.meta["default-spec-id"] = number
        draft.reshaped = True


def _remove_partition_specs(draft: Draft, update: Json, path: str) -> None:
    ids = _int_set(update, "spec-ids", path)
    if draft.meta.get("default-spec-id") in ids:
        raise bad(join(path, "spec-ids"), "names the table's default partition spec")
    kept = [spec for spec in draft.meta["partition-specs"] if spec["spec-id"] not in ids]
    draft.replace_rows("partition-specs", kept)
    draft.reshaped = True


# --- sort orders -----------------------------------------------------------------------------------------------------


def _add_sort_order(draft: Draft, update: Json, path: str) -> None:
    at = join(path, "sort-order")
    order = sort_orders.read_sort_order(need(update, "sort-order", path), at)
    order_id = sort_orders.FIRST_ORDER_ID if order["fields"] else sort_orders.UNSORTED_ID
    for other in draft.meta["sort-orders"]:
        if sort_orders.same_fields(order, other):
            draft.last_order = other["order-id"]
            return
        if order["fields"]:
            order_id = max(order_id, other["order-id"] + 1)
    sort_orders.check_sort_order(order, canonical(draft.current_schema(path)), at)
    draft.rows("sort-orders").append({"order-id": order_id, "fields": order["fields"]})
    draft.last_order = order_id
    draft.reshaped = True


def _set_default_sort_order(draft: Draft, update: Json, path: str) -> None:
    number = _chosen(update, "sort-order-id", path, draft.last_order, "add-sort-order")
    if draft.by_id("sort-orders", "order-id", number) is None:
        raise bad(join(path, "sort-order-id"), f"names sort order {number}, which the table does not have")
    if draft.meta.get("default-sort-order-id") != number:
        draft.meta["default-sort-order-id"] = number
        draft.reshaped = True


# --- snapshots -------------------------------------------------------------------------------------------------------


def _add_snapshot(draft: Draft, update: Json, path: str) -> None:
    at = join(path, "snapshot")
    snapshot = read_snapshot(need(update, "snapshot", path), at, version=draft.version)
    snapshot_id: int = snapshot["snapshot-id"]
    if snapshot_id in draft.snapshot_ids():
        raise bad(join(at, "snapshot-id"), f"is {snapshot_id}, which the table already has")
    if "schema-id" in snapshot:
        snapshot["schema-id"] = _snapshot_schema_id(draft, snapshot["schema-id"], join(at, "schema-id"))
    _check_spec_guesses(draft, snapshot_id, at)
    sequence: int = snapshot["sequence-number"]
    if sequence <= draft.meta["last-sequence-number"]:
        raise StaleSnapshot(
            snapshot_id=snapshot_id,
            field="sequence-number",
            given=sequence,
            position=draft.meta["last-sequence-number"],
        )
    if draft.version >= ROW_LINEAGE_VERSION:
        _advance_row_ids(draft, snapshot, at)
    draft.meta["last-sequence-number"] = sequence
    draft.rows("snapshots").append(snapshot)
    draft.snapshot_ids().add(snapshot_id)
    draft.added_snapshots[snapshot_id] = snapshot


def _snapshot_schema_id(draft: Draft, given: int, path: str) -> int:
    """A client numbers a schema it adds by its own guess, and its snapshots with it."""
    if draft.by_id("schemas", "schema-id", given) is not None:
        return given
    if given in draft.client_schema_ids:
        return draft.client_schema_ids[given]
    raise bad(path, f"names schema {given}, which the table does not have")


def _check_spec_guesses(draft: Draft, snapshot_id: int, path: str) -> None:
    """Manifests name their spec by the client's guess at its id, and can't be told otherwise."""
    for guess, spec_id in draft.client_spec_ids.items():
        if guess == spec_id:
            continue
        problem = f"was written with the new partition spec as number {guess}, but that spec is number {spec_id}"
        if draft.base is None:
            raise bad(path, problem)
        raise CommitConflict(f"snapshot {snapshot_id} {problem}; reload the table and try again")


def _advance_row_ids(draft: Draft, snapshot: Json, path: str) -> None:
    first: int = snapshot["first-row-id"]
    position: int = draft.meta["next-row-id"]
    if first < position:
        raise StaleSnapshot(snapshot_id=snapshot["snapshot-id"], field="first-row-id", given=first, position=position)
    # a client that was served a raised next-row-id begins above the truth: the ids between are never used
    after = first + snapshot["added-rows"]
    if after >= 2**63:
        raise bad(join(path, "added-rows"), "uses up more row ids than there are")
    draft.meta["next-row-id"] = after


def _set_snapshot_ref(draft: Draft, update: Json, path: str) -> None:
    name = need_text(update, "ref-name", path)
    ref = read_snapshot_ref(update, path)
    if ref["snapshot-id"] not in draft.snapshot_ids():
        raise bad(join(path, "snapshot-id"), f"is {ref['snapshot-id']}, a snapshot which the table does not have")
    if name == MAIN:
        if ref["type"] != "branch":
            raise bad(join(path, "type"), "must be branch for main")
        draft.refs()
        draft.set_current_snapshot(ref["snapshot-id"])
    draft.refs()[name] = ref


def _remove_snapshot_ref(draft: Draft, update: Json, path: str) -> None:
    draft.remove_ref(need_text(update, "ref-name", path))


def _remove_snapshots(draft: Draft, update: Json, path: str) -> None:
    gone = {
        as_snapshot_id(item, f"{path}.snapshot-ids[{i}]")
        for i, item in enumerate(need_list(update, "snapshot-ids", path))
    }
    gone &= draft.snapshot_ids()
    if not gone:
        return
    draft.snapshots_removed = True
    for name in [name for name, ref in draft.refs().items() if ref["snapshot-id"] in gone]:
        draft.remove_ref(name)
    for key in ("snapshots", "statistics", "partition-statistics"):
        rows = draft.meta.get(key)
        if rows:
            draft.replace_rows(key, [row for row in rows if row["snapshot-id"] not in gone])
    draft.snapshot_ids().difference_update(gone)
    for snapshot_id in gone:
        draft.added_snapshots.pop(snapshot_id, None)


# --- statistics ------------------------------------------------------------------------------------------------------


def _set_statistics(draft: Draft, update: Json, path: str) -> None:
    at = join(path, "statistics")
    statistics = read_statistics(need(update, "statistics", path), at)
    given = read_snapshot_id_or_none(update.get("snapshot-id"), join(path, "snapshot-id"))
    if given not in {None, statistics["snapshot-id"]}:
        raise bad(join(path, "snapshot-id"), f"is {given}, but statistics.snapshot-id is {statistics['snapshot-id']}")
    _put(draft, "statistics", statistics)


def _set_partition_statistics(draft: Draft, update: Json, path: str) -> None:
    at = join(path, "partition-statistics")
    _put(draft, "partition-statistics", read_partition_statistics(need(update, "partition-statistics", path), at))


def _put(draft: Draft, key: str, statistics: Json) -> None:
    """A snapshot has one statistics file of a kind."""
    rows = [row for row in draft.meta.get(key) or () if row["snapshot-id"] != statistics["snapshot-id"]]
    draft.replace_rows(key, [*rows, statistics])


def _remove_statistics(draft: Draft, update: Json, path: str) -> None:
    _drop_statistics(draft, "statistics", update, path)


def _remove_partition_statistics(draft: Draft, update: Json, path: str) -> None:
    _drop_statistics(draft, "partition-statistics", update, path)


def _drop_statistics(draft: Draft, key: str, update: Json, path: str) -> None:
    snapshot_id = as_snapshot_id(need(update, "snapshot-id", path), join(path, "snapshot-id"))
    rows = draft.meta.get(key) or ()
    draft.replace_rows(key, [row for row in rows if row["snapshot-id"] != snapshot_id])


UPDATES: Final[dict[str, Callable[[Draft, Json, str], None]]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade_format_version,
    "add-schema": _add_schema,
    "set-current-schema": _set_current_schema,
    "add-spec": _add_spec,
    "set-default-spec": _set_default_spec,
    "add-sort-order": _add_sort_order,
    "set-default-sort-order": _set_default_sort_order,
    "add-snapshot": _add_snapshot,
    "set-snapshot-ref": _set_snapshot_ref,
    "remove-snapshots": _remove_snapshots,
    "remove-snapshot-ref": _remove_snapshot_ref,
    "set-location": _set_location,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
    "set-statistics": _set_statistics,
    "remove-statistics": _remove_statistics,
    "set-partition-statistics": _set_partition_statistics,
    "remove-partition-statistics": _remove_partition_statistics,
    "remove-partition-specs": _remove_partition_specs,
    "remove-schemas": _remove_schemas,
}
