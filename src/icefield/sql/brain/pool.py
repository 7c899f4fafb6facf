"""One brain per client session, taken from a few warm spares.

A brain is a cluster of its own, so that a client's uncommitted DDL, temporary objects and settings are nobody else's,
and the shadows of one session's ref are never seen by another. ``take`` gives it the names that the client asked for:
the database and the role are what the startup message said.

The client's role owns the database and the shadows but is no superuser, and a guard in the brain (two event triggers)
refuses permanent objects: what is not temporary belongs in the lake. What other clients would have to see (advisory
locks, notifications, large objects) is taken away: here it would be seen by nobody. ``icefield_trace`` notes where an
updated row went to (``sql/changes.py``); its rows never outlive the statement.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Mapping

from icefield.pgwire.brain_link import BrainLink
from icefield.pgwire.errors import PgError
from icefield.sql.brain.cluster import BrainTemplate, Cluster

log = logging.getLogger("icefield.sql")

_SPARE_DATABASE = "postgres"
_ADMIN_DATABASE = "template1"

GUARD = """
SET allow_system_table_mods = on;
CREATE FUNCTION pg_catalog.icefield_guard() RETURNS event_trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
  r record;
BEGIN
  IF session_user = 'icefield' OR current_setting('icefield.ddl', true) = 'on' THEN
    RETURN;
  END IF;
  IF TG_EVENT = 'sql_drop' THEN
    FOR r IN SELECT * FROM pg_event_trigger_dropped_objects() LOOP
      IF r.original AND NOT r.is_temporary AND coalesce(r.schema_name, '') <> 'pg_temp'
         AND r.object_identity !~ '(^| on )pg_temp(_[0-9]+)?[.]' THEN
        RAISE EXCEPTION USING ERRCODE = '0A000', MESSAGE = format('%s is not supported here', TG_TAG),
          HINT = 'DROP TABLE and DROP SCHEMA, as statements of their own, drop what is in the lake.';
      END IF;
    END LOOP;
    RETURN;
  END IF;
  FOR r IN SELECT * FROM pg_event_trigger_ddl_commands() LOOP
    IF coalesce(r.schema_name, '') <> 'pg_temp'
       AND coalesce(r.object_identity, '') !~ '(^| on )pg_temp(_[0-9]+)?[.]' THEN
      IF TG_TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO') THEN
        RAISE EXCEPTION USING ERRCODE = '0A000',
          MESSAGE = format('%s is not supported for a permanent table that is no Iceberg table', TG_TAG),
          HINT = 'Write CREATE ICEBERG TABLE (or CREATE TABLE … USING iceberg) with columns for a table in the lake,'
                 ' or CREATE TEMP TABLE for one of this session.';
      END IF;
      RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = format('%s is not supported yet for what is not temporary', TG_TAG),
        HINT = 'In this version the lake takes CREATE and DROP of Iceberg tables and schemas. For an object of this'
               ' session write CREATE TEMP …, or give it a name in schema pg_temp.';
    END IF;
  END LOOP;
END $$;
CREATE UNLOGGED TABLE pg_catalog.icefield_trace (relation oid NOT NULL, old_place tid, new_place tid);
GRANT SELECT ON pg_catalog.icefield_trace TO PUBLIC;
CREATE FUNCTION pg_catalog.icefield_trace() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog AS $$
BEGIN
  INSERT INTO pg_catalog.icefield_trace VALUES (TG_RELID, OLD.ctid, NEW.ctid);
  RETURN NULL;
END $$;
CREATE FUNCTION pg_catalog.icefield_forget_trace() RETURNS void LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog AS 'DELETE FROM pg_catalog.icefield_trace';
REVOKE EXECUTE ON FUNCTION
  pg_catalog.pg_notify(text, text),
  pg_catalog.pg_advisory_lock(bigint), pg_catalog.pg_advisory_lock(int, int),
  pg_catalog.pg_advisory_lock_shared(bigint), pg_catalog.pg_advisory_lock_shared(int, int),
  pg_catalog.pg_try_advisory_lock(bigint), pg_catalog.pg_try_advisory_lock(int, int),
  pg_catalog.pg_try_advisory_lock_shared(bigint), pg_catalog.pg_try_advisory_lock_shared(int, int),
  pg_catalog.pg_advisory_xact_lock(bigint), pg_catalog.pg_advisory_xact_lock(int, int),
  pg_catalog.pg_advisory_xact_lock_shared(bigint), pg_catalog.pg_advisory_xact_lock_shared(int, int),
  pg_catalog.pg_try_advisory_xact_lock(bigint), pg_catalog.pg_try_advisory_xact_lock(int, int),
  pg_catalog.pg_try_advisory_xact_lock_shared(bigint), pg_catalog.pg_try_advisory_xact_lock_shared(int, int),
  pg_catalog.lo_creat(int), pg_catalog.lo_create(oid), pg_catalog.lo_from_bytea(oid, bytea)
FROM PUBLIC;
CREATE EVENT TRIGGER icefield_guard_made ON ddl_command_end EXECUTE FUNCTION pg_catalog.icefield_guard();
CREATE EVENT TRIGGER icefield_guard_dropped ON sql_drop EXECUTE FUNCTION pg_catalog.icefield_guard();
"""


def _ident(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class Brain:
    """A running cluster that belongs to one client. ``admin`` is the superuser's link into the client's database."""

    def __init__(self, cluster: Cluster, admin: BrainLink, database: str, role: str, password: str) -> None:
        self.cluster = cluster
        self.admin = admin
        self.database = database
        self.role = role
        self._password = password

    async def open_client(self, options: Mapping[str, str]) -> BrainLink:
        """The client's own link: logged in as its role, with the startup parameters that it sent."""
        return await BrainLink.open(
            self.cluster.socket_dir, user=self.role, password=self._password, database=self.database, options=options
        )

    async def close(self) -> None:
        await self.admin.close()
        await self.cluster.aremove()


class BrainPool:
    def __init__(self, template: BrainTemplate | None = None, *, spares: int = 1, max_rows: int = 5_000_000) -> None:
        self._template = template or BrainTemplate()
        self._wanted = spares
        self._max_rows = max_rows
        self._spares: list[asyncio.Task[Cluster]] = []
        self._closed = False

    async def start(self) -> None:
        """Returns when the first brain is warm, so that a machine where none can run says so at once."""
        self._refill()
        if self._spares:
            await asyncio.shield(self._spares[0])

    def _refill(self) -> None:
        while not self._closed and len(self._spares) < self._wanted:
            self._spares.append(asyncio.create_task(self._warm(), name="warm brain"))

    async def _warm(self) -> Cluster:
        cluster = await Cluster.aclone(self._template)
        try:
            await cluster.astart()
            async with await self._superuser(cluster, _SPARE_DATABASE) as link:
                await link.query(GUARD)
        except BaseException:
            await cluster.aremove()
            raise
        return cluster

    async def take(self, database: str, role: str) -> Brain:
        """A brain whose database and role have these names. Raises PgError FATAL if the names are not possible."""
        _check(database, role)
        spare = self._spares.pop(0) if self._spares else asyncio.create_task(self._warm())
        self._refill()
        cluster = await spare
        try:
            if not cluster.alive:
                await cluster.aremove()
                cluster = await self._warm()
            return await self._dress(cluster, database, role)
        except BaseException:
            await cluster.aremove()
            raise

    async def _dress(self, cluster: Cluster, database: str, role: str) -> Brain:
        password = secrets.token_urlsafe(24)
        name, owner = _ident(database), _ident(role)
        async with await self._superuser(cluster, _ADMIN_DATABASE) as link:
            if database != _SPARE_DATABASE:
                await link.query(f"ALTER DATABASE {_SPARE_DATABASE} RENAME TO {name}")
            await link.query(
                f"CREATE ROLE {owner} LOGIN PASSWORD '{password}';"
                f"ALTER DATABASE {name} OWNER TO {owner};"
                f"ALTER ROLE {owner} SET default_transaction_isolation = 'repeatable read';"
                f"ALTER ROLE {owner} SET icefield.max_fetched_rows = '{self._max_rows}';"
            )
        admin = await self._superuser(cluster, database)
        return Brain(cluster, admin, database, role, password)

    async def _superuser(self, cluster: Cluster, database: str) -> BrainLink:
        return await BrainLink.open(
            cluster.socket_dir, user=cluster.superuser, password=cluster.superuser_password, database=database
        )

    async def close(self) -> None:
        """Taken brains are their sessions' to close."""
        self._closed = True
        spares, self._spares = self._spares, []
        for spare in spares:
            with contextlib.suppress(Exception):
                await (await spare).aremove()


def _check(database: str, role: str) -> None:
    for what, name in (("database", database), ("user", role)):
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            raise PgError("22021", f"the {what} name is not valid UTF-8", severity="FATAL") from None
        if size > 63:
            raise PgError("42622", f'{what} name "{name}" is longer than 63 bytes', severity="FATAL")
    if database in ("template0", _ADMIN_DATABASE):
        raise PgError("3D000", f'database "{database}" does not exist', severity="FATAL")
    if role.startswith("pg_") or role in ("icefield", "public", "none"):
        raise PgError(
            "28000",
            f'role name "{role}" is reserved',
            hint="Log in with another user name: without principals any will do.",
            severity="FATAL",
        )
