"""Tables: list, load, exists, create, stage-create, commit (one or many, all or nothing), rename, drop."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from icefield.catalog import namespaces
from icefield.catalog.places import Place
from icefield.iceberg.metadata import apply_updates, failed_requirements, new_table, validate_create
from icefield.model.conflicts import Conflict
from icefield.model.entries import Entry, EntryKind
from icefield.model.errors import AlreadyExists, BadRequest, CommitConflict, NoSuchTable
from icefield.model.names import Identifier, Namespace, check_level
from icefield.store.records import CommitRecord, LandedRecord, OutcomeRecord, RangeRecord
from icefield.transaction.changes import Change, TableWords
from icefield.transaction.metadata_files import encode
from icefield.transaction.served import METADATA_PATH, metadata_folder
from icefield.transaction.steps import Standing, Step
from icefield.transaction.table_commits import (
    check_given_up,
    check_lists,
    commit_table,
    fresh_metadata_location,
    snapshot_digests,
)

MAX_TABLES_IN_ONE_COMMIT = 10_000


@dataclass(frozen=True, slots=True)
class LoadedTable:
    identifier: Identifier
    metadata_location: str | None
    metadata: dict[str, Any]
    config: dict[str, str]
    etag: str


@dataclass(frozen=True, slots=True)
class TableCommit:
    identifier: Identifier
    requirements: list[dict[str, Any]]
    updates: list[dict[str, Any]]


def list_tables(place: Place, namespace: Namespace) -> list[Identifier]:
    namespaces.load(place, namespace)
    return [identifier for identifier, _ in place.view.children(namespace, EntryKind.TABLE)]


def exists(place: Place, identifier: Identifier) -> bool:
    entry = place.view.get(identifier)
    return entry is not None and entry.kind is EntryKind.TABLE


def etag(place: Place, identifier: Identifier, *, snapshots: str) -> str:
    """Without reading the table: what a client that has it already need not be sent again."""
    entry = _entry(place, identifier)
    return place.etag(entry.id, entry.metadata_location or "", snapshots)


def load(place: Place, identifier: Identifier, *, snapshots: str = "all") -> LoadedTable:
    entry = _entry(place, identifier)
    assert entry.metadata_location is not None
    metadata = place.served(entry.id, place.core.metadata.load(entry.metadata_location))
    if snapshots == "refs":
        metadata = _only_referenced(metadata)
    return LoadedTable(
        identifier,
        entry.metadata_location,
        metadata,
        place.config(entry.id, metadata["location"]),
        place.etag(entry.id, entry.metadata_location, snapshots),
    )


def create(place: Place, namespace: Namespace, request: dict[str, Any]) -> LoadedTable:
    """A new table, or (``stage-create``) what it would be: the client fills it and commits with assert-create."""
    validate_create(request)
    identifier = Identifier(namespace, request["name"])
    check_level(identifier.name, "name")
    _check_creatable(place, identifier)
    entry_id, table_uuid = place.core.randomness.uuid(), place.core.randomness.uuid()
    location = _place_table(place, identifier, entry_id, request.get("location"))
    properties = place.overlaid.without_echo(request.get("properties") or {}, {}, location)
    metadata = new_table(
        {**request, "properties": properties},
        table_uuid=table_uuid,
        location=location,
        now_ms=place.core.clock.now_ms(),
    )
    _check_paths(place, metadata)
    if request.get("stage-create"):
        return _stage_create(place, identifier, entry_id, metadata)
    written: list[Entry] = []

    def verb(at: Standing) -> Sequence[Step]:
        namespaces.require(at, namespace)
        if at.view.get(identifier) is not None:
            raise AlreadyExists(f"Table already exists: {identifier}")
        step = _creation(place, at, identifier, entry_id, metadata, {})
        written[:] = [entry for entry in step.change.entries.values() if entry is not None]
        return [step]

    _make_folders(place, metadata)
    place.write(verb, message=f"create table {identifier}", operation="create-table")
    return _answer(place, identifier, written[0], metadata)


def _check_creatable(place: Place, identifier: Identifier) -> None:
    """Before anything is made for it: what is refused later leaves a folder behind, and the location is taken. The verb
    asks again; asked first, a creation sent twice does not stumble over the folder that it made."""
    place.check_writable()
    namespaces.load(place, identifier.namespace)
    if place.view.get(identifier) is not None:
        raise AlreadyExists(f"Table already exists: {identifier}")


def _stage_create(place: Place, identifier: Identifier, entry_id: str, metadata: dict[str, Any]) -> LoadedTable:
    told = {"entry": entry_id, "location": metadata["location"], "properties": metadata.get("properties") or {}}
    with place.core.store.write() as writer:
        writer.put(
            OutcomeRecord(
                _staged_key(metadata["table-uuid"]), msgspec.json.encode(told).decode(), place.core.clock.now_ms()
            )
        )
    _make_folders(place, metadata)
    served = place.overlaid.lay_over(metadata)
    return LoadedTable(
        identifier, None, served, place.config(entry_id, metadata["location"]), place.etag(entry_id, "staged")
    )


def commit(place: Place, commits: Sequence[TableCommit]) -> list[LoadedTable]:
    """All tables in one move of the head, or none, with every conflict named."""
    if not commits:
        raise BadRequest("table-changes must name at least one table", field="table-changes")
    if len(commits) > MAX_TABLES_IN_ONE_COMMIT:
        raise BadRequest(f"one commit may change {MAX_TABLES_IN_ONE_COMMIT} tables at most", field="table-changes")
    named = [c.identifier for c in commits]
    if len(set(named)) != len(named):
        twice = next(i for i in named if named.count(i) > 1)
        raise BadRequest(f"table {twice} is named twice: put all its updates in one change", field="table-changes")
    commits = [_in_plain_words(each) for each in commits]
    for number, each in enumerate(commits):
        with _of_change(number, commits):
            _check_updates(place, each)

    def verb(at: Standing) -> Sequence[Step]:
        steps: list[Step] = []
        conflicts: list[Conflict] = []
        failure: CommitConflict | None = None
        for number, each in enumerate(commits):
            try:
                with _of_change(number, commits):
                    if any(r.get("type") == "assert-create" for r in each.requirements):
                        steps.append(_commit_new(place, at, each))
                    else:
                        _check_moves(place, at, each)
                        steps.append(commit_table(place.core, at, each.identifier, each.updates, each.requirements))
            except CommitConflict as error:
                failure = failure or error
                conflicts.extend(error.conflicts or [Conflict(str(each.identifier), "conflict", error.message)])
        if failure is not None and _landed_together(at, commits):
            return []
        if failure is not None:
            message = failure.message if len(conflicts) == 1 else "; ".join(c.message for c in conflicts)
            raise CommitConflict(message, conflicts)
        return steps

    message = "commit to " + ", ".join(str(i) for i in named[:5]) + (" …" if len(named) > 5 else "")
    operation = "commit-transaction" if len(commits) > 1 else "commit-table"
    landed = place.write(verb, message=message, operation=operation, table_commit=True)
    # What landed is answered as it landed. The newest state may lack a table by now, and a client that hears 404
    # deletes the files it wrote, which history names.
    after = reopened(place) if landed is None else place.at(landed.commit)
    return [load(after, identifier) for identifier in named]


@contextlib.contextmanager
def _of_change(number: int, commits: Sequence[TableCommit]) -> Iterator[None]:
    """Of several changes, a refusal says which one is malformed."""
    try:
        yield
    except BadRequest as error:
        if len(commits) == 1:
            raise
        which = f"table-changes[{number}]"
        field = f"{which}.{error.field}" if error.field is not None else which
        raise BadRequest(f"{which}, table {commits[number].identifier}: {error.message}", field=field) from None


def _landed_together(at: Standing, commits: Sequence[TableCommit]) -> bool:
    """The retry law for changes that carry no snapshot: they landed if the commit did that their neighbour's snapshot
    landed with. Without it a client that asks again hears of a conflict, and deletes what it wrote."""
    if at.scope.transaction is not None:
        return False
    for each in commits:
        entry = at.view.get(each.identifier)
        for snapshot, digest in snapshot_digests(each.updates).items():
            landed = at.reader.get(LandedRecord, entry.id, at.scope.ref, int(snapshot)) if entry is not None else None
            commit = at.reader.get(CommitRecord, landed.commit) if landed is not None else None
            if landed is None or commit is None or landed.digest != digest:
                return False
            names = {line["name"] for line in msgspec.json.decode(commit.details).get("entries", ())}
            return names == {str(other.identifier) for other in commits}
    return False


def _commit_new(place: Place, at: Standing, said: TableCommit) -> Step:
    """The commit that makes a staged table (Spark's CREATE TABLE … AS SELECT)."""
    identifier = said.identifier
    check_level(identifier.name, "name")
    existing = at.view.get(identifier)
    assigned = next((u.get("uuid") for u in said.updates if u.get("action") == "assign-uuid"), None)
    with place.core.store.read() as reader:
        record = reader.get(OutcomeRecord, _staged_key(str(assigned)))
    staged: Mapping[str, Any] = msgspec.json.decode(record.outcome) if record is not None else {}
    digests = snapshot_digests(said.updates)
    if existing is not None:
        landed = {snapshot: at.posted(existing.id, int(snapshot)) for snapshot in digests}
        if staged and existing.id == staged["entry"] and landed == digests:
            return Step(Change("create", {}), answered=True)  # the same creation, asked again: it has landed
        raise AlreadyExists(f"Table already exists: {identifier}")
    if staged and at.reader.find(RangeRecord, entry=staged["entry"]):
        # An entry that landed has ranges. Made again it would be two tables with one id, or one risen from the dead.
        message = f"table {identifier} was created by this commit before, and dropped or renamed since: create it anew"
        raise CommitConflict(message, [Conflict(str(identifier), "created-before", message)])
    namespaces.require(at, identifier.namespace)
    failed = failed_requirements(None, said.requirements)
    if failed:
        raise CommitConflict(
            f"table {identifier}: {failed[0].message}",
            [Conflict(str(identifier), "requirement-failed", f"table {identifier}: {f.message}") for f in failed],
        )
    entry_id = staged.get("entry") or place.core.randomness.uuid()
    asked = next((u.get("location") for u in said.updates if u.get("action") == "set-location"), None)
    if staged and (asked is None or str(asked).rstrip("/") == staged["location"]):
        location = staged["location"]
    else:
        location = _place_table(place, identifier, entry_id, asked)
    updates = [u for u in said.updates if u.get("action") != "set-location"]
    updates.append({"action": "set-location", "location": location})
    if assigned is None:
        updates.insert(0, {"action": "assign-uuid", "uuid": place.core.randomness.uuid()})
    check_lists(place.core, updates)
    check_given_up(at, identifier, updates)
    updates = at.overlaid.take_out(updates, staged.get("properties") or {}, location)
    metadata = apply_updates(None, updates, now_ms=place.core.clock.now_ms())
    _check_paths(place, metadata)
    _make_folders(place, metadata)
    return _creation(place, at, identifier, entry_id, metadata, digests)


def _creation(
    place: Place,
    at: Standing,
    identifier: Identifier,
    entry_id: str,
    metadata: dict[str, Any],
    digests: Mapping[str, str],
) -> Step:
    location = fresh_metadata_location(place.core, at, metadata)
    entry = Entry(entry_id, EntryKind.TABLE, location, metadata["location"])
    words = TableWords(entry_id, [], [], digests=digests) if digests else None
    return Step(Change("create", {identifier: entry}, words), {location: encode(metadata)}, {entry_id: metadata})


def drop(place: Place, identifier: Identifier, *, purge: bool) -> None:
    """Files stay: history reaches them, and may be another ref's. ``purge`` says that they may go once nothing does."""

    def verb(at: Standing) -> Sequence[Step]:
        entry = at.view.get(identifier)
        if entry is None or entry.kind is not EntryKind.TABLE:
            raise NoSuchTable(f"Table does not exist: {identifier}")
        return [Step(Change("drop", {identifier: None}))]

    how = "drop and purge" if purge else "drop"
    place.write(verb, message=f"{how} table {identifier}", operation="purge-table" if purge else "drop-table")


def rename(place: Place, source: Identifier, destination: Identifier) -> None:
    check_level(destination.name, "destination.name")

    def verb(at: Standing) -> Sequence[Step]:
        entry = at.view.get(source)
        if entry is None or entry.kind is not EntryKind.TABLE:
            raise NoSuchTable(f"Table does not exist: {source}")
        namespaces.require(at, destination.namespace)
        if source == destination:
            return []
        if at.view.get(destination) is not None:
            raise AlreadyExists(f"Table already exists: {destination}")
        return [Step(Change("rename", {source: None, destination: entry}))]

    place.write(verb, message=f"rename table {source} to {destination}", operation="rename-table")


def reopened(place: Place) -> Place:
    """The same place after a write: its view is newer."""
    from dataclasses import replace

    core = place.core
    if place.session is not None:
        seen = place.sessions.see(place.session)
        return replace(place, commit=seen.commit, view=seen.view, session=seen.session)
    with core.store.read() as reader:
        resolved = core.graph.resolve(reader, place.repo, place.name)
    return replace(place, commit=resolved.commit, view=core.graph.tree(resolved.commit))


def _answer(place: Place, identifier: Identifier, entry: Entry, metadata: dict[str, Any]) -> LoadedTable:
    return LoadedTable(
        identifier,
        entry.metadata_location,
        place.served(entry.id, metadata),
        place.config(entry.id, metadata["location"]),
        place.etag(entry.id, entry.metadata_location or "", "all"),
    )


def _entry(place: Place, identifier: Identifier) -> Entry:
    entry = place.view.get(identifier)
    if entry is None or entry.kind is not EntryKind.TABLE or entry.metadata_location is None:
        # Also where the namespace is missing: Spark asks for sales.orders.snapshots first, as a table of sales.orders.
        raise NoSuchTable(f"Table does not exist: {identifier}")
    return entry


def _only_referenced(metadata: dict[str, Any]) -> dict[str, Any]:
    kept = {ref["snapshot-id"] for ref in (metadata.get("refs") or {}).values()}
    return {**metadata, "snapshots": [s for s in metadata.get("snapshots") or () if s["snapshot-id"] in kept]}


def _staged_key(table_uuid: str) -> str:
    return f"staged/{table_uuid}"


_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


def _place_table(place: Place, identifier: Identifier, entry_id: str, asked: str | None) -> str:
    """Two tables never share a folder, whatever branches they are made on: the entry's id is part of its name.

    A location of the client's own is honoured below the volume's root, if nothing is there yet.
    """
    volume = place.core.volume
    if asked is None:
        levels = [_UNSAFE.sub("_", level)[:60] for level in (*identifier.namespace, identifier.name)]
        return "/".join((volume.root, place.repo, *levels[:-1], f"{levels[-1]}-{entry_id[:13].replace('-', '')}"))
    _check_free(place, asked)
    return asked.rstrip("/")


def _check_free(place: Place, asked: str) -> None:
    """May a table of its own stand there?"""
    volume, location = place.core.volume, asked.rstrip("/")
    if not volume.holds(location) or location == volume.root:
        raise BadRequest(f"location {asked} must lie below this server's volume {volume.root}", field="location")
    if volume.exists(location):
        raise BadRequest(f"location {asked} exists already: two tables never share a folder", field="location")
    above = location.rpartition("/")[0]
    while volume.holds(above):
        if volume.exists(f"{above}/metadata") and volume.exists(f"{above}/data"):
            raise BadRequest(f"location {asked} lies in another table's folder, {above}", field="location")
        above = above.rpartition("/")[0]


def _check_moves(place: Place, at: Standing, said: TableCommit) -> None:
    """A table may move to where nothing is, and back to where it was made."""
    entry = at.view.get(said.identifier)
    if entry is None or entry.metadata_location is None:
        return
    for update in said.updates:
        if update.get("action") == "set-location":
            location = str(update["location"]).rstrip("/")
            if location not in (entry.location, place.core.metadata.load(entry.metadata_location)["location"]):
                _check_free(place, location)


def _check_paths(place: Place, metadata: dict[str, Any]) -> None:
    """Where the server itself will write must lie in its volume."""
    folder = metadata_folder(metadata.get("properties") or {}, metadata["location"])
    if not place.core.volume.holds(folder):
        raise BadRequest(
            f"{METADATA_PATH} {folder} must lie below this server's volume {place.core.volume.root}",
            field=f"properties.{METADATA_PATH}",
        )


_OTHER_NAMES = {"set-properties": ("updated", "updates"), "remove-properties": ("removed", "removals")}
"""Fields that had another name once, by action."""


def _in_plain_words(said: TableCommit) -> TableCommit:
    """Java takes actions in any case, and fields by their old names. One spelling from here on, so that no check is
    passed by another one."""
    updates = [_lower(update, "action") for update in said.updates]
    for number, update in enumerate(updates):
        old, new = _OTHER_NAMES.get(str(update.get("action")), ("", ""))
        if old in update and new not in update:
            updates[number] = {new if key == old else key: value for key, value in update.items()}
    return TableCommit(said.identifier, [_lower(each, "type") for each in said.requirements], updates)


def _lower(document: dict[str, Any], key: str) -> dict[str, Any]:
    value = document.get(key)
    return {**document, key: value.lower()} if isinstance(value, str) else document


def _check_updates(place: Place, said: TableCommit) -> None:
    for number, update in enumerate(said.updates):
        if not isinstance(update, dict):
            raise BadRequest(f"updates[{number}] must be an object", field=f"updates[{number}]")
        location = None
        if update.get("action") == "set-location":
            location = update.get("location")
            if not isinstance(location, str):
                raise BadRequest(f"updates[{number}].location must be a text", field=f"updates[{number}].location")
        values = update.get("updates") if update.get("action") == "set-properties" else None
        path = values.get(METADATA_PATH) if isinstance(values, dict) else None
        for field, value in (("location", location), (f"updates.{METADATA_PATH}", path)):
            if isinstance(value, str) and not place.core.volume.holds(value):
                raise BadRequest(
                    f"updates[{number}].{field}: {value} must lie below this server's volume {place.core.volume.root}",
                    field=f"updates[{number}].{field}",
                )
    for number, requirement in enumerate(said.requirements):
        if not isinstance(requirement, dict):
            raise BadRequest(f"requirements[{number}] must be an object", field=f"requirements[{number}]")


def _make_folders(place: Place, metadata: dict[str, Any]) -> None:
    for folder in ("data", "metadata"):
        place.core.volume.make_folder(f"{metadata['location']}/{folder}")
