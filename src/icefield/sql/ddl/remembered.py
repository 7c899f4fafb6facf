"""What a table remembers of its SQL: properties <-> constraints, defaults, sequences. Pure.

Everything is kept by field id, so that a column renamed by whatever engine stays the same column:

    icefield.default.<id>          DEFAULT expression
    icefield.check.<name>          CHECK expression, a column written as $<id>
    icefield.unique.<name>         1,2 (or: 1,2 nulls not distinct)
    icefield.primary-key.<name>    1,2
    icefield.sequence.<id>         JSON: kind, name, type, start, increment, min, max, cycle
    icefield.pg-type.<id>          what the Iceberg type does not tell (``types``)
    icefield.not-null.<id>         the NOT NULL constraint's name, if it is not the one that PostgreSQL gives
    comment                        COMMENT ON TABLE

Contract: ``recall(to_properties(memory))`` is the memory again. Properties come from anybody who may write to the
table, so ``recall`` never raises: what cannot be meant is ``Unfit``, with the reason. An expression is taken only if it
is *confined*: put between parentheses it cannot end them, nor the statement.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from icefield.sql.lexer import Token, TokenKind, fold, tokens

PREFIX = "icefield."
PG_TYPE = "icefield.pg-type."
DEFAULT = "icefield.default."
CHECK = "icefield.check."
UNIQUE = "icefield.unique."
PRIMARY_KEY = "icefield.primary-key."
SEQUENCE = "icefield.sequence."
NOT_NULL = "icefield.not-null."
COMMENT = "comment"

SERIAL, ALWAYS, BY_DEFAULT = "serial", "always", "by default"
OWNED = "owned"
"""The column of a serial whose default is another now: the sequence is still there."""
_KINDS = (SERIAL, ALWAYS, BY_DEFAULT, OWNED)
_LIMITS = {"smallint": 2**15, "integer": 2**31, "bigint": 2**63}
_NOT_DISTINCT = " nulls not distinct"
_MAX_NAME_BYTES = 63


@dataclass(frozen=True, slots=True)
class Key:
    name: str
    field_ids: tuple[int, ...]
    primary: bool = False
    nulls_not_distinct: bool = False

    @property
    def property(self) -> str:
        return (PRIMARY_KEY if self.primary else UNIQUE) + self.name


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    expression: str
    """With ``$<field id>`` for columns."""


@dataclass(frozen=True, slots=True)
class Counter:
    """The sequence of a serial or identity column."""

    field_id: int
    kind: str
    name: str
    type: str
    start: int
    increment: int
    min: int
    max: int
    cycle: bool


@dataclass(frozen=True, slots=True)
class Memory:
    defaults: tuple[tuple[int, str], ...] = ()
    """By field id, ascending."""
    checks: tuple[Check, ...] = ()
    """By name."""
    keys: tuple[Key, ...] = ()
    """The primary key first, then by name."""
    counters: tuple[Counter, ...] = ()
    """By field id."""
    not_nulls: tuple[tuple[int, str], ...] = ()
    """Names of NOT NULL constraints, by field id, ascending."""
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class Unfit:
    """Something remembered that does not fit the table any more: it can be read, but not written to."""

    property: str
    reason: str

    def __str__(self) -> str:
        if self.property.startswith((DEFAULT, SEQUENCE)):
            return f"the default of field {self.property.rpartition('.')[2]}"
        return f'constraint "{constraint_name(self.property)}"'


NOTHING = Memory()


def constraint_name(name: str) -> str | None:
    """Of a property; None if it is not a constraint's."""
    for prefix in (CHECK, UNIQUE, PRIMARY_KEY):
        if name.startswith(prefix):
            return name[len(prefix) :]
    return None


def bounds_as(counter: Counter, type_name: str) -> tuple[int, int]:
    """With another type of the column: bounds that were the type's own are the new type's, as PostgreSQL has it."""
    old, new = _LIMITS[counter.type], _LIMITS[type_name]
    low = -new if counter.min == -old else counter.min
    return low, (new - 1 if counter.max == old - 1 else counter.max)


def not_null_name(table: str, column: str) -> str:
    """The one that PostgreSQL gives (if it is not too long)."""
    return f"{table}_{column}_not_null"


def to_properties(memory: Memory) -> dict[str, str]:
    found = {f"{DEFAULT}{field_id}": expression for field_id, expression in memory.defaults}
    found |= {CHECK + check.name: check.expression for check in memory.checks}
    for key in memory.keys:
        found[key.property] = ",".join(map(str, key.field_ids)) + (_NOT_DISTINCT if key.nulls_not_distinct else "")
    for counter in memory.counters:
        found[f"{SEQUENCE}{counter.field_id}"] = json.dumps(
            {
                "kind": counter.kind,
                "name": counter.name,
                "type": counter.type,
                "start": counter.start,
                "increment": counter.increment,
                "min": counter.min,
                "max": counter.max,
                "cycle": counter.cycle,
            },
            ensure_ascii=False,
        )
    found |= {f"{NOT_NULL}{field_id}": name for field_id, name in memory.not_nulls}
    if memory.comment is not None:
        found[COMMENT] = memory.comment
    return found


def recall(properties: Mapping[str, str], field_ids: frozenset[int]) -> tuple[Memory, tuple[Unfit, ...]]:
    """What is remembered about a table whose columns have these ids, and what of it does not fit them.

    What belongs to a column that is gone is nobody's: it is passed over. What names such a column among others (a key,
    a CHECK) is unfit: another engine dropped the column, and whether the rest still holds is for the user to say.
    """
    defaults: dict[int, str] = {}
    checks: list[Check] = []
    keys: list[Key] = []
    counters: dict[int, Counter] = {}
    not_nulls: dict[int, str] = {}
    unfit: list[Unfit] = []
    for name in sorted(name for name in properties if name.startswith(PREFIX)):
        value = properties[name]
        try:
            if name.startswith(NOT_NULL):
                if storable(value) and name[len(NOT_NULL) :] in {str(field_id) for field_id in field_ids}:
                    not_nulls[int(name[len(NOT_NULL) :])] = value  # only a name: nothing hangs on it
            elif name.startswith((DEFAULT, SEQUENCE)):
                field_id = _number(name.rpartition(".")[2])
                if field_id not in field_ids:
                    continue
                if name.startswith(DEFAULT):
                    _check_confined(value)
                    if used(value):
                        raise _No("it names a column")
                    defaults[field_id] = value
                else:
                    counters[field_id] = _counter(field_id, value)
            elif (constraint := constraint_name(name)) is not None:
                _check_name(constraint)
                if name.startswith(CHECK):
                    _check_confined(value)
                    _check_ids(used(value), field_ids)
                    checks.append(Check(constraint, value))
                else:
                    keys.append(_key(constraint, value, name.startswith(PRIMARY_KEY), field_ids))
        except _No as why:
            unfit.append(Unfit(name, str(why)))
    comment = properties.get(COMMENT)
    if comment is not None and not storable(comment):
        comment = None
    memory = Memory(
        tuple(sorted(defaults.items())),
        tuple(sorted(checks, key=lambda check: check.name)),
        tuple(sorted(keys, key=lambda key: (not key.primary, key.name))),
        tuple(counters[field_id] for field_id in sorted(counters)),
        tuple(sorted(not_nulls.items())),
        comment,
    )
    return memory, tuple(unfit)


def storable(text: str) -> bool:
    """PostgreSQL's text can hold it."""
    return "\x00" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


class _No(Exception):
    """Why a property cannot be meant."""


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise _No(f"{text!a} is no field id")
    return int(text)


def _check_name(name: str) -> None:
    if not name or len(name.encode("utf-8", "replace")) > _MAX_NAME_BYTES or not storable(name):
        raise _No("its name is not one in PostgreSQL")


def _check_ids(ids: Iterable[int], known: frozenset[int]) -> None:
    gone = sorted(set(ids) - known)
    if gone:
        raise _No(f"the table has no column with field id {gone[0]} any more")


def _key(name: str, value: str, primary: bool, known: frozenset[int]) -> Key:
    listed = value.removesuffix(_NOT_DISTINCT)
    ids = tuple(_number(part.strip()) for part in listed.split(","))
    if len(set(ids)) != len(ids):
        raise _No("it names a column twice")
    _check_ids(ids, known)
    not_distinct = listed != value
    if primary and not_distinct:
        raise _No("a primary key has no NULLs")
    return Key(name, ids, primary, not_distinct)


def _counter(field_id: int, value: str) -> Counter:
    try:
        said: Any = json.loads(value)
    except (ValueError, RecursionError):
        raise _No("it is no JSON") from None
    if not isinstance(said, dict):
        raise _No("it is no JSON object")
    kind, name, type_name, cycle = (said.get(key) for key in ("kind", "name", "type", "cycle"))
    if kind not in _KINDS or type_name not in _LIMITS or not isinstance(name, str) or not isinstance(cycle, bool):
        raise _No("kind, name, type or cycle is not what it can be")
    _check_name(name)
    limit = _LIMITS[type_name]
    numbers: list[int] = []
    for key in ("start", "increment", "min", "max"):
        number = said.get(key)
        if type(number) is not int or not -limit <= number < limit:
            raise _No(f"{key} is no {type_name}")
        numbers.append(number)
    start, increment, low, high = numbers
    if increment == 0 or not low <= start <= high or low >= high:
        raise _No("start, increment, min and max do not fit each other")
    return Counter(field_id, kind, name, type_name, start, increment, low, high, cycle)


# Expressions ----------------------------------------------------------------------------------------------------------


def used(expression: str) -> frozenset[int]:
    """The field ids that it names."""
    return frozenset(
        int(token.text[1:])
        for token in tokens(expression)
        if token.kind is TokenKind.PARAMETER and len(token.text) < 12
    )


def with_names(expression: str, names: Mapping[int, str]) -> str:
    """``$<id>`` -> the column's name. Raises KeyError for an id without one."""
    return _rewritten(
        expression,
        lambda token: quote(names[int(token.text[1:])]) if token.kind is TokenKind.PARAMETER else token.text,
    )


def renumbered(expression: str, ids: Mapping[int, int]) -> str:
    """``$n`` -> ``$<ids[n]>``."""
    return _rewritten(
        expression,
        lambda token: f"${ids[int(token.text[1:])]}" if token.kind is TokenKind.PARAMETER else token.text,
    )


def with_ids(expression: str, ids: Mapping[str, int]) -> str:
    """The other way. The names must be ones that mean nothing else in the expression (no function, type, keyword)."""

    def one(token: Token) -> str:
        if token.kind is TokenKind.WORD:
            name = fold(token.text)
        elif token.kind is TokenKind.QUOTED and token.text[0] == '"':
            name = token.text[1:-1].replace('""', '"')
        else:
            return str(token.text)
        return f"${ids[name]}" if name in ids else str(token.text)

    return _rewritten(expression, one)


def _rewritten(expression: str, one: Callable[[Token], str]) -> str:
    parts: list[str] = []
    at = 0
    for token in tokens(expression):
        parts += [expression[at : token.start], one(token)]
        at = token.end
    return "".join([*parts, expression[at:]])


def confined(expression: str) -> bool:
    """Between parentheses it stays there: nothing in it closes them, ends the statement, or hides what follows."""
    try:
        _check_confined(expression)
    except _No:
        return False
    return True


def _check_confined(expression: str) -> None:
    at, some = 0, False
    open_ones: list[str] = []
    if not storable(expression):
        raise _No("its expression is no text in PostgreSQL")
    for token in tokens(expression):
        if expression[at : token.start].strip(" \t\n\r\f\v"):
            raise _No("its expression holds a comment")
        at, some = token.end, True
        if token.kind is TokenKind.BROKEN or (token.kind is TokenKind.PARAMETER and len(token.text) > 11):
            raise _No("its expression does not end")
        if token.kind is TokenKind.SYMBOL:
            if token.text in "([":
                open_ones.append(")" if token.text == "(" else "]")
            elif (token.text in ")]" and (not open_ones or open_ones.pop() != token.text)) or token.text in ";\\":
                raise _No("its expression is not one expression")
    if open_ones or not some or expression[at:].strip(" \t\n\r\f\v"):
        raise _No("its expression is not one expression")


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string constant, whatever standard_conforming_strings is."""
    quoted = text.replace("'", "''")
    return "E'" + quoted.replace("\\", "\\\\") + "'" if "\\" in text else f"'{quoted}'"
