"""What the server asks of a session, and what it hands to it. ``sql/`` implements ``Session``.

Who writes what: the server writes everything of startup, ErrorResponse (from a raised exception) and ReadyForQuery
(after ``simple_query`` and ``sync`` return or raise). The session writes everything else: RowDescription, DataRow,
CommandComplete, ParseComplete, NoticeResponse, ParameterStatus after a SET …, through its ``Sink``.

One message at a time: the server awaits each call before the next, except ``cancel``, which comes at any time while
another call runs. What a session raises:
- ``PgError`` becomes ErrorResponse; after an error in an extended call the server skips to the client's Sync and then
  calls ``sync``. With severity FATAL the connection ends (``close_session`` is still called).
- ``model.errors.IcefieldError`` is translated by ``sqlstate.py``.
- Anything else is logged with a request id and answered as XX000 naming that id; the connection goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from icefield.pgwire.messages import (
    BackendMessage,
    Bind,
    Close,
    CopyMessage,
    Describe,
    Execute,
    Parse,
    Query,
)


class Sink(Protocol):
    """Where a session's answer goes. ``write`` never blocks; call ``drain`` after each larger piece (about 64 kB)."""

    def write(self, message: BackendMessage | bytes | bytearray | memoryview) -> None:
        """A message, or raw bytes of one or more whole messages (CopyInResponse: alone, it changes what may follow)."""

    async def drain(self) -> None:
        """Send what was written and wait while the client is slow. Raises ConnectionError when the client is gone."""

    async def read_copy(self) -> CopyMessage:
        """After CopyInResponse was written: the client's next COPY message (CopyDone and CopyFail end it).

        Sends what was written first. A client that sends anything else raises PgError 08P01.
        """


class Session(Protocol):
    @property
    def parameters(self) -> Mapping[str, str]:
        """ParameterStatus values to announce at startup."""

    @property
    def transaction_status(self) -> bytes:
        """b"I", b"T" or b"E": asked each time ReadyForQuery is sent."""

    async def simple_query(self, message: Query, out: Sink) -> None: ...

    async def parse(self, message: Parse, out: Sink) -> None: ...

    async def bind(self, message: Bind, out: Sink) -> None: ...

    async def describe(self, message: Describe, out: Sink) -> None: ...

    async def execute(self, message: Execute, out: Sink) -> None: ...

    async def close(self, message: Close, out: Sink) -> None: ...

    async def flush(self, out: Sink) -> None:
        """The client wants what is ready now; the server drains ``out`` afterwards."""

    async def sync(self, out: Sink) -> None:
        """The end of an extended series, also of a failed one: end the implicit transaction (commit, or roll back)."""

    async def cancel(self) -> None:
        """A CancelRequest with this session's key came while a call runs. Return soon; the call raises 57014."""

    async def close_session(self) -> None:
        """The client left, or the server stops. Roll back, give back what is held. Called once, also after errors."""


class SessionFactory(Protocol):
    async def __call__(self, startup: Mapping[str, str], backend_key: tuple[int, int]) -> Session:
        """Open a session for a client's startup parameters (``user`` is always there; ``database`` = user if not sent).

        Raise PgError (3D000, 28000 …) to refuse: it is sent as FATAL.
        """
