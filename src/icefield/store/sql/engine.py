"""The port over a relational database: transactions, connections, and records in and out of rows.

Written against DB-API connections and ``Database``, the little that is a database's own (``sqlite.py``).
One writer connection, guarded by a lock; readers come from a pool that grows as needed, because a block may be
entered inside another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

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
from icefield.store.sql.queries import MANY, Dialect, Queries, Question

R = TypeVar("R")

IDLE_READERS = 8
"""Connections kept for the next reader."""


class Database(Dialect, Protocol):
    """One database, and how its connections begin and end a transaction."""

    def connect(self) -> Any:
        """A DB-API connection in autocommit mode, usable from any thread (by one at a time)."""
        ...

    def begin_read(self, connection: Any) -> None:
        """From here on the connection sees this moment."""
        ...

    def begin_write(self, connection: Any) -> None: ...

    def commit(self, connection: Any) -> None:
        """Durable on return. An error says whether anything may have happened (``OutcomeUnknown``)."""
        ...

    def rollback(self, connection: Any) -> bool:
        """Never raises; says whether the connection may be used again."""
        ...

    def explain(self, error: BaseException) -> Exception | None:
        """What the driver's error means to a caller, when nothing was changed; None if it is not the driver's."""
        ...


class SqlStore:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = Queries(database)
        self._closed = False
        self._pool_lock = threading.Lock()
        self._idle: list[Any] = []
        self._write_lock = threading.Lock()
        self._writing: int | None = None
        self._writer: Any | None = database.connect()

    @contextmanager
    def read(self) -> Iterator[SqlReader]:
        connection = self._take()
        try:
            self._database.begin_read(connection)
            reader = SqlReader(connection.execute, self._queries)
            try:
                yield reader
            finally:
                reader._end()
        except BaseException as error:
            self._raise_explained(error)
            raise
        finally:
            self._give_back(connection, self._database.rollback(connection))

    @contextmanager
    def write(self) -> Iterator[SqlWriter]:
        self._check_not_writing()
        with self._write_lock:
            self._writing = threading.get_ident()
            try:
                connection = self._writer_connection()
                try:
                    self._database.begin_write(connection)
                    writer = SqlWriter(connection.execute, self._queries)
                    try:
                        yield writer
                    finally:
                        writer._end()
                    self._database.commit(connection)
                except BaseException as error:
                    if not self._database.rollback(connection):
                        self._writer = None
                        connection.close()
                    self._raise_explained(error)
                    raise
            finally:
                self._writing = None

    def close(self) -> None:
        """Blocks that are still open may finish; new ones are refused."""
        self._check_not_writing()
        with self._pool_lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        with self._write_lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def _check_not_writing(self) -> None:
        """Waiting for oneself would be for ever."""
        if self._writing == threading.get_ident():
            raise RuntimeError("this thread is already in a write transaction of this store")

    def _take(self) -> Any:
        with self._pool_lock:
            if self._closed:
                raise RuntimeError("the store is closed")
            if self._idle:
                return self._idle.pop()
        return self._database.connect()

    def _give_back(self, connection: Any, sound: bool) -> None:
        with self._pool_lock:
            if sound and not self._closed and len(self._idle) < IDLE_READERS:
                self._idle.append(connection)
                return
        connection.close()

    def _writer_connection(self) -> Any:
        if self._closed:
            raise RuntimeError("the store is closed")
        if self._writer is None:
            self._writer = self._database.connect()
        return self._writer

    def _raise_explained(self, error: BaseException) -> None:
        explained = self._database.explain(error)
        if explained is not None:
            raise explained from error


class SqlReader:
    def __init__(self, execute: Callable[..., Any], queries: Queries) -> None:
        self._execute = execute
        self._queries = queries

    def get(self, kind: type[R], *key: Any) -> R | None:
        check_key(shape_of(kind), key)
        row = self._execute(self._queries.of_kind(kind).get, key).fetchone()
        return None if row is None else _record(shape_of(kind), row)

    def get_many(self, kind: type[R], keys: Sequence[Any]) -> dict[Any, R]:
        shape = shape_of(kind)
        name = check_single_key(shape)
        found: dict[Any, R] = {}
        for start in range(0, len(keys), MANY):
            part = list(keys[start : start + MANY])
            # A few sizes of statement serve all: the last key is repeated up to the next power of two.
            size = 1 << (len(part) - 1).bit_length()
            part += part[-1:] * (size - len(part))
            for row in self._execute(self._queries.many(kind, size), part):
                record: R = _record(shape, row)
                found[getattr(record, name)] = record
        return {key: found[key] for key in keys if key in found}

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
        statement = self._queries.find(
            Question(
                kind,
                tuple((name, value is None) for name, value in equal.items()),
                order_by,
                descending,
                limit is not None,
                None if at_most is None else at_most[0],
            )
        )
        values = {f"equal_{name}": value for name, value in equal.items()}
        if limit is not None:
            values["the_limit"] = limit
        if at_most is not None:
            values["the_most"] = at_most[1]
        return [_record(shape, row) for row in self._execute(statement.text, statement.bind(values)).fetchall()]

    def _end(self) -> None:
        self._execute = _left


class SqlWriter(SqlReader):
    def insert(self, record: Any) -> None:
        shape = shape_of(type(record))
        values = checked_values(shape, record)
        if self._execute(self._queries.of_kind(shape.kind).insert, values).rowcount == 0:
            raise DuplicateKey(f"{shape.kind.__name__} {shape.key_of(record)} exists")

    def put(self, record: Any) -> None:
        shape = shape_of(type(record))
        self._execute(self._queries.of_kind(shape.kind).put, checked_values(shape, record))

    def replace(self, old: Any, new: Any) -> bool:
        shape = check_replacement(old, new)
        values = (*checked_values(shape, new), *shape.values_of(old))
        changed: int = self._execute(self._queries.of_kind(shape.kind).replace, values).rowcount
        return changed == 1

    def delete(self, kind: type[Any], *key: Any) -> bool:
        check_key(shape_of(kind), key)
        gone: int = self._execute(self._queries.of_kind(kind).delete, key).rowcount
        return gone == 1

    def delete_where(self, kind: type[Any], /, **equal: Any) -> int:
        check_question(shape_of(kind), equal)
        question = Question(kind, tuple((name, value is None) for name, value in equal.items()))
        statement = self._queries.delete_where(question)
        values = {f"equal_{name}": value for name, value in equal.items()}
        gone: int = self._execute(statement.text, statement.bind(values)).rowcount
        return gone

    def next_id(self, sequence: str) -> int:
        (value,) = self._execute(self._queries.next_id, (sequence,)).fetchone()
        return int(value)


def _left(*_: Any) -> Any:
    raise RuntimeError("this block of the store has been left")


def _record(shape: Shape, row: Sequence[Any]) -> Any:
    if not shape.flags:
        return shape.kind(*row)
    values = list(row)
    for place in shape.flags:
        values[place] = None if values[place] is None else bool(values[place])
    return shape.kind(*values)


__all__ = ["Database", "SqlReader", "SqlStore", "SqlWriter"]
