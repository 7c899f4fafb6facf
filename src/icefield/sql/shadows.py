"""Shadows: empty tables in the brain with the lake tables' columns, kept in step with what the session's ref shows.

``Shadows`` is what the brain holds; ``wanted`` says what a catalog answer asks it to hold; ``sync_script`` is the SQL
between the two. A table that the door cannot show (a type that it does not know, a name that PostgreSQL cannot have)
is *left out*, with the reason, so that naming it can be answered clearly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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

    @property
    def key(self) -> Key:
        return (self.schema, self.name)

    @property
    def sql_name(self) -> str:
        return f"{_quote(self.schema)}.{_quote(self.name)}"

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

    def with_oids(self, oids: Mapping[Key, int]) -> Shadows:
        return replace(self, tables={k: replace(v, oid=oids[k]) for k, v in self.tables.items()})


def schema_name(namespace: Sequence[str]) -> str:
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
            shadow = Shadow(namespace, name, columns_of(entry["schema"], name), shown, entry.get("metadata-location"))
            tables[shadow.key] = shadow
        except Unsupported as why:
            left_out[shown, name] = LeftOut(namespace, name, shown, why.reason, why.hint)
    return Shadows(tables, schemas, left_out, left_out_schemas, frozenset(namespaces), catalog.get("fingerprint"))


def columns_of(schema: Mapping[str, Any], table: str) -> tuple[Column, ...]:
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
        try:
            columns.append(Column(name, from_iceberg(one["type"]), bool(one.get("required", False))))
        except Unsupported as why:
            raise Unsupported(f'column "{name}" has a type that is not supported: {why.reason}', why.hint) from None
    return tuple(columns)


def sync_script(held: Shadows, wish: Shadows, owner: str) -> str | None:
    """SQL for the superuser's link that turns ``held`` into ``wish``; None if nothing is to be done."""
    steps: list[str] = []
    for key, shadow in held.tables.items():
        other = wish.tables.get(key)
        if other is None or other.columns != shadow.columns:
            # What hangs on it (a temporary view of the client's) goes with it: its columns are no longer true.
            steps.append(f"DROP TABLE IF EXISTS {shadow.sql_name} CASCADE;")
    steps.extend(f"DROP SCHEMA IF EXISTS {_quote(name)} CASCADE;" for name in held.schemas if name not in wish.schemas)
    steps.extend(f"CREATE SCHEMA {_quote(name)};" for name in wish.schemas if name not in held.schemas)
    for key, shadow in wish.tables.items():
        other = held.tables.get(key)
        if other is None or other.columns != shadow.columns:
            steps.append(create_table(shadow))
    if not steps:
        return None
    return "\n".join(
        [
            "BEGIN;",
            f"SET LOCAL ROLE {_quote(owner)};",
            "SET LOCAL icefield.ddl = 'on';",
            *steps,
            "COMMIT;",
        ]
    )


def carried(held: Shadows, wish: Shadows, oids: Mapping[Key, int] | None) -> Shadows:
    """``wish``, now that the brain holds it: with fresh oids, or with the old ones when no SQL was needed."""
    known = {key: shadow.oid for key, shadow in held.tables.items()} if oids is None else oids
    return wish.with_oids(known)


OIDS_QUERY = (
    "SELECT n.nspname, c.relname, c.oid FROM pg_catalog.pg_class c"
    " JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace"
    " WHERE c.relkind OPERATOR(pg_catalog.=) 'r' AND c.relpersistence OPERATOR(pg_catalog.=) 'p'"
    " AND c.oid OPERATOR(pg_catalog.>=) 16384"
)


def read_oids(rows: Iterable[tuple[str | None, ...]]) -> dict[Key, int]:
    return {(row[0] or "", row[1] or ""): int(row[2] or 0) for row in rows}


def create_table(shadow: Shadow) -> str:
    columns = ", ".join(f"{_quote(c.name)} {c.type.sql}{' NOT NULL' if c.required else ''}" for c in shadow.columns)
    return f"CREATE TABLE {shadow.sql_name} ({columns});"


def _check_name(name: str, what: str) -> None:
    size = len(name.encode("utf-8", "replace"))
    if size > MAX_NAME_BYTES:
        raise Unsupported(f"{what} is longer than PostgreSQL's {MAX_NAME_BYTES} bytes", "Use another door.")
    if not name or "\x00" in name:
        raise Unsupported(f"{what} is not a name in PostgreSQL", "Use another door.")


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
