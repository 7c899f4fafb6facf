"""Partition specs: reading, binding to a schema, comparing, field ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from icefield.iceberg.schemas import fields_by_id, fields_by_name
from icefield.iceberg.shapes import (
    INT32_MAX,
    Json,
    as_object,
    bad,
    join,
    maybe_int,
    need_int,
    need_list,
    need_text,
)
from icefield.iceberg.transforms import VOID, check_source, read_transform
from icefield.model.errors import CommitConflict

FIRST_FIELD_ID: Final = 1000
NO_FIELD_ID: Final = FIRST_FIELD_ID - 1
"""``last-partition-id`` of a table that was never partitioned."""
UNPARTITIONED: Final[Json] = {"spec-id": 0, "fields": []}


def read_spec(value: Any, path: str, *, known_transforms: bool = True) -> Json:
    """A canonical spec; ``spec-id`` and the fields' ``field-id`` only where they were given."""
    obj = as_object(value, path)
    spec: Json = {}
    spec_id = maybe_int(obj, "spec-id", path)
    if spec_id is not None:
        spec["spec-id"] = spec_id
    fields: list[Json] = []
    names: set[str] = set()
    ids: set[int] = set()
    for i, item in enumerate(need_list(obj, "fields", path)):
        at = f"{path}.fields[{i}]"
        field = _read_field(as_object(item, at), at, known_transforms)
        if field["name"] in names:
            raise bad(join(at, "name"), f"{field['name']!a} is used twice")
        names.add(field["name"])
        if "field-id" in field:
            if field["field-id"] in ids:
                raise bad(join(at, "field-id"), f"{field['field-id']} is used twice")
            ids.add(field["field-id"])
        fields.append(field)
    if ids and len(ids) != len(fields):
        raise bad(f"{path}.fields", "must give a field-id either for every field or for none")
    spec["fields"] = fields
    return spec


def _read_field(obj: Json, path: str, known_transforms: bool) -> Json:
    transform = need_text(obj, "transform", path)
    field: Json = {
        "name": need_text(obj, "name", path),
        "transform": read_transform(transform, join(path, "transform")) if known_transforms else transform,
        "source-id": need_int(obj, "source-id", path),
    }
    field_id = maybe_int(obj, "field-id", path)
    if field_id is not None:
        field["field-id"] = field_id
    return field


def check_spec(spec: Json, schema: Json, path: str) -> None:
    """The spec can be written through this schema."""
    columns = fields_by_id(schema)
    for i, field in enumerate(spec["fields"]):
        at = f"{path}.fields[{i}]"
        source = columns.get(field["source-id"])
        check_source(field["transform"], source, field["source-id"], join(at, "transform"), verb="partition")
        if source is not None and field["transform"].lower() != VOID:
            for parent in source.parents:
                if not parent.is_struct:
                    raise bad(
                        join(at, "source-id"), f"can't partition by {source.name!a}: it is inside {parent.name!a}"
                    )
    check_names(spec, schema, path)


def check_names(spec: Json, schema: Json, path: str) -> None:
    """No partition field is named like a column that is not its source: Java could not load such a table."""
    columns = fields_by_name(schema)
    ids = {column.id for column in columns.values()}
    for i, field in enumerate(spec["fields"]):
        column = columns.get(field["name"])
        if column is not None and column.id != field["source-id"] and field["source-id"] in ids:
            raise bad(
                f"{path}.fields[{i}].name",
                f"{field['name']!a} is also the name of a column that is not the partition field's source",
            )


def same_fields(one: Json, other: Json) -> bool:
    """Java's ``compatibleWith``: same sources, transforms and names in the same order; field ids do not count."""
    return len(one["fields"]) == len(other["fields"]) and all(
        a["source-id"] == b["source-id"] and a["transform"].lower() == b["transform"].lower() and a["name"] == b["name"]
        for a, b in zip(one["fields"], other["fields"], strict=True)
    )


def with_field_ids(spec: Json, existing: Iterable[Json], last_id: int, path: str) -> list[Json]:
    """The spec's fields with ids: the client's, else that of the same source and transform, else above ``last_id``.

    An id never changes its meaning (CommitConflict): manifests of every spec store partition values under it.
    """
    meanings: dict[int, tuple[int, str]] = {}
    ids: dict[tuple[int, str], int] = {}
    for other in existing:
        for position, field in enumerate(other["fields"]):
            field_id = field.get("field-id", FIRST_FIELD_ID + position)
            meaning = (field["source-id"], field["transform"].lower())
            ids[meaning] = max(field_id, ids.get(meaning, 0))
            if meaning[1] != VOID:
                meanings.setdefault(field_id, meaning)
    result: list[Json] = []
    for i, field in enumerate(spec["fields"]):
        meaning = (field["source-id"], field["transform"])
        field_id = field.get("field-id")
        if field_id is None:
            field_id = ids.get(meaning)
        if field_id is None:
            last_id += 1
            field_id = last_id
            if field_id > INT32_MAX:
                raise bad(f"{path}.fields[{i}]", "can't get a field-id: the table has used them up")
        known = meanings.get(field_id, meaning)
        if known != meaning and meaning[1] != VOID:
            raise CommitConflict(
                f"{path}.fields[{i}].field-id: partition field id {field_id} already means {known[1]} of column "
                f"{known[0]}, somebody else took it first; reload the table and try again"
            )
        result.append({**field, "field-id": field_id})
    return result


def fresh_spec(spec: Json, new_ids: Mapping[int, int], path: str) -> Json:
    """A new table's spec: sources renumbered like the columns, field ids from 1000."""
    fields = [
        {
            "name": field["name"],
            "transform": field["transform"],
            "source-id": renumbered_source(field["source-id"], new_ids, f"{path}.fields[{i}].source-id"),
            "field-id": FIRST_FIELD_ID + i,
        }
        for i, field in enumerate(spec["fields"])
    ]
    return {"spec-id": 0, "fields": fields}


def renumbered_source(source_id: int, new_ids: Mapping[int, int], path: str) -> int:
    if source_id not in new_ids:
        raise bad(path, f"names column {source_id}, which the schema does not have")
    return new_ids[source_id]


def partition_field_ids(spec: Json) -> list[int]:
    """Specs of old writers have no field ids: they count from 1000."""
    return [field.get("field-id", FIRST_FIELD_ID + i) for i, field in enumerate(spec["fields"])]


def highest_partition_field_id(specs: Iterable[Json]) -> int:
    return max((number for spec in specs for number in partition_field_ids(spec)), default=NO_FIELD_ID)
