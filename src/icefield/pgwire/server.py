"""The only listening socket of the SQL door: connections in, sessions behind.

Per connection: startup, a session from the factory, then one message after the other until the client leaves. What
``session.py`` promises to sessions is kept here. In this version there are no principals: every user is let in, so the
server listens on loopback addresses only and refuses any other.

Bounds: connections, the time a client may take to start, the size of a message, what is read ahead (``ByteStream``) and
what is written ahead (``drain``; a session that never drains is stopped at ``unsent_limit``).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import secrets
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TypeVar, assert_never

from icefield.model.errors import BadRequest, IcefieldError, Unavailable
from icefield.pgwire import messages as m
from icefield.pgwire.codec import LARGE_LIMIT, encode
from icefield.pgwire.connection import NeedData, ServerConnection
from icefield.pgwire.errors import PgError, ProtocolError
from icefield.pgwire.session import Session, SessionFactory
from icefield.pgwire.sqlstate import to_pg_error
from icefield.pgwire.states import Outcome, State
from icefield.pgwire.streams import ByteStream, Interrupted

log = logging.getLogger("icefield.pgwire")

_COALESCE = 1 << 16
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Limits:
    max_connections: int = 100
    startup_s: float = 60.0
    """From connecting to a whole startup message."""
    idle_s: float | None = None
    """How long a session may wait for its client's next message; None = for ever."""
    gone_client_s: float = 10.0
    """A client that closed its side while a statement runs may still read the answer; after this it counts as gone."""
    message_bytes: int = LARGE_LIMIT
    unsent_limit: int = 64 << 20
    close_session_s: float = 30.0


class PgServer:
    """``await start()``, then ``port``; ``await stop()``."""

    def __init__(
        self, open_session: SessionFactory, *, host: str = "127.0.0.1", port: int = 0, limits: Limits | None = None
    ) -> None:
        _check_loopback(host)
        self._open_session = open_session
        self._host = host
        self.port = port
        self.limits = limits or Limits()
        self._server: asyncio.Server | None = None
        self._conversations: dict[_Conversation, asyncio.Task[None]] = {}
        self._by_key: dict[tuple[int, int], _Conversation] = {}
        self._last_pid = 0
        self._stopping = False

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: ByteStream(on_connected=self._connected), self._host, self.port, reuse_address=True
            )
        except OSError as error:
            raise Unavailable(
                f"the SQL door cannot listen on {self._host}:{self.port} ({error.strerror}): choose another port"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self, grace_s: float = 5.0) -> None:
        """Take no more clients; tell idle ones at once and busy ones when their statement ends or the grace does."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        for conversation in list(self._conversations):
            conversation.ask_to_stop()
        tasks = list(self._conversations.values())
        if tasks:
            _, busy = await asyncio.wait(tasks, timeout=grace_s)
            if busy:
                for conversation, task in list(self._conversations.items()):
                    if task in busy:
                        conversation.cancel_statement()
                _, busy = await asyncio.wait(busy, timeout=2.0)
            for task in busy:
                task.cancel()
            if busy:
                await asyncio.wait(busy, timeout=self.limits.close_session_s)
        if self._server is not None:
            await self._server.wait_closed()

    @property
    def connections(self) -> int:
        return len(self._conversations)

    # what a conversation asks ---------------------------------------------------------------------------------------

    async def open_session(self, startup: Mapping[str, str], key: tuple[int, int]) -> Session:
        return await self._open_session(startup, key)

    def register(self, conversation: _Conversation) -> tuple[int, int]:
        """A number and a secret by which another connection may cancel this one's statement."""
        if len(self._by_key) >= self.limits.max_connections:
            raise PgError("53300", "sorry, too many clients already", severity="FATAL")
        taken = {pid for pid, _ in self._by_key}
        while True:
            self._last_pid = self._last_pid % 0x7FFF_FFFF + 1
            if self._last_pid not in taken:
                break
        key = (self._last_pid, secrets.randbits(32))
        self._by_key[key] = conversation
        return key

    def unregister(self, key: tuple[int, int]) -> None:
        self._by_key.pop(key, None)

    def cancel(self, pid: int, secret: int) -> None:
        conversation = self._by_key.get((pid, secret))
        if conversation is not None:
            conversation.cancel_statement()

    # inside ---------------------------------------------------------------------------------------------------------

    def _connected(self, stream: ByteStream) -> None:
        # Those that have not started yet count, too, but leave room so that a CancelRequest gets through.
        if self._stopping or len(self._conversations) >= 2 * self.limits.max_connections + 10:
            stream.abort()
            return
        stream.keep_alive()
        conversation = _Conversation(self, stream)
        task = asyncio.get_running_loop().create_task(conversation.run(), name="pgwire-connection")
        self._conversations[conversation] = task
        task.add_done_callback(lambda _: self._conversations.pop(conversation, None))


class _Gone(ConnectionError):
    """The client left."""


class _Conversation:
    """One connection, from its first byte to its last. Also the session's Sink."""

    def __init__(self, server: PgServer, stream: ByteStream) -> None:
        self._server = server
        self._limits = server.limits
        self._stream = stream
        self._connection = ServerConnection(self._limits.message_bytes)
        self._session: Session | None = None
        self._out = bytearray()
        self._busy = False
        self._stop_asked = False
        self._gone_timer: asyncio.TimerHandle | None = None
        self._cancelling: set[asyncio.Task[None]] = set()
        stream.on_eof = self._client_closed

    async def run(self) -> None:
        key: tuple[int, int] | None = None
        try:
            startup = await self._startup()
            if startup is None:
                return
            key = self._server.register(self)
            await self._open(startup, key)
            await self._serve()
        except ConnectionError:
            pass
        except PgError as error:
            self._say_last(error)
        except asyncio.CancelledError:
            self._say_last(_shutting_down())
            raise
        except Exception:
            self._say_last(_internal_error("connection"))
        finally:
            await self._end(key)

    # startup --------------------------------------------------------------------------------------------------------

    async def _startup(self) -> m.StartupMessage | None:
        """The client's startup message; None if there is nothing to serve (a cancel request, a port scan)."""
        try:
            async with asyncio.timeout(self._limits.startup_s):
                while True:
                    match await self._next_event():
                        case m.SSLRequest() | m.GSSENCRequest():
                            self.write(b"N")
                            await self.drain()
                        case m.CancelRequest(pid=pid, secret=secret):
                            self._server.cancel(pid, secret)
                            return None
                        case m.StartupMessage() as startup:
                            return startup
                        case other:
                            raise ProtocolError(f"unexpected message {type(other).__name__} at startup")
        except TimeoutError:
            return None

    async def _open(self, startup: m.StartupMessage, key: tuple[int, int]) -> None:
        parameters = dict(startup.parameters)
        unknown = tuple(name for name in parameters if name.startswith("_pq_."))
        if startup.minor > 0 or unknown:
            self.write(m.NegotiateProtocolVersion(0, unknown))
            for name in unknown:
                del parameters[name]
        if not parameters.get("user"):
            raise PgError("28000", "no PostgreSQL user name specified in startup packet", severity="FATAL")
        if parameters.get("replication", "false").lower() not in ("false", "off", "no", "0"):
            raise PgError("0A000", "replication connections are not supported", severity="FATAL")
        parameters["database"] = parameters.get("database") or parameters["user"]
        try:
            self._session = await self._guarded("session's start", self._server.open_session(parameters, key))
        except PgError as error:
            raise _as_fatal(error) from error
        self.write(m.Authentication(0))
        for name, value in self._session.parameters.items():
            self.write(m.ParameterStatus(name, value))
        self.write(m.BackendKeyData(*key))
        self._ready(Outcome.OPENED)
        await self.drain()

    # messages -------------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        while True:
            try:
                event = await self._next_message()
            except ProtocolError as error:
                if error.fatal:
                    raise
                await self._failed(error)
                continue
            if isinstance(event, m.Terminate):
                return
            await self._handle(event)

    async def _handle(self, event: m.FrontendMessage) -> None:
        session = self._session
        assert session is not None
        try:
            match event:
                case m.Query():
                    await self._work(session.simple_query(event, self))
                case m.Parse():
                    await self._work(session.parse(event, self))
                case m.Bind():
                    await self._work(session.bind(event, self))
                case m.Describe():
                    await self._work(session.describe(event, self))
                case m.Execute():
                    await self._work(session.execute(event, self))
                case m.Close():
                    await self._work(session.close(event, self))
                case m.Flush():
                    await self._work(session.flush(self))
                    await self.drain()
                case m.Sync():
                    await self._work(session.sync(self))
                case m.FunctionCall():
                    raise PgError("0A000", "the function call protocol is not supported", hint="Use SELECT.")
                case (
                    m.StartupMessage()
                    | m.SSLRequest()
                    | m.GSSENCRequest()
                    | m.CancelRequest()
                    | m.Password()
                    | m.CopyData()
                    | m.CopyDone()
                    | m.CopyFail()
                    | m.Terminate()
                ):
                    raise ProtocolError(f"unexpected message {type(event).__name__}")
                case _:
                    assert_never(event)
        except PgError as error:
            await self._failed(error)
            return
        await self._answered()

    async def _work(self, call: Awaitable[None]) -> None:
        self._busy = True
        if self._stream.ended:
            self._client_closed()
        try:
            await self._guarded("statement", call)
        finally:
            self._busy = False
            self._forget_gone_timer()

    async def _guarded(self, what: str, call: Awaitable[_T]) -> _T:
        """What a session raises, as PgError. The client's leaving and our own stopping pass through."""
        try:
            return await call
        except PgError:
            raise
        except IcefieldError as error:
            raise to_pg_error(error) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise _internal_error(what) from None  # something inside the session was cancelled, not this connection
        except Exception as error:
            if isinstance(error, ConnectionError) and (self._stream.lost or isinstance(error, _Gone)):
                raise
            raise _internal_error(what) from None

    async def _failed(self, error: PgError) -> None:
        if error.fatal:
            raise error
        self.write(m.ErrorResponse(error.to_fields()))
        self._connection.answered(Outcome.FAILED)
        await self._answered()

    async def _answered(self) -> None:
        """A message was dealt with: say so if its series is at its end, and send if the client waits for it."""
        match self._connection.state:
            case State.SIMPLE | State.SYNCING:
                self._ready(Outcome.READY)
                await self.drain()
            case State.COPY_IN_SIMPLE | State.COPY_IN_EXTENDED:
                # CopyInResponse was written and the data not read to its end: the session's fault, not the client's.
                raise _internal_error("COPY")
            case _:
                if len(self._out) >= _COALESCE:
                    await self.drain()

    def _ready(self, outcome: Outcome) -> None:
        assert self._session is not None
        self.write(m.ReadyForQuery(self._session.transaction_status))
        self._connection.answered(outcome)

    # the session's sink ---------------------------------------------------------------------------------------------

    def write(self, message: m.BackendMessage | bytes | bytearray | memoryview) -> None:
        data = bytes(message) if isinstance(message, (bytes, bytearray, memoryview)) else encode(message)
        if data[:1] == b"G":
            self._connection.answered(Outcome.COPY_IN)
        if len(data) < _COALESCE:
            self._out += data
            if len(self._out) >= _COALESCE:
                self._hand_over()
        else:
            self._hand_over()
            self._send(data)

    async def drain(self) -> None:
        self._hand_over()
        await self._stream.drain()

    async def read_copy(self) -> m.CopyMessage:
        await self.drain()
        event = await self._next_event()
        if isinstance(event, (m.CopyData, m.CopyDone, m.CopyFail)):
            return event
        if isinstance(event, m.Terminate):
            raise _Gone
        raise ProtocolError(f"unexpected message {type(event).__name__} during COPY from stdin", severity="ERROR")

    def _hand_over(self) -> None:
        if self._out:
            data = bytes(self._out)
            self._out.clear()
            self._send(data)

    def _send(self, data: bytes) -> None:
        if self._stream.unsent > self._limits.unsent_limit:
            raise RuntimeError(f"{self._stream.unsent} bytes were written without drain()")
        self._stream.write(data)

    # reading --------------------------------------------------------------------------------------------------------

    async def _next_message(self) -> m.FrontendMessage:
        """The next message between statements: here a session is idle, and here it is told to stop."""
        while True:
            if self._stop_asked:
                raise _shutting_down()
            event = self._connection.next_event()
            if not isinstance(event, NeedData):
                return event
            await self.drain()
            try:
                async with asyncio.timeout(self._limits.idle_s):
                    self._receive(await self._stream.read(interruptible=True))
            except Interrupted:
                raise _shutting_down() from None
            except TimeoutError:
                raise PgError("57P05", "terminating connection due to idle-session timeout", severity="FATAL") from None

    async def _next_event(self) -> m.FrontendMessage:
        while isinstance(event := self._connection.next_event(), NeedData):
            self._receive(await self._stream.read())
        return event

    def _receive(self, data: bytes) -> None:
        if not data:
            raise _Gone
        self._connection.receive(data)

    # stopping -------------------------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        self._stop_asked = True
        self._stream.interrupt()
        if self._session is None:
            self._stream.abort()

    def cancel_statement(self) -> None:
        if self._busy and self._session is not None:
            task = asyncio.ensure_future(self._cancel(self._session))
            self._cancelling.add(task)
            task.add_done_callback(self._cancelling.discard)

    async def _cancel(self, session: Session) -> None:
        try:
            await session.cancel()
        except PgError as error:
            log.warning("a statement could not be cancelled: %s", error)
        except Exception:
            log.exception("a statement could not be cancelled")

    def _client_closed(self) -> None:
        """Told by the stream at once, while a statement may run; PostgreSQL looks for the same (POLLRDHUP)."""
        if not self._busy or self._gone_timer is not None:
            return
        delay = 0.0 if self._stream.lost else self._limits.gone_client_s
        self._gone_timer = asyncio.get_running_loop().call_later(delay, self._give_up_on_client)

    def _give_up_on_client(self) -> None:
        self._gone_timer = None
        self.cancel_statement()
        self._stream.abort()

    def _forget_gone_timer(self) -> None:
        if self._gone_timer is not None:
            self._gone_timer.cancel()
            self._gone_timer = None

    def _say_last(self, error: PgError) -> None:
        self._connection.close()
        with contextlib.suppress(Exception):
            self.write(m.ErrorResponse(_as_fatal(error).to_fields()))
            self._hand_over()

    async def _end(self, key: tuple[int, int] | None) -> None:
        self._connection.close()
        if key is not None:
            self._server.unregister(key)
        session, self._session = self._session, None
        if session is not None:
            try:
                async with asyncio.timeout(self._limits.close_session_s):
                    await session.close_session()
            except TimeoutError:
                log.error("a session did not close within %s s", self._limits.close_session_s)
            except Exception:
                log.exception("a session did not close cleanly")
        for task in self._cancelling:
            task.cancel()
        await self._stream.close()


def _as_fatal(error: PgError) -> PgError:
    return error if error.fatal else PgError.from_fields(error.to_fields() | {"S": "FATAL", "V": "FATAL"})


def _shutting_down() -> PgError:
    return PgError("57P01", "terminating connection due to administrator command", severity="FATAL")


def _internal_error(what: str) -> PgError:
    """Logs the exception being handled, if there is one, and names the log line to the client."""
    request = secrets.token_hex(6)
    log.exception("internal error in a %s", what, extra={"request_id": request})
    return PgError(
        "XX000", f"internal error (request {request})", hint="The server's log has the details under this request id."
    )


def _check_loopback(host: str) -> None:
    if host != "localhost":
        try:
            loopback = ipaddress.ip_address(host).is_loopback
        except ValueError:
            loopback = False
        if not loopback:
            raise BadRequest(
                f"the SQL door cannot listen on {host!r}: without principals anybody could come in, "
                "so only loopback addresses (127.0.0.1, ::1, localhost) are allowed",
                field="host",
            )
