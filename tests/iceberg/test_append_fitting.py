"""Whether files written for one schema or spec still fit another, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest

from icefield.iceberg.fitting import schema_misfit, spec_misfit, types_misfit

Json = dict[str, Any]


def field(field_id: int, kind: Any, *, required: bool = False, **more: Any) -> Json:
    return {"id": field_id, "name": f"f{field_id}", "required": required, "type": kind} | more


def struct(*fields: Json) -> Json:
    return {"type": "struct", "fields": list(fields)}


def a_list(element_id: int, kind: Any, *, required: bool = False) -> Json:
    return {"type": "list", "element-id": element_id, "element": kind, "element-required": required}


def a_map(key: Any, value: Any, *, required: bool = False) -> Json:
    return {"type": "map", "key-id": 8, "key": key, "value-id": 9, "value": value, "value-required": required}


@pytest.mark.parametrize(
    ("then", "now", "first_version"),
    [
        ("int", "int", 1),
        ("int", "long", 1),
        ("float", "double", 1),
        ("decimal(4, 2)", "decimal(9, 2)", 1),
        ("decimal(4,2)", "decimal(4, 2)", 1),
        ("date", "timestamp", 3),
        ("date", "timestamp_ns", 3),
        ("unknown", "string", 1),
        ("long", "int", None),
        ("double", "float", None),
        ("decimal(9, 2)", "decimal(4, 2)", None),
        ("decimal(4, 2)", "decimal(4, 3)", None),
        ("date", "timestamptz", None),
        ("string", "binary", None),
        ("int", "decimal(9, 0)", None),
        ("decimal(9, 0)", "int", None),
        ("fixed[3]", "fixed[4]", None),
        ("no-type", "int", None),
        ("int", struct(field(2, "int")), None),
        (struct(field(2, "int")), "int", None),
        (a_list(2, "int"), struct(field(2, "int")), None),
    ],
)
@pytest.mark.parametrize("version", [2, 3])
def test_promotions(then: Any, now: Any, first_version: int | None, version: int) -> None:
    fits = first_version is not None and version >= first_version
    for misfit in (schema_misfit, types_misfit):
        found = misfit(struct(field(1, then)), struct(field(1, now)), format_version=version)
        assert (found is None) == fits
        assert fits or (found is not None and "f1 (id 1) has the type" in found)


def test_required_fields() -> None:
    was = struct(field(1, "int"))
    required = field(2, "int", required=True)
    assert schema_misfit(was, struct(field(1, "int"), required), format_version=3) == (
        "field f2 (id 2) is required now and was not there"
    )
    assert schema_misfit(was, struct(required | {"initial-default": 0}), format_version=3) is None
    assert schema_misfit(was, struct(required | {"initial-default": None}), format_version=3) is not None
    assert schema_misfit(was, struct(field(2, "int")), format_version=3) is None
    assert schema_misfit(was, struct(field(1, "int", required=True)), format_version=3) == (
        "field f1 (id 1) is required now and was optional"
    )
    assert schema_misfit(struct(field(1, "int", required=True)), was, format_version=3) is None


def test_a_required_field_of_a_struct_that_is_new_and_optional_can_be_absent() -> None:
    was = struct(field(1, "int"))
    inner = struct(field(3, "int", required=True))
    assert schema_misfit(was, struct(field(2, inner)), format_version=3) is None
    found = schema_misfit(struct(field(2, struct(field(4, "int")))), struct(field(2, inner)), format_version=3)
    assert found == "field f2.f3 (id 3) is required now and was not there"


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        (a_list(2, "int"), a_list(2, "string"), "f1.element (id 2) has the type string"),
        (a_list(2, "int"), a_list(2, "int", required=True), "f1.element (id 2) is required now and was optional"),
        (a_list(2, "int", required=True), a_list(2, "long"), None),
        (a_map("int", "int"), a_map("string", "int"), "f1.key (id 8)"),
        (a_map("int", "int"), a_map("int", "string"), "f1.value (id 9)"),
        (a_map("int", "int"), a_map("int", "int", required=True), "f1.value (id 9) is required"),
        (a_map("int", "int"), a_map("long", "long"), None),
        (a_list(2, struct(field(3, "int"))), a_list(2, struct(field(3, "string"))), "f1.element.f3 (id 3)"),
    ],
)
def test_inside_lists_and_maps(then: Json, now: Json, said: str | None) -> None:
    found = schema_misfit(struct(field(1, then)), struct(field(1, now)), format_version=3)
    assert found is None if said is None else found is not None and said in found


def test_a_field_in_another_place() -> None:
    was = struct(field(1, struct(field(2, "int"))))
    assert schema_misfit(was, struct(field(1, struct()), field(2, "int")), format_version=3) == (
        "field f2 (id 2) stands in another place now"
    )


def test_types_alone_say_nothing_of_what_is_required() -> None:
    was, now = struct(field(1, "int")), struct(field(1, "int", required=True), field(2, "int", required=True))
    assert types_misfit(was, now, format_version=3) is None


def test_specs() -> None:
    one = {"source-id": 1, "field-id": 1000, "name": "p", "transform": "day"}
    spec = {"spec-id": 4, "fields": [one]}
    assert spec_misfit([one], spec) is None
    assert spec_misfit({"spec-id": 4, "fields": [one | {"name": "renamed"}]}, spec) is None
    assert spec_misfit([{"source-ids": [1], "field-id": 1000, "transform": "day"}], spec) is None
    for change in ({"source-id": 2}, {"field-id": 1001}, {"transform": "hour"}, {"source-ids": [1, 2]}):
        assert spec_misfit([one | change], spec) == "partition spec 4 has other fields now"
    assert spec_misfit([], spec) == "partition spec 4 has other fields now"
    assert spec_misfit("garbage", spec) is None
