"""A client's commit to one existing table: updates and requirements in, a step out, or a conflict.

In order: the retry law (is this snapshot part of the ref already?), requirements against what was served, updates on
the head's metadata; and where the only thing that failed is that somebody else committed first, the rebase.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from icefield.iceberg.metadata import (
    FailedRequirement,
    StaleSnapshot,
    apply_updates,
    failed_requirements,
    new_field_ids,
    new_partition_field_ids,
    with_metadata_log,
)
from icefield.iceberg.rebase import rebase_table
from icefield.iceberg.schemas import walk
from icefield.model.conflicts import Conflict
from icefield.model.entries import Entry, EntryKind
from icefield.model.errors import BadRequest, CommitConflict, NoSuchTable
from icefield.model.names import Identifier
from icefield.store.records import DeletionRecord
from icefield.transaction import ranges
from icefield.transaction.changes import Change, TableWords
from icefield.transaction.core import Core
from icefield.transaction.metadata_files import encode
from icefield.transaction.ranges import FIELDS, PARTITION_FIELDS, ROWS, Positions
from icefield.transaction.served import metadata_folder, transaction_folder
from icefield.transaction.steps import Standing, Step

Updates = list[dict[str, Any]]


def commit_table(core: Core, at: Standing, identifier: Identifier, updates: Updates, requirements: Updates) -> Step:
    entry = at.view.get(identifier)
    if entry is None or entry.kind is not EntryKind.TABLE or entry.metadata_location is None:
        raise NoSuchTable(f"Table does not exist: {identifier}")
    head = core.metadata.load(entry.metadata_location)
    updates = at.overlaid.take_out(updates, head.get("properties") or {}, head["location"])
    digests = snapshot_digests(updates)
    if _landed_already(at, identifier, entry, digests):
        return Step(Change("change", {}), answered=True)
    check_lists(core, updates)
    check_given_up(at, identifier, updates)
    where = _positions(core, at, entry, head)
    applied, rewritten, files, superseded = _apply(core, at, identifier, entry, head, updates, requirements, where)
    _check_ids(identifier, head, applied, where)
    if any(update.get("action") == "add-schema" for update in updates):
        _check_meanings(identifier, head, applied, requirements)
    _check_upgrade(core, at, identifier, entry, head, applied)
    location = fresh_metadata_location(core, at, head)
    if at.scope.transaction is None:
        applied = with_metadata_log(applied, previous_location=entry.metadata_location, previous=head)
    content = encode(applied)
    after = Entry(entry.id, entry.kind, location, entry.location)
    words = TableWords(entry.id, rewritten, requirements, at.strict, tuple(sorted(files)), digests)
    return Step(
        Change("change", {identifier: after}, words, tuple(superseded)),
        {**files, location: content},
        {entry.id: applied},
    )


def check_lists(core: Core, updates: Updates) -> None:
    """A snapshot whose manifest list is not there would land, and nobody could read the table any more."""
    for number, update in enumerate(updates):
        snapshot = update.get("snapshot") if update.get("action") == "add-snapshot" else None
        location = snapshot.get("manifest-list") if isinstance(snapshot, dict) else None
        if not isinstance(location, str):
            continue
        field = f"updates[{number}].snapshot.manifest-list"
        if not core.volume.holds(location):
            raise BadRequest(f"{field}: {location} lies outside this server's volume {core.volume.root}", field=field)
        if not core.volume.exists(location):
            raise BadRequest(f"{field}: there is no file {location}", field=field)


def check_given_up(at: Standing, identifier: Identifier, updates: Updates) -> None:
    """What was written in a transaction and went with its ROLLBACK (or back to a savepoint) is queued for deletion:
    posted afterwards, by a client that kept it, it would land and then lose its files."""
    for update in updates:
        snapshot = update.get("snapshot") if update.get("action") == "add-snapshot" else None
        location = snapshot.get("manifest-list") if isinstance(snapshot, dict) else None
        queued = at.reader.get(DeletionRecord, location) if isinstance(location, str) else None
        if queued is not None and isinstance(snapshot, dict):
            raise _conflict(
                identifier,
                "files-given-up",
                f"table {identifier}: the files of snapshot {snapshot.get('snapshot-id')} are queued for deletion "
                f"({queued.reason}): write them anew",
            )


def snapshot_digests(updates: Updates) -> dict[str, str]:
    """Snapshot id -> digest of the snapshot as posted."""
    found: dict[str, str] = {}
    for update in updates:
        snapshot = update.get("snapshot") if update.get("action") == "add-snapshot" else None
        if isinstance(snapshot, dict) and type(snapshot.get("snapshot-id")) is int:
            canonical = msgspec.json.encode(snapshot, order="deterministic")
            found[str(snapshot["snapshot-id"])] = hashlib.sha256(canonical).hexdigest()
    return found


def fresh_metadata_location(core: Core, at: Standing, metadata: dict[str, Any]) -> str:
    """A name no metadata file ever had; inside a transaction below its own folder."""
    folder = metadata_folder(metadata.get("properties") or {}, metadata["location"])
    if at.scope.transaction is not None:
        folder = f"{folder}/{transaction_folder(at.scope.transaction)}"
    number = len(metadata.get("metadata-log") or ()) + 1
    return f"{folder}/{number:05d}-{core.randomness.uuid()}.metadata.json"


def _landed_already(at: Standing, identifier: Identifier, entry: Entry, digests: Mapping[str, str]) -> bool:
    known = {snapshot: at.posted(entry.id, int(snapshot)) for snapshot in digests}
    landed_here = any(digest is not None for digest in known.values())
    for snapshot, digest in known.items():
        if digest != digests[snapshot] if landed_here else at.taken(entry.id, int(snapshot)):
            conflict = snapshot_taken(identifier, snapshot)
            raise CommitConflict(conflict.message, [conflict])
    return landed_here


def snapshot_taken(identifier: Identifier, snapshot: str) -> Conflict:
    return Conflict(
        str(identifier),
        "snapshot-id-taken",
        f"snapshot {snapshot} has landed on table {identifier} already, with other content or on another ref; "
        "a snapshot id never names two things: commit with a new one",
    )


def _positions(core: Core, at: Standing, entry: Entry, head: dict[str, Any]) -> Positions:
    found = ranges.positions(at.reader, entry.id, at.scope, head)
    if found is None:
        # Only the first visit of a (table, ref) writes. It is a store transaction of its own: a range handed out for
        # a commit that then fails is only a range that nobody used.
        with core.store.write() as writer:
            found = ranges.ensure(writer, entry.id, at.scope, head)
    return found


def _apply(
    core: Core,
    at: Standing,
    identifier: Identifier,
    entry: Entry,
    head: dict[str, Any],
    updates: Updates,
    requirements: Updates,
    where: Positions,
) -> tuple[dict[str, Any], Updates, Mapping[str, bytes], list[str]]:
    now = core.clock.now_ms()
    failed = failed_requirements(where.raised(head), requirements)
    stale = [f for f in failed if f.type == "assert-ref-snapshot-id"]
    if len(stale) != len(failed):
        others = [f for f in failed if f.type != "assert-ref-snapshot-id"]
        raise CommitConflict(
            f"table {identifier}: {others[0].message}",
            [
                Conflict(
                    str(identifier),
                    "requirement-failed",
                    f"table {identifier}: {f.message}",
                    _text(f.expected),
                    _text(f.actual),
                )
                for f in failed
            ],
        )
    if at.seen is not None:
        _check_seen(at, identifier, entry, head, updates)
    if not stale and not _row_ids_taken(head, updates, where):
        try:
            return apply_updates(head, updates, now_ms=now), updates, {}, []
        except StaleSnapshot:
            pass  # another snapshot ref of the table moved, or counters were raised: restamp
    outcome = rebase_table(
        None,  # what the client loaded is not on the wire
        head,
        updates,
        stale,
        read=core.metadata.read_manifest,
        fresh_location=_fresh_manifest(core, at, head),
        next_row_id=where.next.get(ROWS, 0),
        now_ms=now,
        table=str(identifier),
        strict=at.strict,
    )
    if isinstance(outcome, Conflict):
        raise CommitConflict(outcome.message, [outcome])
    return (
        apply_updates(head, outcome.updates, now_ms=now),
        outcome.updates,
        outcome.new_files,
        list(outcome.superseded),
    )


def _check_seen(at: Standing, identifier: Identifier, entry: Entry, head: dict[str, Any], updates: Updates) -> None:
    """Is the table still what the statement saw, as far as what it wrote depends on that?"""
    assert at.seen is not None
    seen = at.seen(identifier, entry.id)
    if seen is None:
        if at.strict:
            raise _conflict(
                identifier,
                "moved-under-a-strict-write",
                f"table {identifier} is not among those that the statement saw; run the statement again",
            )
        return
    before, now = _snapshot_of(seen), _snapshot_of(head)
    if at.strict and before != now:
        raise _conflict(
            identifier,
            "moved-under-a-strict-write",
            f"table {identifier} moved from snapshot {before} to {now} while a statement whose result depends on its "
            "rows was running; run the statement again",
            ours=_text(now),
            theirs=_text(before),
        )
    changed = meaning_changed(seen, head) if at.strict else rules_changed(seen, head, updates)
    if changed is not None:
        raise _conflict(
            identifier,
            "moved-under-a-strict-write" if at.strict else "rules-changed",
            f"table {identifier}: {changed} was changed while a statement that depends on it was running; run the "
            "statement again",
        )


REMEMBERED = "icefield."
"""Properties that begin so are the SQL door's: what a column is beyond its Iceberg type, and the table's rules."""
_RULES = tuple(f"{REMEMBERED}{rule}." for rule in ("check", "unique", "primary-key"))


def meaning_changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """What differs, besides rows, that the result of a statement may depend on."""
    for key in ("format-version", "current-schema-id"):
        if before.get(key) != now.get(key):
            return key
    return _property_changed(before, now, (REMEMBERED,))


def rules_changed(before: Mapping[str, Any], now: Mapping[str, Any], updates: Updates) -> str | None:
    """Rows were checked by the rules there were: under other rules they may not land. Types and defaults may differ,
    the rows are what they are."""
    if not any(update.get("action") == "add-snapshot" for update in updates):
        return None
    return _property_changed(before, now, _RULES)


def _property_changed(before: Mapping[str, Any], now: Mapping[str, Any], beginnings: tuple[str, ...]) -> str | None:
    old, new = before.get("properties") or {}, now.get("properties") or {}
    keys = sorted(key for key in {*old, *new} if key.startswith(beginnings) and old.get(key) != new.get(key))
    return f"property {keys[0]}" if keys else None


def _snapshot_of(metadata: Mapping[str, Any]) -> int | None:
    current: int | None = metadata.get("current-snapshot-id")
    return None if current == -1 else current


def _row_ids_taken(head: dict[str, Any], updates: Updates, where: Positions) -> bool:
    """Row ids below the ref's position belong to somebody else, even where the file's own counter is lower."""
    if head["format-version"] < 3 or ROWS not in where.next:
        return False
    taken = False
    for update in updates:
        if update.get("action") == "add-snapshot" and isinstance(update.get("snapshot"), dict):
            first = update["snapshot"].get("first-row-id")
            added = update["snapshot"].get("added-rows") or 0
            if type(first) is not int or type(added) is not int:
                return False  # apply_updates names what is wrong with it
            taken = taken or first < where.next[ROWS] or first + added > where.high[ROWS]
    return taken


def _check_ids(identifier: Identifier, head: dict[str, Any], applied: dict[str, Any], where: Positions) -> None:
    for kind, taken, word in (
        (FIELDS, new_field_ids(head, applied), "field"),
        (PARTITION_FIELDS, new_partition_field_ids(head, applied), "partition field"),
    ):
        wrong = [i for i in taken if not where.next[kind] <= i < where.high[kind]]
        if wrong:
            raise _conflict(
                identifier,
                "ids-taken",
                f"table {identifier}: {word} id {wrong[0]} does not belong to this ref "
                f"(its next is {where.next[kind]}): the table was loaded before it changed, "
                "or from another ref; load it again",
            )


def _check_meanings(
    identifier: Identifier, head: dict[str, Any], applied: dict[str, Any], requirements: Updates
) -> None:
    """A client that asserts nothing about the schema may speak of an older one: what it calls field 3 and a new column
    is another column by now. With the assertion the same words are a rename."""
    if any(r.get("type") in ("assert-current-schema-id", "assert-last-assigned-field-id") for r in requirements):
        return
    before = {field.id: field.name for schema in head["schemas"] for field in walk(schema)}
    known = {(field.id, field.name) for schema in head["schemas"] for field in walk(schema)}
    for schema in applied["schemas"]:
        for field in walk(schema):
            if field.id in before and (field.id, field.name) not in known:
                raise _conflict(
                    identifier,
                    "ids-taken",
                    f"table {identifier}: field id {field.id} is column {before[field.id]} and cannot be {field.name}: "
                    "load the table again, or assert its current schema to rename the column",
                )


def _check_upgrade(
    core: Core, at: Standing, identifier: Identifier, entry: Entry, head: dict[str, Any], applied: dict[str, Any]
) -> None:
    """A table that becomes format 3 and gets rows in one commit numbers them from 0, as its client must believe.
    Another ref may have done so before, and 0 is somebody else's row then."""
    if head["format-version"] >= 3 or applied["format-version"] < 3:
        return
    unused = {**applied, "next-row-id": 0}
    where = ranges.positions(at.reader, entry.id, at.scope, unused)
    if where is None:
        with core.store.write() as writer:
            where = ranges.ensure(writer, entry.id, at.scope, unused)
    numbered = [s["first-row-id"] for s in applied.get("snapshots") or () if "first-row-id" in s]
    if numbered and min(numbered) < where.next[ROWS]:
        raise _conflict(
            identifier,
            "ids-taken",
            f"table {identifier}: row ids from {min(numbered)} were given out on another ref when the table became "
            "format 3 there; upgrade it in a commit of its own, then write the rows",
        )


def _fresh_manifest(core: Core, at: Standing, head: dict[str, Any]) -> Any:
    folder = metadata_folder(head.get("properties") or {}, head["location"])
    if at.scope.transaction is not None:
        folder = f"{folder}/{transaction_folder(at.scope.transaction)}"
    return lambda beginning: f"{folder}/{beginning}-{core.randomness.uuid()}.avro"


def _conflict(
    identifier: Identifier, reason: str, message: str, ours: str | None = None, theirs: str | None = None
) -> CommitConflict:
    return CommitConflict(message, [Conflict(str(identifier), reason, message, ours, theirs)])


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


__all__ = ["FailedRequirement", "commit_table", "fresh_metadata_location", "snapshot_digests"]
