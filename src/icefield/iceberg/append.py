"""What is an append: a snapshot that leaves every live file of its base alone and adds data files. Nothing else.

**Live entries** are compared, not manifests, because writers move entries about: Java merges manifests (old entries as
EXISTING beside the new ADDED ones) and drops those without live entries. In the ordinary case nothing was moved: the
snapshot's list names every manifest of its base and a few new ones, and only the list and the new ones are read.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icefield.iceberg import avro, manifests
from icefield.iceberg.manifest_list import DATA, ManifestFile, ManifestList, Read, read_list
from icefield.iceberg.manifests import ADDED, DELETED, EXISTING, Entry, FileKey, Manifest, Numbers

Snapshot = Mapping[str, Any]
"""A snapshot as in REST's add-snapshot and in table metadata."""


@dataclass(frozen=True, slots=True)
class NewManifest:
    """A manifest that the snapshot itself wrote: its line in the snapshot's list, and what is in it."""

    listed: ManifestFile
    manifest: Manifest

    @property
    def is_merged(self) -> bool:
        return any(entry.status == EXISTING for entry in self.manifest.entries)


@dataclass(frozen=True, slots=True)
class Append:
    snapshot: Snapshot
    base: tuple[ManifestFile, ...]
    """The manifests of the snapshot it was built on."""
    manifests: tuple[ManifestFile, ...]
    """Its own list, as its writer numbered it."""
    new: tuple[NewManifest, ...]
    sources: tuple[ManifestFile, ...]
    """Manifests of the base whose live entries stand in ``new`` ones now."""


@dataclass(frozen=True, slots=True)
class NotAppend:
    reason: str
    """Half a sentence that goes after "snapshot 7 …": what it does that an append does not."""


def judge(snapshot: Snapshot, base: Sequence[ManifestFile], read: Read) -> Append | NotAppend:
    """Is this snapshot an append to the snapshot with these manifests? (An empty sequence: to nothing.)"""
    operation = (snapshot.get("summary") or {}).get("operation")
    if operation != "append":
        return NotAppend(f"is of the operation {operation!r}, not an append")
    try:
        listed = list_of(snapshot, read)
        if isinstance(listed, NotAppend):
            return listed
        return _compare(snapshot, base, listed, read)
    except avro.BeyondLimits as error:
        return NotAppend(f"cannot be checked: {error.message}")


def judge_chain(
    snapshots: Sequence[Snapshot], base: Sequence[ManifestFile], read: Read
) -> tuple[Append, ...] | NotAppend:
    """Link by link: each snapshot against the one before it, the first against ``base``."""
    chain: list[Append] = []
    for snapshot in snapshots:
        verdict = judge(snapshot, chain[-1].manifests if chain else base, read)
        if isinstance(verdict, NotAppend):
            return verdict
        chain.append(verdict)
    return tuple(chain)


def list_of(snapshot: Snapshot, read: Read) -> ManifestList | NotAppend:
    """Reads a snapshot's manifest list, if it is one that can be read."""
    if snapshot.get("key-id") is not None:
        return NotAppend("has an encrypted manifest list")
    location = snapshot.get("manifest-list")
    if not isinstance(location, str) or not location:
        return NotAppend("has no manifest list")
    return read_list(location, read(location))


def _compare(snapshot: Snapshot, base: Sequence[ManifestFile], listed: ManifestList, read: Read) -> Append | NotAppend:
    own_id = snapshot["snapshot-id"]
    in_base = {manifest.path: manifest for manifest in base}
    new: list[NewManifest] = []
    for line in listed.manifests:
        before = in_base.get(line.path)
        if before is not None:
            if not same_line(before, line):
                return NotAppend(f"renumbers the manifest {line.path} of its base")
            continue
        if line.added_snapshot_id != own_id:
            return NotAppend(f"has the manifest {line.path} of snapshot {line.added_snapshot_id}, not in its base")
        if line.key_metadata is not None:
            return NotAppend(f"has the encrypted manifest {line.path}")
        new.append(NewManifest(line, manifests.read_manifest(line.path, read(line.path))))

    kept = {line.path for line in listed.manifests}
    gone = [line for line in base if line.path not in kept and line.may_be_live]
    for part in new:
        why = _misplaced(part, snapshot)
        if why is not None:
            return NotAppend(why)
    why, sources = _moved_entries(gone, new, read)
    if why is not None:
        return NotAppend(why)
    live: set[str] = set()
    for part in new:
        for entry in part.manifest.entries if part.listed.content == DATA else ():
            if entry.path in live:
                return NotAppend(f"has the file {entry.path} twice")
            live.add(entry.path)
    return Append(snapshot, tuple(base), listed.manifests, tuple(new), sources)


def same_line(before: ManifestFile, after: ManifestFile) -> bool:
    """Do two lists say the same of one manifest, as far as its entries inherit from it?"""
    return (
        before.spec_id == after.spec_id
        and before.content == after.content
        and before.sequence_number == after.sequence_number
        and before.added_snapshot_id == after.added_snapshot_id
    )


def _misplaced(part: NewManifest, snapshot: Snapshot) -> str | None:
    """What in a new manifest does not belong in an append's, but for its EXISTING entries."""
    path, content = part.listed.path, part.listed.content
    if part.manifest.content not in (None, content):
        return f"lists the manifest {path} as another kind than its header says"
    for entry in part.manifest.entries:
        if (entry.content == 0) != (content == DATA):
            return f"has the file {entry.path} in a manifest of the other kind, {path}"
        if entry.status == EXISTING:
            continue
        if entry.status == DELETED:
            return f"removes the file {entry.path}"
        if content != DATA:
            return f"adds the delete file {entry.path}"
    return illegal_numbers(part, snapshot)


def illegal_numbers(part: NewManifest, snapshot: Snapshot) -> str | None:
    """May the ADDED entries carry the numbers they do?

    Mostly it carries none and inherits them. It may repeat the snapshot's own, which are given anew at landing, and it
    may choose an older data sequence number (its rows are then as old as that). Any other number is somebody else's.
    """
    own_number, own_row_id = snapshot.get("sequence-number"), snapshot.get("first-row-id")
    for entry in part.manifest.added:
        if entry.snapshot_id not in (None, snapshot["snapshot-id"]):
            return f"adds the file {entry.path} in the name of snapshot {entry.snapshot_id}"
        if entry.file_sequence_number not in (None, own_number):
            return f"adds the file {entry.path} with the file sequence number {entry.file_sequence_number}"
        number = entry.sequence_number
        if number is not None and (own_number is None or not 0 <= number <= own_number):
            return (
                f"adds the file {entry.path} with the sequence number {number}, which is not its own nor an older one"
            )
        if entry.first_row_id is not None and (own_row_id is None or entry.first_row_id < own_row_id):
            return f"adds the file {entry.path} with the first row id {entry.first_row_id}, which is not one of its own"
        if carries_own_numbers(entry, own_number) and not manifests.may_inherit(part.manifest):
            return f"numbers the file {entry.path} in a manifest that cannot leave the number out"
    return None


def carries_own_numbers(entry: Entry, own_number: Any) -> bool:
    """Does an ADDED entry carry numbers of its snapshot, which are given anew at landing?"""
    return entry.status == ADDED and (
        (entry.sequence_number is not None and entry.sequence_number == own_number)
        or entry.file_sequence_number is not None
        or entry.first_row_id is not None
    )


def _moved_entries(
    gone: Iterable[ManifestFile], new: Sequence[NewManifest], read: Read
) -> tuple[str | None, tuple[ManifestFile, ...]]:
    """Every live entry of the gone manifests must stand, unchanged, in exactly one new one; and nothing else may."""
    moved: dict[FileKey, tuple[int, Numbers, Hashable]] = {}
    for part in new:
        if not part.is_merged:
            continue
        for entry, facts in manifests.file_facts(part.manifest):
            if entry.status != EXISTING:
                continue
            if entry.key in moved:
                return f"has the file {entry.path} twice", ()
            numbers = Numbers(
                -1 if entry.snapshot_id is None else entry.snapshot_id,
                entry.sequence_number,
                entry.file_sequence_number,
                entry.first_row_id,
            )
            moved[entry.key] = (part.listed.spec_id, numbers, (part.listed.content, entry.content, facts))

    sources: list[ManifestFile] = []
    for line in gone:
        manifest = manifests.read_manifest(line.path, read(line.path))
        facts_of = {id(entry): facts for entry, facts in manifests.file_facts(manifest)}
        live = False
        for entry, numbers in manifests.inherit(manifest, line):
            live = True
            found = moved.pop(entry.key, None)
            if found is None:
                return f"removes the file {entry.path}", ()
            if found != (line.spec_id, numbers, (line.content, entry.content, facts_of[id(entry)])):
                return f"changes what is said of the file {entry.path}", ()
        if live:
            sources.append(line)
    for key in moved:
        return f"says that the file {key[0]} was there before, which it was not", ()
    return None, tuple(sources)
