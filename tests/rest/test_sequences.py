"""Numbers of serial and identity columns: handed out once, to one caller, whatever becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from store.implementations import IMPLEMENTATIONS
from support.inprocess import Inprocess
from support.writer import SCHEMA, Engine

Json = dict[str, Any]
REPO = "/api/v1/repos/lake"


@pytest.fixture(params=sorted(IMPLEMENTATIONS))
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Inprocess]:
    """On every store."""
    lake = Inprocess(tmp_path / "lake", store=IMPLEMENTATIONS[request.param](tmp_path))
    lake.post("/v1/lake/namespaces", {"namespace": ["sales"]})
    assert Engine(lake, "lake", "sales", "orders").create().status == 200
    yield lake
    lake.close()


class Session:
    def __init__(self, lake: Inprocess, ref: str = "main") -> None:
        self.lake = lake
        told = lake.post("/api/v1/sessions", {"ref": ref}).body
        self.path, self.token, self.address = f"/api/v1/sessions/{told['id']}", told["token"], told["address"]

    def ask(self, verb: str, body: Json | None = None) -> Any:
        return self.lake.post(f"{self.path}/{verb}", body, token=self.token)

    def take(self, count: int = 1, *, table: str = "orders", field: int = 1, at_least: int | None = None) -> int:
        answer = self.ask("sequences", {**body(count, table=table, field=field), "at-least": at_least})
        assert answer.status == 200, answer
        first: int = answer.body["first"]
        return first


def body(count: Any = 1, *, table: Any = "orders", field: Any = 1) -> Json:
    return {"namespace": ["sales"], "name": table, "field-id": field, "count": count}


def test_numbers_follow_each_other_per_table_and_field(lake: Inprocess) -> None:
    Engine(lake, "lake", "sales", "others").create()
    mine, yours = Session(lake), Session(lake)
    assert [mine.take(32), yours.take(32), mine.take()] == [0, 32, 64]
    assert mine.take(field=2) == 0, "another column"
    assert mine.take(table="others") == 0, "another table"
    assert yours.take(1 << 31) == 65
    assert mine.take() == 65 + (1 << 31)


def test_at_least_moves_forward_and_never_back(lake: Inprocess) -> None:
    session = Session(lake)
    assert session.take(2, at_least=100) == 100
    assert session.take(at_least=5) == 102
    assert session.take(at_least=103) == 103
    assert session.take() == 104


def test_the_last_numbers_are_refused_and_not_wrapped(lake: Inprocess) -> None:
    session = Session(lake)
    assert session.take(at_least=2**63 - 10) == 2**63 - 10
    answer = session.ask("sequences", body(100))
    assert (answer.status, answer.error["field"]) == (400, "count")
    assert session.take(2) == 2**63 - 9, "what was refused took nothing"


def test_concurrent_callers_never_get_one_number_twice(lake: Inprocess) -> None:
    def take(number: int) -> list[int]:
        session = Session(lake)
        if number % 2:
            session.ask("begin")
        found: list[int] = []
        for count in range(1, 13):
            first = session.take(count, at_least=count * 20 if number == 3 else None)
            found += range(first, first + count)
        return found

    with ThreadPoolExecutor(6) as threads:
        taken = [number for found in threads.map(take, range(6)) for number in found]
    assert len(taken) == 6 * 78
    assert len(set(taken)) == len(taken)


def test_what_was_taken_stays_taken_after_rollback(lake: Inprocess) -> None:
    session = Session(lake)
    session.ask("begin")
    session.ask("savepoints", {"name": "s"})
    assert session.take(10) == 0
    session.ask("savepoints/s/rollback")
    assert session.take(10) == 10
    session.ask("rollback")
    assert session.take() == 20
    session.lake.delete(session.path, token=session.token)
    assert Session(lake).take() == 21


def test_a_table_made_in_the_open_transaction_keeps_its_counter_when_it_lands(lake: Inprocess) -> None:
    session, other = Session(lake), Session(lake)
    session.ask("begin")
    Engine(lake, session.address, "sales", "new", token=session.token).create()
    assert session.take(5, table="new") == 0
    assert other.ask("sequences", body(table="new")).status == 404, "nobody else sees it"
    assert session.ask("commit").status == 200
    assert other.take(table="new") == 5
    assert session.take(table="new") == 6


def test_a_rename_keeps_the_counter_and_a_new_table_of_that_name_begins_anew(lake: Inprocess) -> None:
    session = Session(lake)
    session.take(7)
    session.ask("begin")
    rename = {
        "source": {"namespace": ["sales"], "name": "orders"},
        "destination": {"namespace": ["sales"], "name": "renamed"},
    }
    assert lake.post(f"/v1/{session.address}/tables/rename", rename, token=session.token).status == 204
    assert session.take(table="renamed") == 7
    assert session.ask("sequences", body()).status == 404
    Engine(lake, session.address, "sales", "orders", token=session.token).create()
    assert session.take() == 0
    assert Session(lake).take() == 8, "outside it is still called orders"


def test_branches_share_the_counter(lake: Inprocess) -> None:
    session = Session(lake)
    session.take(3)
    lake.post(f"{REPO}/branches", {"name": "dev"})
    dev = Session(lake, "dev")
    assert [dev.take(2), session.take(2), dev.take()] == [3, 5, 7]
    lake.delete("/v1/lake/namespaces/sales/tables/orders")
    assert dev.take() == 8, "dropped on the other branch only"


def test_a_restart_goes_on_after_what_was_taken(tmp_path: Path) -> None:
    make: Callable[[], Inprocess] = lambda: Inprocess(tmp_path / "lake")  # noqa: E731
    lake = make()
    lake.post("/v1/lake/namespaces", {"namespace": ["sales"]})
    Engine(lake, "lake", "sales", "orders").create()
    Session(lake).take(32)
    lake.close()
    lake = make()
    assert Session(lake).take() == 32
    lake.close()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"namespace": None}, "namespace"),
        ({"namespace": "sales"}, "namespace"),
        ({"namespace": []}, "namespace"),
        ({"namespace": [1]}, "namespace"),
        ({"namespace": [""]}, "namespace"),
        ({"name": None}, "name"),
        ({"name": 7}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a\x00"}, "name"),
        ({"field-id": None}, "field-id"),
        ({"field-id": "1"}, "field-id"),
        ({"field-id": 0}, "field-id"),
        ({"field-id": -1}, "field-id"),
        ({"field-id": 1 << 31}, "field-id"),
        ({"field-id": True}, "field-id"),
        ({"count": None}, "count"),
        ({"count": 0}, "count"),
        ({"count": -1}, "count"),
        ({"count": 1.5}, "count"),
        ({"count": 2.0}, "count"),
        ({"count": (1 << 31) + 1}, "count"),
        ({"count": 10**30}, "count"),
        ({"at-least": -1}, "at-least"),
        ({"at-least": "5"}, "at-least"),
        ({"at-least": 1 << 63}, "at-least"),
    ],
)
def test_a_malformed_question_names_the_field_and_takes_nothing(lake: Inprocess, change: Json, field: str) -> None:
    session = Session(lake)
    answer = session.ask("sequences", {**body(), **change})
    assert (answer.status, answer.error.get("field")) == (400, field), answer
    assert field in answer.error["message"]
    assert session.take() == 0


def test_where_there_is_no_such_table_or_nothing_can_be_written(lake: Inprocess) -> None:
    session = Session(lake)
    missing = session.ask("sequences", body(table="none"))
    assert (missing.status, "sales.none" in missing.error["message"]) == (404, True)
    assert session.ask("sequences", {**body(), "namespace": ["none"]}).status == 404
    lake.post(f"{REPO}/tags", {"name": "v1"})
    assert Session(lake, "v1").ask("sequences", body()).status == 403
    stranger = Session(lake)
    assert lake.post(f"{session.path}/sequences", body(), token=stranger.token).status == 401
    assert lake.post(f"{session.path}/sequences", body()).status == 401
    assert session.take() == 0


def test_a_column_that_is_still_to_come_may_take_its_numbers(lake: Inprocess) -> None:
    assert len(SCHEMA["fields"]) < 99
    assert Session(lake).take(4, field=99) == 0
