"""The grammar of ALTER TABLE and COMMENT ON for lake tables, as far as it must be known here.

Names and clauses are the brain's to judge. What is recognised: which table is meant (as written, to be resolved by the
brain), our own SET and RESET of Iceberg properties, and subcommands that PostgreSQL takes and a lake table has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from icefield.pgwire.errors import PgError
from icefield.sql.lexer import Token, TokenKind
from icefield.sql.reader import No, Reader


@dataclass(frozen=True, slots=True)
class AlterTable:
    name: str
    """As written."""
    unsupported: str | None = None
    """A subcommand that is PostgreSQL's, but cannot be done to a lake table."""
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class AlterProperties:
    """ALTER TABLE … SET ('property' = value, …), or RESET ('property', …)."""

    name: str
    if_exists: bool
    put: tuple[tuple[str, str], ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommentOn:
    name: str
    """The table's, as written, also for a column's comment."""


TableKind = AlterTable | AlterProperties | CommentOn


def alter(r: Reader) -> TableKind:
    r.need("alter", "table")
    if_exists = r.take("if", "exists")
    _ = r.take("only")
    name = _path_text(r)
    _ = r.symbol("*")
    back = r.at
    if r.take("set") and (r.take("tblproperties") or _at(r, "(")):
        put = properties(r)
        r.end()
        return AlterProperties(name, if_exists, put=put)
    r.at = back
    if r.take("reset") and _at(r, "("):
        removed = _property_names(r)
        r.end()
        return AlterProperties(name, if_exists, removed=removed)
    for part in _subcommands(r.tokens[back:]):
        why = _unsupported(part)
        if why is not None:
            return AlterTable(name, why[0], why[1])
    return AlterTable(name)


def comment(r: Reader) -> TableKind:
    r.need("comment", "on")
    if r.take("table"):
        return CommentOn(_path_text(r))
    r.need("column")
    start = r.here()
    parts = [r.name()]
    end = start
    while True:
        before = r.before()
        if not r.symbol("."):
            break
        end = before
        parts.append(r.name())
    if len(parts) == 1:
        raise No
    return CommentOn(r.text[start:end])


def _path_text(r: Reader) -> str:
    start = r.here()
    r.path()
    return r.text[start : r.before()]


def _at(r: Reader, symbol: str) -> bool:
    return not r.done() and r.tokens[r.at].kind is TokenKind.SYMBOL and r.tokens[r.at].text == symbol


def _subcommands(tokens: Sequence[Token]) -> list[list[Token]]:
    """Cut at the commas outside parentheses; what is inside them is left out."""
    found: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        if token.kind is TokenKind.SYMBOL and token.text in "()[],":
            depth += (token.text in "([") - (token.text in ")]")
            if token.text == "," and depth == 0:
                found.append([])
        elif depth == 0:
            found[-1].append(token)
    return found


_COLUMN_CHANGES = (
    ("set", "default"),
    ("drop", "default"),
    ("set", "not", "null"),
    ("drop", "not", "null"),
    ("type",),
    ("set", "data", "type"),
    ("add", "generated"),
    ("set", "generated"),
    ("drop", "identity"),
)
_PLAIN_TABLE = "A lake table has columns, constraints, defaults, comments and properties."
_NEVER_AGAIN = "A number that was given out never comes again: DROP IDENTITY, then ADD GENERATED … with another START."


def _unsupported(part: Sequence[Token]) -> tuple[str, str] | None:
    words = [token.word for token in part]
    first = words[0] if words else ""
    if first == "set" and words[1:2] == ["schema"]:
        return None
    if first in ("add", "drop", "rename", ""):
        return None
    if first != "alter":
        return " ".join(word.upper() for word in words[:2] if word), _PLAIN_TABLE
    rest = words[2:] if words[1:2] == ["column"] else words[1:]
    if rest[:1] == ["constraint"] and words[1:2] != ["column"] and len(rest) > 2:
        return "ALTER CONSTRAINT", "Drop it and add it again."
    change = rest[1:]
    if change[:1] == ["restart"] or (change[:1] == ["set"] and change[1:2] in (["restart"], ["start"], ["increment"])):
        return f"ALTER COLUMN … {' '.join(change[:2]).upper()}", _NEVER_AGAIN
    if not any(tuple(change[: len(known)]) == known for known in _COLUMN_CHANGES):
        shown = " ".join(word.upper() for word in change[:2] if word)
        return (f"ALTER COLUMN … {shown}", _PLAIN_TABLE) if shown else None
    if "type" in change[:3] and "using" in change:
        return "ALTER COLUMN … TYPE … USING", "Add a column, UPDATE it, and drop the old one."
    if change[:2] == ["set", "generated"] and len(change) > 4:
        return "ALTER COLUMN … SET GENERATED with sequence options", _NEVER_AGAIN
    return None


# Properties -----------------------------------------------------------------------------------------------------------


def properties(r: Reader) -> tuple[tuple[str, str], ...]:
    """``("write.format.default" = 'parquet', 'format-version' = 3, a.b = x)``."""
    found: list[tuple[str, str]] = []
    if not r.symbol("("):
        raise r.error()
    while True:
        at = r.here()
        key = _property_name(r)
        if not r.symbol("=") or r.done():
            raise r.error()
        value = r.tokens[r.at]
        if value.kind is TokenKind.STRING and value.text[0] == "'":
            given = value.text[1:-1].replace("''", "'")
        elif value.kind in (TokenKind.WORD, TokenKind.NUMBER):
            given = value.text
        else:
            raise r.error()
        r.at += 1
        if key in (k for k, _ in found):
            raise PgError("42601", f'property "{key}" is given twice', position=at + 1)
        found.append((key, given))
        if r.symbol(")"):
            return tuple(found)
        if not r.symbol(","):
            raise r.error()


def _property_names(r: Reader) -> tuple[str, ...]:
    found: list[str] = []
    _ = r.symbol("(")
    while True:
        found.append(_property_name(r))
        if r.symbol(")"):
            return tuple(dict.fromkeys(found))
        if not r.symbol(","):
            raise r.error()


def _property_name(r: Reader) -> str:
    if r.done():
        raise r.error()
    token = r.tokens[r.at]
    if token.kind is TokenKind.STRING and token.text[0] == "'":
        r.at += 1
        return token.text[1:-1].replace("''", "'")
    try:
        return ".".join(r.path())
    except No:
        raise r.error() from None
