"""One client's SQL session: what pgwire's server asks of it, dispatched to the brain, the lake and our own statements.

Simple protocol: a query's statements are one implicit transaction. Extended protocol: messages are collected until
Sync or Flush and then done in order, so that a whole series is known before its first message is done (a series that
writes begins its transaction on the server at its start, and reads and writes over one commit).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from icefield.model.errors import IcefieldError
from icefield.pgwire import messages as m
from icefield.pgwire.brain_link import SYNC, BrainLink
from icefield.pgwire.codec import encode
from icefield.pgwire.errors import PgError
from icefield.pgwire.session import Sink
from icefield.pgwire.sqlstate import to_pg_error
from icefield.sql.analysis import Analysis
from icefield.sql.brain.pool import Brain
from icefield.sql.ddl import Ddl
from icefield.sql.execution import Execution, Work
from icefield.sql.fill import TableRows
from icefield.sql.lake import LakeSession
from icefield.sql.spool import Spool
from icefield.sql.standing import FAILED, Standing
from icefield.sql.statements import (
    Begin,
    Commit,
    CreateSchema,
    CreateTable,
    CursorMove,
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
    ShowBranches,
    Statement,
    UseBranch,
    blank,
    classify,
    split,
)

log = logging.getLogger("icefield.sql")

_BRAIN_KINDS = (Other, Local, CursorMove)
_ENCODINGS = frozenset(("UTF8", "SQL_ASCII"))
_ISOLATIONS = frozenset(("read committed", "read uncommitted", "repeatable read", "default"))
_QUEUE_LIMIT = 10_000
_UNNAMED = "icefield_unnamed"
"""What the client's unnamed statement is called in the brain: our own simple queries would drop one without a name."""

_BRANCH_COLUMNS = (
    m.FieldDescription("name", 25),
    m.FieldDescription("commit", 25),
    m.FieldDescription("is_default", 16, type_size=1),
    m.FieldDescription("is_current", 16, type_size=1),
)


@dataclass(slots=True)
class _Prepared:
    statement: Statement
    kind: Kind
    analysis: Analysis | None = None
    read_keys: frozenset[tuple[str, str]] = frozenset()
    write_keys: frozenset[tuple[str, str]] = frozenset()
    hidden_keys: frozenset[tuple[str, str]] = frozenset()
    """The lake tables of the analysis, by name: their shadows may be made anew before it runs."""


@dataclass(slots=True)
class _Portal:
    prepared: _Prepared
    bind: m.Bind
    row_description: bytes = b""
    spool: Spool | None = None
    """What is left of an answer that the client takes in pieces."""
    ran: bool = False


Extended = m.Parse | m.Bind | m.Describe | m.Execute | m.Close


@dataclass(slots=True)
class SqlSession:
    """Implements pgwire's ``Session``."""

    brain: Brain
    link: BrainLink
    lake: LakeSession
    table_rows: TableRows
    standing: Standing = field(init=False)
    execution: Execution = field(init=False)
    ddl: Ddl = field(init=False)
    _prepared: dict[str, _Prepared] = field(default_factory=dict)
    _portals: dict[str, _Portal] = field(default_factory=dict)
    _queue: list[Extended] = field(default_factory=list)
    _told: dict[str, str] = field(default_factory=dict)
    _cancelled: bool = False

    def __post_init__(self) -> None:
        self.standing = Standing(self.brain, self.link, self.lake, self._new_session)
        self.execution = Execution(self.standing, self.table_rows)
        self.ddl = Ddl(self.standing)
        self._told = dict(self.link.parameters)

    async def _new_session(self) -> None:
        await self.table_rows.rebind(self.lake.address, self.lake.token)

    # what the server asks -------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> Mapping[str, str]:
        return dict(self.link.parameters)

    @property
    def transaction_status(self) -> bytes:
        if self.standing.explicit:
            return b"E" if self.standing.failed else b"T"
        return b"I"

    async def simple_query(self, message: m.Query, out: Sink) -> None:
        self._cancelled = False
        self._drop_portal("")
        self._prepared.pop("", None)
        try:
            await self._simple(message.sql, out)
            await self._leave()
        except BaseException as error:
            raise await self._failed(error) from error
        finally:
            self._tell_parameters(out)

    async def parse(self, message: m.Parse, out: Sink) -> None:
        await self._enqueue(message, out)

    async def bind(self, message: m.Bind, out: Sink) -> None:
        await self._enqueue(message, out)

    async def describe(self, message: m.Describe, out: Sink) -> None:
        await self._enqueue(message, out)

    async def close(self, message: m.Close, out: Sink) -> None:
        await self._enqueue(message, out)

    async def execute(self, message: m.Execute, out: Sink) -> None:
        self._queue.append(message)
        portal = self._portals.get(message.portal)
        texts = [item.sql for item in self._queue if isinstance(item, m.Parse)]
        if portal is not None:
            texts.append(portal.prepared.statement.text)
        if len(self._queue) >= _QUEUE_LIMIT or any(text.lstrip()[:4].lower() == "copy" for text in texts):
            await self.flush(out)  # COPY FROM STDIN talks with the client right after Execute

    async def flush(self, out: Sink) -> None:
        self._cancelled = False
        try:
            await self._work_off(out)
        except BaseException as error:
            raise await self._failed(error) from error
        finally:
            self._tell_parameters(out)

    async def sync(self, out: Sink) -> None:
        self._cancelled = False
        try:
            await self._work_off(out)
            await self._leave()
        except BaseException as error:
            raise await self._failed(error) from error
        finally:
            self._tell_parameters(out)

    async def cancel(self) -> None:
        self._cancelled = True
        await self.table_rows.cancel()
        if self.link.owing:
            await self.link.cancel()

    async def close_session(self) -> None:
        for portal in self._portals.values():
            if portal.spool is not None:
                portal.spool.close()
        try:
            await self.standing.close()
        finally:
            try:
                await self.table_rows.close()
            finally:
                try:
                    await self.lake.close()
                finally:
                    await self.brain.close()

    # ends -----------------------------------------------------------------------------------------------------------

    async def _leave(self) -> None:
        await self.standing.leave()
        if not self.standing.open:
            self._drop_portals()

    async def _failed(self, error: BaseException) -> BaseException:
        """Bring brain and lake to where the error leaves them; what the client is to hear."""
        self._queue.clear()
        try:
            await self.standing.fail()
        except PgError as worse:
            log.warning("the brain could not be brought back after an error: %s", worse)
            return worse
        if not self.standing.open:
            self._drop_portals()
        if self.link.closed and isinstance(error, PgError) and not error.fatal:
            return PgError.from_fields(error.to_fields() | {"S": "FATAL", "V": "FATAL"})
        if isinstance(error, IcefieldError):
            error = to_pg_error(error)
        if self._cancelled and isinstance(error, PgError) and error.sqlstate != "57014":
            return PgError("57014", "canceling statement due to user request")
        return error

    def _tell_parameters(self, out: Sink) -> None:
        for name, value in self.link.parameters.items():
            if self._told.get(name) != value:
                self._told[name] = value
                out.write(m.ParameterStatus(name, value))

    def _drop_portals(self) -> None:
        for name in list(self._portals):
            self._drop_portal(name)

    def _drop_portal(self, name: str) -> None:
        portal = self._portals.pop(name, None)
        if portal is not None and portal.spool is not None:
            portal.spool.close()

    # simple protocol ------------------------------------------------------------------------------------------------

    async def _simple(self, text: str, out: Sink) -> None:
        self._check_encoding(text)
        pieces = [piece for piece in self._split(text) if not piece.empty]
        if not pieces:
            out.write(m.EmptyQueryResponse())
            return
        kinds: list[Kind] = []
        for piece in pieces:
            try:
                kinds.append(classify(piece))
            except PgError as error:
                raise _shifted(error, piece.start) from None
        if len(pieces) > 1:
            await self._check_syntax(text, pieces, kinds)
        alone = len(pieces) == 1
        for at, (piece, kind) in enumerate(zip(pieces, kinds, strict=True)):
            try:
                self._check_cancelled()
                write = any(self._may_write(p, k) for p, k in zip(pieces[at:], kinds[at:], strict=True))
                await self._statement(piece, kind, out, alone=alone, write=write)
            except PgError as error:
                raise _shifted(error, piece.start) from error

    def _split(self, text: str) -> list[Statement]:
        return split(text, backslashes=self.link.parameters.get("standard_conforming_strings") == "off")

    def _check_encoding(self, text: str) -> None:
        """The names of lake tables go between brain and lake as UTF-8; a link has one encoding."""
        encoding = self.link.parameters.get("client_encoding", "UTF8").upper()
        if encoding not in _ENCODINGS and "client_encoding" not in text.lower():
            raise PgError(
                "0A000", f"client_encoding {encoding} is not supported", hint="SET client_encoding = 'UTF8' and go on."
            )

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise PgError("57014", "canceling statement due to user request")

    async def _check_syntax(self, text: str, pieces: Sequence[Statement], kinds: Sequence[Kind]) -> None:
        """As PostgreSQL does: a syntax error anywhere in the text, and nothing of it is run."""
        if self.standing.failed:
            return
        judged = list(text)
        for piece, kind in zip(pieces, kinds, strict=True):
            if isinstance(kind, CreateTable):
                judged[piece.start : piece.start + len(piece.text)] = kind.brain_text
            elif isinstance(kind, UseBranch | ShowBranches | Refused):
                judged[piece.start : piece.start + len(piece.text)] = blank(piece.text)
        request = encode(m.Parse("", "".join(judged) + "\n;SELECT 1;SELECT 1")) + SYNC
        guarded = self.standing.open
        if guarded:
            await self.link.query("SAVEPOINT icefield_syntax")
        error: PgError | None = None
        async for run in self.link.relay(request):
            if run.kind == b"E":
                error = _brain_error(run.data)
        if error is not None and error.fields.get("R") != "exec_parse_message":
            raise error
        if guarded:
            await self.link.query("ROLLBACK TO SAVEPOINT icefield_syntax; RELEASE SAVEPOINT icefield_syntax")

    def _may_write(self, piece: Statement, kind: Kind) -> bool:
        if isinstance(kind, CreateTable | DropTable | CreateSchema | DropSchema):
            return True
        first = piece.tokens[0].word
        inserts = first == "insert" or (first == "with" and any(token.word == "insert" for token in piece.tokens))
        return isinstance(kind, Other) and inserts

    # one statement --------------------------------------------------------------------------------------------------

    async def _statement(self, piece: Statement, kind: Kind, out: Sink, *, alone: bool, write: bool) -> None:
        if not isinstance(kind, _BRAIN_KINDS):
            await self._own(piece, kind, out)
            return
        request = encode(m.Query(piece.text))
        if isinstance(kind, Local) and alone and not self.standing.open and kind.name != "prepare":
            await self._answer(await self.execution.run(Work(piece, kind, request, None)), out)
            if kind.name in ("discard", "deallocate"):
                self._forget_statements(piece)
            return
        self._refuse_outside_block(piece)
        if not self.standing.failed:
            await self.standing.enter(write=write)
        if self.standing.failed:
            spool = await self.execution.run(Work(piece, kind, request, None))
        else:
            analysis = await self.execution.analyse(piece) if isinstance(kind, Other) else None
            spool = await self.execution.run(Work(piece, kind, request, analysis), _CopyFromClient(self.link, out))
        await self._answer(spool, out)

    async def _answer(self, spool: Spool, out: Sink) -> None:
        with spool:
            await spool.deliver(out)

    def _forget_statements(self, piece: Statement) -> None:
        words = piece.words(3)
        if "all" in words:
            self._prepared.clear()

    def _refuse_outside_block(self, piece: Statement) -> None:
        """The brain is always in a block; the client may not be."""
        if self.standing.explicit:
            return
        first = piece.tokens[0].word
        words = [token.word for token in piece.tokens[:12]]
        if first == "declare" and ("with", "hold") not in itertools.pairwise(words):
            raise PgError("25P01", "DECLARE CURSOR can only be used in transaction blocks")
        if first == "lock":
            raise PgError("25P01", "LOCK TABLE can only be used in transaction blocks")

    async def _own(self, piece: Statement, kind: Kind, out: Sink) -> None:
        """A statement that is ours: transactions, branches, and what is made and dropped in the lake."""
        at = self.standing
        if at.failed and not isinstance(kind, Commit | Rollback | RollbackTo):
            raise PgError("25P02", FAILED)
        match kind:
            case Begin():
                await self._begin(kind, out)
            case Commit():
                await self._commit(kind, out)
            case Rollback():
                await self._rollback(kind, out)
            case Savepoint(name=name):
                self._need_block("SAVEPOINT")
                await at.savepoint(name)
                out.write(m.CommandComplete("SAVEPOINT"))
            case RollbackTo(name=name):
                self._need_block("ROLLBACK TO SAVEPOINT")
                await at.rollback_to(name)
                out.write(m.CommandComplete("ROLLBACK"))
            case Release(name=name):
                self._need_block("RELEASE SAVEPOINT")
                await at.release(name)
                out.write(m.CommandComplete("RELEASE"))
            case SetTransaction():
                await self._set_transaction(kind, out)
            case SetIsolation():
                await self._set_isolation(piece, kind, out)
            case ShowBranches():
                await self._show_branches(out, describe=True)
            case UseBranch(name=name):
                if at.open:
                    raise PgError("25001", "USE BRANCH cannot run inside a transaction block")
                await at.checkout(name)
                out.write(m.CommandComplete("USE BRANCH"))
            case Refused(message=message, hint=hint):
                raise PgError("0A000", message, hint=hint)
            case CreateTable() | DropTable() | CreateSchema() | DropSchema():
                await self._lake_ddl(piece, kind, out)
            case _:
                raise AssertionError(kind)

    async def _lake_ddl(
        self, piece: Statement, kind: CreateTable | DropTable | CreateSchema | DropSchema, out: Sink
    ) -> None:
        await self.standing.enter(write=True)
        match kind:
            case CreateTable():
                notices, tag = await self.ddl.create_table(kind), "CREATE TABLE"
            case CreateSchema():
                notices, tag = await self.ddl.create_schema(piece.text, kind), "CREATE SCHEMA"
            case DropSchema():
                notices, tag = await self.ddl.drop_schema(piece.text, kind), "DROP SCHEMA"
            case DropTable():
                shadows = await self.ddl.resolve(kind.names)
                if not shadows:
                    work = Work(piece, Other(), encode(m.Query(piece.text)), None)
                    await self._answer(await self.execution.run(work), out)
                    return
                notices, tag = await self.ddl.drop_table(piece.text, kind, shadows), "DROP TABLE"
        for notice in notices:
            out.write(notice)
        out.write(m.CommandComplete(tag))

    # transactions ---------------------------------------------------------------------------------------------------

    def _need_block(self, what: str) -> None:
        if not self.standing.explicit:
            raise PgError("25P01", f"{what} can only be used in transaction blocks")

    async def _begin(self, kind: Begin, out: Sink) -> None:
        _check_modes(kind.modes)
        if self.standing.explicit:
            out.write(_warning("25001", "there is already a transaction in progress"))
            if kind.modes.read_only is not None:
                self.standing.read_only = kind.modes.read_only
        else:
            await self.standing.begin(read_only=kind.modes.read_only)
        out.write(m.CommandComplete(kind.tag))

    async def _commit(self, kind: Commit, out: Sink) -> None:
        at = self.standing
        if not at.explicit:
            if kind.chain:
                raise PgError("25P01", "COMMIT AND CHAIN can only be used in transaction blocks")
            out.write(_warning("25P01", "there is no transaction in progress"))
            await self._leave()
            out.write(m.CommandComplete("COMMIT"))
            return
        read_only = at.read_only
        try:
            done = await at.commit()
        finally:
            self._drop_portals()
        if kind.chain:
            await at.begin(read_only=read_only)
        out.write(m.CommandComplete("COMMIT" if done else "ROLLBACK"))

    async def _rollback(self, kind: Rollback, out: Sink) -> None:
        at = self.standing
        if not at.explicit:
            if kind.chain:
                raise PgError("25P01", "ROLLBACK AND CHAIN can only be used in transaction blocks")
            out.write(_warning("25P01", "there is no transaction in progress"))
            if at.open:
                await at.rollback()
            out.write(m.CommandComplete("ROLLBACK"))
            return
        read_only = at.read_only
        await at.rollback()
        self._drop_portals()
        if kind.chain:
            await at.begin(read_only=read_only)
        out.write(m.CommandComplete("ROLLBACK"))

    async def _set_transaction(self, kind: SetTransaction, out: Sink) -> None:
        _check_modes(kind.modes)
        if kind.session:
            if kind.modes.read_only is not None:
                word = "ONLY" if kind.modes.read_only else "WRITE"
                await self.link.query(f"SET SESSION CHARACTERISTICS AS TRANSACTION READ {word}")
        elif not self.standing.explicit:
            out.write(_warning("25P01", "SET TRANSACTION can only be used in transaction blocks"))
        elif kind.modes.read_only is not None:
            self.standing.read_only = kind.modes.read_only
        out.write(m.CommandComplete("SET"))

    async def _set_isolation(self, piece: Statement, kind: SetIsolation, out: Sink) -> None:
        if kind.value == "serializable":
            raise _no_serializable()
        if kind.value not in _ISOLATIONS:
            await self._answer(
                await self.execution.run(Work(piece, Local("set"), encode(m.Query(piece.text)), None)), out
            )
            return
        out.write(m.CommandComplete("SET"))

    async def _show_branches(self, out: Sink, *, describe: bool) -> None:
        refs = sorted(await self.lake.refs(), key=lambda ref: str(ref["name"]))
        if describe:
            out.write(m.RowDescription(_BRANCH_COLUMNS))
        branches = [ref for ref in refs if ref["kind"] == "branch"]
        for ref in branches:
            values = (
                str(ref["name"]).encode(),
                str(ref["commit"]).encode(),
                b"t" if ref.get("default") else b"f",
                b"t" if ref["name"] == self.lake.ref else b"f",
            )
            out.write(m.DataRow(values))
        out.write(m.CommandComplete("SHOW"))

    # extended protocol ----------------------------------------------------------------------------------------------

    async def _enqueue(self, message: Extended, out: Sink) -> None:
        self._queue.append(message)
        if len(self._queue) >= _QUEUE_LIMIT:
            await self.flush(out)

    async def _work_off(self, out: Sink) -> None:
        queue, self._queue = self._queue, []
        for at, message in enumerate(queue):
            self._check_cancelled()
            write = self._series_may_write(queue[at:])
            match message:
                case m.Parse():
                    await self._parse(message, out, write=write)
                case m.Bind():
                    await self._bind(message, out, write=write)
                case m.Describe():
                    await self._describe(message, out, write=write)
                case m.Execute():
                    await self._execute(message, out, write=write)
                case m.Close():
                    await self._close(message, out)

    def _series_may_write(self, queue: Sequence[Extended]) -> bool:
        prepared = dict(self._prepared)
        portals = {name: portal.prepared for name, portal in self._portals.items()}
        for message in queue:
            match message:
                case m.Parse(name=name, sql=sql):
                    pieces = [piece for piece in self._split(sql) if not piece.empty]
                    if len(pieces) == 1:
                        try:
                            prepared[name] = _Prepared(pieces[0], classify(pieces[0]))
                        except PgError:
                            return False
                case m.Bind(portal=portal, statement=statement) if statement in prepared:
                    portals[portal] = prepared[statement]
                case m.Execute(portal=portal) if portal in portals:
                    one = portals[portal]
                    if not one.statement.empty and self._may_write(one.statement, one.kind):
                        return True
                case _:
                    pass
        return False

    async def _parse(self, message: m.Parse, out: Sink, *, write: bool) -> None:
        self._check_encoding(message.sql)
        pieces = self._split(message.sql)
        full = [piece for piece in pieces if not piece.empty]
        kind: Kind = Other()
        statement = full[0] if len(full) == 1 else Statement(message.sql, 0, ())
        if len(full) == 1:
            try:
                kind = classify(full[0])
            except PgError as error:
                raise _shifted(error, full[0].start) from None
        if not isinstance(kind, _BRAIN_KINDS):
            if self.standing.failed and not isinstance(kind, Commit | Rollback | RollbackTo):
                raise PgError("25P02", FAILED)
            if message.name and message.name in self._prepared:
                raise PgError("42P05", f'prepared statement "{message.name}" already exists')
            self._prepared[message.name] = _Prepared(statement, kind)
            out.write(m.ParseComplete())
            return
        if message.name in self._prepared and not isinstance(self._prepared[message.name].kind, _BRAIN_KINDS):
            if message.name:
                raise PgError("42P05", f'prepared statement "{message.name}" already exists')
            del self._prepared[""]
        if not self.standing.failed:
            await self.standing.enter(write=write)
        whole = Statement(message.sql, 0, statement.tokens)
        if not message.name:
            await self._close_in_brain(m.Close(m.Target.STATEMENT, _UNNAMED))
        analysis = await self.execution.parse(whole, message.name or _UNNAMED, message.param_oids)
        known = self.standing.shadows.by_oid()
        prepared = _Prepared(statement, kind, analysis)
        if analysis is not None:
            prepared.read_keys = frozenset(known[oid].key for oid in analysis.reads if oid in known)
            prepared.write_keys = frozenset(known[oid].key for oid in analysis.writes if oid in known)
            prepared.hidden_keys = frozenset(known[oid].key for oid in analysis.hidden_writes if oid in known)
        self._prepared[message.name] = prepared
        out.write(m.ParseComplete())

    async def _bind(self, message: m.Bind, out: Sink, *, write: bool) -> None:
        prepared = self._find_prepared(message.statement)
        if message.portal and message.portal in self._portals:
            raise PgError("42P03", f'cursor "{message.portal}" already exists')
        portal = _Portal(prepared, message)
        if not isinstance(prepared.kind, _BRAIN_KINDS):
            if message.params:
                raise PgError("08P01", f"bind message supplies {len(message.params)} parameters, but 0 are required")
        else:
            if not self.standing.failed:
                await self.standing.enter(write=write)
            portal.row_description = await self._try_bind(portal)
        self._drop_portal(message.portal)
        self._portals[message.portal] = portal
        out.write(m.BindComplete())

    async def _try_bind(self, portal: _Portal) -> bytes:
        """Bind and Describe in the brain, and undo it: what is wrong with the parameters shows here."""
        bind = portal.bind
        request = (
            encode(m.Bind("", bind.statement or _UNNAMED, bind.param_formats, bind.params, bind.result_formats))
            + encode(m.Describe(m.Target.PORTAL, ""))
            + SYNC
        )
        if not self.standing.failed:
            await self.link.query("SAVEPOINT icefield_bind")
        description, error = b"", None
        async for run in self.link.relay(request):
            if run.kind in b"Tn":
                description = run.data
            elif run.kind == b"E":
                error = error or _brain_error(run.data)
        if error is not None:
            raise error
        if not self.standing.failed:
            await self.link.query("ROLLBACK TO SAVEPOINT icefield_bind; RELEASE SAVEPOINT icefield_bind")
        return description

    async def _describe(self, message: m.Describe, out: Sink, *, write: bool) -> None:
        if message.target is m.Target.PORTAL:
            portal = self._portals.get(message.name)
            if portal is None:
                await self._describe_in_brain(message, out)  # a cursor made by DECLARE is a portal, too
            elif isinstance(portal.prepared.kind, _BRAIN_KINDS):
                out.write(portal.row_description)
            else:
                _describe_own(portal.prepared.kind, out)
            return
        prepared = self._find_prepared(message.name)
        if not isinstance(prepared.kind, _BRAIN_KINDS):
            out.write(m.ParameterDescription(()))
            _describe_own(prepared.kind, out)
            return
        if not self.standing.failed:
            await self.standing.enter(write=write)
        await self._describe_in_brain(m.Describe(message.target, message.name or _UNNAMED), out)

    async def _describe_in_brain(self, message: m.Describe, out: Sink) -> None:
        error: PgError | None = None
        async for run in self.link.relay(encode(message) + SYNC):
            if run.kind == b"E":
                error = error or _brain_error(run.data)
            elif run.kind in b"tTn":
                out.write(run.data)
        if error is not None:
            raise error

    async def _execute(self, message: m.Execute, out: Sink, *, write: bool) -> None:
        portal = self._portals.get(message.portal)
        if portal is None:
            await self._execute_cursor(message, out)
            return
        prepared = portal.prepared
        if prepared.statement.empty:
            out.write(m.EmptyQueryResponse())
            return
        if portal.spool is not None:
            await self._next_rows(portal, message.max_rows, out)
            return
        if portal.ran and not portal.row_description.startswith(b"T"):
            raise PgError("55000", f'portal "{message.portal}" cannot be run')
        if not isinstance(prepared.kind, _BRAIN_KINDS):
            portal.ran = True
            if isinstance(prepared.kind, ShowBranches) and not self.standing.failed:
                await self._show_branches(out, describe=False)
            else:
                try:
                    await self._own(prepared.statement, prepared.kind, out)
                except PgError as error:
                    raise _shifted(error, prepared.statement.start) from error
            return
        if isinstance(prepared.kind, Local) and prepared.kind.name == "discard" and not self.standing.explicit:
            await self._discard(prepared.statement, out)
            return
        if not self.standing.failed:
            await self.standing.enter(write=write)
        self._refuse_outside_block(prepared.statement)
        bind = portal.bind
        request = (
            encode(m.Bind("", bind.statement or _UNNAMED, bind.param_formats, bind.params, bind.result_formats))
            + encode(m.Execute("", 0))
            + SYNC
        )
        work = Work(prepared.statement, prepared.kind, request, self._analysis_now(prepared))
        spool = await self.execution.run(work, _CopyFromClient(self.link, out))
        portal.ran = True
        spool.rewind()
        portal.spool = spool
        await self._next_rows(portal, message.max_rows, out)

    async def _execute_cursor(self, message: m.Execute, out: Sink) -> None:
        """A portal that is not ours: made by DECLARE, or not there, which the brain says."""
        if not self.standing.failed:
            await self.standing.enter(write=False)
        work = Work(Statement("", 0, ()), CursorMove(), encode(message) + SYNC, None)
        await self._answer(await self.execution.run(work), out)

    async def _discard(self, statement: Statement, out: Sink) -> None:
        """DISCARD ALL is refused inside a transaction: end the implicit one that Parse and Bind began."""
        await self.standing.leave()
        request = encode(m.Query(statement.text))
        await self._answer(await self.execution.run(Work(statement, Local("discard"), request, None)), out)
        self._forget_statements(statement)
        self._drop_portals()

    def _analysis_now(self, prepared: _Prepared) -> Analysis | None:
        """The analysis with today's OIDs: shadows are made anew when a table's columns change."""
        analysis = prepared.analysis
        if analysis is None:
            return None
        tables = self.standing.shadows.tables
        return Analysis(
            analysis.command,
            frozenset(tables[key].oid for key in prepared.read_keys if key in tables),
            frozenset(tables[key].oid for key in prepared.write_keys if key in tables),
            frozenset(tables[key].oid for key in prepared.hidden_keys if key in tables),
            analysis.returning,
            analysis.on_conflict,
            analysis.modifying_cte,
            analysis.harmless,
        )

    async def _next_rows(self, portal: _Portal, max_rows: int, out: Sink) -> None:
        spool = portal.spool
        assert spool is not None
        sent, done = await spool.deliver_rows(out, max_rows if max_rows > 0 else 1 << 62)
        if not done or (max_rows > 0 and sent == max_rows):
            out.write(m.PortalSuspended())
            return
        if spool.complete is not None:
            tag = spool.complete[5:-1]
            if tag.startswith((b"SELECT ", b"FETCH ")):
                tag = tag.split(b" ")[0] + b" " + str(sent).encode()
            out.write(m.CommandComplete(tag.decode("utf-8", "surrogateescape")))

    async def _close(self, message: m.Close, out: Sink) -> None:
        if message.target is m.Target.PORTAL:
            if message.name in self._portals:
                self._drop_portal(message.name)
            else:
                await self._close_in_brain(message)
        else:
            prepared = self._prepared.pop(message.name, None)
            if prepared is not None and isinstance(prepared.kind, _BRAIN_KINDS):
                await self._close_in_brain(m.Close(message.target, message.name or _UNNAMED))
        out.write(m.CloseComplete())

    async def _close_in_brain(self, message: m.Close) -> None:
        async for _ in self.link.relay(encode(message) + SYNC):
            pass

    def _find_prepared(self, name: str) -> _Prepared:
        prepared = self._prepared.get(name)
        if prepared is None:
            what = (
                f'prepared statement "{name}" does not exist' if name else "unnamed prepared statement does not exist"
            )
            raise PgError("26000", what)
        return prepared


class _CopyFromClient:
    """COPY FROM STDIN into a table of the brain's own (a temporary one): the client's data, as they come."""

    def __init__(self, link: BrainLink, out: Sink) -> None:
        self._link = link
        self._out = out

    async def __call__(self, response: bytes) -> None:
        self._out.write(response)
        while True:
            message = await self._out.read_copy()
            await self._link.send(encode(message))
            if not isinstance(message, m.CopyData):
                return


def _describe_own(kind: Kind, out: Sink) -> None:
    out.write(m.RowDescription(_BRANCH_COLUMNS) if isinstance(kind, ShowBranches) else m.NoData())


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


def _brain_error(data: bytes) -> PgError:
    from icefield.pgwire.codec import Frame, decode_backend

    message = decode_backend(Frame(b"E", data[5:]))
    assert isinstance(message, m.ErrorResponse)
    return PgError.from_fields(message.fields)


def _shifted(error: PgError, by: int) -> PgError:
    """The error with its position counted from the start of the client's text."""
    if error.position is not None and by:
        error.position += by
    return error
