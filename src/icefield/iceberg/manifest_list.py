"""Manifest lists: which manifests make up a snapshot, read from any writer, written for formats 2 and 3.

Fields are found by their ids, because writers have named them differently (``added_data_files_count``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from icefield.iceberg import avro
from icefield.model.errors import BadRequest
from icefield.volume.port import FileTooLarge, NoSuchFile

Read = Callable[[str], bytes]
"""location -> the file's bytes"""

DATA, DELETES = 0, 1


def existing(read: Read) -> Read:
    """The same reader, with the volume's own exceptions turned into words about the request."""

    def checked(location: str) -> bytes:
        try:
            return read(location)
        except NoSuchFile:
            raise BadRequest(f"{location} is named by a snapshot and is not there", field="manifest-list") from None
        except FileTooLarge:
            raise avro.BeyondLimits(f"{location} is larger than this server reads", field="manifest-list") from None

    return checked


@dataclass(frozen=True, slots=True)
class FieldSummary:
    contains_null: bool
    contains_nan: bool | None
    lower_bound: bytes | None
    upper_bound: bytes | None


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One line of a manifest list. Counts are None where a format 1 writer left them out: then nothing is known."""

    path: str
    length: int
    spec_id: int
    content: int
    sequence_number: int
    min_sequence_number: int
    added_snapshot_id: int
    added_files: int | None
    existing_files: int | None
    deleted_files: int | None
    added_rows: int | None
    existing_rows: int | None
    deleted_rows: int | None
    partitions: tuple[FieldSummary, ...] | None = None
    key_metadata: bytes | None = None
    first_row_id: int | None = None

    @property
    def may_be_live(self) -> bool:
        """Can this manifest hold live entries?"""
        return self.added_files != 0 or self.existing_files != 0

    @property
    def live_files(self) -> int | None:
        return (
            None if self.added_files is None or self.existing_files is None else self.added_files + self.existing_files
        )

    @property
    def live_rows(self) -> int | None:
        return None if self.added_rows is None or self.existing_rows is None else self.added_rows + self.existing_rows


@dataclass(frozen=True, slots=True)
class ManifestList:
    location: str
    manifests: tuple[ManifestFile, ...]
    header: Mapping[str, bytes]


def read_list(location: str, data: bytes) -> ManifestList:
    """Raises ``BadRequest`` for what is no manifest list. A few are remembered: every commit reads the head's."""
    return _remembered(location, data) if len(data) <= _REMEMBERED_BYTES else _decode(location, data)


_REMEMBERED_BYTES = 256 * 1024


@lru_cache(maxsize=16)
def _remembered(location: str, data: bytes) -> ManifestList:
    return _decode(location, data)


def _decode(location: str, data: bytes) -> ManifestList:
    container = avro.read_container(location, data)
    with avro.reading(location):
        return _read_list(container)


def _read_list(container: avro.Container) -> ManifestList:
    location = container.location
    names = avro.names_by_id(container.schema, location)
    columns = _Columns({field_id: names.get(field_id, name) for field_id, name in _NAMES.items()}, location)
    if container.records:
        summary_names = _summary_names(container.schema, names.get(507, "partitions"), location)
    else:
        summary_names = {}
    manifests = tuple(_manifest_file(columns, summary_names, record) for record in container.records)
    if len({manifest.path for manifest in manifests}) != len(manifests):
        raise avro.corrupt(location, "it names one manifest twice")
    return ManifestList(location, manifests, container.header)


def write_list(
    manifests: Iterable[ManifestFile],
    *,
    format_version: int,
    snapshot_id: int,
    parent_snapshot_id: int | None,
    sequence_number: int,
    first_row_id: int | None = None,
) -> bytes:
    """A list in Java's layout. Format 3 needs ``first_row_id`` and one for every data manifest, format 2 has none."""
    header = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_snapshot_id is None else str(parent_snapshot_id),
        "sequence-number": str(sequence_number),
        "format-version": str(format_version),
    }
    if format_version >= 3:
        header["first-row-id"] = str(first_row_id)
    records = [_record(manifest, format_version) for manifest in manifests]
    return avro.write_container(_schema(format_version), records, header)


def assign_row_ids(manifests: Iterable[ManifestFile], next_row_id: int) -> tuple[tuple[ManifestFile, ...], int]:
    """Gives every data manifest without one its ``first_row_id``, in order; answers the next free row id.

    Room is left for the existing rows too: files of an upgraded table have no row ids yet and inherit theirs here.
    """
    assigned = []
    for manifest in manifests:
        if manifest.content == DATA and manifest.first_row_id is None:
            manifest = replace(manifest, first_row_id=next_row_id)
            next_row_id += manifest.live_rows or 0
        assigned.append(manifest)
    return tuple(assigned), next_row_id


# --- reading -----------------------------------------------------------------------------------------------------

_NAMES = {
    500: "manifest_path",
    501: "manifest_length",
    502: "partition_spec_id",
    517: "content",
    515: "sequence_number",
    516: "min_sequence_number",
    503: "added_snapshot_id",
    504: "added_files_count",
    505: "existing_files_count",
    506: "deleted_files_count",
    512: "added_rows_count",
    513: "existing_rows_count",
    514: "deleted_rows_count",
    507: "partitions",
    519: "key_metadata",
    520: "first_row_id",
}
_SUMMARY_NAMES = {509: "contains_null", 518: "contains_nan", 510: "lower_bound", 511: "upper_bound"}


class _Columns:
    """Takes typed values out of a record by field id; a value of another type makes the file corrupt."""

    __slots__ = ("location", "names")

    def __init__(self, names: Mapping[int, str], location: str) -> None:
        self.names = names
        self.location = location

    def number(self, record: avro.Record, field_id: int, default: int | None = None) -> int:
        value = self.number_or_none(record, field_id)
        if value is None:
            if default is None:
                raise self._wrong(field_id, None)
            return default
        return value

    def number_or_none(self, record: avro.Record, field_id: int) -> int | None:
        value = record.get(self.names[field_id])
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise self._wrong(field_id, value)
        return value

    def count(self, record: avro.Record, field_id: int) -> int | None:
        value = self.number_or_none(record, field_id)
        if value is not None and value < 0:
            raise self._wrong(field_id, value)
        return value

    def text(self, record: avro.Record, field_id: int) -> str:
        value = record.get(self.names[field_id])
        if not isinstance(value, str) or not value:
            raise self._wrong(field_id, value)
        return value

    def blob(self, record: avro.Record, field_id: int) -> bytes | None:
        value = record.get(self.names[field_id])
        if value is not None and not isinstance(value, bytes):
            raise self._wrong(field_id, value)
        return value

    def _wrong(self, field_id: int, value: Any) -> BadRequest:
        return avro.corrupt(self.location, f"{self.names[field_id]} (field {field_id}) cannot be {str(value)[:60]!r}")


def _manifest_file(columns: _Columns, summary_names: Mapping[int, str], record: avro.Record) -> ManifestFile:
    content = columns.number(record, 517, DATA)
    if content not in (DATA, DELETES):
        raise avro.corrupt(columns.location, f"the manifest content {content} is neither data (0) nor deletes (1)")
    return ManifestFile(
        path=columns.text(record, 500),
        length=columns.number(record, 501),
        spec_id=columns.number(record, 502),
        content=content,
        sequence_number=columns.number(record, 515, 0),
        min_sequence_number=columns.number(record, 516, 0),
        added_snapshot_id=columns.number(record, 503),
        added_files=columns.count(record, 504),
        existing_files=columns.count(record, 505),
        deleted_files=columns.count(record, 506),
        added_rows=columns.count(record, 512),
        existing_rows=columns.count(record, 513),
        deleted_rows=columns.count(record, 514),
        partitions=_summaries(record.get(columns.names[507]), summary_names, columns.location),
        key_metadata=columns.blob(record, 519),
        first_row_id=columns.count(record, 520),
    )


def _summary_names(schema: Any, field_name: str, location: str) -> dict[int, str]:
    for field in avro.fields_of(schema, location):
        if field.get("name") != field_name:
            continue
        declared = field.get("type")
        options = declared if isinstance(declared, list) else [declared]
        for option in options:
            if isinstance(option, dict) and option.get("type") == "array":
                names = avro.names_by_id(option.get("items"), location)
                return {field_id: names.get(field_id, name) for field_id, name in _SUMMARY_NAMES.items()}
    return dict(_SUMMARY_NAMES)


def _summaries(value: Any, names: Mapping[int, str], location: str) -> tuple[FieldSummary, ...] | None:
    if value is None:
        return None
    columns = _Columns(names, location)
    summaries = []
    for record in value if isinstance(value, list) else (None,):
        if not isinstance(record, dict):
            raise avro.corrupt(location, "a partition summary in it is no record")
        null, nan = record.get(names[509]), record.get(names[518])
        if not isinstance(null, bool) or not isinstance(nan, bool | None):
            raise avro.corrupt(location, "a partition summary in it does not say whether there are nulls")
        summaries.append(FieldSummary(null, nan, columns.blob(record, 510), columns.blob(record, 511)))
    return tuple(summaries)


# --- writing -----------------------------------------------------------------------------------------------------


def _required(field_id: int, kind: Any) -> dict[str, Any]:
    return {"name": (_NAMES | _SUMMARY_NAMES)[field_id], "type": kind, "field-id": field_id}


def _optional(field_id: int, kind: Any) -> dict[str, Any]:
    return {"name": (_NAMES | _SUMMARY_NAMES)[field_id], "type": ["null", kind], "default": None, "field-id": field_id}


def _schema(format_version: int) -> dict[str, Any]:
    summary = {
        "type": "record",
        "name": "r508",
        "fields": [
            _required(509, "boolean"),
            _optional(518, "boolean"),
            _optional(510, "bytes"),
            _optional(511, "bytes"),
        ],
    }
    fields = [
        _required(500, "string"),
        _required(501, "long"),
        _required(502, "int"),
        _required(517, "int"),
        _required(515, "long"),
        _required(516, "long"),
        _required(503, "long"),
        _required(504, "int"),
        _required(505, "int"),
        _required(506, "int"),
        _required(512, "long"),
        _required(513, "long"),
        _required(514, "long"),
        _optional(507, {"type": "array", "items": summary, "element-id": 508}),
        _optional(519, "bytes"),
    ]
    if format_version >= 3:
        fields.append(_optional(520, "long"))
    return {"type": "record", "name": "manifest_file", "fields": fields}


def _record(manifest: ManifestFile, format_version: int) -> avro.Record:
    record: avro.Record = {
        "manifest_path": manifest.path,
        "manifest_length": manifest.length,
        "partition_spec_id": manifest.spec_id,
        "content": manifest.content,
        "sequence_number": manifest.sequence_number,
        "min_sequence_number": manifest.min_sequence_number,
        "added_snapshot_id": manifest.added_snapshot_id,
        "added_files_count": manifest.added_files,
        "existing_files_count": manifest.existing_files,
        "deleted_files_count": manifest.deleted_files,
        "added_rows_count": manifest.added_rows,
        "existing_rows_count": manifest.existing_rows,
        "deleted_rows_count": manifest.deleted_rows,
        "partitions": None
        if manifest.partitions is None
        else [
            {
                "contains_null": part.contains_null,
                "contains_nan": part.contains_nan,
                "lower_bound": part.lower_bound,
                "upper_bound": part.upper_bound,
            }
            for part in manifest.partitions
        ],
        "key_metadata": manifest.key_metadata,
    }
    if format_version >= 3:
        record["first_row_id"] = manifest.first_row_id
    return record
