"""The store port: a transactional home for small records.

Deliberately small. A record is a frozen dataclass of ``store/records.py``; its class names the table, ``KEY`` its
primary key. One write transaction at a time per store (serialisable); reads see the last committed state. What is
clever (commit graph, trees, the compare-and-set of a branch's head) is written once, above this port, so that every
implementation gets it for free. One contract suite holds all implementations to the same behaviour.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

R = TypeVar("R")


class StoreReader(Protocol):
    """A consistent view: everything read through one reader is of one moment."""

    def get(self, kind: type[R], *key: Any) -> R | None:
        """The record with this primary key (values in ``KEY`` order)."""
        ...

    def get_many(self, kind: type[R], keys: Sequence[Any]) -> dict[Any, R]:
        """For kinds with a one-column key: those that exist, by key; one round trip."""
        ...

    def find(
        self,
        kind: type[R],
        /,
        *,
        order_by: str | None = None,
        descending: bool = False,
        limit: int | None = None,
        at_most: tuple[str, Any] | None = None,
        **equal: Any,
    ) -> list[R]:
        """Records whose fields equal the given values. Default order: by primary key.

        ``at_most=(field, value)`` keeps those with field <= value (``None`` fields are left out).
        """
        ...


class StoreWriter(StoreReader, Protocol):
    """A write transaction. It sees its own writes; leaving the ``with`` block by an exception undoes them all."""

    def insert(self, record: Any) -> None:
        """Raises ``DuplicateKey`` if the primary key is taken."""
        ...

    def put(self, record: Any) -> None:
        """Insert, or replace the record with this primary key."""
        ...

    def replace(self, old: Any, new: Any) -> bool:
        """Compare-and-set: puts ``new`` (same key) only if the stored record still equals ``old``; says whether."""
        ...

    def delete(self, kind: type[Any], *key: Any) -> bool:
        """Says whether there was one."""
        ...

    def delete_where(self, kind: type[Any], /, **equal: Any) -> int: ...

    def next_id(self, sequence: str) -> int:
        """1, 2, 3 …: never the same number twice among committed transactions."""
        ...


class Store(Protocol):
    def read(self) -> AbstractContextManager[StoreReader]: ...

    def write(self) -> AbstractContextManager[StoreWriter]:
        """Durable once the block is left without an exception (synced to disk)."""
        ...

    def close(self) -> None: ...


class DuplicateKey(Exception):
    """An insert met a record with the same primary key."""


__all__ = ["DuplicateKey", "Store", "StoreReader", "StoreWriter"]
