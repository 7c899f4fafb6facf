"""A client's text, cut into statements, and what each of them is, as far as its words tell.

PostgreSQL's lexical rules (comments nest, dollar quotes, E'' strings …), and a recogniser for what is not PostgreSQL's
grammar or must not simply be relayed. All else is ``Other`` and goes to the brain as it came.

Two laws, tested: cutting never changes the text (the pieces, put together, are the input), and whatever is rewritten
for the brain keeps every character's position: words that are taken out become blanks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from icefield.pgwire.errors import PgError


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


# What a statement is ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Other:
    """Relayed to the brain as it came."""


@dataclass(frozen=True, slots=True)
class Local:
    """Settings and prepared statements: relayed; touches no table. ``name`` is its first word."""

    name: str


@dataclass(frozen=True, slots=True)
class CursorMove:
    """FETCH, MOVE, CLOSE: goes on with what a DECLARE began."""


@dataclass(frozen=True, slots=True)
class Modes:
    """What BEGIN and SET TRANSACTION may say; None where nothing was said."""

    isolation: str | None = None
    read_only: bool | None = None
    deferrable: bool | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    modes: Modes
    tag: str = "BEGIN"


@dataclass(frozen=True, slots=True)
class Commit:
    chain: bool = False


@dataclass(frozen=True, slots=True)
class Rollback:
    chain: bool = False


@dataclass(frozen=True, slots=True)
class Savepoint:
    name: str


@dataclass(frozen=True, slots=True)
class RollbackTo:
    name: str


@dataclass(frozen=True, slots=True)
class Release:
    name: str


@dataclass(frozen=True, slots=True)
class SetTransaction:
    """SET TRANSACTION, or with ``session`` SET SESSION CHARACTERISTICS AS TRANSACTION."""

    modes: Modes
    session: bool


@dataclass(frozen=True, slots=True)
class SetIsolation:
    """SET [default_]transaction_isolation."""

    value: str
    default: bool


@dataclass(frozen=True, slots=True)
class ShowBranches:
    pass


@dataclass(frozen=True, slots=True)
class UseBranch:
    name: str


@dataclass(frozen=True, slots=True)
class PartitionPart:
    transform: str
    """identity, bucket[n], truncate[n], year, month, day, hour."""
    column: str
    at: int
    """Where the column stands in the text."""


@dataclass(frozen=True, slots=True)
class CreateTable:
    """``brain_text`` is the plain CREATE TABLE, every character in its place."""

    brain_text: str
    name: tuple[str, ...]
    name_at: int
    if_not_exists: bool
    partitions: tuple[PartitionPart, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    type_at: dict[str, int] = field(default_factory=dict)
    """Where each column's type stands."""


@dataclass(frozen=True, slots=True)
class DropTable:
    names: tuple[str, ...]
    """As written, to be resolved by the brain."""


@dataclass(frozen=True, slots=True)
class CreateSchema:
    name: str


@dataclass(frozen=True, slots=True)
class DropSchema:
    names: tuple[str, ...]
    cascade: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """Known, and not supported: 0A000 when it is run."""

    message: str
    hint: str | None = None


Kind = (
    Other
    | Local
    | CursorMove
    | Begin
    | Commit
    | Rollback
    | Savepoint
    | RollbackTo
    | Release
    | SetTransaction
    | SetIsolation
    | ShowBranches
    | UseBranch
    | CreateTable
    | DropTable
    | CreateSchema
    | DropSchema
    | Refused
)

_LOCAL = frozenset(
    "set show reset deallocate prepare unlisten discard checkpoint load".split()  # noqa: SIM905
)
_CONSTRAINTS = frozenset(["constraint", "primary", "unique", "check", "foreign", "exclude", "like"])


class _No(Exception):
    """The words do not fit this rule: let the brain judge them."""


class _Reader:
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
            raise _No

    def end(self) -> None:
        if not self.done():
            raise _No

    def name(self) -> str:
        if self.done():
            raise _No
        token = self.tokens[self.at]
        if token.kind is TokenKind.WORD:
            self.at += 1
            return token.word
        if token.kind is TokenKind.QUOTED and token.text[0] == '"':
            self.at += 1
            return token.text[1:-1].replace('""', '"')
        raise _No

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


def classify(statement: Statement) -> Kind:
    """What the statement is. Raises PgError 42601 only for our own grammar; its position is in ``statement.text``."""
    if statement.empty:
        return Other()
    rule = _RULES.get(statement.tokens[0].word)
    if rule is not None:
        try:
            return rule(_Reader(statement))
        except _No:
            return Other()
    return Local(statement.tokens[0].word) if statement.tokens[0].word in _LOCAL else Other()


def _modes(r: _Reader) -> Modes:
    isolation: str | None = None
    read_only: bool | None = None
    deferrable: bool | None = None
    first = True
    while not r.done():
        comma = r.symbol(",")
        if comma and first:
            raise _No
        first = False
        if r.take("isolation", "level"):
            for words in (("read", "committed"), ("read", "uncommitted"), ("repeatable", "read"), ("serializable",)):
                if r.take(*words):
                    isolation = " ".join(words)
                    break
            else:
                raise _No
        elif r.take("read", "only"):
            read_only = True
        elif r.take("read", "write"):
            read_only = False
        elif r.take("deferrable"):
            deferrable = True
        elif r.take("not", "deferrable"):
            deferrable = False
        else:
            raise _No
    return Modes(isolation, read_only, deferrable)


def _begin(r: _Reader) -> Kind:
    if r.take("start"):
        r.need("transaction")
        return Begin(_modes(r), "START TRANSACTION")
    r.need("begin")
    _ = r.take("work") or r.take("transaction")
    return Begin(_modes(r))


def _chain(r: _Reader) -> bool:
    _ = r.take("work") or r.take("transaction")
    chain = False
    if r.take("and"):
        chain = not r.take("no")
        r.need("chain")
    r.end()
    return chain


def _commit(r: _Reader) -> Kind:
    r.at += 1
    if r.peek() == "prepared":
        return _TWO_PHASE
    return Commit(_chain(r))


def _rollback(r: _Reader) -> Kind:
    r.at += 1
    if r.peek() == "prepared":
        return _TWO_PHASE
    back = r.at
    _ = r.take("work") or r.take("transaction")
    if r.take("to"):
        if r.at + 1 < len(r.tokens):
            r.take("savepoint")
        name = r.name()
        r.end()
        return RollbackTo(name)
    r.at = back
    return Rollback(_chain(r))


def _savepoint(r: _Reader) -> Kind:
    r.need("savepoint")
    name = r.name()
    r.end()
    return Savepoint(name)


def _release(r: _Reader) -> Kind:
    r.need("release")
    if len(r.tokens) > 2:
        r.need("savepoint")
    name = r.name()
    r.end()
    return Release(name)


_TWO_PHASE = Refused("two-phase commit (PREPARE TRANSACTION) is not supported", "Use COMMIT.")


def _prepare(r: _Reader) -> Kind:
    return _TWO_PHASE if r.peek(1) == "transaction" else Local("prepare")


def _set(r: _Reader) -> Kind:
    r.need("set")
    if r.take("transaction"):
        if r.peek() == "snapshot":
            return Refused("SET TRANSACTION SNAPSHOT is not supported", None)
        return SetTransaction(_modes(r), session=False)
    if r.take("session", "characteristics", "as", "transaction"):
        return SetTransaction(_modes(r), session=True)
    _ = r.take("session") or r.take("local")
    if r.peek() in ("default_transaction_isolation", "transaction_isolation"):
        default = r.peek().startswith("default")
        r.at += 1
        if not (r.take("to") or r.symbol("=")) or len(r.tokens) != r.at + 1:
            return Local("set")
        token = r.tokens[r.at]
        value = token.text[1:-1] if token.kind in (TokenKind.STRING, TokenKind.QUOTED) else token.word
        return SetIsolation(fold(value), default)
    return Local("set")


def _show(r: _Reader) -> Kind:
    r.need("show")
    if r.take("branches"):
        r.end()
        return ShowBranches()
    return Local("show")


def _use(r: _Reader) -> Kind:
    r.need("use")
    if not r.take("branch"):
        raise _No
    if r.done():
        raise r.error()
    token = r.tokens[r.at]
    if len(r.tokens) == r.at + 1 and token.kind in (TokenKind.STRING, TokenKind.QUOTED) and token.text[0] in "'\"":
        quote = token.text[0]
        return UseBranch(token.text[1:-1].replace(quote * 2, quote))
    # Unquoted: a ref's name may have '-', '/' and '.', which are several tokens, with nothing between them.
    for left, right in zip(r.tokens[r.at :], r.tokens[r.at + 1 :], strict=False):
        if left.end != right.start:
            r.at = r.tokens.index(right)
            raise r.error()
    if not re.fullmatch(r"[\w./@~-]+", name := r.text[token.start : r.tokens[-1].end]):
        raise r.error()
    return UseBranch(fold(name))


def _create(r: _Reader) -> Kind:
    r.need("create")
    if r.take("schema"):
        return _create_schema(r)
    iceberg_at = r.at if r.peek() == "iceberg" else None
    if iceberg_at is not None:
        r.at += 1
        if not r.take("table"):
            raise r.error()
        return _create_table(r, iceberg_at)
    if r.take("table"):
        return _create_table(r, None)
    return Other()


def _create_schema(r: _Reader) -> Kind:
    if r.take("if"):
        r.need("not", "exists")
    if r.peek() == "authorization":
        return Refused("CREATE SCHEMA AUTHORIZATION is not supported: name the schema", None)
    name = r.name()
    if not r.done():
        return Refused("CREATE SCHEMA takes only a name here", "Create the schema first, and then what is to be in it.")
    return CreateSchema(name)


def _create_table(r: _Reader, iceberg_at: int | None) -> Kind:
    """After CREATE [ICEBERG] TABLE. Clauses of our own are blanked out; the rest stays PostgreSQL's to judge."""
    if_not_exists = r.take("if", "not", "exists")
    name_at = r.here()
    try:
        name = r.path()
    except _No:
        if iceberg_at is None:
            raise
        raise r.error() from None
    spans: list[tuple[int, int]] = []
    if iceberg_at is not None:
        spans.append((r.tokens[iceberg_at].start, r.tokens[iceberg_at].end))
    partitions: tuple[PartitionPart, ...] | None = None
    properties: tuple[tuple[str, str], ...] | None = None
    type_at: dict[str, int] = {}
    using = iceberg_at is not None
    clauses = _clauses(r)
    if not using and not any(
        clause == "using" and r.tokens[at + 1 : at + 2] and r.tokens[at + 1].word == "iceberg" for clause, at in clauses
    ):
        return Other()  # temporary by its schema, or refused by the brain's guard
    if any(clause == "as" for clause, _ in clauses):
        return Refused(
            "CREATE TABLE AS for an Iceberg table is not supported yet",
            "Create the table with its columns, then INSERT INTO it … SELECT.",
        )
    seen_columns = False
    while not r.done():
        start = r.here()
        if r.take("using"):
            if not r.take("iceberg"):
                raise r.error()
            spans.append((start, r.before()))
        elif r.peek() == "partition" and partitions is None:
            r.at += 1
            if not r.take("by"):
                raise r.error()
            partitions = _partitions(r)
            spans.append((start, r.before()))
        elif r.peek() == "with" and properties is None:
            r.at += 1
            properties = _properties(r)
            spans.append((start, r.before()))
        elif r.symbol("(") and not seen_columns:
            seen_columns = True
            type_at = _columns(r)
        elif r.peek() in ("inherits", "tablespace", "on", "of"):
            return Refused(f"{r.peek().upper()} is not supported in CREATE ICEBERG TABLE", None)
        else:
            raise r.error()
    if not seen_columns:
        raise r.error()
    return CreateTable(blank(r.text, spans), name, name_at, if_not_exists, partitions or (), properties or (), type_at)


def _clauses(r: _Reader) -> list[tuple[str, int]]:
    """The words outside parentheses from here on, with their token index."""
    found: list[tuple[str, int]] = []
    depth = 0
    for at in range(r.at, len(r.tokens)):
        token = r.tokens[at]
        if token.kind is TokenKind.SYMBOL:
            depth += (token.text == "(") - (token.text == ")")
        elif depth == 0 and token.word:
            found.append((token.word, at))
    return found


def _columns(r: _Reader) -> dict[str, int]:
    """After '(': to the matching ')'. Remembers where each column's type stands, for errors."""
    type_at: dict[str, int] = {}
    depth, fresh = 1, True
    while not r.done():
        token = r.tokens[r.at]
        named = token.kind is TokenKind.QUOTED or (token.word and token.word not in _CONSTRAINTS)
        if fresh and named and r.at + 1 < len(r.tokens):
            column = token.word or token.text[1:-1].replace('""', '"')
            type_at[column] = r.tokens[r.at + 1].start
        fresh = False
        r.at += 1
        if token.kind is TokenKind.SYMBOL:
            depth += (token.text == "(") - (token.text == ")")
            fresh = depth == 1 and token.text == ","
            if depth == 0:
                return type_at
    raise r.error()


_TRANSFORMS = {
    "year": "year",
    "years": "year",
    "month": "month",
    "months": "month",
    "day": "day",
    "days": "day",
    "hour": "hour",
    "hours": "hour",
    "identity": "identity",
}


def _partitions(r: _Reader) -> tuple[PartitionPart, ...]:
    """``(country, bucket(16, id), truncate(4, name), day(at))``; bucket's and truncate's arguments in either order."""
    parts: list[PartitionPart] = []
    if not r.symbol("("):
        raise r.error()
    while True:
        parts.append(_partition(r))
        if r.symbol(")"):
            return tuple(parts)
        if not r.symbol(","):
            raise r.error()


def _partition(r: _Reader) -> PartitionPart:
    at = r.here()
    try:
        name = r.name()
        if not r.symbol("("):
            return PartitionPart("identity", name, at)
        if name in _TRANSFORMS:
            at = r.here()
            part = PartitionPart(_TRANSFORMS[name], r.name(), at)
        elif name in ("bucket", "truncate"):
            width = _width(r)
            if width is not None and not r.symbol(","):
                raise r.error()
            at = r.here()
            column = r.name()
            if width is None:
                if not r.symbol(","):
                    raise r.error()
                width = _width(r)
            if width is None:
                raise r.error()
            part = PartitionPart(f"{name}[{width}]", column, at)
        else:
            raise PgError(
                "42704",
                f'partition transform "{name}" does not exist',
                hint="There are: bucket(n, column), truncate(n, column), year, month, day, hour, or a column's name.",
                position=at + 1,
            )
    except _No:
        raise r.error() from None
    if not r.symbol(")"):
        raise r.error()
    return part


def _width(r: _Reader) -> int | None:
    if r.done() or r.tokens[r.at].kind is not TokenKind.NUMBER:
        return None
    token = r.tokens[r.at]
    if not token.text.isdigit() or not 0 < int(token.text) < 2**31:
        raise PgError(
            "22023", f"{token.text} is not allowed here: give a whole number above 0", position=token.start + 1
        )
    r.at += 1
    return int(token.text)


def _properties(r: _Reader) -> tuple[tuple[str, str], ...]:
    """``("write.format.default" = 'parquet', 'format-version' = 3, a.b = x)``."""
    found: list[tuple[str, str]] = []
    if not r.symbol("("):
        raise r.error()
    while True:
        at = r.here()
        if r.done():
            raise r.error()
        token = r.tokens[r.at]
        if token.kind is TokenKind.STRING and token.text[0] == "'":
            r.at += 1
            key = token.text[1:-1].replace("''", "'")
        else:
            try:
                key = ".".join(r.path())
            except _No:
                raise r.error() from None
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


def _drop(r: _Reader) -> Kind:
    r.need("drop")
    if r.peek() == "iceberg" and r.peek(1) == "table":
        raise r.error()
    schema = r.take("schema")
    if not schema and not r.take("table"):
        return Other()
    if r.take("if"):
        r.need("exists")
    names: list[str] = []
    while True:
        start = r.here()
        parts = r.path()
        names.append(parts[0] if schema else r.text[start : r.before()])
        if not r.symbol(","):
            break
    cascade = r.take("cascade")
    if not cascade:
        r.take("restrict")
    r.end()
    return DropSchema(tuple(names), cascade) if schema else DropTable(tuple(names))


def _notify(r: _Reader) -> Kind:
    return Refused(f"{r.peek().upper()} is not supported: nobody else would hear it")


def _move(r: _Reader) -> Kind:
    return CursorMove()


_RULES = {
    "begin": _begin,
    "start": _begin,
    "commit": _commit,
    "end": _commit,
    "rollback": _rollback,
    "abort": _rollback,
    "savepoint": _savepoint,
    "release": _release,
    "prepare": _prepare,
    "set": _set,
    "show": _show,
    "use": _use,
    "create": _create,
    "drop": _drop,
    "listen": _notify,
    "notify": _notify,
    "fetch": _move,
    "move": _move,
    "close": _move,
}
