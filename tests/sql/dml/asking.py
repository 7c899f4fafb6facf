"""One connection that is asked by libpq itself: answers with rows, tag, error, notices; never waited for for ever."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import pq

ANSWER_WITHIN_S = 120


@dataclass(frozen=True)
class Copy:
    """COPY … FROM STDIN and what is sent."""

    statement: str
    data: str


Statement = str | Copy


@dataclass(frozen=True)
class Answer:
    columns: tuple[tuple[str, int, int], ...] = ()
    """Name, type, modifier. The types of tables' rows have other numbers on every server: 0."""
    rows: tuple[tuple[str | None, ...], ...] = ()
    tag: str | None = None
    error: tuple[str | None, str | None] | None = None
    """SQLSTATE and message."""
    notices: tuple[str, ...] = ()

    def as_multiset(self) -> Answer:
        rows = tuple(sorted(self.rows, key=lambda row: [(v is None, v or "") for v in row]))
        return Answer(self.columns, rows, self.tag, self.error, self.notices)


class Lost(Exception):
    """The connection ended, or said nothing for too long: it is not used again."""


_FIRST_USER_OID = 16384


class Connection:
    def __init__(self, dsn: str) -> None:
        self._pq = pq.PGconn.connect(dsn.encode())
        if self._pq.status != pq.ConnStatus.OK:
            raise Lost(self._pq.get_error_message())
        self._notices: list[str] = []
        self._pq.notice_handler = self._noted

    def _noted(self, result: pq.abc.PGresult) -> None:
        severity = _text(result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED))
        message = _text(result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY))
        self._notices.append(f"{severity}: {message}")

    def close(self) -> None:
        self._pq.finish()

    @property
    def open_transaction(self) -> bool:
        return self._pq.transaction_status != pq.TransactionStatus.IDLE

    def ask(self, statement: Statement, *, extended: bool = False) -> Answer:
        """``extended``: by Parse, Bind and Execute; then it must be one command."""
        self._notices = []
        text, data = (statement.statement, statement.data) if isinstance(statement, Copy) else (statement, "")
        if self._pq.status != pq.ConnStatus.OK:
            raise Lost(f"before {text}: {self._pq.get_error_message()}")
        if extended:
            self._pq.send_query_params(text.encode(), [])
        else:
            self._pq.send_query(text.encode())
        copied: list[tuple[str | None, ...]] = []
        last: pq.abc.PGresult | None = None
        while (result := self._result(text)) is not None:
            if result.status == pq.ExecStatus.COPY_IN:
                self._pq.put_copy_data(data.encode())
                self._pq.put_copy_end()
                self._flush()
                continue
            if result.status == pq.ExecStatus.COPY_OUT:
                copied = self._copied(text)
                continue
            if last is None or last.status != pq.ExecStatus.FATAL_ERROR:
                last = result
        if last is None or self._pq.status != pq.ConnStatus.OK:
            raise Lost(f"{text}: {self._pq.get_error_message()}")
        return self._answer(last, copied)

    def must(self, statement: str) -> Answer:
        answer = self.ask(statement)
        if answer.error is not None:
            raise AssertionError(f"{statement[:200]}: {answer.error}")
        return answer

    def _flush(self) -> None:
        while self._pq.flush():
            select.select([], [self._pq.socket], [], 1)

    def _wait(self, text: str, deadline: float) -> None:
        left = deadline - time.monotonic()
        ready, _, _ = select.select([self._pq.socket], [], [], max(left, 0))
        if not ready:
            self._pq.finish()
            raise Lost(f"no answer within {ANSWER_WITHIN_S} s: {text}")
        try:
            self._pq.consume_input()
        except Exception as error:
            raise Lost(f"{text}: {error}") from error

    def _result(self, text: str) -> pq.abc.PGresult | None:
        self._flush()
        deadline = time.monotonic() + ANSWER_WITHIN_S
        while self._pq.is_busy():
            self._wait(text, deadline)
        return self._pq.get_result()

    def _copied(self, text: str) -> list[tuple[str | None, ...]]:
        rows: list[tuple[str | None, ...]] = []
        deadline = time.monotonic() + ANSWER_WITHIN_S
        while True:
            size, data = self._pq.get_copy_data(1)
            if size < 0:
                return rows
            if size == 0:
                self._wait(text, deadline)
            else:
                rows.append((bytes(data).decode(),))

    def _answer(self, result: pq.abc.PGresult, copied: Sequence[tuple[str | None, ...]]) -> Answer:
        notices = tuple(self._notices)
        if result.status == pq.ExecStatus.FATAL_ERROR:
            state = _text(result.error_field(pq.DiagnosticField.SQLSTATE))
            return Answer(error=(state, _text(result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY))), notices=notices)
        width = range(result.nfields)
        columns = tuple(
            (_text(result.fname(at)) or "", oid if (oid := result.ftype(at)) < _FIRST_USER_OID else 0, result.fmod(at))
            for at in width
        )
        rows = tuple(tuple(_text(result.get_value(row, at)) for at in width) for row in range(result.ntuples))
        return Answer(columns, (*rows, *copied), _text(result.command_status), None, notices)


def _text(value: bytes | None) -> str | None:
    return None if value is None else bytes(value).decode()
