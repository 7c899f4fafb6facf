"""The protocol between a door and the engine worker: frames of a JSON header and a body, over a Unix socket.

A connection is one engine session. It begins with ``{"op": "open", "address", "token", "way"}``; then requests, one at
a time. Replies end with ``{"ok": …}`` or ``{"error": {…}}``. Rows are frames ``{"rows": n}`` whose body is one Arrow
record batch message, after a frame ``{"schema": true}`` whose body is the Arrow schema message.

    fetch    -> {"op": "fetch", "namespace", "name", "columns", "max-rows", "identity"}
                <- source (if identity was asked), schema, rows…, ok | error
    append   -> {"op": "append", "namespace", "name"} + schema, rows…, {"end": true} | {"abort": true}  <- ok | error
    change   -> {"op": "change", "namespace", "name", "verb"} + source, alive, deleted…, then as append
    truncate -> {"op": "truncate", "namespace", "name", "snapshot-id"}         <- ok | error
    close    -> {"op": "close"}                                                <- ok
A source is a frame ``{"source": {"snapshot-id", "format-version"}}`` whose body is a JSON list of paths; ``alive`` is a
frame whose body is one Arrow batch message of one column; ``deleted`` frames are like rows.
On a connection that opened no session: {"op": "ping"} and {"op": "cancel", "session"}.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any

import msgspec

from icefield.engine import port
from icefield.model import errors
from icefield.model.errors import IcefieldError

if TYPE_CHECKING:
    import pyarrow as pa

_SIZES = struct.Struct(">II")
MAX_HEADER = 1 << 20


class ConnectionEnded(Exception):
    """The other side is gone."""


class FrameSocket:
    """Frames over a connected socket. Not for two threads at once."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = sock.makefile("rb", buffering=1 << 16)

    def send(self, header: dict[str, Any], body: bytes | memoryview | Any = b"") -> None:
        raw = msgspec.json.encode(header)
        view = memoryview(body)
        try:
            self._sock.sendall(_SIZES.pack(len(raw), view.nbytes) + raw)
            if view.nbytes:
                self._sock.sendall(view)
        except OSError as error:
            raise ConnectionEnded(str(error)) from error

    def receive(self) -> tuple[dict[str, Any], bytes]:
        header_size, body_size = _SIZES.unpack(self._exactly(_SIZES.size))
        if header_size > MAX_HEADER:
            raise ConnectionEnded("this is not the engine's protocol")
        header = msgspec.json.decode(self._exactly(header_size), type=dict[str, Any])
        return header, self._exactly(body_size) if body_size else b""

    def _exactly(self, size: int) -> bytes:
        try:
            raw = self._reader.read(size)
        except (OSError, ValueError) as error:
            raise ConnectionEnded(str(error)) from error
        if raw is None or len(raw) < size:
            raise ConnectionEnded("the connection was closed")
        return bytes(raw)

    def is_stale(self) -> bool:
        """Between requests nothing may arrive: what does is the end of the connection."""
        try:
            self._sock.setblocking(False)
            try:
                self._sock.recv(1, socket.MSG_PEEK)
            finally:
                self._sock.setblocking(True)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._reader.close()
        self._sock.close()


def _error_classes() -> dict[str, type[IcefieldError]]:
    modules = (vars(errors), vars(port))
    found = {c for names in modules for c in names.values() if isinstance(c, type) and issubclass(c, IcefieldError)}
    return {c.__name__: c for c in found}


_CLASSES = _error_classes()


def source_frame(source: port.FetchedFrom) -> tuple[dict[str, Any], bytes]:
    """Paths go in the body: there may be more of them than a header holds."""
    header = {"snapshot-id": source.snapshot_id, "format-version": source.format_version}
    return {"source": header}, msgspec.json.encode(source.files)


def source_of(header: dict[str, Any], body: bytes) -> port.FetchedFrom:
    told = header["source"]
    files = msgspec.json.decode(body, type=tuple[str, ...])
    return port.FetchedFrom(told["snapshot-id"], told["format-version"], files)


def alive_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([("rows", pa.int64())])


def deleted_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([("file", pa.int32()), ("pos", pa.int64()), ("row_id", pa.int64())])


def error_to_json(error: IcefieldError) -> dict[str, Any]:
    json: dict[str, Any] = {"type": type(error).__name__, "message": error.message}
    if isinstance(error, port.TooManyRows):
        json["limit"] = error.limit
    return json


def error_from_json(json: dict[str, Any]) -> IcefieldError:
    kind = _CLASSES.get(str(json.get("type")), port.EngineFailed)
    message = str(json.get("message", "the engine failed"))
    if issubclass(kind, port.TooManyRows):
        return kind(message, json.get("limit"))
    return kind(message)
