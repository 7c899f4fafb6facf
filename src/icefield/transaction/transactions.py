"""BEGIN, staging, savepoints, ROLLBACK and COMMIT. A transaction is a short-lived branch that nobody else sees.

Its overlay is a list of staged changes over a pinned base; a savepoint is a position in that list. COMMIT merges the
overlay into the branch: one commit, one move of the head, or all conflicts at once and nothing changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from icefield.graph.tree import Tree, TreeView
from icefield.graph.tree import diff as tree_diff
from icefield.iceberg.metadata import with_metadata_log
from icefield.merge.trees import merge_trees
from icefield.model.conflicts import Conflict
from icefield.model.entries import Entry, EntryKind
from icefield.model.errors import CommitConflict, NoSuchSavepoint, NoSuchTransaction, Unavailable, WrongState
from icefield.model.names import Identifier
from icefield.store.port import StoreReader, StoreWriter
from icefield.store.records import (
    CommitRecord,
    OutcomeRecord,
    SavepointRecord,
    StagedRecord,
    TransactionRecord,
)
from icefield.transaction import changes, landing, ranges
from icefield.transaction.changes import Change, Key, TableWords, entries_after, key_name
from icefield.transaction.core import Core
from icefield.transaction.garbage import Written
from icefield.transaction.metadata_files import encode
from icefield.transaction.overlay import OverlayView
from icefield.transaction.ranges import Scope
from icefield.transaction.served import Overlaid, metadata_folder, transaction_folder
from icefield.transaction.steps import Standing, Step, Verb
from icefield.transaction.table_commits import commit_table, rules_changed, snapshot_taken

OPEN = "open"
COMMITTED = "committed"
ROLLED_BACK = "rolled-back"
FAILED = "failed"

STAGING_ATTEMPTS = 50


@dataclass(frozen=True, slots=True)
class Opened:
    """An open transaction as one reader sees it."""

    record: TransactionRecord
    base: CommitRecord
    staged: tuple[Change, ...]
    savepoints: tuple[SavepointRecord, ...]


def begin(
    core: Core, writer: StoreWriter, *, id_: str, repo: str, session: str, branch: str, base: CommitRecord, message: str
) -> TransactionRecord:
    record = TransactionRecord(
        id_, repo, session, branch, base.seq, "repeatable read", message, OPEN, 0, core.clock.now_ms()
    )
    writer.insert(record)
    return record


def read(core: Core, reader: StoreReader, transaction: str) -> Opened:
    record = reader.get(TransactionRecord, transaction)
    if record is None:
        raise NoSuchTransaction(f"there is no transaction {transaction}")
    base = reader.get(CommitRecord, record.base)
    assert base is not None, "a transaction pins its base"
    staged = reader.find(StagedRecord, transaction=transaction, order_by="position")
    savepoints = reader.find(SavepointRecord, transaction=transaction, order_by="depth")
    return Opened(record, base, tuple(changes.from_json(s.change) for s in staged), tuple(savepoints))


def view(core: Core, opened: Opened) -> OverlayView:
    return OverlayView(core.graph.tree(opened.base), entries_after(opened.staged))


def scope(reader: StoreReader, core: Core, opened: Opened) -> Scope:
    resolved = core.graph.resolve(reader, opened.record.repo, opened.record.ref)
    ref = resolved.ref_record
    return Scope(ref.id if ref is not None else opened.record.ref, opened.record.id)


def stage(
    core: Core,
    transaction: str,
    verb: Verb,
    *,
    overlaid: Overlaid,
    strict: bool = False,
    guard: landing.Guard | None = None,
) -> Sequence[Step]:
    """Runs a verb on the overlay and keeps its steps there. Nobody else sees them before COMMIT."""
    with core.tickets.hold("transaction", transaction):
        for _ in range(STAGING_ATTEMPTS):
            with core.store.read() as reader:
                opened = read(core, reader, transaction)
                _must_be_open(opened.record)
                standing = Standing(
                    view=view(core, opened),
                    reader=reader,
                    repo=opened.record.repo,
                    scope=scope(reader, core, opened),
                    overlaid=overlaid,
                    posted=_posted(opened.staged),
                    taken=landing.taken(reader),
                    strict=strict,
                )
                steps = [step for step in verb(standing) if not step.answered]
            if not steps:
                return ()
            files = {location: content for step in steps for location, content in step.files.items()}
            core.volume.write_new(files)
            with landing.abandoned_if_refused(core, steps), core.store.write() as writer:
                if guard is not None:
                    guard(writer)
                moved = replace(opened.record, version=opened.record.version + 1)
                staged = writer.replace(opened.record, moved)
                # The overlay's metadata files are for its time only: queued for deletion at birth. What else a rebase
                # wrote here (a manifest list, manifests) may land as it is; ROLLBACK finds it through the metadata.
                at_birth = {
                    e.metadata_location for step in steps for e in step.change.entries.values() if e is not None
                }
                never_reached = [location for location in files if not staged or location in at_birth]
                landing.enqueue(core, writer, never_reached, f"overlay of transaction {transaction}")
                if staged:
                    for offset, step in enumerate(steps):
                        position = len(opened.staged) + offset
                        writer.put(StagedRecord(transaction, position, changes.to_json(step.change)))
            if staged:
                for step in steps:
                    for entry in step.change.entries.values():
                        location = entry.metadata_location if entry is not None else None
                        if entry is not None and location is not None and location in step.files:
                            core.metadata.remember(location, step.metadata[entry.id], len(step.files[location]))
                return steps
    raise Unavailable(f"transaction {transaction} is changed by others all the time: nothing was staged; ask again")


def _posted(staged: Sequence[Change]) -> Callable[[str, int], str | None]:
    known = {
        (change.words.entry, int(snapshot)): digest
        for change in staged
        if change.words is not None
        for snapshot, digest in change.words.digests.items()
    }
    return lambda entry, snapshot_id: known.get((entry, snapshot_id))


def savepoint(core: Core, writer: StoreWriter, opened: Opened, name: str) -> None:
    _must_be_open(opened.record)
    depth = opened.savepoints[-1].depth + 1 if opened.savepoints else 1
    writer.put(SavepointRecord(opened.record.id, depth, name, len(opened.staged)))


def rollback_to(core: Core, writer: StoreWriter, opened: Opened, files: Written, name: str) -> None:
    """Forgets what was staged after the savepoint, which itself stays."""
    point = _find(opened, name)
    for position in range(point.position, len(opened.staged)):
        writer.delete(StagedRecord, opened.record.id, position)
    for later in opened.savepoints:
        if later.depth > point.depth:
            writer.delete(SavepointRecord, opened.record.id, later.depth)
    dropped, kept = opened.staged[point.position :], opened.staged[: point.position]
    landing.enqueue(
        core,
        writer,
        files.dropped(dropped, kept, landing.taken(writer)),
        f"rolled back to a savepoint in transaction {opened.record.id}",
    )
    if not writer.replace(opened.record, replace(opened.record, version=opened.record.version + 1)):
        raise Unavailable("the transaction changed while it was rolling back to a savepoint: ask again")


def release(core: Core, writer: StoreWriter, opened: Opened, name: str) -> None:
    point = _find(opened, name)
    for later in opened.savepoints:
        if later.depth >= point.depth:
            writer.delete(SavepointRecord, opened.record.id, later.depth)


def rollback(core: Core, writer: StoreWriter, opened: Opened, files: Written, *, state: str = ROLLED_BACK) -> None:
    """Drops the overlay; what it wrote goes to the deletion queue."""
    landing.enqueue(
        core,
        writer,
        files.dropped(opened.staged, (), landing.taken(writer)),
        f"transaction {opened.record.id} was rolled back",
    )
    _end(writer, opened, state)
    ranges.give_back(writer, opened.record.id)


def _end(writer: StoreWriter, opened: Opened, state: str) -> None:
    if not writer.replace(opened.record, replace(opened.record, state=state, version=opened.record.version + 1)):
        raise Unavailable("the transaction changed while it was being ended: ask again")
    writer.delete_where(StagedRecord, transaction=opened.record.id)
    writer.delete_where(SavepointRecord, transaction=opened.record.id)


def outcome_key(transaction: str) -> str:
    return f"transaction/{transaction}"


def commit(
    core: Core,
    opened: Opened,
    *,
    overlaid: Overlaid,
    principal: str,
    message: str | None,
    also: Callable[[StoreWriter], None],
) -> dict[str, Any]:
    """The merge of the overlay into its branch. ``also`` runs in the store transaction that publishes."""
    _must_be_open(opened.record)
    record = opened.record

    def finish(writer: StoreWriter, commit: CommitRecord) -> None:
        _end(writer, opened, COMMITTED)
        for step in landed_steps:
            for entry, metadata in step.metadata.items():
                ranges.settle(writer, entry, record.id, metadata)
        ranges.give_back(writer, record.id)
        nothing = not opened.staged
        outcome = {
            "result": "nothing-to-do" if nothing else "committed",
            "commit": commit.id,
            "transaction": record.id,
        }
        writer.put(OutcomeRecord(outcome_key(record.id), msgspec.json.encode(outcome).decode(), core.clock.now_ms()))
        also(writer)

    landed_steps: list[Step] = []

    def verb(at: Standing) -> Sequence[Step]:
        landed_steps[:] = merge_overlay(core, opened, at)
        return landed_steps

    landed = landing.land(
        core,
        record.repo,
        record.ref,
        verb,
        overlaid=overlaid,
        message=message or record.message or "transaction",
        principal=principal,
        details={"operation": "transaction", "transaction": record.id},
        also=finish,
        ends=record.id,
    )
    return {
        "result": "committed" if opened.staged else "nothing-to-do",
        "commit": landed.commit.id,
        "transaction": record.id,
    }


def merge_overlay(core: Core, opened: Opened, at: Standing) -> list[Step]:
    """The overlay's changes as steps on the branch's head. Pure but for reading; raises with every conflict found."""
    base = core.graph.tree(opened.base)
    after = entries_after(opened.staged)
    ours: dict[Key, tuple[Entry | None, Entry | None]] = {}
    for key, entry in after.items():
        before = base.get(key)
        if before != entry:
            ours[key] = (before, entry)
    head = at.view
    assert isinstance(head, Tree)
    _check_branch(core, opened, at)
    theirs = tree_diff(base, head)
    conflicts: list[Conflict] = []
    steps: list[Step] = []
    moved_ids = {entry.id: entry for _, entry in theirs.values() if entry is not None}

    replayed: set[Key] = set()
    for key, (before, entry) in ours.items():
        if not _is_table(before) or not _is_table(entry) or before is None or entry is None or before.id != entry.id:
            continue
        current = moved_ids.get(entry.id)
        if current is None or current.metadata_location == before.metadata_location:
            continue
        # Somebody else changed this very table since our base: what was said is applied again on what is there now.
        assert isinstance(key, Identifier)
        replayed.add(key)
        outcome = _replay(core, opened, at, key, before, current)
        if isinstance(outcome, Conflict):
            conflicts.append(outcome)
        else:
            steps.append(outcome)
    conflicts.extend(_taken_meanwhile(opened, at, after))
    merged = merge_trees(
        theirs,
        {k: v for k, v in ours.items() if k not in replayed},
        our_name=f"branch {opened.record.ref}",
        their_name="this transaction",
    )
    conflicts.extend(merged.conflicts)
    if conflicts:
        raise CommitConflict(
            f"transaction {opened.record.id} conflicts with what was committed since it began: "
            + "; ".join(c.message for c in conflicts),
            conflicts,
        )
    operations = _operations(opened.staged)
    for key, entry in merged.changes.items():
        steps.append(_rehome(core, opened, at, key, entry, operations.get(key, "change")))
    return steps


def _taken_meanwhile(opened: Opened, at: Standing, after: Mapping[Key, Entry | None]) -> list[Conflict]:
    """Snapshots of the overlay that somebody posted to a branch as well: one id would name two contents."""
    kept = {entry.id: key for key, entry in after.items() if entry is not None and isinstance(key, Identifier)}
    return [
        snapshot_taken(kept[change.words.entry], snapshot)
        for change in opened.staged
        if change.words is not None and change.words.entry in kept
        for snapshot in change.words.digests
        if at.taken(change.words.entry, int(snapshot))
    ]


def _check_branch(core: Core, opened: Opened, at: Standing) -> None:
    """A branch that was dropped and made again elsewhere is another one: what it lacks of our base was not dropped."""
    name = opened.record.ref
    head = core.graph.resolve(at.reader, at.repo, name).commit
    if not core.graph.is_ancestor(at.reader, opened.base, head):
        message = (
            f"branch {name} was dropped and made again since transaction {opened.record.id} began: it is another one"
        )
        raise CommitConflict(message, [Conflict(name, "another-branch", message)])


def _replay(
    core: Core, opened: Opened, at: Standing, key: Identifier, before: Entry, current: Entry
) -> Step | Conflict:
    words = [c.words for c in opened.staged if c.words is not None and c.words.entry == current.id]
    name = _name_of(at.view, key, current.id)
    said = TableWords(
        current.id,
        [update for w in words for update in w.updates],
        _first_requirements(words),
        any(w.strict for w in words),
        digests={snapshot: digest for w in words for snapshot, digest in w.digests.items()},
    )
    if said.strict:
        return Conflict(
            str(name),
            "both-changed",
            f"table {name} was changed on branch {opened.record.ref} since the transaction began, and the "
            "transaction's own change depends on the rows it read",
        )
    assert before.metadata_location is not None
    assert current.metadata_location is not None
    old, new = core.metadata.load(before.metadata_location), core.metadata.load(current.metadata_location)
    clobbered = _clobbered(old, new, said.updates)
    rule = rules_changed(old, new, said.updates)
    if rule is not None:
        return Conflict(
            str(name),
            "rules-changed",
            f"table {name}: {rule} was changed on branch {opened.record.ref} since the transaction began, and the "
            "transaction's rows were not checked by it",
        )
    if clobbered is not None:
        return Conflict(
            str(name),
            "both-changed",
            f"table {name}: {clobbered} was changed on branch {opened.record.ref} since the transaction began, and the "
            "transaction changes it too",
        )
    try:
        step = commit_table(core, at, name, said.updates, said.requirements)
    except CommitConflict as error:
        return error.conflicts[0] if error.conflicts else Conflict(str(name), "both-changed", error.message)
    if step.change.words is None:
        return snapshot_taken(name, next(iter(said.digests)))
    # The digests that a retry is recognised by are those of what the client posted into the overlay.
    return replace(step, change=replace(step.change, words=replace(step.change.words, digests=said.digests)))


_SETS = {
    "set-current-schema": "current-schema-id",
    "set-default-spec": "default-spec-id",
    "set-default-sort-order": "default-sort-order-id",
    "set-location": "location",
}
"""Action -> the one value it sets, whatever that was before."""


def _clobbered(old: dict[str, Any], new: dict[str, Any], updates: Sequence[dict[str, Any]]) -> str | None:
    """What the words would overwrite unseen. A client asserts what it read of a table only in part: its properties
    never, and nothing at all when it replaces the table."""
    old_properties, new_properties = old.get("properties") or {}, new.get("properties") or {}
    wanted: dict[str, Any] = {}
    for update in updates:
        action = update.get("action")
        if action == "set-properties":
            wanted |= update["updates"]
        elif action == "remove-properties":
            wanted |= dict.fromkeys(update["removals"])
        elif action == "remove-snapshot-ref":
            name = update["ref-name"]
            if (old.get("refs") or {}).get(name) != (new.get("refs") or {}).get(name):
                return f"snapshot ref {name}"
        elif action in _SETS and old.get(_SETS[action]) != new.get(_SETS[action]):
            return _SETS[action]
    for key, value in wanted.items():
        if old_properties.get(key) != new_properties.get(key) != value:
            return f"property {key}"
    return None


def _first_requirements(words: Sequence[TableWords]) -> list[dict[str, Any]]:
    """What the chain was based on. A later requirement of the same kind speaks of what the overlay made of it."""
    found: dict[tuple[Any, Any], dict[str, Any]] = {}
    for each in words:
        for requirement in each.requirements:
            found.setdefault((requirement.get("type"), requirement.get("ref")), requirement)
    return list(found.values())


def _rehome(core: Core, opened: Opened, at: Standing, key: Key, entry: Entry | None, operation: str) -> Step:
    """What lands gets a metadata file of its own in the table's folder; the overlay's files go away."""
    prefix = f"/{transaction_folder(opened.record.id)}/"
    words = [c.words for c in opened.staged if c.words is not None and entry is not None and c.words.entry == entry.id]
    digests = {snapshot: digest for w in words for snapshot, digest in w.digests.items()}
    superseded = tuple(s for c in opened.staged for s in c.superseded) if words else ()
    if (
        entry is None
        or entry.metadata_location is None
        or prefix not in entry.metadata_location
        or not isinstance(key, Identifier)
    ):
        return Step(Change(operation, {key: entry}))
    metadata = core.metadata.load(entry.metadata_location)
    base = core.graph.tree(opened.base)
    before_entry = base.get(_name_of(base, key, entry.id)) if words else None
    if before_entry is not None and before_entry.id == entry.id and before_entry.metadata_location is not None:
        previous = core.metadata.load(before_entry.metadata_location)
        metadata = with_metadata_log(metadata, previous_location=before_entry.metadata_location, previous=previous)
    folder = metadata_folder(metadata.get("properties") or {}, metadata["location"])
    number = len(metadata.get("metadata-log") or ())
    location = f"{folder}/{number:05d}-{core.randomness.uuid()}.metadata.json"
    landed = replace(entry, metadata_location=location)
    told = TableWords(entry.id, [], [], digests=digests) if digests else None
    return Step(
        Change(operation, {key: landed}, told, superseded),
        {location: encode(metadata)},
        {entry.id: metadata},
    )


def _operations(staged: Sequence[Change]) -> dict[Key, str]:
    words: dict[Key, str] = {}
    for change in staged:
        for key in change.entries:
            words[key] = "create" if words.get(key) == "create" and change.operation == "change" else change.operation
    return words


def _name_of(tree: TreeView, likely: Identifier, entry: str) -> Identifier:
    """What the entry is called there: nearly always the same; a rename is found by a scan."""
    found = tree.get(likely)
    if found is not None and found.id == entry:
        return likely
    return next((key for key, e in tree.items() if e.id == entry and isinstance(key, Identifier)), likely)


def _is_table(entry: Entry | None) -> bool:
    return entry is not None and entry.kind is EntryKind.TABLE


def _must_be_open(record: TransactionRecord) -> None:
    if record.state != OPEN:
        raise WrongState(f"transaction {record.id} has ended ({record.state}): begin another")


def _find(opened: Opened, name: str) -> SavepointRecord:
    _must_be_open(opened.record)
    for point in reversed(opened.savepoints):
        if point.name == name:
            return point
    raise NoSuchSavepoint(f'savepoint "{name}" does not exist')


__all__ = ["Opened", "begin", "commit", "key_name", "read", "release", "rollback", "rollback_to", "savepoint", "stage"]
