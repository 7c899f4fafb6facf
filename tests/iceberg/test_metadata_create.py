"""New tables: ids as Java assigns them, properties, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from metadata_payloads import (
    LOCATION,
    NOW,
    UUID,
    Json,
    duckdb_create,
    pyiceberg_create,
    spark_create,
)
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.metadata import TableMetadataUtil

from icefield.iceberg.metadata import check_metadata, new_table, validate_create
from icefield.model.errors import BadRequest, IcefieldError, NotSupported


def create(request: Json) -> Json:
    meta = new_table(request, table_uuid=UUID, location=LOCATION, now_ms=NOW)
    check_metadata(meta)
    return meta


def field(number: int, name: str, kind: Any = "long", **more: Any) -> Json:
    return {"id": number, "name": name, "required": False, "type": kind, **more}


def request(*fields: Json, version: str = "2", **more: Any) -> Json:
    return {
        "name": "t",
        "schema": {"type": "struct", "fields": list(fields)},
        "properties": {"format-version": version},
        **more,
    }


def test_ids_are_fresh_top_level_first_and_spec_follows_its_column() -> None:
    meta = create(spark_create())
    columns = meta["schemas"][0]["fields"]
    assert [(column["id"], column["name"]) for column in columns] == [
        (1, "id"),
        (2, "ts"),
        (3, "address"),
        (4, "tags"),
        (5, "prices"),
    ]
    assert [inner["id"] for inner in columns[2]["type"]["fields"]] == [6, 7]
    assert columns[3]["type"]["element-id"] == 8
    assert (columns[4]["type"]["key-id"], columns[4]["type"]["value-id"]) == (9, 10)
    assert columns[4]["type"]["value"] == "decimal(10, 2)"
    assert meta["last-column-id"] == 10
    assert meta["partition-specs"] == [
        {"spec-id": 0, "fields": [{"name": "ts_day", "transform": "day", "source-id": 2, "field-id": 1000}]}
    ]
    assert meta["last-partition-id"] == 1000
    assert (meta["default-sort-order-id"], meta["sort-orders"]) == (0, [{"order-id": 0, "fields": []}])


def test_struct_fields_come_before_what_is_nested_in_them() -> None:
    deep = {
        "type": "struct",
        "fields": [field(50, "a", {"type": "struct", "fields": [field(51, "x")]}), field(52, "b")],
    }
    meta = create(request(field(7, "s", deep), field(3, "t")))
    s, t = meta["schemas"][0]["fields"]
    a, b = s["type"]["fields"]
    assert [s["id"], t["id"], a["id"], b["id"], a["type"]["fields"][0]["id"]] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("body", [spark_create(), pyiceberg_create(), duckdb_create()])
def test_pyiceberg_assigns_the_same_ids_and_reads_the_table(body: Json) -> None:
    meta = create(body)
    theirs = assign_fresh_schema_ids(Schema.model_validate(body["schema"]))
    ours = TableMetadataUtil.parse_obj(meta)
    assert ours.schema().as_struct() == theirs.as_struct()
    assert ours.schema().identifier_field_ids == theirs.identifier_field_ids
    assert ours.last_column_id == theirs.highest_field_id


def test_sort_order_gets_id_1_and_identifiers_are_remapped() -> None:
    body = pyiceberg_create()
    body["schema"]["fields"][0]["id"] = 40
    body["schema"]["fields"][1]["id"] = 30
    body["schema"]["identifier-field-ids"] = [40]
    body["write-order"]["fields"][0]["source-id"] = 30
    body["write-order"]["order-id"] = 9
    meta = create(body)
    assert meta["schemas"][0]["identifier-field-ids"] == [1]
    assert meta["default-sort-order-id"] == 1
    assert meta["sort-orders"] == [
        {
            "order-id": 1,
            "fields": [{"transform": "identity", "source-id": 2, "direction": "asc", "null-order": "nulls-first"}],
        }
    ]


def test_reserved_properties_are_orders_and_not_kept() -> None:
    body = request(field(0, "id"), version="3")
    body["properties"] |= {"owner": "ann", "uuid": "x", "current-schema": "{}", "snapshot-count": "9"}
    meta = create(body)
    assert meta["format-version"] == 3
    assert meta["next-row-id"] == 0
    assert meta["properties"] == {"owner": "ann", "write.parquet.compression-codec": "zstd"}


def test_a_users_codec_wins_over_the_default() -> None:
    body = request(field(0, "id"))
    body["properties"]["write.parquet.compression-codec"] = "snappy"
    assert create(body)["properties"]["write.parquet.compression-codec"] == "snappy"


def test_version_2_is_the_default_and_no_snapshot_is_spelt_as_java_spells_it() -> None:
    body = request(field(0, "id"))
    del body["properties"]
    assert create(body)["format-version"] == 2
    assert create(body)["current-snapshot-id"] == -1
    assert create(request(field(0, "id"), version="3"))["current-snapshot-id"] is None


@pytest.mark.parametrize("version", ["1", "4", "2147483647"])
def test_other_versions_are_not_supported(version: str) -> None:
    with pytest.raises(NotSupported, match=f"version {version}"):
        validate_create(request(field(0, "id"), version=version))


def test_format_3_types_and_defaults() -> None:
    body = request(
        field(1, "v", "variant"),
        field(2, "t", "timestamptz_ns", **{"initial-default": "2020-01-01T00:00:00.000000001+00:00"}),
        field(3, "u", "unknown"),
        field(4, "g", "geography(EPSG:4326, Karney)"),
        field(5, "p", "geometry(ogc:crs84)"),
        field(6, "n", "float", **{"write-default": 1, "initial-default": 2.5}),
        field(7, "d", "decimal(5,2)", **{"write-default": "123.45"}),
        field(8, "x", "fixed[2]", **{"write-default": "00ff"}),
        version="3",
    )
    columns = create(body)["schemas"][0]["fields"]
    assert [column["type"] for column in columns] == [
        "variant",
        "timestamptz_ns",
        "unknown",
        "geography(EPSG:4326, karney)",
        "geometry",
        "float",
        "decimal(5, 2)",
        "fixed[2]",
    ]
    assert repr(columns[5]["write-default"]) == "1.0"


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("int", 2**31),
        ("int", True),
        ("long", "1"),
        ("boolean", 1),
        ("float", 1e39),
        ("double", 10**400),
        ("string", 5),
        ("uuid", "f79c3e09-677c-4bbd-a479-3f349cb785e"),
        ("date", "2020-02-30"),
        ("time", "24:00:00"),
        ("timestamp", "2020-01-01 00:00:00"),
        ("timestamp", "2020-01-01T00:00:00+00:00"),
        ("timestamptz", "2020-01-01T00:00:00+01:00"),
        ("decimal(5,2)", "1.5"),
        ("decimal(5,2)", "1234.56"),
        ("decimal(5,2)", 1.25),
        ("fixed[2]", "00"),
        ("binary", "xyz"),
        ("variant", 1),
        ("geometry", "POINT (1 1)"),
        ({"type": "struct", "fields": []}, {}),
    ],
)
def test_a_default_must_be_of_the_columns_type(kind: Any, default: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        validate_create(request(field(1, "c", kind, **{"initial-default": default}), version="3"))
    assert caught.value.field == "schema.fields[0].initial-default"


MISTAKES: list[tuple[str, str, Json]] = [
    ("schema.fields[0].type", "names no Iceberg type", request(field(1, "a", "varchar(3)"))),
    ("schema.fields[0].type", "precision", request(field(1, "a", "decimal(39,0)"))),
    ("schema.fields[0].type", "scale", request(field(1, "a", "decimal(3,4)"))),
    ("schema.fields[0].type", "length", request(field(1, "a", "fixed[0]"))),
    ("schema.fields[0].type", "version 3", request(field(1, "a", "variant"))),
    ("schema.fields[0].write-default", "version 3", request(field(1, "a", "int", **{"write-default": 1}))),
    ("schema.fields[0].type", "edge algorithm", request(field(1, "a", "geography(EPSG:1, flat)"), version="3")),
    ("schema.fields[1].id", "used twice", request(field(1, "a"), field(1, "b"))),
    ("schema.fields[1]", "second field", request(field(1, "a"), field(2, "a"))),
    (
        "schema.fields[1]",
        "second field",
        request(field(1, "a", {"type": "struct", "fields": [field(3, "b")]}), field(2, "a.b")),
    ),
    ("schema.fields[0].name", "empty", request(field(1, ""))),
    ("schema.fields[0].name", "surrogate", request(field(1, "\ud800"))),
    ("schema.fields[0].required", "true or false", request(field(1, "a") | {"required": "no"})),
    ("schema.fields[0].id", "integer", request(field(1, "a") | {"id": 1.0})),
    ("schema.fields[0].type.element-id", "missing", request(field(1, "a", {"type": "list", "element": "int"}))),
    ("schema.fields[0].type.type", "struct, list or map", request(field(1, "a", {"type": "set"}))),
    ("schema", "missing", {"name": "t"}),
    ("name", "missing", {"schema": {"fields": []}}),
    ("name", "U+001F", {"name": "a\x1fb", "schema": {"fields": []}}),
    ("stage-create", "true or false", request(field(1, "a"), **{"stage-create": "yes"})),
    ("properties['k']", "string", request(field(1, "a"), properties={"k": 1})),
    ("properties['format-version']", "format version", request(field(1, "a"), version="two")),
    (
        "properties['commit.retry.num-retries']",
        "non-negative",
        request(field(1, "a"), properties={"commit.retry.num-retries": "-1"}),
    ),
    (
        "partition-spec.fields[0].source-id",
        "does not have",
        request(
            field(1, "a"), **{"partition-spec": {"fields": [{"name": "p", "transform": "identity", "source-id": 9}]}}
        ),
    ),
    (
        "partition-spec.fields[0].transform",
        "can't apply hour",
        request(
            field(1, "a", "date"),
            **{"partition-spec": {"fields": [{"name": "p", "transform": "hour", "source-id": 1}]}},
        ),
    ),
    (
        "partition-spec.fields[0].transform",
        "names no transform",
        request(
            field(1, "a"), **{"partition-spec": {"fields": [{"name": "p", "transform": "bucket[x]", "source-id": 1}]}}
        ),
    ),
    (
        "partition-spec.fields[0].name",
        "also the name of a column",
        request(
            field(1, "a"),
            field(2, "b"),
            **{"partition-spec": {"fields": [{"name": "b", "transform": "bucket[4]", "source-id": 1}]}},
        ),
    ),
    (
        "partition-spec.fields[0].source-id",
        "inside 'l'",
        request(
            field(1, "l", {"type": "list", "element-id": 2, "element": "int", "element-required": True}),
            **{"partition-spec": {"fields": [{"name": "p", "transform": "identity", "source-id": 2}]}},
        ),
    ),
    (
        "write-order.fields[0].direction",
        "asc or desc",
        request(
            field(1, "a"),
            **{
                "write-order": {
                    "order-id": 1,
                    "fields": [
                        {"source-id": 1, "transform": "identity", "direction": "up", "null-order": "nulls-first"}
                    ],
                }
            },
        ),
    ),
]


@pytest.mark.parametrize(("path", "words", "body"), MISTAKES)
def test_a_mistake_is_named_with_its_path(path: str, words: str, body: Json) -> None:
    with pytest.raises(BadRequest) as caught:
        validate_create(body)
    assert caught.value.field == path
    assert words in caught.value.message
    assert path in caught.value.message


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (field(1, "a"), "optional"),
        (field(1, "a", "double", required=True), "type"),
        (field(1, "a", {"type": "struct", "fields": []}, required=True), "type"),
        (field(2, "a"), "does not have"),
    ],
)
def test_identifier_fields_must_be_able_to_identify(column: Json, words: str) -> None:
    body = request(column)
    body["schema"]["identifier-field-ids"] = [1]
    with pytest.raises(BadRequest, match=words) as caught:
        validate_create(body)
    assert caught.value.field == "schema.identifier-field-ids"


def test_an_identifier_may_be_nested_in_required_structs_only() -> None:
    inner = {"type": "struct", "fields": [field(2, "b", required=True)]}
    body = request(field(1, "a", inner, required=True))
    body["schema"]["identifier-field-ids"] = [2]
    assert create(body)["schemas"][0]["identifier-field-ids"] == [2]
    body["schema"]["fields"][0]["required"] = False
    with pytest.raises(BadRequest, match="nested in 'a'"):
        validate_create(body)


@pytest.mark.parametrize("kind", ["struct", "list", "map"])
def test_bottomless_nesting_is_refused_not_followed(kind: str) -> None:
    deep: Any = "int"
    for number in range(5000):
        match kind:
            case "struct":
                deep = {"type": "struct", "fields": [field(number, "x", deep)]}
            case "list":
                deep = {"type": "list", "element-id": number, "element": deep, "element-required": False}
            case _:
                deep = {
                    "type": "map",
                    "key-id": 2 * number,
                    "key": "int",
                    "value-id": 2 * number + 1,
                    "value": deep,
                    "value-required": False,
                }
    with pytest.raises(BadRequest, match="nested deeper"):
        validate_create(request(field(999_999, "top", deep)))


@pytest.mark.parametrize("value", [None, True, 3, 1.5, "x", [], [1], {}, {"name": []}])
def test_any_json_is_answered(value: Any) -> None:
    with pytest.raises(IcefieldError):
        validate_create(value)


def test_the_request_is_left_alone() -> None:
    body = spark_create()
    before = copy.deepcopy(body)
    create(body)
    assert body == before


def test_location_loses_its_trailing_slash() -> None:
    for given, kept in (("s3://b/t//", "s3://b/t"), ("file:///", "file://"), ("/lake/t", "/lake/t")):
        meta = new_table(duckdb_create(), table_uuid=UUID, location=given, now_ms=NOW)
        assert meta["location"] == kept
