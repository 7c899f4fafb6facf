"""The simple protocol: a text of one or more statements, which together are one implicit transaction.

A text of one statement commits before its answer is told, and runs again if that meets a conflict (``retries.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from icefield.pgwire import messages as m
from icefield.pgwire.brain_link import SYNC
from icefield.pgwire.codec import encode
from icefield.pgwire.errors import PgError
from icefield.pgwire.session import Sink
from icefield.sql.client import BRAIN_KINDS, Client, brain_error, may_write, runs_again, shifted
from icefield.sql.copy_source import CopySource
from icefield.sql.execution import Work
from icefield.sql.lexer import Statement, blank
from icefield.sql.spool import Spool
from icefield.sql.statements import NOT_POSTGRES, Kind, Local, Other, classify


class SimpleProtocol:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def query(self, text: str, out: Sink) -> tuple[Statement, ...]:
        """Runs it; says which statements it was."""
        client = self._client
        client.check_encoding(text)
        client.interrupts.noticed(text)
        pieces = [piece for piece in client.split(text) if not piece.empty]
        if not pieces:
            out.write(m.EmptyQueryResponse())
            return ()
        kinds: list[Kind] = []
        for piece in pieces:
            try:
                kinds.append(classify(piece))
            except PgError as error:
                raise shifted(error, piece.start) from None
        if len(pieces) > 1:
            await self._check_syntax(text, pieces, kinds)
        for at, (piece, kind) in enumerate(zip(pieces, kinds, strict=True)):
            try:
                client.interrupts.check()
                write = any(may_write(p, k) for p, k in zip(pieces[at:], kinds[at:], strict=True))
                async with client.interrupts.timed():
                    spool = await self._statement(piece, kind, out, alone=len(pieces) == 1, write=write)
                with spool:
                    await spool.deliver(out)
            except PgError as error:
                raise shifted(error, piece.start) from error
        return tuple(pieces)

    async def _check_syntax(self, text: str, pieces: Sequence[Statement], kinds: Sequence[Kind]) -> None:
        """As PostgreSQL does: a syntax error anywhere in the text, and nothing of it is run."""
        link, standing = self._client.link, self._client.standing
        if standing.failed:
            return
        judged = list(text)
        for piece, kind in zip(pieces, kinds, strict=True):
            if isinstance(kind, NOT_POSTGRES):
                judged[piece.start : piece.start + len(piece.text)] = blank(piece.text)
            else:
                judged[piece.start : piece.start + len(piece.text)] = getattr(kind, "brain_text", piece.text)
        request = encode(m.Parse("", "".join(judged) + "\n;SELECT 1;SELECT 1")) + SYNC
        guarded = standing.open
        if guarded:
            await link.query("SAVEPOINT icefield_syntax")
        error: PgError | None = None
        async for run in link.relay(request):
            if run.kind == b"E":
                error = brain_error(run.data)
        if error is not None and error.fields.get("R") != "exec_parse_message":
            raise error
        if guarded:
            await link.query("ROLLBACK TO SAVEPOINT icefield_syntax; RELEASE SAVEPOINT icefield_syntax")

    async def _statement(self, piece: Statement, kind: Kind, out: Sink, *, alone: bool, write: bool) -> Spool:
        client = self._client
        alone = alone and not client.standing.open
        if not isinstance(kind, BRAIN_KINDS):
            if alone and runs_again(kind):
                return await client.retries.run(lambda: client.own.run(piece, kind))
            return await client.own.run(piece, kind)
        if isinstance(kind, Local) and alone and kind.name != "prepare":
            return await client.execution.run(Work(piece, kind, encode(m.Query(piece.text)), None))
        client.refuse_outside_block(piece)
        with CopySource(client.link, out, client.interrupts.check) as source:
            if alone and runs_again(kind):
                return await client.retries.run(lambda: self._brains(piece, kind, source, write))
            return await self._brains(piece, kind, source, write)

    async def _brains(self, piece: Statement, kind: Kind, source: CopySource, write: bool) -> Spool:
        client = self._client
        await client.enter(write=write)
        request = encode(m.Query(piece.text))
        if client.standing.failed:
            return await client.execution.run(Work(piece, kind, request, None))
        analysis = await client.execution.analyse(piece) if isinstance(kind, Other) else None
        return await client.execution.run(Work(piece, kind, request, analysis), source)
