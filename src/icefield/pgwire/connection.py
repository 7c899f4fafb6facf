"""A server's side of one conversation, without a socket: feed bytes, take events, say what was answered."""

from __future__ import annotations

from enum import Enum

from icefield.pgwire import messages as m
from icefield.pgwire.codec import LARGE_LIMIT, decode_frontend, decode_startup, frontend_frames, frontend_type
from icefield.pgwire.errors import ProtocolError
from icefield.pgwire.states import ON_MESSAGE, ON_OUTCOME, Outcome, State, Verdict


class NeedData(Enum):
    """No whole message is buffered."""

    NEED_DATA = "need data"


NEED_DATA = NeedData.NEED_DATA


class ServerConnection:
    """Call ``next_event`` only when the last event's work is done and its outcome told: the state is that of the work.

    ``next_event`` raises ProtocolError: with severity ERROR the state has moved as if the message had been handled and
    failed is still to be told (``answered(FAILED)`` after ErrorResponse was sent); with FATAL the state is CLOSED.
    """

    def __init__(self, large_limit: int = LARGE_LIMIT) -> None:
        self._frames = frontend_frames(large_limit)
        self.state = State.STARTUP

    @property
    def buffered(self) -> int:
        """Bytes received and not yet taken as events."""
        return len(self._frames)

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        self._frames.feed(data)

    def next_event(self) -> m.FrontendMessage | NeedData:
        try:
            if self.state is State.STARTUP:
                return self._next_startup()
            return self._next_message()
        except ProtocolError as error:
            if error.fatal:
                self.state = State.CLOSED
            raise

    def answered(self, outcome: Outcome) -> None:
        """The server sent what ``outcome`` says. A pair that the table does not have is a fault in the server."""
        if self.state is not State.CLOSED:
            self.state = ON_OUTCOME[self.state, outcome]

    def close(self) -> None:
        self.state = State.CLOSED

    def _next_startup(self) -> m.FrontendMessage | NeedData:
        frame = self._frames.next_startup()
        if frame is None:
            return NEED_DATA
        message = decode_startup(frame.body)
        self.state, _ = ON_MESSAGE[State.STARTUP][type(message)]
        return message

    def _next_message(self) -> m.FrontendMessage | NeedData:
        while True:
            row = ON_MESSAGE.get(self.state)
            if row is None:
                raise RuntimeError(f"no message can be taken in state {self.state.name}")
            frame = self._frames.next()
            if frame is None:
                return NEED_DATA
            cls = frontend_type(frame.kind)
            step = row.get(cls)
            if step is None:
                raise self._misplaced(cls)
            before = self.state
            self.state, verdict = step
            if verdict is Verdict.IGNORE:
                continue
            try:
                return decode_frontend(frame)
            except ProtocolError:
                if before in (State.COPY_IN_SIMPLE, State.COPY_IN_EXTENDED):
                    self.state = before  # a broken CopyFail fails the COPY as a whole one would
                raise

    def _misplaced(self, cls: type) -> ProtocolError:
        if self.state in (State.COPY_IN_SIMPLE, State.COPY_IN_EXTENDED):
            # The COPY fails and the message is dropped, as PostgreSQL does; a client that does this is confused anyway.
            return ProtocolError(f"unexpected message {cls.__name__} during COPY from stdin", severity="ERROR")
        return ProtocolError(f"unexpected message {cls.__name__} in state {self.state.name.lower()}")
