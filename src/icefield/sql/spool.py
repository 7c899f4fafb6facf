"""A statement's answer, kept until it is known to be true: in memory up to a bound, then in a file."""

from __future__ import annotations

import tempfile
from types import TracebackType
from typing import Self

from icefield.pgwire.codec import Run
from icefield.pgwire.session import Sink

_IN_MEMORY = 8 << 20


class Spool:
    """Whole messages in order. One reader, after the last write."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, prefix="icefield-answer-")  # noqa: SIM115
        self._pieces: list[tuple[bytes, int, int]] = []
        self._next = 0
        self.complete: bytes | None = None
        """The last CommandComplete, raw."""

    def add(self, run: Run) -> None:
        self._file.write(run.data)
        self._pieces.append((run.kind, len(run.data), run.count))
        if run.kind == b"C":
            self.complete = run.data

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
        for _, size, _ in self._pieces:
            out.write(self._file.read(size))
            await out.drain()

    async def deliver_rows(self, out: Sink, limit: int) -> tuple[int, bool]:
        """Of what is left, up to ``limit`` rows and what lies between them: how many, and whether that was all."""
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
