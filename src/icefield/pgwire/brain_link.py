"""A connection to the brain: PostgreSQL's protocol from the client's side, over a unix socket.

    link = await BrainLink.open(cluster.socket_dir, user=…, password=…, database=…)
    result = await link.query("SELECT 1, 'a'")              # our own statements; result.rows == [("1", "a")]
    result = await link.execute("SELECT $1::int", ["1"])    # extended protocol, text parameters
    async for run in link.relay(encode(Query(sql))):        # until ReadyForQuery, which is the last run
        …run.kind (b"T", b"D", b"C", …), run.data (raw bytes), run.count
    async for run in link.relay(encode(parse) + FLUSH, until=PARSED): …

Two uses: our own statements (``query``, ``execute``, ``copy_in``, ``copy_out``), where an ErrorResponse becomes a
PgError, and ``relay``, which hands on the brain's bytes without reading them. One at a time: a link is one session.

A brain that dies raises PgError (57P01 if it said so, else 08006; severity FATAL) from whatever waits and from every
later call: never a hang. A call that was left in the middle (a cancelled task, a relay not read to its end) leaves the
link *owing* answers: ``resync`` takes them; any other call is refused until then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from icefield.pgwire import messages as m
from icefield.pgwire.codec import Run, backend_frames, decode_run, encode, text, wire
from icefield.pgwire.errors import PgError, ProtocolError
from icefield.pgwire.scram import MECHANISM, ScramClient
from icefield.pgwire.streams import ByteStream

FLUSH = encode(m.Flush())
SYNC = encode(m.Sync())

PARSED = b"1"
BOUND = b"2"
DESCRIBED = b"Tn"
"""Describe of a statement answers ParameterDescription first, and ends with one of these, too."""
EXECUTED = b"CIs"
CLOSED = b"3"
READY = b"Z"

_MERGEABLE = b"Dd"
_COPY_CHUNK = 1 << 20
_CANCEL_AGAIN_S = 0.5
_M = TypeVar("_M", bound=m.BackendMessage)
PORT = 5432


@dataclass(frozen=True, slots=True)
class QueryResult:
    columns: tuple[m.FieldDescription, ...]
    """Of the last result set; () if there was none."""
    rows: list[tuple[str | None, ...]]
    """Of the last result set, as text."""
    tags: tuple[str, ...]
    notices: tuple[Mapping[str, str], ...] = ()

    @property
    def tag(self) -> str:
        """The last command's."""
        return self.tags[-1] if self.tags else ""

    def scalar(self) -> str | None:
        """The first column of the first row; None if there is no row."""
        return self.rows[0][0] if self.rows else None


_NOT_YET = ("57P03", "57P02", "08006")
"""While it is being opened: it starts or recovers, or goes down with a crashed backend and closes in our face."""


class BrainLink:
    def __init__(self, stream: ByteStream, socket: Path) -> None:
        """Use ``open``."""
        self._stream = stream
        self._socket = socket
        self._frames = backend_frames()
        self._owing = False
        self._down: PgError | None = None
        self._secret = 0
        self.backend_pid = 0
        self.parameters: dict[str, str] = {}
        self.transaction_status = b"I"

    # opening and closing --------------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        socket_dir: Path | str,
        *,
        user: str,
        password: str,
        database: str,
        options: Mapping[str, str] | None = None,
        port: int = PORT,
        timeout_s: float = 10.0,
    ) -> BrainLink:
        """``options``: more startup parameters (``application_name``, ``client_encoding``, any setting).

        A brain that is just starting, or crashing and recovering, is waited for.
        """
        socket = Path(socket_dir) / f".s.PGSQL.{port}"
        parameters = {"user": user, "database": database, **(options or {})}
        not_yet: PgError | None = None
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        return await cls._open_once(socket, parameters, password)
                    except PgError as error:
                        if error.sqlstate not in _NOT_YET:
                            raise
                        not_yet = error
                    await asyncio.sleep(0.02)
        except TimeoutError:  # an OSError, too: so it comes first
            why = not_yet.message if not_yet is not None else "it says nothing"
            raise PgError(
                "08001", f"the brain took no connection within {timeout_s} s: {why}", severity="FATAL"
            ) from not_yet
        except OSError as error:
            reason = error.strerror or str(error)
            raise PgError("08001", f"the brain cannot be reached at {socket}: {reason}", severity="FATAL") from error

    @classmethod
    async def _open_once(cls, socket: Path, parameters: Mapping[str, str], password: str) -> BrainLink:
        link = cls(await _connect(socket), socket)
        try:
            await link._start(parameters, password)
        except BaseException:
            link._stream.abort()
            raise
        return link

    @property
    def closed(self) -> bool:
        return self._down is not None or self._stream.lost or self._stream.ended

    @property
    def owing(self) -> bool:
        """A call was left in the middle: ``resync`` or ``close``."""
        return self._owing

    async def close(self) -> None:
        """Say goodbye if that is possible; never raises for a brain that is gone already."""
        if not self.closed and not self._owing:
            self._stream.write(encode(m.Terminate()))
        elif self._owing:
            with contextlib.suppress(PgError):
                await self.cancel()
        self._down = self._down or PgError("08003", "the link to the brain is closed", severity="FATAL")
        await self._stream.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def cancel(self) -> None:
        """Ask the brain to cancel what this link runs. The statement then fails with 57014, if it was not done."""
        try:
            async with asyncio.timeout(5):
                stream = await _connect(self._socket)
                stream.write(encode(m.CancelRequest(self.backend_pid, self._secret)))
                try:
                    await stream.read()  # the brain closes once the signal is sent
                finally:
                    await stream.close()
        except (OSError, TimeoutError) as error:
            raise PgError("08006", "the brain could not be reached to cancel a statement", severity="FATAL") from error

    async def resync(self, timeout_s: float = 10.0) -> None:
        """Back to a ready link after a call that was left in the middle: cancel it and drop its answers.

        An implicit transaction ends with this; an explicit one may be left failed (``transaction_status``).
        """
        self._check_up()
        if not self._owing:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self.cancel()
                # What is owed is unknown: none, one or more Z. CopyFail ends a COPY that waits for data, Sync ends an
                # extended series, and two empty queries mark the end: two I, each right after a Z, come from nothing
                # else that one call on this link sends. Empty queries are allowed in failed transactions, too.
                self._stream.write(encode(m.CopyFail("cancelled")) + SYNC + 2 * encode(m.Query("")))
                previous, marks = b"", 0
                clock = asyncio.get_running_loop().time
                cancelled = clock()
                while not (previous == READY and marks == 2):
                    kind = b"N"
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_CANCEL_AGAIN_S):
                            kind = (await self._next_run()).kind
                    if clock() - cancelled > _CANCEL_AGAIN_S:
                        await self.cancel()  # the first one may have come before the statement had begun
                        cancelled = clock()
                    if kind in b"NSA":
                        continue
                    if kind == b"I" and previous == READY:
                        marks += 1
                    elif kind != READY or previous == READY:
                        marks = 0
                    previous = kind
        except TimeoutError:
            raise self._lost("it did not answer after a cancel") from None
        self._owing = False

    # our own statements ---------------------------------------------------------------------------------------------

    async def query(self, sql: str) -> QueryResult:
        """One or more statements by the simple protocol. Raises PgError for the first that fails."""
        return await self._collect(encode(m.Query(sql)))

    async def execute(self, sql: str, params: Sequence[str | None] = ()) -> QueryResult:
        """One statement with text parameters, which the brain types by context or by casts in ``sql``."""
        values = tuple(None if p is None else wire(p) for p in params)
        return await self._collect(
            encode(m.Parse("", sql))
            + encode(m.Bind("", "", (), values, ()))
            + encode(m.Describe(m.Target.PORTAL, ""))
            + encode(m.Execute("", 0))
            + SYNC
        )

    async def fetch_binary(self, sql: str) -> tuple[bytes | None, ...]:
        """The one row of a query, in PostgreSQL's binary format: for what is large."""
        request = encode(m.Parse("", sql)) + encode(m.Bind("", "", (), (), (1,))) + encode(m.Execute("", 0)) + SYNC
        values: tuple[bytes | None, ...] = ()
        error: PgError | None = None
        async for run in self.relay(request):
            if run.kind == b"D":
                values = _expect(run, m.DataRow).values
            elif run.kind == b"E":
                error = error or PgError.from_fields(_expect(run, m.ErrorResponse).fields)
        if error is not None:
            raise error
        return values

    async def _collect(self, request: bytes) -> QueryResult:
        columns: tuple[m.FieldDescription, ...] = ()
        rows: list[tuple[str | None, ...]] = []
        tags: list[str] = []
        notices: list[Mapping[str, str]] = []
        error: PgError | None = None
        async for run in self.relay(request):
            match run.kind:
                case b"D":
                    rows.extend(_text_rows(run))
                case b"T":
                    columns, rows = _expect(run, m.RowDescription).fields, []
                case b"C":
                    tags.append(_expect(run, m.CommandComplete).tag)
                case b"N":
                    notices.append(_expect(run, m.NoticeResponse).fields)
                case b"E":
                    error = error or PgError.from_fields(_expect(run, m.ErrorResponse).fields)
                case b"G":
                    self._stream.write(encode(m.CopyFail("use copy_in for COPY FROM STDIN")))
                case _:
                    pass
        if error is not None:
            raise error
        return QueryResult(columns, rows, tuple(tags), tuple(notices))

    async def copy_in(self, sql: str, chunks: Iterable[bytes] | AsyncIterable[bytes]) -> str:
        """``COPY … FROM STDIN``: the chunks' bytes in order, cut anywhere. Returns the tag (``COPY 5``).

        If ``chunks`` raises, the COPY fails in the brain and the exception goes on.
        """
        self._begin(encode(m.Query(sql)))
        failure: Exception | None = None
        error: PgError | None = None
        tag = ""
        while (run := await self._next_run()).kind != READY:
            match run.kind:
                case b"G":
                    try:
                        await self._send_copy(chunks)
                    except Exception as exc:
                        if self._down is not None:
                            raise
                        failure = exc
                        self._stream.write(encode(m.CopyFail(f"the source of the data failed: {type(exc).__name__}")))
                case b"C":
                    tag = _expect(run, m.CommandComplete).tag
                case b"E":
                    error = error or PgError.from_fields(_expect(run, m.ErrorResponse).fields)
                case _:
                    pass
        self._owing = False
        if failure is not None:
            raise failure
        if error is not None:
            raise error
        return tag

    async def _send_copy(self, chunks: Iterable[bytes] | AsyncIterable[bytes]) -> None:
        async for chunk in _aiter(chunks):
            if self._stream.has_data and await self._failed_early():
                return  # the brain refused a row: it drops the rest, so do not send it
            view = memoryview(chunk)
            for start in range(0, len(view), _COPY_CHUNK):
                part = view[start : start + _COPY_CHUNK]
                self._stream.write(b"d" + (len(part) + 4).to_bytes(4, "big"))
                self._stream.write(bytes(part))
                await self._drain()
        self._stream.write(encode(m.CopyDone()))

    async def _failed_early(self) -> bool:
        """Something arrived in the middle of COPY IN. Notices may; an error is left for the caller to find."""
        self._frames.feed(await self._stream.read())
        return self._frames.contains(b"E")

    async def copy_out(self, sql: str) -> AsyncIterator[bytes]:
        """``COPY … TO STDOUT``: the data's bytes in order, in pieces of whole rows."""
        error: PgError | None = None
        async for run in self.relay(encode(m.Query(sql))):
            if run.kind == b"d":
                yield _copy_payload(run)
            elif run.kind == b"E":
                error = error or PgError.from_fields(_expect(run, m.ErrorResponse).fields)
        if error is not None:
            raise error

    # relaying -------------------------------------------------------------------------------------------------------

    async def relay(self, request: bytes, *, until: bytes = READY) -> AsyncIterator[Run]:
        """Send ``request`` and yield what comes back, up to and with the message that ends it.

        That is one whose kind is in ``until``; ReadyForQuery ends it always, and ErrorResponse ends it when ``until``
        does not hold READY (the extended protocol then waits for a Sync). A request that is not ended by Query or Sync
        must end with FLUSH. ErrorResponse is yielded, not raised, unless it is FATAL. While it runs, ``send`` more
        (COPY data). ParameterStatus and transaction status are taken note of, and yielded, too.
        """
        self._begin(request)
        while True:
            run = await self._next_run()
            kind = run.kind
            if kind in until or kind == READY or (kind == b"E" and READY not in until):
                self._owing = False
                yield run
                return
            yield run

    async def send(self, data: bytes) -> None:
        """More frontend messages in the middle of a relay; waits while the brain is slow."""
        self._check_up()
        self._stream.write(data)
        await self._drain()

    # inside ---------------------------------------------------------------------------------------------------------

    async def _start(self, parameters: Mapping[str, str], password: str) -> None:
        self._owing = True
        self._stream.write(encode(m.StartupMessage(parameters)))
        scram = ScramClient(password)
        while (run := await self._next_run()).kind != READY:
            match decode_run(run):
                case m.Authentication(code=0):
                    pass
                case m.Authentication(code=10, data=data):
                    if MECHANISM.encode() not in data.split(b"\x00"):
                        raise PgError("28000", f"the brain does not offer {MECHANISM}", severity="FATAL")
                    first = scram.first()
                    length = len(first).to_bytes(4, "big")
                    self._stream.write(encode(m.Password(MECHANISM.encode() + b"\x00" + length + first)))
                case m.Authentication(code=11, data=data):
                    self._stream.write(encode(m.Password(scram.final(data))))
                case m.Authentication(code=12, data=data):
                    scram.verify(data)
                case m.Authentication(code=code):
                    raise PgError("28000", f"the brain asks for authentication method {code}", severity="FATAL")
                case m.BackendKeyData(pid=pid, secret=secret):
                    self.backend_pid, self._secret = pid, secret
                case m.ErrorResponse(fields=fields):
                    raise PgError.from_fields(fields)
                case _:
                    pass
        self._owing = False

    def _begin(self, request: bytes) -> None:
        self._check_up()
        if self._owing:
            raise RuntimeError("the link to the brain is in the middle of another call: resync() or close() it")
        self._owing = True
        self._stream.write(request)

    async def _drain(self) -> None:
        try:
            await self._stream.drain()
        except ConnectionError:
            # The brain may have said why before it went: that is better than our own words.
            while True:
                await self._next_run()

    def _check_up(self) -> None:
        if self._down is not None:
            raise PgError.from_fields(self._down.to_fields())

    async def _next_run(self) -> Run:
        """The next run, with what the link itself notes of it. Raises PgError FATAL when the brain is gone."""
        while True:
            try:
                run = self._frames.next_run(_MERGEABLE)
            except ProtocolError as error:
                raise self._lost(error.message) from error
            if run is not None:
                self._note(run)
                return run
            data = await self._stream.read()
            if not data:
                raise self._lost("it closed the connection; it may have been stopped or have crashed")
            self._frames.feed(data)

    def _note(self, run: Run) -> None:
        match run.kind:
            case b"Z":
                self.transaction_status = run.body
            case b"S":
                status = _expect(run, m.ParameterStatus)
                self.parameters[status.name] = status.value
            case b"E":
                error = PgError.from_fields(_expect(run, m.ErrorResponse).fields)
                if error.fatal:
                    self._down = error
                    self._stream.abort()
                    raise error
            case _:
                pass

    def _lost(self, why: str) -> PgError:
        self._down = self._down or PgError("08006", f"the connection to the brain was lost: {why}", severity="FATAL")
        self._stream.abort()
        return self._down


async def _connect(socket: Path) -> ByteStream:
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_unix_connection(ByteStream, str(socket))
    return stream


def _expect(run: Run, cls: type[_M]) -> _M:
    message = decode_run(run)
    if not isinstance(message, cls):
        raise ProtocolError(f"expected {cls.__name__}, the brain sent {type(message).__name__}")
    return message


def _text_rows(run: Run) -> Iterable[tuple[str | None, ...]]:
    frames = backend_frames()
    frames.feed(run.data)
    while (one := frames.next_run(b"")) is not None:
        yield tuple(None if v is None else text(v) for v in _expect(one, m.DataRow).values)


def _copy_payload(run: Run) -> bytes:
    if run.count == 1:
        return run.body
    view, parts, pos = memoryview(run.data), [], 0
    while pos < len(view):
        end = pos + 1 + int.from_bytes(view[pos + 1 : pos + 5], "big")
        parts.append(view[pos + 5 : end])
        pos = end
    return b"".join(parts)


async def _aiter(chunks: Iterable[bytes] | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(chunks, AsyncIterable):
        async for chunk in chunks:
            yield chunk
    else:
        for chunk in chunks:
            yield chunk
