"""Sort orders: reading, binding to a schema, comparing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from icefield.iceberg.schemas import fields_by_id
from icefield.iceberg.shapes import Json, as_object, bad, describe, join, maybe_int, need_int, need_list, need_text
from icefield.iceberg.specs import renumbered_source
from icefield.iceberg.transforms import check_source, read_transform

UNSORTED_ID: Final = 0
FIRST_ORDER_ID: Final = 1
UNSORTED: Final[Json] = {"order-id": UNSORTED_ID, "fields": []}
_DIRECTIONS: Final = ("asc", "desc")
_NULL_ORDERS: Final = ("nulls-first", "nulls-last")


def read_sort_order(value: Any, path: str, *, known_transforms: bool = True) -> Json:
    """A canonical sort order; ``order-id`` only where it was given."""
    obj = as_object(value, path)
    order: Json = {}
    order_id = maybe_int(obj, "order-id", path)
    if order_id is not None:
        order["order-id"] = order_id
    fields: list[Json] = []
    for i, item in enumerate(need_list(obj, "fields", path)):
        at = f"{path}.fields[{i}]"
        field = as_object(item, at)
        transform = need_text(field, "transform", at)
        fields.append(
            {
                "transform": read_transform(transform, join(at, "transform")) if known_transforms else transform,
                "source-id": need_int(field, "source-id", at),
                "direction": _word(field, "direction", at, _DIRECTIONS),
                "null-order": _word(field, "null-order", at, _NULL_ORDERS),
            }
        )
    order["fields"] = fields
    return order


def _word(obj: Json, key: str, path: str, words: tuple[str, ...]) -> str:
    text = need_text(obj, key, path).lower()
    if text not in words:
        raise bad(join(path, key), f"must be {' or '.join(words)}, not {describe(text)}")
    return text


def check_sort_order(order: Json, schema: Json, path: str) -> None:
    """The order can be used with this schema."""
    columns = fields_by_id(schema)
    for i, field in enumerate(order["fields"]):
        source = columns.get(field["source-id"])
        at = f"{path}.fields[{i}].transform"
        check_source(field["transform"], source, field["source-id"], at, verb="sort")


def same_fields(one: Json, other: Json) -> bool:
    return len(one["fields"]) == len(other["fields"]) and all(
        a["source-id"] == b["source-id"]
        and a["transform"].lower() == b["transform"].lower()
        and a["direction"].lower() == b["direction"].lower()
        and a["null-order"].lower() == b["null-order"].lower()
        for a, b in zip(one["fields"], other["fields"], strict=True)
    )


def fresh_sort_order(order: Json, new_ids: Mapping[int, int], path: str) -> Json:
    """A new table's sort order: sources renumbered like the columns."""
    if not order["fields"]:
        return UNSORTED
    fields = [
        {**field, "source-id": renumbered_source(field["source-id"], new_ids, f"{path}.fields[{i}].source-id")}
        for i, field in enumerate(order["fields"])
    ]
    return {"order-id": FIRST_ORDER_ID, "fields": fields}
