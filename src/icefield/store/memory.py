"""The store in memory: for tests, and the plainest statement of what the port means.

A committed state is never changed: a write transaction copies each kind that it touches and, at its end, puts the
new state in place of the old. A reader holds one state, so it needs no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from icefield.store.kinds import (
    Shape,
    check_key,
    check_question,
    check_replacement,
    check_single_key,
    checked_values,
    shape_of,
)
from icefield.store.port import DuplicateKey

R = TypeVar("R")
Rows = Mapping[tuple[Any, ...], Any]


@dataclass(frozen=True, slots=True)
class _State:
    kinds: Mapping[type, Rows] = field(default_factory=dict)
    sequences: Mapping[str, int] = field(default_factory=dict)


class MemoryStore:
    def __init__(self) -> None:
        self._state: _State | None = _State()
        self._lock = threading.Lock()
        self._writing: int | None = None

    @contextmanager
    def read(self) -> Iterator[MemoryReader]:
        reader = MemoryReader(self._current())
        try:
            yield reader
        finally:
            reader._end()

    @contextmanager
    def write(self) -> Iterator[MemoryWriter]:
        self._check_not_writing()
        with self._lock:
            self._writing = threading.get_ident()
            try:
                writer = MemoryWriter(self._current())
                try:
                    yield writer
                    self._state = writer._state()
                finally:
                    writer._end()
            finally:
                self._writing = None

    def close(self) -> None:
        self._check_not_writing()
        with self._lock:
            self._state = None

    def _check_not_writing(self) -> None:
        """Waiting for oneself would be for ever."""
        if self._writing == threading.get_ident():
            raise RuntimeError("this thread is already in a write transaction of this store")

    def _current(self) -> _State:
        state = self._state
        if state is None:
            raise RuntimeError("the store is closed")
        return state


class MemoryReader:
    def __init__(self, state: _State) -> None:
        self._kinds: dict[type, Rows] = dict(state.kinds)
        self._ended = False

    def get(self, kind: type[R], *key: Any) -> R | None:
        check_key(shape_of(kind), key)
        return self._rows(kind).get(key)

    def get_many(self, kind: type[R], keys: Sequence[Any]) -> dict[Any, R]:
        check_single_key(shape_of(kind))
        rows = self._rows(kind)
        return {key: rows[(key,)] for key in keys if (key,) in rows}

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
        shape = shape_of(kind)
        check_question(shape, equal, order_by=order_by, limit=limit, at_most=at_most)
        found = self._matching(kind, equal)
        if at_most is not None:
            name, bound = at_most
            found = [row for row in found if (value := getattr(row, name)) is not None and value <= bound]
        found.sort(key=lambda row: _rank(shape, row, order_by), reverse=descending)
        return found[:limit]

    def _matching(self, kind: type[R], equal: Mapping[str, Any]) -> list[R]:
        return [row for row in self._rows(kind).values() if all(getattr(row, n) == v for n, v in equal.items())]

    def _rows(self, kind: type) -> Rows:
        if self._ended:
            raise RuntimeError("this block of the store has been left")
        return self._kinds.get(kind, {})

    def _end(self) -> None:
        self._ended = True


class MemoryWriter(MemoryReader):
    def __init__(self, state: _State) -> None:
        super().__init__(state)
        self._mine: dict[type, dict[tuple[Any, ...], Any]] = {}
        self._sequences = dict(state.sequences)

    def insert(self, record: Any) -> None:
        shape, key = self._checked(record)
        if key in self._rows(shape.kind):
            raise DuplicateKey(f"{shape.kind.__name__} {key} exists")
        self._own(shape.kind)[key] = record

    def put(self, record: Any) -> None:
        shape, key = self._checked(record)
        self._own(shape.kind)[key] = record

    def replace(self, old: Any, new: Any) -> bool:
        check_replacement(old, new)
        shape, key = self._checked(new)
        if self._rows(shape.kind).get(key) != old:
            return False
        self._own(shape.kind)[key] = new
        return True

    def delete(self, kind: type[Any], *key: Any) -> bool:
        check_key(shape_of(kind), key)
        if key not in self._rows(kind):
            return False
        del self._own(kind)[key]
        return True

    def delete_where(self, kind: type[Any], /, **equal: Any) -> int:
        shape = shape_of(kind)
        check_question(shape, equal)
        gone = self._matching(kind, equal)
        mine = self._own(kind)
        for record in gone:
            del mine[shape.key_of(record)]
        return len(gone)

    def next_id(self, sequence: str) -> int:
        self._rows(type(self))  # refuses after the end
        self._sequences[sequence] = self._sequences.get(sequence, 0) + 1
        return self._sequences[sequence]

    def _checked(self, record: Any) -> tuple[Shape, tuple[Any, ...]]:
        shape = shape_of(type(record))
        checked_values(shape, record)
        return shape, shape.key_of(record)

    def _own(self, kind: type) -> dict[tuple[Any, ...], Any]:
        """This transaction's copy of a kind's rows."""
        mine = self._mine.get(kind)
        if mine is None:
            mine = self._mine[kind] = dict(self._rows(kind))
            self._kinds[kind] = mine
        return mine

    def _state(self) -> _State:
        return _State(self._kinds, self._sequences)


def _rank(shape: Shape, row: Any, order_by: str | None) -> tuple[Any, ...]:
    """None comes first; ties go by primary key."""
    key = shape.key_of(row)
    if order_by is None:
        return key
    value = getattr(row, order_by)
    return (value is not None, value, *key) if value is not None else (False, *key)


__all__ = ["MemoryReader", "MemoryStore", "MemoryWriter"]
