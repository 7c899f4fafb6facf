"""Shadows: empty tables in the brain with the lake tables' columns, kept in step with what the session's ref shows.

``Shadows`` is what the brain holds; ``wanted`` says what a catalog answer asks it to hold; ``sync_script`` is the SQL
between the two. A table that the door cannot show (a type that it does not know, a name that PostgreSQL cannot have)
is *left out*, with the reason, so that naming it can be answered clearly.

What a table remembers (constraints, defaults, sequences, comments) *dresses* its shadow, piece by piece, each in a
guarded step: a piece that does not fit any more is *unfit*, and the table can be read, but not written to.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any

from icefield.pgwire.errors import PgError
from icefield.sql.ddl import remembered
from icefield.sql.ddl.remembered import Counter, Memory, Unfit, literal
from icefield.sql.ddl.remembered import Key as UniqueKey
from icefield.sql.ddl.remembered import quote as _quote
from icefield.sql.types import ColumnType, Unsupported, from_iceberg

Key = tuple[str, str]
"""(schema, table) in the brain."""

MAX_NAME_BYTES = 63
MAX_COLUMNS = 1600
PUBLIC = "public"
_SYSTEM_COLUMNS = frozenset(("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"))


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: ColumnType
    required: bool
    field_id: int = 0
    """In the Iceberg schema; 0 where nobody needs it."""
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class Sequence:
    """A shadow's sequence. The brain's has the declared bounds but never cycles, and is *exhausted* when it is made:
    it stands at its last number, so that nextval fails with 2200H until ``ALTER SEQUENCE … MAXVALUE e RESTART s``
    (MINVALUE for a descending one) has opened a window of numbers that the server gave to this session.
    """

    sql_name: str
    name: str
    field_id: int
    start: int
    increment: int
    min: int
    max: int
    cycle: bool
    kind: str
    """``serial``, ``always``, ``by default``, or ``owned``: by a column that has another default."""

    @property
    def last(self) -> int:
        """The number after which there is none."""
        return self.max if self.increment > 0 else self.min


@dataclass(frozen=True, slots=True)
class Shadow:
    namespace: tuple[str, ...]
    name: str
    columns: tuple[Column, ...]
    schema: str
    """The namespace's name in the brain."""
    version: str | None = None
    """The metadata location that the catalog names: the content's version; None when it is not known."""
    oid: int = 0
    format_version: int = 2
    properties: Mapping[str, str] = field(default_factory=dict, compare=False)
    """All of the table's."""
    memory: Memory = remembered.NOTHING
    unfit: tuple[Unfit, ...] = ()
    """What is remembered and cannot be meant."""
    refused: tuple[Unfit, ...] = ()
    """What the brain did not take."""

    @property
    def key(self) -> Key:
        return (self.schema, self.name)

    @property
    def sql_name(self) -> str:
        return f"{_quote(self.schema)}.{_quote(self.name)}"

    @property
    def keys(self) -> tuple[UniqueKey, ...]:
        return self.memory.keys

    @property
    def has_keys(self) -> bool:
        """Some of its columns, together, are unique."""
        return bool(self.memory.keys)

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        return tuple(
            Sequence(
                f"{_quote(self.schema)}.{_quote(one.name)}",
                one.name,
                one.field_id,
                one.start,
                one.increment,
                one.min,
                one.max,
                one.cycle,
                one.kind,
            )
            for one in self.memory.counters
        )

    @property
    def broken(self) -> tuple[Unfit, ...]:
        return self.unfit + self.refused

    def column_names(self) -> dict[int, str]:
        """By field id."""
        return {column.field_id: column.name for column in self.columns}

    def check_writable(self) -> None:
        """Raises PgError for a table that remembers something that does not hold any more."""
        if not self.broken:
            return
        one = self.broken[0]
        name = remembered.constraint_name(one.property)
        if name is not None:
            what, repair = f"constraint {_quote(name)}", f"DROP CONSTRAINT {_quote(name)}"
        else:
            column = self.column_names().get(int(one.property.rpartition(".")[2]), "")
            what, repair = f'the default of column "{column}"', f"ALTER COLUMN {_quote(column)} DROP DEFAULT"
        raise PgError(
            "0A000",
            f'table "{self}" cannot be written to here: {what} does not fit it any more',
            detail=f"{one.property}: {one.reason}.",
            hint=f"Another engine changed the table. ALTER TABLE {self.sql_name} {repair} makes it writable again.",
        )

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class LeftOut:
    namespace: tuple[str, ...]
    name: str
    schema: str
    reason: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class Shadows:
    """A value: a savepoint keeps one, and ROLLBACK TO takes it back."""

    tables: Mapping[Key, Shadow] = field(default_factory=dict)
    schemas: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {PUBLIC: (PUBLIC,)})
    """Schema in the brain -> namespace. ``public`` is always there in the brain; in the lake it is made when needed."""
    left_out: Mapping[Key, LeftOut] = field(default_factory=dict)
    left_out_schemas: Mapping[str, str] = field(default_factory=dict)
    """Shown name -> reason."""
    namespaces: frozenset[tuple[str, ...]] = frozenset()
    """All that the lake has."""
    fingerprint: str | None = None

    def by_oid(self) -> dict[int, Shadow]:
        return {shadow.oid: shadow for shadow in self.tables.values()}

    def with_table(self, shadow: Shadow) -> Shadows:
        return replace(
            self,
            tables={**self.tables, shadow.key: shadow},
            namespaces=self.namespaces | {shadow.namespace},
            fingerprint=None,
        )

    def without_table(self, key: Key) -> Shadows:
        return replace(self, tables={k: v for k, v in self.tables.items() if k != key}, fingerprint=None)

    def with_schema(self, schema: str, namespace: tuple[str, ...]) -> Shadows:
        return replace(
            self,
            schemas={**self.schemas, schema: namespace},
            namespaces=self.namespaces | {namespace},
            fingerprint=None,
        )

    def without_schema(self, schema: str) -> Shadows:
        return replace(
            self,
            tables={k: v for k, v in self.tables.items() if k[0] != schema},
            schemas={k: v for k, v in self.schemas.items() if k != schema},
            left_out={k: v for k, v in self.left_out.items() if k[0] != schema},
            namespaces=self.namespaces - {self.schemas.get(schema, (schema,))},
            fingerprint=None,
        )


def schema_name(namespace: Seq[str]) -> str:
    """Raises Unsupported for a namespace that PostgreSQL cannot name."""
    if any("." in level for level in namespace):
        raise Unsupported("a level of its namespace holds a '.', which separates levels here", "Rename the namespace.")
    name = ".".join(namespace)
    if name.startswith("pg_") or name == "information_schema":
        raise Unsupported(f"the name {name} is PostgreSQL's own", "Rename the namespace.")
    _check_name(name, "the namespace's name")
    return name


def wanted(catalog: Mapping[str, Any]) -> Shadows:
    """What the brain should hold for an answer of GET /api/v1/sessions/{id}/catalog."""
    schemas: dict[str, tuple[str, ...]] = {PUBLIC: (PUBLIC,)}
    left_out_schemas: dict[str, str] = {}
    namespaces = {tuple(levels) for levels in catalog["namespaces"]}
    for namespace in sorted(namespaces | {tuple(t["namespace"]) for t in catalog["tables"]}):
        try:
            schemas[schema_name(namespace)] = namespace
        except Unsupported as why:
            left_out_schemas[".".join(namespace)] = why.reason
    tables: dict[Key, Shadow] = {}
    left_out: dict[Key, LeftOut] = {}
    for entry in catalog["tables"]:
        namespace, name = tuple(entry["namespace"]), entry["name"]
        shown = ".".join(namespace)
        try:
            schema_name(namespace)
            shadow = shadow_of(
                namespace,
                name,
                entry["schema"],
                entry.get("properties") or {},
                int(entry.get("format-version") or 2),
                version=entry.get("metadata-location"),
            )
            tables[shadow.key] = shadow
        except Unsupported as why:
            left_out[shown, name] = LeftOut(namespace, name, shown, why.reason, why.hint)
    return Shadows(
        _with_names_of_their_own(tables),
        schemas,
        left_out,
        left_out_schemas,
        frozenset(namespaces),
        catalog.get("fingerprint"),
    )


def shadow_of(
    namespace: tuple[str, ...],
    name: str,
    schema: Mapping[str, Any],
    properties: Mapping[str, str],
    format_version: int,
    *,
    version: str | None = None,
    oid: int = 0,
) -> Shadow:
    """Raises Unsupported for a table that cannot be shown."""
    shown = schema_name(namespace)
    columns = columns_of(schema, name, properties)
    memory, unfit = remembered.recall(properties, frozenset(column.field_id for column in columns))
    return Shadow(namespace, name, columns, shown, version, oid, format_version, properties, memory, unfit)


def columns_of(schema: Mapping[str, Any], table: str, properties: Mapping[str, str]) -> tuple[Column, ...]:
    _check_name(table, "the table's name")
    fields = schema["fields"]
    if len(fields) > MAX_COLUMNS:
        raise Unsupported(f"it has {len(fields)} columns; PostgreSQL has at most {MAX_COLUMNS}", "Use another door.")
    columns = []
    for one in fields:
        name = one["name"]
        _check_name(name, f"the column name {name!r}")
        if name in _SYSTEM_COLUMNS:
            raise Unsupported(f"column name {name!r} is PostgreSQL's own", "Rename the column.")
        field_id, comment = int(one.get("id", 0)), one.get("doc")
        if comment is not None and (not comment or not remembered.storable(comment)):
            comment = None
        try:
            column_type = from_iceberg(one["type"], properties.get(f"{remembered.PG_TYPE}{field_id}"))
        except Unsupported as why:
            raise Unsupported(f'column "{name}" has a type that is not supported: {why.reason}', why.hint) from None
        columns.append(Column(name, column_type, bool(one.get("required", False)), field_id, comment))
    return tuple(columns)


def _with_names_of_their_own(tables: Mapping[Key, Shadow]) -> dict[Key, Shadow]:
    """In PostgreSQL the indexes of keys and the sequences share one room of names with the tables of their schema; in
    the lake they do not. A sequence gives way (its name is nobody's business), a key is unfit."""
    if not any(shadow.memory.keys or shadow.memory.counters for shadow in tables.values()):
        return dict(tables)
    taken = set(tables)
    found = dict(tables)
    for key in sorted(tables):
        shadow = tables[key]
        memory, unfit = shadow.memory, shadow.unfit
        if not memory.keys and not memory.counters:
            continue
        kept = []
        for one in memory.keys:
            if (shadow.schema, one.name) in taken:
                unfit += (Unfit(one.property, f'another relation in schema "{shadow.schema}" has this name'),)
            else:
                taken.add((shadow.schema, one.name))
                kept.append(one)
        counters = []
        for counter in memory.counters:
            name, number = counter.name, 0
            while (shadow.schema, name) in taken:
                number += 1
                name = _numbered(counter.name, number)
            taken.add((shadow.schema, name))
            counters.append(replace(counter, name=name))
        memory = replace(memory, keys=tuple(kept), counters=tuple(counters))
        found[key] = replace(shadow, memory=memory, unfit=unfit)
    return found


def _numbered(name: str, number: int) -> str:
    ending = str(number)
    while len(name.encode()) + len(ending) > MAX_NAME_BYTES:
        name = name[:-1]
    return name + ending


# From one to the other ------------------------------------------------------------------------------------------------


def sync_script(held: Shadows, wish: Shadows, owner: str) -> str | None:
    """SQL for the superuser's link that turns ``held`` into ``wish``; None if nothing is to be done.

    What the brain does not take of the tables' dressing it tells in notices, which ``carried`` reads.
    """
    gone: list[str] = []
    made: list[str] = []
    dressed: list[str] = []
    for key, shadow in held.tables.items():
        other = wish.tables.get(key)
        if other is None or not _same_columns(shadow, other):
            # What hangs on it (a temporary view of the client's) goes with it: its columns are no longer true.
            gone.append(f"DROP TABLE IF EXISTS {shadow.sql_name} CASCADE;")
    gone.extend(f"DROP SCHEMA IF EXISTS {_quote(name)} CASCADE;" for name in held.schemas if name not in wish.schemas)
    made.extend(f"CREATE SCHEMA {_quote(name)};" for name in wish.schemas if name not in held.schemas)
    for key, shadow in wish.tables.items():
        other = held.tables.get(key)
        if other is None or not _same_columns(other, shadow):
            made.append(_bare_table(shadow))
            dressed.extend(_dress(shadow, _pieces(shadow)))
        elif other.memory != shadow.memory or other.columns != shadow.columns:
            before, after = _pieces(other), _pieces(shadow)
            gone.extend(_undress([piece for name, piece in before.items() if after.get(name) != piece]))
            dressed.extend(_dress(shadow, {n: piece for n, piece in after.items() if before.get(n) != piece}))
    steps = [*gone, *made, *dressed]
    if not steps:
        return None
    return "\n".join(
        [
            "BEGIN;",
            f"SET LOCAL ROLE {_quote(owner)};",
            "SET LOCAL icefield.ddl = 'on';",
            "SET LOCAL search_path = pg_catalog, pg_temp;",
            *steps,
            "COMMIT;",
        ]
    )


def _same_columns(one: Shadow, other: Shadow) -> bool:
    return _shape(one) == _shape(other)


def _shape(shadow: Shadow) -> list[tuple[str, ColumnType, bool, int]]:
    return [(column.name, column.type, column.required, column.field_id) for column in shadow.columns]


def carried(
    held: Shadows,
    wish: Shadows,
    oids: Mapping[Key, int] | None,
    notices: Iterable[Mapping[str, str]] = (),
) -> Shadows:
    """``wish``, now that the brain holds it: with fresh oids, or with the old ones when no SQL was needed.

    ``notices``: what the brain said to ``sync_script``.
    """
    known = {key: shadow.oid for key, shadow in held.tables.items()} if oids is None else oids
    refused = read_refused(notices)
    tables: dict[Key, Shadow] = {}
    for key, shadow in wish.tables.items():
        old = held.tables.get(key)
        unfit = refused.get(key, ())
        if old is not None and old.refused and _same_columns(old, shadow):
            before, after = _pieces(old), _pieces(shadow)
            unfit = (*(u for u in old.refused if before.get(u.property) == after.get(u.property)), *unfit)
        tables[key] = replace(shadow, oid=known[key], refused=unfit) if unfit else replace(shadow, oid=known[key])
    return replace(wish, tables=tables)


def create_table(shadow: Shadow) -> str:
    """The shadow, made and dressed: for a link that may make it."""
    return "\n".join([_bare_table(shadow), *_dress(shadow, _pieces(shadow))])


def still_refused(old: Shadow, new: Shadow) -> Shadow:
    """``new``, altered in this session's brain: what of ``old`` did not fit, and is remembered still, does not yet."""
    known = {unfit.property for unfit in new.unfit}
    same = [unfit for unfit in old.broken if old.properties.get(unfit.property) == new.properties.get(unfit.property)]
    left = tuple(unfit for unfit in same if unfit.property not in known and unfit.property in new.properties)
    if not left:
        return new
    names = {unfit.property for unfit in left}
    clashing = names & {unfit.property for unfit in old.unfit}
    memory = replace(new.memory, keys=tuple(key for key in new.memory.keys if key.property not in clashing))
    return replace(
        new,
        memory=memory,
        unfit=new.unfit + tuple(unfit for unfit in left if unfit.property in clashing),
        refused=tuple(unfit for unfit in left if unfit.property not in clashing),
    )


def _bare_table(shadow: Shadow) -> str:
    columns = ", ".join(f"{_quote(c.name)} {c.type.sql}{' NOT NULL' if c.required else ''}" for c in shadow.columns)
    return f"CREATE TABLE {shadow.sql_name} ({columns});"


@dataclass(frozen=True, slots=True)
class _Piece:
    """One thing that dresses a shadow, and how it is taken off."""

    make: str
    undo: str


def _pieces(shadow: Shadow) -> dict[str, _Piece]:
    """By the name of the property that remembers it (a column's comment: the place in the schema)."""
    table, memory = shadow.sql_name, shadow.memory
    pieces: dict[str, _Piece] = {}
    if memory != remembered.NOTHING:
        names = shadow.column_names()
        for counter, sequence in zip(memory.counters, shadow.sequences, strict=True):
            column = _quote(names[counter.field_id])
            pieces[f"{remembered.SEQUENCE}{counter.field_id}"] = _sequence(table, column, counter, sequence)
        for field_id, expression in memory.defaults:
            column = f"ALTER TABLE {table} ALTER COLUMN {_quote(names[field_id])}"
            pieces[f"{remembered.DEFAULT}{field_id}"] = _Piece(
                f"{column} SET DEFAULT ({expression})", f"{column} DROP DEFAULT;"
            )
        for check in memory.checks:
            expression = remembered.with_names(check.expression, names)
            pieces[remembered.CHECK + check.name] = _constraint(table, check.name, f"CHECK ({expression})")
        for key in memory.keys:
            columns = ", ".join(_quote(names[field_id]) for field_id in key.field_ids)
            kind = "PRIMARY KEY" if key.primary else "UNIQUE"
            distinct = " NULLS NOT DISTINCT" if key.nulls_not_distinct else ""
            pieces[key.property] = _constraint(table, key.name, f"{kind}{distinct} ({columns})")
        for field_id, name in memory.not_nulls:
            plain, given = _quote(remembered.not_null_name(shadow.name, names[field_id])), _quote(name)
            pieces[f"{remembered.NOT_NULL}{field_id}"] = _Piece(
                f"ALTER TABLE {table} RENAME CONSTRAINT {plain} TO {given}",
                f"ALTER TABLE {table} RENAME CONSTRAINT {given} TO {plain};",
            )
        if memory.comment is not None:
            pieces[remembered.COMMENT] = _comment(f"TABLE {table}", memory.comment)
    for one in shadow.columns:
        if one.comment is not None:
            pieces[f"doc.{one.field_id}"] = _comment(f"COLUMN {table}.{_quote(one.name)}", one.comment)
    return pieces


def _constraint(table: str, name: str, definition: str) -> _Piece:
    return _Piece(
        f"ALTER TABLE {table} ADD CONSTRAINT {_quote(name)} {definition}",
        f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {_quote(name)} CASCADE;",
    )


def _comment(what: str, text: str) -> _Piece:
    return _Piece(f"COMMENT ON {what} IS {literal(text)}", f"COMMENT ON {what} IS NULL;")


def _sequence(table: str, column: str, counter: Counter, sequence: Sequence) -> _Piece:
    bounds = (
        f"INCREMENT BY {counter.increment} MINVALUE {counter.min} MAXVALUE {counter.max}"
        f" START WITH {counter.start} NO CYCLE"
    )
    exhaust = exhausted(sequence)
    alter = f"ALTER TABLE {table} ALTER COLUMN {column}"
    if counter.kind in (remembered.SERIAL, remembered.OWNED):
        default = f"{alter} SET DEFAULT pg_catalog.nextval({literal(sequence.sql_name)}::pg_catalog.regclass);"
        return _Piece(
            f"CREATE SEQUENCE {sequence.sql_name} AS {counter.type} {bounds} OWNED BY {table}.{column};"
            f" {default if counter.kind == remembered.SERIAL else ''} {exhaust}",
            f"DROP SEQUENCE IF EXISTS {sequence.sql_name} CASCADE;",
        )
    return _Piece(
        f"{alter} ADD GENERATED {counter.kind} AS IDENTITY (SEQUENCE NAME {sequence.sql_name});"
        f" ALTER SEQUENCE {sequence.sql_name} AS {counter.type} {bounds} RESTART; {exhaust}",
        f"{alter} DROP IDENTITY IF EXISTS;",
    )


def exhausted(sequence: Sequence) -> str:
    return f"SELECT pg_catalog.setval({literal(sequence.sql_name)}::pg_catalog.regclass, {sequence.last}, true)"


def _undress(pieces: Seq[_Piece]) -> list[str]:
    """What cannot be undone (it was never made) need not be."""
    steps = [f"BEGIN EXECUTE {literal(piece.undo)}; EXCEPTION WHEN OTHERS THEN NULL; END;" for piece in pieces]
    return [f"DO {literal('BEGIN ' + ' '.join(steps) + ' END')};"] if steps else []


_REFUSED = "icefield: unfit"


def _dress(shadow: Shadow, pieces: Mapping[str, _Piece]) -> list[str]:
    """Each piece in a step of its own, which tells its failure in a notice and undoes nothing else."""
    if not pieces:
        return []
    steps = []
    for name, piece in pieces.items():
        detail = json.dumps([shadow.schema, shadow.name, name])
        steps.append(
            f"BEGIN EXECUTE {literal(piece.make)}; EXCEPTION WHEN OTHERS THEN"
            f" RAISE NOTICE USING MESSAGE = {literal(_REFUSED)}, DETAIL = {literal(detail)}, HINT = SQLERRM; END;"
        )
    return [f"DO {literal('BEGIN ' + ' '.join(steps) + ' END')};"]


def read_refused(notices: Iterable[Mapping[str, str]]) -> dict[Key, tuple[Unfit, ...]]:
    found: dict[Key, tuple[Unfit, ...]] = {}
    for notice in notices:
        if notice.get("M") == _REFUSED:
            schema, table, name = json.loads(notice["D"])
            if not name.startswith(("doc.", remembered.NOT_NULL)) and name != remembered.COMMENT:
                found[schema, table] = (*found.get((schema, table), ()), Unfit(name, notice.get("H", "")))
    return found


OIDS_QUERY = (
    "SELECT n.nspname, c.relname, c.oid FROM pg_catalog.pg_class c"
    " JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace"
    " WHERE c.relkind OPERATOR(pg_catalog.=) 'r' AND c.relpersistence OPERATOR(pg_catalog.=) 'p'"
    " AND c.oid OPERATOR(pg_catalog.>=) 16384 AND n.nspname OPERATOR(pg_catalog.<>) 'pg_catalog'"
)


def read_oids(rows: Iterable[tuple[str | None, ...]]) -> dict[Key, int]:
    return {(row[0] or "", row[1] or ""): int(row[2] or 0) for row in rows}


def check_table_name(name: str) -> None:
    _check_name(name, "the table's name")


def _check_name(name: str, what: str) -> None:
    size = len(name.encode("utf-8", "replace"))
    if size > MAX_NAME_BYTES:
        raise Unsupported(f"{what} is longer than PostgreSQL's {MAX_NAME_BYTES} bytes", "Use another door.")
    if not name or "\x00" in name:
        raise Unsupported(f"{what} is not a name in PostgreSQL", "Use another door.")
