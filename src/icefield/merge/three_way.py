"""The algebra of merging one value, and a mapping of values, against a common base. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

V = TypeVar("V")
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Clash(Generic[V]):
    """Both sides changed it, differently."""

    base: V
    ours: V
    theirs: V


def merge_value(base: V, ours: V, theirs: V) -> V | Clash[V]:
    """A change on one side is taken; the same change on both sides is one change."""
    if ours == theirs or theirs == base:
        return ours
    if ours == base:
        return theirs
    return Clash(base, ours, theirs)


def merge_mapping(
    base: Mapping[K, V], ours: Mapping[K, V], theirs: Mapping[K, V]
) -> tuple[dict[K, V], dict[K, Clash[V | None]]]:
    """Key by key (None: not there); answers what could be merged and what clashes."""
    merged: dict[K, V] = {}
    clashes: dict[K, Clash[V | None]] = {}
    for key in dict.fromkeys((*ours, *theirs, *base)):
        value: V | Clash[V | None] | None = merge_value(base.get(key), ours.get(key), theirs.get(key))
        if isinstance(value, Clash):
            clashes[key] = value
        elif value is not None:
            merged[key] = value
    return merged, clashes
