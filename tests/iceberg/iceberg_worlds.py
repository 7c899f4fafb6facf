"""A table of Avro files in memory, written and read as Java's writers do, with fastavro alone.

It shares no code with ``icefield.iceberg``: what the server makes of these files is judged by this other reader.
"""

from __future__ import annotations

import copy
import io
import itertools
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import fastavro

Json = dict[str, Any]
EXISTING, ADDED, DELETED = 0, 1, 2
SCHEMA: Json = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": False, "type": "long"},
        {"id": 2, "name": "s", "required": False, "type": "string"},
    ],
}
SPEC: Json = {"spec-id": 0, "fields": []}
BY_DAY: Json = {"spec-id": 1, "fields": [{"source-id": 1, "field-id": 1000, "name": "id_p", "transform": "identity"}]}


class Live(NamedTuple):
    path: str
    content: int
    snapshot_id: int
    sequence_number: int
    file_sequence_number: int
    first_row_id: int | None
    record_count: int


def _opt(kind: Any, field_id: int, name: str) -> Json:
    return {"name": name, "type": ["null", kind], "default": None, "field-id": field_id}


def _req(kind: Any, field_id: int, name: str) -> Json:
    return {"name": name, "type": kind, "field-id": field_id}


def _map(key_id: int, value_id: int, value: str) -> Json:
    record = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [_req("int", key_id, "key"), _req(value, value_id, "value")],
    }
    return {"type": "array", "items": record, "logicalType": "map"}


def entry_schema(version: int, spec: Json) -> Json:
    parts = [_opt("long", field["field-id"], field["name"]) for field in spec["fields"]]
    file_fields = [
        _req("int", 134, "content"),
        _req("string", 100, "file_path"),
        _req("string", 101, "file_format"),
        _req({"type": "record", "name": "r102", "fields": parts}, 102, "partition"),
        _req("long", 103, "record_count"),
        _req("long", 104, "file_size_in_bytes"),
        _opt(_map(117, 118, "long"), 108, "column_sizes"),
        _opt(_map(126, 127, "bytes"), 125, "lower_bounds"),
        _opt({"type": "array", "items": "long", "element-id": 133}, 132, "split_offsets"),
        _opt("int", 140, "sort_order_id"),
    ]
    if version >= 3:
        file_fields += [
            _opt("long", 142, "first_row_id"),
            _opt("string", 143, "referenced_data_file"),
            _opt("long", 144, "content_offset"),
            _opt("long", 145, "content_size_in_bytes"),
        ]
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _req("int", 0, "status"),
            _opt("long", 1, "snapshot_id"),
            _opt("long", 3, "sequence_number"),
            _opt("long", 4, "file_sequence_number"),
            _req({"type": "record", "name": "r2", "fields": file_fields}, 2, "data_file"),
        ],
    }


def list_schema(version: int) -> Json:
    summary = {
        "type": "record",
        "name": "r508",
        "fields": [
            _req("boolean", 509, "contains_null"),
            _opt("boolean", 518, "contains_nan"),
            _opt("bytes", 510, "lower_bound"),
            _opt("bytes", 511, "upper_bound"),
        ],
    }
    fields = [
        _req("string", 500, "manifest_path"),
        _req("long", 501, "manifest_length"),
        _req("int", 502, "partition_spec_id"),
        _req("int", 517, "content"),
        _req("long", 515, "sequence_number"),
        _req("long", 516, "min_sequence_number"),
        _req("long", 503, "added_snapshot_id"),
        _req("int", 504, "added_data_files_count"),  # Java's name until 2024
        _req("int", 505, "existing_data_files_count"),
        _req("int", 506, "deleted_data_files_count"),
        _req("long", 512, "added_rows_count"),
        _req("long", 513, "existing_rows_count"),
        _req("long", 514, "deleted_rows_count"),
        _opt({"type": "array", "items": summary, "element-id": 508}, 507, "partitions"),
        _opt("bytes", 519, "key_metadata"),
    ]
    if version >= 3:
        fields.append(_opt("long", 520, "first_row_id"))
    return {"type": "record", "name": "manifest_file", "fields": fields}


def avro_file(schema: Json, records: Iterable[Json], header: Json, codec: str = "deflate") -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, schema, records, codec=codec, metadata=header)
    return out.getvalue()


class World:
    """Files, and the writers that make them."""

    def __init__(self, version: int = 3, spec: Json = SPEC) -> None:
        self.files: dict[str, bytes] = {}
        self.version = version
        self.spec = spec
        self.numbers = itertools.count(1)
        self.reads: list[str] = []

    def read(self, location: str) -> bytes:
        self.reads.append(location)
        return self.files[location]

    def fresh(self, stem: str) -> str:
        return f"mem://t/metadata/server-{stem}-{next(self.numbers)}.avro"

    def name(self, what: str) -> str:
        return f"mem://t/{what}-{next(self.numbers)}.avro"

    def empty(self) -> Json:
        meta: Json = {
            "format-version": self.version,
            "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
            "location": "mem://t",
            "last-sequence-number": 0,
            "last-updated-ms": 1_000,
            "last-column-id": 2,
            "schemas": [copy.deepcopy(SCHEMA)],
            "current-schema-id": 0,
            "partition-specs": [copy.deepcopy(self.spec)],
            "default-spec-id": self.spec["spec-id"],
            "last-partition-id": 1000,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "properties": {},
            "current-snapshot-id": None,
            "refs": {},
            "snapshots": [],
            "snapshot-log": [],
            "metadata-log": [],
        }
        if self.version >= 3:
            meta["next-row-id"] = 0
        return meta

    # --- writing

    def file(self, rows: int, content: int = 0, **more: Any) -> Json:
        path = self.name("data")
        return {
            "content": content,
            "file_path": path,
            "file_format": "PARQUET",
            "partition": {field["name"]: 7 for field in self.spec["fields"]},
            "record_count": rows,
            "file_size_in_bytes": rows * 10 + 1,
            "column_sizes": [{"key": 1, "value": 8}, {"key": 2, "value": 16}],
            "lower_bounds": [{"key": 1, "value": b"\0" * 8}],
            "split_offsets": [4],
        } | more

    def manifest(
        self, snapshot_id: int, entries: list[Json], *, content: int = 0, header: Json | None = None, **line: Any
    ) -> Json:
        """Writes one; answers its line, as long as no list has numbered it."""
        location = self.name("manifest")
        version = self.version
        keys = {
            "schema": json.dumps(SCHEMA),
            "schema-id": "0",
            "partition-spec": json.dumps(self.spec["fields"]),
            "partition-spec-id": str(self.spec["spec-id"]),
            "format-version": str(version),
            "content": "deletes" if content else "data",
            "written-by": "the client",
        } | (header or {})
        self.files[location] = avro_file(entry_schema(version, self.spec), entries, keys)
        counts = {status: [e for e in entries if e["status"] == status] for status in (EXISTING, ADDED, DELETED)}
        numbered = [e["sequence_number"] for e in entries if e["status"] != DELETED]
        return (
            {
                "manifest_path": location,
                "manifest_length": len(self.files[location]),
                "partition_spec_id": self.spec["spec-id"],
                "content": content,
                "sequence_number": None,
                "min_sequence_number": min((n for n in numbered if n is not None), default=None),
                "added_snapshot_id": snapshot_id,
                "partitions": [{"contains_null": False, "lower_bound": b"7", "upper_bound": b"7"}]
                if self.spec["fields"]
                else [],
            }
            | {
                f"{word}_{what}_count": (len(found) if what == "data_files" else sum(rows(e) for e in found))
                for word, status in (("added", ADDED), ("existing", EXISTING), ("deleted", DELETED))
                for what in ("data_files", "rows")
                for found in (counts[status],)
            }
            | line
        )

    def snapshot(
        self, meta: Json, lines: list[Json], snapshot_id: int, operation: str, *, ref: str = "main", **more: Any
    ) -> Json:
        """Numbers the lines for the table as this writer loaded it, and writes the list."""
        parent = meta["refs"].get(ref, {}).get("snapshot-id") if "parent" not in more else more.pop("parent")
        number = meta["last-sequence-number"] + 1
        next_row_id = meta.get("next-row-id", 0)
        numbered = []
        for line in lines:
            line = dict(line)
            for key in ("sequence_number", "min_sequence_number"):
                line[key] = number if line[key] is None else line[key]
            if self.version >= 3 and line["content"] == 0 and line.get("first_row_id") is None:
                line["first_row_id"] = next_row_id
                next_row_id += line["added_rows_count"] + line["existing_rows_count"]
            numbered.append(line)
        location = self.name("list")
        self.files[location] = avro_file(list_schema(self.version), numbered, {"snapshot-id": str(snapshot_id)})
        snapshot = {
            "snapshot-id": snapshot_id,
            "sequence-number": number,
            "timestamp-ms": meta["last-updated-ms"] + 1,
            "manifest-list": location,
            "summary": {"operation": operation, "spark.app.id": "local-1"},
            "schema-id": meta["current-schema-id"],
        } | more
        if parent is not None:
            snapshot["parent-snapshot-id"] = parent
        if self.version >= 3:
            snapshot["first-row-id"] = meta["next-row-id"]
            snapshot["added-rows"] = next_row_id - meta["next-row-id"]
        return snapshot

    def lines(self, meta: Json, ref: str = "main") -> list[Json]:
        snapshot_id = meta["refs"].get(ref, {}).get("snapshot-id")
        if snapshot_id is None:
            return []
        location = next(s["manifest-list"] for s in meta["snapshots"] if s["snapshot-id"] == snapshot_id)
        return list(fastavro.reader(io.BytesIO(self.files[location])))

    def append(self, meta: Json, *sizes: int, merge: int = 0, ref: str = "main") -> Json:
        """Java's MergeAppend: with ``merge``, the first so many data manifests go into the new one."""
        snapshot_id = next(self.numbers) + 10**6
        added = [added_entry(snapshot_id, self.file(size)) for size in sizes]
        lines = self.lines(meta, ref)
        data = [line for line in lines if line["content"] == 0]
        moved = [e for line in data[:merge] for e in self.moved(line)]
        kept = [line for line in lines if line not in data[:merge] and live_count(line)]
        return self.snapshot(meta, [self.manifest(snapshot_id, added + moved), *kept], snapshot_id, "append", ref=ref)

    def merge_only(self, meta: Json) -> Json:
        """rewrite_manifests."""
        snapshot_id = next(self.numbers) + 10**6
        lines = self.lines(meta)
        moved = [e for line in lines if line["content"] == 0 for e in self.moved(line)]
        kept = [line for line in lines if line["content"] != 0]
        return self.snapshot(meta, [self.manifest(snapshot_id, moved), *kept], snapshot_id, "replace")

    def delete(self, meta: Json, *paths: str) -> Json:
        """Removes files: their manifests are re-written."""
        snapshot_id = next(self.numbers) + 10**6
        lines = []
        for line in self.lines(meta):
            entries = list(self.moved(line))
            hit = False
            for entry in entries:
                if entry["data_file"]["file_path"] in paths:
                    entry["status"], entry["snapshot_id"], hit = DELETED, snapshot_id, True
            lines.append(self.manifest(snapshot_id, entries, content=line["content"]) if hit else line)
        return self.snapshot(meta, lines, snapshot_id, "delete")

    def row_delta(self, meta: Json, rows: int = 1) -> Json:
        snapshot_id = next(self.numbers) + 10**6
        deletes = self.manifest(snapshot_id, [added_entry(snapshot_id, self.file(rows, content=1))], content=1)
        return self.snapshot(meta, [*self.lines(meta), deletes], snapshot_id, "delete")

    def moved(self, line: Json) -> Iterable[Json]:
        """A committed manifest's live entries, as a writer copies them: EXISTING, with all they inherited."""
        for entry, live in self.entries(line):
            entry["status"] = EXISTING
            entry["snapshot_id"] = live.snapshot_id
            entry["sequence_number"] = live.sequence_number
            entry["file_sequence_number"] = live.file_sequence_number
            if "first_row_id" in entry["data_file"]:
                entry["data_file"]["first_row_id"] = live.first_row_id
            yield entry

    def commit(self, meta: Json, *snapshots: Json, ref: str = "main", now_ms: int | None = None) -> Json:
        """What a catalog does with add-snapshot and set-snapshot-ref, with Java's own checks."""
        meta = copy.deepcopy(meta)
        for snapshot in snapshots:
            assert snapshot["sequence-number"] > meta["last-sequence-number"]
            assert snapshot["snapshot-id"] not in {s["snapshot-id"] for s in meta["snapshots"]}
            assert snapshot.get("parent-snapshot-id") == meta["refs"].get(ref, {}).get("snapshot-id")
            assert snapshot["timestamp-ms"] >= meta["last-updated-ms"]
            meta["last-sequence-number"] = snapshot["sequence-number"]
            meta["last-updated-ms"] = snapshot["timestamp-ms"]
            if meta["format-version"] >= 3:
                assert snapshot["first-row-id"] >= meta["next-row-id"]
                meta["next-row-id"] = snapshot["first-row-id"] + snapshot["added-rows"]
            meta["snapshots"].append(snapshot)
            meta["refs"][ref] = {"snapshot-id": snapshot["snapshot-id"], "type": "branch"}
        meta["current-snapshot-id"] = meta["refs"].get("main", {}).get("snapshot-id")
        return meta

    # --- reading

    def entries(self, line: Json) -> Iterable[tuple[Json, Live]]:
        next_row_id = line.get("first_row_id")
        for entry in fastavro.reader(io.BytesIO(self.files[line["manifest_path"]])):
            if entry["status"] == DELETED:
                continue
            file = entry["data_file"]
            first_row_id = None
            if next_row_id is not None and line["content"] == 0:
                first_row_id = file.get("first_row_id")
                if first_row_id is None:
                    first_row_id, next_row_id = next_row_id, next_row_id + file["record_count"]
            number = line["sequence_number"] if entry["status"] == ADDED else None
            yield (
                entry,
                Live(
                    file["file_path"],
                    file["content"],
                    line["added_snapshot_id"] if entry["snapshot_id"] is None else entry["snapshot_id"],
                    number if entry["sequence_number"] is None else entry["sequence_number"],
                    number if entry["file_sequence_number"] is None else entry["file_sequence_number"],
                    first_row_id,
                    file["record_count"],
                ),
            )

    def live(self, meta: Json, ref: str = "main") -> dict[str, Live]:
        found: dict[str, Live] = {}
        for line in self.lines(meta, ref):
            assert line["manifest_length"] == len(self.files[line["manifest_path"]])
            for entry, live in self.entries(line):
                assert live.path not in found, f"{live.path} is live twice"
                assert live.sequence_number is not None
                assert line["min_sequence_number"] <= live.sequence_number <= meta["last-sequence-number"]
                assert entry["data_file"]["partition"] == {field["name"]: 7 for field in self.spec["fields"]}
                found[live.path] = live
        return found


def added_entry(snapshot_id: int | None, file: Json, **numbers: Any) -> Json:
    return {
        "status": ADDED,
        "snapshot_id": snapshot_id,
        "sequence_number": None,
        "file_sequence_number": None,
        "data_file": file,
    } | numbers


def rows(entry: Json) -> int:
    return int(entry["data_file"]["record_count"])


def live_count(line: Json) -> int:
    counts = (
        line.get("added_data_files_count", line.get("added_files_count")),
        line.get("existing_data_files_count", line.get("existing_files_count")),
    )
    return int(counts[0]) + int(counts[1])


def updates_of(*snapshots: Json, ref: str = "main") -> list[Json]:
    updates: list[Json] = []
    for snapshot in snapshots:
        updates.append({"action": "add-snapshot", "snapshot": snapshot})
        updates.append(
            {"action": "set-snapshot-ref", "ref-name": ref, "type": "branch", "snapshot-id": snapshot["snapshot-id"]}
        )
    return updates


def check_row_ids(live: dict[str, Live]) -> None:
    """No row id stands for two rows."""
    ranges = sorted((f.first_row_id, f.record_count) for f in live.values() if f.content == 0)
    for (start, length), (after, _) in itertools.pairwise(ranges):
        assert start + length <= after, "row ids overlap"
