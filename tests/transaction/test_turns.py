"""A turn: who was overtaken again and again reads and lands while the others wait, and they never wait for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from icefield.transaction import tickets
from icefield.transaction.tickets import Tickets
from support.inprocess import Inprocess
from support.writer import Engine

MAIN = ("lake", "main")


class Lander:
    """Lands on a branch in a thread of its own."""

    def __init__(self, line: Tickets, branch: tuple[str, str] = MAIN, holder: str | None = None) -> None:
        self.done = threading.Event()
        self._work = (line, branch, holder)
        threading.Thread(target=self._land, daemon=True).start()

    def _land(self) -> None:
        line, branch, holder = self._work
        with line.hold(*branch, holder):
            self.done.set()

    def lands(self, seconds: float) -> bool:
        return self.done.wait(seconds)


def test_others_wait_until_the_turn_ends() -> None:
    line = Tickets()
    assert line.take_turn(*MAIN, "t1")
    other = Lander(line)
    assert Lander(line, holder="t1").lands(2)
    assert Lander(line, branch=("lake", "dev")).lands(2)
    assert not other.lands(0.3)
    line.end_turn("t1")
    assert other.lands(2)


def test_a_turn_that_nobody_ends_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "TURN_S", 0.4)
    line = Tickets()
    assert line.take_turn(*MAIN, "t1")
    began = time.monotonic()
    assert Lander(line).lands(5)
    assert time.monotonic() - began >= 0.3


def test_who_has_waited_lands_before_the_next_turn() -> None:
    line = Tickets()
    assert line.take_turn(*MAIN, "t1")
    lander = Lander(line)
    order: list[str] = []

    def next_turn() -> None:
        assert line.take_turn(*MAIN, "t2")
        order.append("t2" if lander.done.is_set() else "t2 first")

    asking = threading.Thread(target=next_turn)
    asking.start()
    time.sleep(0.3)
    line.end_turn("t1")
    asking.join(5)
    assert order == ["t2"]


def test_a_turn_waits_for_who_is_landing() -> None:
    line = Tickets()
    taken = threading.Event()
    with line.hold(*MAIN):
        threading.Thread(target=lambda: line.take_turn(*MAIN, "t1") and taken.set(), daemon=True).start()
        assert not taken.wait(0.3)
    assert taken.wait(2)


def test_there_are_never_so_many_waiting_that_the_server_has_no_thread_left() -> None:
    line = Tickets()
    assert line.take_turn(*MAIN, "t1")
    landers = [Lander(line) for _ in range(20)]
    time.sleep(0.5)
    waiting = [lander for lander in landers if not lander.done.is_set()]
    assert 0 < len(waiting) <= 6
    assert not line.take_turn(*MAIN, "t2")
    line.end_turn("t1")
    assert all(lander.lands(2) for lander in landers)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Inprocess]:
    lake = Inprocess(tmp_path / "lake")
    lake.post("/v1/lake/namespaces", {"namespace": ["sales"]})
    assert Engine(lake, "lake", "sales", "orders").create(version=2).status == 200
    yield lake
    lake.close()


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_a_transaction_with_the_turn_lands_and_gives_it_back(lake: Inprocess, verb: str) -> None:
    told = lake.post("/api/v1/sessions", {}).body
    path, token = f"/api/v1/sessions/{told['id']}", told["token"]
    assert lake.post(f"{path}/begin", {"turn": "yes"}, token=token).status == 400
    assert lake.post(f"{path}/begin", {"turn": True}, token=token).status == 200
    landed = threading.Event()

    def append() -> None:
        assert Engine(lake, "lake", "sales", "orders").append_rows(3).status == 200
        landed.set()

    threading.Thread(target=append, daemon=True).start()
    assert not landed.wait(0.3)
    assert lake.post(f"{path}/{verb}", {}, token=token).status == 200
    assert landed.wait(5)
