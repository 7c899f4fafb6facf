"""Decides for one table's stale commit: does it commute with what landed since, and as what does it land?

Two ways lead through. The ref's snapshot has moved: only appends commute, and each is put after the new head. Or it has
not, and only counters of the table were taken by others (another snapshot ref, a raised range): the snapshot keeps its
place and gets fresh numbers. Everything else is a conflict that says which snapshots stand against each other.

Pure: files come through ``read``, names through ``fresh_location``, and what is to be written is in the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icefield.iceberg import avro, schemas
from icefield.iceberg.append import Append, NotAppend, judge_chain
from icefield.iceberg.fitting import schema_misfit, spec_misfit, types_misfit
from icefield.iceberg.manifest_list import ManifestFile, Read, existing, read_list
from icefield.iceberg.requirements import FailedRequirement
from icefield.iceberg.restamp import FreshLocation, Landed, Place, Refusal, rebase_append, renumber
from icefield.iceberg.shapes import as_object, need_text
from icefield.iceberg.snapshots import (
    MAIN,
    read_snapshot,
    read_snapshot_id_or_none,
    read_snapshot_ref,
    snapshot_refs,
    snapshots_by_id,
)
from icefield.model.conflicts import Conflict
from icefield.model.errors import BadRequest

Json = dict[str, Any]
_SHAPE_CHANGES = ("add-schema", "set-current-schema", "add-spec", "set-default-spec")
_RETENTION = ("min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")


@dataclass(frozen=True, slots=True)
class Rebased:
    updates: list[Json]
    """To apply to the head instead of the client's."""
    new_files: dict[str, bytes]
    superseded: tuple[str, ...]
    """Files the client wrote that nothing names any more: for the deletion queue, once landed."""
    referenced: frozenset[str]
    """Files the client wrote that the snapshots name."""
    next_row_id: int
    """The first row id that is still free (format 3)."""


def rebase_table(
    base_meta: Mapping[str, Any] | None,
    head_meta: Mapping[str, Any],
    updates: Sequence[Any],
    requirements_failed: Sequence[FailedRequirement],
    *,
    read: Read,
    fresh_location: FreshLocation,
    next_row_id: int,
    now_ms: int,
    table: str = "table",
    strict: bool = False,
) -> Rebased | Conflict:
    """``base_meta``: the metadata the client loaded, where it is known. ``table`` names the entry in a conflict.

    ``strict``: the statement's meaning depends on what it read, so it never lands after a head that it did not see.
    Raises ``BadRequest`` for what is malformed and for files that are not there or cannot be read.
    """
    commit = _Commit(base_meta, head_meta, table)
    read = existing(read)
    try:
        commit.take(updates)
        commit.check_requirements(requirements_failed)
        commit.check_snapshots()
        if commit.base_id == commit.head_id:
            commit.check_schema(moved=False)
            return commit.renumbered(updates, read, fresh_location, next_row_id, now_ms)
        if strict:
            raise _Stands(
                "strict",
                f"snapshot {commit.ids} was computed from snapshot {commit.base_id}, and the table has moved to "
                f"snapshot {commit.head_id}; run the statement again",
            )
        commit.check_moved()
        commit.check_schema(moved=True)
        return commit.rebased(read, fresh_location, next_row_id, now_ms)
    except avro.BeyondLimits as error:
        return Conflict(entry=table, reason="beyond-limits", message=f"{table}: {error.message}")
    except _Stands as stands:
        return Conflict(
            entry=table,
            reason=stands.reason,
            message=f"{table}: {stands.message}",
            ours=None if commit.head_id is None else f"snapshot {commit.head_id}",
            theirs=f"snapshot {commit.ids}" if commit.snapshots else None,
        )


class _Stands(Exception):
    """A conflict on its way out."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class _Commit:
    """One stale commit, taken apart."""

    def __init__(self, base_meta: Mapping[str, Any] | None, head_meta: Mapping[str, Any], table: str) -> None:
        self.base_meta = base_meta
        self.head = dict(head_meta)
        self.table = table
        self.version = int(head_meta["format-version"])
        self.known = snapshots_by_id(self.head)
        self.snapshots: list[Json] = []
        self.ref_updates: list[tuple[int, Json]] = []
        self.other_updates: list[Json] = []
        self.ref: str | None = None
        self.base_id: int | None = None
        self.head_id: int | None = None

    @property
    def ids(self) -> str:
        return ", ".join(str(snapshot["snapshot-id"]) for snapshot in self.snapshots)

    # --- what the commit is

    def take(self, updates: Sequence[Any]) -> None:
        for i, item in enumerate(updates):
            path = f"updates[{i}]"
            update = as_object(item, path)
            action = update.get("action")
            if action == "add-snapshot":
                given = as_object(update.get("snapshot"), f"{path}.snapshot")
                if given.get("key-id") is not None:
                    raise _Stands("encrypted", f"snapshot {given.get('snapshot-id')} has an encrypted manifest list")
                version = 3 if given.get("first-row-id") is not None else 2
                self.snapshots.append(read_snapshot(given, f"{path}.snapshot", version=version))
            elif action == "set-snapshot-ref":
                need_text(update, "ref-name", path)
                read_snapshot_ref(update, path)  # checked for its shape only
                self.ref_updates.append((i, update))
            else:
                self.other_updates.append(update)
        if not self.snapshots:
            raise _Stands("both-changed", "the table has changed since it was read, and the commit adds no snapshot")
        self.base_id = read_snapshot_id_or_none(self.snapshots[0].get("parent-snapshot-id"), "parent-snapshot-id")
        refs = {str(update.get("ref-name")) for _, update in self.ref_updates}
        if len(refs) > 1:
            raise _Stands("several-refs", f"one commit moves several snapshot refs: {', '.join(sorted(refs))}")
        if not refs:
            # Staged for later (WAP): it belongs to no ref, and stays where it was written.
            self.head_id = self.base_id
            return
        self.ref = refs.pop()
        head_ref = snapshot_refs(self.head).get(self.ref)
        if head_ref is not None:
            self.head_id = int(head_ref["snapshot-id"])
            if head_ref.get("type", "branch") != "branch":
                raise _Stands("both-changed", f"snapshot ref {self.ref} is a tag")
        elif self.base_id is None or (self.base_id in self.known and self.ref != MAIN):
            # The commit makes the ref, from a snapshot that is there. (Main without a snapshot has lost it on purpose.)
            self.head_id = self.base_id

    def check_requirements(self, failed: Sequence[FailedRequirement]) -> None:
        for requirement in failed:
            if requirement.type != "assert-ref-snapshot-id":
                raise _Stands("requirement-failed", f"{requirement.type} does not hold: {requirement.message}")
            if self.ref is None or requirement.ref not in (None, self.ref):
                raise _Stands("requirement-failed", requirement.message)
            if requirement.expected is not None and requirement.expected != self.base_id:
                raise _Stands(
                    "requirement-failed",
                    f"{requirement.message}, and snapshot {self.ids} was built on {_named(self.base_id)}",
                )
            if requirement.actual is None:
                raise _Stands("ref-dropped", requirement.message)

    def check_snapshots(self) -> None:
        expected = self.base_id
        seen: set[int] = set()
        for snapshot in self.snapshots:
            snapshot_id = snapshot["snapshot-id"]
            if snapshot_id in self.known or snapshot_id in seen:
                raise _Stands("both-changed", f"snapshot {snapshot_id} is already in the table")
            if snapshot.get("parent-snapshot-id") != expected:
                raise _Stands("not-a-chain", f"snapshot {snapshot_id} does not follow {_named(expected)} in the commit")
            if "first-row-id" in snapshot and self.version < 3:
                raise _Stands("format-changed", f"snapshot {snapshot_id} has row ids, and the table has format 2")
            seen.add(snapshot_id)
            expected = snapshot_id
        for i, update in self.ref_updates:
            if update.get("snapshot-id") not in seen:
                raise _Stands(
                    "both-changed", f"updates[{i}] sets {self.ref} to a snapshot that the commit does not add"
                )
        if self.ref_updates and self.ref_updates[-1][1].get("snapshot-id") != expected:
            raise _Stands("not-a-chain", f"the commit does not leave {self.ref} at its last snapshot, {expected}")

    def check_moved(self) -> None:
        """What must hold for a commit to land after snapshots that it did not see."""
        if self.head_id is None:
            raise _Stands(
                "base-gone", f"snapshot {self.base_id}, on which {self.ids} was built, is gone from {self.ref}"
            )
        if self.base_id is not None and not self._is_ancestor(self.base_id, self.head_id):
            raise _Stands(
                "base-gone",
                f"snapshot {self.base_id}, on which {self.ids} was built, is not among the ancestors of snapshot "
                f"{self.head_id} any more: the table was rolled back or replaced, or the snapshot has expired",
            )
        if self.base_meta is not None and self.base_meta.get("table-uuid") != self.head.get("table-uuid"):
            raise _Stands("both-changed", "the table is another one now")
        for update in self.other_updates:
            if not _is_no_op(update, self.head):
                raise _Stands(
                    "both-changed",
                    f"the commit does more than append ({update.get('action')}), and the table has moved from "
                    f"{_named(self.base_id)} to snapshot {self.head_id}",
                )
        for _, update in self.ref_updates:
            if str(update.get("type", "branch")).lower() != "branch":
                raise _Stands("both-changed", f"the commit makes a tag of {self.ref}, which has moved")

    def check_schema(self, *, moved: bool) -> None:
        """The schema each snapshot was written with must still fit what the table is read with now."""
        if not moved and self._changes_schema():
            return
        current_id = self.head["current-schema-id"]
        by_id = {schema.get("schema-id", 0): schema for schema in self.head["schemas"]}
        for snapshot in self.snapshots:
            written_id = snapshot.get("schema-id")
            if written_id is None:
                continue
            written = by_id.get(written_id)
            if written is None:
                raise _Stands(
                    "schema-changed",
                    f"snapshot {snapshot['snapshot-id']} was written with schema {written_id}, which the table "
                    "does not have",
                )
            if self.base_meta is not None:
                before = next((s for s in self.base_meta["schemas"] if s.get("schema-id", 0) == written_id), None)
                if before is not None and not schemas.same_schema(before, written):
                    raise _Stands("schema-changed", f"schema {written_id} is another one now")
            if written_id == current_id:
                continue
            why = schema_misfit(written, by_id[current_id], format_version=self.version)
            if why is not None:
                raise _Stands(
                    "schema-changed",
                    f"snapshot {snapshot['snapshot-id']} was written with schema {written_id}, which does not fit the "
                    f"current schema {current_id}: {why}",
                )

    def _is_ancestor(self, ancestor: int, snapshot_id: int) -> bool:
        seen: set[int] = set()
        at: int | None = snapshot_id
        while at is not None and at not in seen:
            if at == ancestor:
                return ancestor in self.known
            seen.add(at)
            at = self.known.get(at, {}).get("parent-snapshot-id")
        return False

    def _changes_schema(self) -> bool:
        """Does the commit itself bring schemas or specs, which the head cannot know yet?"""
        return any(update.get("action") in _SHAPE_CHANGES for update in self.other_updates)

    # --- as what it lands

    def rebased(self, read: Read, fresh_location: FreshLocation, next_row_id: int, now_ms: int) -> Rebased:
        base = self._manifests(self.base_id, read)
        chain = self._appends(base, read)
        place = self._place(self._manifests(self.head_id, read), next_row_id, now_ms, self.head["current-schema-id"])
        return self._answer(self._replay(chain, place, read, fresh_location), self._own_updates())

    def renumbered(
        self, updates: Sequence[Json], read: Read, fresh_location: FreshLocation, next_row_id: int, now_ms: int
    ) -> Rebased:
        manifests = self._manifests(self.base_id, read)
        schema_id = None if self._changes_schema() else self.head["current-schema-id"]
        place = self._place(manifests, next_row_id, now_ms, schema_id)
        if len(self.snapshots) > 1 or self.snapshots[0]["summary"]["operation"] == "append":
            chain = judge_chain(self.snapshots, manifests, read)
            if not isinstance(chain, NotAppend):
                if not self._changes_schema():
                    self._check_specs(chain)
                return self._answer(self._replay(chain, place, read, fresh_location), list(updates))
            if len(self.snapshots) > 1:
                raise _Stands(
                    "not-an-append",
                    f"the numbers that snapshots {self.ids} were written with are taken, and only a chain of appends "
                    f"can be given others: one of them {chain.reason}",
                )
        landed = renumber(self.snapshots[0], place, read=read, fresh_location=fresh_location)
        if isinstance(landed, Refusal):
            raise _Stands(
                "numbers-taken",
                f"the numbers that snapshot {self.ids} was written with are taken, and it cannot be given others: it "
                f"{landed.reason}",
            )
        return self._answer([landed], list(updates))

    def _appends(self, base: tuple[ManifestFile, ...], read: Read) -> tuple[Append, ...]:
        chain = judge_chain(self.snapshots, base, read)
        if isinstance(chain, NotAppend):
            raise _Stands(
                "not-an-append",
                f"the table has moved from {_named(self.base_id)} to snapshot {self.head_id}, and snapshot {self.ids} "
                f"is no append: it {chain.reason}",
            )
        self._check_specs(chain)
        return chain

    def _check_specs(self, chain: Sequence[Append]) -> None:
        specs = {spec["spec-id"]: spec for spec in self.head["partition-specs"]}
        by_id = {schema.get("schema-id", 0): schema for schema in self.head["schemas"]}
        current = by_id[self.head["current-schema-id"]]
        for append in chain:
            for part in append.new:
                spec_id = part.listed.spec_id
                where = f"snapshot {append.snapshot['snapshot-id']} has a manifest of partition spec {spec_id}"
                if spec_id not in specs:
                    raise _Stands("spec-changed", f"{where}, which the table does not have")
                if part.manifest.spec_id() not in (None, spec_id):
                    raise _Stands("spec-changed", f"{where} whose header says spec {part.manifest.spec_id()}")
                why = spec_misfit(part.manifest.header_json("partition-spec"), specs[spec_id])
                if why is not None:
                    raise _Stands("spec-changed", f"{where}; {why}")
                written = self._header_schema(part.manifest.header_json("schema"))
                if written is None:
                    continue
                fits = types_misfit if append.snapshot.get("schema-id") is not None else schema_misfit
                why = fits(written, current, format_version=self.version)
                if why is not None:
                    raise _Stands(
                        "schema-changed",
                        f"snapshot {append.snapshot['snapshot-id']} has a manifest whose schema does not fit: {why}",
                    )

    @staticmethod
    def _header_schema(value: Any) -> Json | None:
        try:
            return None if value is None else schemas.canonical(value)
        except BadRequest:
            return None

    def _manifests(self, snapshot_id: int | None, read: Read) -> tuple[ManifestFile, ...]:
        if snapshot_id is None:
            return ()
        snapshot = self.known.get(snapshot_id)
        if snapshot is None:
            raise _Stands("base-gone", f"snapshot {snapshot_id}, on which {self.ids} was built, is not in the table")
        location = snapshot.get("manifest-list")
        if location is None or snapshot.get("key-id") is not None:
            raise _Stands("unreadable-list", f"snapshot {snapshot_id} has no manifest list that this server can read")
        return read_list(location, read(location)).manifests

    def _place(
        self, manifests: tuple[ManifestFile, ...], next_row_id: int, now_ms: int, schema_id: int | None
    ) -> Place:
        return Place(
            format_version=self.version,
            parent=None if self.head_id is None else self.known[self.head_id],
            manifests=manifests,
            last_sequence_number=int(self.head["last-sequence-number"]),
            next_row_id=max(next_row_id, int(self.head.get("next-row-id") or 0)) if self.version >= 3 else 0,
            schema_id=schema_id,
            now_ms=now_ms,
        )

    @staticmethod
    def _replay(chain: Sequence[Append], place: Place, read: Read, fresh_location: FreshLocation) -> list[Landed]:
        landed: list[Landed] = []
        for append in chain:
            landed.append(rebase_append(append, place, read=read, fresh_location=fresh_location))
            place = landed[-1].place_after
        return landed

    def _own_updates(self) -> list[Json]:
        """The commit's snapshots and ref moves; what changes nothing is left out, what it says of the ref's retention
        is the head's where it only repeats what it was loaded with."""
        own: list[Json] = [{"action": "add-snapshot", "snapshot": snapshot} for snapshot in self.snapshots]
        head_ref = snapshot_refs(self.head).get(self.ref or "", {})
        base_ref = snapshot_refs(dict(self.base_meta)).get(self.ref or "", {}) if self.base_meta is not None else None
        for _, update in self.ref_updates[-1:]:
            moved = dict(update)
            for key in _RETENTION:
                if moved.get(key) == head_ref.get(key):
                    continue
                if base_ref is None or moved.get(key) != base_ref.get(key):
                    raise _Stands(
                        "both-changed", f"the commit changes {key} of snapshot ref {self.ref}, which has moved"
                    )
                moved.pop(key, None)
                if key in head_ref:
                    moved[key] = head_ref[key]
            own.append(moved)
        return own

    def _answer(self, landed: list[Landed], updates: list[Json]) -> Rebased:
        by_id = {each.snapshot["snapshot-id"]: each.snapshot for each in landed}
        restamped = [
            {**update, "snapshot": by_id[update["snapshot"]["snapshot-id"]]}
            if update.get("action") == "add-snapshot"
            else dict(update)
            for update in updates
        ]
        new_files: dict[str, bytes] = {}
        for each in landed:
            new_files |= each.new_files
        named = {line.path for each in landed for line in each.manifests}
        referenced = frozenset(path for each in landed for path in each.referenced)
        superseded = tuple(
            dict.fromkeys(path for each in landed for path in each.superseded if path not in referenced | named)
        )
        return Rebased(restamped, new_files, superseded, referenced, landed[-1].place_after.next_row_id)


def _named(snapshot_id: int | None) -> str:
    return "the empty table" if snapshot_id is None else f"snapshot {snapshot_id}"


def _is_no_op(update: Mapping[str, Any], head: Mapping[str, Any]) -> bool:
    """Would this update change nothing in the head? Then it needs no base."""
    properties = head.get("properties") or {}
    match update.get("action"):
        case "assign-uuid":
            return str(update.get("uuid")).lower() == str(head.get("table-uuid")).lower()
        case "upgrade-format-version":
            version = update.get("format-version")
            return isinstance(version, int) and version <= int(head["format-version"])
        case "set-location":
            return bool(update.get("location") == head.get("location"))
        case "set-current-schema":
            return bool(update.get("schema-id") == head["current-schema-id"])
        case "set-default-spec":
            return bool(update.get("spec-id") == head["default-spec-id"])
        case "set-default-sort-order":
            return bool(update.get("sort-order-id") == head["default-sort-order-id"])
        case "set-properties":
            changes = update.get("updates", update.get("updated"))
            return isinstance(changes, dict) and all(properties.get(key) == value for key, value in changes.items())
        case "remove-properties":
            removals = update.get("removals", update.get("removed"))
            return isinstance(removals, list) and not any(key in properties for key in removals)
    return False
