"""The extended protocol: messages are collected until Sync or Flush and then done in order.

So a whole series is known before its first message is done: one that writes begins its transaction on the server at its
start, and reads and writes over one commit. A series that executes one thing, up to its Sync, is a transaction of its
own: it commits before its answer is told, and its Execute runs again if that meets a conflict (``retries.py``). What
Parse made stays in the brain meanwhile; the parameters are bound again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from icefield.pgwire import messages as m
from icefield.pgwire.brain_link import SYNC
from icefield.pgwire.codec import encode
from icefield.pgwire.errors import PgError
from icefield.pgwire.session import Sink
from icefield.sql.analysis import Analysis
from icefield.sql.branches import columns_of, description
from icefield.sql.client import BRAIN_KINDS, Client, brain_error, copies_in, may_write, runs_again, shifted
from icefield.sql.copy_source import CopySource
from icefield.sql.execution import Work
from icefield.sql.lexer import Statement
from icefield.sql.retries import conflict_of
from icefield.sql.spool import Spool
from icefield.sql.standing import FAILED
from icefield.sql.statements import Commit, CursorMove, Kind, Local, Other, Rollback, RollbackTo, classify

_QUEUE_LIMIT = 10_000
_COUNT = re.compile(rb"\d+\Z")
_UNNAMED = "icefield_unnamed"
"""What the client's unnamed statement is called in the brain: our own simple queries would drop one without a name."""
Keys = frozenset[tuple[str, str]]


@dataclass(slots=True)
class _Prepared:
    statement: Statement
    kind: Kind
    analysis: Analysis | None = None
    read_keys: Keys = frozenset()
    write_keys: Keys = frozenset()
    hidden_keys: Keys = frozenset()
    """The lake tables of the analysis, by name: their shadows may be made anew before it runs."""


@dataclass(slots=True, eq=False)
class _Portal:
    prepared: _Prepared
    bind: m.Bind
    row_description: bytes = b""
    spool: Spool | None = None
    """What is left of an answer that the client takes in pieces."""
    ran: bool = False

    @property
    def returns_rows(self) -> bool:
        return self.row_description.startswith(b"T") or columns_of(self.prepared.kind) is not None

    def close(self) -> None:
        if self.spool is not None:
            self.spool.close()


@dataclass(slots=True)
class _Held:
    """A COPY FROM STDIN that ran, alone in its series so far: its answer waits for what comes next."""

    portal: _Portal
    max_rows: int
    spool: Spool
    source: CopySource


Extended = m.Parse | m.Bind | m.Describe | m.Execute | m.Close


@dataclass(slots=True)
class ExtendedProtocol:
    client: Client
    _prepared: dict[str, _Prepared] = field(default_factory=dict)
    _portals: dict[str, _Portal] = field(default_factory=dict)
    _queue: list[Extended] = field(default_factory=list)
    _executed: int = 0
    """How often, since the last Sync."""
    _held: _Held | None = None

    # what the session asks ------------------------------------------------------------------------------------------

    async def take(self, message: Extended, out: Sink) -> None:
        """Keep it for later, unless it cannot wait."""
        await self._let_go(out)
        self._queue.append(message)
        if isinstance(message, m.Execute) and self._is_copy(message):
            await self._copy(out)  # COPY FROM STDIN talks with the client right after Execute
        elif len(self._queue) >= _QUEUE_LIMIT:
            await self._work_off(out, ends=False)

    async def flush(self, out: Sink) -> None:
        await self._let_go(out)
        await self._work_off(out, ends=False)

    async def sync(self, out: Sink) -> None:
        """The series' end; the caller commits what is still to be committed."""
        held, self._held = self._held, None
        if held is not None:
            with held.source:
                async with self.client.interrupts.timed():
                    spool = await self._again(held.portal, held.source, held.spool)
                await self._answer(held.portal, spool, held.max_rows, out)
        await self._work_off(out, ends=True)
        self._executed = 0

    def failed(self) -> None:
        """The rest of the series is skipped."""
        self._queue.clear()
        self._executed = 0
        held, self._held = self._held, None
        if held is not None:
            held.spool.close()
            held.source.close()

    def drop_portals(self) -> None:
        for name in list(self._portals):
            self.drop_portal(name)

    def drop_portal(self, name: str) -> None:
        portal = self._portals.pop(name, None)
        if portal is not None:
            portal.close()

    async def before_simple(self, out: Sink) -> None:
        """A simple query ends what came before it, as Sync does, and takes the unnamed statement's place."""
        if self._queue or self._held is not None:
            await self.flush(out)
        self._executed = 0
        self.drop_portal("")
        self._prepared.pop("", None)

    def forget_statements(self, piece: Statement) -> None:
        """What DISCARD and DEALLOCATE do to the brain's prepared statements."""
        if not piece.empty and piece.tokens[0].word in ("discard", "deallocate") and "all" in piece.words(3):
            self._prepared.clear()

    def close(self) -> None:
        self.failed()
        self.drop_portals()

    # a series -------------------------------------------------------------------------------------------------------

    async def _work_off(self, out: Sink, *, ends: bool) -> None:
        queue, self._queue = self._queue, []
        for at, message in enumerate(queue):
            self.client.interrupts.check()
            write = self._may_write(queue[at:])
            match message:
                case m.Parse():
                    await self._parse(message, out, write=write)
                case m.Bind():
                    await self._bind(message, out, write=write)
                case m.Describe():
                    await self._describe(message, out, write=write)
                case m.Execute():
                    alone = ends and all(isinstance(later, m.Close) for later in queue[at + 1 :])
                    async with self.client.interrupts.timed():
                        await self._execute(message, out, write=write, alone=alone)
                case m.Close():
                    await self._close(message, out)

    def _may_write(self, queue: Sequence[Extended]) -> bool:
        prepared = dict(self._prepared)
        portals = {name: portal.prepared for name, portal in self._portals.items()}
        for message in queue:
            match message:
                case m.Parse(name=name, sql=sql):
                    pieces = [piece for piece in self.client.split(sql) if not piece.empty]
                    if len(pieces) == 1:
                        try:
                            prepared[name] = _Prepared(pieces[0], classify(pieces[0]))
                        except PgError:
                            return False
                case m.Bind(portal=portal, statement=statement) if statement in prepared:
                    portals[portal] = prepared[statement]
                case m.Execute(portal=portal) if portal in portals:
                    one = portals[portal]
                    if not one.statement.empty and may_write(one.statement, one.kind):
                        return True
                case _:
                    pass
        return False

    async def _enter(self, *, write: bool) -> None:
        """Before anything was executed, the view that an earlier Flush needed may give way to a newer one."""
        standing = self.client.standing
        try:
            await self.client.enter(write=write)
        except PgError as error:
            if conflict_of(error) is None or self._executed or standing.explicit:
                raise
            await standing.fail()
            await self.client.enter(write=write)

    # COPY FROM STDIN ------------------------------------------------------------------------------------------------

    def _is_copy(self, message: m.Execute) -> bool:
        texts = [item.sql for item in self._queue if isinstance(item, m.Parse)]
        portal = self._portals.get(message.portal)
        if portal is not None:
            texts.append(portal.prepared.statement.text)
        texts += [
            self._prepared[item.statement].statement.text
            for item in self._queue
            if isinstance(item, m.Bind) and item.statement in self._prepared
        ]
        return any(
            copies_in(piece)
            for text in texts
            if "stdin" in text.lower()
            for piece in self.client.split(text)
            if not piece.empty
        )

    async def _copy(self, out: Sink) -> None:
        execute = self._queue.pop()
        assert isinstance(execute, m.Execute)
        before = sum(isinstance(item, m.Execute) for item in self._queue) + self._executed
        await self._work_off(out, ends=False)
        portal = self._portals.get(execute.portal)
        alone = before == 0 and not self.client.standing.explicit
        if portal is None or not alone or not copies_in(portal.prepared.statement) or portal.ran:
            self._queue.append(execute)
            await self._work_off(out, ends=False)
            return
        self._executed += 1
        source = CopySource(self.client.link, out, self.client.interrupts.check)
        try:
            async with self.client.interrupts.timed():
                spool = await self._run(portal, source, write=True)
        except BaseException:
            source.close()
            raise
        self._held = _Held(portal, execute.max_rows, spool, source)

    async def _let_go(self, out: Sink) -> None:
        """The series goes on after a COPY: its answer is due."""
        held, self._held = self._held, None
        if held is not None:
            held.source.close()
            await self._answer(held.portal, held.spool, held.max_rows, out)

    # Parse, Bind, Describe ------------------------------------------------------------------------------------------

    async def _parse(self, message: m.Parse, out: Sink, *, write: bool) -> None:
        client = self.client
        client.check_encoding(message.sql)
        client.interrupts.noticed(message.sql)
        full = [piece for piece in client.split(message.sql) if not piece.empty]
        kind: Kind = Other()
        statement = full[0] if len(full) == 1 else Statement(message.sql, 0, ())
        if len(full) == 1:
            try:
                kind = classify(full[0])
            except PgError as error:
                raise shifted(error, full[0].start) from None
        if not isinstance(kind, BRAIN_KINDS):
            if client.standing.failed and not isinstance(kind, Commit | Rollback | RollbackTo):
                raise PgError("25P02", FAILED)
            if message.name and message.name in self._prepared:
                raise PgError("42P05", f'prepared statement "{message.name}" already exists')
            self._prepared[message.name] = _Prepared(statement, kind)
            out.write(m.ParseComplete())
            return
        if message.name in self._prepared and not isinstance(self._prepared[message.name].kind, BRAIN_KINDS):
            if message.name:
                raise PgError("42P05", f'prepared statement "{message.name}" already exists')
            del self._prepared[""]
        await self._enter(write=write)
        whole = Statement(message.sql, 0, statement.tokens)
        if not message.name:
            await self._close_in_brain(m.Close(m.Target.STATEMENT, _UNNAMED))
        analysis = await client.execution.parse(whole, message.name or _UNNAMED, message.param_oids)
        known = client.standing.shadows.by_oid()
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
        if not isinstance(prepared.kind, BRAIN_KINDS):
            if message.params:
                raise PgError("08P01", f"bind message supplies {len(message.params)} parameters, but 0 are required")
            columns, formats = columns_of(prepared.kind) or (), message.result_formats
            if len(formats) > 1 and len(formats) != len(columns):
                what = f"{len(formats)} result formats but query has {len(columns)} columns"
                raise PgError("08P01", f"bind message has {what}")
        else:
            await self._enter(write=write)
            portal.row_description = await self._try_bind(portal)
        self.drop_portal(message.portal)
        self._portals[message.portal] = portal
        out.write(m.BindComplete())

    async def _try_bind(self, portal: _Portal) -> bytes:
        """Bind and Describe in the brain, and undo it: what is wrong with the parameters shows here."""
        link, standing = self.client.link, self.client.standing
        request = _bind_request(portal.bind) + encode(m.Describe(m.Target.PORTAL, "")) + SYNC
        if not standing.failed:
            await link.query("SAVEPOINT icefield_bind")
        found, error = b"", None
        async for run in link.relay(request):
            if run.kind in b"Tn":
                found = run.data
            elif run.kind == b"E":
                error = error or brain_error(run.data)
        if error is not None:
            raise error
        if not standing.failed:
            await link.query("ROLLBACK TO SAVEPOINT icefield_bind; RELEASE SAVEPOINT icefield_bind")
        return found

    async def _describe(self, message: m.Describe, out: Sink, *, write: bool) -> None:
        if message.target is m.Target.PORTAL:
            portal = self._portals.get(message.name)
            if portal is None:
                await self._describe_in_brain(message, out)  # a cursor made by DECLARE is a portal, too
            elif isinstance(portal.prepared.kind, BRAIN_KINDS):
                out.write(portal.row_description)
            else:
                _describe_own(portal.prepared.kind, portal.bind.result_formats, out)
            return
        prepared = self._find_prepared(message.name)
        if not isinstance(prepared.kind, BRAIN_KINDS):
            out.write(m.ParameterDescription(()))
            _describe_own(prepared.kind, (), out)
            return
        await self._enter(write=write)
        await self._describe_in_brain(m.Describe(message.target, message.name or _UNNAMED), out)

    async def _describe_in_brain(self, message: m.Describe, out: Sink) -> None:
        error: PgError | None = None
        async for run in self.client.link.relay(encode(message) + SYNC):
            if run.kind == b"E":
                error = error or brain_error(run.data)
            elif run.kind in b"tTn":
                out.write(run.data)
        if error is not None:
            raise error

    # Execute --------------------------------------------------------------------------------------------------------

    async def _execute(self, message: m.Execute, out: Sink, *, write: bool, alone: bool) -> None:
        client = self.client
        alone = alone and self._executed == 0 and not client.standing.explicit
        self._executed += 1
        portal = self._portals.get(message.portal)
        if portal is None:
            await self._execute_cursor(message, out)
            return
        prepared = portal.prepared
        if prepared.statement.empty:
            out.write(m.EmptyQueryResponse())
            return
        if portal.ran and not portal.returns_rows:
            raise PgError("55000", f'portal "{message.portal}" cannot be run')
        if portal.spool is not None:
            await self._next_rows(portal, message.max_rows, out)
            return
        if isinstance(prepared.kind, Local) and prepared.kind.name == "discard" and not client.standing.explicit:
            await self._discard(prepared.statement, out)
            return
        with CopySource(client.link, out, client.interrupts.check) as source:
            if alone and runs_again(prepared.kind):
                spool = await self._again(portal, source, write=write)
            else:
                spool = await self._run(portal, source, write=write)
        await self._answer(portal, spool, message.max_rows, out)

    async def _run(self, portal: _Portal, source: CopySource, *, write: bool) -> Spool:
        client, prepared = self.client, portal.prepared
        if not isinstance(prepared.kind, BRAIN_KINDS):
            try:
                return await client.own.run(prepared.statement, prepared.kind, portal.bind.result_formats)
            except PgError as error:
                raise shifted(error, prepared.statement.start) from error
        await client.enter(write=write)
        client.refuse_outside_block(prepared.statement)
        if copies_in(prepared.statement):
            # It has no parameters; and the brain would take the Sync after Execute for a part of the data.
            return await self._copy_in(prepared, source)
        request = _bind_request(portal.bind) + encode(m.Execute("", 0)) + SYNC
        work = Work(prepared.statement, prepared.kind, request, self._analysis_now(prepared))
        return await client.execution.run(work, source)

    async def _copy_in(self, prepared: _Prepared, source: CopySource) -> Spool:
        statement = prepared.statement
        try:
            work = Work(statement, prepared.kind, encode(m.Query(statement.text)), None)
            return await self.client.execution.run(work, source)
        except PgError as error:
            raise shifted(error, statement.start) from error

    async def _again(
        self, portal: _Portal, source: CopySource, first: Spool | None = None, *, write: bool = True
    ) -> Spool:
        """Commits before the answer is told; runs again on a conflict."""
        runs = 0 if first is None else 1

        async def attempt() -> Spool:
            nonlocal runs
            runs += 1
            if runs > 1 and isinstance(portal.prepared.kind, BRAIN_KINDS):
                # Tables may look different by now. What the client was told of the columns holds, or it is an error.
                await self.client.enter(write=write)
                if await self._try_bind(portal) != portal.row_description:
                    raise PgError("0A000", "cached plan must not change result type")
            return await self._run(portal, source, write=write)

        return await self.client.retries.run(attempt, first)

    async def _answer(self, portal: _Portal, spool: Spool, max_rows: int, out: Sink) -> None:
        portal.ran = True
        spool.rewind()
        portal.spool = spool
        try:
            await self._next_rows(portal, max_rows, out)
        finally:
            if portal not in self._portals.values():
                portal.close()  # its transaction is over already

    async def _execute_cursor(self, message: m.Execute, out: Sink) -> None:
        """A portal that is not ours: made by DECLARE, or not there, which the brain says."""
        await self.client.enter(write=False)
        work = Work(Statement("", 0, ()), CursorMove(), encode(message) + SYNC, None)
        with await self.client.execution.run(work) as spool:
            await spool.deliver(out)

    async def _discard(self, statement: Statement, out: Sink) -> None:
        """DISCARD ALL is refused inside a transaction: end the implicit one that Parse and Bind began."""
        await self.client.retries.leave()
        request = encode(m.Query(statement.text))
        with await self.client.execution.run(Work(statement, Local("discard"), request, None)) as spool:
            await spool.deliver(out)
        self.forget_statements(statement)
        self.drop_portals()

    def _analysis_now(self, prepared: _Prepared) -> Analysis | None:
        """The analysis with today's OIDs: shadows are made anew when a table's columns change."""
        if prepared.analysis is None:
            return None
        tables = self.client.standing.shadows.tables
        return replace(
            prepared.analysis,
            reads=frozenset(tables[key].oid for key in prepared.read_keys if key in tables),
            writes=frozenset(tables[key].oid for key in prepared.write_keys if key in tables),
            hidden_writes=frozenset(tables[key].oid for key in prepared.hidden_keys if key in tables),
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
            if portal.returns_rows:  # as PostgreSQL: those of this Execute
                tag = _COUNT.sub(str(sent).encode(), tag)
            out.write(m.CommandComplete(tag.decode("utf-8", "surrogateescape")))

    # Close ----------------------------------------------------------------------------------------------------------

    async def _close(self, message: m.Close, out: Sink) -> None:
        if message.target is m.Target.PORTAL:
            if message.name in self._portals:
                self.drop_portal(message.name)
            else:
                await self._close_in_brain(message)
        else:
            prepared = self._prepared.pop(message.name, None)
            if prepared is not None and isinstance(prepared.kind, BRAIN_KINDS):
                await self._close_in_brain(m.Close(message.target, message.name or _UNNAMED))
        out.write(m.CloseComplete())

    async def _close_in_brain(self, message: m.Close) -> None:
        async for _ in self.client.link.relay(encode(message) + SYNC):
            pass

    def _find_prepared(self, name: str) -> _Prepared:
        prepared = self._prepared.get(name)
        if prepared is None:
            what = (
                f'prepared statement "{name}" does not exist' if name else "unnamed prepared statement does not exist"
            )
            raise PgError("26000", what)
        return prepared


def _bind_request(bind: m.Bind) -> bytes:
    return encode(m.Bind("", bind.statement or _UNNAMED, bind.param_formats, bind.params, bind.result_formats))


def _describe_own(kind: Kind, formats: Sequence[int], out: Sink) -> None:
    columns = columns_of(kind)
    out.write(m.NoData() if columns is None else description(columns, formats))
