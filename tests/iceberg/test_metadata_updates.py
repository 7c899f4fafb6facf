"""One test per update and its refusals, and the lists of updates that real clients post."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from metadata_payloads import (
    LOCATION,
    NOW,
    UUID,
    Json,
    add_column,
    insert,
    snapshot,
    spark_ctas,
    table,
    with_column,
    with_snapshots,
)

from icefield.iceberg.metadata import (
    StaleSnapshot,
    apply_updates,
    check_metadata,
    counters,
    raise_counters,
    with_metadata_log,
)
from icefield.model.errors import BadRequest, CommitConflict, NotSupported

LATER = NOW + 10_000


def commit(meta: Json | None, *updates: Json, now_ms: int = LATER) -> Json:
    new = apply_updates(meta, list(updates), now_ms=now_ms)
    check_metadata(new)
    return new


def refused(meta: Json | None, *updates: Json) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        apply_updates(meta, list(updates), now_ms=LATER)
    assert caught.value.field is not None
    assert caught.value.field in caught.value.message
    return caught.value


def update(action: str, **fields: Any) -> Json:
    return {"action": action, **{key.replace("_", "-"): value for key, value in fields.items()}}


# --- what clients post -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_spark_ctas_makes_the_staged_table_with_its_first_snapshot(version: int) -> None:
    staged = table(version)
    meta = commit(None, *spark_ctas(staged))
    changed = {
        "current-snapshot-id",
        "snapshots",
        "refs",
        "snapshot-log",
        "last-updated-ms",
        "last-sequence-number",
        "next-row-id",
    }
    assert {key: value for key, value in meta.items() if key not in changed} == {
        key: value for key, value in staged.items() if key not in changed
    }
    assert meta["current-snapshot-id"] == 77
    assert meta["refs"] == {"main": {"snapshot-id": 77, "type": "branch"}}
    assert [row["snapshot-id"] for row in meta["snapshot-log"]] == [77]
    assert meta["last-sequence-number"] == 1
    assert meta.get("next-row-id") == (10 if version == 3 else None)


def test_pyiceberg_ctas_sends_ids_and_no_last_column_id() -> None:
    meta = commit(
        None,
        update("assign-uuid", uuid=UUID),
        update("upgrade-format-version", format_version=2),
        {
            "action": "add-schema",
            "schema": {
                "type": "struct",
                "fields": [{"id": 1, "name": "a", "type": "int", "required": False}],
                "schema-id": 5,
                "identifier-field-ids": [],
            },
        },
        update("set-current-schema", schema_id=-1),
        update("add-spec", spec={"spec-id": 0, "fields": []}),
        update("set-default-spec", spec_id=-1),
        update("add-sort-order", sort_order={"order-id": 0, "fields": []}),
        update("set-default-sort-order", sort_order_id=-1),
        update("set-location", location=LOCATION),
        update("set-properties", updates={}),
        update(
            "add-snapshot", snapshot=snapshot(1, {"last-sequence-number": 0, "format-version": 2}, **{"schema-id": 5})
        ),
        update("set-snapshot-ref", ref_name="main", type="branch", snapshot_id=1),
    )
    assert meta["current-schema-id"] == 0
    assert meta["snapshots"][0]["schema-id"] == 0
    assert (meta["last-column-id"], meta["last-partition-id"]) == (1, 999)


@pytest.mark.parametrize("lost", ["assign-uuid", "add-schema", "set-current-schema", "set-location"])
def test_a_creating_commit_must_be_complete(lost: str) -> None:
    rest = [item for item in spark_ctas(table()) if item["action"] != lost]
    refused(None, *rest)


def test_a_creating_commit_without_spec_and_order_is_unpartitioned_and_unsorted() -> None:
    left = {"add-spec", "set-default-spec", "add-sort-order", "set-default-sort-order"}
    meta = commit(None, *[item for item in spark_ctas(table()) if item["action"] not in left])
    assert (meta["default-spec-id"], meta["partition-specs"]) == (0, [{"spec-id": 0, "fields": []}])
    assert (meta["default-sort-order-id"], meta["sort-orders"]) == (0, [{"order-id": 0, "fields": []}])


def test_spark_rtas_replaces_the_schema_and_forgets_main_but_keeps_history() -> None:
    base = with_snapshots(2)
    schema = {
        "type": "struct",
        "schema-id": 1,
        "fields": [{"id": 1, "name": "id", "required": False, "type": "string"}],
    }
    meta = commit(
        base,
        update("remove-snapshot-ref", ref_name="main"),
        update("add-schema", schema=schema, last_column_id=10),
        update("set-current-schema", schema_id=-1),
        update("add-spec", spec={"spec-id": 1, "fields": []}),
        update("set-default-spec", spec_id=-1),
        update("set-default-sort-order", sort_order_id=0),
        update("set-properties", updates={"a": "b"}),
        update("add-snapshot", snapshot=snapshot(9, base, **{"schema-id": 1})),
        update("set-snapshot-ref", ref_name="main", type="branch", snapshot_id=9),
    )
    assert (meta["current-schema-id"], meta["default-spec-id"], meta["current-snapshot-id"]) == (1, 1, 9)
    assert [row["snapshot-id"] for row in meta["snapshots"]] == [1, 2, 9]
    assert [row["snapshot-id"] for row in meta["snapshot-log"]] == [1, 2, 9]
    assert meta["last-column-id"] == 10


def test_duckdb_transaction_posts_a_chain_of_snapshots() -> None:
    base = with_snapshots(1)
    first = snapshot(2, base, parent=1)
    second = snapshot(3, {**base, "last-sequence-number": 2}, parent=2)
    meta = commit(
        base,
        update("add-snapshot", snapshot=first),
        update("add-snapshot", snapshot=second),
        update("set-snapshot-ref", ref_name="main", type="branch", snapshot_id=3),
    )
    assert meta["last-sequence-number"] == 3
    assert [row["snapshot-id"] for row in meta["snapshot-log"]] == [1, 3]


# --- the table -------------------------------------------------------------------------------------------------------


def test_uuid_is_assigned_once() -> None:
    assert commit(table(), update("assign-uuid", uuid=UUID.upper()))["table-uuid"] == UUID
    assert "never changes" in refused(table(), update("assign-uuid", uuid=UUID.replace("0", "1"))).message
    refused(table(), update("assign-uuid", uuid="orders"))


def test_upgrade_to_3_adds_what_java_needs() -> None:
    meta = commit(with_snapshots(1), update("upgrade-format-version", format_version=3))
    assert (meta["format-version"], meta["next-row-id"]) == (3, 0)
    assert "first-row-id" not in meta["snapshots"][0]
    assert commit(table(), update("upgrade-format-version", format_version=3))["current-snapshot-id"] is None
    assert commit(meta, update("upgrade-format-version", format_version=3))["format-version"] == 3


def test_downgrade_and_other_versions_are_refused() -> None:
    assert "downgraded" in refused(table(3), update("upgrade-format-version", format_version=2)).message
    for version in (1, 4):
        with pytest.raises(NotSupported, match="upgrade-format-version"):
            apply_updates(table(), [update("upgrade-format-version", format_version=version)], now_ms=NOW)
    with pytest.raises(NotSupported, match="version 1"):
        apply_updates({**table(), "format-version": 1}, [], now_ms=NOW)


def test_a_format_version_set_as_property_is_an_upgrade() -> None:
    meta = commit(table(), update("set-properties", updates={"format-version": "3", "a": "b"}))
    assert meta["format-version"] == 3
    assert meta["properties"]["a"] == "b"
    assert "format-version" not in meta["properties"]


def test_properties() -> None:
    meta = commit(table(), update("set-properties", updates={"a": "1", "owner": "bob", "uuid": "x"}))
    assert (meta["properties"]["a"], meta["properties"]["owner"]) == ("1", "bob")
    assert "uuid" not in meta["properties"]
    meta = commit(meta, update("remove-properties", removals=["a", "never-there"]))
    assert "a" not in meta["properties"]
    # the names Java used first, and still reads
    meta = commit(meta, update("set-properties", updated={"b": "2"}), update("remove-properties", removed=["owner"]))
    assert meta["properties"]["b"] == "2"
    assert "owner" not in meta["properties"]
    assert refused(meta, update("set-properties", updates={"a": None})).field == "updates[0].updates['a']"
    refused(meta, update("remove-properties", removals="a"))


def test_location() -> None:
    assert commit(table(), update("set-location", location="s3://b/x/"))["location"] == "s3://b/x"
    refused(table(), update("set-location", location=""))


@pytest.mark.parametrize(
    "action", ["add-encryption-key", "remove-encryption-key", "add-view-version", "drop", "", 7, None]
)
def test_other_actions_are_named(action: Any) -> None:
    assert refused(table(), {"action": action}).field == "updates[0].action"


# --- schemas ---------------------------------------------------------------------------------------------------------


def test_add_column() -> None:
    meta = commit(table(), *add_column(table(), 11, "note"))
    assert (meta["current-schema-id"], meta["last-column-id"]) == (1, 11)
    assert [schema["schema-id"] for schema in meta["schemas"]] == [0, 1]


def test_ids_of_a_raised_range_are_taken_and_the_clients_own_counter_is_not() -> None:
    base = table()
    served = raise_counters(base, last_column_id=1000)
    meta = commit(base, *add_column(served, 1001, "note"))
    assert meta["last-column-id"] == 1001
    renamed = copy.deepcopy(base["schemas"][0])
    renamed["fields"][0]["name"] = "key"
    meta = commit(base, update("add-schema", schema=renamed, last_column_id=1000))
    assert meta["last-column-id"] == 10
    without = copy.deepcopy(base["schemas"][0])
    without["fields"].pop()
    assert commit(base, update("add-schema", schema=without, last_column_id=3))["last-column-id"] == 10


def test_an_equal_schema_is_reused_whatever_its_spelling() -> None:
    base = table()
    same = copy.deepcopy(base["schemas"][0])
    same["schema-id"] = 7
    same["fields"][4]["type"]["value"] = "decimal(10,2)"
    same["fields"][0]["doc"] = None
    meta = commit(base, update("add-schema", schema=same), update("set-current-schema", schema_id=-1))
    assert meta["schemas"] == base["schemas"]
    assert meta["current-schema-id"] == 0


def test_schema_ids_go_on_above_the_highest() -> None:
    base = commit(table(), *add_column(table(), 11, "a"))
    base = commit(base, update("set-current-schema", schema_id=0))
    meta = commit(base, update("add-schema", schema=with_column(base, 12, "b")))
    assert [schema["schema-id"] for schema in meta["schemas"]] == [0, 1, 2]
    assert meta["current-schema-id"] == 0


def test_set_current_schema_refuses_what_is_not_there() -> None:
    assert "no add-schema" in refused(table(), update("set-current-schema", schema_id=-1)).message
    assert refused(table(), update("set-current-schema", schema_id=3)).field == "updates[0].schema-id"


def test_a_partition_or_sort_column_can_not_be_dropped() -> None:
    base = table()
    without = copy.deepcopy(base["schemas"][0])
    without["fields"] = [item for item in without["fields"] if item["name"] != "ts"]
    error = refused(base, update("add-schema", schema=without), update("set-current-schema", schema_id=-1))
    assert "default partition spec" in error.message


def test_a_column_named_like_a_partition_field_would_make_java_fail() -> None:
    base = table()
    assert "also the name of a column" in refused(base, *add_column(base, 11, "ts_day")).message


def test_format_3_types_need_format_3() -> None:
    error = refused(table(), *add_column(table(), 11, "v", kind="variant"))
    assert error.field == "updates[0].schema.fields[5].type"
    assert error.message.startswith("add-schema: ")
    commit(table(3), *add_column(table(3), 11, "v", kind="variant"))
    upgrade = update("upgrade-format-version", format_version=3)
    commit(table(), upgrade, *add_column(table(), 11, "v", kind="variant"))


def test_field_ids_of_icebergs_own_columns_are_refused() -> None:
    refused(table(), *add_column(table(), 2147483448, "a"))


def test_remove_schemas() -> None:
    base = commit(table(), *add_column(table(), 11, "a"))
    meta = commit(base, update("remove-schemas", schema_ids=[0, 99]))
    assert [schema["schema-id"] for schema in meta["schemas"]] == [1]
    assert meta["last-column-id"] == 11
    assert "current schema" in refused(base, update("remove-schemas", schema_ids=[1])).message


def test_a_schema_that_a_snapshot_needs_stays() -> None:
    base = with_snapshots(1)
    base = commit(base, *add_column(base, 11, "a"))
    with pytest.raises(CommitConflict, match="needed by snapshot 1"):
        apply_updates(base, [update("remove-schemas", schema_ids=[0])], now_ms=LATER)
    base = commit(base, *insert(2, base))
    meta = commit(base, update("remove-snapshots", snapshot_ids=[1]), update("remove-schemas", schema_ids=[0]))
    assert [schema["schema-id"] for schema in meta["schemas"]] == [1]


# --- specs -----------------------------------------------------------------------------------------------------------


def spec_field(name: str, transform: str, source: int, **more: Any) -> Json:
    return {"name": name, "transform": transform, "source-id": source, **more}


def test_add_spec() -> None:
    fields = [
        spec_field("ts_day", "day", 2, **{"field-id": 1000}),
        spec_field("b", "Bucket[8]", 1, **{"field-id": 1001}),
    ]
    meta = commit(
        table(),
        update("add-spec", spec={"spec-id": 1, "fields": fields}),
        update("set-default-spec", spec_id=-1),
    )
    assert (meta["default-spec-id"], meta["last-partition-id"]) == (1, 1001)
    assert meta["partition-specs"][1]["fields"][1] == spec_field("b", "bucket[8]", 1, **{"field-id": 1001})


def test_an_equal_spec_is_reused_even_with_other_field_ids() -> None:
    base = commit(table(), update("add-spec", spec={"fields": []}), update("set-default-spec", spec_id=-1))
    again = {"spec-id": 2, "fields": [spec_field("ts_day", "day", 2, **{"field-id": 1077})]}
    meta = commit(base, update("add-spec", spec=again), update("set-default-spec", spec_id=-1))
    assert meta["default-spec-id"] == 0
    assert meta["partition-specs"] == base["partition-specs"]
    assert meta["last-partition-id"] == 1000


def test_missing_partition_field_ids_reuse_their_meaning_or_are_fresh() -> None:
    fields = [spec_field("b", "bucket[8]", 1), spec_field("ts_day", "day", 2)]
    meta = commit(table(), update("add-spec", spec={"fields": fields}))
    assert [item["field-id"] for item in meta["partition-specs"][1]["fields"]] == [1001, 1000]
    assert meta["last-partition-id"] == 1001


def test_a_partition_field_id_never_changes_its_meaning() -> None:
    taken = {"spec-id": 1, "fields": [spec_field("b", "bucket[8]", 1, **{"field-id": 1000})]}
    with pytest.raises(CommitConflict, match="already means day of column 2"):
        apply_updates(table(), [update("add-spec", spec=taken)], now_ms=LATER)
    void = {"spec-id": 1, "fields": [spec_field("ts_day", "void", 2, **{"field-id": 1000})]}
    commit(table(), update("add-spec", spec=void))


def test_ids_above_a_raised_partition_counter_are_taken() -> None:
    spec = {"spec-id": 1, "fields": [spec_field("b", "bucket[8]", 1, **{"field-id": 5001})]}
    assert commit(table(), update("add-spec", spec=spec))["last-partition-id"] == 5001


@pytest.mark.parametrize(
    "fields",
    [
        [spec_field("a", "identity", 99)],
        [spec_field("a", "identity", 3)],
        [spec_field("a", "truncate[4]", 2)],
        [spec_field("a", "bucket[0]", 1)],
        [spec_field("id", "bucket[4]", 2)],
        [spec_field("a", "identity", 1), spec_field("a", "bucket[2]", 1)],
        [spec_field("a", "identity", 1, **{"field-id": 1005}), spec_field("b", "bucket[2]", 1)],
        [spec_field("a", "identity", 8)],
    ],
)
def test_specs_that_do_not_fit_are_refused(fields: list[Json]) -> None:
    refused(table(), update("add-spec", spec={"spec-id": 1, "fields": fields}))


def test_manifests_with_a_wrong_guess_at_the_specs_id_do_not_land() -> None:
    base = table()
    spec = update("add-spec", spec={"spec-id": 3, "fields": []})
    with pytest.raises(CommitConflict, match="number 3, but that spec is number 1"):
        apply_updates(base, [spec, *insert(1, base)], now_ms=LATER)
    commit(base, update("add-spec", spec={"spec-id": 1, "fields": []}), *insert(1, base))


def test_remove_and_default_specs() -> None:
    base = commit(table(), update("add-spec", spec={"fields": []}), update("set-default-spec", spec_id=-1))
    assert [
        spec["spec-id"] for spec in commit(base, update("remove-partition-specs", spec_ids=[0]))["partition-specs"]
    ] == [1]
    refused(base, update("remove-partition-specs", spec_ids=[1]))
    refused(base, update("set-default-spec", spec_id=9))
    refused(base, update("set-default-spec", spec_id=-1))


# --- sort orders -----------------------------------------------------------------------------------------------------


def test_sort_orders() -> None:
    field = {"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
    meta = commit(
        table(),
        update("add-sort-order", sort_order={"order-id": 9, "fields": [field]}),
        update("set-default-sort-order", sort_order_id=-1),
    )
    assert meta["default-sort-order-id"] == 1
    again = commit(
        meta,
        update("add-sort-order", sort_order={"order-id": 2, "fields": [field | {"direction": "ASC"}]}),
        update("add-sort-order", sort_order={"fields": [field | {"direction": "desc"}]}),
        update("set-default-sort-order", sort_order_id=-1),
    )
    assert [order["order-id"] for order in again["sort-orders"]] == [0, 1, 2]
    assert again["default-sort-order-id"] == 2
    back = commit(
        again,
        update("add-sort-order", sort_order={"order-id": 0, "fields": []}),
        update("set-default-sort-order", sort_order_id=-1),
    )
    assert back["default-sort-order-id"] == 0
    refused(table(), update("set-default-sort-order", sort_order_id=4))
    refused(table(), update("add-sort-order", sort_order={"order-id": 1, "fields": [field | {"source-id": 99}]}))
    refused(table(), update("add-sort-order", sort_order={"order-id": 1, "fields": [field | {"source-id": 3}]}))


# --- snapshots -------------------------------------------------------------------------------------------------------


def test_insert() -> None:
    base = with_snapshots(2)
    meta = commit(base, *insert(3, base))
    assert (meta["current-snapshot-id"], meta["last-sequence-number"]) == (3, 3)
    assert meta["snapshots"][-1]["parent-snapshot-id"] == 2
    assert meta["refs"]["main"] == {"snapshot-id": 3, "type": "branch"}
    assert meta["snapshot-log"][-1] == {"timestamp-ms": meta["snapshots"][-1]["timestamp-ms"], "snapshot-id": 3}
    assert meta["last-updated-ms"] == LATER


def test_row_ids_advance_also_over_a_gap() -> None:
    base = with_snapshots(2, version=3)
    assert base["next-row-id"] == 20
    meta = commit(base, *insert(3, base, rows=5, **{"first-row-id": 1000}))
    assert meta["next-row-id"] == 1005
    meta = commit(meta, *insert(4, meta, rows=0))
    assert meta["next-row-id"] == 1005


@pytest.mark.parametrize("version", [2, 3])
def test_a_stale_snapshot_is_told_apart(version: int) -> None:
    base = with_snapshots(2, version)
    with pytest.raises(StaleSnapshot) as caught:
        apply_updates(base, insert(3, base, **{"sequence-number": 2}), now_ms=LATER)
    stale = caught.value
    assert (stale.snapshot_id, stale.field, stale.given, stale.position) == (3, "sequence-number", 2, 2)
    assert isinstance(stale, CommitConflict)
    if version == 3:
        with pytest.raises(StaleSnapshot) as caught:
            apply_updates(base, insert(3, base, **{"first-row-id": 19}), now_ms=LATER)
        assert (caught.value.field, caught.value.given, caught.value.position) == ("first-row-id", 19, 20)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("snapshot-id", 1),
        ("snapshot-id", "9"),
        ("snapshot-id", -1),
        ("snapshot-id", 2**63),
        ("sequence-number", None),
        ("timestamp-ms", -5),
        ("manifest-list", ""),
        ("manifest-list", None),
        ("summary", {}),
        ("summary", {"operation": "merge"}),
        ("summary", {"operation": "append", "rows": 5}),
        ("schema-id", 44),
        ("first-row-id", None),
        ("added-rows", -1),
        ("added-rows", 2**63 - 1),
        ("key-id", "k"),
        ("parent-snapshot-id", "1"),
    ],
)
def test_malformed_snapshots(field: str, value: Any) -> None:
    base = with_snapshots(2, version=3)
    made = snapshot(9, base, parent=2) | {field: value}
    error = refused(base, update("add-snapshot", snapshot=made))
    assert f"snapshot.{field}" in str(error.field)


def test_row_ids_mean_nothing_in_format_2() -> None:
    base = table()
    meta = commit(base, *insert(1, base, **{"first-row-id": 500, "added-rows": 3}))
    assert "first-row-id" not in meta["snapshots"][0]
    commit(meta, update("upgrade-format-version", format_version=3))


def test_snapshot_refs() -> None:
    base = with_snapshots(2)
    meta = commit(
        base,
        update("set-snapshot-ref", ref_name="v1", type="tag", snapshot_id=1, max_ref_age_ms=5),
        update("set-snapshot-ref", ref_name="dev", type="branch", snapshot_id=1, min_snapshots_to_keep=2),
    )
    assert meta["refs"]["v1"] == {"snapshot-id": 1, "type": "tag", "max-ref-age-ms": 5}
    assert meta["refs"]["dev"] == {"snapshot-id": 1, "type": "branch", "min-snapshots-to-keep": 2}
    assert meta["current-snapshot-id"] == 2
    assert "dev" not in commit(meta, update("remove-snapshot-ref", ref_name="dev"))["refs"]
    refused(base, update("set-snapshot-ref", ref_name="x", type="branch", snapshot_id=44))
    refused(base, update("set-snapshot-ref", ref_name="main", type="tag", snapshot_id=1))
    refused(base, update("set-snapshot-ref", ref_name="x", type="tag", snapshot_id=1, min_snapshots_to_keep=1))
    refused(base, update("set-snapshot-ref", ref_name="x", type="tag", snapshot_id=1, max_ref_age_ms=0))
    refused(base, update("set-snapshot-ref", ref_name="x", type="fork", snapshot_id=1))


def test_rollback_is_logged_at_the_time_it_happens() -> None:
    meta = commit(with_snapshots(3), update("set-snapshot-ref", ref_name="main", type="branch", snapshot_id=1))
    assert meta["current-snapshot-id"] == 1
    assert meta["snapshot-log"][-1] == {"timestamp-ms": LATER, "snapshot-id": 1}


def test_setting_mains_retention_alone_is_not_history() -> None:
    base = with_snapshots(1)
    ref = update("set-snapshot-ref", ref_name="main", type="branch", snapshot_id=1, max_snapshot_age_ms=7)
    meta = commit(base, ref)
    assert meta["refs"]["main"]["max-snapshot-age-ms"] == 7
    assert meta["snapshot-log"] == base["snapshot-log"]


def test_main_is_implied_in_old_files() -> None:
    base = with_snapshots(2)
    del base["refs"]
    meta = commit(base, update("set-snapshot-ref", ref_name="dev", type="branch", snapshot_id=1))
    assert meta["refs"]["main"] == {"snapshot-id": 2, "type": "branch"}
    assert commit(base, update("remove-snapshot-ref", ref_name="main"))["refs"] == {}


def test_a_clients_clock_can_not_make_the_table_unreadable() -> None:
    base = with_snapshots(1)
    for skew in (-(10**9), 10**9):
        meta = commit(base, *insert(2, base, **{"timestamp-ms": NOW + skew}))
        assert meta["snapshots"][-1]["timestamp-ms"] == NOW + skew
        assert base["snapshot-log"][-1]["timestamp-ms"] <= meta["snapshot-log"][-1]["timestamp-ms"] <= LATER
    back = commit(base, update("set-properties", updates={}), now_ms=5)
    assert back["last-updated-ms"] == base["last-updated-ms"]


def test_expire() -> None:
    base = with_snapshots(4)
    statistics = {
        "snapshot-id": 2,
        "statistics-path": "s",
        "file-size-in-bytes": 1,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
    }
    base = commit(
        base,
        update("set-snapshot-ref", ref_name="old", type="tag", snapshot_id=1),
        update("set-statistics", statistics=statistics),
    )
    meta = commit(base, update("remove-snapshots", snapshot_ids=[1, 2, 99]))
    assert [row["snapshot-id"] for row in meta["snapshots"]] == [3, 4]
    assert meta["snapshots"][0]["parent-snapshot-id"] == 2
    assert set(meta["refs"]) == {"main"}
    assert meta["statistics"] == []
    assert [row["snapshot-id"] for row in meta["snapshot-log"]] == [3, 4]
    # a gap ends the history: 1 would seem to have been current in 2's time
    assert [
        row["snapshot-id"] for row in commit(base, update("remove-snapshots", snapshot_ids=[2]))["snapshot-log"]
    ] == [3, 4]


def test_removing_the_current_snapshot_leaves_none() -> None:
    meta = commit(with_snapshots(2), update("remove-snapshots", snapshot_ids=[2]))
    assert meta["current-snapshot-id"] == -1
    assert meta["refs"] == {}
    assert meta["last-sequence-number"] == 2


# --- statistics ------------------------------------------------------------------------------------------------------


def test_statistics() -> None:
    base = with_snapshots(2)
    blob = {
        "type": "apache-datasketches-theta-v1",
        "snapshot-id": 1,
        "sequence-number": 1,
        "fields": [1],
        "properties": {"ndv": "5"},
    }
    one = {
        "snapshot-id": 1,
        "statistics-path": "s1",
        "file-size-in-bytes": 3,
        "file-footer-size-in-bytes": 2,
        "blob-metadata": [blob],
    }
    part = {"snapshot-id": 1, "statistics-path": "p1", "file-size-in-bytes": 3}
    meta = commit(
        base,
        update("set-statistics", snapshot_id=1, statistics=one),
        update("set-statistics", statistics=one | {"snapshot-id": 2}),
        update("set-statistics", statistics=one | {"statistics-path": "s2"}),
        update("set-partition-statistics", partition_statistics=part),
    )
    assert [(row["snapshot-id"], row["statistics-path"]) for row in meta["statistics"]] == [(2, "s1"), (1, "s2")]
    assert meta["statistics"][1]["blob-metadata"] == [blob]
    assert meta["partition-statistics"] == [part]
    gone = commit(
        meta,
        update("remove-statistics", snapshot_id=1),
        update("remove-partition-statistics", snapshot_id=1),
        update("remove-statistics", snapshot_id=50),
    )
    assert [row["snapshot-id"] for row in gone["statistics"]] == [2]
    assert gone["partition-statistics"] == []
    assert (
        "statistics.snapshot-id is 1" in refused(base, update("set-statistics", snapshot_id=2, statistics=one)).message
    )
    refused(base, update("set-statistics", statistics=one | {"blob-metadata": [{}]}))
    refused(base, update("set-partition-statistics", partition_statistics=[]))


# --- the whole -------------------------------------------------------------------------------------------------------


def test_a_commit_is_all_or_nothing_and_pure() -> None:
    base = with_snapshots(2, version=3)
    updates = [*insert(3, base), *add_column(base, 11, "a"), update("set-location", location=7)]
    before, posted = copy.deepcopy(base), copy.deepcopy(updates)
    refused(base, *updates)
    commit(base, *updates[:-1])
    assert (base, updates) == (before, posted)


def test_what_does_not_change_is_shared() -> None:
    base = with_snapshots(300)
    meta = commit(base, update("set-properties", updates={"a": "b"}))
    assert meta["snapshots"] is base["snapshots"]
    meta = commit(base, *insert(1000, base))
    assert all(one is other for one, other in zip(meta["snapshots"], base["snapshots"], strict=False))
    assert meta["schemas"] is base["schemas"]


@pytest.mark.parametrize("updates", [None, {}, "x", 5, [None], [[]], ["x"], [{}]])
def test_updates_must_be_a_list_of_objects(updates: Any) -> None:
    with pytest.raises(BadRequest):
        apply_updates(table(), updates, now_ms=NOW)


def test_unknown_fields_of_a_file_survive() -> None:
    base = {**with_snapshots(1), "x-other-writer": {"a": [1]}}
    assert commit(base, *insert(2, base))["x-other-writer"] == {"a": [1]}


def test_metadata_log() -> None:
    base = table()
    assert with_metadata_log(base, None, None)["metadata-log"] == []
    first = with_metadata_log(commit(base, *insert(1, base)), "m0", base)
    assert first["metadata-log"] == [{"timestamp-ms": NOW, "metadata-file": "m0"}]
    limited = commit(first, update("set-properties", updates={"write.metadata.previous-versions-max": "2"}))
    for number in range(1, 6):
        limited = with_metadata_log(limited, f"m{number}", limited)
        check_metadata(limited)
    assert [row["metadata-file"] for row in limited["metadata-log"]] == ["m4", "m5"]
    for text, kept in (("0", 1), ("-3", 1), ("many", 6), ("99999999999", 6)):
        asked = commit(first, update("set-properties", updates={"write.metadata.previous-versions-max": text}))
        for number in range(1, 6):
            asked = with_metadata_log(asked, f"m{number}", asked)
        assert len(asked["metadata-log"]) == kept
    long = first
    for number in range(120):
        long = with_metadata_log(long, f"m{number}", long)
    assert len(long["metadata-log"]) == 100


def test_counters_follow_what_was_used() -> None:
    base = with_snapshots(2, version=3)
    base = commit(base, *add_column(base, 5001, "a"))
    assert counters(base) == {
        "last-column-id": 5001,
        "last-partition-id": 1000,
        "next-row-id": 20,
        "last-sequence-number": 2,
    }
