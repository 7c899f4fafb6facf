"""One statement, run by the brain over fills of what it reads and changes, under the law of unfilled shadows.

The way of every statement that is not our own: what the brain's Parse says it reads or changes is filled in a
savepoint; the original text runs in another; if it then turns out to have touched a shadow that was not filled (through
a view, a function, EXECUTE …), all is undone and done again with that one filled, too. What it changed is read out of
the brain and written by the engine, one snapshot a table. Nothing reaches the client before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from icefield.engine.port import Changed, RowChange
from icefield.pgwire import messages as m
from icefield.pgwire.brain_link import SYNC
from icefield.pgwire.codec import Frame, decode_backend, decode_run, encode
from icefield.pgwire.errors import PgError
from icefield.sql import changes, law
from icefield.sql.analysis import ASK, Analysis, read
from icefield.sql.changes import Difference, Target
from icefield.sql.fill import TableRows
from icefield.sql.law import Trace, read_trace
from icefield.sql.sequences import EXHAUSTED, SequenceWindows
from icefield.sql.shadows import Shadow
from icefield.sql.spool import Spool
from icefield.sql.standing import Standing
from icefield.sql.statements import CursorMove, Kind, Local, Other, Statement, split
from icefield.sql.under import Fills, Loosened

_ROUNDS = 10
_FILL = "SAVEPOINT icefield_fill"
_STATEMENT = "SAVEPOINT icefield_statement"
_UNDO = "ROLLBACK TO SAVEPOINT icefield_fill; RELEASE SAVEPOINT icefield_fill"
_KEEP = "RELEASE SAVEPOINT icefield_fill"
_TAKEN_AWAY = re.compile(r"permission denied for function (pg_notify|pg_\w*advisory\w*|lo_\w+)$")


@dataclass(frozen=True, slots=True)
class Work:
    statement: Statement
    kind: Kind
    request: bytes
    """The frontend messages that run it, ended by Query or Sync."""
    analysis: Analysis | None
    """What Parse said; None for what the brain does not analyse."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    spool: Spool
    error: PgError | None


@dataclass(slots=True)
class _Scope:
    """What a statement reads and changes in the lake, as far as is known; it grows from round to round.

    By oid: the same shadow has another version after each write.
    """

    reads: set[int] = field(default_factory=set)
    targets: set[int] = field(default_factory=set)
    append: int | None = None
    """What it only adds rows to, whatever is in it."""
    truncates: bool = False
    plain: bool = False
    plans_only: bool = False

    @property
    def writes(self) -> bool:
        return bool(self.targets) or self.append is not None or self.truncates

    @property
    def written(self) -> set[int]:
        return self.targets if self.append is None else self.targets | {self.append}

    def changed(self, written: set[int]) -> None:
        """These, too, may be changed."""
        self.targets |= written
        if self.append in self.targets:
            self.append = None


_ANALYSED = frozenset("select with values table insert update delete merge declare (".split())  # noqa: SIM905
_VERBS = {"update": "update", "alter": "update", "delete": "delete"}
"""Which of the table's properties write.<verb>.mode decides, by the statement's first word; else that of merge."""

CopySource = Callable[[bytes], Coroutine[Any, Any, None]]
"""Told the brain's CopyInResponse; sends the client's data to the brain. Asked again, it sends them again."""


class Execution:
    def __init__(self, standing: Standing, table_rows: TableRows) -> None:
        self._at = standing
        self._rows = table_rows
        self._fills = Fills(standing, table_rows)

    # Parse ----------------------------------------------------------------------------------------------------------

    async def parse(self, statement: Statement, name: str = "", param_oids: tuple[int, ...] = ()) -> Analysis | None:
        """Parse in the brain; raises what the brain says. The prepared statement stays, under ``name``."""
        link = self._at.link
        if self._at.failed:
            await self._plain_parse(name, statement.text, param_oids)
            return None
        await link.query(f"SAVEPOINT icefield_parse; {ASK}")
        notices = await self._plain_parse(name, statement.text, param_oids)
        await link.query("ROLLBACK TO SAVEPOINT icefield_parse; RELEASE SAVEPOINT icefield_parse")
        return read(notices)

    async def _plain_parse(self, name: str, sql: str, param_oids: tuple[int, ...]) -> list[dict[str, str]]:
        notices: list[dict[str, str]] = []
        error: PgError | None = None
        async for run in self._at.link.relay(encode(m.Parse(name, sql, param_oids)) + SYNC):
            if run.kind == b"N":
                message = decode_run(run)
                assert isinstance(message, m.NoticeResponse)
                notices.append(dict(message.fields))
            elif run.kind == b"E":
                error = error or _error(run.data)
        if error is not None:
            raise self._explained(error)
        return notices

    async def analyse(self, statement: Statement) -> Analysis | None:
        """For a statement of the simple protocol, which the brain has not parsed yet."""
        first = statement.tokens[0]
        if (first.word or first.text) not in _ANALYSED:
            return None
        return await self.parse(statement)

    # running --------------------------------------------------------------------------------------------------------

    async def run(self, work: Work, copy_source: CopySource | None = None) -> Spool:
        """The statement's answer. Raises PgError; whatever it did is then for the caller to roll back."""
        if self._at.failed or isinstance(work.kind, Local):
            return await self._run_local(work)
        if isinstance(work.kind, CursorMove):
            return await self._run_cursor_move(work)
        _refuse_unseen_scans(work.statement)
        self._refuse_setval(work.statement)
        scope = await self._scope(work)
        if scope.writes and not self._at.read_only:
            await self._at.enter(write=True)
        else:
            await self._at.enter(write=False)
        return await self._rounds(work, scope, copy_source)

    async def _run_local(self, work: Work) -> Spool:
        """Settings: no table is touched, so that no savepoint is needed. In a failed transaction: 25P02."""
        if self._at.read_only and self._at.open and not self._at.failed and work.statement.words(1) == ("show",):
            await self._at.link.query(f"{_FILL}; SET TRANSACTION READ ONLY")
            outcome = await self._ask(work.request, None)
            if outcome.error is None:
                await self._at.link.query(_UNDO)
        else:
            outcome = await self._ask(work.request, None)
        if outcome.error is not None:
            outcome.spool.close()
            raise outcome.error
        return outcome.spool

    async def _run_cursor_move(self, work: Work) -> Spool:
        """FETCH cannot be undone and done again: the cursor would have moved."""
        at = self._at
        before = await self._probe()
        outcome = await self._ask(work.request, None)
        if outcome.error is not None:
            outcome.spool.close()
            raise outcome.error
        after = await self._probe()
        known = at.shadows.by_oid()
        more = (law.scanned(before, after) | law.written(before, after)) & known.keys() - at.cursor_shadows
        if more:
            outcome.spool.close()
            names = ", ".join(sorted(str(known[oid]) for oid in more))
            raise PgError(
                "0A000",
                f"a cursor whose functions read lake tables is not supported (it read {names})",
                hint="Run the query without a cursor.",
            )
        return outcome.spool

    async def _scope(self, work: Work) -> _Scope:
        """What Parse tells of the statement; for COPY FROM and TRUNCATE, its words."""
        known = self._at.shadows.by_oid()
        scope = _Scope(plans_only=_plans_only(work.statement))
        analysis = work.analysis
        if analysis is not None:
            scope.plain = analysis.plain
            written = (analysis.writes | analysis.hidden_writes) & known.keys()
            scope.reads = set(analysis.reads & known.keys())
            if analysis.plain_insert and written:
                (scope.append,) = written
            else:
                scope.targets = set(written)
        elif work.statement.tokens[0].word == "copy":
            scope.append = await self._copy_target(work.statement)
        elif work.statement.tokens[0].word == "truncate":
            scope.truncates = True
        if scope.append is not None and known[scope.append].has_keys:
            # Its keys are checked against all its rows, and again, by the strict mark, when it lands.
            scope.changed({scope.append})
        if scope.plans_only:
            return _Scope(plans_only=True)
        return scope

    def _refuse_setval(self, statement: Statement) -> None:
        if "setval" not in statement.text.lower():
            return
        texts = {token.word or token.text for token in statement.tokens}
        for shadow in self._at.shadows.tables.values():
            for sequence in shadow.sequences:
                if any(sequence.name in text for text in texts) or (
                    "pg_get_serial_sequence" in texts and any(shadow.name in text for text in texts)
                ):
                    raise PgError(
                        "0A000",
                        f'setval() is not supported for the sequence of a lake table ("{shadow}")',
                        hint="Its numbers are shared by all sessions and branches, and come from the server.",
                    )

    async def _copy_target(self, statement: Statement) -> int | None:
        """The lake table that COPY … FROM adds to."""
        end = next((token for token in statement.tokens[1:] if token.word == "from" or token.text == "("), None)
        if end is None or end.start == statement.tokens[1].start:
            return None  # COPY (query) TO
        if not any(token.word == "from" for token in statement.tokens):
            return None
        name = statement.text[statement.tokens[1].start : end.start].strip()
        found = await self._at.link.execute("SELECT pg_catalog.to_regclass($1)::pg_catalog.oid", [name])
        oid = int(found.scalar() or 0)
        return oid if oid in self._at.shadows.by_oid() else None

    async def _rounds(self, work: Work, scope: _Scope, copy_source: CopySource | None) -> Spool:
        at = self._at
        sequences = SequenceWindows(at)
        rounds = 0
        while rounds < _ROUNDS:
            known = at.shadows.by_oid()
            await sequences.remember(known[oid] for oid in scope.written)
            if rounds:
                await sequences.restore()
            await at.link.query(_FILL)
            try:
                await self._fill(scope)
            except Loosened:
                await at.link.query(_UNDO)
                continue  # without the constraint that the table's own rows violate
            before = await self._probe(_STATEMENT, read_only=at.read_only)
            outcome = await self._ask(work.request, copy_source)
            try:
                if outcome.error is not None:
                    grown = await self._grows_after_error(outcome.error, before, scope)
                    if not grown and not _may_extend(outcome.error):
                        raise self._explained(outcome.error)
                else:
                    after = await self._probe()
                    grown = self._grows(work, before, after, scope)
                    if not grown:
                        await self._settle(work, outcome.spool, before, after, scope)
                        return outcome.spool
                await at.link.query(_UNDO)
                if not grown and outcome.error is not None and not await sequences.extend(outcome.error):
                    raise self._explained(outcome.error)
                if scope.writes and not at.read_only:
                    await at.enter(write=True)
            except BaseException:
                outcome.spool.close()
                raise
            outcome.spool.close()
            rounds += 1
        raise PgError(
            "0A000",
            f"after {_ROUNDS} rounds the statement still reads lake tables that it did not read before",
            hint="Read the tables in the statement itself, and not in functions that choose them.",
        )

    async def _fill(self, scope: _Scope) -> None:
        """Rows under every shadow that is read or changed, and under those of which a read would not be seen."""
        known = self._at.shadows.by_oid()
        for oid in scope.written:
            known[oid].check_writable()
        trace = await self._probe()
        wanted = scope.reads | scope.targets
        if not scope.plain and not scope.plans_only and not scope.truncates:
            wanted |= law.held(trace, known.keys())
        await self._fills.begin(trace.max_rows, trace.explain_route)
        for key, oid in sorted((known[oid].key, oid) for oid in wanted):
            await self._fills.put(key, change=oid in scope.targets)
        if scope.append is not None:
            await self._fills.will_append(known[scope.append])

    async def _grows_after_error(self, error: PgError, before: Trace, scope: _Scope) -> bool:
        """What an error may be due to: shadows that were scanned empty. Locks are gone by now, counters are not."""
        if error.fatal or error.sqlstate[:2] in ("57", "53"):
            return False
        at = self._at
        await at.link.query("ROLLBACK TO SAVEPOINT icefield_statement")
        after = await self._probe()
        known = at.shadows.by_oid()
        unfilled = known.keys() - self._fills.oids
        more = law.scanned(before, after) & unfilled
        # A row that was written may have met a key that an unfilled shadow does not know to be taken.
        written = law.rows_written(before, after) & unfilled
        scope.reads |= more | written
        return bool(more or any(known[oid].has_keys for oid in written))

    def _grows(self, work: Work, before: Trace, after: Trace, scope: _Scope) -> bool:
        """Whether the statement touched what was not filled for it: then ``scope`` has it now."""
        known = self._at.shadows.by_oid()
        if scope.plans_only:
            return False
        written = law.written(before, after) & known.keys() - scope.written
        if scope.truncates:
            scope.targets, written = written, set()
        scope.changed(written)
        if scope.truncates:
            return False
        touched = law.scanned(before, after) | law.read_locked(before, after)
        read = touched & known.keys() - self._fills.oids
        scope.reads |= read
        return bool(read or written)

    # what it changed ------------------------------------------------------------------------------------------------

    async def _settle(self, work: Work, spool: Spool, before: Trace, after: Trace, scope: _Scope) -> None:
        """The statement was right: write what it changed, and take the fills away without undoing anything else."""
        at = self._at
        if scope.truncates:
            await self._truncate(work.statement, scope)
        else:
            await self._write(work, scope)
        if self._fills.route.told:
            spool.notice(self._fills.route.text())
        if not self._fills.oids and not scope.writes:
            await at.link.query(_KEEP)
            return
        known = at.shadows.by_oid()
        declares = work.statement.tokens[0].word == "declare"
        if declares and not (work.analysis and work.analysis.harmless):
            await self._refuse_late_readers()
        local_writes = law.written(before, after) - known.keys()
        if (scope.plain or scope.truncates) and not local_writes and not declares:
            await at.link.query(_UNDO)
            return
        # Something else happened, too, that must stay; an open cursor keeps the rows that it saw.
        await at.link.query("RELEASE SAVEPOINT icefield_statement")
        await self._fills.empty(also=known.get(scope.append or 0))
        await at.link.query(_KEEP)
        if declares:
            at.cursor_shadows |= self._fills.oids

    async def _refuse_late_readers(self) -> None:
        """A cursor's functions run at FETCH (or COMMIT), when its fill is gone; a volatile one would see that."""
        own = await self._at.link.query(
            "SELECT FROM pg_catalog.pg_proc WHERE oid OPERATOR(pg_catalog.>=) 16384"
            " AND proname OPERATOR(pg_catalog.!~) '^icefield_' LIMIT 1"
        )
        if own.rows:
            raise PgError(
                "0A000",
                "a cursor over lake tables with views or functions of your own is not supported",
                hint="Run the query without a cursor, or put the view's query into it.",
            )

    async def _write(self, work: Work, scope: _Scope) -> None:
        """Every table that the statement changed, each in one snapshot."""
        verb = _VERBS.get(work.statement.tokens[0].word, "merge")
        found: list[tuple[Target, Difference]] = []
        for target in self._fills.targets():
            difference = await changes.read(self._at.link, target)
            if not difference.empty:
                found.append((target, difference))
        if scope.append is not None:
            shadow = self._at.shadows.by_oid()[scope.append]
            target = self._fills.appended(shadow)
            difference = await changes.read(self._at.link, target)
            if difference.rows.num_rows:
                self._at.filled(shadow.key, difference.rows.num_rows)
                found.append((target, difference))
        if found:
            await self._at.enter(write=True)
        for target, difference in found:
            async with self._at.statement(strict=target.shadow.oid != scope.append):
                changed = await self._change(target, difference, verb)
            self._fills.route.wrote(target.shadow, difference, changed)
            self._at.touched_lake()

    async def _change(self, target: Target, difference: Difference, verb: str) -> Changed:
        if target.origin.source is None:
            count = await self._rows.append(target.shadow, difference.rows)
            return Changed(rows_written=count, way="append")
        change = RowChange(target.origin.source, verb, target.origin.deleted(difference.deleted), target.origin.alive())
        changed = await self._rows.change(target.shadow, change, difference.rows)
        if (changed.rows_written, changed.rows_deleted) != (difference.rows.num_rows, len(difference.deleted)):
            raise PgError(
                "40001",
                f'could not serialize access to "{target.shadow}": {changed.rows_deleted} of {len(difference.deleted)}'
                f" rows were matched and {changed.rows_written} of {difference.rows.num_rows} written",
            )
        return changed

    async def _truncate(self, statement: Statement, scope: _Scope) -> None:
        """TRUNCATE reads no rows: every file of the tables goes."""
        known = self._at.shadows.by_oid()
        shadows = sorted((known[oid] for oid in scope.targets), key=str)
        for shadow in shadows:
            shadow.check_writable()
            if shadow.sequences and "restart" in (token.word for token in statement.tokens):
                raise PgError(
                    "0A000",
                    f'RESTART IDENTITY is not supported for a lake table ("{shadow}")',
                    hint="Its numbers are shared by all sessions and branches, and no number is given twice.",
                )
        if scope.targets:
            await self._at.enter(write=True)
        for shadow in shadows:
            async with self._at.statement(strict=True):
                changed = await self._rows.truncate(shadow, await self._at.snapshot_of(shadow))
            self._fills.route.wrote(shadow, None, changed)
            self._at.touched_lake()

    # for DDL --------------------------------------------------------------------------------------------------------

    async def fill_for_ddl(self, shadow: Shadow) -> None:
        """All rows under the shadow, in the savepoint of the caller, so that the brain checks them."""
        trace = await self._probe()
        await self._fills.begin(trace.max_rows, None)
        await self._fills.put(shadow.key, change=True, keeps_constraints=True)

    async def rewrite(self, shadow: Shadow, columns: Sequence[str]) -> None:
        """Every row of the table anew, with the columns' DEFAULT: what ADD COLUMN … DEFAULT means to old rows."""
        at = self._at
        scope = _Scope(targets={shadow.oid}, plain=True)
        values = ", ".join(f"{_ident(name)} = DEFAULT" for name in columns)
        text = f"UPDATE ONLY {shadow.sql_name} SET {values}"
        work = Work(split(text)[0], Other(), encode(m.Query(text)), None)
        spool = await self._rounds(work, scope, None)
        spool.close()
        at.touched_lake()

    # the brain ------------------------------------------------------------------------------------------------------

    async def _probe(self, first: str = "", *, read_only: bool = False) -> Trace:
        parts = [first, law.PROBE]
        if read_only:
            parts.append("SET TRANSACTION READ ONLY")
        result = await self._at.link.query("; ".join(part for part in parts if part))
        return read_trace(result.rows)

    async def _ask(self, request: bytes, copy_source: CopySource | None) -> _Outcome:
        """The brain's answer to the client's statement, without ReadyForQuery."""
        spool = Spool()
        error: PgError | None = None
        try:
            async for run in self._at.link.relay(request):
                if run.kind in b"Z12":
                    continue
                if run.kind == b"S":
                    continue  # told to the client at the end, by what the link has noted
                if run.kind == b"E":
                    error = error or _error(run.data)
                elif run.kind == b"G":
                    if copy_source is None:
                        await self._at.link.send(encode(m.CopyFail("COPY FROM STDIN is not supported here")))
                    else:
                        await copy_source(run.data)
                else:
                    spool.add(run)
        except BaseException:
            spool.close()
            raise
        return _Outcome(spool, error)

    def _explained(self, error: PgError) -> PgError:
        """The brain's error, or ours where the brain could not know better: a table that is there but not shown."""
        at = self._at
        if error.sqlstate == "42P01":
            for left_out in at.shadows.left_out.values():
                names = (left_out.name, f"{left_out.schema}.{left_out.name}", f"{at.brain.database}.{left_out}")
                if any(f'"{name}"' in error.message for name in names):
                    return PgError(
                        "0A000",
                        f'table "{left_out}" cannot be shown here: {left_out.reason}',
                        hint=left_out.hint,
                        position=error.position,
                    )
        taken = _TAKEN_AWAY.search(error.message) if error.sqlstate == "42501" else None
        if taken:
            return PgError(
                "0A000",
                f"{taken[1]}() is not supported: no other session would see what it does",
                position=error.position,
            )
        if "icefield_guard()" in error.fields.get("W", ""):
            return PgError(error.sqlstate, error.message, hint=error.hint)
        if error.sqlstate == "25001" and not at.explicit and "transaction block" in error.message:
            what = error.message.partition(" cannot run ")[0]
            return PgError("0A000", f"{what} is not supported here", hint="Every statement runs in a transaction.")
        return error


def _error(data: bytes) -> PgError:
    message = decode_backend(Frame(b"E", data[5:]))
    assert isinstance(message, m.ErrorResponse)
    return PgError.from_fields(message.fields)


def _may_extend(error: PgError) -> bool:
    return error.sqlstate == EXHAUSTED


def _ident(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _plans_only(statement: Statement) -> bool:
    """Looks at tables' columns, but not at rows: EXPLAIN without ANALYZE, CREATE VIEW, CREATE FUNCTION."""
    first = statement.tokens[0].word
    if first == "explain":
        return not any(token.word in ("analyze", "analyse") for token in statement.tokens)
    if first == "create":
        head: Sequence[str] = statement.words(6)
        return any(word in ("view", "function", "procedure") for word in head) and "materialized" not in head
    return False


def _refuse_unseen_scans(statement: Statement) -> None:
    """Two scans are not counted, so that inside a function that fails, or catches a failure, nobody would see them."""
    first = statement.tokens[0].word
    if first != "do" and not (first == "create" and {"function", "procedure"} & set(statement.words(4))):
        return
    body = statement.text.lower()
    if "tablesample" in body or ("ctid" in body and "exception" in body):
        raise PgError(
            "0A000",
            "TABLESAMPLE, and ctid together with EXCEPTION, are not supported inside functions and DO",
            hint="Write the query as a statement of its own.",
        )
