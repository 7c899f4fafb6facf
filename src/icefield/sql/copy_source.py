"""The client's data of a COPY FROM STDIN: taken from the client once, kept, and given to the brain as often as it asks.

A statement may have to run again (a shadow that must be filled, too; a conflict at the commit), and a client sends its
data only once. They are sent on as they come, and kept beside: in memory up to a bound, then in a file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from types import TracebackType
from typing import Self

from icefield.pgwire import messages as m
from icefield.pgwire.brain_link import BrainLink
from icefield.pgwire.codec import encode
from icefield.pgwire.session import Sink

_IN_MEMORY = 8 << 20
_PIECE = 1 << 18


class CopySource:
    """Called with the brain's CopyInResponse, the first time and each time again."""

    def __init__(self, link: BrainLink, out: Sink, check: Callable[[], None]) -> None:
        """``check`` raises when the statement is to stop; the client may have data without end."""
        self._link = link
        self._out = out
        self._check = check
        self._kept: tempfile.SpooledTemporaryFile[bytes] | None = None
        self._complete = False
        """The client said that this was all, or that it gave up."""

    @property
    def used(self) -> bool:
        return self._kept is not None

    async def __call__(self, response: bytes) -> None:
        if self._kept is None:
            self._kept = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, prefix="icefield-copy-")  # noqa: SIM115
            self._out.write(response)
            await self._take(self._kept)
            self._complete = True
        elif self._complete:
            await self._replay(self._kept)
        else:
            raise RuntimeError("the client's data were not read to their end: they cannot be sent again")

    async def _take(self, kept: tempfile.SpooledTemporaryFile[bytes]) -> None:
        while True:
            message = await self._out.read_copy()
            self._check()
            data = encode(message)
            kept.write(data)
            await self._link.send(data)
            if not isinstance(message, m.CopyData):
                return

    async def _replay(self, kept: tempfile.SpooledTemporaryFile[bytes]) -> None:
        kept.seek(0)
        while piece := kept.read(_PIECE):
            await self._link.send(piece)

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
