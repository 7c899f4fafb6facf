"""A stale append lands after whatever came before it: all rows once, numbers right, nothing of the head touched."""

from __future__ import annotations

import copy
import io
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iceberg_worlds import (
    BY_DAY,
    SPEC,
    Json,
    World,
    added_entry,
    avro_file,
    check_row_ids,
    live_count,
    updates_of,
)

from icefield.iceberg.append import Append, NotAppend, judge
from icefield.iceberg.reach import reachable_files
from icefield.iceberg.rebase import Rebased, rebase_table
from icefield.iceberg.requirements import FailedRequirement, failed_requirements
from icefield.model.conflicts import Conflict
from icefield.model.errors import BadRequest
from icefield.volume.port import FileTooLarge, NoSuchFile

VERSIONS = pytest.mark.parametrize("version", [2, 3])
NOW = 5_000
NO_MAIN: Json = {"refs": {}, "current-snapshot-id": None}


def rebase(
    world: World, head: Json, updates: list[Json], *, base: Json | None = None, asserts: bool = True, **more: Any
) -> Rebased | Conflict:
    """As the server does: requirements first; what fails of them goes along."""
    first = next((u["snapshot"] for u in updates if u["action"] == "add-snapshot"), {})
    ref = next((u["ref-name"] for u in updates if u["action"] == "set-snapshot-ref"), "main")
    requirements = [{"type": "assert-table-uuid", "uuid": head["table-uuid"]}] + (
        [{"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": first.get("parent-snapshot-id")}]
        if asserts
        else []
    )
    failed: list[FailedRequirement] = failed_requirements(head, requirements)
    settings_: dict[str, Any] = {"next_row_id": head.get("next-row-id", 0), "now_ms": NOW, "table": "s.t"}
    settings_ |= {"read": world.read, "fresh_location": world.fresh}
    return rebase_table(base, head, updates, failed, **(settings_ | more))


def landed(world: World, head: Json, updates: list[Json], **more: Any) -> tuple[Rebased, Json]:
    answer = rebase(world, head, updates, **more)
    assert isinstance(answer, Rebased), answer
    world.version = head["format-version"]
    assert not world.files.keys() & answer.new_files.keys()
    world.files |= answer.new_files
    ref = next((u["ref-name"] for u in answer.updates if u["action"] == "set-snapshot-ref"), "main")
    snapshots = [u["snapshot"] for u in answer.updates if u["action"] == "add-snapshot"]
    return answer, world.commit(head, *snapshots, ref=ref)


def conflict(world: World, head: Json, updates: list[Json], **more: Any) -> Conflict:
    answer = rebase(world, head, updates, **more)
    assert isinstance(answer, Conflict), answer
    assert answer.entry == "s.t"
    assert answer.message.startswith("s.t: ")
    return answer


def grown(world: World, meta: Json, *sizes: int) -> Json:
    for size in sizes:
        meta = world.commit(meta, world.append(meta, size))
    return meta


def counted(world: World, meta: Json) -> Json:
    """The totals as a reader would count them."""
    live = world.live(meta).values()
    return {
        "total-data-files": str(sum(f.content == 0 for f in live)),
        "total-records": str(sum(f.record_count for f in live if f.content == 0)),
        "total-delete-files": str(sum(f.content != 0 for f in live)),
    }


def head_snapshot(meta: Json, ref: str = "main") -> Json:
    snapshot_id = meta["refs"][ref]["snapshot-id"]
    return next(s for s in meta["snapshots"] if s["snapshot-id"] == snapshot_id)


# --- the ordinary case -------------------------------------------------------------------------------------------


@VERSIONS
def test_an_append_lands_after_another(version: int) -> None:
    world = World(version)
    base = grown(world, world.empty(), 3, 4)
    mine = world.append(base, 5, 6)
    head = grown(world, base, 10)
    answer, after = landed(world, head, updates_of(mine))

    snapshot = head_snapshot(after)
    assert snapshot["snapshot-id"] == mine["snapshot-id"]
    assert snapshot["parent-snapshot-id"] == head_snapshot(head)["snapshot-id"]
    assert snapshot["sequence-number"] == head["last-sequence-number"] + 1
    assert snapshot["timestamp-ms"] == NOW
    assert snapshot["manifest-list"] in answer.new_files
    assert snapshot["summary"]["spark.app.id"] == "local-1"

    before, now = world.live(head), world.live(after)
    assert {path: now[path] for path in before} == before
    new = [file for path, file in now.items() if path not in before]
    assert [file.record_count for file in new] == [5, 6]
    assert {file.sequence_number for file in new} == {file.file_sequence_number for file in new}
    assert {file.sequence_number for file in new} == {snapshot["sequence-number"]}
    assert {file.snapshot_id for file in new} == {mine["snapshot-id"]}
    if version == 3:
        check_row_ids(now)
        assert snapshot["first-row-id"] == head["next-row-id"] == min(file.first_row_id for file in new)
        assert snapshot["added-rows"] == 11
        assert answer.next_row_id == after["next-row-id"] == head["next-row-id"] + 11
    else:
        assert "first-row-id" not in snapshot
        assert "added-rows" not in snapshot
    assert {key: value for key, value in snapshot["summary"].items() if key in counted(world, after)} == counted(
        world, after
    )
    # The client's data and manifest stay as they are; only its list falls away.
    assert answer.superseded == (mine["manifest-list"],)
    assert answer.referenced == {line["manifest_path"] for line in world.lines(after)} - {
        line["manifest_path"] for line in world.lines(head)
    }
    assert list(answer.new_files) == [snapshot["manifest-list"]]


def test_only_the_lists_and_the_new_manifests_are_read() -> None:
    world = World(3)
    base = grown(world, world.empty(), *range(1, 20))
    mine = world.append(base, 5)
    head = grown(world, base, 10)
    world.reads.clear()
    rebase(world, head, updates_of(mine))
    assert len(world.reads) == 4  # the base's, the client's and the head's list; the new manifest


@VERSIONS
def test_the_header_of_the_new_list(version: int) -> None:
    world = World(version)
    base = grown(world, world.empty(), 1)
    mine = world.append(base, 5)
    head = grown(world, base, 10)
    _, after = landed(world, head, updates_of(mine))
    snapshot = head_snapshot(after)
    header = fastavro.reader(io.BytesIO(world.files[snapshot["manifest-list"]])).metadata
    expected = {
        "snapshot-id": str(mine["snapshot-id"]),
        "parent-snapshot-id": str(snapshot["parent-snapshot-id"]),
        "sequence-number": str(snapshot["sequence-number"]),
        "format-version": str(version),
    }
    if version == 3:
        expected["first-row-id"] = str(snapshot["first-row-id"])
    assert {key: header.get(key) for key in (*expected, "first-row-id")} == {"first-row-id": None} | expected


@VERSIONS
def test_the_first_append_to_an_empty_table(version: int) -> None:
    world = World(version)
    base = world.empty()
    mine = world.append(base, 5)
    head = grown(world, base, 10)
    answer, after = landed(world, head, updates_of(mine))
    assert [file.record_count for file in world.live(after).values()] == [5, 10]
    assert head_snapshot(after)["parent-snapshot-id"] == head_snapshot(head)["snapshot-id"]
    assert answer.superseded == (mine["manifest-list"],)


def test_a_partitioned_table_keeps_its_partition_summaries() -> None:
    world = World(3, BY_DAY)
    base = grown(world, world.empty(), 1)
    mine = world.append(base, 5)
    head = grown(world, base, 10)
    _, after = landed(world, head, updates_of(mine))
    assert {str(line["partitions"]) for line in world.lines(after)} == {
        str([{"contains_null": False, "contains_nan": None, "lower_bound": b"7", "upper_bound": b"7"}])
    }
    assert len(world.live(after)) == 3


def test_the_row_id_position_that_was_given() -> None:
    world = World(3)
    base = grown(world, world.empty(), 3)
    mine = world.append(base, 5)
    head = grown(world, base, 10)
    answer, after = landed(world, head, updates_of(mine), next_row_id=2**32)
    assert head_snapshot(after)["first-row-id"] == 2**32
    assert answer.next_row_id == 2**32 + 5
    assert max(file.first_row_id or 0 for file in world.live(after).values()) == 2**32
    # A position behind the table's own would give ids twice.
    _, after = landed(world, head, updates_of(mine), next_row_id=0)
    assert head_snapshot(after)["first-row-id"] == head["next-row-id"]


def test_row_ids_are_counted_from_the_entries_not_from_what_the_client_says() -> None:
    world = World(3)
    base = grown(world, world.empty(), 3)
    manifest = world.manifest(77, [added_entry(77, world.file(5)), added_entry(77, world.file(6))])
    lying = manifest | {"added_rows_count": 1, "added_data_files_count": 9}
    mine = world.snapshot(base, [lying, *world.lines(base)], 77, "append")
    head = grown(world, base, 10)
    _, after = landed(world, head, updates_of(mine))
    assert after["next-row-id"] == head["next-row-id"] + 11
    assert counted(world, after).items() <= head_snapshot(after)["summary"].items()
    line = next(line for line in world.lines(after) if line["manifest_path"] == manifest["manifest_path"])
    assert (line["added_files_count"], line["added_rows_count"]) == (2, 11)


def test_time_never_goes_back() -> None:
    world = World(3)
    base = grown(world, world.empty(), 3)
    mine = world.append(base, 5)
    head = world.commit(base, world.append(base, 10) | {"timestamp-ms": 9_000})
    _, after = landed(world, head, updates_of(mine))
    assert head_snapshot(after)["timestamp-ms"] == 9_001


def test_the_schema_id_is_the_one_current_at_landing() -> None:
    world = World(3)
    base = grown(world, world.empty(), 3)
    mine = world.append(base, 5)
    head = grown(world, base, 10)
    new_field = {"id": 3, "name": "n", "required": False, "type": "int"}
    head["schemas"].append({"type": "struct", "schema-id": 1, "fields": [*head["schemas"][0]["fields"], new_field]})
    head["current-schema-id"] = 1
    _, after = landed(world, head, updates_of(mine))
    assert head_snapshot(after)["schema-id"] == 1


# --- numbers that an entry carries itself ------------------------------------------------------------------------


def with_entry(world: World, base: Json, **numbers: Any) -> Json:
    file_numbers = {"first_row_id": numbers.pop("first_row_id")} if "first_row_id" in numbers else {}
    snapshot_id = numbers.pop("entry_snapshot_id", 77)
    entry = added_entry(snapshot_id, world.file(5, **file_numbers), **numbers)
    return world.snapshot(base, [world.manifest(77, [entry]), *world.lines(base)], 77, "append")


def test_an_inherited_snapshot_id_is_fine() -> None:
    world = World(3)
    base = grown(world, world.empty(), 3)
    mine = with_entry(world, base, entry_snapshot_id=None)
    _, after = landed(world, grown(world, base, 10), updates_of(mine))
    assert next(iter(world.live(after).values())).snapshot_id == 77


@pytest.mark.parametrize(
    "numbers",
    [
        {"sequence_number": 2, "file_sequence_number": 2, "first_row_id": 3},
        {"sequence_number": 2},
        {"file_sequence_number": 2},
        {"first_row_id": 3},
    ],
)
def test_own_numbers_written_out_are_taken_out_again(numbers: Json) -> None:
    world = World(3)
    base = grown(world, world.empty(), 3)
    mine = with_entry(world, base, **numbers)
    head = grown(world, base, 10)
    answer, after = landed(world, head, updates_of(mine))
    new = next(iter(world.live(after).values()))
    assert (new.record_count, new.sequence_number, new.file_sequence_number, new.first_row_id) == (5, 3, 3, 13)
    assert set(answer.superseded) == {mine["manifest-list"], lists(world, mine)[0]["manifest_path"]}
    assert len(answer.new_files) == 2
    rewritten = fastavro.reader(io.BytesIO(answer.new_files[world.lines(after)[0]["manifest_path"]]))
    assert rewritten.metadata["written-by"] == "the client"
    assert rewritten.metadata["partition-spec"] == "[]"
    assert rewritten.writer_schema["fields"][1]["field-id"] == 1


def test_own_numbers_in_a_manifest_that_cannot_leave_them_out() -> None:
    world = World(3)
    base = grown(world, world.empty(), 3)
    mine = with_entry(world, base, sequence_number=2)
    location = lists(world, mine)[0]["manifest_path"]
    written = fastavro.reader(io.BytesIO(world.files[location]))
    schema = copy.deepcopy(written.writer_schema)
    schema["fields"][2] = {"name": "sequence_number", "type": "long", "field-id": 3}
    world.files[location] = avro_file(schema, list(written), {"content": "data"})
    found = conflict(world, grown(world, base, 10), updates_of(mine))
    assert "cannot leave the number out" in found.message


def test_an_older_data_sequence_number_stays() -> None:
    world = World(3)
    base = grown(world, world.empty(), 3, 3)
    mine = with_entry(world, base, sequence_number=1)
    answer, after = landed(world, grown(world, base, 10), updates_of(mine))
    new = next(iter(world.live(after).values()))
    assert (new.sequence_number, new.file_sequence_number) == (1, 4)
    assert world.lines(after)[0]["min_sequence_number"] == 1
    assert len(answer.new_files) == 1


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"sequence_number": 3}, "sequence number 3"),
        ({"sequence_number": -1}, "sequence number -1"),
        ({"file_sequence_number": 1}, "file sequence number 1"),
        ({"first_row_id": 2}, "first row id 2"),
        ({"entry_snapshot_id": 5}, "in the name of snapshot 5"),
    ],
)
def test_numbers_of_somebody_else(numbers: Json, said: str) -> None:
    world = World(3)
    base = grown(world, world.empty(), 3)
    mine = with_entry(world, base, **numbers)
    found = conflict(world, grown(world, base, 10), updates_of(mine))
    assert found.reason == "not-an-append"
    assert said in found.message


# --- merged manifests --------------------------------------------------------------------------------------------


@VERSIONS
def test_a_merged_manifest_replaces_its_sources_where_they_still_stand(version: int) -> None:
    world = World(version)
    base = grown(world, world.empty(), 1, 2, 3)
    mine = world.append(base, 5, merge=2)
    head = grown(world, base, 10)
    answer, after = landed(world, head, updates_of(mine))
    before, now = world.live(head), world.live(after)
    assert {path: now[path] for path in before} == before
    assert len(now) == len(before) + 1
    assert len(world.lines(after)) == len(world.lines(head)) - 2 + 1
    assert answer.superseded == (mine["manifest-list"],)
    if version == 3:
        check_row_ids(now)
        # Existing rows are counted too: ids are left out rather than given twice.
        assert head_snapshot(after)["added-rows"] == 5 + 2 + 3
    assert counted(world, after).items() <= head_snapshot(after)["summary"].items()
    assert head_snapshot(after)["summary"]["added-records"] == "5"


@VERSIONS
@pytest.mark.parametrize("move", ["delete", "merge", "upgrade-like"])
def test_of_a_merged_manifest_whose_source_has_moved_only_the_added_lands(version: int, move: str) -> None:
    world = World(version)
    base = grown(world, world.empty(), 1, 2, 3)
    mine = world.append(base, 5, merge=2)
    own_manifest = next(fastavro.reader(io.BytesIO(world.files[mine["manifest-list"]])))["manifest_path"]
    if move == "delete":
        gone = next(path for path, file in world.live(base).items() if file.record_count == 3)
        head = world.commit(base, world.delete(base, gone))
    elif move == "merge":
        head = world.commit(base, world.append(base, 10, merge=3))
    else:
        # The same manifest, but another writer gave it other row ids, so the client's copy of its entries is wrong.
        lines = world.lines(base)
        older = {"sequence_number": 1, "min_sequence_number": 1}
        lines[0] = lines[0] | ({"first_row_id": 900} if version == 3 else older)
        head = world.commit(base, world.snapshot(base, lines, 88, "replace"))
    answer, after = landed(world, head, updates_of(mine))
    before, now = world.live(head), world.live(after)
    assert {path: now[path] for path in before} == before
    new = [file for path, file in now.items() if path not in before]
    assert [(file.record_count, file.sequence_number) for file in new] == [(5, after["last-sequence-number"])]
    assert set(answer.superseded) == {own_manifest, mine["manifest-list"]}
    assert answer.referenced == frozenset()
    written = fastavro.reader(io.BytesIO(answer.new_files[world.lines(after)[0]["manifest_path"]]))
    assert written.metadata["written-by"] == "the client"
    if version == 3:
        check_row_ids(now)
        assert head_snapshot(after)["added-rows"] == 5


def test_a_manifest_that_only_merges_falls_away_where_its_sources_are_gone() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1, 2, 3)
    only_old = world.manifest(77, [e for line in world.lines(base)[:2] for e in world.moved(line)])
    new = world.manifest(77, [added_entry(77, world.file(5))])
    mine = world.snapshot(base, [new, only_old, world.lines(base)[2]], 77, "append")
    head = world.commit(base, world.append(base, 10, merge=3))
    answer, after = landed(world, head, updates_of(mine))
    assert set(answer.superseded) == {mine["manifest-list"], only_old["manifest_path"]}
    assert answer.referenced == {new["manifest_path"]}
    assert len(world.live(after)) == 5


def test_java_may_drop_a_manifest_without_live_entries() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1, 2)
    gone = next(path for path, file in world.live(base).items() if file.record_count == 1)
    base = world.commit(base, world.delete(base, gone))
    assert any(not live_count(line) for line in world.lines(base))
    mine = world.append(base, 5)
    _, after = landed(world, grown(world, base, 10), updates_of(mine))
    assert sorted(file.record_count for file in world.live(after).values()) == [2, 5, 10]


# --- what is no append -------------------------------------------------------------------------------------------


def test_what_removes_files_is_no_append() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1, 2)
    path = next(iter(world.live(base)))
    mine = world.delete(base, path)
    found = conflict(world, grown(world, base, 10), updates_of(mine))
    assert found.reason == "not-an-append"
    assert "'delete'" in found.message
    mine["summary"]["operation"] = "append"
    assert f"removes the file {path}" in conflict(world, grown(world, base, 10), updates_of(mine)).message


def test_a_base_manifest_left_out_is_no_append() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1, 2)
    entry = added_entry(77, world.file(5))
    mine = world.snapshot(base, [world.manifest(77, [entry]), *world.lines(base)[1:]], 77, "append")
    left_out = world.lines(base)[0]["manifest_path"]
    path = next(e["data_file"]["file_path"] for e in fastavro.reader(io.BytesIO(world.files[left_out])))
    assert f"removes the file {path}" in conflict(world, grown(world, base, 10), updates_of(mine)).message


def test_an_operation_other_than_append_is_no_append() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1, 2)
    mine = world.append(base, 5)
    mine["summary"]["operation"] = "overwrite"
    assert "'overwrite'" in conflict(world, grown(world, base, 10), updates_of(mine)).message


def test_added_delete_files_are_no_append() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1, 2)
    mine = world.row_delta(base)
    mine["summary"]["operation"] = "append"
    assert "adds the delete file" in conflict(world, grown(world, base, 10), updates_of(mine)).message
    # Also where the delete file hides in a manifest of data files.
    hidden = world.manifest(77, [added_entry(77, world.file(1, content=1))])
    mine = world.snapshot(base, [hidden, *world.lines(base)], 77, "append")
    assert "of the other kind" in conflict(world, grown(world, base, 10), updates_of(mine)).message
    claimed = hidden | {"content": 1}
    mine = world.snapshot(base, [claimed, *world.lines(base)], 77, "append")
    assert "another kind than its header" in conflict(world, grown(world, base, 10), updates_of(mine)).message


def test_merged_delete_manifests_are_part_of_an_append() -> None:
    world = World(2)
    base = grown(world, world.empty(), 1, 2)
    for _ in range(2):
        base = world.commit(base, world.row_delta(base))
    lines = world.lines(base)
    deletes = [line for line in lines if line["content"] == 1]
    merged = world.manifest(77, [e for line in deletes for e in world.moved(line)], content=1)
    new = world.manifest(77, [added_entry(77, world.file(5))])
    mine = world.snapshot(base, [new, *[line for line in lines if line["content"] == 0], merged], 77, "append")
    head = grown(world, base, 10)
    _, after = landed(world, head, updates_of(mine))
    assert len([line for line in world.lines(after) if line["content"] == 1]) == 1
    assert {path: file for path, file in world.live(after).items() if path in world.live(head)} == world.live(head)
    # One of them changed meanwhile: the head's stay, the merged one falls away.
    head = world.commit(base, world.delete(base, next(p for p, f in world.live(base).items() if f.content == 1)))
    answer, after = landed(world, head, updates_of(mine))
    assert merged["manifest_path"] in answer.superseded
    assert len([file for file in world.live(after).values() if file.content == 1]) == 1


def test_deletion_vectors_that_share_a_file_are_several() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1, 2)
    vectors = [world.file(1, content=1, content_offset=at, content_size_in_bytes=9) for at in (4, 13)]
    vectors[1]["file_path"] = vectors[0]["file_path"]
    manifests = [world.manifest(60, [added_entry(60, vector)], content=1) for vector in vectors]
    base = world.commit(base, world.snapshot(base, [*world.lines(base), *manifests], 60, "delete"))
    lines = world.lines(base)
    moved = [e for line in lines if line["content"] == 1 for e in world.moved(line)]
    merged = world.manifest(77, moved, content=1)
    new = world.manifest(77, [added_entry(77, world.file(5))])
    mine = world.snapshot(base, [new, *[line for line in lines if line["content"] == 0], merged], 77, "append")
    answer = rebase(world, grown(world, base, 10), updates_of(mine))
    assert isinstance(answer, Rebased)
    assert merged["manifest_path"] in answer.referenced
    assert answer.updates[0]["snapshot"]["summary"]["total-delete-files"] == "2"
    # One of the two left out is one removed; and none may be there twice.
    for entries, said in ((moved[:1], "removes the file"), ([*moved, moved[0]], "twice")):
        merged = world.manifest(77, entries, content=1)
        mine = world.snapshot(base, [new, *[line for line in lines if line["content"] == 0], merged], 77, "append")
        assert said in conflict(world, grown(world, base, 10), updates_of(mine)).message


@pytest.mark.parametrize(
    "change",
    [
        {"sequence_number": 9},
        {"file_sequence_number": None},
        {"snapshot_id": 9},
        {"data_file": {"first_row_id": 9}},
        {"data_file": {"record_count": 9}},
        {"data_file": {"file_size_in_bytes": 9}},
        {"data_file": {"partition": {"id_p": 8}}},
        {"data_file": {"lower_bounds": None}},
        {"data_file": {"sort_order_id": 9}},
    ],
)
def test_a_moved_entry_that_was_changed_is_no_append(change: Json) -> None:
    world = World(3, BY_DAY)
    base = grown(world, world.empty(), 1, 2)
    moved = list(world.moved(world.lines(base)[0]))
    new = added_entry(77, world.file(5))
    for key, value in change.items():
        moved[0][key] = moved[0][key] | value if key == "data_file" else value
    mine = world.snapshot(base, [world.manifest(77, [new, *moved]), world.lines(base)[1]], 77, "append")
    assert "changes what is said" in conflict(world, grown(world, base, 10), updates_of(mine)).message


def test_a_moved_entry_is_the_same_in_another_spelling() -> None:
    world = World(3, BY_DAY)
    base = grown(world, world.empty(), 1, 2)
    moved = list(world.moved(world.lines(base)[0]))
    file = moved[0]["data_file"]
    file["file_format"] = "parquet"
    file["column_sizes"].reverse()
    new = added_entry(77, world.file(5))
    mine = world.snapshot(base, [world.manifest(77, [new, *moved]), world.lines(base)[1]], 77, "append")
    landed(world, grown(world, base, 10), updates_of(mine))


def test_an_entry_that_claims_to_be_old_and_was_not_there() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1, 2)
    forged = added_entry(1, world.file(5), status=0, sequence_number=1, file_sequence_number=1)
    mine = world.snapshot(base, [world.manifest(77, [forged]), *world.lines(base)], 77, "append")
    assert "which it was not" in conflict(world, grown(world, base, 10), updates_of(mine)).message


def test_a_file_marked_as_removed_that_was_never_there() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1, 2)
    removed = added_entry(77, world.file(5), status=2, sequence_number=1, file_sequence_number=1)
    manifest = world.manifest(77, [added_entry(77, world.file(5)), removed])
    mine = world.snapshot(base, [manifest, *world.lines(base)], 77, "append")
    assert "removes the file" in conflict(world, grown(world, base, 10), updates_of(mine)).message


def test_a_file_twice() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1, 2)
    file = world.file(5)
    twice = [world.manifest(77, [added_entry(77, file)]), world.manifest(77, [added_entry(77, file)])]
    mine = world.snapshot(base, [*twice, *world.lines(base)], 77, "append")
    assert "twice" in conflict(world, grown(world, base, 10), updates_of(mine)).message
    moved = list(world.moved(world.lines(base)[0]))
    again = added_entry(77, moved[0]["data_file"] | {"first_row_id": None})
    mine = world.snapshot(base, [world.manifest(77, [again, *moved]), world.lines(base)[1]], 77, "append")
    assert "twice" in conflict(world, grown(world, base, 10), updates_of(mine)).message


def test_a_manifest_of_a_third_snapshot() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1, 2)
    foreign = world.manifest(5, [added_entry(5, world.file(5))], sequence_number=1, min_sequence_number=1)
    mine = world.snapshot(base, [foreign, *world.lines(base)], 77, "append")
    assert "of snapshot 5, not in its base" in conflict(world, grown(world, base, 10), updates_of(mine)).message


@pytest.mark.parametrize(
    "change", [{"sequence_number": 1}, {"added_snapshot_id": 5}, {"partition_spec_id": 3}, {"content": 1}]
)
def test_a_base_manifest_of_which_the_list_says_something_else(change: Json) -> None:
    world = World(3)
    base = grown(world, world.empty(), 1, 2)
    lines = world.lines(base)
    lines[0] |= change
    mine = world.snapshot(base, [world.manifest(77, [added_entry(77, world.file(5))]), *lines], 77, "append")
    assert "renumbers the manifest" in conflict(world, grown(world, base, 10), updates_of(mine)).message
    raised = base | {"last-sequence-number": 9, "next-row-id": 100}
    mine["summary"]["operation"] = "overwrite"
    assert "neither its own nor its parent's" in conflict(world, raised, updates_of(mine)).message


def test_encrypted_lists_and_manifests() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    head = grown(world, base, 10)
    assert conflict(world, head, updates_of(world.append(base, 5) | {"key-id": "k"})).reason == "encrypted"
    secret = world.manifest(77, [added_entry(77, world.file(5))], key_metadata=b"k")
    mine = world.snapshot(base, [secret, *world.lines(base)], 77, "append")
    assert "encrypted manifest" in conflict(world, head, updates_of(mine)).message


# --- where the head stands ---------------------------------------------------------------------------------------


def test_a_strict_statement_never_lands_after_a_head_that_it_did_not_see() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    mine = world.append(base, 5)
    head = grown(world, base, 10)
    found = conflict(world, head, updates_of(mine), strict=True)
    assert found.reason == "strict"
    ids = [head_snapshot(meta)["snapshot-id"] for meta in (base, head)]
    assert all(str(snapshot_id) in found.message for snapshot_id in (*ids, mine["snapshot-id"]))
    assert (found.ours, found.theirs) == (f"snapshot {ids[1]}", f"snapshot {mine['snapshot-id']}")


def test_after_a_rollback() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1, 2)
    mine = world.append(base, 5)
    head = copy.deepcopy(base)
    head["refs"]["main"]["snapshot-id"] = base["snapshots"][0]["snapshot-id"]
    assert conflict(world, head, updates_of(mine)).reason == "base-gone"
    assert conflict(world, grown(world, head, 7), updates_of(mine)).reason == "base-gone"
    assert conflict(world, head | NO_MAIN, updates_of(mine), asserts=False).reason == "base-gone"


def test_after_the_base_expired() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1, 2)
    mine = world.append(base, 5)
    head = grown(world, base, 10)
    head["snapshots"] = head["snapshots"][2:]
    found = conflict(world, head, updates_of(mine))
    assert found.reason == "base-gone"
    assert "has expired" in found.message


def test_after_the_table_was_replaced() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    mine = world.append(base, 5)
    replaced = world.snapshot(base, [world.manifest(88, [added_entry(88, world.file(9))])], 88, "append", parent=None)
    head = copy.deepcopy(base)
    head["refs"] = {}
    head = world.commit(head, replaced)
    assert conflict(world, head, updates_of(mine)).reason == "base-gone"


def test_another_table_under_the_same_name() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    mine = world.append(base, 5)
    other = dict(grown(world, base, 10)) | {"table-uuid": "11111111-1111-1111-1111-111111111111"}
    found = conflict(world, other, updates_of(mine), base=base)
    assert (found.reason, "another one" in found.message) == ("both-changed", True)


@pytest.mark.parametrize(
    ("update", "commutes"),
    [
        ({"action": "assign-uuid", "uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1"}, True),
        ({"action": "upgrade-format-version", "format-version": 2}, True),
        ({"action": "set-properties", "updates": {}}, True),
        ({"action": "set-location", "location": "mem://t"}, True),
        ({"action": "set-default-sort-order", "sort-order-id": 0}, True),
        ({"action": "remove-properties", "removals": ["x"]}, True),
        ({"action": "assign-uuid", "uuid": "11111111-1111-1111-1111-111111111111"}, False),
        ({"action": "set-properties", "updates": {"a": "b"}}, False),
        ({"action": "remove-properties", "removals": ["kept"]}, False),
        ({"action": "set-location", "location": "mem://u"}, False),
        ({"action": "set-default-sort-order", "sort-order-id": -1}, False),
        ({"action": "set-current-schema", "schema-id": -1}, False),
        ({"action": "remove-snapshots", "snapshot-ids": [1]}, False),
        ({"action": "add-schema", "schema": {}}, False),
    ],
)
def test_other_updates_beside_a_stale_append(update: Json, commutes: bool) -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    head = grown(world, base, 10)
    head["properties"] = {"kept": "1"}
    updates = [update, *updates_of(world.append(base, 5))]
    if commutes:
        answer, _ = landed(world, head, updates)
        assert update not in answer.updates
    else:
        found = conflict(world, head, updates)
        assert (found.reason, update["action"] in found.message) == ("both-changed", True)


def test_a_stale_commit_without_a_snapshot() -> None:
    world = World(3)
    head = grown(world, world.empty(), 1)
    failed = [FailedRequirement("assert-current-schema-id", "the current schema changed: expected 0, found 1", 0, 1)]
    answer = rebase_table(
        None,
        head,
        [{"action": "set-current-schema", "schema-id": 0}],
        failed,
        read=world.read,
        fresh_location=world.fresh,
        next_row_id=0,
        now_ms=NOW,
    )
    assert isinstance(answer, Conflict)


def test_another_requirement_that_fails_is_a_conflict() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    head = grown(world, base, 10)
    updates = updates_of(world.append(base, 5))
    arguments: Json = {"read": world.read, "fresh_location": world.fresh, "next_row_id": 0, "now_ms": NOW}
    for failed in (
        FailedRequirement("assert-default-spec-id", "the default partition spec changed: expected 0, found 1", 0, 1),
        FailedRequirement("assert-ref-snapshot-id", "snapshot ref 'b' has moved", 1, 2, "b"),
        FailedRequirement("assert-ref-snapshot-id", "snapshot ref 'main' has moved", 5, 2, "main"),
    ):
        answer = rebase_table(None, head, updates, [failed], **arguments)
        assert isinstance(answer, Conflict)
        assert (answer.reason, failed.message in answer.message) == ("requirement-failed", True)
    gone = FailedRequirement("assert-ref-snapshot-id", "snapshot ref 'main' is gone", None, None, "main")
    answer = rebase_table(None, head, updates, [gone], **arguments)
    assert isinstance(answer, Conflict)
    assert answer.reason == "ref-dropped"


def test_a_snapshot_that_is_there_already() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    mine = world.append(base, 5)
    _, after = landed(world, grown(world, base, 10), updates_of(mine))
    assert "already in the table" in conflict(world, after, updates_of(mine)).message


def test_refs_that_do_not_fit_the_snapshots() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    head = grown(world, base, 10)
    updates = updates_of(world.append(base, 5))
    elsewhere = [updates[0], updates[1] | {"snapshot-id": base["snapshots"][0]["snapshot-id"]}]
    assert "does not add" in conflict(world, head, elsewhere).message
    assert conflict(world, head, [*updates, updates[1] | {"ref-name": "b"}]).reason == "several-refs"
    assert "tag" in conflict(world, head, [updates[0], updates[1] | {"type": "tag"}]).message
    head["refs"]["main"]["type"] = "tag"
    assert "tag" in conflict(world, head, updates).message


def test_the_retention_of_a_ref() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    head = grown(world, base, 10)
    updates = updates_of(world.append(base, 5))
    head["refs"]["main"]["max-snapshot-age-ms"] = 50
    # What the client only repeats is not its change, so the head's stays …
    answer, _ = landed(world, head, updates, base=base)
    assert answer.updates[-1]["max-snapshot-age-ms"] == 50
    # … but its own change stands against the head's, or cannot be told from it.
    updates[-1]["max-snapshot-age-ms"] = 60
    assert "max-snapshot-age-ms" in conflict(world, head, updates, base=base).message
    assert "max-snapshot-age-ms" in conflict(world, head, updates).message


# --- schemas and specs -------------------------------------------------------------------------------------------


def with_schema(head: Json, *fields: Json) -> Json:
    head = copy.deepcopy(head)
    head["schemas"].append({"type": "struct", "schema-id": 1, "fields": list(fields)})
    head["current-schema-id"] = 1
    return head


ID = {"id": 1, "name": "id", "required": False, "type": "long"}
NAME = {"id": 2, "name": "s", "required": False, "type": "string"}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ([ID], None),
        ([NAME | {"name": "renamed"}, ID], None),
        ([ID, NAME, {"id": 3, "name": "n", "required": False, "type": "int"}], None),
        ([ID, NAME, {"id": 3, "name": "n", "required": True, "type": "int", "initial-default": 0}], None),
        ([ID, NAME, {"id": 3, "name": "n", "required": True, "type": "int"}], "required now and was not there"),
        ([ID | {"required": True}], "required now and was optional"),
        ([ID | {"type": "int"}], "has the type int now and had long"),
        ([ID | {"type": "string"}], "has the type string now and had long"),
    ],
)
def test_a_schema_that_changed_meanwhile(fields: list[Json], why: str | None) -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    mine = world.append(base, 5)
    head = with_schema(grown(world, base, 10), *fields)
    if why is None:
        landed(world, head, updates_of(mine))
        return
    found = conflict(world, head, updates_of(mine))
    assert (found.reason, why in found.message) == ("schema-changed", True)


def test_a_schema_that_is_not_there_or_not_the_same() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    head = grown(world, base, 10)
    mine = world.append(base, 5) | {"schema-id": 4}
    assert "which the table does not have" in conflict(world, head, updates_of(mine)).message
    mine = world.append(base, 5)
    before = copy.deepcopy(base)
    before["schemas"][0]["fields"][1]["name"] = "other"
    assert "schema 0 is another one now" in conflict(world, head, updates_of(mine), base=before).message


def test_the_schema_in_a_manifests_header() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    head = grown(world, base, 10)
    for schema_id, header, why in (
        (0, '{"type":"struct","fields":[{"id":1,"name":"id","required":false,"type":"string"}]}', "had string"),
        (None, '{"type":"struct","fields":[{"id":1,"name":"id","required":false,"type":"string"}]}', "had string"),
        (None, '{"type":"struct","fields":[{"id":1,"name":"id","required":false,"type":"int"}]}', None),
        (0, "no json", None),
        (0, '{"type":"struct","fields":7}', None),
    ):
        manifest = world.manifest(77, [added_entry(77, world.file(5))], header={"schema": header})
        mine = world.snapshot(base, [manifest, *world.lines(base)], 77, "append") | {"schema-id": schema_id}
        if why is None:
            landed(world, head, updates_of(mine))
        else:
            assert why in conflict(world, head, updates_of(mine)).message


@pytest.mark.parametrize(
    ("line", "header", "why"),
    [
        ({"partition_spec_id": 5}, {"partition-spec-id": "5"}, "which the table does not have"),
        ({}, {"partition-spec-id": "5"}, "header says spec 5"),
        ({}, {"partition-spec": '[{"source-id":1,"field-id":1001,"name":"x","transform":"identity"}]'}, "other fields"),
        ({}, {"partition-spec": '[{"source-id":1,"field-id":1000,"name":"x","transform":"identity"}]'}, None),
        ({}, {"partition-spec": "garbage"}, None),
    ],
)
def test_the_partition_spec_of_a_new_manifest(line: Json, header: Json, why: str | None) -> None:
    world = World(3, BY_DAY)
    base = grown(world, world.empty(), 1)
    head = grown(world, base, 10)
    manifest = world.manifest(77, [added_entry(77, world.file(5))], header=header, **line)
    mine = world.snapshot(base, [manifest, *world.lines(base)], 77, "append")
    if why is None:
        landed(world, head, updates_of(mine))
    else:
        found = conflict(world, head, updates_of(mine))
        assert (found.reason, why in found.message) == ("spec-changed", True)


# --- formats -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("appended_since", [False, True])
@pytest.mark.parametrize("merge", [0, 2])
def test_upgraded_to_format_3_meanwhile(merge: int, appended_since: bool) -> None:
    world = World(2)
    base = grown(world, world.empty(), 1, 2)
    mine = world.append(base, 5, merge=merge)
    head = copy.deepcopy(base) | {"format-version": 3, "next-row-id": 0}
    world.version = 3
    if appended_since:
        head = grown(world, head, 10)
    else:
        head["refs"]["main"] |= {"max-ref-age-ms": 5}  # anything at all
    _, after = landed(world, head, updates_of(mine), base=head)
    live = world.live(after)
    check_row_ids(live)
    assert all(file.first_row_id is not None for file in live.values())
    before = world.live(head)
    if appended_since:
        assert {path: live[path] for path in before} == before
    assert sorted(file.record_count for file in live.values()) == ([1, 2, 5, 10] if appended_since else [1, 2, 5])
    assert max(f.first_row_id + f.record_count for f in live.values()) <= after["next-row-id"]


def test_a_snapshot_with_row_ids_for_a_table_without() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    mine = world.append(base, 5)
    head = grown(world, base, 10) | {"format-version": 2}
    assert conflict(world, head, updates_of(mine)).reason == "format-changed"


def test_counts_that_a_format_1_writer_left_out_are_counted() -> None:
    world = World(2)
    base = grown(world, world.empty(), 3)
    line = world.lines(base)[0]
    old = list_without_counts(line)
    world.files[head_snapshot(base)["manifest-list"]] = old
    mine_list = world.manifest(77, [added_entry(77, world.file(5))])
    mine = world.snapshot(base, [mine_list, line], 77, "append")
    head = world.commit(base, world.snapshot(base, [line], 78, "append"))
    world.files[head_snapshot(head)["manifest-list"]] = old
    _, after = landed(world, head, updates_of(mine))
    assert head_snapshot(after)["summary"]["total-records"] == "8"
    assert [line["added_rows_count"] for line in world.lines(after)] == [5, 3]


def list_without_counts(line: Json) -> bytes:
    fields = [
        {"name": "manifest_path", "type": "string", "field-id": 500},
        {"name": "manifest_length", "type": "long", "field-id": 501},
        {"name": "partition_spec_id", "type": "int", "field-id": 502},
        {"name": "sequence_number", "type": "long", "field-id": 515},
        {"name": "added_snapshot_id", "type": "long", "field-id": 503},
        {"name": "min_sequence_number", "type": "long", "field-id": 516},
    ]
    out = io.BytesIO()
    fastavro.writer(out, {"type": "record", "name": "manifest_file", "fields": fields}, [line])
    return out.getvalue()


# --- chains ------------------------------------------------------------------------------------------------------


def chain_of(world: World, base: Json, *merges: int) -> list[Json]:
    snapshots = []
    for merge in merges:
        snapshots.append(world.append(base, 5, merge=merge))
        base = world.commit(base, snapshots[-1])
    return snapshots


@VERSIONS
@pytest.mark.parametrize("merges", [(0, 0, 0), (2, 2), (0, 1), (2, 0, 3)])
def test_a_chain_lands_link_by_link(version: int, merges: tuple[int, ...]) -> None:
    world = World(version)
    base = grown(world, world.empty(), 1, 2)
    chain = chain_of(world, base, *merges)
    head = grown(world, base, 10)
    answer, after = landed(world, head, updates_of(*chain))
    ids = [snapshot["snapshot-id"] for snapshot in chain]
    assert [s["snapshot-id"] for s in after["snapshots"]][-len(ids) :] == ids
    assert [s.get("parent-snapshot-id") for s in after["snapshots"]][-len(ids) :] == [
        head_snapshot(head)["snapshot-id"],
        *ids[:-1],
    ]
    assert [u["action"] for u in answer.updates] == ["add-snapshot"] * len(ids) + ["set-snapshot-ref"]
    before, now = world.live(head), world.live(after)
    assert {path: now[path] for path in before} == before
    assert len(now) == len(before) + len(ids)
    assert {file.snapshot_id for path, file in now.items() if path not in before} == set(ids)
    if version == 3:
        check_row_ids(now)
    # Every link can be read by itself, and says what it holds.
    for i, snapshot in enumerate(after["snapshots"][-len(ids) :], 1):
        at = copy.deepcopy(after)
        at["refs"]["main"]["snapshot-id"] = snapshot["snapshot-id"]
        assert len(world.live(at)) == len(before) + i
        assert counted(world, at).items() <= snapshot["summary"].items()
    # What the client wrote is either named by a snapshot or handed over for deletion, never both, never neither.
    written = {line["manifest_path"] for s in chain for line in lists(world, s)} - {
        line["manifest_path"] for line in world.lines(base)
    }
    reached = reachable_files(after, world.read)
    assert set(answer.superseded) == (written | {s["manifest-list"] for s in chain}) - reached
    assert answer.referenced == written & reached


def lists(world: World, snapshot: Json) -> list[Json]:
    return list(fastavro.reader(io.BytesIO(world.files[snapshot["manifest-list"]])))


def test_a_chain_with_a_link_that_is_no_append() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    first = world.append(base, 5)
    between = world.commit(base, first)
    second = world.delete(between, next(iter(world.live(base))))
    found = conflict(world, grown(world, base, 10), updates_of(first, second))
    assert found.reason == "not-an-append"


def test_snapshots_that_do_not_follow_each_other() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    chain = [world.append(base, 5), world.append(base, 6)]
    assert conflict(world, grown(world, base, 10), updates_of(*chain)).reason == "not-a-chain"
    ordered = chain_of(world, base, 0, 0)
    updates = updates_of(*ordered)
    found = conflict(world, grown(world, base, 10), [updates[0], updates[2], updates[1]])
    assert found.reason == "not-a-chain"


# --- the ref has not moved, but numbers are taken ----------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("kind", ["append", "merging", "delete", "row delta", "rewrite"])
def test_any_single_snapshot_is_renumbered(version: int, kind: str) -> None:
    world = World(version)
    base = grown(world, world.empty(), 1, 2)
    base["refs"]["b"] = dict(base["refs"]["main"])
    mine = {
        "append": lambda: world.append(base, 5),
        "merging": lambda: world.append(base, 5, merge=2),
        "delete": lambda: world.delete(base, next(iter(world.live(base)))),
        "row delta": lambda: world.row_delta(base),
        "rewrite": lambda: world.merge_only(base),
    }[kind]()
    expected = world.live(world.commit(base, mine))
    other = world.append(base, 10, ref="b")
    head = world.commit(base, other, ref="b")
    answer, after = landed(world, head, updates_of(mine), strict=True)
    snapshot = head_snapshot(after)
    assert snapshot["sequence-number"] == other["sequence-number"] + 1
    assert snapshot["parent-snapshot-id"] == mine["parent-snapshot-id"]
    live = world.live(after)
    assert live.keys() == expected.keys()
    before = world.live(base)
    assert {p: f for p, f in live.items() if p in before} == {p: f for p, f in expected.items() if p in before}
    assert {f.sequence_number for p, f in live.items() if p not in before} <= {snapshot["sequence-number"]}
    if version == 3:
        check_row_ids(live)
        taken = [f.first_row_id for f in world.live(head, "b").values() if f.path not in before]
        assert all(f.first_row_id not in taken for p, f in live.items() if p not in before)
        assert snapshot["first-row-id"] == head["next-row-id"]
    assert answer.superseded == (mine["manifest-list"],)
    if kind not in ("append", "merging"):
        assert snapshot["summary"] == mine["summary"]


def test_other_updates_stay_beside_a_renumbered_snapshot() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    updates = [{"action": "set-properties", "updates": {"a": "b"}}, *updates_of(world.append(base, 5))]
    head = base | {"last-sequence-number": 9, "next-row-id": 100}
    answer, _ = landed(world, head, updates)
    assert answer.updates[0] == updates[0]
    assert answer.updates[2] == updates[2]
    assert answer.updates[1]["snapshot"]["sequence-number"] == 10


def test_a_snapshot_staged_for_later_is_renumbered() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    mine = world.append(base, 5)
    head = grown(world, base, 10)
    answer = rebase(world, head, [{"action": "add-snapshot", "snapshot": mine}], asserts=False)
    assert isinstance(answer, Rebased)
    snapshot = answer.updates[0]["snapshot"]
    assert snapshot["parent-snapshot-id"] == mine["parent-snapshot-id"]
    assert snapshot["sequence-number"] == head["last-sequence-number"] + 1
    assert snapshot["first-row-id"] == head["next-row-id"]


def test_a_new_ref_from_an_old_snapshot_is_renumbered() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    mine = world.append(base, 5)
    head = grown(world, base, 10)
    answer = rebase(world, head, updates_of(mine, ref="new"), asserts=False)
    assert isinstance(answer, Rebased)
    assert answer.updates[0]["snapshot"]["parent-snapshot-id"] == mine["parent-snapshot-id"]
    # Main, though, does not come back by an append to what it once held.
    assert isinstance(rebase(world, head | NO_MAIN, updates_of(mine), asserts=False), Conflict)


def test_a_renumbered_chain_must_be_of_appends() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1, 2)
    chain = chain_of(world, base, 0, 2)
    raised = base | {"last-sequence-number": 9, "next-row-id": 100}
    _, after = landed(world, raised, updates_of(*chain))
    check_row_ids(world.live(after))
    assert [s["sequence-number"] for s in after["snapshots"]][-2:] == [10, 11]
    first = world.append(base, 5)
    between = world.commit(base, first)
    delta = world.row_delta(between)
    found = conflict(world, raised, updates_of(first, delta))
    assert (found.reason, "only a chain of appends" in found.message) == ("not-an-append", True)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"status": 1, "sequence_number": 50}, "sequence number 50"),
        ({"status": 0, "sequence_number": None, "file_sequence_number": 1}, "without the sequence numbers"),
        ({"status": 0, "sequence_number": 3, "file_sequence_number": 3}, "without the sequence numbers"),
        ({"status": 2, "sequence_number": 1, "file_sequence_number": None}, "without the sequence numbers"),
    ],
)
def test_what_cannot_be_renumbered(numbers: Json, said: str) -> None:
    world = World(3)
    base = grown(world, world.empty(), 1, 2)
    manifest = world.manifest(77, [added_entry(77, world.file(5)) | numbers])
    mine = world.snapshot(base, [manifest, *world.lines(base)], 77, "overwrite")
    raised = base | {"last-sequence-number": 9, "next-row-id": 100}
    found = conflict(world, raised, updates_of(mine))
    assert (found.reason, said in found.message) == ("numbers-taken", True)


def test_a_row_delta_of_the_old_format_is_not_renumbered_into_the_new_one() -> None:
    world = World(2)
    base = grown(world, world.empty(), 1, 2)
    mine = world.row_delta(base)
    head = base | {"format-version": 3, "next-row-id": 0, "last-sequence-number": 9}
    assert "another format version" in conflict(world, head, updates_of(mine)).message


# --- the summary -------------------------------------------------------------------------------------------------


def test_counters_are_counted_and_the_rest_of_the_summary_stays() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    mine = world.append(base, 5, 6)
    mine["summary"] |= {
        "added-data-files": "99",
        "added-records": "99",
        "total-records": "99",
        "changed-partition-count": "1",
        "manifests-created": "7",
    }
    first = world.append(base, 10)
    first["summary"] |= {"total-files-size": "1000", "total-position-deletes": "3", "total-equality-deletes": "0"}
    _, after = landed(world, world.commit(base, first), updates_of(mine))
    assert head_snapshot(after)["summary"] == {
        "operation": "append",
        "spark.app.id": "local-1",
        "changed-partition-count": "1",
        "added-data-files": "2",
        "added-records": "11",
        "added-files-size": str(51 + 61),
        "total-data-files": "4",
        "total-records": "22",
        "total-delete-files": "0",
        "total-files-size": str(1000 + 51 + 61),
        "total-position-deletes": "0",
        "total-equality-deletes": "0",
        "manifests-created": "1",
        "manifests-kept": "2",
        "manifests-replaced": "0",
    }


def test_totals_that_the_head_does_not_know_are_left_out() -> None:
    world = World(2)
    base = grown(world, world.empty(), 1)
    base = world.commit(base, world.row_delta(base))
    mine = world.append(base, 5)
    head = grown(world, base, 10)
    head["snapshots"][-1]["summary"]["total-position-deletes"] = "not a number"
    _, after = landed(world, head, updates_of(mine))
    summary = head_snapshot(after)["summary"]
    assert not {"total-files-size", "total-position-deletes", "total-equality-deletes"} & summary.keys()
    assert (summary["total-delete-files"], summary["total-records"]) == ("1", "16")


def test_the_first_totals_begin_at_nothing() -> None:
    world = World(3)
    head = world.empty() | {"last-sequence-number": 4}
    _, after = landed(world, head, updates_of(world.append(world.empty(), 5)))
    assert head_snapshot(after)["summary"] == {
        "operation": "append",
        "spark.app.id": "local-1",
        "added-data-files": "1",
        "added-records": "5",
        "added-files-size": "51",
        "total-data-files": "1",
        "total-records": "5",
        "total-delete-files": "0",
        "total-files-size": "51",
        "total-position-deletes": "0",
        "total-equality-deletes": "0",
    }


# --- all of it at once -------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_append_lands_after_anything(data: st.DataObject) -> None:
    world = World(data.draw(st.sampled_from([2, 3])), data.draw(st.sampled_from([SPEC, BY_DAY])))
    size = st.integers(1, 9)

    def grow(meta: Json, steps: int) -> Json:
        for _ in range(steps):
            live = list(world.live(meta))
            kind = data.draw(st.sampled_from(["append", "append", "merging", "delete", "delta", "rewrite"]))
            if kind == "delete" and live:
                step = world.delete(meta, *data.draw(st.lists(st.sampled_from(live), min_size=1, max_size=3)))
            elif kind == "delta":
                step = world.row_delta(meta)
            elif kind == "rewrite" and live:
                step = world.merge_only(meta)
            else:
                step = world.append(meta, data.draw(size), merge=data.draw(st.integers(0, 3)))
            meta = world.commit(meta, step)
        return meta

    base = grow(world.empty(), data.draw(st.integers(0, 4)))
    chain, mine_alone = [], base
    for _ in range(data.draw(st.integers(1, 3))):
        sizes = data.draw(st.lists(size, min_size=1, max_size=3))
        chain.append(world.append(mine_alone, *sizes, merge=data.draw(st.integers(0, 4))))
        mine_alone = world.commit(mine_alone, chain[-1])
    head = grow(base, data.draw(st.integers(0, 3)))
    if head == base:
        head = base | {"last-sequence-number": base["last-sequence-number"] + 5}
        if world.version == 3:
            head |= {"next-row-id": base["next-row-id"] + 5}

    answer, after = landed(world, head, updates_of(*chain))
    before, now = world.live(head), world.live(after)
    added = {path: f.record_count for path, f in world.live(mine_alone).items() if path not in world.live(base)}
    assert {path: now[path] for path in before} == before, "a file of the head changed or went"
    assert {path: f.record_count for path, f in now.items() if path not in before} == added
    if world.version == 3:
        check_row_ids(now)
        assert (
            max((f.first_row_id + f.record_count for f in now.values() if f.content == 0), default=0)
            <= (after["next-row-id"])
        )
    assert counted(world, after).items() <= head_snapshot(after)["summary"].items()
    client_files = {s["manifest-list"] for s in chain} | {
        line["manifest_path"] for s in chain for line in lists(world, s)
    }
    reached = reachable_files(after, world.read)
    old = reachable_files(head, world.read)
    assert answer.referenced == (client_files & reached) - old
    assert set(answer.superseded) == client_files - reached


# --- files that cannot be read -----------------------------------------------------------------------------------


def test_a_file_that_is_not_there_or_too_large() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    mine = world.append(base, 5)
    head = grown(world, base, 10)
    manifest = lists(world, mine)[0]["manifest_path"]
    for location in (mine["manifest-list"], manifest, head_snapshot(head)["manifest-list"]):
        for problem in (NoSuchFile, FileTooLarge):

            def read(at: str, location: str = location, problem: type[Exception] = problem) -> bytes:
                if at == location:
                    raise problem
                return world.files[at]

            world.read = read  # type: ignore[method-assign]
            if problem is FileTooLarge:
                assert location in conflict(world, head, updates_of(mine)).message
            else:
                with pytest.raises(BadRequest, match=location):
                    rebase(world, head, updates_of(mine))


@pytest.mark.parametrize("broken", ["list", "manifest"])
def test_a_file_that_is_corrupt(broken: str) -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    mine = world.append(base, 5)
    head = grown(world, base, 10)
    location = mine["manifest-list"] if broken == "list" else lists(world, mine)[0]["manifest_path"]
    world.files[location] = world.files[location][:-20]
    with pytest.raises(BadRequest, match=location):
        rebase(world, head, updates_of(mine))


@pytest.mark.parametrize(
    "snapshot",
    [None, 7, {"snapshot-id": "x"}, {"manifest-list": 5}, {"summary": None}, {"summary": {"operation": "eat"}}],
)
def test_a_snapshot_that_is_malformed(snapshot: Any) -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    mine = world.append(base, 5)
    head = grown(world, base, 10)
    updates = updates_of(mine)
    updates[0]["snapshot"] = mine | snapshot if isinstance(snapshot, dict) else snapshot
    with pytest.raises(BadRequest, match="updates\\[0\\]"):
        rebase_table(None, head, updates, [], read=world.read, fresh_location=world.fresh, next_row_id=0, now_ms=NOW)


def test_a_list_that_cannot_be_asked_for() -> None:
    world = World(3)
    mine = world.append(world.empty(), 5)
    assert isinstance(judge(mine, (), world.read), Append)
    for change in ({"key-id": "k"}, {"manifest-list": None}, {"manifest-list": ""}):
        verdict = judge(mine | change, (), world.read)
        assert isinstance(verdict, NotAppend)
        assert "manifest list" in verdict.reason


def test_a_fresh_location_that_readers_would_not_know_as_avro() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    mine = world.append(base, 5)
    with pytest.raises(ValueError, match=r"must end in \.avro"):
        rebase(world, grown(world, base, 10), updates_of(mine), fresh_location=lambda stem: f"mem://t/{stem}.bin")


def test_a_renumbered_snapshot_keeps_the_schema_that_its_commit_brings() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    mine = world.append(base, 5) | {"schema-id": 1}
    brought = {"type": "struct", "schema-id": 1, "fields": [ID]}
    updates = [
        {"action": "add-schema", "schema": brought},
        {"action": "set-current-schema", "schema-id": -1},
        *updates_of(mine),
    ]
    answer, _ = landed(world, base | {"last-sequence-number": 9, "next-row-id": 100}, updates)
    assert answer.updates[:2] == updates[:2]
    assert answer.updates[2]["snapshot"]["schema-id"] == 1


def test_a_first_snapshot_has_no_parent_and_one_without_files_adds_none() -> None:
    world = World(3)
    head = world.empty() | {"last-sequence-number": 4}
    mine = world.snapshot(world.empty(), [], 77, "append")
    _, after = landed(world, head, updates_of(mine))
    assert "parent-snapshot-id" not in head_snapshot(after)
    assert not [key for key in head_snapshot(after)["summary"] if key.startswith("added-")]
    assert world.live(after) == {}


def test_a_snapshot_staged_on_one_that_has_expired() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    mine = world.append(base, 5)
    head = grown(world, base, 10)
    head["snapshots"] = head["snapshots"][1:]
    found = conflict(world, head, [{"action": "add-snapshot", "snapshot": mine}], asserts=False)
    assert (found.reason, str(mine["parent-snapshot-id"]) in found.message) == ("base-gone", True)


def test_a_renumbered_append_must_fit_the_schema_too() -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    mine = world.append(base, 5)
    raised = base | {"last-sequence-number": 9, "next-row-id": 100}
    assert conflict(world, with_schema(raised, ID | {"required": True}), updates_of(mine)).reason == "schema-changed"
    answer, _ = landed(world, with_schema(raised, ID), updates_of(mine))
    assert answer.updates[0]["snapshot"]["schema-id"] == 1


@pytest.mark.parametrize("change", [{"key-id": "k"}, {"manifest-list": None, "manifests": ["mem://t/m.avro"]}])
def test_a_head_whose_list_this_server_cannot_read(change: Json) -> None:
    world = World(3)
    base = grown(world, world.empty(), 1)
    mine = world.append(base, 5)
    head = grown(world, base, 10)
    head["snapshots"][-1] |= change
    found = conflict(world, head, updates_of(mine))
    assert (found.reason, str(head["snapshots"][-1]["snapshot-id"]) in found.message) == ("unreadable-list", True)
