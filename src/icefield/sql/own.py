"""Statements that are ours and not the brain's: transactions, branches, and what is made and dropped in the lake."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from icefield.model.errors import ReadOnly
from icefield.pgwire import messages as m
from icefield.pgwire.brain_link import BrainLink
from icefield.pgwire.codec import encode
from icefield.pgwire.errors import PgError
from icefield.sql.branches import Branches
from icefield.sql.branching import BRANCH_KINDS
from icefield.sql.ddl.lake_ddl import Ddl
from icefield.sql.execution import Execution, Work
from icefield.sql.interrupts import Interrupts
from icefield.sql.lexer import Statement
from icefield.sql.retries import Retries
from icefield.sql.spool import Spool
from icefield.sql.standing import FAILED, Standing
from icefield.sql.statements import (
    LAKE_DDL,
    Begin,
    Commit,
    CreateSchema,
    CreateTable,
    DropSchema,
    DropTable,
    Kind,
    Local,
    Modes,
    Other,
    Refused,
    Release,
    Rollback,
    RollbackTo,
    Savepoint,
    SetIsolation,
    SetTransaction,
)
from icefield.sql.table_statements import AlterProperties, AlterTable, CommentOn

_ISOLATIONS = frozenset(("read committed", "read uncommitted", "repeatable read", "default"))


async def enter(standing: Standing, *, write: bool) -> None:
    """A transaction is open, or failed. ``write``: it probably changes the lake."""
    if standing.failed:
        return
    try:
        await standing.enter(write=write)
    except ReadOnly:
        if standing.open:
            raise
        # A tag or a commit. What is changed may be a temporary table; if it is not, the write itself is refused.
        await standing.enter(write=False)


class Own:
    def __init__(
        self,
        standing: Standing,
        execution: Execution,
        ddl: Ddl,
        branches: Branches,
        retries: Retries,
        interrupts: Interrupts,
        link: BrainLink,
        on_transaction_end: Callable[[], None],
    ) -> None:
        self._at = standing
        self._execution = execution
        self._ddl = ddl
        self._branches = branches
        self._retries = retries
        self._interrupts = interrupts
        self._link = link
        self._on_transaction_end = on_transaction_end

    async def run(self, piece: Statement, kind: Kind, formats: Sequence[int] | None = None) -> Spool:
        """The answer. ``formats`` are those of Bind; None in the simple protocol."""
        if self._at.failed and not isinstance(kind, Commit | Rollback | RollbackTo):
            raise PgError("25P02", FAILED)
        match kind:
            case Refused(message=message, hint=hint):
                raise PgError("0A000", message, hint=hint)
            case _ if isinstance(kind, BRANCH_KINDS):
                return await self._branches.run(kind, formats)
            case _ if isinstance(kind, LAKE_DDL):
                return await self._lake_ddl(piece, kind)
            case SetIsolation():
                return await self._set_isolation(piece, kind)
            case Commit():
                return await self._transaction(kind)
            case _:
                async with self._interrupts.shielded():  # brain and lake move together, or not at all
                    return await self._transaction(kind)

    # what is in the lake --------------------------------------------------------------------------------------------

    async def _lake_ddl(self, piece: Statement, kind: Kind) -> Spool:
        await enter(self._at, write=True)
        match kind:
            case CreateTable():
                notices, tag = await self._ddl.create_table(kind), "CREATE TABLE"
            case CreateSchema():
                notices, tag = await self._ddl.create_schema(piece.text, kind), "CREATE SCHEMA"
            case DropSchema():
                notices, tag = await self._ddl.drop_schema(piece.text, kind), "DROP SCHEMA"
            case DropTable():
                shadows = await self._ddl.resolve(kind.names)
                if not shadows:
                    return await self._brains(piece, Other())
                notices, tag = await self._ddl.drop_table(piece.text, kind, shadows), "DROP TABLE"
            case AlterTable(name=name) | CommentOn(name=name) | AlterProperties(name=name):
                shadows = await self._ddl.resolve([name])
                if not shadows:
                    return await self._brains(piece, Other())
                if isinstance(kind, AlterProperties):
                    notices = await self._ddl.alter_properties(kind, shadows[0])
                else:
                    notices = await self._ddl.alter_table(piece.text, kind, shadows[0])
                tag = "COMMENT" if isinstance(kind, CommentOn) else "ALTER TABLE"
            case _:
                raise AssertionError(kind)
        spool = Spool()
        for notice in notices:
            spool.notice(notice)
        spool.say(m.CommandComplete(tag))
        return spool

    async def _brains(self, piece: Statement, kind: Kind) -> Spool:
        return await self._execution.run(Work(piece, kind, encode(m.Query(piece.text)), None))

    # transactions ---------------------------------------------------------------------------------------------------

    async def _transaction(self, kind: Kind) -> Spool:
        at, spool = self._at, Spool()
        match kind:
            case Begin():
                tag = await self._begin(kind, spool)
            case Commit():
                tag = await self._commit(kind, spool)
            case Rollback():
                tag = await self._rollback(kind, spool)
            case Savepoint(name=name):
                self._need_block("SAVEPOINT")
                await at.savepoint(name)
                tag = "SAVEPOINT"
            case RollbackTo(name=name):
                self._need_block("ROLLBACK TO SAVEPOINT")
                await at.rollback_to(name)
                tag = "ROLLBACK"
            case Release(name=name):
                self._need_block("RELEASE SAVEPOINT")
                await at.release(name)
                tag = "RELEASE"
            case SetTransaction():
                tag = await self._set_transaction(kind, spool)
            case _:
                raise AssertionError(kind)
        spool.say(m.CommandComplete(tag))
        return spool

    def _need_block(self, what: str) -> None:
        if not self._at.explicit:
            raise PgError("25P01", f"{what} can only be used in transaction blocks")

    async def _begin(self, kind: Begin, spool: Spool) -> str:
        _check_modes(kind.modes)
        if self._at.explicit:
            spool.notice(_warning("25001", "there is already a transaction in progress"))
            if kind.modes.read_only is not None:
                self._at.read_only = kind.modes.read_only
        else:
            await self._at.begin(read_only=kind.modes.read_only)
        return kind.tag

    async def _commit(self, kind: Commit, spool: Spool) -> str:
        at = self._at
        if not at.explicit:
            if kind.chain:
                raise PgError("25P01", "COMMIT AND CHAIN can only be used in transaction blocks")
            spool.notice(_warning("25P01", "there is no transaction in progress"))
            await self._retries.leave()
            return "COMMIT"
        read_only = at.read_only
        try:
            done = await self._retries.commit()
        finally:
            self._on_transaction_end()
        if kind.chain:
            await at.begin(read_only=read_only)
        return "COMMIT" if done else "ROLLBACK"

    async def _rollback(self, kind: Rollback, spool: Spool) -> str:
        at = self._at
        if not at.explicit:
            if kind.chain:
                raise PgError("25P01", "ROLLBACK AND CHAIN can only be used in transaction blocks")
            spool.notice(_warning("25P01", "there is no transaction in progress"))
            if at.open:
                await at.rollback()
            return "ROLLBACK"
        read_only = at.read_only
        await at.rollback()
        self._on_transaction_end()
        if kind.chain:
            await at.begin(read_only=read_only)
        return "ROLLBACK"

    async def _set_transaction(self, kind: SetTransaction, spool: Spool) -> str:
        _check_modes(kind.modes)
        if kind.session:
            if kind.modes.read_only is not None:
                word = "ONLY" if kind.modes.read_only else "WRITE"
                await self._link.query(f"SET SESSION CHARACTERISTICS AS TRANSACTION READ {word}")
        elif not self._at.explicit:
            spool.notice(_warning("25P01", "SET TRANSACTION can only be used in transaction blocks"))
        elif kind.modes.read_only is not None:
            self._at.read_only = kind.modes.read_only
        return "SET"

    async def _set_isolation(self, piece: Statement, kind: SetIsolation) -> Spool:
        if kind.value == "serializable":
            raise _no_serializable()
        if kind.value not in _ISOLATIONS:
            return await self._brains(piece, Local("set"))
        spool = Spool()
        spool.say(m.CommandComplete("SET"))
        return spool


def _check_modes(modes: Modes) -> None:
    if modes.isolation == "serializable":
        raise _no_serializable()


def _no_serializable() -> PgError:
    return PgError(
        "0A000",
        "isolation level SERIALIZABLE is not supported yet",
        hint="Every transaction here is REPEATABLE READ (a snapshot of the whole lake).",
    )


def _warning(sqlstate: str, message: str) -> m.NoticeResponse:
    return m.NoticeResponse({"S": "WARNING", "V": "WARNING", "C": sqlstate, "M": message})
