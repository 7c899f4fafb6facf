"""Fills: a lake table's rows on their way into the brain, and new rows on their way into the lake, through the engine.

``TableRows`` is one client's: it opens its engine session at the first touch of lake data, and keeps small tables that
it fetched, by the table's version, since what a metadata location names never changes. A fetch for a change says, too,
where each row came from (``Origin``), so that the change can name it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from icefield.engine.port import (
    Cancelled,
    Changed,
    Engine,
    EngineBusy,
    EngineFailed,
    EngineLost,
    EngineSession,
    RowChange,
    TooManyRows,
)
from icefield.model.errors import CommitConflict, IcefieldError
from icefield.pgwire.errors import PgError
from icefield.pgwire.sqlstate import to_pg_error
from icefield.sql.origin import Origin
from icefield.sql.rows import CopyEncoder
from icefield.sql.shadows import Shadow

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")
_CACHE_BYTES = 32 << 20
_CACHE_ENTRY = 4 << 20
_Version = tuple[tuple[str, ...], str, str]

LIMIT_HINT = (
    "Every row of a table that a statement reads is fetched. SET icefield.max_fetched_rows to a higher number if the"
    " machine can hold them."
)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A small table's rows, ready for COPY."""

    data: bytes
    rows: int
    origin: Origin | None


def too_many_rows(limit: int) -> PgError:
    return PgError(
        "54000", f"the statement reads more than {limit} rows of the lake (icefield.max_fetched_rows)", hint=LIMIT_HINT
    )


class TableRows:
    def __init__(self, engine: Engine, executor: Executor, address: str, token: str) -> None:
        self._engine = engine
        self._executor = executor
        self._address = address
        self._token = token
        self._session: EngineSession | None = None
        self._working = False
        self._cache: OrderedDict[_Version, _Kept] = OrderedDict()

    async def chunks(
        self, shadow: Shadow, max_rows: int, count: Callable[[int], None], origin: Origin | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The table as binary COPY. ``count`` is told how many rows came, ``origin`` where from. Raises PgError."""
        version = (shadow.namespace, shadow.name, shadow.version) if shadow.version is not None else None
        kept = self._cache.get(version) if version is not None else None
        if version is not None and kept is not None and (origin is None or kept.origin is not None):
            self._cache.move_to_end(version)
            count(kept.rows)
            if kept.rows > max_rows:
                raise too_many_rows(max_rows)
            if origin is not None and kept.origin is not None:
                origin.take(kept.origin)
            yield kept.data
            return
        encoder = CopyEncoder(str(shadow), shadow.columns)
        keep: list[bytes] | None = [encoder.header()] if version is not None else None
        yield encoder.header() if keep is None else keep[0]
        total = size = 0
        batches = await self._run(lambda session: self._batches(session, shadow, encoder, max_rows, origin))
        ahead = asyncio.create_task(self._run(lambda _: next(batches, None)))
        try:
            while (piece := await ahead) is not None:
                # The next batch is fetched and encoded while this one is sent.
                ahead = asyncio.create_task(self._run(lambda _: next(batches, None)))
                data, rows = piece
                total, size = total + rows, size + len(data)
                count(rows)
                if total > max_rows:
                    raise too_many_rows(max_rows)
                if keep is not None:
                    keep.append(data)
                    if size > _CACHE_ENTRY:
                        keep = None
                yield data
        finally:
            if not ahead.done():
                ahead.cancel()
            await asyncio.wait([ahead])
            if not ahead.cancelled():
                ahead.exception()  # looked at: it is told already, or nobody waits for it any more
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._executor, batches.close))
        last = encoder.finish()
        if keep is not None and version is not None:
            self._keep(version, _Kept(b"".join([*keep, last]), total, origin))
        yield last

    def _batches(
        self, session: EngineSession, shadow: Shadow, encoder: CopyEncoder, max_rows: int, origin: Origin | None
    ) -> _Closing[tuple[bytes, int]]:
        def work() -> Iterator[tuple[bytes, int]]:
            names = [column.name for column in shadow.columns]
            with session.fetch(
                shadow.namespace, shadow.name, names, max_rows=max_rows, identity=origin is not None
            ) as stream:
                for batch in stream:
                    if not batch.num_rows:
                        continue
                    if origin is not None:
                        origin.add(batch, len(names))
                        batch = batch.select(range(len(names)))
                    yield encoder.batch(batch), batch.num_rows
                if origin is not None:
                    origin.source = stream.source

        return _Closing(work())

    def _keep(self, version: _Version, kept: _Kept) -> None:
        self._cache[version] = kept
        total = sum(len(each.data) for each in self._cache.values())
        while total > _CACHE_BYTES:
            _, gone = self._cache.popitem(last=False)
            total -= len(gone.data)

    async def append(self, shadow: Shadow, rows: pa.Table) -> int:
        return await self._run(
            lambda session: session.append(shadow.namespace, shadow.name, rows.schema, rows.to_batches())
        )

    async def change(self, shadow: Shadow, change: RowChange, rows: pa.Table) -> Changed:
        return await self._run(
            lambda session: session.change(shadow.namespace, shadow.name, change, rows.schema, rows.to_batches())
        )

    async def truncate(self, shadow: Shadow, snapshot_id: int | None) -> Changed:
        return await self._run(lambda session: session.truncate(shadow.namespace, shadow.name, snapshot_id=snapshot_id))

    async def cancel(self) -> None:
        session = self._session
        if self._working and session is not None:
            await asyncio.get_running_loop().run_in_executor(None, session.cancel)

    async def rebind(self, address: str, token: str) -> None:
        """The client has another session on the server now."""
        await self.close()
        self._address, self._token = address, token

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await asyncio.get_running_loop().run_in_executor(self._executor, session.close)

    async def _run(self, work: Callable[[EngineSession], _T]) -> _T:
        """``work`` in a thread. If we are cancelled, the engine is, too, and we wait for it: one request at a time."""
        self._working = True
        task = asyncio.get_running_loop().run_in_executor(self._executor, self._guarded, work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await self.cancel()
            await asyncio.wait([task], timeout=10)
            raise
        finally:
            self._working = False

    def _guarded(self, work: Callable[[EngineSession], _T]) -> _T:
        try:
            if self._session is None:
                self._session = self._engine.open_session(self._address, self._token)
            return work(self._session)
        except EngineLost as error:
            self._session = None
            raise PgError(
                "58030",
                f"the engine (Spark) went away in the middle of the statement: {error.message}",
                hint="It is started again: try once more in a moment.",
            ) from error
        except Cancelled as error:
            raise PgError("57014", "canceling statement due to user request") from error
        except TooManyRows as error:
            raise PgError("54000", error.message, hint=LIMIT_HINT) from error
        except EngineBusy as error:
            raise to_pg_error(error) from error
        except EngineFailed as error:
            if error.message.startswith("conflict: "):
                raise to_pg_error(CommitConflict(error.message)) from error
            raise PgError(
                "58030",
                f"the engine (Spark) failed: {error.message}",
                hint="Nothing of this statement was written.",
            ) from error
        except IcefieldError as error:
            raise to_pg_error(error) from error


class _Closing(Iterator[_T]):
    """An iterator whose ``close`` may be called from another thread once ``next`` has returned."""

    def __init__(self, inner: Iterator[_T]) -> None:
        self._inner = inner

    def __next__(self) -> _T:
        return next(self._inner)

    def close(self) -> None:
        close = getattr(self._inner, "close", None)
        if close is not None:
            close()
