"""Manifests: the data and delete files of a snapshot, entry by entry; and re-writing one with some of its entries.

A re-written manifest keeps its writer's Avro schema and header, because those carry the partition type and the table
schema; only the entries are fewer and their numbers are taken out, to be inherited again from the manifest list.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from icefield.iceberg import avro
from icefield.iceberg.manifest_list import DATA, DELETES, ManifestFile, Read

EXISTING, ADDED, DELETED = 0, 1, 2

_ENTRY_NAMES = {0: "status", 1: "snapshot_id", 3: "sequence_number", 4: "file_sequence_number", 2: "data_file"}
_FILE_NAMES = {
    134: "content",
    100: "file_path",
    102: "partition",
    103: "record_count",
    104: "file_size_in_bytes",
    142: "first_row_id",
    143: "referenced_data_file",
    144: "content_offset",
    145: "content_size_in_bytes",
}
_ROW_ID = 142
_FILE_FORMAT = 101
_NOT_COMPARED = {100, 105, 106, 107, 111, _ROW_ID}
"""Of a data file: its path and row id (compared apart) and what the format says not to write any more."""

FileKey = tuple[str, int | None]
"""What names a file in a snapshot: its path, and its place inside (several deletion vectors share one Puffin file)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as written: nothing inherited yet."""

    status: int
    snapshot_id: int | None
    sequence_number: int | None
    file_sequence_number: int | None
    content: int
    path: str
    record_count: int
    size: int
    first_row_id: int | None
    content_offset: int | None
    record: avro.Record

    @property
    def key(self) -> FileKey:
        return self.path, self.content_offset

    @property
    def is_live(self) -> bool:
        return self.status != DELETED


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a live entry's file is known by for good: who added it, how old it is, which rows it holds."""

    snapshot_id: int
    sequence_number: int | None
    file_sequence_number: int | None
    first_row_id: int | None


@dataclass(frozen=True, slots=True)
class Manifest:
    location: str
    length: int
    content: int | None
    """What the header says it holds; None where it says nothing."""
    entries: tuple[Entry, ...]
    container: avro.Container

    @property
    def added(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.status == ADDED)

    def spec_id(self) -> int | None:
        text = self.container.text("partition-spec-id")
        return int(text) if text is not None and text.isdecimal() and len(text) < 12 else None

    def header_json(self, key: str) -> Any:
        """A header value that is JSON; None where it is not there or not JSON."""
        text = self.container.text(key)
        try:
            return None if text is None else json.loads(text)
        except (ValueError, RecursionError):
            return None


def read_manifest(location: str, data: bytes) -> Manifest:
    container = avro.read_container(location, data)
    header_content = container.text("content")
    content = {"data": DATA, "deletes": DELETES}.get(header_content.lower()) if header_content else None
    with avro.reading(location):
        return Manifest(location, len(data), content, tuple(_entries(container)), container)


def inherit(manifest: Manifest, listed: ManifestFile) -> Iterator[tuple[Entry, Numbers]]:
    """The live entries with what they inherit from the manifest's line in a committed list."""
    next_row_id = listed.first_row_id
    for entry in manifest.entries:
        if not entry.is_live:
            continue
        first_row_id = None
        if listed.content == DATA and next_row_id is not None:
            first_row_id = entry.first_row_id
            if first_row_id is None:
                first_row_id = next_row_id
                next_row_id += entry.record_count
        inherits = entry.status == ADDED or listed.sequence_number == 0
        default = listed.sequence_number if inherits else None
        yield (
            entry,
            Numbers(
                listed.added_snapshot_id if entry.snapshot_id is None else entry.snapshot_id,
                default if entry.sequence_number is None else entry.sequence_number,
                default if entry.file_sequence_number is None else entry.file_sequence_number,
                first_row_id,
            ),
        )


def file_facts(manifest: Manifest) -> list[tuple[Entry, Hashable]]:
    """Each live entry with all that is said of its file, comparable between manifests of different writers."""
    with avro.reading(manifest.location):
        return list(_file_facts(manifest))


def _file_facts(manifest: Manifest) -> Iterator[tuple[Entry, Hashable]]:
    names = avro.names_by_id(manifest.container.schema, manifest.location)
    file_schema = _field_type(manifest.container.schema, names.get(2, "data_file"))
    file_names = avro.names_by_id(file_schema, manifest.location)
    partition_name = file_names.get(102, "partition")
    partition_names = avro.names_by_id(_field_type(file_schema, partition_name), manifest.location)
    compared = [(i, n) for i, n in sorted(file_names.items()) if i not in _NOT_COMPARED and n != partition_name]
    partition = sorted((field_id, name) for field_id, name in partition_names.items())
    data_file = names.get(2, "data_file")
    for entry in manifest.entries:
        if not entry.is_live:
            continue
        record = entry.record[data_file]
        facts: list[Hashable] = []
        for field_id, name in compared:
            value = _comparable(record.get(name))
            if field_id == _FILE_FORMAT and isinstance(value, str):
                value = value.lower()
            if value not in (None, ()):
                facts.append((field_id, value))
        values = record.get(partition_name) or {}
        facts.append(tuple((field_id, _comparable(values.get(name))) for field_id, name in partition))
        yield entry, tuple(facts)


def may_inherit(manifest: Manifest) -> bool:
    """Could its ADDED entries be written with their numbers left out?"""
    with avro.reading(manifest.location):
        return _may_inherit(manifest)


def _may_inherit(manifest: Manifest) -> bool:
    schema = manifest.container.schema
    names = avro.names_by_id(schema, manifest.location)
    if not all(avro.may_be_null(schema, names.get(i, _ENTRY_NAMES[i])) for i in (3, 4)):
        return False
    file_schema = _field_type(schema, names.get(2, "data_file"))
    return avro.may_be_null(file_schema, avro.names_by_id(file_schema, manifest.location).get(_ROW_ID, "first_row_id"))


def rewrite(manifest: Manifest, entries: Iterable[Entry], *, keep_numbers_before: int) -> bytes:
    """The manifest with these of its entries only; ADDED ones lose the numbers that the landing gives anew.

    A data sequence number below ``keep_numbers_before`` is one that the writer chose on purpose: it stays.
    """
    schema = manifest.container.schema
    names = avro.names_by_id(schema, manifest.location)
    name = {field_id: names.get(field_id, default) for field_id, default in _ENTRY_NAMES.items()}
    file_names = avro.names_by_id(_field_type(schema, name[2]), manifest.location)
    row_id = file_names.get(_ROW_ID, "first_row_id")
    records = []
    for entry in entries:
        record = dict(entry.record)
        if entry.status == ADDED:
            number = entry.sequence_number
            if name[3] in record and not (number is not None and number < keep_numbers_before):
                record[name[3]] = None
            if name[4] in record:
                record[name[4]] = None
            if record[name[2]].get(row_id) is not None:
                record[name[2]] = record[name[2]] | {row_id: None}
        records.append(record)
    return avro.write_container(schema, records, manifest.container.header)


def with_counts(listed: ManifestFile, read: Read) -> ManifestFile:
    """Fills in the counts that a format 1 writer left out, by reading the manifest."""
    counts = (listed.added_files, listed.existing_files, listed.deleted_files)
    if None not in (*counts, listed.added_rows, listed.existing_rows, listed.deleted_rows):
        return listed
    return counted(listed, read_manifest(listed.path, read(listed.path)).entries)


def counted(listed: ManifestFile, entries: Iterable[Entry]) -> ManifestFile:
    """The line with its counts taken from the entries themselves."""
    files, rows = [0, 0, 0], [0, 0, 0]
    for entry in entries:
        files[entry.status] += 1
        rows[entry.status] += entry.record_count
    return replace(
        listed,
        added_files=files[ADDED],
        existing_files=files[EXISTING],
        deleted_files=files[DELETED],
        added_rows=rows[ADDED],
        existing_rows=rows[EXISTING],
        deleted_rows=rows[DELETED],
    )


# --- reading -----------------------------------------------------------------------------------------------------


def _entries(container: avro.Container) -> Iterator[Entry]:
    if not container.records:
        return
    location = container.location
    names = avro.names_by_id(container.schema, location)
    status_name, snapshot_name, sequence_name, file_sequence_name, file_name = (
        names.get(field_id, default) for field_id, default in _ENTRY_NAMES.items()
    )
    file_names = avro.names_by_id(_field_type(container.schema, file_name), location)
    name = {field_id: file_names.get(field_id, default) for field_id, default in _FILE_NAMES.items()}
    for record in container.records:
        file = record.get(file_name)
        status = record.get(status_name)
        if not isinstance(file, dict):
            raise avro.corrupt(location, "an entry in it has no data_file")
        if status not in (EXISTING, ADDED, DELETED) or isinstance(status, bool):
            raise avro.corrupt(location, f"an entry's status in it is {str(status)[:20]!r}, not 0, 1 or 2")
        content = _number(file, name[134], location)
        if content not in (None, 0, 1, 2):
            raise avro.corrupt(location, f"a file's content in it is {content}, not 0, 1 or 2")
        path = file.get(name[100])
        rows, size = _number(file, name[103], location), _number(file, name[104], location)
        if not isinstance(path, str) or not path or rows is None or size is None or rows < 0:
            raise avro.corrupt(location, "a file in it is without path, record count or size")
        if not isinstance(file.get(name[102], {}), dict):
            raise avro.corrupt(location, "a file's partition in it is no record")
        yield Entry(
            status=int(status),
            snapshot_id=_number(record, snapshot_name, location),
            sequence_number=_number(record, sequence_name, location),
            file_sequence_number=_number(record, file_sequence_name, location),
            content=content or 0,
            path=path,
            record_count=rows,
            size=size,
            first_row_id=_number(file, name[142], location),
            content_offset=_number(file, name[144], location),
            record=record,
        )


def _number(record: Mapping[str, Any], name: str, location: str) -> int | None:
    value = record.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise avro.corrupt(location, f"{name} in it cannot be {str(value)[:60]!r}")
    return value


def _field_type(schema: Any, name: str) -> Any:
    for field in schema.get("fields", ()) if isinstance(schema, dict) else ():
        if isinstance(field, dict) and field.get("name") == name:
            declared = field.get("type")
            if isinstance(declared, list):
                return next((part for part in declared if part != "null"), None)
            return declared
    raise ValueError(f"its schema has no field {name!r}")


def _comparable(value: Any) -> Hashable:
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, list):
        if value and isinstance(value[0], dict):
            # Iceberg's maps: records of key and value, in no particular order.
            return tuple(sorted((tuple(_comparable(part) for part in item.values()) for item in value), key=repr))
        return tuple(_comparable(item) for item in value)
    if isinstance(value, dict):
        return tuple(_comparable(part) for part in value.values())
    if isinstance(value, Hashable):
        return value
    return repr(value)
