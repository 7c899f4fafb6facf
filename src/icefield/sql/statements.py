"""What each statement of a client's text is, as far as its words tell.

A recogniser for what is not PostgreSQL's grammar or must not simply be relayed. All else is ``Other`` and goes to the
brain as it came. Whatever is rewritten for the brain keeps every character's position: words that are taken out become
blanks. Each rule reads one first word; the grammar of branches is in ``branching.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from icefield.pgwire.errors import PgError
from icefield.sql import branching, table_statements
from icefield.sql.branching import BRANCH_KINDS, BranchKind
from icefield.sql.lexer import Statement as Statement
from icefield.sql.lexer import TokenKind, blank, fold
from icefield.sql.lexer import split as split
from icefield.sql.reader import No, Reader
from icefield.sql.table_statements import AlterProperties, AlterTable, CommentOn, TableKind

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
    | BranchKind
    | CreateTable
    | DropTable
    | TableKind
    | CreateSchema
    | DropSchema
    | Refused
)

LAKE_DDL = (CreateTable, DropTable, AlterTable, AlterProperties, CommentOn, CreateSchema, DropSchema)
"""Kinds that ``ddl/`` does: what is made, changed and dropped in the lake."""

NOT_POSTGRES = (*BRANCH_KINDS, Refused, AlterProperties)
"""Kinds whose text the brain cannot judge: a syntax check leaves them out."""

_LOCAL = frozenset(
    "set show reset deallocate prepare unlisten discard checkpoint load".split()  # noqa: SIM905
)
_CONSTRAINTS = frozenset(["constraint", "primary", "unique", "check", "foreign", "exclude", "like"])


def classify(statement: Statement) -> Kind:
    """What the statement is. Raises PgError 42601 only for our own grammar; its position is in ``statement.text``."""
    if statement.empty:
        return Other()
    rule = _RULES.get(statement.tokens[0].word)
    if rule is not None:
        try:
            return rule(Reader(statement))
        except No:
            return Other()
    return Local(statement.tokens[0].word) if statement.tokens[0].word in _LOCAL else Other()


def _modes(r: Reader) -> Modes:
    isolation: str | None = None
    read_only: bool | None = None
    deferrable: bool | None = None
    first = True
    while not r.done():
        comma = r.symbol(",")
        if comma and first:
            raise No
        first = False
        if r.take("isolation", "level"):
            for words in (("read", "committed"), ("read", "uncommitted"), ("repeatable", "read"), ("serializable",)):
                if r.take(*words):
                    isolation = " ".join(words)
                    break
            else:
                raise No
        elif r.take("read", "only"):
            read_only = True
        elif r.take("read", "write"):
            read_only = False
        elif r.take("deferrable"):
            deferrable = True
        elif r.take("not", "deferrable"):
            deferrable = False
        else:
            raise No
    return Modes(isolation, read_only, deferrable)


def _begin(r: Reader) -> Kind:
    if r.take("start"):
        r.need("transaction")
        return Begin(_modes(r), "START TRANSACTION")
    r.need("begin")
    _ = r.take("work") or r.take("transaction")
    return Begin(_modes(r))


def _chain(r: Reader) -> bool:
    _ = r.take("work") or r.take("transaction")
    chain = False
    if r.take("and"):
        chain = not r.take("no")
        r.need("chain")
    r.end()
    return chain


def _commit(r: Reader) -> Kind:
    r.at += 1
    if r.peek() == "prepared":
        return _TWO_PHASE
    return Commit(_chain(r))


def _rollback(r: Reader) -> Kind:
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


def _savepoint(r: Reader) -> Kind:
    r.need("savepoint")
    name = r.name()
    r.end()
    return Savepoint(name)


def _release(r: Reader) -> Kind:
    r.need("release")
    if len(r.tokens) > 2:
        r.need("savepoint")
    name = r.name()
    r.end()
    return Release(name)


_TWO_PHASE = Refused("two-phase commit (PREPARE TRANSACTION) is not supported", "Use COMMIT.")


def _prepare(r: Reader) -> Kind:
    return _TWO_PHASE if r.peek(1) == "transaction" else Local("prepare")


def _set(r: Reader) -> Kind:
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


def _show(r: Reader) -> Kind:
    r.need("show")
    try:
        return branching.show(r)
    except No:
        return Local("show")


def _create(r: Reader) -> Kind:
    r.need("create")
    kind = branching.ref_kind(r)
    if kind is not None:
        return branching.create(r, kind)
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


def _create_schema(r: Reader) -> Kind:
    if r.take("if"):
        r.need("not", "exists")
    if r.peek() == "authorization":
        return Refused("CREATE SCHEMA AUTHORIZATION is not supported: name the schema", None)
    name = r.name()
    if not r.done():
        return Refused("CREATE SCHEMA takes only a name here", "Create the schema first, and then what is to be in it.")
    return CreateSchema(name)


def _create_table(r: Reader, iceberg_at: int | None) -> Kind:
    """After CREATE [ICEBERG] TABLE. Clauses of our own are blanked out; the rest stays PostgreSQL's to judge."""
    if_not_exists = r.take("if", "not", "exists")
    name_at = r.here()
    try:
        name = r.path()
    except No:
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


def _clauses(r: Reader) -> list[tuple[str, int]]:
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


def _columns(r: Reader) -> dict[str, int]:
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


def _partitions(r: Reader) -> tuple[PartitionPart, ...]:
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


def _partition(r: Reader) -> PartitionPart:
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
    except No:
        raise r.error() from None
    if not r.symbol(")"):
        raise r.error()
    return part


def _width(r: Reader) -> int | None:
    if r.done() or r.tokens[r.at].kind is not TokenKind.NUMBER:
        return None
    token = r.tokens[r.at]
    if not token.text.isdigit() or not 0 < int(token.text) < 2**31:
        raise PgError(
            "22023", f"{token.text} is not allowed here: give a whole number above 0", position=token.start + 1
        )
    r.at += 1
    return int(token.text)


def _properties(r: Reader) -> tuple[tuple[str, str], ...]:
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
            except No:
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


def _drop(r: Reader) -> Kind:
    r.need("drop")
    kind = branching.ref_kind(r)
    if kind is not None:
        return branching.drop(r, kind)
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


def _notify(r: Reader) -> Kind:
    return Refused(f"{r.peek().upper()} is not supported: nobody else would hear it")


def _move(r: Reader) -> Kind:
    return CursorMove()


_RULES: dict[str, Callable[[Reader], Kind]] = {
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
    "use": branching.use,
    "merge": branching.merge,
    "create": _create,
    "alter": table_statements.alter,
    "comment": table_statements.comment,
    "drop": _drop,
    "listen": _notify,
    "notify": _notify,
    "fetch": _move,
    "move": _move,
    "close": _move,
}
