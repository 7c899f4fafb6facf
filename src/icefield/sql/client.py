"""What one client's statements are done with, and what both protocols ask before they do one."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from icefield.pgwire import messages as m
from icefield.pgwire.brain_link import BrainLink
from icefield.pgwire.codec import Frame, decode_backend
from icefield.pgwire.errors import PgError
from icefield.sql.execution import Execution
from icefield.sql.interrupts import Interrupts
from icefield.sql.lexer import Statement, split
from icefield.sql.own import Own, enter
from icefield.sql.retries import Retries
from icefield.sql.standing import Standing
from icefield.sql.statements import LAKE_DDL, CursorMove, Kind, Local, Other

BRAIN_KINDS = (Other, Local, CursorMove)
_ENCODINGS = frozenset(("UTF8", "SQL_ASCII"))
_CHANGING = frozenset(("insert", "update", "delete", "merge", "truncate"))


@dataclass(frozen=True, slots=True)
class Client:
    link: BrainLink
    standing: Standing
    execution: Execution
    own: Own
    retries: Retries
    interrupts: Interrupts

    def split(self, text: str) -> list[Statement]:
        return split(text, backslashes=self.link.parameters.get("standard_conforming_strings") == "off")

    def check_encoding(self, text: str) -> None:
        """The names of lake tables go between brain and lake as UTF-8; a link has one encoding."""
        encoding = self.link.parameters.get("client_encoding", "UTF8").upper()
        if encoding not in _ENCODINGS and "client_encoding" not in text.lower():
            raise PgError(
                "0A000", f"client_encoding {encoding} is not supported", hint="SET client_encoding = 'UTF8' and go on."
            )

    async def enter(self, *, write: bool) -> None:
        await enter(self.standing, write=write)

    def refuse_outside_block(self, piece: Statement) -> None:
        """The brain is always in a block; the client may not be."""
        if self.standing.explicit:
            return
        first = piece.tokens[0].word
        words = [token.word for token in piece.tokens[:12]]
        if first == "declare" and ("with", "hold") not in itertools.pairwise(words):
            raise PgError("25P01", "DECLARE CURSOR can only be used in transaction blocks")
        if first == "lock":
            raise PgError("25P01", "LOCK TABLE can only be used in transaction blocks")


def may_write(piece: Statement, kind: Kind) -> bool:
    """Whether it probably changes the lake, as its words tell: then reading and writing share one commit at once."""
    if isinstance(kind, LAKE_DDL):
        return True
    if not isinstance(kind, Other) or piece.empty:
        return False
    first = piece.tokens[0].word
    if first == "with":
        return any(token.word in _CHANGING for token in piece.tokens)
    return first in _CHANGING or copies_in(piece)


def copies_in(piece: Statement) -> bool:
    """COPY … FROM STDIN."""
    return piece.words(1) == ("copy",) and any(token.word == "stdin" for token in piece.tokens)


def runs_again(kind: Kind) -> bool:
    """Whether a statement that is a transaction of its own may be run again on a conflict."""
    return isinstance(kind, (Other, *LAKE_DDL))


def brain_error(data: bytes) -> PgError:
    message = decode_backend(Frame(b"E", data[5:]))
    assert isinstance(message, m.ErrorResponse)
    return PgError.from_fields(message.fields)


def shifted(error: PgError, by: int) -> PgError:
    """The error with its position counted from the start of the client's text."""
    if error.position is not None and by:
        error.position += by
    return error
