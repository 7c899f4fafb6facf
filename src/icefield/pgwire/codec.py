"""Bytes <-> messages, both directions, without I/O.

``Frames`` cuts a byte stream into whole messages and refuses what is longer than its limits before it is buffered.
``decode_startup``, ``decode_frontend`` and ``decode_backend`` read one message's body; ``encode`` writes any message.

Two kinds of malformed input: a broken frame (length, type) leaves no way to find the next message and is a FATAL
``ProtocolError``; a broken body inside a sound frame has severity ERROR, and the conversation may go on. Nothing else
is ever raised by decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

from icefield.pgwire import messages as m
from icefield.pgwire.errors import ProtocolError

PROTOCOL_MAJOR = 3
_CANCEL_CODE = 80877102
_SSL_CODE = 80877103
_GSSENC_CODE = 80877104

STARTUP_LIMIT = 10_000
SMALL_LIMIT = 10_000
PASSWORD_LIMIT = 65_535
LARGE_LIMIT = 256 * 1024 * 1024
"""Of a client's statement, parameters or COPY chunk (PostgreSQL's own is 1 GB: a client is not trusted so far)."""
BACKEND_LIMIT = 0x3FFF_FFFF

_INT16 = Struct("!h")
_UINT16 = Struct("!H")
_INT32 = Struct("!i")
_UINT32 = Struct("!I")
_HEADER = Struct("!cI")


def text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def wire(value: str) -> bytes:
    """The bytes of a text. Raises ValueError for what no C string can hold; see ``safe_wire`` for our own messages."""
    data = value.encode("utf-8", "surrogateescape")
    if 0 in data:
        raise ValueError("a text on the wire cannot contain U+0000")
    return data


def safe_wire(value: str) -> bytes:
    """Like ``wire`` but never fails: for messages to people, which may quote anything."""
    try:
        data = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = value.encode("utf-8", "backslashreplace")
    return data.replace(b"\x00", b"\\0")


# Frames -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole message; ``kind`` is its type byte, b"" for a startup packet, which has none."""

    kind: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Run:
    """One message, or many adjacent ones of the same mergeable kind, as they came."""

    kind: bytes
    data: bytes
    count: int

    @property
    def body(self) -> bytes:
        """Of a run of one message."""
        return self.data[5:]


class Frames:
    """Feed bytes, take whole messages. ``limits``: the longest body by type byte; other types are refused."""

    __slots__ = ("_data", "_limits", "_peer", "_pos")

    _COMPACT = 1 << 16

    def __init__(self, limits: Mapping[int, int], *, peer: str) -> None:
        self._limits = limits
        self._peer = peer
        self._data = bytearray()
        self._pos = 0

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        self._data += data

    def __len__(self) -> int:
        """Bytes not taken yet."""
        return len(self._data) - self._pos

    def next_startup(self) -> Frame | None:
        """The next packet of the startup phase: length and body, no type."""
        if len(self) < 4:
            return None
        length: int = _UINT32.unpack_from(self._data, self._pos)[0]
        if not 8 <= length <= STARTUP_LIMIT:
            raise ProtocolError(f"invalid length of startup packet: {length}")
        if len(self) < length:
            return None
        frame = Frame(b"", bytes(self._data[self._pos + 4 : self._pos + length]))
        self._consume(length)
        return frame

    def next(self) -> Frame | None:
        size = self._size_at(self._pos)
        if size is None or len(self) < size:
            return None
        start = self._pos
        frame = Frame(bytes(self._data[start : start + 1]), bytes(self._data[start + 5 : start + size]))
        self._consume(size)
        return frame

    def next_run(self, mergeable: bytes) -> Run | None:
        """The next message, raw; adjacent whole messages of one ``mergeable`` kind come as one run."""
        start = self._pos
        size = self._size_at(start)
        if size is None or len(self) < size:
            return None
        data, kind, count, end = self._data, self._data[start], 1, start + size
        if kind in mergeable:
            total = len(data)
            unpack, limit = _UINT32.unpack_from, self._limits[kind]
            while end + 5 <= total and data[end] == kind:
                length = unpack(data, end + 1)[0]
                after = end + 1 + length
                if after > total or not 4 <= length <= limit:
                    break  # partial, or wrong: found again, and judged, as the next message
                end = after
                count += 1
        run = Run(bytes((kind,)), bytes(memoryview(data)[start:end]), count)
        self._consume(end - start)
        return run

    def contains(self, kind: bytes) -> bool:
        """Is a message of this kind among the whole ones? Takes none of them."""
        pos = self._pos
        while (size := self._size_at(pos)) is not None and pos + size <= len(self._data):
            if self._data[pos] == kind[0]:
                return True
            pos += size
        return False

    def _size_at(self, pos: int) -> int | None:
        """The size of the message at ``pos`` with its header, or None if that much is not there yet."""
        if len(self._data) <= pos:
            return None
        kind = self._data[pos]
        limit = self._limits.get(kind)
        if limit is None:
            raise ProtocolError(f"invalid {self._peer} message type {kind}")
        if len(self._data) < pos + 5:
            return None
        length: int = _UINT32.unpack_from(self._data, pos + 1)[0]
        if length < 4:
            raise ProtocolError(f"invalid length {length} of a {self._peer} message of type {chr(kind)!r}")
        if length - 4 > limit:
            raise ProtocolError(
                f"a {self._peer} message of type {chr(kind)!r} has {length - 4} bytes; the limit is {limit}"
            )
        return 1 + length

    def _consume(self, count: int) -> None:
        self._pos += count
        if self._pos == len(self._data):
            self._data.clear()
            self._pos = 0
        elif self._pos >= self._COMPACT and self._pos * 2 >= len(self._data):
            del self._data[: self._pos]
            self._pos = 0


def frontend_frames(large_limit: int = LARGE_LIMIT) -> Frames:
    """A server's incoming stream."""
    limits = dict.fromkeys(b"DECSHXcf", SMALL_LIMIT) | dict.fromkeys(b"QPBFd", large_limit) | {ord("p"): PASSWORD_LIMIT}
    return Frames(limits, peer="frontend")


def backend_frames() -> Frames:
    """A client's incoming stream."""
    return Frames(dict.fromkeys(b"RKSZTDCIEN123nAtsGHWdcvV", BACKEND_LIMIT), peer="backend")


# Reading bodies -----------------------------------------------------------------------------------------------------


class _Body:
    """Reads a body front to back; whatever is missing or left over is a ProtocolError naming the message."""

    __slots__ = ("_data", "_pos", "_what")

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._pos = 0
        self._what = what

    def fail(self, why: str) -> ProtocolError:
        return ProtocolError(f"invalid message format: {self._what}: {why}", severity="ERROR")

    def _number(self, struct: Struct) -> int:
        try:
            value: int = struct.unpack_from(self._data, self._pos)[0]
        except Exception:
            raise self.fail("insufficient data left in message") from None
        self._pos += struct.size
        return value

    def int16(self) -> int:
        return self._number(_INT16)

    def uint16(self) -> int:
        return self._number(_UINT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def uint32(self) -> int:
        return self._number(_UINT32)

    def byte(self) -> bytes:
        return self.take(1)

    def take(self, count: int) -> bytes:
        end = self._pos + count
        if count < 0 or end > len(self._data):
            raise self.fail("insufficient data left in message")
        data = self._data[self._pos : end]
        self._pos = end
        return data

    def cstr(self) -> str:
        end = self._data.find(0, self._pos)
        if end < 0:
            raise self.fail("a string is not terminated")
        data = self._data[self._pos : end]
        self._pos = end + 1
        return text(data)

    def value(self) -> bytes | None:
        length = self.int32()
        if length == -1:
            return None
        return self.take(length)

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._pos)

    def at_end(self) -> bool:
        return self._pos >= len(self._data)

    def end(self) -> None:
        if not self.at_end():
            raise self.fail(f"{len(self._data) - self._pos} bytes left over")


def decode_startup(body: bytes) -> m.StartupPacket:
    """A packet of the startup phase, after its length. Any fault here is FATAL."""
    try:
        return _startup(_Body(body, "startup packet"))
    except ProtocolError as error:
        raise ProtocolError(error.message) from None


def _startup(body: _Body) -> m.StartupPacket:
    code = body.uint32()
    if code == _SSL_CODE:
        body.end()
        return m.SSLRequest()
    if code == _GSSENC_CODE:
        body.end()
        return m.GSSENCRequest()
    if code == _CANCEL_CODE:
        message = m.CancelRequest(body.int32(), body.uint32())
        body.end()
        return message
    major, minor = code >> 16, code & 0xFFFF
    if major != PROTOCOL_MAJOR:
        raise body.fail(f"unsupported frontend protocol {major}.{minor}: this server speaks 3.0")
    parameters: dict[str, str] = {}
    while name := body.cstr():
        parameters[name] = body.cstr()
    body.end()
    return m.StartupMessage(parameters, minor)


def _parse(b: _Body) -> m.Parse:
    return m.Parse(b.cstr(), b.cstr(), tuple(b.uint32() for _ in range(b.uint16())))


def _bind(b: _Body) -> m.Bind:
    return m.Bind(
        b.cstr(),
        b.cstr(),
        tuple(b.int16() for _ in range(b.uint16())),
        tuple(b.value() for _ in range(b.uint16())),
        tuple(b.int16() for _ in range(b.uint16())),
    )


def _target(b: _Body) -> m.Target:
    kind = b.byte()
    try:
        return m.Target(kind)
    except ValueError:
        raise b.fail(f"{kind!r} is neither a statement nor a portal") from None


def _terminate(b: _Body) -> m.Terminate:
    b.rest()  # whoever leaves is let go, whatever he says
    return m.Terminate()


_FRONTEND: dict[bytes, tuple[type, Callable[[_Body], m.FrontendMessage]]] = {
    b"Q": (m.Query, lambda b: m.Query(b.cstr())),
    b"P": (m.Parse, _parse),
    b"B": (m.Bind, _bind),
    b"D": (m.Describe, lambda b: m.Describe(_target(b), b.cstr())),
    b"C": (m.Close, lambda b: m.Close(_target(b), b.cstr())),
    b"E": (m.Execute, lambda b: m.Execute(b.cstr(), b.int32())),
    b"S": (m.Sync, lambda b: m.Sync()),
    b"H": (m.Flush, lambda b: m.Flush()),
    b"X": (m.Terminate, _terminate),
    b"F": (m.FunctionCall, lambda b: m.FunctionCall(b.rest())),
    b"d": (m.CopyData, lambda b: m.CopyData(b.rest())),
    b"c": (m.CopyDone, lambda b: m.CopyDone()),
    b"f": (m.CopyFail, lambda b: m.CopyFail(b.cstr())),
    b"p": (m.Password, lambda b: m.Password(b.rest())),
}


def frontend_type(kind: bytes) -> type:
    """The class of a frontend message, known before its body is read."""
    return _FRONTEND[kind][0]


def decode_frontend(frame: Frame) -> m.FrontendMessage:
    known = _FRONTEND.get(frame.kind)
    if known is None:
        raise ProtocolError(f"invalid frontend message type {frame.kind!r}")
    cls, read = known
    body = _Body(frame.body, cls.__name__)
    message = read(body)
    body.end()
    return message


def _field_description(b: _Body) -> m.FieldDescription:
    name, table_oid, attnum = b.cstr(), b.uint32(), b.int16()
    return m.FieldDescription(name, b.uint32(), table_oid, attnum, b.int16(), b.int32(), b.int16())


def _fields(b: _Body) -> dict[str, str]:
    fields: dict[str, str] = {}
    while (letter := b.byte()) != b"\x00":
        fields[letter.decode("latin-1")] = b.cstr()
    return fields


def _copy_response(b: _Body) -> tuple[int, tuple[int, ...]]:
    return b.byte()[0], tuple(b.int16() for _ in range(b.uint16()))


_BACKEND: dict[bytes, tuple[type, Callable[[_Body], m.BackendMessage]]] = {
    b"R": (m.Authentication, lambda b: m.Authentication(b.uint32(), b.rest())),
    b"v": (
        m.NegotiateProtocolVersion,
        lambda b: m.NegotiateProtocolVersion(b.uint32(), tuple(b.cstr() for _ in range(_small_count(b)))),
    ),
    b"K": (m.BackendKeyData, lambda b: m.BackendKeyData(b.int32(), b.uint32())),
    b"S": (m.ParameterStatus, lambda b: m.ParameterStatus(b.cstr(), b.cstr())),
    b"Z": (m.ReadyForQuery, lambda b: m.ReadyForQuery(b.byte())),
    b"T": (m.RowDescription, lambda b: m.RowDescription(tuple(_field_description(b) for _ in range(b.uint16())))),
    b"D": (m.DataRow, lambda b: m.DataRow(tuple(b.value() for _ in range(b.uint16())))),
    b"C": (m.CommandComplete, lambda b: m.CommandComplete(b.cstr())),
    b"I": (m.EmptyQueryResponse, lambda b: m.EmptyQueryResponse()),
    b"E": (m.ErrorResponse, lambda b: m.ErrorResponse(_fields(b))),
    b"N": (m.NoticeResponse, lambda b: m.NoticeResponse(_fields(b))),
    b"A": (m.NotificationResponse, lambda b: m.NotificationResponse(b.int32(), b.cstr(), b.cstr())),
    b"1": (m.ParseComplete, lambda b: m.ParseComplete()),
    b"2": (m.BindComplete, lambda b: m.BindComplete()),
    b"3": (m.CloseComplete, lambda b: m.CloseComplete()),
    b"n": (m.NoData, lambda b: m.NoData()),
    b"t": (m.ParameterDescription, lambda b: m.ParameterDescription(tuple(b.uint32() for _ in range(b.uint16())))),
    b"s": (m.PortalSuspended, lambda b: m.PortalSuspended()),
    b"G": (m.CopyInResponse, lambda b: m.CopyInResponse(*_copy_response(b))),
    b"H": (m.CopyOutResponse, lambda b: m.CopyOutResponse(*_copy_response(b))),
    b"W": (m.CopyBothResponse, lambda b: m.CopyBothResponse(*_copy_response(b))),
    b"d": (m.CopyData, lambda b: m.CopyData(b.rest())),
    b"c": (m.CopyDone, lambda b: m.CopyDone()),
    b"V": (m.FunctionCallResponse, lambda b: m.FunctionCallResponse(b.value())),
}


def _small_count(b: _Body) -> int:
    count = b.uint32()
    if count > STARTUP_LIMIT:
        raise b.fail(f"a count of {count}")
    return count


def decode_backend(frame: Frame) -> m.BackendMessage:
    known = _BACKEND.get(frame.kind)
    if known is None:
        raise ProtocolError(f"invalid backend message type {frame.kind!r}")
    cls, read = known
    body = _Body(frame.body, cls.__name__)
    message = read(body)
    body.end()
    return message


def decode_run(run: Run) -> m.BackendMessage:
    """The message of a run of one."""
    return decode_backend(Frame(run.kind, run.body))


# Writing ------------------------------------------------------------------------------------------------------------


def _frame(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return _HEADER.pack(kind, len(body) + 4) + body


def _packet(code: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return _UINT32.pack(len(body) + 8) + _UINT32.pack(code) + body


def _cstr(value: str) -> bytes:
    return wire(value) + b"\x00"


def _counted(values: Sequence[int], struct: Struct) -> bytes:
    return _UINT16.pack(len(values)) + b"".join(map(struct.pack, values))


def _value(value: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if value is None else _INT32.pack(len(value)) + value


def _values(values: Sequence[bytes | None]) -> bytes:
    return _UINT16.pack(len(values)) + b"".join(map(_value, values))


def _field(f: m.FieldDescription) -> bytes:
    return b"".join(
        (
            _cstr(f.name),
            _UINT32.pack(f.table_oid),
            _INT16.pack(f.attnum),
            _UINT32.pack(f.type_oid),
            _INT16.pack(f.type_size),
            _INT32.pack(f.typmod),
            _INT16.pack(f.format),
        )
    )


def _error_fields(fields: Mapping[str, str]) -> bytes:
    return b"".join(k.encode("latin-1") + safe_wire(v) + b"\x00" for k, v in fields.items()) + b"\x00"


def _copy_formats(x: m.CopyInResponse | m.CopyOutResponse | m.CopyBothResponse) -> bytes:
    return bytes((x.format,)) + _counted(x.column_formats, _INT16)


def _encode_startup(x: m.StartupMessage) -> bytes:
    pairs = b"".join(_cstr(name) + _cstr(value) for name, value in x.parameters.items())
    return _packet(PROTOCOL_MAJOR << 16 | x.minor, pairs, b"\x00")


_ENCODE: dict[type, Callable[[Any], bytes]] = {
    m.StartupMessage: _encode_startup,
    m.SSLRequest: lambda x: _packet(_SSL_CODE),
    m.GSSENCRequest: lambda x: _packet(_GSSENC_CODE),
    m.CancelRequest: lambda x: _packet(_CANCEL_CODE, _INT32.pack(x.pid), _UINT32.pack(x.secret)),
    m.Password: lambda x: _frame(b"p", x.data),
    m.Query: lambda x: _frame(b"Q", _cstr(x.sql)),
    m.Parse: lambda x: _frame(b"P", _cstr(x.name), _cstr(x.sql), _counted(x.param_oids, _UINT32)),
    m.Bind: lambda x: _frame(
        b"B",
        _cstr(x.portal),
        _cstr(x.statement),
        _counted(x.param_formats, _INT16),
        _values(x.params),
        _counted(x.result_formats, _INT16),
    ),
    m.Describe: lambda x: _frame(b"D", x.target.value, _cstr(x.name)),
    m.Close: lambda x: _frame(b"C", x.target.value, _cstr(x.name)),
    m.Execute: lambda x: _frame(b"E", _cstr(x.portal), _INT32.pack(x.max_rows)),
    m.Sync: lambda x: _frame(b"S"),
    m.Flush: lambda x: _frame(b"H"),
    m.FunctionCall: lambda x: _frame(b"F", x.data),
    m.CopyData: lambda x: _frame(b"d", x.data),
    m.CopyDone: lambda x: _frame(b"c"),
    m.CopyFail: lambda x: _frame(b"f", safe_wire(x.message), b"\x00"),
    m.Terminate: lambda x: _frame(b"X"),
    m.Authentication: lambda x: _frame(b"R", _UINT32.pack(x.code), x.data),
    m.NegotiateProtocolVersion: lambda x: _frame(
        b"v", _UINT32.pack(x.minor), _UINT32.pack(len(x.unknown_options)), *map(_cstr, x.unknown_options)
    ),
    m.BackendKeyData: lambda x: _frame(b"K", _INT32.pack(x.pid), _UINT32.pack(x.secret)),
    m.ParameterStatus: lambda x: _frame(b"S", _cstr(x.name), _cstr(x.value)),
    m.ReadyForQuery: lambda x: _frame(b"Z", x.status),
    m.RowDescription: lambda x: _frame(b"T", _UINT16.pack(len(x.fields)), *map(_field, x.fields)),
    m.DataRow: lambda x: _frame(b"D", _values(x.values)),
    m.CommandComplete: lambda x: _frame(b"C", _cstr(x.tag)),
    m.EmptyQueryResponse: lambda x: _frame(b"I"),
    m.ErrorResponse: lambda x: _frame(b"E", _error_fields(x.fields)),
    m.NoticeResponse: lambda x: _frame(b"N", _error_fields(x.fields)),
    m.NotificationResponse: lambda x: _frame(b"A", _INT32.pack(x.pid), _cstr(x.channel), _cstr(x.payload)),
    m.ParseComplete: lambda x: _frame(b"1"),
    m.BindComplete: lambda x: _frame(b"2"),
    m.CloseComplete: lambda x: _frame(b"3"),
    m.NoData: lambda x: _frame(b"n"),
    m.ParameterDescription: lambda x: _frame(b"t", _counted(x.type_oids, _UINT32)),
    m.PortalSuspended: lambda x: _frame(b"s"),
    m.CopyInResponse: lambda x: _frame(b"G", _copy_formats(x)),
    m.CopyOutResponse: lambda x: _frame(b"H", _copy_formats(x)),
    m.CopyBothResponse: lambda x: _frame(b"W", _copy_formats(x)),
    m.FunctionCallResponse: lambda x: _frame(b"V", _value(x.result)),
}


def encode(message: m.Message) -> bytes:
    """A message's bytes. ValueError (or struct.error) if a value does not fit the protocol."""
    return _ENCODE[type(message)](message)
