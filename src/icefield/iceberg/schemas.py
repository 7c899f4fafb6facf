"""Schemas: reading untrusted ones into canonical form, walking them, and giving fields fresh ids.

Canonical: only the keys of the specification, types in one spelling, no nulls. Two canonical schemas that mean the same
are equal values apart from ``schema-id``. Everything here but the ``read_`` functions takes canonical or checked
schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from icefield.iceberg.defaults import read_default
from icefield.iceberg.shapes import (
    INT32_MAX,
    Json,
    as_bool,
    as_int,
    as_object,
    as_text,
    bad,
    describe,
    join,
    maybe_int,
    maybe_list,
    maybe_text,
    need,
    need_int,
    need_list,
    need_text,
)
from icefield.iceberg.types import Primitive, parse_primitive, read_primitive

MAX_FIELD_ID: Final = 2147483447
"""Ids above are Iceberg's own metadata columns."""
MAX_DEPTH: Final = 100
DEFAULTS_VERSION: Final = 3


@dataclass(frozen=True, slots=True)
class Field:
    """A field, list element, map key or map value, at any depth."""

    id: int
    name: str
    """Full name: ``address.street``, ``tags.element``, ``prices.value``."""
    type: Any
    required: bool
    parents: tuple[Field, ...]
    """From the top level down."""

    @property
    def primitive(self) -> Primitive | None:
        return parse_primitive(self.type) if isinstance(self.type, str) else None

    @property
    def is_struct(self) -> bool:
        return isinstance(self.type, dict) and self.type["type"] == "struct"


# --- reading ---------------------------------------------------------------------------------------------------------


def read_schema(value: Any, path: str, *, version: int, max_id: int = MAX_FIELD_ID) -> Json:
    """A canonical schema, ``schema-id`` included where it was given. ``version``: the table's format version."""
    obj = as_object(value, path)
    kind = obj.get("type", "struct")
    if kind != "struct":
        raise bad(join(path, "type"), f"must be 'struct', not {describe(kind)}")
    reader = _Reader(version, max_id)
    schema: Json = {"type": "struct"}
    schema_id = maybe_int(obj, "schema-id", path)
    if schema_id is not None:
        schema["schema-id"] = schema_id
    fields = reader.fields(obj, path, "", 1)
    identifiers = [
        as_int(item, f"{path}.identifier-field-ids[{i}]")
        for i, item in enumerate(maybe_list(obj, "identifier-field-ids", path))
    ]
    if identifiers:
        schema["identifier-field-ids"] = sorted(set(identifiers))
    schema["fields"] = fields
    _check_identifiers(schema, path)
    return schema


class _Reader:
    """One reading of one schema: remembers ids and names to find duplicates."""

    def __init__(self, version: int, max_id: int) -> None:
        self.version = version
        self.max_id = max_id
        self.ids: dict[int, str] = {}
        self.names: set[str] = set()

    def fields(self, obj: Json, path: str, prefix: str, depth: int) -> list[Json]:
        if depth > MAX_DEPTH:
            raise bad(path, f"is nested deeper than {MAX_DEPTH} levels")
        return [
            self.field(item, f"{path}.fields[{i}]", prefix, depth)
            for i, item in enumerate(need_list(obj, "fields", path))
        ]

    def field(self, value: Any, path: str, prefix: str, depth: int) -> Json:
        obj = as_object(value, path)
        name = need_text(obj, "name", path)
        full = f"{prefix}{name}"
        field: Json = {"id": self.id(obj, "id", path, full), "name": name}
        field["required"] = as_bool(need(obj, "required", path), join(path, "required"))
        field["type"] = self.type(need(obj, "type", path), join(path, "type"), full, depth)
        doc = maybe_text(obj, "doc", path, empty=True)
        if doc is not None:
            field["doc"] = doc
        if field["type"] == "unknown" and field["required"]:
            raise bad(join(path, "required"), "must be false for a column of type unknown")
        for key in ("initial-default", "write-default"):
            default = obj.get(key)
            if default is not None:
                field[key] = self.default(default, field["type"], join(path, key))
        return field

    def default(self, value: Any, kind: Any, path: str) -> Any:
        if self.version < DEFAULTS_VERSION:
            raise bad(path, f"needs table format version {DEFAULTS_VERSION}; the table has {self.version}")
        if not isinstance(kind, str):
            raise bad(path, f"must be null: a {kind['type']} column can't have a default")
        return read_default(value, parse_primitive(kind), path)

    def id(self, obj: Json, key: str, path: str, full: str) -> int:
        number = need_int(obj, key, path, high=self.max_id)
        if number in self.ids:
            raise bad(join(path, key), f"{number} is used twice, for {self.ids[number]!a} and {full!a}")
        if full in self.names:
            raise bad(path, f"is a second field with the full name {full!a}")
        self.ids[number] = full
        self.names.add(full)
        return number

    def type(self, value: Any, path: str, full: str, depth: int) -> Any:
        if isinstance(value, str):
            return self.primitive(as_text(value, path), path)
        if not isinstance(value, dict):
            raise bad(path, f"must be a type name or an object, not {describe(value)}")
        kind = value.get("type")
        if depth >= MAX_DEPTH:
            raise bad(path, f"is nested deeper than {MAX_DEPTH} levels")
        match kind:
            case "struct":
                return {"type": "struct", "fields": self.fields(value, path, f"{full}.", depth + 1)}
            case "list":
                return self.list(value, path, full, depth)
            case "map":
                return self.map(value, path, full, depth)
            case _:
                raise bad(join(path, "type"), f"must be struct, list or map, not {describe(kind)}")

    def primitive(self, text: str, path: str) -> str:
        primitive = read_primitive(text, path)
        if primitive.min_version > self.version:
            raise bad(
                path,
                f"{primitive.text} needs table format version {primitive.min_version}; the table has {self.version}",
            )
        return primitive.text

    def list(self, obj: Json, path: str, full: str, depth: int) -> Json:
        element = f"{full}.element"
        element_id = self.id(obj, "element-id", path, element)
        required = as_bool(need(obj, "element-required", path), join(path, "element-required"))
        return {
            "type": "list",
            "element-id": element_id,
            "element": self.type(need(obj, "element", path), join(path, "element"), element, depth + 1),
            "element-required": required,
        }

    def map(self, obj: Json, path: str, full: str, depth: int) -> Json:
        key, value = f"{full}.key", f"{full}.value"
        key_id = self.id(obj, "key-id", path, key)
        value_id = self.id(obj, "value-id", path, value)
        required = as_bool(need(obj, "value-required", path), join(path, "value-required"))
        return {
            "type": "map",
            "key-id": key_id,
            "key": self.type(need(obj, "key", path), join(path, "key"), key, depth + 1),
            "value-id": value_id,
            "value": self.type(need(obj, "value", path), join(path, "value"), value, depth + 1),
            "value-required": required,
        }


def _check_identifiers(schema: Json, path: str) -> None:
    identifiers = schema.get("identifier-field-ids")
    if not identifiers:
        return
    fields = fields_by_id(schema)
    at = join(path, "identifier-field-ids")
    for number in identifiers:
        field = fields.get(number)
        if field is None:
            raise bad(at, f"names field {number}, which the schema does not have")
        primitive = field.primitive
        if primitive is None or primitive.kind in {"float", "double", "variant", "geometry", "geography"}:
            raise bad(at, f"names {field.name!a}, whose type can't identify a row")
        if not field.required:
            raise bad(at, f"names {field.name!a}, which is optional; identifier fields must be required")
        for parent in field.parents:
            if not parent.is_struct or not parent.required:
                raise bad(at, f"names {field.name!a}, which is nested in {parent.name!a}, not a required struct")


# --- walking ---------------------------------------------------------------------------------------------------------


def walk(schema: Json) -> Iterator[Field]:
    """Every field at every depth, parents before children."""
    yield from _walk_struct(schema, "", ())


def _walk_struct(struct: Json, prefix: str, parents: tuple[Field, ...]) -> Iterator[Field]:
    for item in struct["fields"]:
        field = Field(item["id"], f"{prefix}{item['name']}", item["type"], item["required"], parents)
        yield field
        yield from _walk_type(field)


def _walk_type(field: Field) -> Iterator[Field]:
    kind = field.type
    if isinstance(kind, str):
        return
    parents = (*field.parents, field)
    match kind["type"]:
        case "struct":
            yield from _walk_struct(kind, f"{field.name}.", parents)
        case "list":
            element = Field(
                kind["element-id"], f"{field.name}.element", kind["element"], kind["element-required"], parents
            )
            yield element
            yield from _walk_type(element)
        case "map":
            key = Field(kind["key-id"], f"{field.name}.key", kind["key"], True, parents)
            value = Field(kind["value-id"], f"{field.name}.value", kind["value"], kind["value-required"], parents)
            yield key
            yield from _walk_type(key)
            yield value
            yield from _walk_type(value)


def fields_by_id(schema: Json) -> dict[int, Field]:
    return {field.id: field for field in walk(schema)}


def fields_by_name(schema: Json) -> dict[str, Field]:
    return {field.name: field for field in walk(schema)}


def field_ids(schema: Json) -> set[int]:
    return {field.id for field in walk(schema)}


def highest_field_id(schema: Json) -> int:
    """0 for a schema without columns."""
    return max((field.id for field in walk(schema)), default=0)


# --- comparing -------------------------------------------------------------------------------------------------------


def same_schema(one: Json, other: Json) -> bool:
    """Whether two canonical schemas are the same but for their ``schema-id``."""
    return bool(
        one["fields"] == other["fields"]
        and one.get("identifier-field-ids", []) == other.get("identifier-field-ids", [])
    )


def canonical(schema: Json) -> Json:
    """The canonical form of a checked schema that another writer may have spelt differently."""
    return read_schema(schema, "schema", version=DEFAULTS_VERSION, max_id=INT32_MAX)


# --- fresh ids -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Renumbered:
    schema: Json
    last_id: int
    new_ids: dict[int, int]
    """From the ids of the schema that came in to the fresh ones."""


def assign_fresh_ids(schema: Json, *, schema_id: int = 0) -> Renumbered:
    """A new table's ids: from 1, all fields of a struct before the fields nested in them, as Java numbers them."""
    new_ids: dict[int, int] = {}

    def fresh(old: int) -> int:
        new_ids[old] = len(new_ids) + 1
        return new_ids[old]

    fields = _renumber_struct(schema["fields"], fresh)
    result: Json = {"type": "struct", "schema-id": schema_id}
    if identifiers := schema.get("identifier-field-ids"):
        result["identifier-field-ids"] = sorted(new_ids[number] for number in identifiers)
    result["fields"] = fields
    return Renumbered(result, len(new_ids), new_ids)


def _renumber_struct(fields: list[Json], fresh: Callable[[int], int]) -> list[Json]:
    numbered = [{**field, "id": fresh(field["id"])} for field in fields]
    for field in numbered:
        field["type"] = _renumber_type(field["type"], fresh)
    return numbered


def _renumber_type(kind: Any, fresh: Callable[[int], int]) -> Any:
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "struct":
            return {**kind, "fields": _renumber_struct(kind["fields"], fresh)}
        case "list":
            element_id = fresh(kind["element-id"])
            return {**kind, "element-id": element_id, "element": _renumber_type(kind["element"], fresh)}
        case _:
            key_id, value_id = fresh(kind["key-id"]), fresh(kind["value-id"])
            return {
                **kind,
                "key-id": key_id,
                "key": _renumber_type(kind["key"], fresh),
                "value-id": value_id,
                "value": _renumber_type(kind["value"], fresh),
            }
