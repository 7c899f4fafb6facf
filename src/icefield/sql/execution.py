"""One statement, run by the brain over fills of what it reads, under the law of unfilled shadows.

The way of every statement that is not our own: what the brain's Parse says it reads is filled in a savepoint; the
original text runs in another; if it then turns out to have touched a shadow that was not filled (through a view, a
function, EXECUTE …), all is undone and done again with that one filled, too. Nothing reaches the client before.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from icefield.pgwire import messages as m
from icefield.pgwire.brain_link import SYNC
from icefield.pgwire.codec import Frame, decode_backend, decode_run, encode
from icefield.pgwire.errors import PgError
from icefield.sql import law, rows
from icefield.sql.analysis import ASK, Analysis, Command, read
from icefield.sql.fill import TableRows, too_many_rows
from icefield.sql.law import Trace, read_trace
from icefield.sql.shadows import Shadow
from icefield.sql.spool import Spool
from icefield.sql.standing import Standing
from icefield.sql.statements import CursorMove, Kind, Local, Statement

_ROUNDS = 10
_FILL = "SAVEPOINT icefield_fill"
_STATEMENT = "SAVEPOINT icefield_statement"
_UNDO = "ROLLBACK TO SAVEPOINT icefield_fill; RELEASE SAVEPOINT icefield_fill"
_KEEP = "RELEASE SAVEPOINT icefield_fill"
_TAKEN_AWAY = re.compile(r"permission denied for function (pg_notify|pg_\w*advisory\w*|lo_\w+)$")
DEFAULT_MAX_ROWS = 5_000_000


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


_ANALYSED = frozenset("select with values table insert update delete merge declare (".split())  # noqa: SIM905

CopySource = Callable[[bytes], Coroutine[Any, Any, None]]
"""Told the brain's CopyInResponse; sends the client's data to the brain."""


class Execution:
    def __init__(self, standing: Standing, table_rows: TableRows) -> None:
        self._at = standing
        self._rows = table_rows
        self._fill_xid: str | None = None
        """Of the rows that were put under an INSERT's target; None if there were none."""

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
        await self._judge_copy(work.statement)
        insert = self._judge(work)
        known = self._at.shadows.by_oid()
        reads = {known[oid] for oid in (work.analysis.reads if work.analysis else ()) if oid in known}
        if insert is None:
            await self._at.enter(write=False)
        return await self._rounds(work, reads, insert, copy_source)

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

    def _judge(self, work: Work) -> Shadow | None:
        """The lake table that a plain INSERT writes to; raises for every other write to one."""
        analysis = work.analysis
        if analysis is None:
            return None
        known = self._at.shadows.by_oid()
        hidden = ", ".join(sorted(str(known[oid]) for oid in analysis.hidden_writes if oid in known))
        if hidden:
            raise _refused(f"{analysis.command.name} through a view", hidden, "INSERT INTO the table itself.")
        targets = [known[oid] for oid in analysis.writes if oid in known]
        if not targets:
            return None
        names = ", ".join(sorted(str(t) for t in targets))
        if analysis.modifying_cte:
            raise _refused("a WITH clause that changes rows", names, "Write the INSERT as a statement of its own.")
        if analysis.command is not Command.INSERT:
            raise _refused(
                analysis.command.name, names, "In this version lake tables take INSERT; Spark can change their rows."
            )
        if analysis.on_conflict:
            raise _refused("INSERT … ON CONFLICT", names, "Lake tables have no unique keys yet: write a plain INSERT.")
        if analysis.returning:
            raise _refused("INSERT … RETURNING", names, "Leave RETURNING out and SELECT the rows afterwards.")
        return targets[0]

    async def _judge_copy(self, statement: Statement) -> None:
        """COPY … FROM must not begin for a lake table: its data cannot be asked for twice."""
        if statement.tokens[0].word != "copy":
            return
        end = next((token for token in statement.tokens[1:] if token.word == "from" or token.text == "("), None)
        if end is None or end.start == statement.tokens[1].start:
            return  # COPY (query) TO
        if not any(token.word == "from" for token in statement.tokens):
            return
        name = statement.text[statement.tokens[1].start : end.start].strip()
        found = await self._at.link.execute("SELECT pg_catalog.to_regclass($1)::pg_catalog.oid", [name])
        shadow = self._at.shadows.by_oid().get(int(found.scalar() or 0))
        if shadow is not None:
            raise _refused("COPY FROM", str(shadow), "Use INSERT, or COPY into a temporary table and INSERT … SELECT.")

    async def _rounds(
        self, work: Work, reads: set[Shadow], insert: Shadow | None, copy_source: CopySource | None
    ) -> Spool:
        at = self._at
        plans_only = _plans_only(work.statement)
        if plans_only:
            reads = set()
        plain = work.analysis is not None and work.analysis.plain
        for _ in range(_ROUNDS):
            await at.link.query(_FILL)
            filled = await self._fill(reads, work, plain, insert)
            before = await self._probe(_STATEMENT, read_only=at.read_only)
            outcome = await self._ask(work.request, copy_source)
            try:
                if outcome.error is not None:
                    more = await self._more_after_error(outcome.error, before, filled)
                    if not more:
                        raise self._explained(outcome.error)
                else:
                    after = await self._probe()
                    more = self._touched(work, before, after, filled, insert, plans_only)
                    if not more:
                        await self._settle(work, outcome.spool, before, after, filled, insert, plain)
                        return outcome.spool
                if copy_source is not None and _is_copy_in(work.statement):
                    raise PgError("0A000", "COPY FROM STDIN that makes functions read lake tables is not supported")
                await at.link.query(_UNDO)
            except BaseException:
                outcome.spool.close()
                raise
            outcome.spool.close()
            reads = reads | more
        raise PgError(
            "0A000",
            f"after {_ROUNDS} rounds the statement still reads lake tables that it did not read before",
            hint="Read the tables in the statement itself, and not in functions that choose them.",
        )

    async def _fill(self, reads: set[Shadow], work: Work, plain: bool, insert: Shadow | None) -> dict[int, Shadow]:
        """Rows under every shadow that is going to be read, and under those of which a read would not be seen."""
        at = self._at
        wanted = {shadow.key for shadow in reads}
        trace = await self._probe()
        if not plain and not _plans_only(work.statement):
            known = at.shadows.by_oid()
            wanted |= {known[oid].key for oid in law.held(trace, known.keys())}
        limit = _limit(trace.max_rows)
        filled: dict[int, Shadow] = {}
        left = limit
        for key in sorted(wanted):
            async with at.statement():
                shadow = await at.versioned(at.shadows.tables[key])
                count = 0

                def add(number: int) -> None:
                    nonlocal count
                    count += number

                columns = ", ".join(rows.quote_ident(c.name) for c in shadow.columns)
                chunks = self._rows.chunks(shadow, left, add)
                try:
                    await at.link.copy_in(
                        f"COPY {shadow.sql_name} ({columns}) FROM STDIN (FORMAT binary, ENCODING 'UTF8')", chunks
                    )
                except PgError as error:
                    if error.sqlstate == "54000":
                        raise too_many_rows(limit) from error
                    if error.sqlstate in ("22021", "23502"):
                        raise PgError(
                            "58030",
                            f'table "{shadow}" holds what PostgreSQL cannot: {error.message}',
                            detail=error.detail,
                            hint="It was written by another engine, which can read it.",
                        ) from error
                    raise
                finally:
                    await chunks.aclose()  # a COPY that failed has not read it to its end: the engine must be freed
            at.filled(key, count)
            left -= count
            filled[shadow.oid] = shadow
            if insert is not None and insert.oid == shadow.oid:
                # The fill and the statement run in different subtransactions, so that xmin tells their rows apart.
                one = await at.link.query(f"SELECT xmin::pg_catalog.text FROM ONLY {shadow.sql_name} LIMIT 1")
                self._fill_xid = one.scalar()
        return filled

    async def _more_after_error(self, error: PgError, before: Trace, filled: dict[int, Shadow]) -> set[Shadow]:
        """What an error may be due to: shadows that were scanned empty. Locks are gone by now, counters are not."""
        if error.fatal or error.sqlstate[:2] in ("57", "53"):
            return set()
        at = self._at
        await at.link.query("ROLLBACK TO SAVEPOINT icefield_statement")
        after = await self._probe()
        known = at.shadows.by_oid()
        return {known[oid] for oid in law.scanned(before, after) if oid in known and oid not in filled}

    def _touched(
        self,
        work: Work,
        before: Trace,
        after: Trace,
        filled: dict[int, Shadow],
        insert: Shadow | None,
        plans_only: bool,
    ) -> set[Shadow]:
        """Shadows that must be filled, too. Raises for those that were written to and should not have been."""
        known = self._at.shadows.by_oid()
        wrong = law.written(before, after) & known.keys() - ({insert.oid} if insert else set())
        if wrong and not (plans_only and work.statement.tokens[0].word == "explain"):
            names = ", ".join(sorted(str(known[oid]) for oid in wrong))
            raise _refused(
                _verb(work.statement),
                names,
                "In this version lake tables take CREATE, DROP, SELECT and plain INSERT, as statements of their own.",
            )
        touched = law.scanned(before, after)
        if not plans_only:
            touched |= law.read_locked(before, after)
        return {known[oid] for oid in touched & known.keys() - filled.keys()}

    async def _settle(
        self,
        work: Work,
        spool: Spool,
        before: Trace,
        after: Trace,
        filled: dict[int, Shadow],
        insert: Shadow | None,
        plain: bool,
    ) -> None:
        """The statement was right: write what it inserted, and take the fills away without undoing anything else."""
        at = self._at
        if insert is not None:
            await self._write(insert, filled)
        if not filled and insert is None:
            await at.link.query(_KEEP)
            return
        known = at.shadows.by_oid()
        declares = work.statement.tokens[0].word == "declare"
        if declares and not (work.analysis and work.analysis.harmless):
            await self._refuse_late_readers()
        local_writes = law.written(before, after) - known.keys()
        if plain and not local_writes and not declares:
            await at.link.query(_UNDO)
            return
        # Something else happened, too, that must stay; an open cursor keeps the rows that it saw.
        tables = {shadow.key: shadow for shadow in (*filled.values(), *([insert] if insert else []))}
        deletes = "; ".join(f"DELETE FROM ONLY {shadow.sql_name}" for shadow in tables.values())
        await at.link.query(f"RELEASE SAVEPOINT icefield_statement; {deletes}; {_KEEP}")
        if declares:
            at.cursor_shadows |= filled.keys()

    async def _refuse_late_readers(self) -> None:
        """A cursor's functions run at FETCH (or COMMIT), when its fill is gone; a volatile one would see that."""
        own = await self._at.link.query(
            "SELECT FROM pg_catalog.pg_proc WHERE oid OPERATOR(pg_catalog.>=) 16384"
            " AND proname OPERATOR(pg_catalog.<>) 'icefield_guard' LIMIT 1"
        )
        if own.rows:
            raise PgError(
                "0A000",
                "a cursor over lake tables with views or functions of your own is not supported",
                hint="Run the query without a cursor, or put the view's query into it.",
            )

    async def _write(self, target: Shadow, filled: dict[int, Shadow]) -> None:
        """The rows that the INSERT put under the shadow, into the lake, in one snapshot."""
        at, link = self._at, self._at.link
        source = f"ONLY {target.sql_name}"
        if target.oid in filled and self._fill_xid is not None:
            source += f" WHERE xmin::pg_catalog.text OPERATOR(pg_catalog.<>) '{self._fill_xid}'"
        check = rows.check_query(target.columns, source)
        if check is not None:
            answer = (await link.query(check)).rows[0]
            for column, bad in zip(rows.checked(target.columns), answer, strict=True):
                if bad == "t":
                    raise rows.refuse(column, str(target))
        await link.query("SAVEPOINT icefield_export; SET LOCAL extra_float_digits = 1")
        data = b"".join([part async for part in link.copy_out(rows.export_query(target.columns, source))])
        await link.query("ROLLBACK TO SAVEPOINT icefield_export; RELEASE SAVEPOINT icefield_export")
        if not data:
            return
        table = await asyncio.to_thread(rows.import_csv, data, target.columns)
        at.filled(target.key, table.num_rows)
        await at.enter(write=True)
        async with at.statement():
            await self._rows.append(target, table)
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


def _refused(what: str, tables: str, hint: str) -> PgError:
    return PgError("0A000", f"{what} is not supported on lake tables yet ({tables})", hint=hint)


def _error(data: bytes) -> PgError:
    message = decode_backend(Frame(b"E", data[5:]))
    assert isinstance(message, m.ErrorResponse)
    return PgError.from_fields(message.fields)


def _verb(statement: Statement) -> str:
    first, *rest = statement.words(2)
    two = first in ("explain", "refresh", "security", "import") and rest and rest[0]
    return f"{first} {rest[0]}".upper() if two else first.upper() or "this statement"


def _limit(setting: str | None) -> int:
    if not setting:
        return DEFAULT_MAX_ROWS
    try:
        limit = int(setting)
    except ValueError:
        limit = 0
    if limit < 1:
        raise PgError(
            "22023",
            f'invalid value for parameter "icefield.max_fetched_rows": "{setting}"',
            hint="It must be a whole number above 0.",
        )
    return limit


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


def _is_copy_in(statement: Statement) -> bool:
    return statement.tokens[0].word == "copy" and any(token.word == "stdin" for token in statement.tokens)
