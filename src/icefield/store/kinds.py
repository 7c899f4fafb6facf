"""What every store implementation must know about a record kind, read once from its dataclass.

Implementations share the checks too, so that a record or question that one of them would take, no other refuses.
"""

from __future__ import annotations

import dataclasses
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: type
    """str, int, bytes or bool"""
    nullable: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """A record kind: its fields in order, and how to take values and key out of a record."""

    kind: type[Any]
    fields: tuple[Field, ...]
    key: tuple[str, ...]
    names: frozenset[str]
    values_of: Callable[[Any], tuple[Any, ...]]
    key_of: Callable[[Any], tuple[Any, ...]]
    flags: tuple[int, ...]
    """Where the bools are: databases without such a type give numbers back."""


_shapes: dict[type[Any], Shape] = {}


def shape_of(kind: type[Any]) -> Shape:
    shape = _shapes.get(kind)
    if shape is None:
        shape = _shapes[kind] = _read_shape(kind)
    return shape


def _read_shape(kind: type[Any]) -> Shape:
    key = getattr(kind, "KEY", None)
    if not dataclasses.is_dataclass(kind) or not key:
        raise TypeError(f"{kind!r} is not a record kind: a dataclass with a KEY")
    hints = typing.get_type_hints(kind)
    fields = tuple(_field(field.name, hints[field.name]) for field in dataclasses.fields(kind))
    names = tuple(field.name for field in fields)
    flags = tuple(place for place, field in enumerate(fields) if field.type is bool)
    return Shape(kind, fields, tuple(key), frozenset(names), _getter(names), _getter(tuple(key)), flags)


def _field(name: str, hint: Any) -> Field:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    plain = [option for option in options if option is not types.NoneType]
    if len(plain) != 1 or plain[0] not in (str, int, bytes, bool):
        raise TypeError(f"field {name!r}: a record holds str, int, bytes, bool or None, not {hint!r}")
    return Field(name, plain[0], types.NoneType in options)


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) == 1:
        one = operator.attrgetter(names[0])
        return lambda record: (one(record),)
    many: Callable[[Any], tuple[Any, ...]] = operator.attrgetter(*names)
    return many


def checked_values(shape: Shape, record: Any) -> tuple[Any, ...]:
    """The record's values, if they are what its fields say (SQLite would quietly store 5 as '5')."""
    values = shape.values_of(record)
    for field, value in zip(shape.fields, values, strict=True):
        kind = type(value)
        if kind is field.type:
            if kind is int:
                if not INT64_MIN <= value <= INT64_MAX:
                    raise ValueError(f"{shape.kind.__name__}.{field.name} does not fit 64 bits: {value}")
            elif kind is str and not value.isascii():
                value.encode()  # a lone surrogate could not be stored
        elif not (value is None and field.nullable) and not (field.type is str and isinstance(value, str)):
            raise TypeError(f"{shape.kind.__name__}.{field.name} must be {field.type.__name__}, not {value!r}")
    return values


def check_key(shape: Shape, key: tuple[Any, ...]) -> None:
    if len(key) != len(shape.key):
        raise TypeError(f"{shape.kind.__name__} has the key {shape.key}, got {len(key)} values")


def check_single_key(shape: Shape) -> str:
    if len(shape.key) != 1:
        raise TypeError(f"get_many needs a one-column key; {shape.kind.__name__} has {shape.key}")
    return shape.key[0]


def check_question(
    shape: Shape,
    equal: Mapping[str, Any],
    *,
    order_by: str | None = None,
    limit: int | None = None,
    at_most: tuple[str, Any] | None = None,
) -> None:
    asked = [*equal, *([order_by] if order_by is not None else []), *([at_most[0]] if at_most is not None else [])]
    for name in asked:
        if name not in shape.names:
            raise TypeError(f"{shape.kind.__name__} has no field {name!r}")
    if limit is not None and limit < 0:
        raise ValueError(f"limit must not be negative: {limit}")
    if at_most is not None and at_most[1] is None:
        raise ValueError("at_most needs a value, not None")


def check_replacement(old: Any, new: Any) -> Shape:
    shape = shape_of(type(new))
    if type(old) is not type(new) or shape.key_of(old) != shape.key_of(new):
        raise ValueError(f"replace() needs two records of one kind and key, not {old!r} and {new!r}")
    return shape
