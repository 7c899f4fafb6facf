"""Bytes in and out of an asyncio transport, bounded both ways.

Reading pauses while ``high_water`` bytes wait to be taken, and writing waits in ``drain`` while the peer is slow. The
end of the peer's stream is seen at once, not only when everything before it was read: a server wants to know that a
client has gone while its statement runs.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import cast


class Interrupted(Exception):
    """An idle reader was woken by ``ByteStream.interrupt``."""


class ByteStream(asyncio.Protocol):
    def __init__(
        self,
        *,
        high_water: int = 1 << 18,
        on_connected: Callable[[ByteStream], None] | None = None,
        on_eof: Callable[[], None] | None = None,
    ) -> None:
        self._high_water = high_water
        self._on_connected = on_connected
        self.on_eof = on_eof
        self._transport: asyncio.Transport | None = None
        self._chunks: deque[bytes] = deque()
        self._waiting = 0
        self._paused = False
        self._eof = False
        self._interrupted = False
        self._lost: ConnectionError | None = None
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.Event()

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._on_connected is not None:
            self._on_connected(self)

    def data_received(self, data: bytes) -> None:
        self._chunks.append(data)
        self._waiting += len(data)
        self._readable.set()
        if self._waiting >= self._high_water and not self._paused:
            self._paused = True
            self._open_transport().pause_reading()

    def eof_received(self) -> bool:
        self._end()
        return True  # our side stays open: what was asked for before the end is still answered

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = ConnectionResetError("the connection was lost")
        self._lost.__cause__ = exc
        self._writable.set()
        self._closed.set()
        self._end()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # what its owner calls

    @property
    def ended(self) -> bool:
        """The peer will send no more (there may still be bytes to read)."""
        return self._eof

    @property
    def lost(self) -> bool:
        """Nothing can be written any more."""
        return self._lost is not None

    @property
    def has_data(self) -> bool:
        return bool(self._chunks)

    @property
    def unsent(self) -> int:
        """Bytes written that the operating system has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def peer(self) -> object:
        return None if self._transport is None else self._transport.get_extra_info("peername")

    async def read(self, *, interruptible: bool = False) -> bytes:
        """What has arrived, at least one byte; b"" at the end of the stream."""
        while not self._chunks:
            if self._eof:
                return b""
            if interruptible and self._interrupted:
                raise Interrupted
            self._readable.clear()
            await self._readable.wait()
        data = self._chunks.popleft()
        self._waiting -= len(data)
        if self._paused and self._waiting < self._high_water:
            self._paused = False
            if self._lost is None:
                self._open_transport().resume_reading()
        return data

    def interrupt(self) -> None:
        """Every interruptible read that would wait raises ``Interrupted``, from now on."""
        self._interrupted = True
        self._readable.set()

    def keep_alive(self) -> None:
        """Let the operating system find out that a silent peer's machine is gone."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def write(self, data: bytes) -> None:
        if self._lost is None:
            self._open_transport().write(data)

    async def drain(self) -> None:
        await self._writable.wait()
        if self._lost is not None:
            raise ConnectionResetError("the connection was lost") from self._lost

    def abort(self) -> None:
        """Drop the connection, with whatever was not sent."""
        if self._transport is not None:
            self._transport.abort()

    async def close(self, timeout_s: float = 5.0) -> None:
        """Send what was written, within the time given, then close."""
        if self._transport is None:
            return
        self._transport.close()
        try:
            await asyncio.wait_for(self._closed.wait(), timeout_s)
        except TimeoutError:
            self.abort()

    def _end(self) -> None:
        if not self._eof:
            self._eof = True
            self._readable.set()
            if self.on_eof is not None:
                self.on_eof()

    def _open_transport(self) -> asyncio.Transport:
        if self._transport is None:
            raise ConnectionError("not connected")
        return self._transport
