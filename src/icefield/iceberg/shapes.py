"""Reads untrusted JSON: every function answers a value of the promised shape or raises BadRequest naming the path.

A path is text as a person would write it: ``schema.fields[2].type``. JSON null counts as absent where a field is
optional.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

from icefield.model.errors import BadRequest

Json = dict[str, Any]

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
_SHOWN: Final = 60


def bad(path: str, problem: str) -> BadRequest:
    return BadRequest(f"{path} {problem}", field=path)


def describe(value: Any) -> str:
    """What was found instead, short enough for a message; never walks into nested values."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return "a number out of range" if abs(value) > 10**20 else str(value)
        case str():
            shown = value if len(value) <= _SHOWN else value[:_SHOWN] + "…"
            return ascii(shown)
        case dict():
            return "an object"
        case list():
            return "a list"
        case _:
            return f"a {type(value).__name__}"


def as_object(value: Any, path: str) -> Json:
    if not isinstance(value, dict):
        raise bad(path, f"must be an object, not {describe(value)}")
    return value


def as_list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise bad(path, f"must be a list, not {describe(value)}")
    return value


def as_text(value: Any, path: str, *, empty: bool = False) -> str:
    if not isinstance(value, str):
        raise bad(path, f"must be a string, not {describe(value)}")
    if not value and not empty:
        raise bad(path, "must not be empty")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise bad(path, "is not valid Unicode (a lone surrogate)") from None
    return value


def as_bool(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise bad(path, f"must be true or false, not {describe(value)}")
    return value


def as_int(value: Any, path: str, *, low: int = 0, high: int = INT32_MAX) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad(path, f"must be an integer, not {describe(value)}")
    if not low <= value <= high:
        raise bad(path, f"must be between {low} and {high}, not {describe(value)}")
    return value


def as_long(value: Any, path: str, *, low: int = 0) -> int:
    return as_int(value, path, low=low, high=INT64_MAX)


def as_snapshot_id(value: Any, path: str) -> int:
    """Any 64-bit number except -1, which metadata files use for "no snapshot"."""
    number = as_int(value, path, low=-INT64_MAX - 1, high=INT64_MAX)
    if number == -1:
        raise bad(path, "must be a snapshot id, not -1")
    return number


def as_uuid(value: Any, path: str) -> str:
    text = as_text(value, path)
    try:
        if len(text) == 36 and str(uuid.UUID(text)) == text.lower():
            return text
    except ValueError:
        pass
    raise bad(path, f"must be a UUID, not {describe(text)}")


def as_text_map(value: Any, path: str) -> dict[str, str]:
    result: dict[str, str] = {}
    for key, text in as_object(value, path).items():
        if not (isinstance(text, str) and key.isascii() and text.isascii()):
            as_text(key, f"a key of {path}", empty=True)
            as_text(text, f"{path}[{describe(key)}]", empty=True)
        result[key] = text
    return result


def need(obj: Json, key: str, path: str) -> Any:
    """The value under ``key``, which must be there; null is left to the reader of the value."""
    if key not in obj:
        raise bad(join(path, key), "is missing")
    return obj[key]


def no_nulls(obj: Json, keys: tuple[str, ...], path: str) -> None:
    """In a stored file: Java tells null from absent where a client's request may not."""
    for key in keys:
        if key in obj and obj[key] is None:
            raise bad(join(path, key), "must be left out, not null: Java can't read it")


def join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def need_int(obj: Json, key: str, path: str, *, low: int = 0, high: int = INT32_MAX) -> int:
    return as_int(need(obj, key, path), join(path, key), low=low, high=high)


def need_long(obj: Json, key: str, path: str, *, low: int = 0) -> int:
    return as_long(need(obj, key, path), join(path, key), low=low)


def need_text(obj: Json, key: str, path: str, *, empty: bool = False) -> str:
    return as_text(need(obj, key, path), join(path, key), empty=empty)


def need_list(obj: Json, key: str, path: str) -> list[Any]:
    return as_list(need(obj, key, path), join(path, key))


def need_object(obj: Json, key: str, path: str) -> Json:
    return as_object(need(obj, key, path), join(path, key))


def maybe_int(obj: Json, key: str, path: str, *, low: int = 0, high: int = INT32_MAX) -> int | None:
    value = obj.get(key)
    return None if value is None else as_int(value, join(path, key), low=low, high=high)


def maybe_long(obj: Json, key: str, path: str, *, low: int = 0) -> int | None:
    value = obj.get(key)
    return None if value is None else as_long(value, join(path, key), low=low)


def maybe_text(obj: Json, key: str, path: str, *, empty: bool = False) -> str | None:
    value = obj.get(key)
    return None if value is None else as_text(value, join(path, key), empty=empty)


def maybe_list(obj: Json, key: str, path: str) -> list[Any]:
    value = obj.get(key)
    return [] if value is None else as_list(value, join(path, key))
