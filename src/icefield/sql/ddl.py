"""CREATE and DROP of what is in the lake: the brain judges and resolves, the server does it.

CREATE ICEBERG TABLE runs in the brain as a plain CREATE TABLE (the brain's grammar, types, names and errors); what it
made of the columns is read back and posted to the server. The brain's table then is the shadow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from icefield.model.errors import AlreadyExists, CommitConflict, NotEmpty
from icefield.pgwire import messages as m
from icefield.pgwire.codec import encode
from icefield.pgwire.errors import PgError
from icefield.sql import types
from icefield.sql.shadows import Column, Shadow, schema_name
from icefield.sql.standing import Standing
from icefield.sql.statements import CreateSchema, CreateTable, DropSchema, DropTable, PartitionPart

_SAVEPOINT = "SAVEPOINT icefield_ddl; SET LOCAL icefield.ddl = 'on'"
_DONE = "SET LOCAL icefield.ddl = 'off'; RELEASE SAVEPOINT icefield_ddl"

_LATER = {
    "p": "PRIMARY KEY",
    "u": "UNIQUE",
    "c": "CHECK",
    "f": "REFERENCES",
    "x": "EXCLUDE",
    "t": "CONSTRAINT TRIGGER",
}
Notices = list[bytes]


class Ddl:
    def __init__(self, standing: Standing) -> None:
        self._at = standing

    async def _run(self, sql: str) -> Notices:
        """In the brain, as the client's own DDL. Leaves the savepoint open."""
        readonly = "; SET TRANSACTION READ ONLY" if self._at.read_only else ""
        await self._at.link.query(_SAVEPOINT + readonly)
        result = await self._at.link.query(sql)
        return [encode(m.NoticeResponse(notice)) for notice in result.notices]

    # CREATE TABLE ---------------------------------------------------------------------------------------------------

    async def create_table(self, kind: CreateTable) -> Notices:
        at = self._at
        self._refuse_left_out(kind)
        known = {shadow.oid for shadow in at.shadows.tables.values()}
        notices = await self._run(kind.brain_text)
        found = await at.link.execute(
            "SELECT c.oid, n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
            " ON n.oid OPERATOR(pg_catalog.=) c.relnamespace WHERE c.relkind OPERATOR(pg_catalog.=) 'r'"
            " AND c.relname OPERATOR(pg_catalog.=) $1::pg_catalog.name"
            " AND c.oid OPERATOR(pg_catalog.>=) 16384 AND n.nspname OPERATOR(pg_catalog.!~) '^pg_'",
            [kind.name[-1]],
        )
        made = [(int(oid or 0), schema or "") for oid, schema in found.rows if int(oid or 0) not in known]
        if not made:
            await at.link.query(_DONE)  # IF NOT EXISTS, and it does; or pg_temp
            if not any(b"42P07" in notice for notice in notices):
                raise PgError("0A000", "an Iceberg table cannot be temporary", hint="Write CREATE TEMP TABLE.")
            return notices
        (oid, schema) = made[0]
        columns = await self._columns(oid, kind)
        await self._refuse_constraints(oid)
        namespace = at.shadows.schemas.get(schema)
        if namespace is None:
            raise PgError("3F000", f'schema "{schema}" is not in the lake', hint="CREATE SCHEMA makes one.")
        shadow = Shadow(namespace, kind.name[-1], columns, schema, None, oid)
        body = {
            "name": shadow.name,
            "schema": iceberg_schema(columns),
            "partition-spec": partition_spec(kind.partitions, columns),
            "properties": dict(kind.properties),
            "stage-create": False,
        }
        await at.enter(write=True)
        try:
            async with at.statement():
                if namespace not in at.shadows.namespaces:
                    await at.lake.create_namespace(namespace)
                await at.lake.create_table(namespace, body)
        except AlreadyExists as error:
            raise PgError("42P07", f'relation "{shadow.name}" already exists', detail=error.message) from error
        at.shadows = at.shadows.with_table(shadow)
        at.touched_lake()
        await at.link.query(_DONE)
        return notices

    def _refuse_left_out(self, kind: CreateTable) -> None:
        """A table that is in the lake but not shown: the brain does not know that the name is taken."""
        for left_out in self._at.shadows.left_out.values():
            if left_out.name == kind.name[-1] and (len(kind.name) == 1 or left_out.schema == kind.name[-2]):
                raise PgError(
                    "42P07",
                    f'relation "{left_out.name}" already exists',
                    detail=f"It is in the lake, but cannot be shown here: {left_out.reason}.",
                    position=kind.name_at + 1,
                )

    async def _columns(self, oid: int, kind: CreateTable) -> tuple[Column, ...]:
        answer = await self._at.link.query(
            "SELECT a.attname, a.atttypid, a.atttypmod, pg_catalog.format_type(a.atttypid, a.atttypmod),"
            " a.attnotnull, a.atthasdef, a.attidentity, a.attgenerated,"
            " a.attcollation OPERATOR(pg_catalog.<>) t.typcollation"
            " FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.atttypid"
            f" WHERE a.attrelid OPERATOR(pg_catalog.=) {oid} AND a.attnum OPERATOR(pg_catalog.>) 0"
            " AND NOT a.attisdropped ORDER BY a.attnum"
        )
        columns: list[Column] = []
        for name, type_oid, typmod, shown, required, default, identity, generated, collated in answer.rows:
            position = kind.type_at[name or ""] + 1 if (name or "") in kind.type_at else None
            for there, what in (
                (identity, "GENERATED AS IDENTITY"),
                (generated, "GENERATED ALWAYS AS"),
                (default == "t", "DEFAULT (also by serial)"),
                (collated == "t", "COLLATE"),
            ):
                if there:
                    raise PgError(
                        "0A000",
                        f'{what} is not supported in an Iceberg table yet (column "{name}")',
                        hint="Leave it out, and give the value in INSERT.",
                        position=position,
                    )
            try:
                column_type = types.from_postgres(int(type_oid or 0), int(typmod or -1), shown or "")
            except types.Unsupported as why:
                raise PgError("0A000", f'column "{name}": {why.reason}', hint=why.hint, position=position) from None
            columns.append(Column(name or "", column_type, required == "t"))
        if not columns:
            raise PgError("0A000", "an Iceberg table must have at least one column")
        return tuple(columns)

    async def _refuse_constraints(self, oid: int) -> None:
        answer = await self._at.link.query(
            "SELECT contype FROM pg_catalog.pg_constraint WHERE contype OPERATOR(pg_catalog.<>) 'n'"
            f" AND conrelid OPERATOR(pg_catalog.=) {oid} ORDER BY oid LIMIT 1"
        )
        kind = answer.scalar()
        if kind is not None:
            raise PgError(
                "0A000",
                f"{_LATER.get(kind, 'this constraint')} is not supported in an Iceberg table yet",
                hint="NOT NULL is the only constraint so far.",
            )

    # DROP TABLE -----------------------------------------------------------------------------------------------------

    async def resolve(self, names: Sequence[str]) -> list[Shadow]:
        """Which of the names, as the client wrote them, are lake tables."""
        found: list[Shadow] = []
        known = self._at.shadows.by_oid()
        for name in names:
            answer = await self._at.link.execute("SELECT pg_catalog.to_regclass($1)::pg_catalog.oid", [name])
            shadow = known.get(int(answer.scalar() or 0))
            if shadow is not None and shadow not in found:
                found.append(shadow)
        return found

    async def drop_table(self, text: str, kind: DropTable, shadows: Sequence[Shadow]) -> Notices:
        at = self._at
        notices = await self._run(text)
        await at.enter(write=True)
        for shadow in shadows:
            async with at.statement():
                await at.lake.drop_table(shadow.namespace, shadow.name)
            at.shadows = at.shadows.without_table(shadow.key)
        at.touched_lake()
        await at.link.query(_DONE)
        return notices

    # schemas --------------------------------------------------------------------------------------------------------

    async def create_schema(self, text: str, kind: CreateSchema) -> Notices:
        at = self._at
        existed = kind.name in at.shadows.schemas
        if not existed and kind.name in at.shadows.left_out_schemas:
            raise PgError("42P06", f'schema "{kind.name}" already exists')
        notices = await self._run(text)
        if not existed:
            namespace = tuple(kind.name.split("."))
            try:
                schema_name(namespace)
            except types.Unsupported as why:
                raise PgError("42939", f"unacceptable schema name: {why.reason}") from None
            await at.enter(write=True)
            try:
                async with at.statement():
                    await at.lake.create_namespace(namespace)
            except AlreadyExists as error:
                raise PgError("42P06", f'schema "{kind.name}" already exists') from error
            at.shadows = at.shadows.with_schema(kind.name, namespace)
        await at.link.query(_DONE)
        return notices

    async def drop_schema(self, text: str, kind: DropSchema) -> Notices:
        at = self._at
        known = [name for name in dict.fromkeys(kind.names) if name in at.shadows.schemas]
        if "public" in known:
            raise PgError("0A000", "DROP SCHEMA public is not supported: every database has it")
        for name in known:
            hidden = [str(one) for key, one in at.shadows.left_out.items() if key[0] == name]
            if hidden and not kind.cascade:
                raise PgError(
                    "2BP01",
                    f"cannot drop schema {name} because other objects depend on it",
                    detail=f"It holds tables that cannot be shown here: {', '.join(sorted(hidden))}.",
                    hint="Use DROP ... CASCADE to drop the dependent objects too.",
                )
        notices = await self._run(text)
        await at.enter(write=True)
        for name in known:
            async with at.statement():
                tables = {key: (one.namespace, one.name) for key, one in at.shadows.tables.items()}
                tables |= {key: (one.namespace, one.name) for key, one in at.shadows.left_out.items()}
                for (schema, _), (namespace, table) in tables.items():
                    if schema == name:
                        await at.lake.drop_table(namespace, table)
                if at.shadows.schemas[name] in at.shadows.namespaces:
                    try:
                        await at.lake.drop_namespace(at.shadows.schemas[name])
                    except (NotEmpty, CommitConflict) as error:
                        raise PgError(
                            "2BP01", f"cannot drop schema {name}: it is not empty in the lake", detail=error.message
                        ) from error
            at.shadows = at.shadows.without_schema(name)
        at.touched_lake()
        await at.link.query(_DONE)
        return notices


def iceberg_schema(columns: Sequence[Column]) -> dict[str, Any]:
    return {
        "type": "struct",
        "schema-id": 0,
        "fields": [
            {"id": number, "name": column.name, "required": column.required, "type": column.type.iceberg}
            for number, column in enumerate(columns, start=1)
        ],
    }


_DATES = ("date", "timestamp", "timestamptz")
_SUITS = {
    "bucket": ("int", "long", "decimal", "string", *_DATES),
    "truncate": ("int", "long", "decimal", "string"),
    "year": _DATES,
    "month": _DATES,
    "day": _DATES,
    "hour": ("timestamp", "timestamptz"),
}


def partition_spec(parts: Sequence[PartitionPart], columns: Sequence[Column]) -> dict[str, Any]:
    ids = {column.name: number for number, column in enumerate(columns, start=1)}
    fields: list[dict[str, Any]] = []
    names: set[str] = set()
    for number, part in enumerate(parts):
        if part.column not in ids:
            raise PgError("42703", f'column "{part.column}" does not exist', position=part.at + 1)
        word, _, width = part.transform.partition("[")
        iceberg = columns[ids[part.column] - 1].type.iceberg
        if word in _SUITS and iceberg.partition("(")[0] not in _SUITS[word]:
            raise PgError(
                "42804",
                f'{word} cannot be applied to column "{part.column}" of type {iceberg}',
                hint=f"It takes: {', '.join(_SUITS[word])}.",
                position=part.at + 1,
            )
        name = part.column if word == "identity" else f"{part.column}_{word if not width else _SHORT[word]}"
        if name in names or (word != "identity" and name in ids):
            raise PgError("42P16", f'partition field "{name}" is there twice', position=part.at + 1)
        names.add(name)
        fields.append(
            {"name": name, "transform": part.transform, "source-id": ids[part.column], "field-id": 1000 + number}
        )
    return {"spec-id": 0, "fields": fields}


_SHORT = {"bucket": "bucket", "truncate": "trunc"}
