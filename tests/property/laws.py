"""The laws that look at a table as it is served, and at all tables of a history together."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from property.lake_model import Entry
from support.inprocess import Inprocess
from support.writer import Engine, Live

Json = dict[str, Any]


def live_of(engine: Engine, meta: Json) -> dict[str, Live]:
    """The live files by path. A manifest list never changes, so one is read once."""
    at = meta.get("refs", {}).get("main")
    if at is None:
        return {}
    location = next(s["manifest-list"] for s in meta["snapshots"] if s["snapshot-id"] == at["snapshot-id"])
    cache: dict[str, dict[str, Live]] = engine.call.__dict__.setdefault("live_cache", {})
    if location not in cache:
        cache[location] = engine.live(meta)
    return cache[location]


def check_table(engine: Engine, meta: Json, entry: Entry, where: str) -> dict[str, Live]:
    """The table that is served is the model's, and sound in itself."""
    meta.setdefault("refs", {})
    engine.version = meta["format-version"]
    assert meta["table-uuid"] == entry.uid, f"{where}: another table"
    assert meta["format-version"] == entry.format, where
    schema = next(s for s in meta["schemas"] if s["schema-id"] == meta["current-schema-id"])
    assert [f["name"] for f in schema["fields"]] == list(entry.columns), f"{where}: columns"
    spec = next(s for s in meta["partition-specs"] if s["spec-id"] == meta["default-spec-id"])
    assert [f["name"] for f in spec["fields"]] == list(entry.partitions), f"{where}: partition fields"
    snapshots = {s["snapshot-id"]: s for s in meta["snapshots"]}
    lineage: list[int] = []
    at = meta["refs"].get("main", {}).get("snapshot-id")
    while at is not None:
        lineage.insert(0, at)
        at = snapshots[at].get("parent-snapshot-id")
    assert tuple(lineage) == entry.lineage, f"{where}: snapshots {lineage}, not {entry.lineage}"
    live = live_of(engine, meta)
    assert set(live) == entry.files, f"{where}: live files"
    numbers = [s["sequence-number"] for s in meta["snapshots"]]
    assert numbers == sorted(set(numbers)), f"{where}: sequence numbers increase: {numbers}"
    assert not numbers or numbers[-1] <= meta["last-sequence-number"], where
    for snapshot in snapshots.values():
        parent = snapshots.get(snapshot.get("parent-snapshot-id"))
        assert parent is None or parent["sequence-number"] < snapshot["sequence-number"], where
    spans = sorted((f.first_row_id, f.record_count, f.path) for f in live.values() if f.first_row_id is not None)
    for (start, count, path), (after, _, other) in itertools.pairwise(spans):
        assert start + count <= after, f"{where}: {path} and {other} share row ids"
    if entry.format >= 3:
        assert len(spans) == sum(f.content == 0 for f in live.values()), f"{where}: every data file has row ids"
        assert all(start + count <= meta["next-row-id"] for start, count, _ in spans), where
    return live


def reached(lake: Inprocess, meta: Json, live: dict[str, Live], location: str) -> set[str]:
    """Every file that this metadata file leads to; all that the server or a writer wrote must be there."""
    known: dict[str, set[str]] = lake.__dict__.setdefault("reached_cache", {})
    if location in known:
        return known[location] | set(live)
    files = {location}
    for old in meta["metadata-log"]:
        files.add(old["metadata-file"])
    engine = Engine(lake, "lake", "-", "-")
    for snapshot in meta["snapshots"]:
        files.add(snapshot["manifest-list"])
        of_snapshot = {**meta, "refs": {"main": {"snapshot-id": snapshot["snapshot-id"], "type": "branch"}}}
        files |= {line["manifest_path"] for line in engine.lines(of_snapshot)}
    for file in files:
        assert Path(file.removeprefix("file://")).exists(), f"{file} is reached and not there"
    known[location] = files
    return files | set(live)


class Ids:
    """No id stands for two different things, over all refs and all of history."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, tuple[int, int]]] = {}
        self.fields: dict[tuple[str, int], Any] = {}
        self.field_ids: dict[tuple[str, str], int] = {}
        self.partitions: dict[tuple[str, int], Any] = {}
        self.snapshots: dict[int, Any] = {}

    def note(self, meta: Json, live: dict[str, Live]) -> None:
        uuid = meta["table-uuid"]
        for schema in meta["schemas"]:
            for f in schema["fields"]:
                self._same(self.fields, (uuid, f["id"]), (f["name"], f["type"]), "field id")
                self._same(self.field_ids, (uuid, f["name"]), f["id"], "column")
        for spec in meta["partition-specs"]:
            for f in spec["fields"]:
                what = (f["name"], f["source-id"], f["transform"])
                self._same(self.partitions, (uuid, f["field-id"]), what, "partition field id")
        for s in meta["snapshots"]:
            self._same(self.snapshots, s["snapshot-id"], (uuid, s), "snapshot id")
        rows = self.rows.setdefault(uuid, {})
        for path, file in live.items():
            if file.first_row_id is None:
                continue
            span = (file.first_row_id, file.record_count)
            if path not in rows:
                self._disjoint(uuid, path, span)
            self._same(rows, path, span, "the row ids of")

    def note_open(self, meta: Json, live: dict[str, Live]) -> None:
        """An open transaction's row ids are nobody else's; how they land is not settled."""
        for path, file in live.items():
            if file.first_row_id is not None and path not in self.rows.get(meta["table-uuid"], {}):
                self._disjoint(meta["table-uuid"], path, (file.first_row_id, file.record_count))

    def _disjoint(self, uuid: str, path: str, span: tuple[int, int]) -> None:
        for other, (start, count) in self.rows.get(uuid, {}).items():
            apart = span[0] + span[1] <= start or start + count <= span[0]
            assert apart, f"row ids of {path} {span} are also {other}'s ({start}, {count})"

    @staticmethod
    def _same(known: dict[Any, Any], key: Any, value: Any, what: str) -> None:
        assert known.setdefault(key, value) == value, f"{what} {key} stands for {known[key]} and for {value}"
