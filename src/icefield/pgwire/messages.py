"""The messages of PostgreSQL's protocol 3.0 as values, one class per message; ``codec.py`` knows their bytes.

Text (SQL, names, tags, error fields) is ``str``, decoded as UTF-8 with surrogateescape: whatever a client's
encoding, ``codec.encode`` gives back exactly the bytes that came. Values (parameters, columns, COPY data) stay bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

# Messages from the client -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartupMessage:
    parameters: Mapping[str, str]
    minor: int = 0
    """Of protocol 3: what the client asked for."""


@dataclass(frozen=True, slots=True)
class SSLRequest:
    pass


@dataclass(frozen=True, slots=True)
class GSSENCRequest:
    pass


@dataclass(frozen=True, slots=True)
class CancelRequest:
    pid: int
    secret: int


@dataclass(frozen=True, slots=True)
class Password:
    """Any 'p' message: password, SASLInitialResponse or SASLResponse, by what the server asked."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Query:
    sql: str


@dataclass(frozen=True, slots=True)
class Parse:
    name: str
    sql: str
    param_oids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Bind:
    portal: str
    statement: str
    param_formats: tuple[int, ...] = ()
    """0 text, 1 binary: none = all text, one = for all, else one each."""
    params: tuple[bytes | None, ...] = ()
    result_formats: tuple[int, ...] = ()


class Target(Enum):
    STATEMENT = b"S"
    PORTAL = b"P"


@dataclass(frozen=True, slots=True)
class Describe:
    target: Target
    name: str


@dataclass(frozen=True, slots=True)
class Close:
    target: Target
    name: str


@dataclass(frozen=True, slots=True)
class Execute:
    portal: str
    max_rows: int = 0
    """0 = all."""


@dataclass(frozen=True, slots=True)
class Sync:
    pass


@dataclass(frozen=True, slots=True)
class Flush:
    pass


@dataclass(frozen=True, slots=True)
class FunctionCall:
    data: bytes


@dataclass(frozen=True, slots=True)
class CopyFail:
    message: str


@dataclass(frozen=True, slots=True)
class Terminate:
    pass


# Both ways ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CopyData:
    data: bytes


@dataclass(frozen=True, slots=True)
class CopyDone:
    pass


# Messages from the server -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Authentication:
    """``code`` 0 is AuthenticationOk, 3 cleartext, 5 MD5, 10 SASL, 11 SASLContinue, 12 SASLFinal."""

    code: int = 0
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class NegotiateProtocolVersion:
    minor: int
    unknown_options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BackendKeyData:
    pid: int
    secret: int


@dataclass(frozen=True, slots=True)
class ParameterStatus:
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ReadyForQuery:
    status: bytes = b"I"
    """b"I" idle, b"T" in a transaction, b"E" in a failed one."""


@dataclass(frozen=True, slots=True)
class FieldDescription:
    """A column of a result. Table OID and attribute number are 0 unless it is a plain column."""

    name: str
    type_oid: int
    table_oid: int = 0
    attnum: int = 0
    type_size: int = -1
    typmod: int = -1
    format: int = 0


@dataclass(frozen=True, slots=True)
class RowDescription:
    fields: tuple[FieldDescription, ...]


@dataclass(frozen=True, slots=True)
class DataRow:
    values: tuple[bytes | None, ...]


@dataclass(frozen=True, slots=True)
class CommandComplete:
    tag: str


@dataclass(frozen=True, slots=True)
class EmptyQueryResponse:
    pass


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    fields: Mapping[str, str]
    """By protocol letter: S severity, V the same untranslated, C SQLSTATE, M message, D detail, H hint, P position …"""


@dataclass(frozen=True, slots=True)
class NoticeResponse:
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NotificationResponse:
    pid: int
    channel: str
    payload: str


@dataclass(frozen=True, slots=True)
class ParseComplete:
    pass


@dataclass(frozen=True, slots=True)
class BindComplete:
    pass


@dataclass(frozen=True, slots=True)
class CloseComplete:
    pass


@dataclass(frozen=True, slots=True)
class NoData:
    pass


@dataclass(frozen=True, slots=True)
class ParameterDescription:
    type_oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PortalSuspended:
    pass


@dataclass(frozen=True, slots=True)
class CopyInResponse:
    format: int
    column_formats: tuple[int, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class CopyOutResponse:
    format: int
    column_formats: tuple[int, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class CopyBothResponse:
    format: int
    column_formats: tuple[int, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class FunctionCallResponse:
    result: bytes | None


CopyMessage = CopyData | CopyDone | CopyFail

StartupPacket = StartupMessage | SSLRequest | GSSENCRequest | CancelRequest

FrontendMessage = (
    StartupPacket
    | Password
    | Query
    | Parse
    | Bind
    | Describe
    | Close
    | Execute
    | Sync
    | Flush
    | FunctionCall
    | CopyData
    | CopyDone
    | CopyFail
    | Terminate
)

BackendMessage = (
    Authentication
    | NegotiateProtocolVersion
    | BackendKeyData
    | ParameterStatus
    | ReadyForQuery
    | RowDescription
    | DataRow
    | CommandComplete
    | EmptyQueryResponse
    | ErrorResponse
    | NoticeResponse
    | NotificationResponse
    | ParseComplete
    | BindComplete
    | CloseComplete
    | NoData
    | ParameterDescription
    | PortalSuspended
    | CopyInResponse
    | CopyOutResponse
    | CopyBothResponse
    | CopyData
    | CopyDone
    | FunctionCallResponse
)

Message = FrontendMessage | BackendMessage
