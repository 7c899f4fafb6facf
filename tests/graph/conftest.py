from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from icefield.graph.graph import Graph
from icefield.store.memory import MemoryStore
from icefield.store.port import Store
from icefield.store.sql.sqlite import open_sqlite

from .samples import Counting, HandClock


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store = MemoryStore() if request.param == "memory" else open_sqlite(tmp_path / "store.db")
    yield opened
    opened.close()


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def graph(store: Store, clock: HandClock) -> Graph:
    return Graph(store, clock, Counting())
