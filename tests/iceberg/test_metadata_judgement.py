"""Requirements, structural checks, counters and the ids a change brought."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from metadata_payloads import NOW, UUID, Json, add_column, table, with_snapshots

from icefield.iceberg.metadata import (
    apply_updates,
    check_metadata,
    counters,
    failed_requirements,
    highest_field_id,
    new_field_ids,
    new_partition_field_ids,
    raise_counters,
)
from icefield.model.errors import BadRequest, NotSupported


def requirement(kind: str, **fields: Any) -> Json:
    return {"type": kind, **{key.replace("_", "-"): value for key, value in fields.items()}}


HOLD = [
    requirement("assert-table-uuid", uuid=UUID.upper()),
    requirement("assert-ref-snapshot-id", ref="main", snapshot_id=2),
    requirement("assert-ref-snapshot-id", ref="dev", snapshot_id=None),
    requirement("assert-ref-snapshot-id", ref="dev"),
    requirement("assert-last-assigned-field-id", last_assigned_field_id=10),
    requirement("assert-current-schema-id", current_schema_id=0),
    requirement("assert-last-assigned-partition-id", last_assigned_partition_id=1000),
    requirement("assert-default-spec-id", default_spec_id=0),
    requirement("assert-default-sort-order-id", default_sort_order_id=0),
]

FAIL = [
    (requirement("assert-create"), None, UUID, None),
    (requirement("assert-table-uuid", uuid=UUID.replace("0", "1")), UUID.replace("0", "1"), UUID, None),
    (requirement("assert-ref-snapshot-id", ref="main", snapshot_id=1), 1, 2, "main"),
    (requirement("assert-ref-snapshot-id", ref="main", snapshot_id=None), None, 2, "main"),
    (requirement("assert-ref-snapshot-id", ref="dev", snapshot_id=7), 7, None, "dev"),
    (requirement("assert-last-assigned-field-id", last_assigned_field_id=9), 9, 10, None),
    (requirement("assert-current-schema-id", current_schema_id=1), 1, 0, None),
    (requirement("assert-last-assigned-partition-id", last_assigned_partition_id=999), 999, 1000, None),
    (requirement("assert-default-spec-id", default_spec_id=3), 3, 0, None),
    (requirement("assert-default-sort-order-id", default_sort_order_id=1), 1, 0, None),
]


def test_requirements_that_hold() -> None:
    assert failed_requirements(with_snapshots(2), HOLD) == []
    assert failed_requirements(None, [requirement("assert-create")]) == []


def test_every_failure_is_listed_with_both_sides() -> None:
    failed = failed_requirements(with_snapshots(2), [*HOLD, *(item[0] for item in FAIL)])
    assert [(row.type, row.expected, row.actual, row.ref) for row in failed] == [
        (item["type"], expected, actual, ref) for item, expected, actual, ref in FAIL
    ]
    assert all(row.message for row in failed)


def test_a_table_that_does_not_exist() -> None:
    """As in Java: only what names something of the table fails."""
    failed = failed_requirements(None, [item for item, *_ in FAIL])
    assert [row.type for row in failed] == [
        "assert-table-uuid",
        "assert-ref-snapshot-id",
        "assert-ref-snapshot-id",
        "assert-current-schema-id",
        "assert-default-spec-id",
        "assert-default-sort-order-id",
    ]


def test_judged_against_what_was_served() -> None:
    served = raise_counters(table(), last_column_id=1000)
    assert (
        failed_requirements(served, [requirement("assert-last-assigned-field-id", last_assigned_field_id=1000)]) == []
    )


def test_an_old_files_main_is_implied() -> None:
    meta = with_snapshots(1)
    del meta["refs"]
    assert failed_requirements(meta, [requirement("assert-ref-snapshot-id", ref="main", snapshot_id=1)]) == []


@pytest.mark.parametrize(
    ("item", "field"),
    [
        (requirement("assert-view-uuid", uuid=UUID), "requirements[0].type"),
        (requirement("assert-luck"), "requirements[0].type"),
        ({}, "requirements[0].type"),
        ([], "requirements[0]"),
        (requirement("assert-table-uuid"), "requirements[0].uuid"),
        (requirement("assert-table-uuid", uuid=5), "requirements[0].uuid"),
        (requirement("assert-ref-snapshot-id", snapshot_id=1), "requirements[0].ref"),
        (requirement("assert-ref-snapshot-id", ref="main", snapshot_id="1"), "requirements[0].snapshot-id"),
        (requirement("assert-current-schema-id", current_schema_id=None), "requirements[0].current-schema-id"),
        (requirement("assert-default-spec-id", default_spec_id=True), "requirements[0].default-spec-id"),
    ],
)
def test_malformed_requirements(item: Any, field: str) -> None:
    for served in (None, table()):
        with pytest.raises(BadRequest) as caught:
            failed_requirements(served, [item])
        assert caught.value.field == field
    with pytest.raises(BadRequest):
        failed_requirements(None, item if isinstance(item, dict) else {})


# --- structure -------------------------------------------------------------------------------------------------------


def broken(path: str, value: Any, meta: Json | None = None) -> Json:
    """A good table with one thing changed; ``path`` is dotted."""
    result: Any = copy.deepcopy(meta or with_snapshots(2, version=3))
    node = result
    *way, last = path.split(".")
    for step in way:
        node = node[int(step) if isinstance(node, list) else step]
    key: Any = int(last) if isinstance(node, list) else last
    if value is KeyError:
        del node[key]
    else:
        node[key] = value
    return result


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("table-uuid", "x", "table-uuid"),
        ("location", KeyError, "location"),
        ("last-column-id", 9, "last-column-id"),
        ("last-column-id", "10", "last-column-id"),
        ("current-schema-id", 4, "current-schema-id"),
        ("schemas", {}, "schemas"),
        ("schemas.0.fields.0.id", 2, "schemas[0].fields[1].id"),
        ("schemas.0.schema-id", KeyError, "schemas[0].schema-id"),
        ("last-partition-id", 999, "last-partition-id"),
        ("default-spec-id", 1, "default-spec-id"),
        ("partition-specs.0.fields.0.source-id", 77, "partition-specs[0].fields[0].transform"),
        ("partition-specs.0.fields.0.name", "id", "partition-specs[0].fields[0].name"),
        ("default-sort-order-id", 1, "default-sort-order-id"),
        ("sort-orders", [], "default-sort-order-id"),
        ("sort-orders.0.order-id", 3, "sort-orders[0].order-id"),
        ("properties", None, "properties"),
        ("snapshots.0.summary", None, "snapshots[0].summary"),
        ("snapshots.0.sequence-number", None, "snapshots[0].sequence-number"),
        ("partition-specs.0.fields.0.field-id", None, "partition-specs[0].fields[0].field-id"),
        ("snapshot-log.0.snapshot-id", None, "snapshot-log[0].snapshot-id"),
        ("schemas.0.type", KeyError, "schemas[0].type"),
        ("snapshots.0.parent-snapshot-id", None, "snapshots[0].parent-snapshot-id"),
        ("snapshots.1.added-rows", KeyError, "snapshots[1].added-rows"),
        ("snapshots.1.snapshot-id", 1, "snapshots[1].snapshot-id"),
        ("snapshots.1.sequence-number", 9, "last-sequence-number"),
        ("snapshots.1.manifest-list", 9, "snapshots[1].manifest-list"),
        ("last-sequence-number", 1, "last-sequence-number"),
        ("next-row-id", 19, "next-row-id"),
        ("next-row-id", KeyError, "next-row-id"),
        ("current-snapshot-id", 5, "current-snapshot-id"),
        ("current-snapshot-id", 1, "current-snapshot-id"),
        ("current-snapshot-id", None, "current-snapshot-id"),
        ("refs.main.snapshot-id", 5, "refs['main'].snapshot-id"),
        ("refs.main.type", "tag", "refs['main'].type"),
        ("refs", [], "refs"),
        ("snapshot-log.1.timestamp-ms", 5, "snapshot-log[1].timestamp-ms"),
        ("last-updated-ms", 5, "last-updated-ms"),
        ("metadata-log", [{"timestamp-ms": 1}], "metadata-log[0].metadata-file"),
        ("metadata-log", [{"timestamp-ms": NOW * 2, "metadata-file": "m"}], "last-updated-ms"),
        ("properties", {"a": 1}, "properties['a']"),
        ("encryption-keys", [{}], "encryption-keys"),
        ("statistics", [{}], "statistics[0].snapshot-id"),
    ],
)
def test_structure(path: str, value: Any, field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check_metadata(broken(path, value))
    assert caught.value.field == field


def test_other_versions() -> None:
    for version in (1, 4):
        with pytest.raises(NotSupported, match=f"version {version}"):
            check_metadata(broken("format-version", version))
    with pytest.raises(BadRequest):
        check_metadata(broken("format-version", "2"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("x-unknown", {"deep": [1]}),
        ("snapshots.0.x-unknown", 1),
        ("snapshots.0.summary", KeyError),
        ("snapshots.0.schema-id", KeyError),
        ("snapshots.0.parent-snapshot-id", -1),
        ("refs", KeyError),
        ("metadata-log", None),
        ("properties", KeyError),
        ("partition-specs.0.fields.0.transform", "mystery[3]"),
        ("partition-specs.0.fields.0.field-id", KeyError),
    ],
)
def test_tolerance_for_other_writers(path: str, value: Any) -> None:
    check_metadata(broken(path, value))


# --- ids -------------------------------------------------------------------------------------------------------------


def test_raise_counters_never_lowers_and_copies() -> None:
    meta = table(3)
    before = copy.deepcopy(meta)
    raised = raise_counters(meta, last_column_id=1000, last_partition_id=3000, next_row_id=2**32)
    assert (raised["last-column-id"], raised["last-partition-id"], raised["next-row-id"]) == (1000, 3000, 2**32)
    assert meta == before
    low = raise_counters(raised, last_column_id=1, last_partition_id=1, next_row_id=1)
    assert counters(low) == counters(raised)
    check_metadata(raised)
    assert "next-row-id" not in raise_counters(table(2), next_row_id=5)
    assert raise_counters(meta) == meta


def test_counters_are_true_even_where_the_file_is_wrong() -> None:
    meta = with_snapshots(2, version=3)
    wrong = {**meta, "last-column-id": 1, "last-partition-id": 1, "next-row-id": 0, "last-sequence-number": 0}
    assert counters(wrong) == counters(meta)
    assert counters(table(2))["next-row-id"] == 0


def test_the_ids_a_change_brought() -> None:
    base = table()
    nested = {"type": "list", "element-id": 1002, "element": "int", "element-required": False}
    new = apply_updates(base, add_column(base, 1001, "a", kind=nested), now_ms=NOW)
    assert new_field_ids(base, new) == [1001, 1002]
    assert highest_field_id(new["schemas"][1]) == 1002
    assert new_field_ids(base, base) == []
    spec = {"fields": [{"name": "b", "transform": "bucket[2]", "source-id": 1, "field-id": 5000}]}
    new = apply_updates(base, [{"action": "add-spec", "spec": spec}], now_ms=NOW)
    assert new_partition_field_ids(base, new) == [5000]
    assert new_partition_field_ids(base, base) == []


def test_an_id_below_the_counter_is_still_reported_as_new() -> None:
    """It was another column's: the caller must see it to refuse it."""
    base = {**table(), "last-column-id": 50}
    new = apply_updates(base, add_column(base, 30, "a"), now_ms=NOW)
    assert new_field_ids(base, new) == [30]
    assert new["last-column-id"] == 50


def test_numbers_too_long_to_print_are_refused_in_words() -> None:
    for value in (10**5000, -(10**5000)):
        with pytest.raises(BadRequest, match="not a number out of range"):
            check_metadata(broken("last-column-id", value))
