"""CREATE ICEBERG TABLE: made in the brain as a plain CREATE TABLE, read back, and posted to the server.

The brain's table then is the shadow.
"""

from __future__ import annotations

from icefield.iceberg.properties import DEFAULT_FORMAT_VERSION, FORMAT_VERSION
from icefield.model.errors import AlreadyExists
from icefield.pgwire.errors import PgError
from icefield.sql import shadows as sh
from icefield.sql.ddl import readback, remembered, values
from icefield.sql.ddl.remembered import literal
from icefield.sql.ddl.running import Notices, begin, done, exhaust_sequences, refuse_what_cannot_be_kept, run, type_of
from icefield.sql.ddl.schema import Json, iceberg_schema, partition_spec, type_properties
from icefield.sql.shadows import Column, Shadow
from icefield.sql.standing import Standing
from icefield.sql.statements import CreateTable

WRITE_DEFAULTS_VERSION = 3


async def create_table(at: Standing, kind: CreateTable) -> Notices:
    _refuse_left_out(at, kind)
    refuse_own_properties([name for name, _ in kind.properties])
    known = {shadow.oid for shadow in at.shadows.tables.values()}
    await begin(at)
    notices = await run(at, kind.brain_text)
    found = await at.link.execute(
        "SELECT c.oid, n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
        " ON n.oid OPERATOR(pg_catalog.=) c.relnamespace WHERE c.relkind OPERATOR(pg_catalog.=) 'r'"
        " AND c.relname OPERATOR(pg_catalog.=) $1::pg_catalog.name"
        " AND c.oid OPERATOR(pg_catalog.>=) 16384 AND n.nspname OPERATOR(pg_catalog.!~) '^pg_'",
        [kind.name[-1]],
    )
    made = [(int(oid or 0), schema or "") for oid, schema in found.rows if int(oid or 0) not in known]
    if not made:
        await done(at)  # IF NOT EXISTS, and it does; or pg_temp
        if not any(b"42P07" in notice for notice in notices):
            raise PgError("0A000", "an Iceberg table cannot be temporary", hint="Write CREATE TEMP TABLE.")
        return notices
    (oid, schema) = made[0]
    relation = await readback.look(at.link, oid)
    refuse_what_cannot_be_kept(relation, kind.type_at)
    namespace = at.shadows.schemas.get(schema)
    if namespace is None:
        raise PgError("3F000", f'schema "{schema}" is not in the lake', hint="CREATE SCHEMA makes one.")
    columns = []
    for number, attribute in enumerate(relation.attributes, start=1):
        position = kind.type_at[attribute.name] + 1 if attribute.name in kind.type_at else None
        column_type = type_of(attribute, position)
        columns.append(Column(attribute.name, column_type, attribute.required, number, attribute.comment))
    memory = readback.memory_of(
        relation, {attribute.number: number for number, attribute in enumerate(relation.attributes, start=1)}
    )
    await exhaust_sequences(at.link, relation)
    given = dict(kind.properties)
    iceberg = iceberg_schema(columns, memory)
    if _format_version(given) >= WRITE_DEFAULTS_VERSION:
        fields = {field["id"]: field for field in iceberg["fields"]}
        for column in columns:
            expression = dict(memory.defaults).get(column.field_id)
            if expression is not None:
                value = await values.write_default(at.link, column, expression, relation.name)
                if value is not None:
                    fields[column.field_id]["write-default"] = value
    body: Json = {
        "name": relation.name,
        "schema": iceberg,
        "partition-spec": partition_spec(kind.partitions, columns),
        "properties": given | type_properties(columns) | remembered.to_properties(memory),
        "stage-create": False,
    }
    await at.enter(write=True)
    try:
        async with at.statement():
            if namespace not in at.shadows.namespaces:
                await at.lake.create_namespace(namespace)
            answer = await at.lake.create_table(namespace, body)
    except AlreadyExists as error:
        raise PgError("42P07", f'relation "{relation.name}" already exists', detail=error.message) from error
    shadow = shadow_from(answer["metadata"], namespace, relation.name, oid)
    if shadow.memory.comment is not None and relation.comment is None:
        await at.link.query(f"COMMENT ON TABLE {shadow.sql_name} IS {literal(shadow.memory.comment)}")
    at.shadows = at.shadows.with_table(shadow)
    at.touched_lake()
    await done(at)
    return notices


def shadow_from(metadata: Json, namespace: tuple[str, ...], name: str, oid: int) -> Shadow:
    """As the server holds the table now, which is how every other session will see it."""
    return sh.shadow_of(
        namespace,
        name,
        current_schema(metadata),
        metadata.get("properties") or {},
        int(metadata["format-version"]),
        oid=oid,
    )


def current_schema(metadata: Json) -> Json:
    current = metadata["current-schema-id"]
    found: Json = next(schema for schema in metadata["schemas"] if schema["schema-id"] == current)
    return found


def refuse_own_properties(names: list[str]) -> None:
    for name in names:
        if name.startswith(remembered.PREFIX):
            raise PgError(
                "22023",
                f'property "{name}" is kept by the SQL door itself',
                hint="Write it as SQL: a constraint, a default, a column's type.",
            )


def _format_version(properties: dict[str, str]) -> int:
    """As far as it is one: the server says what is wrong with it."""
    try:
        return int(properties.get(FORMAT_VERSION, DEFAULT_FORMAT_VERSION))
    except ValueError:
        return DEFAULT_FORMAT_VERSION


def _refuse_left_out(at: Standing, kind: CreateTable) -> None:
    """A table that is in the lake but not shown: the brain does not know that the name is taken."""
    for left_out in at.shadows.left_out.values():
        if left_out.name == kind.name[-1] and (len(kind.name) == 1 or left_out.schema == kind.name[-2]):
            raise PgError(
                "42P07",
                f'relation "{left_out.name}" already exists',
                detail=f"It is in the lake, but cannot be shown here: {left_out.reason}.",
                position=kind.name_at + 1,
            )
