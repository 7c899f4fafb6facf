"""Every statement the store ever runs, built with SQLAlchemy Core and compiled to text once.

Compiled text goes to the driver directly: a get costs microseconds, where SQLAlchemy's execution would cost tens.
Everything here is portable; what is a database's own comes in through ``Dialect``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.sql.compiler import SQLCompiler

from icefield.store.kinds import Field, Shape, shape_of
from icefield.store.sql.tables import SEQUENCES, TABLES

MANY = 512
"""Keys asked for in one statement."""


class Dialect(Protocol):
    """What differs between databases when statements are built."""

    @property
    def sqlalchemy(self) -> sa.Dialect: ...

    def insert(self, table: sa.Table) -> Any:
        """An INSERT with ``on_conflict_do_nothing`` and ``on_conflict_do_update``."""
        ...


@dataclass(frozen=True, slots=True)
class Statement:
    """Text and, in the order the text wants them, the names of its parameters."""

    text: str
    names: tuple[str, ...]
    constants: Mapping[str, Any]

    def bind(self, values: Mapping[str, Any]) -> list[Any]:
        return [values[name] if name in values else self.constants[name] for name in self.names]


@dataclass(frozen=True, slots=True)
class KindStatements:
    """Parameters: a record's values (insert, put), its key (get, delete), new values and then old ones (replace)."""

    get: str
    insert: str
    put: str
    replace: str
    delete: str


@dataclass(frozen=True, slots=True)
class Question:
    """The shape of a ``find`` or ``delete_where``, without its values."""

    kind: type[Any]
    equal: tuple[tuple[str, bool], ...]
    """(field, is it None)"""
    order_by: str | None = None
    descending: bool = False
    limited: bool = False
    at_most: str | None = None


class Queries:
    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._kinds: dict[type[Any], KindStatements] = {}
        self._sizes: dict[tuple[type[Any], int], str] = {}
        self.find = functools.lru_cache(1024)(self._find)
        self.delete_where = functools.lru_cache(256)(self._delete_where)
        self.next_id = self._next_id()

    def of_kind(self, kind: type[Any]) -> KindStatements:
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = self._of_kind(kind)
        return found

    def many(self, kind: type[Any], size: int) -> str:
        """Parameters: so many keys."""
        found = self._sizes.get((kind, size))
        if found is None:
            found = self._sizes[kind, size] = self._many(kind, size)
        return found

    def _of_kind(self, kind: type[Any]) -> KindStatements:
        shape, table = shape_of(kind), TABLES[kind]
        key = sa.and_(*(table.c[name] == sa.bindparam(name) for name in shape.key))
        insert = self._dialect.insert(table).values({field.name: sa.bindparam(field.name) for field in shape.fields})
        rest = [field.name for field in shape.fields if field.name not in shape.key]
        put = insert.on_conflict_do_update(
            index_elements=shape.key, set_={name: insert.excluded[name] for name in rest}
        )
        update = (
            sa.update(table)
            .values({field.name: sa.bindparam(f"new_{field.name}") for field in shape.fields})
            .where(*(_still(table.c[field.name], field) for field in shape.fields))
        )
        names = [field.name for field in shape.fields]
        return KindStatements(
            get=self._ordered(sa.select(table).where(key), shape.key),
            insert=self._ordered(insert.on_conflict_do_nothing(index_elements=shape.key), names),
            put=self._ordered(put, names),
            replace=self._ordered(update, [f"new_{name}" for name in names] + [f"old_{name}" for name in names]),
            delete=self._ordered(sa.delete(table).where(key), shape.key),
        )

    def _many(self, kind: type[Any], size: int) -> str:
        (key,) = shape_of(kind).key
        table, names = TABLES[kind], [f"k{i}" for i in range(size)]
        # The type is named, since an IN of bare parameters has none of its own.
        wanted = [sa.bindparam(name, type_=table.c[key].type) for name in names]
        return self._ordered(sa.select(table).where(table.c[key].in_(wanted)), names)

    def _find(self, question: Question) -> Statement:
        shape, table = shape_of(question.kind), TABLES[question.kind]
        select = sa.select(table).where(*_conditions(table, question))
        order = [name for name in (question.order_by, *shape.key) if name is not None]
        for name in dict.fromkeys(order):
            select = select.order_by(_ordering(shape, table, name, question.descending))
        if question.limited:
            select = select.limit(sa.bindparam("the_limit", type_=sa.Integer()))
        return self._compiled(select)

    def _delete_where(self, question: Question) -> Statement:
        table = TABLES[question.kind]
        return self._compiled(sa.delete(table).where(*_conditions(table, question)))

    def _next_id(self) -> str:
        insert = self._dialect.insert(SEQUENCES).values(name=sa.bindparam("name"), value=sa.literal_column("1"))
        upsert = insert.on_conflict_do_update(index_elements=["name"], set_={"value": SEQUENCES.c.value + sa.text("1")})
        return self._ordered(upsert.returning(SEQUENCES.c.value), ["name"])

    def _compiled(self, statement: Any) -> Statement:
        compiled: SQLCompiler = statement.compile(dialect=self._dialect.sqlalchemy)
        return Statement(str(compiled), tuple(compiled.positiontup or ()), dict(compiled.params))

    def _ordered(self, statement: Any, names: Sequence[str]) -> str:
        """For statements that are run with a plain tuple: its order must be the text's."""
        compiled = self._compiled(statement)
        if compiled.names != tuple(names):
            raise AssertionError(f"parameters {compiled.names} are not {tuple(names)}: {compiled.text}")
        return compiled.text


def _still(column: sa.Column[Any], field: Field) -> sa.ColumnElement[bool]:
    old = sa.bindparam(f"old_{field.name}", type_=column.type)
    return column.is_not_distinct_from(old) if field.nullable else column == old


def _conditions(table: sa.Table, question: Question) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = [
        table.c[name].is_(None) if is_none else table.c[name] == sa.bindparam(f"equal_{name}")
        for name, is_none in question.equal
    ]
    if question.at_most is not None:
        conditions.append(table.c[question.at_most] <= sa.bindparam("the_most"))
    return conditions


def _ordering(shape: Shape, table: sa.Table, name: str, descending: bool) -> sa.ColumnElement[Any]:
    column = table.c[name]
    nullable = any(field.name == name and field.nullable for field in shape.fields)
    if descending:
        return column.desc().nulls_last() if nullable else column.desc()
    return column.asc().nulls_first() if nullable else column.asc()
