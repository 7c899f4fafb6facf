"""All that is SQLite's own: pragmas, how transactions begin, upserts, what its errors mean.

Durable on acknowledgement: write-ahead log with ``synchronous=FULL``. ``BEGIN IMMEDIATE`` for writers (a transaction
that reads first and writes later would fail at once with "database is locked"). Pages of 2 KiB: a commit writes few
small rows, and whole pages go to the log (``facts/graph-store.md`` 2); the size sticks at creation.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from icefield.model.errors import BadRequest, OutcomeUnknown, Unavailable
from icefield.store.sql.engine import SqlStore
from icefield.store.sql.migrate import migrate

BUSY_MS = 10_000
APPLICATION_ID = 0x1CEF1E1D
"""Tells our files from anybody else's (``PRAGMA application_id``)."""

_PRAGMAS = (
    f"PRAGMA busy_timeout = {BUSY_MS}",
    "PRAGMA synchronous = FULL",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -16000",
    "PRAGMA wal_autocheckpoint = 2000",
    "PRAGMA journal_size_limit = 67108864",
)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class SqliteDatabase:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._dialect = sqlite.dialect(paramstyle="qmark")

    @property
    def sqlalchemy(self) -> sa.Dialect:
        return self._dialect

    def insert(self, table: sa.Table) -> Any:
        return sqlite.insert(table)

    def connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=BUSY_MS / 1000
        )
        for pragma in _PRAGMAS:
            connection.execute(pragma)
        return connection

    def begin_read(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN")
        # The snapshot is taken by the first statement that reads, not by BEGIN.
        connection.execute("SELECT 1 FROM sequences LIMIT 1").fetchone()

    def begin_write(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")

    def commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if _code(error) in _BUSY:
                raise
            # The log may hold the transaction although the disk did not say so.
            raise OutcomeUnknown(f"the store could not confirm a commit: {error}") from error

    def rollback(self, connection: sqlite3.Connection) -> bool:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            return False
        return True

    def explain(self, error: BaseException) -> Exception | None:
        if isinstance(error, sqlite3.OperationalError):
            return Unavailable(f"the store is busy or cannot be used ({error}); nothing was changed")
        return None


def open_sqlite(path: Path) -> SqlStore:
    """Opens the store in this file, creating it or bringing its schema up to date.

    ``BadRequest`` if the file is something else, ``NotSupported`` if a newer Icefield wrote it.
    """
    database = SqliteDatabase(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + BUSY_MS / 1000
    while True:
        try:
            _prepare(database, path)
            return SqlStore(database)
        except (sqlite3.DatabaseError, sa.exc.DBAPIError) as error:
            if _code(getattr(error, "orig", error)) not in _BUSY:
                raise BadRequest(f"{path} cannot be opened as a store: {error}", field="data") from error
            if time.monotonic() > deadline:
                raise Unavailable(f"{path} is in use by another process; nothing was changed") from error
        # SQLite does not wait by itself where two change the journal's mode at once.
        time.sleep(0.02)


def _prepare(database: SqliteDatabase, path: Path) -> None:
    connection = database.connect()
    try:
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        (owner,) = connection.execute("PRAGMA application_id").fetchone()
        if tables and owner != APPLICATION_ID:
            raise BadRequest(f"{path} is a database of another program; choose another data folder", field="data")
        if not tables:
            connection.execute("PRAGMA page_size = 2048")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise BadRequest(f"{path}: this file system does not allow a write-ahead log (got {mode!r})", field="data")
    finally:
        connection.close()
    engine = sa.create_engine("sqlite://", creator=database.connect, poolclass=sa.NullPool)
    # The connections are in autocommit mode: the transaction is begun here, and keeps other writers out.
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    migrate(engine, str(path))
    if not tables:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _code(error: BaseException | None) -> int | None:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


__all__ = ["SqliteDatabase", "open_sqlite"]
