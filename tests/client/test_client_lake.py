"""The lake without Spark: connecting, branches, the life of transactions, lost answers, lost leases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import icefield
from icefield.client import connect as connecting
from icefield.client.lake import Lake
from icefield.client.transaction import Rollback
from icefield.model.errors import (
    BadRequest,
    CommitConflict,
    IcefieldError,
    NoSuchRef,
    NoSuchRepo,
    NoSuchSession,
    OutcomeUnknown,
    Unavailable,
    WrongState,
)
from support.proxy import Proxy
from support.server import Http, RunningServer


class Home:
    """A repo of its own for a test, on a server that all tests share."""

    def __init__(self, url: str, repo: str) -> None:
        self.url = url
        self.repo = repo

    def connect(self, **options: Any) -> Lake:
        return icefield.connect(self.url, repo=self.repo, **options)

    def namespaces(self) -> set[str]:
        return {name for [name] in Http(self.url).get(f"/v1/{self.repo}/namespaces").body["namespaces"]}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("shared") / "lake") as running:
        yield running


@pytest.fixture
def home(shared: RunningServer, request: pytest.FixtureRequest) -> Home:
    repo = "r" + uuid.uuid4().hex[:12]
    assert shared.http().post("/api/v1/repos", {"name": repo}).status == 200
    return Home(shared.url, repo)


@pytest.fixture
def proxy(home: Home) -> Iterator[Proxy]:
    with Proxy(home.url) as running:
        home.url = running.url
        yield running


@pytest.fixture
def lake(home: Home) -> Iterator[Lake]:
    with home.connect() as opened:
        yield opened


def in_session(lake: Lake) -> Http:
    return Http(lake.url, lake._lease.token)


def create_namespace(lake: Lake, name: str) -> None:
    """What Spark would do, by its wire: a marked statement that creates something."""
    http = in_session(lake)
    number = lake._lease.mark()["statement"]
    answer = http.post(f"/v1/{lake._lease.address}/namespaces", {"namespace": [name]})
    assert answer.status == 200, answer
    lake._lease.returned(number)


def eventually(condition: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


# A folder


def test_a_folder_starts_its_server_and_others_join_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "IDLE_SECONDS", 1)
    monkeypatch.setenv("ICEFIELD_CACHE", str(tmp_path))  # what configures the engine does not trouble the server
    data = tmp_path / "lake data"
    with icefield.connect(data) as first:
        with icefield.connect(str(data), branch="main") as second:
            assert second.url == first.url
        there = "import icefield, sys; lake = icefield.connect(sys.argv[1]); print(lake.url)"
        said = subprocess.run(
            [sys.executable, "-c", there, str(data)], capture_output=True, text=True, check=True, timeout=60
        )
        assert said.stdout.strip() == first.url
        pid = json.loads((data / "server.json").read_text())["pid"]
        first.branches.create("dev")
    assert eventually(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text())
    with icefield.connect(data) as again:
        assert "dev" in again.branches


def test_two_who_come_first_get_one_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "IDLE_SECONDS", 1)
    lakes: list[Lake] = []
    threads = [threading.Thread(target=lambda: lakes.append(icefield.connect(tmp_path / "lake"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len({lake.url for lake in lakes}) == 1
    assert len(lakes) == 3
    for lake in lakes:
        lake.close()


def test_a_stale_server_file_is_not_believed(tmp_path: Path, server: RunningServer) -> None:
    """Another folder's server listens there now: the folder decides."""
    (tmp_path / "server.json").write_text(json.dumps({"url": server.url, "pid": os.getpid()}))
    assert connecting._running(tmp_path) is None
    assert connecting._running(server.data) == server.url


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadRequest, match="is a file"):
        icefield.connect(tmp_path / "file")
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "icefield.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(Unavailable, match="did not start"):
        icefield.connect(tmp_path / "lake")


def test_what_is_asked_for_must_be_there(server: RunningServer) -> None:
    with pytest.raises(NoSuchRef):
        icefield.connect(server.url, branch="nowhere")
    with pytest.raises(NoSuchRepo):
        icefield.connect(server.url, repo="elsewhere")


# Refs


def test_branches_tags_diff_merge_and_log(lake: Lake, home: Home) -> None:
    lake.branches.create("audit")
    lake.checkout("audit")
    assert lake.ref == "audit"
    create_namespace(lake, "sales")
    assert home.namespaces() == set()
    lake.tags.create("v1", from_="audit")
    assert [str(change) for change in lake.diff("main", "audit")] == ["+ namespace sales"]
    assert [change.name for change in lake.diff("main")] == ["sales"]
    dry = lake.merge("audit", into="main", dry_run=True)
    assert dry.result == "fast-forward"
    assert home.namespaces() == set()
    merged = lake.merge("audit", into="main", message="reviewed")
    assert merged.result == "fast-forward"
    assert home.namespaces() == {"sales"}
    assert not lake.diff("main", "audit")
    assert str(lake.diff("main", "audit")) == "main and audit are equal"
    assert lake.log("main")[0].changes[0][0] == "sales"
    assert {ref.name: ref.kind for ref in lake.tags} == {"v1": "tag"}
    assert "audit" in lake.branches
    lake.checkout("main")
    lake.branches.drop("audit")
    assert [ref.name for ref in lake.branches.list()] == ["main"]


def test_a_dry_run_lists_conflicts_where_a_merge_raises_them(lake: Lake) -> None:
    lake.branches.create("audit")
    create_namespace(lake, "sales")
    lake.checkout("audit")
    create_namespace(lake, "sales")
    dry = lake.merge("audit", into="main", dry_run=True)
    assert (dry.result, [conflict.entry for conflict in dry.conflicts]) == ("conflict", ["sales"])
    assert str(dry).startswith("conflicts:\n  sales: ")
    with pytest.raises(CommitConflict) as caught:
        lake.merge("audit", into="main")
    assert tuple(caught.value.conflicts) == dry.conflicts


def test_a_merge_that_conflicts_names_every_conflict(lake: Lake) -> None:
    lake.branches.create("audit")
    for branch in ("main", "audit"):
        lake.checkout(branch)
        for name in ("a", "b"):
            create_namespace(lake, name)
            http = in_session(lake)
            number = lake._lease.mark()["statement"]
            field = {"id": 1, "name": "id", "type": "long", "required": False}
            schema = {"type": "struct", "schema-id": 0, "fields": [field]}
            body = {"name": "t", "schema": schema}
            assert http.post(f"/v1/{lake._lease.address}/namespaces/{name}/tables", body).status == 200
            lake._lease.returned(number)
    with pytest.raises(CommitConflict) as caught:
        lake.merge("audit", into="main")
    assert {"a.t", "b.t"} <= {conflict.entry for conflict in caught.value.conflicts}


def test_a_merge_whose_answer_is_lost_is_done_once(proxy: Proxy, home: Home) -> None:
    with home.connect() as lake:
        lake.branches.create("audit")
        lake.checkout("audit")
        create_namespace(lake, "sales")
        lose = iter([True, True])
        proxy.lose = lambda method, path: path.endswith("/merge") and next(lose, False)
        assert lake.merge("audit", into="main").result == "fast-forward"
        assert sum(path.endswith("/merge") for _, path in proxy.seen) == 3


# Transactions


def test_a_transaction_lands_as_one_commit(lake: Lake, home: Home) -> None:
    before = lake.log()[0].id
    with lake.transaction(message="daily load") as tx:
        assert (tx.state, tx.base) == ("open", before)
        create_namespace(lake, "a")
        create_namespace(lake, "b")
        assert home.namespaces() == set()
    assert tx.state == "committed"
    assert tx.result is not None
    assert tx.result.changed
    head = lake.log()[0]
    assert (head.id, head.message, head.parents) == (tx.result.commit, "daily load", (before,))
    assert {name for name, _ in head.changes} == {"a", "b"}
    assert home.namespaces() == {"a", "b"}


def test_an_exception_rolls_back_and_goes_on(lake: Lake, home: Home) -> None:
    with pytest.raises(ZeroDivisionError), lake.transaction() as tx:  # noqa: PT012
        create_namespace(lake, "a")
        _ = 1 / 0
    assert tx.state == "rolled back"
    assert home.namespaces() == set()
    with lake.transaction() as tx:
        create_namespace(lake, "b")
        raise Rollback
    assert tx.state == "rolled back"
    assert home.namespaces() == set()


def test_savepoints(lake: Lake, home: Home) -> None:
    with lake.transaction() as tx:
        create_namespace(lake, "kept")
        with pytest.raises(KeyError), tx.savepoint():  # noqa: PT012
            create_namespace(lake, "undone")
            raise KeyError
        with tx.savepoint("outer"):
            create_namespace(lake, "outer")
            with tx.savepoint("outer"):  # the newest of a name wins
                create_namespace(lake, "inner")
                raise Rollback
        with tx.savepoint():
            create_namespace(lake, "last")
    assert home.namespaces() == {"kept", "outer", "last"}


def test_rollback_of_the_whole_transaction_from_a_savepoint(lake: Lake, home: Home) -> None:
    with lake.transaction() as tx:
        create_namespace(lake, "a")
        with tx.savepoint():
            raise Rollback(tx)
    assert tx.state == "rolled back"
    assert home.namespaces() == set()


def test_ending_by_hand(lake: Lake, home: Home) -> None:
    tx = lake.transaction().begin()
    create_namespace(lake, "a")
    first = tx.commit("by hand")
    assert tx.commit() is first
    assert lake.log()[0].message == "by hand"
    with pytest.raises(WrongState, match="is committed"):
        tx.begin()
    with pytest.raises(WrongState, match="not open"):
        tx.rollback()
    with lake.transaction() as tx:
        create_namespace(lake, "b")
        tx.rollback()
        tx.rollback()
    with pytest.raises(WrongState, match="not open"):
        tx.commit()
    assert home.namespaces() == {"a"}


def test_nothing_done_is_nothing_committed(lake: Lake) -> None:
    before = lake.log()[0].id
    with lake.transaction() as tx:
        pass
    assert tx.result is not None
    assert not tx.result.changed
    assert lake.log()[0].id == before


def test_one_transaction_at_a_time(lake: Lake) -> None:
    with lake.transaction() as tx:
        with pytest.raises(WrongState, match=tx.id), lake.transaction():
            pass
        with pytest.raises(WrongState, match="transaction is open"):
            lake.checkout("main")
    with lake.transaction():
        pass


def test_a_conflict_is_raised_with_its_conflicts_and_leaves_nothing(lake: Lake, home: Home) -> None:
    with home.connect() as other, pytest.raises(CommitConflict) as caught, lake.transaction() as tx:  # noqa: PT012
        create_namespace(lake, "mine")
        create_namespace(lake, "both")
        create_namespace(other, "both")
    assert [conflict.entry for conflict in caught.value.conflicts] == ["both"]
    assert tx.state == "rolled back"
    assert home.namespaces() == {"both"}
    with lake.transaction():
        create_namespace(lake, "later")
    assert home.namespaces() == {"both", "later"}


@pytest.mark.parametrize("verb", ["begin", "commit", "rollback"])
def test_a_lost_answer_changes_nothing(proxy: Proxy, home: Home, verb: str) -> None:
    with home.connect() as lake:
        lose = iter([True, True])
        proxy.lose = lambda method, path: path.endswith(f"/{verb}") and next(lose, False)
        before = len(lake.log())
        with lake.transaction() as tx:
            create_namespace(lake, "a")
            if verb == "rollback":
                raise Rollback
        assert tx.state == ("rolled back" if verb == "rollback" else "committed")
        assert len(lake.log()) == before + (verb != "rollback")
        assert sum(path.endswith(f"/{verb}") for _, path in proxy.seen) == 3


def test_a_conflict_whose_answer_is_lost_is_still_that_conflict(proxy: Proxy, home: Home) -> None:
    with home.connect() as lake, home.connect() as other:
        lose = iter([True])
        proxy.lose = lambda method, path: path.endswith("/commit") and next(lose, False)
        with pytest.raises(CommitConflict) as caught, lake.transaction():  # noqa: PT012
            create_namespace(lake, "both")
            create_namespace(other, "both")
        assert [conflict.entry for conflict in caught.value.conflicts] == ["both"]


def test_a_server_that_stays_away_leaves_an_unknown_outcome_that_can_be_asked_for(
    proxy: Proxy, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icefield.client.lease.OUTCOME_SECONDS", 0.5)
    with home.connect() as lake:
        tx = lake.transaction().begin()
        create_namespace(lake, "a")
        proxy.lose = lambda method, path: path.endswith("/commit")
        with pytest.raises(OutcomeUnknown, match=tx.id):
            tx.commit()
        proxy.lose = lambda method, path: False
        assert tx.commit().changed
        assert home.namespaces() == {"a"}


def test_the_heartbeat_keeps_a_transaction_alive_and_without_it_it_is_rolled_back(home: Home) -> None:
    with home.connect(lease_seconds=1) as lake:
        tx = lake.transaction().begin()
        create_namespace(lake, "a")
        time.sleep(2.5)
        assert tx.commit().changed

        tx = lake.transaction().begin()
        create_namespace(lake, "b")
        lake._lease._over.set()  # as when the machine sleeps
        time.sleep(2.5)
        with pytest.raises(NoSuchSession, match="lease"):
            tx.commit()
        assert tx.state == "rolled back"
        assert home.namespaces() == {"a"}
        lake.checkout("main")  # on a new session
        with lake.transaction():
            create_namespace(lake, "c")
        assert home.namespaces() == {"a", "c"}


def test_what_follows_a_lost_session_does_not_run_outside_its_transaction(home: Home) -> None:
    with home.connect(lease_seconds=1) as lake:
        with pytest.raises(NoSuchSession, match="leave its block"), lake.transaction():  # noqa: PT012
            lake._lease._over.set()
            time.sleep(2.5)
            with pytest.raises(NoSuchSession):
                lake._lease.mark()
            lake.checkout("main")
        lake.checkout("main")


def test_closing_rolls_back_and_says_so_afterwards(home: Home) -> None:
    lake = home.connect()
    tx = lake.transaction().begin()
    create_namespace(lake, "a")
    lake.close()
    lake.close()
    assert tx.state == "rolled back"
    assert home.namespaces() == set()
    assert "closed" in repr(lake)
    actions: list[Callable[[], Any]] = [lambda: lake.spark, lake.transaction, lake.log, lambda: lake.checkout("main")]
    for action in actions:
        with pytest.raises(WrongState, match="closed"):
            action()


def test_a_forgotten_lake_is_closed_at_exit(home: Home) -> None:
    script = (
        "import icefield, sys; lake = icefield.connect(sys.argv[1], repo=sys.argv[2]); lake.transaction().begin()\n"
        "print(lake._lease.id, lake._lease.token)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, home.url, home.repo], capture_output=True, text=True, check=True, timeout=60
    )
    id_, token = done.stdout.split()
    assert Http(home.url, token).get(f"/api/v1/sessions/{id_}").status in (401, 404)


def test_a_token_is_in_no_repr_and_no_error(server: RunningServer) -> None:
    with icefield.connect(server.url) as lake:
        token = lake._lease.token
        server.stop()
        with pytest.raises(IcefieldError) as caught:
            lake.checkout("main")
        assert token not in str(caught.value)
        assert token not in repr(lake)
