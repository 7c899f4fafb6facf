"""Where a client stands: its session on the server and its transaction in the brain, moved together.

Three states. *Closed*: between statements; the server's view may move. *Implicit*: one simple query, or one extended
series up to its Sync, runs: the brain is in a transaction that the client did not ask for, over one commit of the lake.
*Explicit*: BEGIN … COMMIT. What writes to the lake does so in a transaction on the server, also in an implicit one, so
that several statements land together or not at all, and a conflict names everything.

The order is always: first the server's view is pinned, then the shadows are made to show it (over the superuser's
link, while the client's holds no lock), then the brain's transaction begins.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from icefield.model.errors import CommitConflict, IcefieldError, NoSuchSession, ReadOnly
from icefield.pgwire.brain_link import BrainLink
from icefield.pgwire.errors import PgError
from icefield.sql import law
from icefield.sql import shadows as sh
from icefield.sql.brain.pool import Brain
from icefield.sql.lake import LakeSession, Lost
from icefield.sql.shadows import Shadow, Shadows

log = logging.getLogger("icefield.sql")

BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE"
_TRUNCATE_AFTER_ROWS = 20_000
_PATIENCE = 2
"""How often in a row others may land in between, before the next transaction asks the server for its turn."""
FAILED = "current transaction is aborted, commands ignored until end of transaction block"


@dataclass(slots=True)
class _Savepoint:
    name: str
    """The client's."""
    lake_name: str
    """Ours, on the server: a client's names may be anything."""
    shadows: Shadows
    read_only: bool


class Standing:
    def __init__(
        self, brain: Brain, link: BrainLink, lake: LakeSession, on_new_session: Callable[[], Awaitable[None]]
    ) -> None:
        self._on_new_session = on_new_session
        self.brain = brain
        self.link = link
        self.lake = lake
        self.shadows = Shadows()
        self.explicit = False
        self.failed = False
        self.read_only = False
        self.open = False
        """A brain transaction is open."""
        self.writing = False
        """A transaction on the server is open."""
        self.cursor_shadows: set[int] = set()
        """What the open cursors read: their fills are gone, their rows are not."""
        self._view: str | None = None
        self._statement: int | None = None
        self._written = False
        self._versions_at: str | None = None
        """The commit of which ``shadows`` names the tables' versions; None when they are not known."""
        self._savepoints: list[_Savepoint] = []
        self._named = 0
        self._before = self.shadows
        self._overtaken = 0
        self._dead_rows: dict[sh.Key, int] = {}

    # opening --------------------------------------------------------------------------------------------------------

    @property
    def default_read_only(self) -> bool:
        return self.link.parameters.get("default_transaction_read_only") == "on"

    async def enter(self, *, write: bool) -> None:
        """Make sure that a transaction is open: implicit, if there is none."""
        if self.open:
            if write and not self.writing:
                await self._begin_to_write()
            return
        await self._open(write=write, read_only=self.default_read_only)

    async def _open(self, *, write: bool, read_only: bool) -> None:
        if self.lake.doubtful:
            await self._reopen()
        try:
            await self._pin(write=write)
        except (NoSuchSession, Lost):
            # Its lease ran out, or an answer was lost: nothing was done yet, so a new session does as well.
            await self._reopen()
            await self._pin(write=write)
        try:
            await self._sync_shadows()
            self._before = self.shadows
            await self.link.query(BEGIN)
        except BaseException:
            await self._let_go_of_server()
            raise
        self.open = True
        self.read_only = read_only

    async def _pin(self, *, write: bool) -> None:
        if write:
            self._view = await self.lake.begin(turn=self._overtaken >= _PATIENCE)
            self.writing = True
        else:
            view = await self.lake.mark()
            self._view, self._statement = view.commit, view.statement

    async def _reopen(self, ref: str | None = None) -> None:
        await self.lake.reopen(ref)
        await self._on_new_session()

    async def checkout(self, ref: str) -> None:
        """Between transactions."""
        if self.lake.doubtful:
            await self._reopen(ref)
            return
        try:
            await self.lake.checkout(ref)
        except (NoSuchSession, Lost):
            await self._reopen(ref)

    async def _begin_to_write(self) -> None:
        """An implicit transaction that has only read so far writes now: it must go on from the same commit."""
        seen = self._view
        await self._returned()
        base = await self.lake.begin()
        self.writing = True
        if base != seen:
            raise PgError(
                "40001",
                "could not serialize access: the lake moved on between the statements of this series",
                hint="Run it again, or begin a transaction first.",
            )

    async def _sync_shadows(self) -> None:
        # The fingerprint is of names and columns: rows may have come and gone, which ``versioned`` asks for.
        catalog = await self.lake.catalog(self.shadows.fingerprint)
        if catalog is None:
            return
        self._versions_at = self._view
        wish = sh.wanted(catalog)
        script = sh.sync_script(self.shadows, wish, self.brain.role)
        oids: dict[sh.Key, int] | None = None
        notices: tuple[Mapping[str, str], ...] = ()
        if script is not None:
            notices = (await self.brain.admin.query(script)).notices
            oids = sh.read_oids((await self.brain.admin.query(sh.OIDS_QUERY)).rows)
        self.shadows = sh.carried(self.shadows, wish, oids, notices)

    async def _returned(self) -> None:
        if self._statement is not None:
            statement, self._statement = self._statement, None
            await self.lake.returned(statement)

    @asynccontextmanager
    async def statement(self, *, strict: bool = False) -> AsyncIterator[None]:
        """Around what the engine or a REST call does inside a transaction: the server must know of it.

        ``strict``: what is written depends on what was read, so it lands only if the table has not moved meanwhile.
        """
        if self._statement is not None and not strict:
            yield
            return
        await self._returned()
        self._statement = (await self.lake.mark(strict=strict)).statement
        try:
            yield
        finally:
            await self._returned()

    def touched_lake(self) -> None:
        """Something was written: the transaction shows what no commit has."""
        self._versions_at = None
        self._written = True

    async def versioned(self, shadow: Shadow) -> Shadow:
        """The shadow with its content's version, as it is in this transaction now. Inside ``statement``."""
        held = self.shadows.tables[shadow.key]
        if self._view is not None and self._versions_at == self._view:
            return held
        loaded = await self.lake.load_table(shadow.namespace, shadow.name)
        fresh = replace(held, version=loaded.get("metadata-location"))
        self.shadows = replace(self.shadows, tables={**self.shadows.tables, shadow.key: fresh})
        return fresh

    async def snapshot_of(self, shadow: Shadow) -> int | None:
        """The table's current snapshot, as it is in this transaction now. Inside ``statement``."""
        metadata = (await self.lake.load_table(shadow.namespace, shadow.name))["metadata"]
        found = metadata.get("current-snapshot-id")
        return None if found in (None, -1) else int(found)

    def filled(self, key: sh.Key, rows: int) -> None:
        """Remember how many dead rows a fill leaves in the shadow's file."""
        self._dead_rows[key] = self._dead_rows.get(key, 0) + rows

    # ending ---------------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """The end of a simple query or series that went well: an implicit transaction is committed."""
        if self.open and not self.explicit:
            await self._commit()

    async def fail(self) -> None:
        """Something went wrong: an implicit transaction is over, an explicit one is failed until its end."""
        try:
            if self.link.closed:
                return
            await self.link.resync()
            if not self.open:
                return
            if self.explicit:
                self.failed = True
                if self.link.transaction_status == b"T":
                    with contextlib.suppress(PgError):
                        await self.link.query("SELECT 1 OPERATOR(pg_catalog./) 0")
                await self._quietly(self._returned())
            else:
                await self._roll_back()
        except PgError as error:
            if not error.fatal:
                raise

    async def _commit(self) -> None:
        """Commit on the server, then in the brain. Raises if it was not: then all is rolled back."""
        try:
            await self._check_constraints()
            await self._returned()
            if self.writing:
                await self.lake.commit()
                self.writing = False
                self._overtaken = 0
        except CommitConflict:
            self.writing = False
            self._overtaken += 1
            await self._roll_back()
            raise
        except BaseException:
            await self._roll_back()
            raise
        try:
            await self.link.query("COMMIT")
        finally:
            self._closed()
        await self._clean()

    async def _check_constraints(self) -> None:
        """What the brain would refuse at COMMIT it refuses now, before the lake has landed."""
        triggers = await self.link.query(
            "SELECT FROM pg_catalog.pg_trigger WHERE tgdeferrable AND NOT tgisinternal LIMIT 1"
        )
        # From here on a timeout must not come between the lake's commit and the brain's.
        check = "SET CONSTRAINTS ALL IMMEDIATE; SET LOCAL statement_timeout = 0"
        if not triggers.rows:
            await self.link.query(check)
            return
        # Triggers that waited run functions of the client's, over shadows that nobody has filled.
        before = law.read_trace((await self.link.query(law.PROBE)).rows)
        await self.link.query(check)
        after = law.read_trace((await self.link.query(law.PROBE)).rows)
        known = self.shadows.by_oid()
        touched = (law.scanned(before, after) | law.written(before, after)) & known.keys()
        if touched:
            names = ", ".join(sorted(str(known[oid]) for oid in touched))
            raise PgError(
                "0A000",
                f"deferred triggers that read or write lake tables are not supported ({names})",
                hint="Make the trigger's constraint NOT DEFERRABLE.",
            )

    async def _roll_back(self) -> None:
        try:
            if not self.link.closed:
                if self.link.owing:
                    await self.link.resync()
                await self.link.query("ROLLBACK")
        finally:
            self.shadows = self._before
            self._versions_at = None
            await self._let_go_of_server()
            self._closed()
        await self._clean()

    def _closed(self) -> None:
        self.open = self.explicit = self.failed = self.writing = self.read_only = False
        if self._written:
            self._versions_at, self._written = None, False
        self._savepoints.clear()
        self.cursor_shadows.clear()
        self._view = None
        self._before = self.shadows

    async def _let_go_of_server(self) -> None:
        await self._quietly(self._returned())
        if self.writing:
            self.writing = False
            await self._quietly(self.lake.rollback())

    async def _quietly(self, call: object) -> None:
        """What the client need not hear of: its transaction is over either way."""
        try:
            await call  # type: ignore[misc]
        except NoSuchSession:
            pass
        except IcefieldError as error:
            log.warning("the server could not be told that a transaction ended: %s", error.message)

    async def _clean(self) -> None:
        """Dead rows of fills make every later scan of the shadow slow: empty the file, once there are many."""
        big = [key for key, rows in self._dead_rows.items() if rows >= _TRUNCATE_AFTER_ROWS]
        for key in big:
            del self._dead_rows[key]
        names = [self.shadows.tables[key].sql_name for key in big if key in self.shadows.tables]
        if names and not self.link.closed:
            await self.brain.admin.query(f"SET lock_timeout = '1s'; TRUNCATE {', '.join(names)}")

    # the client's own transactions ----------------------------------------------------------------------------------

    async def begin(self, *, read_only: bool | None) -> None:
        wanted = self.default_read_only if read_only is None else read_only
        try:
            if not self.open:
                await self._open(write=True, read_only=wanted)
            elif not self.writing:
                await self._begin_to_write()
        except ReadOnly:
            # A tag or a commit does not move: a statement in flight is all that is needed to read it.
            if not self.open:
                await self._open(write=False, read_only=wanted)
            elif self._statement is None:
                self._statement = (await self.lake.mark()).statement
        self.read_only = wanted
        self.explicit = True

    async def commit(self) -> bool:
        """False: it was failed, and is rolled back."""
        if self.failed:
            await self._roll_back()
            return False
        await self._commit()
        return True

    async def rollback(self) -> None:
        await self._roll_back()

    async def savepoint(self, name: str) -> None:
        await self.link.query(f"SAVEPOINT {_ident(name)}")
        self._named += 1
        lake_name = f"s{self._named}"
        if self.writing:
            await self.lake.savepoint(lake_name)
        self._savepoints.append(_Savepoint(name, lake_name, self.shadows, self.read_only))

    async def rollback_to(self, name: str) -> None:
        await self.link.query(f"ROLLBACK TO SAVEPOINT {_ident(name)}")
        at = self._find(name)
        found = self._savepoints[at]
        del self._savepoints[at + 1 :]
        if self.writing:
            await self.lake.rollback_to(found.lake_name)
        self.shadows, self.read_only, self.failed = found.shadows, found.read_only, False
        self._versions_at, self._written = None, True

    async def release(self, name: str) -> None:
        await self.link.query(f"RELEASE SAVEPOINT {_ident(name)}")
        at = self._find(name)
        found = self._savepoints[at]
        del self._savepoints[at:]
        if self.writing:
            await self.lake.release(found.lake_name)

    def _find(self, name: str) -> int:
        for at in range(len(self._savepoints) - 1, -1, -1):
            if self._savepoints[at].name == name:
                return at
        raise PgError("3B001", f'savepoint "{name}" does not exist')

    # leaving --------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        if self.writing or self._statement is not None:
            await self._let_go_of_server()
        await self.link.close()


def _ident(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
