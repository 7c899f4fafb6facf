"""A session that hands everything to a real PostgreSQL and back: what is left of the SQL door without Icefield."""

from __future__ import annotations

from collections.abc import Mapping

from icefield.pgwire import brain_link as bl
from icefield.pgwire import messages as m
from icefield.pgwire.brain_link import FLUSH, SYNC, BrainLink
from icefield.pgwire.codec import decode_run, encode
from icefield.pgwire.errors import PgError
from icefield.pgwire.session import Sink
from icefield.sql.brain.cluster import Cluster


class RelaySession:
    def __init__(self, link: BrainLink) -> None:
        self.link = link

    @property
    def parameters(self) -> Mapping[str, str]:
        return self.link.parameters

    @property
    def transaction_status(self) -> bytes:
        return self.link.transaction_status

    async def simple_query(self, message: m.Query, out: Sink) -> None:
        if "boom" in message.sql:
            raise ZeroDivisionError("a fault in the session, on purpose")
        await self._relay(encode(message), bl.READY, out)

    async def parse(self, message: m.Parse, out: Sink) -> None:
        await self._relay(encode(message) + FLUSH, bl.PARSED, out)

    async def bind(self, message: m.Bind, out: Sink) -> None:
        await self._relay(encode(message) + FLUSH, bl.BOUND, out)

    async def describe(self, message: m.Describe, out: Sink) -> None:
        await self._relay(encode(message) + FLUSH, bl.DESCRIBED, out)

    async def execute(self, message: m.Execute, out: Sink) -> None:
        await self._relay(encode(message) + FLUSH, bl.EXECUTED, out)

    async def close(self, message: m.Close, out: Sink) -> None:
        await self._relay(encode(message) + FLUSH, bl.CLOSED, out)

    async def flush(self, out: Sink) -> None:
        pass

    async def sync(self, out: Sink) -> None:
        await self._relay(SYNC, bl.READY, out)

    async def cancel(self) -> None:
        await self.link.cancel()

    async def close_session(self) -> None:
        await self.link.close()

    async def _relay(self, request: bytes, until: bytes, out: Sink) -> None:
        error: PgError | None = None
        async for run in self.link.relay(request, until=until):
            match run.kind:
                case b"Z":
                    pass
                case b"E":
                    message = decode_run(run)
                    assert isinstance(message, m.ErrorResponse)
                    error = error or PgError.from_fields(message.fields)
                case b"G":
                    out.write(run.data)
                    await self._copy_in(out)
                case _:
                    out.write(run.data)
                    await out.drain()
        if error is not None:
            raise error

    async def _copy_in(self, out: Sink) -> None:
        while True:
            message = await out.read_copy()
            await self.link.send(encode(message))
            if not isinstance(message, m.CopyData):
                return


class RelayFactory:
    """Opens sessions on a cluster, as its superuser, in the database the client asks for."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.sessions: list[RelaySession] = []

    async def __call__(self, startup: Mapping[str, str], backend_key: tuple[int, int]) -> RelaySession:
        options = {k: v for k, v in startup.items() if k not in ("user", "database")}
        link = await BrainLink.open(
            self.cluster.socket_dir,
            user=self.cluster.superuser,
            password=self.cluster.superuser_password,
            database=startup["database"],
            options=options,
        )
        session = RelaySession(link)
        self.sessions.append(session)
        return session
