"""CREATE, ALTER and DROP of what is in the lake: the brain judges and resolves, the server does it.

The client's own text runs in the brain (its grammar, types, names and errors); what came of it is read back and told
to the server. A savepoint holds both together: what the server refuses did not happen in the brain.
"""

from __future__ import annotations

from collections.abc import Sequence

from icefield.model.errors import AlreadyExists, CommitConflict, NotEmpty
from icefield.pgwire.errors import PgError
from icefield.sql import types
from icefield.sql.ddl.alter import Alter, Fill, Rewrite
from icefield.sql.ddl.create import create_table
from icefield.sql.ddl.running import Notices, begin, done, run
from icefield.sql.shadows import Shadow, schema_name
from icefield.sql.standing import Standing
from icefield.sql.statements import CreateSchema, CreateTable, DropSchema, DropTable
from icefield.sql.table_statements import AlterProperties, AlterTable, CommentOn


class Ddl:
    def __init__(self, standing: Standing, fill: Fill | None = None, rewrite: Rewrite | None = None) -> None:
        """``fill`` puts all of a table's rows under its shadow, inside the current savepoint. ``rewrite`` gives the
        named columns their defaults in every row, inside the current transaction."""
        self._at = standing
        self._alter = Alter(standing, fill, rewrite)

    async def _run(self, sql: str) -> Notices:
        await begin(self._at)
        return await run(self._at, sql)

    async def create_table(self, kind: CreateTable) -> Notices:
        return await create_table(self._at, kind)

    async def alter_table(self, text: str, kind: AlterTable | CommentOn, shadow: Shadow) -> Notices:
        return await self._alter.run(text, kind, shadow)

    async def alter_properties(self, kind: AlterProperties, shadow: Shadow) -> Notices:
        return await self._alter.properties(kind, shadow)

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
        await done(at)
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
        await done(at)
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
        await done(at)
        return notices
