"""The store's implementations. A new one is a line here, and every test of the contract runs on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from icefield.store.memory import MemoryStore
from icefield.store.port import Store
from icefield.store.sql.sqlite import open_sqlite

IMPLEMENTATIONS: Mapping[str, Callable[[Path], Store]] = {
    "memory": lambda folder: MemoryStore(),
    "sqlite": lambda folder: open_sqlite(folder / "store.db"),
}
