"""One client's SQL session: what pgwire's server asks of it, and how each of its calls ends.

Every call is done by one of the protocols (``simple.py``, ``extended.py``), may be stopped while it runs
(``interrupts.py``), and ends with brain and lake where the answer says they are.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from icefield.model.errors import IcefieldError
from icefield.pgwire import messages as m
from icefield.pgwire.brain_link import BrainLink
from icefield.pgwire.errors import PgError
from icefield.pgwire.session import Sink
from icefield.pgwire.sqlstate import to_pg_error
from icefield.sql.brain.pool import Brain
from icefield.sql.branches import Branches
from icefield.sql.client import Client
from icefield.sql.ddl.lake_ddl import Ddl
from icefield.sql.execution import Execution
from icefield.sql.extended import ExtendedProtocol
from icefield.sql.fill import TableRows
from icefield.sql.interrupts import Interrupts
from icefield.sql.lake import LakeSession
from icefield.sql.own import Own
from icefield.sql.retries import Retries
from icefield.sql.simple import SimpleProtocol
from icefield.sql.standing import Standing

log = logging.getLogger("icefield.sql")


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
    interrupts: Interrupts = field(init=False)
    _retries: Retries = field(init=False)
    _simple: SimpleProtocol = field(init=False)
    _extended: ExtendedProtocol = field(init=False)
    _told: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.standing = Standing(self.brain, self.link, self.lake, self._new_session)
        self.execution = Execution(self.standing, self.table_rows)
        self.ddl = Ddl(self.standing, self.execution.fill_for_ddl, self.execution.rewrite)
        self.interrupts = Interrupts(self.link, self.table_rows)
        self._retries = Retries(self.standing, self.interrupts)
        branches = Branches(self.standing, self.interrupts)
        own = Own(
            self.standing,
            self.execution,
            self.ddl,
            branches,
            self._retries,
            self.interrupts,
            self.link,
            self._transaction_ended,
        )
        client = Client(self.link, self.standing, self.execution, own, self._retries, self.interrupts)
        self._simple = SimpleProtocol(client)
        self._extended = ExtendedProtocol(client)
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
        async with self._call(out):
            await self._extended.before_simple(out)
            for piece in await self._simple.query(message.sql, out):
                self._extended.forget_statements(piece)
            await self._leave()

    async def parse(self, message: m.Parse, out: Sink) -> None:
        async with self._call(out):
            await self._extended.take(message, out)

    async def bind(self, message: m.Bind, out: Sink) -> None:
        async with self._call(out):
            await self._extended.take(message, out)

    async def describe(self, message: m.Describe, out: Sink) -> None:
        async with self._call(out):
            await self._extended.take(message, out)

    async def close(self, message: m.Close, out: Sink) -> None:
        async with self._call(out):
            await self._extended.take(message, out)

    async def execute(self, message: m.Execute, out: Sink) -> None:
        async with self._call(out):
            await self._extended.take(message, out)

    async def flush(self, out: Sink) -> None:
        async with self._call(out):
            await self._extended.flush(out)

    async def sync(self, out: Sink) -> None:
        async with self._call(out):
            await self._extended.sync(out)
            await self._leave()

    async def cancel(self) -> None:
        self.interrupts.request()

    async def close_session(self) -> None:
        async with contextlib.AsyncExitStack() as after:
            for close in (self.brain.close, self.lake.close, self.table_rows.close, self.standing.close):
                after.push_async_callback(close)  # the last one first
            self._extended.close()
            await self.interrupts.forget()

    # ends -----------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _call(self, out: Sink) -> AsyncIterator[None]:
        await self.interrupts.forget()
        try:
            yield
        except BaseException as error:
            raise await self._failed(error) from error
        finally:
            await self.interrupts.forget()
            self._tell_parameters(out)

    async def _leave(self) -> None:
        if self.standing.open and not self.standing.explicit:
            await self._retries.leave()
        if not self.standing.open:
            self._extended.drop_portals()

    def _transaction_ended(self) -> None:
        self._extended.drop_portals()

    async def _failed(self, error: BaseException) -> BaseException:
        """Bring brain and lake to where the error leaves them; what the client is to hear."""
        self._extended.failed()
        try:
            async with self.interrupts.shielded():
                await self.standing.fail()
        except PgError as worse:
            log.warning("the brain could not be brought back after an error: %s", worse)
            return worse
        if not self.standing.open:
            self._extended.drop_portals()
        if self.link.closed and isinstance(error, PgError) and not error.fatal:
            return PgError.from_fields(error.to_fields() | {"S": "FATAL", "V": "FATAL"})
        if isinstance(error, IcefieldError):
            error = to_pg_error(error)
        return self.interrupts.explained(error)

    def _tell_parameters(self, out: Sink) -> None:
        for name, value in self.link.parameters.items():
            if self._told.get(name) != value:
                self._told[name] = value
                out.write(m.ParameterStatus(name, value))
