"""The engine port: where a lake table's rows are read and written, for the doors that hold rows themselves.

An engine session is bound to one session address of the server (``lake@~<id>``) with that session's token, so it
reads and writes at whatever the session's symbolic ref stands on. The caller marks statements; the engine never does.
Rows travel as Arrow record batches. Every method blocks and may be called from any thread; one engine session runs
one request at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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


class RowStream(Protocol):
    """Rows of one fetch. Iterating may raise what ``fetch`` may raise; closing early stops the engine's work."""

    @property
    def schema(self) -> pa.Schema: ...
    def __iter__(self) -> Iterator[pa.RecordBatch]: ...
    def close(self) -> None: ...
    def __enter__(self) -> RowStream: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None: ...


class EngineSession(Protocol):
    def fetch(
        self, namespace: Sequence[str], name: str, columns: Sequence[str] | None = None, *, max_rows: int | None = None
    ) -> RowStream:
        """All rows of a table, the given columns in the given order (``None``: all). A timestamp with a zone is UTC.

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
