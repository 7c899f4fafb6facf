"""Laws of the metadata engine: purity, valid results, one commit equals two, and an answer for any JSON whatsoever."""

from __future__ import annotations

import copy
import math
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from metadata_payloads import (
    LOCATION,
    NOW,
    UUID,
    Json,
    add_column,
    insert,
    pyiceberg_create,
    spark_create,
    spark_ctas,
    table,
    with_snapshots,
)
from pyiceberg.table.metadata import TableMetadataUtil
from test_metadata_judgement import FAIL, HOLD

from icefield.iceberg.metadata import (
    apply_updates,
    check_metadata,
    counters,
    current_snapshot_id,
    failed_requirements,
    new_field_ids,
    new_table,
    with_metadata_log,
)
from icefield.iceberg.schemas import MAX_DEPTH, assign_fresh_ids, field_ids, highest_field_id, read_schema, walk
from icefield.model.errors import BadRequest, CommitConflict, NotSupported

modest = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
hard = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])


# --- schemas ---------------------------------------------------------------------------------------------------------

PRIMITIVES = ["boolean", "int", "long", "string", "decimal(9,2)", "fixed[4]", "variant", "timestamp_ns", "geometry"]


@st.composite
def schemas(draw: st.DrawFn) -> Json:
    """Any schema, with ids in any order."""
    ids = iter(draw(st.permutations(range(200))))

    def kind(depth: int) -> Any:
        choice = draw(st.integers(0, 3 if depth < 3 else 0))
        if choice == 0:
            return draw(st.sampled_from(PRIMITIVES))
        if choice == 1:
            return {"type": "struct", "fields": fields(depth + 1)}
        if choice == 2:
            return {"type": "list", "element-id": next(ids), "element": kind(depth + 1), "element-required": False}
        return {
            "type": "map",
            "key-id": next(ids),
            "key": kind(depth + 1),
            "value-id": next(ids),
            "value": kind(depth + 1),
            "value-required": draw(st.booleans()),
        }

    def fields(depth: int) -> list[Json]:
        return [
            {"id": next(ids), "name": f"c{i}", "required": draw(st.booleans()), "type": kind(depth)}
            for i in range(draw(st.integers(0, 3)))
        ]

    return {"type": "struct", "fields": fields(0)}


@modest
@given(schemas())
def test_fresh_ids_are_dense_and_in_javas_order(schema: Json) -> None:
    read = read_schema(schema, "schema", version=3)
    fresh = assign_fresh_ids(read)
    assert field_ids(fresh.schema) == set(range(1, fresh.last_id + 1))
    assert highest_field_id(fresh.schema) == fresh.last_id
    assert {fresh.new_ids[field.id]: field.name for field in walk(read)} == {
        field.id: field.name for field in walk(fresh.schema)
    }

    def check(fields: list[Json]) -> None:
        ids = [field["id"] for field in fields]
        assert ids == list(range(ids[0], ids[0] + len(ids))) if ids else True
        below = [inner.id for field in fields for inner in walk({"fields": [field]}) if inner.parents]
        assert all(number > ids[-1] for number in below)
        for field in fields:
            if isinstance(field["type"], dict) and field["type"]["type"] == "struct":
                check(field["type"]["fields"])

    check(fresh.schema["fields"])


@modest
@given(schemas())
def test_reading_a_schema_twice_changes_nothing(schema: Json) -> None:
    once = read_schema(schema, "schema", version=3)
    assert read_schema(once, "schema", version=3) == once


# --- sequences of commits --------------------------------------------------------------------------------------------


@st.composite
def commits(draw: st.DrawFn) -> tuple[Json, list[list[Json]]]:
    """A table and commits that fit it, one after the other."""
    base = table(draw(st.sampled_from([2, 3])))
    meta = base
    made: list[list[Json]] = []
    for step in range(draw(st.integers(1, 8))):
        updates = one_commit(draw, meta, step)
        meta = apply_updates(meta, updates, now_ms=NOW + step)
        made.append(updates)
    return base, made


def one_commit(draw: st.DrawFn, meta: Json, step: int) -> list[Json]:
    snapshots = [row["snapshot-id"] for row in meta["snapshots"]]
    current = meta["current-schema-id"]
    source = next(row for row in meta["schemas"] if row["schema-id"] == current)["fields"][0]["id"]
    choices: list[Any] = [
        lambda: insert(100 + step, meta, rows=draw(st.integers(0, 5)), **skewed(draw)),
        lambda: insert(200 + step, meta)[:1],
        lambda: add_column(meta, meta["last-column-id"] + draw(st.integers(1, 2000)), f"n{step}"),
        lambda: [
            {
                "action": "set-current-schema",
                "schema-id": draw(st.sampled_from([s["schema-id"] for s in meta["schemas"]])),
            }
        ],
        lambda: [
            {
                "action": "add-spec",
                "spec": {"fields": [{"name": f"p{step}", "transform": "bucket[2]", "source-id": source}]},
            },
            {"action": "set-default-spec", "spec-id": -1},
        ],
        lambda: [{"action": "set-properties", "updates": {draw(st.sampled_from("ab")): str(step)}}],
        lambda: [{"action": "remove-properties", "removals": [draw(st.sampled_from("ab"))]}],
        lambda: [{"action": "upgrade-format-version", "format-version": 3}],
    ]
    if snapshots:
        one = draw(st.sampled_from(snapshots))
        choices += [
            lambda: [{"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": one}],
            lambda: [{"action": "set-snapshot-ref", "ref-name": "t", "type": "tag", "snapshot-id": one}],
            lambda: [{"action": "remove-snapshots", "snapshot-ids": [one]}],
            lambda: [{"action": "remove-snapshot-ref", "ref-name": draw(st.sampled_from(["main", "t"]))}],
        ]
    result: list[Json] = draw(st.sampled_from(choices))()
    return result


def skewed(draw: st.DrawFn) -> Json:
    return {"timestamp-ms": NOW + draw(st.sampled_from([-(10**7), 0, 10**7]))}


@modest
@given(commits())
def test_every_accepted_sequence_leaves_a_good_table_and_its_past_alone(case: tuple[Json, list[list[Json]]]) -> None:
    meta, steps = case
    for number, updates in enumerate(steps):
        before, posted = copy.deepcopy(meta), copy.deepcopy(updates)
        new = with_metadata_log(apply_updates(meta, updates, now_ms=NOW + number), f"m{number}", meta)
        assert (meta, updates) == (before, posted)
        check_metadata(new)
        assert counters(new) == counters({**new, "last-column-id": 0, "last-partition-id": 999}) | {
            key: new[key] for key in ("last-column-id", "last-partition-id")
        }
        assert all(new[key] >= meta[key] for key in ("last-column-id", "last-partition-id", "last-sequence-number"))
        assert new.get("next-row-id", 0) >= meta.get("next-row-id", 0)
        assert all(number > meta["last-column-id"] for number in new_field_ids(meta, new))
        if new["snapshot-log"] and current_snapshot_id(new) is not None:
            assert new["snapshot-log"][-1]["snapshot-id"] == current_snapshot_id(new)
        meta = new


@modest
@given(commits())
def test_pyiceberg_reads_every_table(case: tuple[Json, list[list[Json]]]) -> None:
    meta, steps = case
    for number, updates in enumerate(steps):
        meta = apply_updates(meta, updates, now_ms=NOW + number)
    theirs = TableMetadataUtil.parse_obj(copy.deepcopy(meta))
    assert theirs.current_snapshot_id == current_snapshot_id(meta)
    assert theirs.schema().schema_id == meta["current-schema-id"]
    assert len(theirs.snapshots) == len(meta["snapshots"])


@modest
@given(commits(), st.integers(0, 8))
def test_one_commit_of_all_updates_equals_many(case: tuple[Json, list[list[Json]]], cut: int) -> None:
    """But for the logs, where what was current only inside a commit leaves no trace."""
    base, steps = case
    first = [update for updates in steps[:cut] for update in updates]
    second = [update for updates in steps[cut:] for update in updates]
    whole = apply_updates(base, first + second, now_ms=NOW)
    halves = apply_updates(apply_updates(base, first, now_ms=NOW), second, now_ms=NOW)
    logs = {"snapshot-log", "last-updated-ms"}
    assert {k: v for k, v in whole.items() if k not in logs} == {k: v for k, v in halves.items() if k not in logs}
    check_metadata(whole)


# --- garbage ---------------------------------------------------------------------------------------------------------


def deep(kind: str) -> Any:
    value: Any = "int"
    for _ in range(3 * MAX_DEPTH):
        value = [value] if kind == "list" else {"type": "struct", "fields": [{"name": "a", "id": 1, "type": value}]}
    return value


NASTY: dict[str, Any] = {
    "surrogate": lambda: "\ud800",
    "main": lambda: "main",
    "struct": lambda: "struct",
    "long": lambda: "long",
    "wide decimal": lambda: "decimal(99999999999,2)",
    "no buckets": lambda: "bucket[0]",
    "long text": lambda: "x" * 2000,
    "huge": lambda: 10**5000,
    "int64 min": lambda: -(2**63),
    "above int64": lambda: 2**63,
    "above int32": lambda: 2**31,
    "nan": lambda: math.nan,
    "-1": lambda: -1,
    "uuid": lambda: UUID,
    "deep list": lambda: deep("list"),
    "deep struct": lambda: deep("struct"),
}
# fresh ones each time: what is drawn gets changed further
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 30)
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(sorted(NASTY)).map(lambda name: NASTY[name]()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


REACH = 30
"""How deep payloads are spoilt: below, a bottomless value would exhaust the stack of the test itself."""


def places(value: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found.append((value, key))
        if depth < REACH:
            found += places(inner, depth + 1)
    return found


def copied(value: Any, depth: int = 0) -> Any:
    if depth > 2 * REACH:
        return value
    if isinstance(value, dict):
        return {key: copied(inner, depth + 1) for key, inner in value.items()}
    return [copied(inner, depth + 1) for inner in value] if isinstance(value, list) else value


GOOD: dict[str, Any] = {
    "spark create": spark_create("3"),
    "pyiceberg create": pyiceberg_create(),
    "ctas": spark_ctas(table(3)),
    "requirements": [*HOLD, *(item for item, *_ in FAIL)],
}


@st.composite
def spoilt(draw: st.DrawFn, name: str) -> Any:
    """A valid payload with one to three things replaced, removed, doubled or swapped."""
    value = copied(GOOD[name])
    for _ in range(draw(st.integers(1, 3))):
        spots = places(value)
        if not spots:
            return draw(JSON)
        container, key = spots[draw(st.integers(0, len(spots) - 1))]
        match draw(st.integers(0, 4)):
            case 0 | 1:
                container[key] = draw(JSON)
            case 2:
                del container[key]
            case 3 if isinstance(container, list):
                container.insert(0, copied(container[key]))
            case _:
                other, name = spots[draw(st.integers(0, len(spots) - 1))]
                container[key] = copied(other[name])
    return value


def stored(meta: Json) -> None:
    """An accepted result can be written, read back, and is good."""
    check_metadata(meta)
    assert msgspec.json.decode(msgspec.json.encode(meta)) == meta


@hard
@given(spoilt("spark create") | spoilt("pyiceberg create") | JSON)
def test_any_create_request_is_answered(request: Any) -> None:
    try:
        meta = new_table(request, table_uuid=UUID, location=LOCATION, now_ms=NOW)
    except (BadRequest, NotSupported):
        return
    stored(meta)


BASES = {version: with_snapshots(2, version) for version in (2, 3)}
STATISTICS = {
    "snapshot-id": 1,
    "statistics-path": "s",
    "file-size-in-bytes": 3,
    "file-footer-size-in-bytes": 2,
    "blob-metadata": [{"type": "t", "snapshot-id": 1, "sequence-number": 1, "fields": [1]}],
}
ORDER = {"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}


def everything(meta: Json) -> list[Json]:
    """A commit with every update that a table takes."""
    return [
        {"action": "assign-uuid", "uuid": UUID},
        {"action": "upgrade-format-version", "format-version": 3},
        *add_column({**meta, "format-version": 3}, 11, "note", **{"initial-default": "x", "doc": "d"}),
        {"action": "add-spec", "spec": {"fields": [{"name": "p", "transform": "bucket[2]", "source-id": 1}]}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "remove-partition-specs", "spec-ids": [0]},
        {"action": "add-sort-order", "sort-order": {"order-id": 1, "fields": [ORDER]}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": LOCATION},
        {"action": "set-properties", "updates": {"a": "b"}},
        {"action": "remove-properties", "removals": ["a"]},
        *insert(9, {**meta, "format-version": 3, "next-row-id": meta.get("next-row-id", 0)}),
        {"action": "set-statistics", "snapshot-id": 1, "statistics": STATISTICS},
        {"action": "set-partition-statistics", "partition-statistics": STATISTICS},
        {"action": "remove-statistics", "snapshot-id": 1},
        {"action": "remove-partition-statistics", "snapshot-id": 1},
        {"action": "set-snapshot-ref", "ref-name": "t", "type": "tag", "snapshot-id": 2, "max-ref-age-ms": 1},
        {"action": "remove-snapshot-ref", "ref-name": "t"},
        {"action": "remove-snapshots", "snapshot-ids": [1]},
        {"action": "remove-schemas", "schema-ids": [7]},
    ]


GOOD["commit"] = everything(BASES[3])
GOOD["metadata"] = with_metadata_log(apply_updates(BASES[3], GOOD["commit"][:16], now_ms=NOW), "m", BASES[3])


def test_what_gets_spoilt_is_good() -> None:
    for base in BASES.values():
        stored(apply_updates(base, GOOD["commit"], now_ms=NOW))
    stored(GOOD["metadata"])
    stored(apply_updates(None, GOOD["ctas"], now_ms=NOW))


@hard
@given(st.sampled_from([2, 3]), spoilt("commit") | JSON)
def test_any_commit_is_answered(version: int, updates: Any) -> None:
    base = BASES[version]
    before = copy.deepcopy(base)
    try:
        meta = apply_updates(base, updates, now_ms=NOW)
    except (BadRequest, NotSupported, CommitConflict):
        assert base == before
        return
    assert base == before
    stored(meta)


@hard
@given(spoilt("ctas"))
def test_any_creating_commit_is_answered(updates: Any) -> None:
    try:
        meta = apply_updates(None, updates, now_ms=NOW)
    except (BadRequest, NotSupported, CommitConflict):
        return
    stored(meta)


@hard
@given(st.sampled_from([None, 2, 3]), spoilt("requirements") | JSON)
def test_any_requirements_are_answered(version: int | None, requirements: Any) -> None:
    served = None if version is None else BASES[version]
    try:
        failed = failed_requirements(served, requirements)
    except BadRequest:
        return
    assert len(failed) <= len(requirements)


@hard
@given(spoilt("metadata") | JSON)
def test_any_metadata_is_judged_and_what_passes_can_be_worked_on(meta: Any) -> None:
    try:
        check_metadata(meta)
    except (BadRequest, NotSupported):
        return
    assert set(counters(meta)) == {"last-column-id", "last-partition-id", "next-row-id", "last-sequence-number"}
    failed_requirements(meta, HOLD)
    try:
        new = apply_updates(meta, everything(meta), now_ms=NOW)
    except (BadRequest, CommitConflict):
        return
    check_metadata(new)
