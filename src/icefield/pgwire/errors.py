"""What PostgreSQL clients are told when something goes wrong: an ErrorResponse as an exception.

``PgError`` crosses both ways: BrainLink raises it from the brain's ErrorResponse, a session raises it to answer its
client, and ``server.py`` turns it into bytes. ``severity`` FATAL (or PANIC) ends the client's connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

_NAMED = frozenset("SVCMDHP")


class PgError(Exception):
    """An ErrorResponse. ``position`` counts characters from 1 in the client's statement text."""

    def __init__(
        self,
        sqlstate: str,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        position: int | None = None,
        severity: str = "ERROR",
        fields: Mapping[str, str] | None = None,
    ) -> None:
        """``fields``: the other fields by their protocol letter (W where, s schema, t table, c column, q query …)."""
        super().__init__(f"{sqlstate}: {message}")
        self.sqlstate = sqlstate
        self.message = message
        self.detail = detail
        self.hint = hint
        self.position = position
        self.severity = severity
        self.fields = {letter: value for letter, value in (fields or {}).items() if letter not in _NAMED}

    @property
    def fatal(self) -> bool:
        return self.severity in ("FATAL", "PANIC")

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> Self:
        """From an ErrorResponse's fields; what is missing gets PostgreSQL's word for 'unknown'."""
        position = fields.get("P", "")
        error = cls.__new__(cls)
        PgError.__init__(
            error,
            fields.get("C", "XX000"),
            fields.get("M", "unknown error"),
            detail=fields.get("D"),
            hint=fields.get("H"),
            position=int(position) if position.isascii() and position.isdigit() else None,
            severity=fields.get("V") or fields.get("S") or "ERROR",
            fields=fields,
        )
        return error

    def to_fields(self) -> dict[str, str]:
        fields = {"S": self.severity, "V": self.severity, "C": self.sqlstate, "M": self.message}
        if self.detail is not None:
            fields["D"] = self.detail
        if self.hint is not None:
            fields["H"] = self.hint
        if self.position is not None:
            fields["P"] = str(self.position)
        return fields | self.fields


class ProtocolError(PgError):
    """The peer does not speak the protocol: 08P01. Ends the connection unless ``severity`` says ERROR."""

    def __init__(self, message: str, *, severity: str = "FATAL") -> None:
        super().__init__("08P01", message, severity=severity)
