"""The one place that picks implementations and wires them: settings in, a running server out."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from icefield.catalog import branches
from icefield.config import Settings
from icefield.graph.graph import Graph
from icefield.model.effects import Clock, Randomness, SystemClock, SystemRandomness
from icefield.model.errors import Unavailable
from icefield.rest.http import Routes
from icefield.rest.iceberg import IcebergRoutes
from icefield.rest.management import ManagementRoutes
from icefield.rest.server import RestApplication
from icefield.store.port import Store
from icefield.store.records import SettingRecord
from icefield.store.sql.sqlite import open_sqlite
from icefield.transaction.core import Core
from icefield.transaction.metadata_files import MetadataFiles
from icefield.transaction.sessions import Sessions
from icefield.transaction.tickets import Tickets
from icefield.volume.local import LocalVolume
from icefield.volume.port import Volume

log = logging.getLogger(__name__)

STORE_FILE = "icefield.db"
LOCK_FILE = "lock"
WAREHOUSE = "warehouse"
SWEEP_EVERY_S = 1.0
KEEP_ALIVE_S = 75


@dataclass(frozen=True, slots=True)
class Application:
    core: Core
    sessions: Sessions
    rest: RestApplication

    def close(self) -> None:
        self.rest.close()
        self.core.store.close()


def create(
    settings: Settings,
    *,
    store: Store | None = None,
    volume: Volume | None = None,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
) -> Application:
    """Everything but the socket. Tests hand in their own clock, store or volume."""
    settings.data.mkdir(parents=True, exist_ok=True)
    clock = clock or SystemClock()
    randomness = randomness or SystemRandomness()
    store = store or open_sqlite(settings.data / STORE_FILE)
    if volume is None:
        warehouse = settings.data / WAREHOUSE
        warehouse.mkdir(exist_ok=True)
        volume = LocalVolume(warehouse)
    graph = Graph(store, clock, randomness)
    core = Core(
        store=store,
        graph=graph,
        volume=volume,
        clock=clock,
        randomness=randomness,
        metadata=MetadataFiles(volume),
        tickets=Tickets(),
        load_token_key=_load_token_key(store, randomness),
    )
    if settings.repo not in [repo["name"] for repo in branches.repos(core)]:
        branches.create_repo(core, settings.repo, {})
    sessions = Sessions(core, lease_ms=settings.lease_ms)
    routes = Routes()
    ManagementRoutes(core, sessions, settings.repo, str(settings.data.resolve())).register(routes)
    IcebergRoutes(core, sessions, settings.repo).register(routes)
    return Application(core, sessions, RestApplication(routes))


def _load_token_key(store: Store, randomness: Randomness) -> bytes:
    """Made once per store, so that load tokens live through a restart."""
    with store.write() as writer:
        record = writer.get(SettingRecord, "load-token-key")
        if record is None:
            record = SettingRecord("load-token-key", randomness.token() + randomness.token())
            writer.insert(record)
    return record.value.encode()


def serve(settings: Settings, *, until_idle_s: float | None = None) -> None:
    """Runs the server in the foreground until SIGTERM or SIGINT (or, if asked, until nobody used it for a while)."""
    settings.data.mkdir(parents=True, exist_ok=True)
    with _owned(settings.data), contextlib.closing(create(settings)) as application:
        listener = _listen(settings)
        port = listener.getsockname()[1]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        url = f"http://{host}:{port}"
        server = uvicorn.Server(
            uvicorn.Config(
                application.rest,
                http="httptools",
                loop="auto",
                log_config=None,
                access_log=False,
                lifespan="on",
                timeout_keep_alive=KEEP_ALIVE_S,
                server_header=False,
                timeout_graceful_shutdown=10,
            )
        )
        _stop_on_signals(server)
        stopping = threading.Event()
        housekeeping = threading.Thread(
            target=_housekeep, args=(application, server, stopping, until_idle_s), name="housekeeping", daemon=True
        )
        told = {"url": url, "pid": os.getpid(), "repo": settings.repo, "data": str(settings.data.resolve())}
        with _announced(settings.server_file, told):
            housekeeping.start()
            log.info("server listens on %s, loopback only: there are no principals in this version", url)
            print(f"ready {json.dumps(told)}", flush=True)
            try:
                server.run(sockets=[listener])
            finally:
                stopping.set()
                housekeeping.join(timeout=10)
        log.info("server stopped")


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise Unavailable(f"port {settings.port} on {settings.host} cannot be used: {error.strerror}") from None
    listener.listen(1024)
    return listener


def _stop_on_signals(server: uvicorn.Server) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    # uvicorn would raise the signal again after its own clean stop, and the exit code would say "killed".
    server.capture_signals = contextlib.nullcontext
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def _housekeep(
    application: Application, server: uvicorn.Server, stopping: threading.Event, until_idle_s: float | None
) -> None:
    """Rolls back transactions whose owner stopped its heartbeat."""
    while not stopping.wait(SWEEP_EVERY_S):
        try:
            application.sessions.sweep()
            if until_idle_s is not None and time.monotonic() - application.rest.last_request > until_idle_s:
                if application.sessions.count_open() == 0:
                    server.should_exit = True
                else:
                    application.rest.last_request = time.monotonic()
        except Exception:
            log.exception("housekeeping failed; it goes on")


@contextlib.contextmanager
def _owned(data: Path) -> Iterator[None]:
    """A data folder has one owner. The lock goes with the process, however it ends."""
    with (data / LOCK_FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Unavailable(
                f"another server runs on {data}: use that one (icefield.connect({str(data)!r}) joins it), "
                "or stop it first"
            ) from None
        yield


@contextlib.contextmanager
def _announced(path: Path, told: dict[str, object]) -> Iterator[None]:
    """Where this server is, for those who know only the folder."""
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(told), encoding="utf-8")
    partial.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        sys.stdout.flush()
