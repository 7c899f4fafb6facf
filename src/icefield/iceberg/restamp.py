"""Gives a client's snapshot its place after another parent: numbers, row ids, manifest list, totals.

The client's data files and, nearly always, its manifests stay as they are: their entries leave the numbers out and
inherit them from the manifest list, which is the one file that is always written anew. The snapshot id stays too,
because the client will look its snapshot up by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from icefield.iceberg import avro, manifests
from icefield.iceberg.append import (
    Append,
    NewManifest,
    NotAppend,
    Snapshot,
    carries_own_numbers,
    illegal_numbers,
    list_of,
    same_line,
)
from icefield.iceberg.manifest_list import DATA, DELETES, ManifestFile, Read, assign_row_ids, write_list
from icefield.iceberg.manifests import ADDED, Entry

FreshLocation = Callable[[str], str]
"""A file name's beginning -> a location ending in ``.avro`` that nothing has, in the table's metadata folder."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a snapshot comes to stand."""

    format_version: int
    parent: Snapshot | None
    manifests: tuple[ManifestFile, ...]
    """The parent's."""
    last_sequence_number: int
    next_row_id: int
    schema_id: int | None
    """The schema id current at landing; None leaves the snapshot's own."""
    now_ms: int


@dataclass(frozen=True, slots=True)
class Landed:
    snapshot: dict[str, Any]
    manifests: tuple[ManifestFile, ...]
    new_files: dict[str, bytes]
    superseded: tuple[str, ...]
    """Files the client wrote that nothing refers to any more."""
    referenced: tuple[str, ...]
    """Files the client wrote that the snapshot refers to: they must not be deleted."""
    place_after: Place


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: str
    """Half a sentence that goes after "snapshot 7 …"."""


def rebase_append(append: Append, place: Place, *, read: Read, fresh_location: FreshLocation) -> Landed:
    """The append, put after ``place.parent``, whatever that is: its base, or a descendant of it."""
    at_head = {line.path: line for line in place.manifests}
    # A merged manifest repeats the numbers of its sources, so it is right only where they still stand as they stood.
    keep_merged = all(_still_stands(source, at_head.get(source.path)) for source in append.sources)
    replaced = {source.path for source in append.sources} if keep_merged else set()
    files = _Files(append.snapshot, fresh_location)
    lines: list[ManifestFile] = []
    added: list[Entry] = []
    for part in append.new:
        added += part.manifest.added
        entries = part.manifest.entries if keep_merged or not part.is_merged else part.manifest.added
        line = files.land(part, entries, place)
        if line is not None:
            lines.append(line)
    kept = [manifests.with_counts(line, read) for line in place.manifests if line.path not in replaced]
    summary = _append_summary(append.snapshot, place, lines, kept, added, len(replaced))
    return _landed(append.snapshot, summary, [*lines, *kept], place, files)


def renumber(snapshot: Snapshot, place: Place, *, read: Read, fresh_location: FreshLocation) -> Landed | Refusal:
    """A snapshot of any kind whose parent is still the head, but whose numbers were taken by another snapshot ref.

    Only one snapshot at a time: what stands in its files are numbers of its base, and those have not moved. In a chain
    later links repeat the numbers of earlier ones, in data files too, where nobody can change them.
    """
    if ("first-row-id" in snapshot) != (place.format_version >= 3):
        return Refusal("was written for another format version than the table has now")
    try:
        listed = list_of(snapshot, read)
        if isinstance(listed, NotAppend):
            return Refusal(listed.reason)
        own_number = snapshot.get("sequence-number")
        in_base = {line.path: line for line in place.manifests}
        files = _Files(snapshot, fresh_location)
        lines: list[ManifestFile] = []
        for line in listed.manifests:
            before = in_base.get(line.path)
            if before is not None and same_line(before, line):
                lines.append(manifests.with_counts(before, read))
                continue
            if before is not None or line.added_snapshot_id != snapshot["snapshot-id"]:
                return Refusal(f"has the manifest {line.path}, which is neither its own nor its parent's")
            if line.key_metadata is not None:
                return Refusal(f"has the encrypted manifest {line.path}")
            part = NewManifest(line, manifests.read_manifest(line.path, read(line.path)))
            whys = (_not_of_base(entry, own_number) for entry in part.manifest.entries if entry.status != ADDED)
            why = illegal_numbers(part, snapshot) or next(filter(None, whys), None)
            if why is not None:
                return Refusal(why)
            landed = files.land(part, part.manifest.entries, place)
            if landed is not None:
                lines.append(landed)
        return _landed(snapshot, dict(snapshot.get("summary") or {}), lines, place, files)
    except avro.BeyondLimits as error:
        return Refusal(f"cannot be renumbered: {error.message}")


def _not_of_base(entry: Entry, own_number: Any) -> str | None:
    numbers = (entry.sequence_number, entry.file_sequence_number)
    if isinstance(own_number, int) and all(number is not None and number < own_number for number in numbers):
        return None
    return f"has the file {entry.path} from before it without the sequence numbers that it had"


def _still_stands(before: ManifestFile, now: ManifestFile | None) -> bool:
    return now is not None and same_line(before, now) and before.first_row_id == now.first_row_id


class _Files:
    """The client's manifests on their way into the new list: which stay, which are written anew, which fall away."""

    def __init__(self, snapshot: Snapshot, fresh_location: FreshLocation) -> None:
        self.snapshot = snapshot
        self.fresh_location = fresh_location
        self.new: dict[str, bytes] = {}
        self.superseded: list[str] = [snapshot["manifest-list"]]
        self.referenced: list[str] = []

    def fresh(self, stem: str) -> str:
        location = self.fresh_location(stem)
        if not location.endswith(".avro"):
            raise ValueError(f"fresh location {location!r} must end in .avro: readers go by it")
        return location

    def land(self, part: NewManifest, entries: tuple[Entry, ...], place: Place) -> ManifestFile | None:
        """The line for a new manifest of which these entries land; None if that leaves nothing."""
        written = part.manifest
        path, length = written.location, written.length
        own_number = self.snapshot.get("sequence-number")
        all_of_it = len(entries) == len(written.entries)
        if not all_of_it or any(carries_own_numbers(entry, own_number) for entry in entries):
            self.superseded.append(path)
            if not entries:
                return None
            before = own_number if isinstance(own_number, int) else 0
            content = manifests.rewrite(written, entries, keep_numbers_before=before)
            path, length = self.fresh(f"{self.snapshot['snapshot-id']}-m{len(self.new)}"), len(content)
            self.new[path] = content
        else:
            self.referenced.append(path)
        sequence_number = place.last_sequence_number + 1
        ages = [_lasting(entry, own_number, sequence_number) for entry in entries if entry.is_live]
        return replace(
            manifests.counted(part.listed, entries),
            path=path,
            length=length,
            sequence_number=sequence_number,
            min_sequence_number=min(ages, default=sequence_number),
            first_row_id=None,
        )


def _lasting(entry: Entry, own_number: Any, sequence_number: int) -> int:
    number = entry.sequence_number
    if number is None or (entry.status == ADDED and number == own_number):
        return sequence_number
    return number


def _landed(
    snapshot: Snapshot, summary: dict[str, str], lines: list[ManifestFile], place: Place, files: _Files
) -> Landed:
    snapshot_id, sequence_number = snapshot["snapshot-id"], place.last_sequence_number + 1
    parent_id = place.parent["snapshot-id"] if place.parent is not None else None
    placed, next_row_id = tuple(lines), place.next_row_id
    if place.format_version >= 3:
        placed, next_row_id = assign_row_ids(lines, place.next_row_id)
    location = files.fresh(f"snap-{snapshot_id}")
    files.new[location] = write_list(
        placed,
        format_version=place.format_version,
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent_id,
        sequence_number=sequence_number,
        first_row_id=place.next_row_id if place.format_version >= 3 else None,
    )
    replaced = ("parent-snapshot-id", "first-row-id", "added-rows")
    landed = {key: value for key, value in snapshot.items() if key not in replaced}
    if parent_id is not None:
        landed["parent-snapshot-id"] = parent_id
    landed["sequence-number"] = sequence_number
    landed["timestamp-ms"] = max(place.now_ms, place.parent["timestamp-ms"] + 1 if place.parent is not None else 0)
    landed["manifest-list"] = location
    landed["summary"] = summary
    if place.schema_id is not None:
        landed["schema-id"] = place.schema_id
    if place.format_version >= 3:
        landed["first-row-id"] = place.next_row_id
        landed["added-rows"] = next_row_id - place.next_row_id
    after = replace(
        place, parent=landed, manifests=placed, last_sequence_number=sequence_number, next_row_id=next_row_id
    )
    return Landed(landed, placed, files.new, tuple(files.superseded), tuple(files.referenced), after)


# --- the summary -------------------------------------------------------------------------------------------------

_MANIFEST_COUNTERS = ("manifests-created", "manifests-kept", "manifests-replaced")


def _append_summary(
    snapshot: Snapshot,
    place: Place,
    new: list[ManifestFile],
    kept: list[ManifestFile],
    added: list[Entry],
    replaced: int,
) -> dict[str, str]:
    """The client's own words, with every counter counted anew from what is there.

    Files and records are counted from the manifest list. Sizes and delete counts are not in it: those go on from the
    parent's totals, where it has them, and are left out where it has not.
    """
    summary = {key: value for key, value in (snapshot.get("summary") or {}).items() if not key.startswith("total-")}
    for key in ("added-data-files", "added-records", "added-files-size"):
        summary.pop(key, None)
    if added:
        summary["added-data-files"] = str(len(added))
        summary["added-records"] = str(sum(entry.record_count for entry in added))
        summary["added-files-size"] = str(sum(entry.size for entry in added))

    lines = [*new, *kept]
    summary["total-data-files"] = str(sum(line.live_files or 0 for line in lines if line.content == DATA))
    summary["total-records"] = str(sum(line.live_rows or 0 for line in lines if line.content == DATA))
    delete_files = sum(line.live_files or 0 for line in lines if line.content == DELETES)
    summary["total-delete-files"] = str(delete_files)
    before: Mapping[str, Any] = place.parent.get("summary") or {} if place.parent is not None else {}
    sizes = _total(before, "total-files-size", none_yet=not any(line.may_be_live for line in place.manifests))
    if sizes is not None:
        summary["total-files-size"] = str(sizes + sum(entry.size for entry in added))
    for key in ("total-position-deletes", "total-equality-deletes"):
        deletes = _total(before, key, none_yet=delete_files == 0)
        if deletes is not None:
            summary[key] = str(deletes)
    if any(key in summary for key in _MANIFEST_COUNTERS):
        counts = (len(new), len(kept), replaced)
        summary.update((key, str(count)) for key, count in zip(_MANIFEST_COUNTERS, counts, strict=True))
    return summary


def _total(before: Mapping[str, Any], key: str, *, none_yet: bool) -> int | None:
    if none_yet:
        return 0
    text = before.get(key)
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 19 else None
