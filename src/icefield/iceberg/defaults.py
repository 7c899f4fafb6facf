"""Column defaults (format 3): Iceberg's JSON for a single value, checked against the column's type."""

from __future__ import annotations

import datetime
import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from icefield.iceberg.shapes import INT32_MAX, INT64_MAX, as_bool, as_int, as_text, as_uuid, bad, describe
from icefield.iceberg.types import Primitive

_FLOAT32_MAX: Final = 3.4028234663852886e38
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME: Final = re.compile(r"([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(?:\.[0-9]{1,9})?")
_HEX: Final = re.compile(r"(?:[0-9A-Fa-f]{2})*")
_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,45}(?:\.[0-9]{0,45})?(?:[eE][+-]?[0-9]{1,3})?")
_UTC: Final = ("+00:00", "Z")


def read_default(value: Any, kind: Primitive, path: str) -> Any:
    """The default as it is to be stored. ``value`` is not null: a null default is the same as none."""
    match kind.kind:
        case "boolean":
            return as_bool(value, path)
        case "int":
            return as_int(value, path, low=-INT32_MAX - 1)
        case "long":
            return as_int(value, path, low=-INT64_MAX - 1, high=INT64_MAX)
        case "float":
            return _number(value, _FLOAT32_MAX, path)
        case "double":
            return _number(value, math.inf, path)
        case "string":
            return as_text(value, path, empty=True)
        case "uuid":
            return as_uuid(value, path)
        case "decimal":
            return _decimal(value, kind, path)
        case "fixed":
            return _hex(value, kind.size, path)
        case "binary":
            return _hex(value, None, path)
        case "date" | "time" | "timestamp" | "timestamptz" | "timestamp_ns" | "timestamptz_ns":
            text = as_text(value, path)
            if not _is_temporal(text, kind.kind):
                raise bad(path, f"is not an ISO 8601 {kind.kind}: {describe(text)}")
            return text
        case _:
            raise bad(path, f"must be null: a {kind.text} column can't have a default")


def _number(value: Any, limit: float, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad(path, f"must be a number, not {describe(value)}")
    try:
        # Java takes only a floating point literal here, so an integer is stored as 1.0
        number = float(value)
    except OverflowError:
        raise bad(path, "must be a number in the type's range") from None
    if not math.isfinite(number) or abs(number) > limit:
        raise bad(path, "must be a finite number in the type's range")
    return number


def _decimal(value: Any, kind: Primitive, path: str) -> str:
    text = as_text(value, path)
    if not _DECIMAL.fullmatch(text):
        raise bad(path, f"must be a decimal number as text, not {describe(text)}")
    try:
        sign_digits_exponent = Decimal(text).as_tuple()
    except InvalidOperation:
        raise bad(path, f"must be a decimal number as text, not {describe(text)}") from None
    if -int(sign_digits_exponent.exponent) != kind.scale or len(sign_digits_exponent.digits) > kind.size:
        raise bad(path, f"must have exactly {kind.scale} decimal places and at most {kind.size} digits")
    return text


def _hex(value: Any, length: int | None, path: str) -> str:
    text = as_text(value, path, empty=True)
    if not _HEX.fullmatch(text):
        raise bad(path, f"must be hexadecimal text, not {describe(text)}")
    if length is not None and len(text) != 2 * length:
        raise bad(path, f"must have {length} bytes, not {len(text) // 2}")
    return text


def _is_temporal(text: str, kind: str) -> bool:
    if kind == "date":
        return _is_date(text)
    if kind == "time":
        return _is_time(text)
    date, mark, time = text.partition("T")
    if kind.startswith("timestamptz"):
        zone = next((suffix for suffix in _UTC if time.endswith(suffix)), None)
        if zone is None:
            return False
        time = time.removesuffix(zone)
    return bool(mark) and _is_date(date) and _is_time(time)


def _is_date(text: str) -> bool:
    if not _DATE.fullmatch(text):
        return False
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _is_time(text: str) -> bool:
    found = _TIME.fullmatch(text)
    if not found:
        return False
    try:
        datetime.time.fromisoformat(found[1])
    except ValueError:
        return False
    return True
