"""A client that sends what it is told, message by message, and shows what comes back."""

from __future__ import annotations

import socket

from icefield.pgwire import messages as m
from icefield.pgwire.codec import backend_frames, decode_backend, encode


class Wire:
    def __init__(self, port: int, database: str = "lake") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._frames = backend_frames()
        self.send(m.StartupMessage({"user": "ann", "database": database}))
        self.until(m.ReadyForQuery)

    def send(self, *messages: m.Message) -> None:
        self._socket.sendall(b"".join(encode(message) for message in messages))

    def until(self, *last: type) -> list[m.BackendMessage]:
        """What comes, up to the first of these kinds; ParameterStatus left out."""
        found: list[m.BackendMessage] = []
        while not (found and isinstance(found[-1], last)):
            while (frame := self._frames.next()) is None:
                data = self._socket.recv(65536)
                assert data, "the server closed the connection"
                self._frames.feed(data)
            message = decode_backend(frame)
            if not isinstance(message, m.ParameterStatus):
                found.append(message)
        return found

    def ask(self, *messages: m.Message) -> list[m.BackendMessage]:
        self.send(*messages, m.Sync())
        return self.until(m.ReadyForQuery)

    def close(self) -> None:
        self._socket.close()


def kinds(messages: list[m.BackendMessage]) -> list[str]:
    return [type(message).__name__ for message in messages]


def values(messages: list[m.BackendMessage]) -> list[tuple[bytes | None, ...]]:
    return [message.values for message in messages if isinstance(message, m.DataRow)]


def sqlstates(messages: list[m.BackendMessage]) -> list[str]:
    return [message.fields["C"] for message in messages if isinstance(message, m.ErrorResponse)]


def run(sql: str, portal: str = "") -> tuple[m.Message, ...]:
    return m.Parse("", sql), m.Bind(portal, ""), m.Execute(portal)
