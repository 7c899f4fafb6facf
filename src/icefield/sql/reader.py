"""Reading a statement's tokens front to back, for the recognisers of our own grammar.

A rule raises ``No`` when the words do not fit it, so that the brain judges them, and ``Reader.error()`` (PgError 42601,
in PostgreSQL's words, with its position) once it is sure that the statement is ours.
"""

from __future__ import annotations

from icefield.pgwire.errors import PgError
from icefield.sql.lexer import Statement, TokenKind


class No(Exception):
    """The words do not fit this rule: let the brain judge them."""


class Reader:
    """Reads a statement's tokens front to back."""

    def __init__(self, statement: Statement) -> None:
        self.text = statement.text
        self.tokens = statement.tokens
        self.at = 0

    def peek(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.tokens[at].word if at < len(self.tokens) else ""

    def done(self) -> bool:
        return self.at >= len(self.tokens)

    def take(self, *words: str) -> bool:
        if all(self.peek(i) == word for i, word in enumerate(words)):
            self.at += len(words)
            return True
        return False

    def symbol(self, text: str) -> bool:
        if not self.done() and self.tokens[self.at].kind is TokenKind.SYMBOL and self.tokens[self.at].text == text:
            self.at += 1
            return True
        return False

    def need(self, *words: str) -> None:
        if not self.take(*words):
            raise No

    def end(self) -> None:
        if not self.done():
            raise No

    def name(self) -> str:
        if self.done():
            raise No
        token = self.tokens[self.at]
        if token.kind is TokenKind.WORD:
            self.at += 1
            return token.word
        if token.kind is TokenKind.QUOTED and token.text[0] == '"':
            self.at += 1
            return token.text[1:-1].replace('""', '"')
        raise No

    def path(self) -> tuple[str, ...]:
        """``a.b.c``."""
        parts = [self.name()]
        while self.symbol("."):
            parts.append(self.name())
        return tuple(parts)

    def here(self) -> int:
        return self.tokens[self.at].start if not self.done() else len(self.text)

    def before(self) -> int:
        return self.tokens[self.at - 1].end

    def error(self) -> PgError:
        """PostgreSQL's own words for what does not fit here."""
        if self.done():
            return PgError("42601", "syntax error at end of input", position=len(self.text) + 1)
        token = self.tokens[self.at]
        return PgError("42601", f'syntax error at or near "{token.text}"', position=token.start + 1)
