"""One running ``icefield up`` for the folder's end-to-end tests, and brains for those that need no lake."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import psycopg
import pytest

from icefield.sql.brain.pool import Brain, BrainPool
from support.up import Up

T = TypeVar("T")


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up(tmp_path_factory.mktemp("sql") / "lake").start()
    yield running
    running.stop()


@pytest.fixture
def client(up: Up) -> Iterator[psycopg.Connection]:
    with psycopg.connect(up.dsn(), autocommit=True) as connection:
        yield connection


class Loop:
    """An event loop that lives as long as a fixture: ``loop(coroutine)`` runs it to its end."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def close(self) -> None:
        self._runner.close()


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    running = Loop()
    yield running
    running.close()


@pytest.fixture(scope="module")
def brain(loop: Loop) -> Iterator[Brain]:
    pool = BrainPool(spares=0)
    taken = loop(pool.take("lake", "ann"))
    yield taken
    loop(taken.close())
    loop(pool.close())
