"""The engine port: where a lake table's rows are read and written, for the doors that hold rows themselves.

An engine session is bound to one session address of the server (``lake@~<id>``) with that session's token, so it
reads and writes at whatever the session's symbolic ref stands on. The caller marks statements; the engine never does.
Rows travel as Arrow record batches. Every method blocks and may be called from any thread; one engine session runs
one request at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from icefield.model.errors import IcefieldError, Unavailable

if TYPE_CHECKING:
    import pyarrow as pa


class EngineFailed(IcefieldError):
    """The engine could not do it; ``message`` is the engine's or the server's own. Nothing is known to have landed."""

    kind = "EngineFailedException"


class EngineLost(EngineFailed):
    """The engine went away in the middle of the request. For an append, ask the server what became of it."""


class EngineBusy(Unavailable):
    """The engine session already runs a request."""


class Cancelled(EngineFailed):
    """The request was cancelled by ``cancel()``."""

    kind = "CancelledException"


class TooManyRows(IcefieldError):
    """The table holds more rows than the caller allows to fetch."""

    kind = "TooManyRowsException"

    def __init__(self, message: str, limit: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit


FILE, POSITION, ROW_ID = "_file", "_pos", "_row_id"
"""The columns that a fetch with identity adds: number of the file (int32), position in it, row id (format 3)."""


@dataclass(frozen=True, slots=True)
class FetchedFrom:
    """What the identity of fetched rows refers to: one snapshot, and its data files by number."""

    snapshot_id: int | None
    """``None``: the table has no snapshot, so no rows."""
    format_version: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RowChange:
    """Rows that were fetched and are gone or replaced."""

    source: FetchedFrom
    verb: str
    """``update``, ``delete`` or ``merge``: the table property ``write.<verb>.mode`` decides how files change."""
    deleted: pa.Table
    """``file`` int32, ``pos`` int64, ``row_id`` int64 (null in format 2), each row once."""
    alive: Sequence[int]
    """By file number: how many rows the fetch saw. A file that loses all of them is dropped, not given deletes."""


@dataclass(frozen=True, slots=True)
class Changed:
    """What a change did to the table, in one snapshot; all zero: there is no new snapshot."""

    rows_written: int = 0
    rows_deleted: int = 0
    files_added: int = 0
    """Data files."""
    files_removed: int = 0
    files_with_deletes: int = 0
    """Data files that stay and got (more) deletes."""
    way: str = "none"


class RowStream(Protocol):
    """Rows of one fetch. Iterating may raise what ``fetch`` may raise; closing early stops the engine's work."""

    @property
    def schema(self) -> pa.Schema: ...
    @property
    def source(self) -> FetchedFrom | None:
        """What identity refers to. Known from the beginning; ``None`` for a fetch without identity."""
        ...

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...
    def close(self) -> None: ...
    def __enter__(self) -> RowStream: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None: ...


class EngineSession(Protocol):
    def fetch(
        self,
        namespace: Sequence[str],
        name: str,
        columns: Sequence[str] | None = None,
        *,
        max_rows: int | None = None,
        identity: bool = False,
    ) -> RowStream:
        """All rows of a table, the given columns in the given order (``None``: all). A timestamp with a zone is UTC.

        ``identity``: after the columns, each row has ``_file`` (int32, a number of ``source.files``), ``_pos`` (int64)
        and, in format 3, ``_row_id`` (int64); the rows are those of ``source.snapshot_id``.

        Raises ``NoSuchTable``; ``TooManyRows`` as soon as the stream passes ``max_rows`` (never silently cut off);
        ``EngineFailed``.
        """
        ...

    def append(self, namespace: Sequence[str], name: str, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> int:
        """Adds rows in one snapshot, columns matched by name; says how many. Nothing lands unless all do.

        Raises ``NoSuchTable``, ``BadRequest`` (a column that is not there, NULL for a required one, a value that does
        not fit), ``CommitConflict``, ``EngineFailed``.
        """
        ...

    def change(
        self,
        namespace: Sequence[str],
        name: str,
        change: RowChange,
        schema: pa.Schema,
        rows: Iterable[pa.RecordBatch],
    ) -> Changed:
        """Takes rows away and adds rows, in one snapshot; nothing lands unless all does.

        ``rows`` have the table's columns by name and, in format 3, last ``_row_id``: the id to keep, null for a new
        row. No row deleted: a plain append. Nothing at all: no snapshot.

        Raises what ``append`` raises; ``CommitConflict`` when the table is not at ``change.source.snapshot_id``, when
        a row is deleted already or is not there, when a count does not match: a change is never skipped.
        """
        ...

    def truncate(self, namespace: Sequence[str], name: str, *, snapshot_id: int | None) -> Changed:
        """Removes every live file in one snapshot, without reading rows. A table without rows: no snapshot.

        Raises ``NoSuchTable``; ``CommitConflict`` when the table is not at ``snapshot_id``; ``EngineFailed``.
        """
        ...

    def cancel(self) -> None:
        """From another thread: stops the request that is running, if any; it raises ``Cancelled``."""
        ...

    def close(self) -> None: ...


class Engine(Protocol):
    def open_session(self, address: str, token: str) -> EngineSession: ...

    def ping(self) -> None:
        """Returns when the engine is ready to work; raises ``EngineFailed``."""
        ...

    def close(self) -> None: ...
