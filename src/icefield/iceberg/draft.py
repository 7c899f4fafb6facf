"""Metadata being changed: a shallow copy that copies a list only when it is first written to.

The base is never touched, and what a commit does not change is shared with it, so that a commit to a table with
thousands of snapshots costs one copied list.
"""

from __future__ import annotations

from typing import Any

from icefield.iceberg import sort_orders, specs
from icefield.iceberg.create import empty_metadata
from icefield.iceberg.schemas import read_schema
from icefield.iceberg.shapes import INT32_MAX, Json, bad
from icefield.iceberg.snapshots import MAIN, current_snapshot_id, no_current_snapshot, snapshot_refs
from icefield.model.errors import CommitConflict


class Draft:
    """One commit's work. Updates change it in order; ``finish`` answers the new metadata, once."""

    def __init__(self, base: Json | None, *, version: int, now_ms: int) -> None:
        self.base = base
        self.now_ms = now_ms
        self.meta: Json = empty_metadata(version) if base is None else dict(base)
        self._owned: set[str] = set()
        self.last_schema: int | None = None
        self.last_spec: int | None = None
        self.last_order: int | None = None
        self.client_schema_ids: dict[int, int] = {}
        """What the client called the schemas it added in this commit; its snapshots refer to them so."""
        self.client_spec_ids: dict[int, int] = {}
        """The same for partition specs, to which manifests refer."""
        self.added_snapshots: dict[int, Json] = {}
        self.passed_snapshots: set[int] = set()
        """Added here and made current here, for a moment."""
        self.snapshots_removed = False
        self.removed_schemas: set[int] = set()
        self.reshaped = base is None
        self._snapshot_ids: set[int] | None = None

    @property
    def version(self) -> int:
        return int(self.meta["format-version"])

    # --- owned copies ------------------------------------------------------------------------------------------------

    def rows(self, key: str) -> list[Any]:
        """The list under ``key``, for changing."""
        if key not in self._owned:
            self.meta[key] = list(self.meta.get(key) or ())
            self._owned.add(key)
        result: list[Any] = self.meta[key]
        return result

    def replace_rows(self, key: str, rows: list[Any]) -> None:
        self.meta[key] = rows
        self._owned.add(key)

    def refs(self) -> dict[str, Json]:
        if "refs" not in self._owned:
            self.meta["refs"] = dict(snapshot_refs(self.meta))
            self._owned.add("refs")
        result: dict[str, Json] = self.meta["refs"]
        return result

    def properties(self) -> dict[str, str]:
        if "properties" not in self._owned:
            self.meta["properties"] = dict(self.meta.get("properties") or {})
            self._owned.add("properties")
        result: dict[str, str] = self.meta["properties"]
        return result

    def snapshot_ids(self) -> set[int]:
        if self._snapshot_ids is None:
            self._snapshot_ids = {snapshot["snapshot-id"] for snapshot in self.meta.get("snapshots") or ()}
        return self._snapshot_ids

    # --- lookups -----------------------------------------------------------------------------------------------------

    def by_id(self, key: str, id_key: str, number: int | None) -> Json | None:
        for item in self.meta[key]:
            if item.get(id_key) == number:
                found: Json = item
                return found
        return None

    def current_schema(self, path: str) -> Json:
        schema = self.by_id("schemas", "schema-id", self.meta.get("current-schema-id"))
        if schema is None and self.meta["schemas"]:
            # DuckDB makes a new table's schema current only after its spec and order, which are of that schema.
            schema = self.meta["schemas"][-1]
        if schema is None:
            raise bad(path, "comes before the table has a current schema")
        return schema

    # --- the current snapshot ----------------------------------------------------------------------------------------

    def set_current_snapshot(self, snapshot_id: int) -> None:
        previous = current_snapshot_id(self.meta)
        if previous == snapshot_id:
            return
        if previous in self.added_snapshots:
            self.passed_snapshots.add(previous)
        self.meta["current-snapshot-id"] = snapshot_id
        log = self.rows("snapshot-log")
        last = log[-1]["timestamp-ms"] if log else 0
        added = self.added_snapshots.get(snapshot_id)
        # Java refuses a table whose log goes back in time, and a client's clock may be anywhere: the log keeps to ours
        moment = self.now_ms if added is None else min(added["timestamp-ms"], self.now_ms)
        log.append({"timestamp-ms": max(moment, last), "snapshot-id": snapshot_id})

    def clear_current_snapshot(self) -> None:
        previous = current_snapshot_id(self.meta)
        if previous in self.added_snapshots:
            self.passed_snapshots.add(previous)
        self.meta["current-snapshot-id"] = no_current_snapshot(self.version)

    def remove_ref(self, name: str) -> None:
        if name == MAIN:
            # before refs(): there an old file's main is implied by the current snapshot
            self.refs()
            self.clear_current_snapshot()
        self.refs().pop(name, None)

    # --- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> Json:
        if self.base is None:
            self._complete_new()
        if self.reshaped:
            self._check_shape()
        self._check_removed_schemas()
        self._trim_snapshot_log()
        log = self.meta.get("snapshot-log") or ()
        # never behind what it follows: Java refuses metadata older than its own logs
        self.meta["last-updated-ms"] = max(
            self.now_ms, self.meta.get("last-updated-ms", 0), log[-1]["timestamp-ms"] if log else 0
        )
        return self.meta

    def _complete_new(self) -> None:
        for key, update in (("table-uuid", "assign-uuid"), ("location", "set-location")):
            if key not in self.meta:
                raise bad("updates", f"must contain {update}: the commit creates the table")
        if "current-schema-id" not in self.meta:
            raise bad("updates", "must contain add-schema and set-current-schema: the commit creates the table")
        if not self.meta["partition-specs"]:
            self.rows("partition-specs").append(specs.UNPARTITIONED)
        if not self.meta["sort-orders"]:
            self.rows("sort-orders").append(sort_orders.UNSORTED)
        self.meta.setdefault("default-spec-id", self.meta["partition-specs"][-1]["spec-id"])
        self.meta.setdefault("default-sort-order-id", self.meta["sort-orders"][-1]["order-id"])

    def _check_shape(self) -> None:
        """The current schema, the default spec and the default order fit each other."""
        current = self.current_schema("updates")
        schema = read_schema(current, "the current schema", version=self.version, max_id=INT32_MAX)
        spec = self.by_id("partition-specs", "spec-id", self.meta["default-spec-id"])
        order = self.by_id("sort-orders", "order-id", self.meta["default-sort-order-id"])
        if spec is None or order is None:
            raise bad("updates", "leave the table without its default partition spec or sort order")
        specs.check_spec(spec, schema, f"the default partition spec (id {spec['spec-id']})")
        sort_orders.check_sort_order(order, schema, f"the default sort order (id {order['order-id']})")
        for other in self.meta["partition-specs"]:
            specs.check_names(other, schema, f"partition spec {other['spec-id']}")

    def _check_removed_schemas(self) -> None:
        if not self.removed_schemas:
            return
        for snapshot in self.meta.get("snapshots") or ():
            if snapshot.get("schema-id") in self.removed_schemas:
                raise CommitConflict(
                    f"remove-schemas: schema {snapshot['schema-id']} is needed by snapshot {snapshot['snapshot-id']}; "
                    "reload the table and try again"
                )

    def _trim_snapshot_log(self) -> None:
        """Java's rules: no snapshots that were current only inside this commit, and no history from before a gap."""
        passed = self.passed_snapshots - {current_snapshot_id(self.meta)}
        if not passed and not self.snapshots_removed:
            return
        known = self.snapshot_ids()
        kept: list[Json] = []
        for entry in self.meta.get("snapshot-log") or ():
            if entry["snapshot-id"] not in known:
                if self.snapshots_removed:
                    kept.clear()
            elif entry["snapshot-id"] not in passed:
                kept.append(entry)
        self.replace_rows("snapshot-log", kept)
