from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
import pytest
from relay_session import RelayFactory

from icefield.pgwire.server import Limits, PgServer
from icefield.sql.brain.cluster import BrainTemplate, Cluster

T = TypeVar("T")


@pytest.fixture(scope="session")
def template() -> BrainTemplate:
    return BrainTemplate()


@pytest.fixture(scope="session")
def cluster(template: BrainTemplate) -> Iterator[Cluster]:
    with Cluster.clone(template, settings={"max_connections": "40"}) as cluster:
        yield cluster


@dataclass
class Door:
    """A running server with relay sessions, on a loop of its own."""

    server: PgServer
    factory: RelayFactory
    loop: asyncio.AbstractEventLoop

    @property
    def port(self) -> int:
        return self.server.port

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 60) -> T:
        return self.submit(work).result(timeout_s)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def connect(self, **kwargs: Any) -> psycopg.Connection[Any]:
        defaults = {"host": "127.0.0.1", "port": self.port, "user": "somebody", "dbname": "postgres"}
        return psycopg.connect(**(defaults | kwargs))


@pytest.fixture
def open_door(cluster: Cluster) -> Iterator[Callable[..., Door]]:
    doors: list[Door] = []
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="door")
    thread.start()

    def make(limits: Limits | None = None, on: Cluster = cluster) -> Door:
        factory = RelayFactory(on)
        door = Door(PgServer(factory, limits=limits), factory, loop)
        door.run(door.server.start())
        doors.append(door)
        return door

    try:
        yield make
    finally:
        for door in doors:
            door.run(door.server.stop(grace_s=1))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def door(open_door: Callable[..., Door]) -> Door:
    return open_door()
