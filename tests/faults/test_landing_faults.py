"""Every effect of every verb fails once, before and after it took hold. What was told is true, and asked again it
lands exactly once.

The effects are the store's write transactions and the volume's writes. ``before``: it fails and nothing was done.
``after``: it is done, and whoever asked never hears of it (the answer is lost, or the server dies right then).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from icefield.store.port import Store, StoreReader, StoreWriter
from icefield.store.sql.sqlite import open_sqlite
from icefield.volume.local import LocalVolume
from support.inprocess import Inprocess
from support.writer import Engine


class Broken(Exception):
    pass


class Faults:
    """Counts effects; the armed one fails."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.after = False

    def arm(self, number: int, *, after: bool) -> None:
        self.left, self.after = number, after

    def disarm(self) -> bool:
        """Did the armed effect happen?"""
        fired = self.left is not None and self.left < 0
        self.left = None
        return fired

    def due(self) -> bool:
        if self.left is None:
            return False
        self.left -= 1
        return self.left == -1


class FaultyStore:
    def __init__(self, store: Store, faults: Faults) -> None:
        self._store, self._faults = store, faults

    @contextmanager
    def read(self) -> Iterator[StoreReader]:
        with self._store.read() as reader:
            yield reader

    @contextmanager
    def write(self) -> Iterator[StoreWriter]:
        due = self._faults.due()
        with self._store.write() as writer:
            yield writer
            if due and not self._faults.after:
                raise Broken("the store failed before its commit")
        if due:
            raise Broken("the store committed, and its answer was lost")

    def close(self) -> None:
        self._store.close()


class FaultyVolume(LocalVolume):
    def __init__(self, folder: Path, faults: Faults) -> None:
        super().__init__(folder)
        self._faults = faults

    def write_new(self, files: dict[str, bytes]) -> None:
        due = self._faults.due() if files else False
        if due and not self._faults.after:
            raise Broken("the volume failed before it wrote")
        super().write_new(files)
        if due:
            raise Broken("the volume wrote, and its answer was lost")


class World:
    def __init__(self, folder: Path) -> None:
        self.faults = Faults()
        folder.mkdir()
        (folder / "warehouse").mkdir()
        self.lake = Inprocess(
            folder,
            store=FaultyStore(open_sqlite(folder / "icefield.db"), self.faults),
            volume=FaultyVolume(folder / "warehouse", self.faults),
        )
        self.lake.post("/v1/lake/namespaces", {"namespace": ["sales"]})
        self.main = Engine(self.lake, "lake", "sales", "orders")
        self.main.create(version=3)
        assert self.main.append_rows(1).status == 200
        self.lake.post("/api/v1/repos/lake/branches", {"name": "dev"})
        self.dev = Engine(self.lake, "lake@dev", "sales", "orders")

    def rows(self) -> int:
        return Engine(self.lake, "lake", "sales", "orders").rows()

    def session(self) -> tuple[str, str]:
        told = self.lake.post("/api/v1/sessions", {}).body
        return f"/api/v1/sessions/{told['id']}", told["token"]


Verb = Callable[[World], tuple[Callable[[], Any], Callable[[], int], int]]


def append(world: World) -> tuple[Callable[[], Any], Callable[[], int], int]:
    meta = world.main.load()
    body = world.main.body(meta, world.main.append(meta, 10))
    return lambda: world.main.post(body), world.rows, 11


def stale_append(world: World) -> tuple[Callable[[], Any], Callable[[], int], int]:
    meta = world.main.load()
    body = world.main.body(meta, world.main.append(meta, 10))
    world.main.append_rows(100)
    return lambda: world.main.post(body), world.rows, 111


def multi_table(world: World) -> tuple[Callable[[], Any], Callable[[], int], int]:
    other = Engine(world.lake, "lake", "sales", "other")
    other.create()
    changes = []
    for engine in (world.main, other):
        meta = engine.load()
        body = engine.body(meta, engine.append(meta, 10))
        changes.append({"identifier": {"namespace": ["sales"], "name": engine.table}, **body})
    count = lambda: world.rows() + other.rows()  # noqa: E731
    return lambda: world.lake.post("/v1/lake/transactions/commit", {"table-changes": changes}), count, 21


def transaction(world: World) -> tuple[Callable[[], Any], Callable[[], int], int]:
    session, token = world.session()
    address = world.lake.get(session, token=token).body["address"]
    id_ = world.lake.post(f"{session}/begin", token=token).body["transaction"]
    inside = Engine(world.lake, address, "sales", "orders", token=token)
    assert inside.append_rows(10).status == 200
    world.main.append_rows(100)
    return lambda: world.lake.post(f"{session}/commit", {"transaction-id": id_}, token=token), world.rows, 111


def staged(world: World) -> tuple[Callable[[], Any], Callable[[], int], int]:
    session, token = world.session()
    address = world.lake.get(session, token=token).body["address"]
    world.lake.post(f"{session}/begin", token=token)
    inside = Engine(world.lake, address, "sales", "orders", token=token)
    meta = inside.load()
    body = inside.body(meta, inside.append(meta, 10))

    def count() -> int:
        return Engine(world.lake, address, "sales", "orders", token=token).rows()

    return lambda: inside.post(body), count, 11


def fast_forward(world: World) -> tuple[Callable[[], Any], Callable[[], int], int]:
    world.dev.append_rows(10)
    body = {"from": "dev", "into": "main", "id": "merge-1"}
    return lambda: world.lake.post("/api/v1/repos/lake/merge", body), world.rows, 11


def true_merge(world: World) -> tuple[Callable[[], Any], Callable[[], int], int]:
    world.dev.append_rows(10)
    Engine(world.lake, "lake", "sales", "other").create()
    body = {"from": "dev", "into": "main", "id": "merge-1"}

    def count() -> int:
        merges = [c for c in world.lake.get("/api/v1/repos/lake/log").body["commits"] if c["operation"] == "merge"]
        assert len(merges) <= 1
        return world.rows()

    return lambda: world.lake.post("/api/v1/repos/lake/merge", body), count, 11


VERBS: tuple[Verb, ...] = (append, stale_append, multi_table, transaction, staged, fast_forward, true_merge)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("verb", VERBS, ids=lambda v: v.__name__)
def test_every_effect_fails_once(verb: Verb, after: bool, tmp_path: Path) -> None:
    for number in itertools.count():
        world = World(tmp_path / str(number))
        act, count, landed = verb(world)
        unchanged = count()
        world.faults.arm(number, after=after)
        try:
            answer = act()
        except Broken:
            answer = None
        fired = world.faults.disarm()
        if answer is None:
            assert fired
            assert count() in (unchanged, landed), "all of it or nothing"
        else:
            assert answer.status in (200, 204), answer
            assert count() == landed
        again = act()
        assert again.status in (200, 204), again
        assert count() == landed, "asked again, it lands exactly once"
        world.lake.close()
        if not fired:
            assert number >= 1, "a verb without effects proves nothing"
            return
