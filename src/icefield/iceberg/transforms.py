"""Partition and sort transforms: their spelling and which column types they take."""

from __future__ import annotations

import re
from typing import Final

from icefield.iceberg.schemas import Field
from icefield.iceberg.shapes import INT32_MAX, bad, describe

VOID: Final = "void"
_PLAIN: Final = frozenset({"identity", "year", "month", "day", "hour", VOID})
_WIDE: Final = re.compile(r"(bucket|truncate)\[([0-9]{1,10})\]")

_DAYS: Final = frozenset({"date", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})
_HASHED: Final = _DAYS | {"int", "long", "time", "string", "binary", "fixed", "decimal", "uuid"}
_SOURCES: Final = {
    "year": _DAYS,
    "month": _DAYS,
    "day": _DAYS,
    "hour": _DAYS - {"date"},
    "bucket": _HASHED,
    "truncate": frozenset({"int", "long", "string", "binary", "decimal"}),
}
_NO_IDENTITY: Final = frozenset({"variant", "geometry", "geography"})


def read_transform(text: str, path: str) -> str:
    """The canonical spelling. A transform nobody knows is refused: no client could write through it."""
    lower = text.lower()
    if lower in _PLAIN:
        return lower
    found = _WIDE.fullmatch(lower)
    if not found:
        raise bad(path, f"names no transform: {describe(text)}")
    width = int(found[2])
    if not 1 <= width <= INT32_MAX:
        raise bad(path, f"must have a width between 1 and {INT32_MAX}, not {width}")
    return f"{found[1]}[{width}]"


def check_source(transform: str, source: Field | None, source_id: int, path: str, *, verb: str) -> None:
    """``transform`` can be applied to the column; ``verb`` is ``partition`` or ``sort``."""
    if transform.lower() == VOID:
        return
    if source is None:
        raise bad(path, f"needs column {source_id}, which the current schema does not have")
    primitive = source.primitive
    if primitive is None:
        raise bad(path, f"can't {verb} by {source.name!a}: it is a {source.type['type']}")
    name = transform.lower().partition("[")[0]
    if name == "identity":
        allowed = primitive.kind not in _NO_IDENTITY
    else:
        # a transform we don't know may stand in another writer's file, and is for its reader to refuse
        allowed = name not in _SOURCES or primitive.kind in _SOURCES[name]
    if not allowed:
        raise bad(path, f"can't apply {transform} to {source.name!a} of type {primitive.text}")
