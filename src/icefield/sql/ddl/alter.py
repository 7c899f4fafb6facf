"""ALTER TABLE and COMMENT ON: the client's own text, run on the shadow, becomes one commit to the table.

First on the empty shadow: names, types and syntax are judged there, and what came of it says whether rows matter (a
new NOT NULL, CHECK or key, a value for every row). If they do, and there are any, all is undone, the table's rows are
put under the shadow, and the text runs again: so PostgreSQL itself says that a row does not fit. Such a statement is
strict: it lands only if the table has not moved meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from icefield.iceberg.properties import FORMAT_VERSION
from icefield.model.errors import AlreadyExists, CommitConflict
from icefield.pgwire.errors import PgError
from icefield.sql import shadows as sh
from icefield.sql import types
from icefield.sql.ddl import readback, remembered, running, values
from icefield.sql.ddl.create import current_schema, refuse_own_properties, shadow_from
from icefield.sql.ddl.evolve import DEFAULTS_VERSION, Difference, Evolution, StandIns, has_rows
from icefield.sql.ddl.remembered import literal, quote
from icefield.sql.ddl.running import Notices, type_of
from icefield.sql.ddl.schema import Json, json_value, some_value
from icefield.sql.shadows import Column, Shadow
from icefield.sql.standing import Standing
from icefield.sql.table_statements import AlterProperties, AlterTable, CommentOn

Fill = Callable[[Shadow], Awaitable[None]]
"""Puts all rows of the table under its shadow, inside the current savepoint."""
Rewrite = Callable[[Shadow, tuple[str, ...]], Awaitable[None]]
"""Sets the named columns to their defaults in every row of the table, in a snapshot of its own."""

_UPGRADE = "ALTER TABLE {} SET ('format-version' = 3) lets new columns have a constant DEFAULT without rewriting rows."


@dataclass(frozen=True, slots=True)
class _Ran:
    difference: Difference
    notices: Notices


class Alter:
    def __init__(self, standing: Standing, fill: Fill | None, rewrite: Rewrite | None) -> None:
        self._at = standing
        self._fill = fill
        self._rewrite = rewrite

    async def run(self, text: str, kind: AlterTable | CommentOn, shadow: Shadow) -> Notices:
        at = self._at
        await running.begin(at)
        ran = await self._try(text, kind, shadow)
        difference = ran.difference
        if difference.moved():
            await self._move(difference, shadow)
        elif difference.before != difference.after:
            await at.enter(write=True)
            if difference.depends_on_rows():
                async with at.statement(strict=True):
                    metadata = await self._load(shadow)
                    if has_rows(metadata) and self._fill is not None:
                        await at.link.query(running.AGAIN)
                        await self._fill(shadow)
                        await at.link.query(running.ALLOW)
                        ran = await self._try(text, kind, shadow)
                        await at.link.query(f"TRUNCATE ONLY {ran.difference.after.sql_name}")
                    evolution = await self._commit(ran.difference, shadow, metadata)
            else:
                async with at.statement():
                    metadata = await self._load(shadow)
                    evolution = await self._commit(ran.difference, shadow, metadata)
            await self._finish(evolution)
        await self._take_stand_ins_away(ran.difference)
        await running.done(at)
        return ran.notices

    async def _try(self, text: str, kind: AlterTable | CommentOn, shadow: Shadow) -> _Ran:
        """The client's text, on the shadow as it stands."""
        link = self._at.link
        stand_ins = await self._put_stand_ins(shadow) if shadow.broken else StandIns()
        before = await readback.look(link, shadow.oid)
        notices = await running.run(self._at, text)
        if isinstance(kind, AlterTable) and kind.unsupported is not None:
            raise PgError("0A000", f"{kind.unsupported} is not supported for an Iceberg table", hint=kind.hint)
        after = await readback.look(link, shadow.oid)
        running.refuse_what_cannot_be_kept(after)
        for attribute in after.attributes:
            type_of(attribute)
        difference = Difference(before, after, stand_ins)
        difference.check_types()
        await running.exhaust_sequences(link, after, frozenset(sequence.oid for sequence in before.sequences))
        return _Ran(difference, notices)

    async def _load(self, shadow: Shadow) -> Json:
        metadata: Json = (await self._at.lake.load_table(shadow.namespace, shadow.name))["metadata"]
        shown = [(one["id"], one["name"]) for one in current_schema(metadata)["fields"]]
        if shown != [(column.field_id, column.name) for column in shadow.columns]:
            raise CommitConflict(f"table {shadow} was changed while the statement began; run it again")
        return metadata

    # the commit -----------------------------------------------------------------------------------------------------

    async def _commit(self, difference: Difference, shadow: Shadow, metadata: Json) -> Evolution:
        evolution = Evolution(difference, shadow, metadata)
        await self._find_defaults(evolution)
        updates = evolution.updates()
        if updates:
            answer = await self._at.lake.commit_table(shadow.namespace, shadow.name, updates, evolution.requirements())
            self._know(evolution, answer["metadata"])
        return evolution

    async def _find_defaults(self, evolution: Evolution) -> None:
        """Which value the rows that are there have in a new column, and where it must be written into them."""
        link, table = self._at.link, evolution.shadow.name
        rows_there = has_rows(evolution.metadata)
        knows_defaults = evolution.format_version >= DEFAULTS_VERSION
        added = {attribute.number for attribute in evolution.difference.added()}
        written: set[int] = set()
        for attribute in evolution.difference.added():
            if attribute.identity or (attribute.volatile and attribute.default is not None):
                if rows_there:
                    written.add(attribute.number)
            elif attribute.default is not None:
                column = Column(attribute.name, type_of(attribute), False)
                value = await values.stored_value(link, column, attribute.default, table)
                as_json = json_value(value)
                if knows_defaults and as_json is not None:
                    evolution.initial_defaults[attribute.number] = as_json
                elif value is not None and rows_there:
                    written.add(attribute.number)
        if knows_defaults:
            for attribute in evolution.default_changed():
                column = Column(attribute.name, type_of(attribute), False)
                value = None
                if attribute.default is not None and not attribute.counts:
                    value = await values.write_default(link, column, attribute.default, table)
                if value is not None or attribute.number not in added:
                    evolution.write_defaults[attribute.number] = value
        if written and self._rewrite is None:
            raise self._no_rewrite(evolution.shadow)
        if knows_defaults and rows_there:
            # A file of which every row was deleted is still read by other engines, and has not the column.
            for attribute in evolution.difference.added():
                known = evolution.initial_defaults.keys() | written
                if attribute.required and attribute.number not in known:
                    evolution.initial_defaults[attribute.number] = some_value(type_of(attribute))
        evolution.to_be_written = frozenset(written)

    def _no_rewrite(self, shadow: Shadow) -> PgError:
        return PgError(
            "0A000",
            "ADD COLUMN with a DEFAULT that must be written into every row is not supported on this table",
            hint=_UPGRADE.format(shadow.sql_name) if shadow.format_version < DEFAULTS_VERSION else None,
        )

    def _know(self, evolution: Evolution, metadata: Json) -> Shadow:
        """The shadow is what the server now says that the table is."""
        at, old = self._at, evolution.shadow
        new = shadow_from(metadata, old.namespace, old.name, old.oid)
        new = sh.still_refused(old, new)
        at.shadows = at.shadows.with_table(new)
        at.touched_lake()
        return new

    async def _finish(self, evolution: Evolution) -> None:
        """Values for the rows that are there, and then what the new columns promise."""
        if not evolution.to_be_written or self._rewrite is None:
            return
        at = self._at
        new = evolution.difference.after.by_number()
        names = tuple(new[number].name for number in sorted(evolution.to_be_written))
        shadow = at.shadows.tables[evolution.shadow.key]
        await at.link.query("SAVEPOINT icefield_relaxed")
        await at.link.query("; ".join(_relaxed(evolution)))
        await self._rewrite(shadow, names)
        windows = await self._windows(evolution)
        await at.link.query("ROLLBACK TO SAVEPOINT icefield_relaxed; RELEASE SAVEPOINT icefield_relaxed")
        await at.link.query("; ".join([running.ALLOW, *windows]))
        required = {evolution.ids[number] for number in evolution.to_be_written if new[number].required}
        if not required:
            return
        async with at.statement():
            metadata: Json = (await at.lake.load_table(shadow.namespace, shadow.name))["metadata"]
            schema = current_schema(metadata)
            fields = [{**one, "required": True} if one["id"] in required else one for one in schema["fields"]]
            schema = {**schema, "fields": fields}
            identifiers = evolution.identifiers(schema, fields)
            schema.pop("identifier-field-ids", None)
            if identifiers:
                schema["identifier-field-ids"] = identifiers
            answer = await at.lake.commit_table(
                shadow.namespace,
                shadow.name,
                [
                    {"action": "add-schema", "schema": schema, "last-column-id": metadata["last-column-id"]},
                    {"action": "set-current-schema", "schema-id": -1},
                ],
                replace(evolution, metadata=metadata).requirements(),
            )
        self._know(evolution, answer["metadata"])

    async def _windows(self, evolution: Evolution) -> list[str]:
        """How to go on with the numbers that the server gave for the rewrite and that are left."""
        steps = []
        for sequence in evolution.difference.after.sequences:
            if sequence.column in evolution.to_be_written:
                answer = await self._at.link.query(
                    "SELECT last_value, is_called, seqmin, seqmax FROM pg_catalog.pg_sequence,"
                    f" {sequence.sql_name} WHERE seqrelid OPERATOR(pg_catalog.=)"
                    f" {literal(sequence.sql_name)}::pg_catalog.regclass::pg_catalog.oid"
                )
                last, called, low, high = answer.rows[0]
                steps.append(f"ALTER SEQUENCE {sequence.sql_name} MINVALUE {low} MAXVALUE {high} RESTART {last}")
                steps.append(
                    f"SELECT pg_catalog.setval({literal(sequence.sql_name)}::pg_catalog.regclass, {last},"
                    f" {'true' if called == 't' else 'false'})"
                )
        return steps

    # what does not fit any more ---------------------------------------------------------------------------------------

    async def _put_stand_ins(self, shadow: Shadow) -> StandIns:
        """A constraint that holds for everything, a default that says NULL: to be dropped by their names."""
        link, table, names = self._at.link, shadow.sql_name, shadow.column_names()
        constraints: dict[str, str] = {}
        defaults: dict[str, str] = {}
        for unfit in shadow.broken:
            constraint = remembered.constraint_name(unfit.property)
            if constraint is not None:
                constraints.setdefault(constraint, unfit.property)
            elif (column := names.get(int(unfit.property.rpartition(".")[2]))) is not None:
                defaults.setdefault(column, unfit.property)
        relation = await readback.look(link, shadow.oid)
        steps = []
        for name in list(constraints):
            if any(constraint.name == name for constraint in relation.constraints):
                del constraints[name]
            else:
                steps.append(f"ALTER TABLE {table} ADD CONSTRAINT {quote(name)} CHECK (true)")
        kinds = {column.name: column.type.sql for column in shadow.columns}
        for attribute in relation.attributes:
            if attribute.name in defaults:
                if attribute.default is not None or attribute.identity:
                    del defaults[attribute.name]
                    continue
                null = f"NULLIF('', '')::{kinds[attribute.name]}"
                steps.append(f"ALTER TABLE {table} ALTER COLUMN {quote(attribute.name)} SET DEFAULT ({null})")
        if steps:
            await link.query("; ".join(steps))
        after = await readback.look(link, shadow.oid)
        return StandIns(
            {one.oid: constraints[one.name] for one in after.constraints if one.name in constraints},
            {one.number: defaults[one.name] for one in after.attributes if one.name in defaults},
        )

    async def _take_stand_ins_away(self, difference: Difference) -> None:
        table = difference.after.sql_name
        steps = [
            f"ALTER TABLE {table} DROP CONSTRAINT {quote(constraint.name)}"
            for constraint in difference.after.constraints
            if constraint.oid in difference.stand_ins.constraints
        ]
        old = difference.before.by_number()
        steps += [
            f"ALTER TABLE {table} ALTER COLUMN {quote(one.name)} DROP DEFAULT"
            for one in difference.after.attributes
            if one.number in difference.stand_ins.defaults and one.default == old[one.number].default
        ]
        if steps:
            await self._at.link.query("; ".join(steps))

    # names ----------------------------------------------------------------------------------------------------------

    async def _move(self, difference: Difference, shadow: Shadow) -> None:
        """RENAME TO and SET SCHEMA, which PostgreSQL takes alone."""
        at, after = self._at, difference.after
        namespace = at.shadows.schemas.get(after.schema)
        if namespace is None:
            raise PgError("3F000", f'schema "{after.schema}" is not in the lake', hint="CREATE SCHEMA makes one.")
        try:
            sh.check_table_name(after.name)
        except types.Unsupported as why:
            raise PgError("42602", f"the table cannot have this name: {why.reason}") from None
        await at.enter(write=True)
        try:
            async with at.statement():
                if namespace not in at.shadows.namespaces:
                    await at.lake.create_namespace(namespace)
                await at.lake.rename_table(shadow.namespace, shadow.name, namespace, after.name)
        except AlreadyExists as error:
            raise PgError("42P07", f'relation "{after.name}" already exists', detail=error.message) from error
        moved = replace(shadow, namespace=namespace, schema=after.schema, name=after.name, version=None)
        at.shadows = at.shadows.without_table(shadow.key).with_table(moved)
        at.touched_lake()
        await self._keep_names(after, moved)

    async def _keep_names(self, relation: readback.Relation, shadow: Shadow) -> None:
        """NOT NULL constraints are named after the table, and keep their names when it is renamed."""
        at = self._at
        by_name = {column.name: column.field_id for column in shadow.columns}
        ids = {attribute.number: by_name[attribute.name] for attribute in relation.attributes}
        names = readback.memory_of(relation, ids).not_nulls
        if names == shadow.memory.not_nulls:
            return
        put = {f"{remembered.NOT_NULL}{field_id}": name for field_id, name in names}
        gone = [f"{remembered.NOT_NULL}{field_id}" for field_id, _ in shadow.memory.not_nulls]
        async with at.statement():
            metadata = await self._load(shadow)
            updates: list[Json] = [{"action": "set-properties", "updates": put}] if put else []
            removed = [name for name in gone if name not in put]
            if removed:
                updates.append({"action": "remove-properties", "removals": removed})
            requirements = [{"type": "assert-table-uuid", "uuid": metadata["table-uuid"]}]
            answer = await at.lake.commit_table(shadow.namespace, shadow.name, updates, requirements)
        new = shadow_from(answer["metadata"], shadow.namespace, shadow.name, shadow.oid)
        at.shadows = at.shadows.with_table(sh.still_refused(shadow, new))

    # properties -----------------------------------------------------------------------------------------------------

    async def properties(self, kind: AlterProperties, shadow: Shadow) -> Notices:
        at = self._at
        if at.read_only:
            raise PgError("25006", "cannot execute ALTER TABLE in a read-only transaction")
        refuse_own_properties([*dict(kind.put), *kind.removed])
        put = dict(kind.put)
        await running.begin(at)
        await at.enter(write=True)
        async with at.statement():
            metadata = await self._load(shadow)
            updates: list[Json] = []
            if FORMAT_VERSION in put:
                updates += await self._upgrade(shadow, metadata, put.pop(FORMAT_VERSION))
            if put:
                updates.append({"action": "set-properties", "updates": put})
            there = [name for name in kind.removed if name in (metadata.get("properties") or {})]
            if there:
                updates.append({"action": "remove-properties", "removals": there})
            if updates:
                requirements = [
                    {"type": "assert-table-uuid", "uuid": metadata["table-uuid"]},
                    {"type": "assert-current-schema-id", "current-schema-id": metadata["current-schema-id"]},
                ]
                answer = await at.lake.commit_table(shadow.namespace, shadow.name, updates, requirements)
                new = shadow_from(answer["metadata"], shadow.namespace, shadow.name, shadow.oid)
                at.shadows = at.shadows.with_table(sh.still_refused(shadow, new))
                at.touched_lake()
                if new.memory.comment != shadow.memory.comment:
                    said = "NULL" if new.memory.comment is None else literal(new.memory.comment)
                    await at.link.query(f"COMMENT ON TABLE {shadow.sql_name} IS {said}")
        await running.done(at)
        return []

    async def _upgrade(self, shadow: Shadow, metadata: Json, wanted: str) -> list[Json]:
        """To a format that knows defaults: then the table has those that are constants."""
        if not wanted.isascii() or not wanted.isdigit():
            raise PgError("22023", f'format-version "{wanted}" is not a whole number')
        version, now = int(wanted), int(metadata["format-version"])
        if version < now:
            raise PgError("22023", f"the table has format version {now}: it cannot become {version} again")
        if version == now:
            return []
        updates: list[Json] = [{"action": "upgrade-format-version", "format-version": version}]
        if now < DEFAULTS_VERSION <= version:
            columns = {column.field_id: column for column in shadow.columns}
            found = {}
            for field_id, expression in shadow.memory.defaults:
                column = replace(columns[field_id], required=False)
                value = await values.write_default(self._at.link, column, expression, shadow.name)
                if value is not None:
                    found[field_id] = value
            if found:
                schema = current_schema(metadata)
                fields = [
                    {**one, "write-default": found[one["id"]]} if one["id"] in found else one
                    for one in schema["fields"]
                ]
                updates += [
                    {
                        "action": "add-schema",
                        "schema": {**schema, "fields": fields},
                        "last-column-id": metadata["last-column-id"],
                    },
                    {"action": "set-current-schema", "schema-id": -1},
                ]
        return updates


def _relaxed(evolution: Evolution) -> list[str]:
    """The shadow takes rows in which the new columns have no value yet."""
    after = evolution.difference.after
    table, by_number = after.sql_name, after.by_number()
    new = evolution.to_be_written
    steps = []
    for constraint in after.constraints:
        touched = new & set(constraint.columns)
        if not touched or constraint.kind not in "cpu":
            continue
        steps.append(f"ALTER TABLE {table} DROP CONSTRAINT {quote(constraint.name)} CASCADE")
        if constraint.kind == "c":
            names = {number: attribute.name for number, attribute in by_number.items()}
            expression = remembered.with_names(constraint.expression or "", names)
            empty = " OR ".join(f"{quote(names[number])} IS NULL" for number in sorted(touched))
            definition = f"CHECK ({empty} OR ({expression}))"
        else:
            columns = ", ".join(quote(by_number[number].name) for number in constraint.columns)
            definition = f"UNIQUE ({columns})"
        steps.append(f"ALTER TABLE {table} ADD CONSTRAINT {quote(constraint.name)} {definition}")
    for sequence in after.sequences:
        if sequence.column in new and not sequence.serial:  # an identity column cannot be NULL: count by a default
            column, name = f"ALTER COLUMN {quote(by_number[sequence.column].name)}", literal(sequence.sql_name)
            last = sequence.max if sequence.increment > 0 else sequence.min
            bounds = f"INCREMENT BY {sequence.increment} MINVALUE {sequence.min} MAXVALUE {sequence.max}"
            bounds += f" START WITH {sequence.start}"
            steps += [
                f"ALTER TABLE {table} {column} DROP IDENTITY",
                f"CREATE SEQUENCE {sequence.sql_name} {bounds}",
                f"SELECT pg_catalog.setval({name}::pg_catalog.regclass, {last}, true)",
                f"ALTER TABLE {table} {column} SET DEFAULT pg_catalog.nextval({name}::pg_catalog.regclass)",
            ]
    steps += [
        f"ALTER TABLE {table} ALTER COLUMN {quote(by_number[number].name)} DROP NOT NULL"
        for number in sorted(new)
        if by_number[number].required
    ]
    return steps or ["SELECT 1"]
