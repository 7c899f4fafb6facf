"""A statement's answer, kept until it is known to be true: in memory up to a bound, then in a file."""

from __future__ import annotations

import tempfile
from types import TracebackType
from typing import Self

from icefield.pgwire import messages as m
from icefield.pgwire.codec import Run, encode
from icefield.pgwire.session import Sink

_IN_MEMORY = 8 << 20


class Spool:
    """Whole messages in order. One reader, after the last write."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, prefix="icefield-answer-")  # noqa: SIM115
        self._pieces: list[tuple[bytes, int, int]] = []
        self._next = 0
        self._notices: list[bytes] = []
        self.complete: bytes | None = None
        """The last CommandComplete, raw."""

    def add(self, run: Run) -> None:
        self._file.write(run.data)
        self._pieces.append((run.kind, len(run.data), run.count))
        if run.kind == b"C":
            self.complete = run.data

    def say(self, message: m.BackendMessage) -> None:
        """A message of our own."""
        data = encode(message)
        self.add(Run(data[:1], data, 1))

    def notice(self, message: str | bytes | m.NoticeResponse) -> None:
        """A notice of our own, told before whatever CommandComplete or row is delivered next (also after ``add``)."""
        if isinstance(message, str):
            message = m.NoticeResponse({"S": "NOTICE", "V": "NOTICE", "C": "00000", "M": message})
        self._notices.append(message if isinstance(message, bytes) else encode(message))

    def take_notices(self) -> list[bytes]:
        """Those that were not delivered: for the spool that takes this one's place when a statement runs again."""
        taken, self._notices = self._notices, []
        return taken

    def _tell(self, out: Sink) -> None:
        for notice in self.take_notices():
            out.write(notice)

    def close(self) -> None:
        self._file.close()

    def rewind(self) -> None:
        self._file.seek(0)
        self._next = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    async def deliver(self, out: Sink) -> None:
        """All of it."""
        self.rewind()
        self._tell(out)
        for _, size, _ in self._pieces:
            out.write(self._file.read(size))
            await out.drain()

    async def deliver_rows(self, out: Sink, limit: int) -> tuple[int, bool]:
        """Of what is left, up to ``limit`` rows and what lies between them: how many, and whether that was all."""
        self._tell(out)
        sent = 0
        while self._next < len(self._pieces):
            kind, size, count = self._pieces[self._next]
            if kind != b"D":
                if kind == b"C":
                    return sent, True
                out.write(self._file.read(size))
                self._next += 1
                continue
            if sent == limit:
                return sent, False
            if count <= limit - sent:
                out.write(self._file.read(size))
                self._next += 1
                sent += count
            else:
                taken = 0
                for _ in range(limit - sent):
                    head = self._file.read(5)
                    length = int.from_bytes(head[1:5], "big") + 1
                    out.write(head + self._file.read(length - 5))
                    taken += length
                self._pieces[self._next] = (kind, size - taken, count - (limit - sent))
                sent = limit
            await out.drain()
        return sent, True
