"""The server's side of a conversation as two tables: what may come when, and where our own answers lead.

Theory of operation. A connection begins in STARTUP, where packets have no type byte. Once a session is open it is
READY; from there a Query leads to SIMPLE, any extended message to EXTENDED and a Sync to SYNCING; ReadyForQuery leads
back. An error in EXTENDED leads to SKIPPING, where everything up to the client's Sync is dropped: that is what lets a
client send many messages without waiting. An error in SIMPLE or SYNCING changes nothing: ReadyForQuery follows anyway.
COPY IN is a state of its own, once for each side it was entered from, because they end differently. Stray COPY
messages outside it are dropped, since after a failed COPY the client's data may still be on its way.

Nothing in here is about sockets, sessions or time. What is not in a row is a protocol error.
"""

from __future__ import annotations

from enum import Enum, auto

from icefield.pgwire import messages as m


class State(Enum):
    STARTUP = auto()
    READY = auto()
    SIMPLE = auto()
    EXTENDED = auto()
    SYNCING = auto()
    SKIPPING = auto()
    COPY_IN_SIMPLE = auto()
    COPY_IN_EXTENDED = auto()
    CLOSED = auto()


class Verdict(Enum):
    HANDLE = auto()
    IGNORE = auto()


class Outcome(Enum):
    """What the server just did."""

    OPENED = auto()
    """The session is open; AuthenticationOk … ReadyForQuery were sent."""
    FAILED = auto()
    """ErrorResponse was sent."""
    READY = auto()
    """ReadyForQuery was sent."""
    COPY_IN = auto()
    """CopyInResponse was sent."""


H, I = Verdict.HANDLE, Verdict.IGNORE  # noqa: E741  (a table is read by its columns)
S = State

_EXTENDED_MESSAGES = (m.Parse, m.Bind, m.Describe, m.Execute, m.Close, m.Flush)
_COPY_MESSAGES = (m.CopyData, m.CopyDone, m.CopyFail)


def _row(*cells: tuple[tuple[type, ...], State, Verdict]) -> dict[type, tuple[State, Verdict]]:
    return {cls: (state, verdict) for classes, state, verdict in cells for cls in classes}


_BETWEEN = (
    ((m.Query, m.FunctionCall), S.SIMPLE, H),
    (_EXTENDED_MESSAGES, S.EXTENDED, H),
    ((m.Sync,), S.SYNCING, H),
    ((m.Terminate,), S.CLOSED, H),
)

ON_MESSAGE: dict[State, dict[type, tuple[State, Verdict]]] = {
    S.STARTUP: _row(
        ((m.SSLRequest, m.GSSENCRequest), S.STARTUP, H),
        ((m.StartupMessage,), S.STARTUP, H),
        ((m.CancelRequest,), S.CLOSED, H),
    ),
    S.READY: _row(*_BETWEEN, (_COPY_MESSAGES, S.READY, I)),
    S.EXTENDED: _row(*_BETWEEN, (_COPY_MESSAGES, S.EXTENDED, I)),
    S.SKIPPING: _row(
        ((m.Query, m.FunctionCall), S.SKIPPING, I),
        (_EXTENDED_MESSAGES, S.SKIPPING, I),
        (_COPY_MESSAGES, S.SKIPPING, I),
        ((m.Sync,), S.SYNCING, H),
        ((m.Terminate,), S.CLOSED, H),
    ),
    S.COPY_IN_SIMPLE: _row(
        ((m.CopyData,), S.COPY_IN_SIMPLE, H),
        ((m.CopyDone, m.CopyFail), S.SIMPLE, H),
        ((m.Flush, m.Sync), S.COPY_IN_SIMPLE, I),
        ((m.Terminate,), S.CLOSED, H),
    ),
    S.COPY_IN_EXTENDED: _row(
        ((m.CopyData,), S.COPY_IN_EXTENDED, H),
        ((m.CopyDone, m.CopyFail), S.EXTENDED, H),
        ((m.Flush, m.Sync), S.COPY_IN_EXTENDED, I),
        ((m.Terminate,), S.CLOSED, H),
    ),
}
"""SIMPLE, SYNCING and CLOSED have no row: there the server works, or nobody listens; messages wait in the buffer."""

ON_OUTCOME: dict[tuple[State, Outcome], State] = {
    (S.STARTUP, Outcome.OPENED): S.READY,
    (S.SIMPLE, Outcome.FAILED): S.SIMPLE,
    (S.SIMPLE, Outcome.READY): S.READY,
    (S.SIMPLE, Outcome.COPY_IN): S.COPY_IN_SIMPLE,
    (S.EXTENDED, Outcome.FAILED): S.SKIPPING,
    (S.EXTENDED, Outcome.COPY_IN): S.COPY_IN_EXTENDED,
    (S.SYNCING, Outcome.FAILED): S.SYNCING,
    (S.SYNCING, Outcome.READY): S.READY,
    (S.COPY_IN_SIMPLE, Outcome.FAILED): S.SIMPLE,
    (S.COPY_IN_EXTENDED, Outcome.FAILED): S.SKIPPING,
}
