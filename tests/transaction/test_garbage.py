"""What goes to the deletion queue when an overlay or a part of it is dropped, and what must not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from icefield.store.port import Store, StoreReader, StoreWriter
from icefield.store.sql.sqlite import open_sqlite
from icefield.volume.local import LocalVolume
from support.inprocess import Inprocess
from support.writer import Engine

Json = dict[str, Any]


class Watched:
    """A store that knows who is in its write transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.writing: int | None = None

    @contextmanager
    def read(self) -> Iterator[StoreReader]:
        with self._store.read() as reader:
            yield reader

    @contextmanager
    def write(self) -> Iterator[StoreWriter]:
        with self._store.write() as writer:
            self.writing = threading.get_ident()
            try:
                yield writer
            finally:
                self.writing = None

    def close(self) -> None:
        self._store.close()


class Volume(LocalVolume):
    store: Watched
    reads: list[str]
    while_all_wait: list[str]

    def read(self, location: str, *, limit: int | None = None) -> bytes:
        self.reads.append(location)
        if self.store.writing == threading.get_ident():
            self.while_all_wait.append(location)
        return super().read(location, limit=limit)


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    (tmp_path / "volume").mkdir()
    volume = Volume(tmp_path / "volume")
    volume.store = Watched(open_sqlite(tmp_path / "watched.db"))
    volume.reads, volume.while_all_wait = [], []
    return volume


@pytest.fixture(params=[2, 3])
def lake(request: pytest.FixtureRequest, tmp_path: Path, volume: Volume) -> Iterator[Inprocess]:
    lake = Inprocess(tmp_path / "lake", store=volume.store, volume=volume)
    lake.post("/v1/lake/namespaces", {"namespace": ["sales"]})
    assert main(lake).create(version=request.param).status == 200
    assert main(lake).append_rows(1).status == 200
    yield lake
    lake.close()


def main(lake: Inprocess, prefix: str = "lake") -> Engine:
    return Engine(lake, prefix, "sales", "orders")


class Session:
    def __init__(self, lake: Inprocess, **more: Any) -> None:
        self.lake = lake
        told = lake.post("/api/v1/sessions", more).body
        self.path, self.token, self.address = f"/api/v1/sessions/{told['id']}", told["token"], told["address"]
        self.transaction: str = self.ok("begin")["transaction"]

    def ask(self, verb: str, body: Json | None = None) -> Any:
        return self.lake.post(f"{self.path}/{verb}", body, token=self.token)

    def ok(self, verb: str, body: Json | None = None) -> Json:
        answer = self.ask(verb, body)
        assert answer.status == 200, answer
        found: Json = answer.body
        return found

    def orders(self) -> Engine:
        engine = Engine(self.lake, self.address, "sales", "orders", token=self.token)
        engine.load()
        return engine


def queued(lake: Inprocess) -> set[str]:
    return {each["location"] for each in lake.get("/api/v1/repos/lake/deletions").body["files"]}


def reached(engine: Engine) -> set[str]:
    """Manifest lists, manifests and data files of all snapshots."""
    meta = engine.load()
    found: set[str] = set()
    for snapshot in meta["snapshots"]:
        at = {**meta, "refs": {"main": {"snapshot-id": snapshot["snapshot-id"], "type": "branch"}}}
        lines = engine.lines(at)
        found |= {snapshot["manifest-list"], *(line["manifest_path"] for line in lines)}
        found |= {live.path for line in lines for _, live in engine.entries(line)}
    return found


@pytest.mark.parametrize("how", ["rollback", "close", "lease", "conflict", "savepoint"])
def test_nobody_waits_for_the_store_while_manifests_are_read(lake: Inprocess, volume: Volume, how: str) -> None:
    session = Session(lake)
    session.ok("savepoints", {"name": "s"})
    for size in (2, 3, 4):
        assert session.orders().append_rows(size).status == 200
    own = {file for file in reached(session.orders()) if f"/tx-{session.transaction}/" in file}
    assert len(own) == 9, "a list, a manifest and a data file for each"
    if how == "conflict":
        engine = session.orders()
        meta = engine.load()
        assert engine.post(engine.body(meta, engine.delete(meta, min(engine.live(meta))))).status == 200
        main(lake).append_rows(1)
    volume.reads.clear()
    volume.while_all_wait.clear()
    if how == "rollback":
        session.ok("rollback")
    elif how == "close":
        lake.delete(session.path, token=session.token)
    elif how == "lease":
        record = lake.application.sessions.authenticate(session.path.rpartition("/")[2], session.token)
        lake.application.core.clock.now_ms = lambda: record.expires_ms + 1  # type: ignore[method-assign]
        assert lake.application.sessions.sweep() == 1
    elif how == "conflict":
        assert session.ask("commit").status == 409
    else:
        session.ok("savepoints/s/rollback")
    assert own <= queued(lake)
    assert volume.while_all_wait == []
    if how != "conflict":  # COMMIT itself reads some of them
        assert len(volume.reads) == len(set(volume.reads)), "nothing is read twice"
    assert not reached(main(lake)) & queued(lake)


def staged_and_posted(lake: Inprocess, *, overtaken: str | None) -> tuple[Session, Engine]:
    """One body, posted into a transaction and to the branch. ``overtaken``: where it had to be rebased."""
    session = Session(lake)
    inside, outside = session.orders(), main(lake)
    meta = inside.load()
    body = inside.body(meta, inside.append(meta, 5))
    if overtaken == "inside":
        assert inside.append_rows(7).status == 200
    if overtaken == "outside":
        assert outside.append_rows(7).status == 200
    outside.load()
    assert inside.post(body).status == 200
    assert outside.post(body).status == 200
    return session, outside


@pytest.mark.parametrize("overtaken", [None, "inside", "outside"])
def test_a_list_that_an_open_transaction_names_is_not_queued(lake: Inprocess, overtaken: str | None) -> None:
    session, _ = staged_and_posted(lake, overtaken=overtaken)
    assert not reached(session.orders()) & queued(lake)
    assert not reached(main(lake)) & queued(lake)
    assert session.orders().rows() == 6 + (7 if overtaken == "inside" else 0)


@pytest.mark.parametrize("overtaken", [None, "inside", "outside"])
@pytest.mark.parametrize("end", ["rollback", "savepoint", "commit", "close"])
def test_what_the_branch_got_as_well_is_not_queued_when_the_transaction_ends(
    lake: Inprocess, overtaken: str | None, end: str
) -> None:
    session, outside = staged_and_posted(lake, overtaken=overtaken)
    session.ok("savepoints", {"name": "after"})
    assert session.orders().append_rows(9).status == 200
    if end == "close":
        lake.delete(session.path, token=session.token)
    elif end == "commit":
        assert session.ask("commit").status == 409, "its snapshot has landed on the branch already"
    elif end == "savepoint":
        session.ok("savepoints/after/rollback")
        assert not reached(session.orders()) & queued(lake)
        session.ok("rollback")
    else:
        session.ok("rollback")
    assert not reached(outside) & queued(lake)
    assert any(f"/data/tx-{session.transaction}/" in file or "/data/" in file for file in queued(lake))


@pytest.mark.parametrize("back", ["rollback", "savepoints/s/rollback"])
def test_what_was_given_up_never_lands(lake: Inprocess, back: str) -> None:
    """A client may keep a body that went with a ROLLBACK, and post it elsewhere: its files are on their way out."""
    session = Session(lake)
    session.ok("savepoints", {"name": "s"})
    inside = session.orders()
    meta = inside.load()
    body = inside.body(meta, inside.append(meta, 5))
    assert inside.post(body).status == 200
    session.ok(back)
    outside = main(lake)
    outside.load()
    answer = outside.post(body)
    assert (answer.status, answer.error["conflicts"][0]["reason"]) == (409, "files-given-up"), answer
    assert "queued for deletion" in answer.error["message"]
    assert not reached(main(lake)) & queued(lake)


def test_the_lists_that_a_commit_replaces_are_queued(lake: Inprocess) -> None:
    """Also where the transaction that lands named them itself, and others are open."""
    others = Session(lake)
    assert others.orders().append_rows(1).status == 200
    session = Session(lake)
    assert session.orders().append_rows(2).status == 200
    replaced = session.orders().load()["snapshots"][-1]["manifest-list"]
    assert main(lake).append_rows(3).status == 200
    session.ok("commit")
    assert replaced in queued(lake)
    assert not reached(main(lake)) & queued(lake)
    assert not reached(others.orders()) & queued(lake)
