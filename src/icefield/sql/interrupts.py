"""What stops a statement before its end: a CancelRequest of its client, and ``statement_timeout``.

The brain knows the timeout only for its own part; here it covers the whole of a statement, Spark's part and the pauses
between two runs, too. A request is *pursued* until the statement has ended: between two steps there is nothing to be
stopped, and the next one must be. It never touches what ends a transaction (``shielded``): what became of a COMMIT is
told as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from icefield.pgwire.brain_link import BrainLink
from icefield.pgwire.errors import PgError

log = logging.getLogger("icefield.sql")

BY_USER = "canceling statement due to user request"
BY_TIMEOUT = "canceling statement due to statement timeout"
_AGAIN_S = (0.05, 0.1, 0.2, 0.5)
"""A request that came between two steps is made again this much later; the last one for ever."""
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "": 1e-3}


class Stoppable(Protocol):
    """The client's way to the engine."""

    async def cancel(self) -> None: ...


class Interrupts:
    def __init__(self, link: BrainLink, engine: Stoppable) -> None:
        self._link = link
        self._engine = engine
        self._why: str | None = None
        self._pursuit: asyncio.Task[None] | None = None
        self._step = asyncio.Lock()
        """Held while something is being stopped."""
        self._shields = 0
        self._asked = asyncio.Event()
        self._timeout = _Timeout(link)

    # asking ---------------------------------------------------------------------------------------------------------

    def request(self, why: str = BY_USER) -> None:
        if self._why is None:
            self._why = why
            self._asked.set()
            self._pursuit = asyncio.create_task(self._pursue(), name="stopping a statement")

    async def _pursue(self) -> None:
        waits = iter(_AGAIN_S)
        wait = 0.0
        while True:
            async with self._step:
                if self._why is None:
                    return
                if not self._shields:
                    await self._stop()
            wait = next(waits, wait)
            await asyncio.sleep(wait)

    async def _stop(self) -> None:
        try:
            await self._engine.cancel()
            if self._link.owing and not self._link.closed:
                await self._link.cancel()
        except PgError as error:
            log.warning("a statement could not be stopped: %s", error)
        except Exception:
            log.exception("a statement could not be stopped")

    # heeding --------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        if self._why is not None:
            raise PgError("57014", self._why)

    def explained(self, error: BaseException) -> BaseException:
        """What became of a statement that was to stop: whatever broke it, it was stopped."""
        if self._why is None or not isinstance(error, PgError) or error.fatal or error.sqlstate == "08007":
            return error  # 08007: it may have been committed
        return PgError("57014", self._why)

    async def pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._asked.wait(), seconds)
        self.check()

    async def forget(self) -> None:
        """The statement has ended. Returns when nothing is being stopped any more."""
        pursuit, self._pursuit = self._pursuit, None
        self._why = None
        self._asked.clear()
        if pursuit is not None:
            async with self._step:
                pursuit.cancel()

    @asynccontextmanager
    async def shielded(self) -> AsyncIterator[None]:
        async with self._step:
            self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1

    # statement_timeout ----------------------------------------------------------------------------------------------

    def noticed(self, text: str) -> None:
        """A text that the client sends: it may set the timeout."""
        self._timeout.noticed(text)

    @asynccontextmanager
    async def timed(self) -> AsyncIterator[None]:
        """Around a statement."""
        seconds = await self._timeout.seconds()
        if seconds is None:
            yield
            return
        timer = asyncio.get_running_loop().call_later(seconds, self.request, BY_TIMEOUT)
        try:
            yield
            if self._why == BY_TIMEOUT:
                await self.forget()  # it came too late
        finally:
            timer.cancel()


class _Timeout:
    """The setting. PostgreSQL does not report its changes, so texts are looked at, and the brain asked when needed."""

    _NAME = "statement_timeout"
    _SHOWN = re.compile(r"(\d+)(us|ms|s|min|h|d)?")

    def __init__(self, link: BrainLink) -> None:
        self._link = link
        self._seconds: float | None = None
        self._known = False
        self._changes = False
        """It was ever set in this session: from then on it is asked for each time (a ROLLBACK may take it back)."""

    def noticed(self, text: str) -> None:
        if not self._changes and self._NAME in text.lower():
            self._changes = True

    async def seconds(self) -> float | None:
        link = self._link
        if (not self._known or self._changes) and not (link.owing or link.closed or link.transaction_status == b"E"):
            shown = (await link.query(f"SHOW {self._NAME}")).scalar() or "0"
            found = self._SHOWN.fullmatch(shown)
            seconds = int(found[1]) * _UNITS[found[2] or ""] if found else 0.0
            self._seconds = seconds or None
            self._known = True
        return self._seconds
