"""The SQL door: PostgreSQL's protocol in front, one brain and one server session per client behind.

``serve_sql`` runs until it is cancelled or told to stop; ``python -m icefield.sql.door`` is the process that
``icefield up`` supervises: ``ready {"port": …}`` on stdout when it listens, a clean end on SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from icefield import telemetry
from icefield.engine.port import Engine
from icefield.engine.spark.remote import SparkEngine
from icefield.model.errors import BadRequest, IcefieldError, NoSuchRef, NoSuchRepo
from icefield.model.names import DEFAULT_REPO, parse_address
from icefield.pgwire.errors import PgError
from icefield.pgwire.server import PgServer
from icefield.sql.brain.pool import BrainPool
from icefield.sql.fill import TableRows
from icefield.sql.lake import LakeSession
from icefield.sql.session import SqlSession

_ENGINE_THREADS = 64


class Sessions:
    """pgwire's session factory."""

    def __init__(self, *, server_url: str, engine: Engine, pool: BrainPool, executor: ThreadPoolExecutor) -> None:
        self._server_url = server_url
        self._engine = engine
        self._pool = pool
        self._executor = executor

    async def __call__(self, startup: Mapping[str, str], backend_key: tuple[int, int]) -> SqlSession:
        database = startup.get("database") or DEFAULT_REPO
        lake = await self._open_lake(database)
        try:
            brain = await self._pool.take(database, startup["user"])
            try:
                options = {k: v for k, v in startup.items() if k not in ("user", "database", "replication")}
                link = await brain.open_client(options)
            except BaseException:
                await brain.close()
                raise
        except BaseException:
            await lake.close()
            raise
        rows = TableRows(self._engine, self._executor, lake.address, lake.token)
        return SqlSession(brain, link, lake, rows)

    async def _open_lake(self, database: str) -> LakeSession:
        try:
            address = parse_address(database)
            if address.session is not None:
                raise BadRequest("a session's address is not a database")
            return await LakeSession.open(self._server_url, address.repo, address.ref)
        except (BadRequest, NoSuchRepo, NoSuchRef) as error:
            raise PgError(
                "3D000",
                f'database "{database}" does not exist',
                detail=error.message,
                hint="A database is a repo (lake), or a repo and one of its refs (lake@dev).",
                severity="FATAL",
            ) from error


async def serve_sql(
    host: str,
    port: int,
    *,
    server_url: str,
    engine: Engine,
    max_fetched_rows: int = 5_000_000,
    spares: int = 1,
    on_ready: Callable[[int], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until ``stop`` is set (or the task is cancelled); then everything that was started is gone."""
    pool = BrainPool(spares=spares, max_rows=max_fetched_rows)
    executor = ThreadPoolExecutor(_ENGINE_THREADS, thread_name_prefix="icefield-engine")
    sessions = Sessions(server_url=server_url, engine=engine, pool=pool, executor=executor)
    server = PgServer(sessions, host=host, port=port)
    try:
        await pool.start()
        await server.start()
        if on_ready is not None:
            on_ready(server.port)
        await (stop or asyncio.Event()).wait()
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await server.stop()
        await pool.close()
        executor.shutdown(wait=False, cancel_futures=True)


async def _run(args: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    engine = SparkEngine(args.engine_socket)
    print("progress preparing the embedded PostgreSQL", flush=True)

    def ready(port: int) -> None:
        print("ready", json.dumps({"host": args.host, "port": port, "pid": os.getpid()}), flush=True)

    try:
        await serve_sql(
            args.host,
            args.port,
            server_url=args.server,
            engine=engine,
            max_fetched_rows=args.max_fetched_rows,
            spares=args.spares,
            on_ready=ready,
            stop=stop,
        )
    finally:
        engine.close()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="icefield.sql.door", description="Icefield's PostgreSQL door")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True, help="0 picks a free one")
    parser.add_argument("--server", required=True, help="the server's address, as http://127.0.0.1:8181")
    parser.add_argument("--engine-socket", required=True, help="the engine's unix socket")
    parser.add_argument("--data", help="the data folder; the door keeps nothing in it")
    most = os.environ.get("ICEFIELD_MAX_FETCHED_ROWS", "5000000")
    parser.add_argument("--max-fetched-rows", type=int, default=most, help="by one statement, unless its session says")
    parser.add_argument("--spares", type=int, default=1, help="how many brains are kept warm")
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--log-format", default="auto")
    args = parser.parse_args(argv)
    telemetry.configure(args.log_level, args.log_format)
    try:
        asyncio.run(_run(args))
    except (IcefieldError, PgError, OSError) as error:
        print(f"icefield: the SQL door could not be started: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
