"""Laws of the key encoding."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from icefield.graph import keys
from icefield.graph.keys import Key
from icefield.model.errors import BadRequest
from icefield.model.names import Identifier, Namespace

from .samples import names, namespaces


def path(key: Key) -> tuple[bytes, ...]:
    return tuple(level.encode() for level in (key if isinstance(key, tuple) else key.namespace))


def order(key: Key) -> tuple[Any, ...]:
    """The order that the encoding promises, said without it: own entry, tables and views, then sub-namespaces."""
    own: tuple[Any, ...] = (0,) if isinstance(key, tuple) else (1, key.name.encode())
    return (*((2, level) for level in path(key)), own)


@given(names)
def test_a_key_is_read_back(key: Key) -> None:
    assert keys.decode(keys.encode(key)) == key


@given(names, names)
def test_bytes_are_in_the_order_of_names_and_never_the_same(a: Key, b: Key) -> None:
    assert (keys.encode(a) < keys.encode(b)) == (order(a) < order(b))
    assert (keys.encode(a) == keys.encode(b)) == (a == b)


@given(namespaces, names)
def test_a_namespace_is_one_range(namespace: Namespace, key: Key) -> None:
    def within(bounds: tuple[bytes, bytes]) -> bool:
        return bounds[0] <= keys.encode(key) < bounds[1]

    levels = key if isinstance(key, tuple) else key.namespace
    under = levels[: len(namespace)] == namespace
    assert within(keys.subtree(namespace)) == under
    assert within(keys.inside(namespace)) == (under and key != namespace)
    assert within(keys.below(namespace)) == (under and len(levels) > len(namespace))
    assert within(keys.entries_in(namespace)) == (isinstance(key, Identifier) and levels == namespace)


@pytest.mark.parametrize("key", [("a", "\ud800"), Identifier(("a",), "\udfff"), Identifier(("\ud800",), "t")])
def test_a_lone_surrogate_is_refused_by_name(key: Key) -> None:
    with pytest.raises(BadRequest, match="surrogate"):
        keys.encode(key)
