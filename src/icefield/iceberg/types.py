"""Iceberg's primitive types as written in schemas: ``long``, ``decimal(10, 2)``, ``fixed[16]``, ``geometry``.

Types are kept as text in one canonical spelling (Java's), so equal types are equal text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from icefield.iceberg.shapes import INT32_MAX, bad, describe

MAX_DECIMAL_PRECISION: Final = 38
_DEFAULT_CRS: Final = "OGC:CRS84"
_DEFAULT_EDGES: Final = "spherical"
_EDGES: Final = frozenset({"spherical", "vincenty", "thomas", "andoyer", "karney"})

_PLAIN: Final = {
    "boolean": 1,
    "int": 1,
    "long": 1,
    "float": 1,
    "double": 1,
    "date": 1,
    "time": 1,
    "timestamp": 1,
    "timestamptz": 1,
    "string": 1,
    "uuid": 1,
    "binary": 1,
    "timestamp_ns": 3,
    "timestamptz_ns": 3,
    "unknown": 3,
    "variant": 3,
}

_FIXED: Final = re.compile(r"fixed\[\s*([0-9]{1,10})\s*\]")
_DECIMAL: Final = re.compile(r"decimal\(\s*([0-9]{1,4})\s*,\s*([0-9]{1,4})\s*\)")
_GEOMETRY: Final = re.compile(r"geometry(?:\s*\(\s*([^()]*?)\s*\))?", re.IGNORECASE)
_GEOGRAPHY: Final = re.compile(r"geography(?:\s*\(\s*([^(),]*?)\s*(?:,\s*(\w+)\s*)?\))?", re.IGNORECASE)
_MAX_TEXT: Final = 512


@dataclass(frozen=True, slots=True)
class Primitive:
    kind: str
    """The word before the parameters: ``decimal`` of ``decimal(10, 2)``."""
    text: str
    """The canonical spelling."""
    min_version: int = 1
    """The first table format version that knows it."""
    size: int = 0
    """Length of ``fixed``, precision of ``decimal``."""
    scale: int = 0


class UnknownType(ValueError):
    """Text that names no type; the message says why."""


@lru_cache(maxsize=1024)
def parse_primitive(text: str) -> Primitive:
    """The type a text names. Raises UnknownType."""
    if len(text) > _MAX_TEXT:
        raise UnknownType("is too long for a type")
    lower = text.lower()
    if lower in _PLAIN:
        return Primitive(lower, lower, _PLAIN[lower])
    if found := _FIXED.fullmatch(lower):
        return _fixed(int(found[1]))
    if found := _DECIMAL.fullmatch(lower):
        return _decimal(int(found[1]), int(found[2]))
    if found := _GEOMETRY.fullmatch(text):
        return _geometry(found[1])
    if found := _GEOGRAPHY.fullmatch(text):
        return _geography(found[1], found[2])
    raise UnknownType(f"names no Iceberg type: {describe(text)}")


def read_primitive(text: str, path: str) -> Primitive:
    try:
        return parse_primitive(text)
    except UnknownType as error:
        raise bad(path, str(error)) from None


def _fixed(length: int) -> Primitive:
    if not 1 <= length <= INT32_MAX:
        raise UnknownType(f"has a length that is not between 1 and {INT32_MAX}: fixed[{length}]")
    return Primitive("fixed", f"fixed[{length}]", size=length)


def _decimal(precision: int, scale: int) -> Primitive:
    if not 1 <= precision <= MAX_DECIMAL_PRECISION:
        raise UnknownType(f"has a precision that is not between 1 and {MAX_DECIMAL_PRECISION}: {precision}")
    if scale > precision:
        raise UnknownType(f"has a scale greater than its precision: decimal({precision}, {scale})")
    return Primitive("decimal", f"decimal({precision}, {scale})", size=precision, scale=scale)


def _geometry(crs: str | None) -> Primitive:
    crs = _crs(crs)
    return Primitive("geometry", "geometry" if crs is None else f"geometry({crs})", 3)


def _geography(crs: str | None, edges: str | None) -> Primitive:
    crs = _crs(crs)
    edges = (edges or _DEFAULT_EDGES).lower()
    if edges not in _EDGES:
        raise UnknownType(f"has an unknown edge algorithm {describe(edges)}; known: {', '.join(sorted(_EDGES))}")
    if edges != _DEFAULT_EDGES:
        return Primitive("geography", f"geography({crs or _DEFAULT_CRS}, {edges})", 3)
    return Primitive("geography", "geography" if crs is None else f"geography({crs})", 3)


def _crs(text: str | None) -> str | None:
    """None for the default, so that ``geometry`` and ``geometry(OGC:CRS84)`` are one type."""
    if text is None or text.upper() == _DEFAULT_CRS:
        return None
    if not text:
        raise UnknownType("has an empty coordinate reference system")
    return text
