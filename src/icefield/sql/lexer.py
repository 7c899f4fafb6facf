"""A client's text, cut into tokens and statements by PostgreSQL's lexical rules.

Comments nest, dollar quotes, E'' strings, BEGIN ATOMIC bodies … Two laws, tested: cutting never changes the text (the
pieces, put together, are the input), and ``blank`` keeps every character's position.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto


class TokenKind(Enum):
    WORD = auto()
    """Unquoted identifier or keyword."""
    QUOTED = auto()
    """\"identifier\"."""
    STRING = auto()
    """Any kind of string constant."""
    NUMBER = auto()
    PARAMETER = auto()
    SYMBOL = auto()
    """One character."""
    BROKEN = auto()
    """An unterminated string, identifier or comment: runs to the end. The brain says what is wrong."""


@dataclass(frozen=True, slots=True)
class Token:
    kind: TokenKind
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """Folded, for comparing with keywords; "" if it is none."""
        return fold(self.text) if self.kind is TokenKind.WORD else ""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a client's text: ``text[start:end]`` has no ';' at its end."""

    text: str
    start: int
    tokens: tuple[Token, ...]
    """Positions are relative to ``text``."""

    @property
    def empty(self) -> bool:
        return not self.tokens

    def words(self, count: int) -> tuple[str, ...]:
        return tuple(token.word for token in self.tokens[:count])


_SPACE = re.compile(r"[ \t\n\r\f\v]+")
_LINE_COMMENT = re.compile(r"--[^\n\r]*")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_IDENT = re.compile(r"[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*")
_NUMBER = re.compile(
    r"(?:0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?)"
)
_PARAMETER = re.compile(r"\$\d+")
_DOLLAR = re.compile(r"\$(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?\$")
_PLAIN_STRING = re.compile(r"'(?:[^']|'')*'")
_ESCAPE_STRING = re.compile(r"'(?:[^'\\]|''|\\.)*'", re.DOTALL)
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_PREFIXED = re.compile(r"(?:[eEbBxXnN]|[uU]&)(?=')|[uU]&(?=\")")


def fold(text: str) -> str:
    """PostgreSQL folds ASCII only in a UTF-8 database."""
    return "".join(c.lower() if c.isascii() else c for c in text)


def tokens(text: str, *, backslashes: bool = False) -> Iterator[Token]:
    """``backslashes``: standard_conforming_strings is off."""
    at, end = 0, len(text)
    while at < end:
        found = _SPACE.match(text, at) or _LINE_COMMENT.match(text, at)
        if found:
            at = found.end()
            continue
        if text.startswith("/*", at):
            after = _after_comment(text, at)
            if after < 0:
                yield Token(TokenKind.BROKEN, text[at:], at, end)
                return
            at = after
            continue
        kind, after = _one(text, at, backslashes)
        yield Token(kind, text[at:after], at, after)
        at = after


def _after_comment(text: str, at: int) -> int:
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, at):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return -1


def _one(text: str, at: int, backslashes: bool) -> tuple[TokenKind, int]:
    first = text[at]
    prefix = _PREFIXED.match(text, at)
    start = prefix.end() if prefix else at
    if text[start] == "'":
        escapes = backslashes if prefix is None or prefix[0] in "nN" else prefix[0] in "eE"
        found = (_ESCAPE_STRING if escapes else _PLAIN_STRING).match(text, start)
        return (TokenKind.STRING, found.end()) if found else (TokenKind.BROKEN, len(text))
    if text[start] == '"':
        found = _QUOTED.match(text, start)
        return (TokenKind.QUOTED, found.end()) if found else (TokenKind.BROKEN, len(text))
    if first == "$":
        opening = _DOLLAR.match(text, at)
        if opening:
            closing = text.find(opening[0], opening.end())
            return (TokenKind.STRING, closing + len(opening[0])) if closing >= 0 else (TokenKind.BROKEN, len(text))
        found = _PARAMETER.match(text, at)
        return (TokenKind.PARAMETER, found.end()) if found else (TokenKind.SYMBOL, at + 1)
    found = _IDENT.match(text, at)
    if found:
        return TokenKind.WORD, found.end()
    if first.isascii() and (first.isdigit() or first == "."):
        found = _NUMBER.match(text, at)
        if found:
            return TokenKind.NUMBER, found.end()
    return TokenKind.SYMBOL, at + 1


def split(text: str, *, backslashes: bool = False) -> list[Statement]:
    """At each ';' outside parentheses and BEGIN ATOMIC bodies. Empty statements are kept: they, too, are answered."""
    statements: list[Statement] = []
    piece: list[Token] = []
    start = depth = nested = 0
    for token in tokens(text, backslashes=backslashes):
        if token.text == ";" and token.kind is TokenKind.SYMBOL and depth == 0 and nested == 0:
            statements.append(_statement(text, start, token.start, piece))
            piece, start = [], token.end
            continue
        piece.append(token)
        if token.kind is TokenKind.SYMBOL:
            depth = max(0, depth + (token.text in "([") - (token.text in ")]"))
        elif token.kind is TokenKind.WORD and depth == 0:
            nested = _body_depth(nested, token, piece)
    statements.append(_statement(text, start, len(text), piece))
    return statements


def _body_depth(nested: int, token: Token, piece: Sequence[Token]) -> int:
    """How deep in the SQL body of CREATE FUNCTION … BEGIN ATOMIC … END, counted as psql counts."""
    word = token.word
    if nested == 0:
        if word != "atomic" or len(piece) < 4 or piece[-2].word != "begin":
            return 0
        head = [t.word for t in piece[:4]]
        makes = head[1] if head[1] != "or" else head[3]
        return 1 if head[0] == "create" and makes in ("function", "procedure") else 0
    if word == "case" or (word == "begin"):
        return nested + 1
    return nested - 1 if word == "end" else nested


def _statement(text: str, start: int, end: int, piece: Sequence[Token]) -> Statement:
    return Statement(
        text[start:end], start, tuple(Token(t.kind, t.text, t.start - start, t.end - start) for t in piece)
    )


def blank(text: str, spans: Sequence[tuple[int, int]] | None = None) -> str:
    """``text`` with blanks for every character of the spans (``None``: all), line ends kept."""
    chars = list(text)
    for start, end in [(0, len(text))] if spans is None else spans:
        for at in range(start, end):
            if chars[at] not in "\r\n":
                chars[at] = " "
    return "".join(chars)
