"""Do files that were written for one version of a table still fit another? Answers with what is wrong, or None."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from icefield.iceberg.types import Primitive, UnknownType, parse_primitive

_WIDER = {
    ("int", "long"): 1,
    ("float", "double"): 1,
    ("date", "timestamp"): 3,
    ("date", "timestamp_ns"): 3,
}
"""Legal promotions, with the first format version that knows them."""


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    type: str
    required: bool
    has_default: bool
    parent: int | None


def schema_misfit(written: Mapping[str, Any], current: Mapping[str, Any], *, format_version: int) -> str | None:
    """Can files written with one schema be read with the other, without a wrong or missing value?

    Fields are matched by id. What the current schema dropped does not matter; what it added must be able to be absent.
    """
    then, now = _parts(written), _parts(current)
    for field_id, field in now.items():
        before = then.get(field_id)
        if before is None:
            reachable = field.parent is None or field.parent in then
            if field.required and reachable and not field.has_default:
                return f"field {field.name} (id {field_id}) is required now and was not there"
            continue
        if not _same_or_wider(before.type, field.type, format_version):
            return f"field {field.name} (id {field_id}) has the type {field.type} now and had {before.type}"
        if before.parent != field.parent:
            return f"field {field.name} (id {field_id}) stands in another place now"
        if field.required and not before.required:
            return f"field {field.name} (id {field_id}) is required now and was optional"
    return None


def types_misfit(written: Mapping[str, Any], current: Mapping[str, Any], *, format_version: int) -> str | None:
    """Does any field id mean another type in the two schemas?"""
    now = _parts(current)
    for field_id, before in _parts(written).items():
        field = now.get(field_id)
        if field is not None and not _same_or_wider(before.type, field.type, format_version):
            return f"field {field.name} (id {field_id}) has the type {field.type} now and had {before.type}"
    return None


def spec_misfit(written: Any, current: Mapping[str, Any]) -> str | None:
    """Is the partition spec in a manifest's header the one that the table has under this id?"""
    fields = written.get("fields") if isinstance(written, dict) else written
    if not isinstance(fields, list):
        return None
    then = [_partition_field(field) for field in fields if isinstance(field, dict)]
    now = [_partition_field(field) for field in current.get("fields", ())]
    return None if then == now else f"partition spec {current.get('spec-id')} has other fields now"


def _partition_field(field: Mapping[str, Any]) -> tuple[Any, ...]:
    sources = field.get("source-ids") or [field.get("source-id")]
    return str(sources), field.get("field-id"), str(field.get("transform"))


def _parts(schema: Mapping[str, Any]) -> dict[int, _Part]:
    return dict(_struct(schema, "", None))


def _struct(struct: Mapping[str, Any], prefix: str, parent: int | None) -> Iterator[tuple[int, _Part]]:
    for field in struct.get("fields", ()):
        default = field.get("initial-default") is not None
        yield from _part(field["id"], prefix + field["name"], field["type"], field["required"], default, parent)


def _part(
    field_id: int, name: str, kind: Any, required: bool, default: bool, parent: int | None
) -> Iterator[tuple[int, _Part]]:
    if isinstance(kind, str):
        yield field_id, _Part(name, kind, required, default, parent)
        return
    yield field_id, _Part(name, kind["type"], required, default, parent)
    match kind["type"]:
        case "struct":
            yield from _struct(kind, f"{name}.", field_id)
        case "list":
            element_required = kind["element-required"]
            yield from _part(kind["element-id"], f"{name}.element", kind["element"], element_required, False, field_id)
        case "map":
            yield from _part(kind["key-id"], f"{name}.key", kind["key"], True, False, field_id)
            yield from _part(kind["value-id"], f"{name}.value", kind["value"], kind["value-required"], False, field_id)


def _same_or_wider(before: str, now: str, format_version: int) -> bool:
    if before == now:
        return True
    try:
        then, current = parse_primitive(before), parse_primitive(now)
    except UnknownType:
        return False
    return _promotes(then, current, format_version)


def _promotes(then: Primitive, now: Primitive, format_version: int) -> bool:
    if then.text == now.text or then.kind == "unknown":
        return True
    if then.kind == "decimal" == now.kind:
        return now.scale == then.scale and now.size >= then.size
    return format_version >= _WIDER.get((then.kind, now.kind), 1_000)
