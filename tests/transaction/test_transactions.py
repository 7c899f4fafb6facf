"""Sessions and transactions over the real routes: visibility, savepoints, landing, the laws of epochs and retries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.inprocess import Inprocess
from support.writer import Engine


class ManualClock:
    def __init__(self) -> None:
        self.now = 1_800_000_000_000

    def now_ms(self) -> int:
        self.now += 1
        return self.now


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def lake(tmp_path: Path, clock: ManualClock) -> Iterator[Inprocess]:
    lake = Inprocess(tmp_path / "lake", clock=clock)
    assert lake.post("/v1/lake/namespaces", {"namespace": ["sales"]}).status == 200
    yield lake
    lake.close()


class Session:
    def __init__(self, lake: Inprocess, ref: str | None = None, **more: Any) -> None:
        self.lake = lake
        told = lake.post("/api/v1/sessions", {"ref": ref, **more}).body
        self.id, self.token, self.address = told["id"], told["token"], told["address"]

    def post(self, verb: str, body: Any = None) -> Any:
        return self.lake.post(f"/api/v1/sessions/{self.id}/{verb}", body, token=self.token)

    def delete(self, verb: str) -> Any:
        return self.lake.delete(f"/api/v1/sessions/{self.id}/{verb}", token=self.token)

    def describe(self) -> Any:
        return self.lake.get(f"/api/v1/sessions/{self.id}", token=self.token).body

    def engine(self, table: str) -> Engine:
        return Engine(self.lake, self.address, "sales", table, token=self.token)


def main(lake: Inprocess, table: str) -> Engine:
    return Engine(lake, "lake", "sales", table)


def head(lake: Inprocess) -> str:
    return lake.get("/api/v1/repos/lake/log?limit=1").body["commits"][0]["id"]


@pytest.mark.parametrize("version", [2, 3])
def test_a_transaction_is_seen_by_itself_alone_until_it_lands_whole(lake: Inprocess, version: int) -> None:
    for table in ("orders", "customers"):
        assert main(lake, table).create(version=version).status == 200
    session = Session(lake)
    assert session.post("begin", {"message": "daily load"}).status == 200
    assert session.engine("orders").append_rows(10, 20).status == 200
    assert session.engine("customers").append_rows(5).status == 200
    assert session.engine("created_inside").create(version=version).status == 200
    assert (session.engine("orders").rows(), session.engine("customers").rows()) == (30, 5)
    assert (main(lake, "orders").rows(), main(lake, "customers").rows()) == (0, 0)
    assert lake.get("/v1/lake/namespaces/sales/tables/created_inside").status == 404
    before = head(lake)
    landed = session.post("commit")
    assert landed.body["result"] == "committed"
    assert (main(lake, "orders").rows(), main(lake, "customers").rows()) == (30, 5)
    assert lake.get("/v1/lake/namespaces/sales/tables/created_inside").status == 200
    newest = lake.get("/api/v1/repos/lake/log").body["commits"][0]
    assert newest["parents"] == [before], "all tables in one move of the head"
    assert newest["message"] == "daily load"
    assert {e["name"] for e in newest["entries"]} == {"sales.orders", "sales.customers", "sales.created_inside"}


def test_what_lands_names_no_file_of_the_overlays_own(lake: Inprocess) -> None:
    main(lake, "orders").create()
    main(lake, "orders").append_rows(1)
    session = Session(lake)
    transaction = session.post("begin").body["transaction"]
    session.engine("orders").append_rows(2)
    session.engine("orders").append_rows(3)
    inside = session.engine("orders").load()
    assert inside["properties"]["write.data.path"].endswith(f"/data/tx-{transaction}")
    session.post("commit")
    loaded = lake.get("/v1/lake/namespaces/sales/tables/orders").body
    assert f"tx-{transaction}" not in loaded["metadata-location"]
    assert all(f"tx-{transaction}" not in old["metadata-file"] for old in loaded["metadata"]["metadata-log"])
    assert "write.data.path" not in loaded["metadata"]["properties"]
    for old in loaded["metadata"]["metadata-log"]:
        assert Path(old["metadata-file"].removeprefix("file://")).exists()


def test_rollback_and_savepoints(lake: Inprocess) -> None:
    main(lake, "orders").create()
    session = Session(lake)
    session.post("begin")
    session.engine("orders").append_rows(1)
    session.post("savepoints", {"name": "a"})
    session.engine("orders").append_rows(2)
    session.post("savepoints", {"name": "b"})
    session.engine("orders").append_rows(4)
    session.engine("new").create()
    assert session.engine("orders").rows() == 7
    assert session.post("savepoints/b/rollback").status == 200
    assert session.engine("orders").rows() == 3
    assert session.lake.get(f"/v1/{session.address}/namespaces/sales/tables/new", token=session.token).status == 404
    assert session.post("savepoints/a/rollback").status == 200
    assert session.describe()["transaction"]["savepoints"] == ["a"]
    assert session.post("savepoints/b/rollback").status == 404, "b is gone with a"
    assert session.delete("savepoints/a").status == 200
    assert session.post("savepoints/a/rollback").status == 404
    assert session.post("commit").body["result"] == "committed"
    assert main(lake, "orders").rows() == 1
    session.post("begin")
    session.engine("orders").append_rows(100)
    session.post("rollback")
    assert session.engine("orders").rows() == 1
    assert main(lake, "orders").rows() == 1


def test_the_newest_of_two_savepoints_with_one_name_wins(lake: Inprocess) -> None:
    main(lake, "orders").create()
    session = Session(lake)
    session.post("begin")
    session.post("savepoints", {"name": "s"})
    session.engine("orders").append_rows(1)
    session.post("savepoints", {"name": "s"})
    session.engine("orders").append_rows(2)
    session.post("savepoints/s/rollback")
    assert session.engine("orders").rows() == 1
    session.delete("savepoints/s")
    session.post("savepoints/s/rollback")
    assert session.engine("orders").rows() == 0


@pytest.mark.parametrize("version", [2, 3])
def test_appends_land_on_a_table_that_moved_meanwhile(lake: Inprocess, version: int) -> None:
    main(lake, "orders").create(version=version)
    main(lake, "orders").append_rows(1)
    session = Session(lake)
    session.post("begin")
    session.engine("orders").append_rows(10)
    session.engine("orders").append_rows(20)
    assert main(lake, "orders").append_rows(300).status == 200
    assert session.post("commit").body["result"] == "committed"
    engine = main(lake, "orders")
    meta = engine.load()
    live = engine.live(meta)
    assert sum(f.record_count for f in live.values()) == 331
    numbers = [s["sequence-number"] for s in meta["snapshots"]]
    assert numbers == sorted(set(numbers))
    if version == 3:
        spans = sorted((f.first_row_id, f.record_count) for f in live.values())
        assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(spans)), "row ids are used once"


def test_what_does_not_commute_is_refused_with_every_conflict_and_nothing_lands(lake: Inprocess) -> None:
    for table in ("a", "b", "c"):
        main(lake, table).create()
        main(lake, table).append_rows(1)
    session = Session(lake)
    transaction = session.post("begin").body["transaction"]
    for table in ("a", "b"):
        engine = session.engine(table)
        meta = engine.load()
        assert engine.post(engine.body(meta, engine.row_delta(meta))).status == 200
    session.engine("c").append_rows(7)
    for table in ("a", "b"):
        main(lake, table).append_rows(2)
    before = head(lake)
    refused = session.post("commit")
    assert refused.status == 409
    assert {c["entry"] for c in refused.error["conflicts"]} == {"sales.a", "sales.b"}
    assert head(lake) == before
    assert main(lake, "c").rows() == 1
    assert session.describe()["transaction"] is None
    again = session.post("commit", {"transaction-id": transaction})
    assert again.status == 409
    assert again.error["conflicts"] == refused.error["conflicts"]


def test_commit_asked_again_answers_the_first_outcome(lake: Inprocess) -> None:
    main(lake, "orders").create()
    session = Session(lake)
    transaction = session.post("begin").body["transaction"]
    session.engine("orders").append_rows(1)
    first = session.post("commit", {"transaction-id": transaction})
    again = session.post("commit", {"transaction-id": transaction})
    assert again.body == first.body
    assert main(lake, "orders").rows() == 1
    assert lake.get(f"/api/v1/transactions/{transaction}", token=session.token).body["state"] == "committed"
    assert lake.get(f"/api/v1/transactions/{transaction}").status == 401


def test_a_retried_post_lands_once_in_a_transaction_and_on_a_branch(lake: Inprocess) -> None:
    main(lake, "orders").create()
    for engine in (main(lake, "orders"), Session(lake).engine("orders")):
        meta = engine.load()
        body = engine.body(meta, engine.append(meta, 3))
        assert engine.post(body).status == 200
        assert main(lake, "orders").append_rows(1).status == 200
        assert engine.post(body).status == 200, "asked again: it has landed"
        other = engine.body(meta, {**body["updates"][0]["snapshot"], "summary": {"operation": "append", "x": "1"}})
        assert engine.post(other).status in (400, 409), "the same snapshot id, other content"
    assert main(lake, "orders").rows() == 8


def test_a_late_post_after_rollback_is_refused(lake: Inprocess) -> None:
    main(lake, "orders").create()
    session = Session(lake)
    statement = session.post("statements").body["statement"]
    session.delete(f"statements/{statement}")
    session.post("begin")
    statement = session.post("statements").body["statement"]
    engine = session.engine("orders")
    meta = engine.load()
    body = engine.body(meta, engine.append(meta, 3))
    assert session.post("commit").status == 400, "a statement is in flight: the ref does not move"
    session.delete(f"statements/{statement}")
    late = engine.post(body)
    assert late.status == 400
    assert "returned already" in late.error["message"]
    session.post("rollback")
    assert engine.post(body).status == 400
    session.post("statements")
    assert engine.post(body).status == 400, "the token is of an earlier epoch"
    assert session.engine("made_late").create().status == 200, "a statement is in flight, this one is in time"
    assert main(lake, "orders").rows() == 0


def test_outside_a_statement_a_marked_session_writes_nothing(lake: Inprocess) -> None:
    main(lake, "orders").create()
    session = Session(lake)
    number = session.post("statements").body["statement"]
    session.delete(f"statements/{number}")
    assert session.engine("x").create().status == 400
    assert (
        session.lake.delete(f"/v1/{session.address}/namespaces/sales/tables/orders", token=session.token).status == 400
    )
    assert session.lake.delete("/v1/lake/namespaces/sales/tables/orders").status == 204


def test_a_statement_sees_one_commit_for_all_its_tables(lake: Inprocess) -> None:
    for table in ("a", "b"):
        main(lake, table).create()
    reader = Session(lake)
    first = reader.post("statements").body
    assert reader.engine("a").rows() == 0
    writer = Session(lake)
    writer.post("begin")
    writer.engine("a").append_rows(1)
    writer.engine("b").append_rows(1)
    writer.post("commit")
    assert reader.engine("b").rows() == 0, "half a transaction would be 1"
    reader.delete(f"statements/{first['statement']}")
    assert reader.engine("a").rows() == 0, "between two marks the view stays"
    second = reader.post("statements").body
    assert second["moved"]
    assert (reader.engine("a").rows(), reader.engine("b").rows()) == (1, 1)


def test_a_session_whose_lease_ran_out_is_rolled_back_and_gone(lake: Inprocess, clock: ManualClock) -> None:
    main(lake, "orders").create()
    session = Session(lake, **{"lease-ms": 5_000})
    session.post("begin")
    session.engine("orders").append_rows(1)
    clock.now += 4_000
    assert session.post("heartbeat").status == 200
    clock.now += 4_000
    assert session.describe()["transaction"] is not None
    clock.now += 6_000
    assert lake.application.sessions.sweep() == 1
    assert session.post("heartbeat").status == 404
    gone = lake.get(f"/v1/{session.address}/namespaces/sales/tables/orders", token=session.token)
    assert gone.status == 401
    assert "lease" in gone.error["message"]
    assert main(lake, "orders").rows() == 0


def test_an_address_without_its_token_is_refused(lake: Inprocess) -> None:
    session = Session(lake)
    other = Session(lake)
    for token in (None, "wrong", other.token, "ifl.AAAA.BBBB", "ifl..", "ifl.e30.", "ifl.\xff"):
        assert lake.get(f"/v1/{session.address}/namespaces", token=token).status == 401
        assert lake.post(f"/api/v1/sessions/{session.id}/begin", token=token).status == 401


def add_column(engine: Engine, name: str) -> Any:
    meta = engine.load()
    schema = {**meta["schemas"][-1], "schema-id": len(meta["schemas"])}
    field = {"id": meta["last-column-id"] + 1, "name": name, "required": False, "type": "int"}
    schema["fields"] = [*schema["fields"], field]
    body = {
        "requirements": [{"type": "assert-last-assigned-field-id", "last-assigned-field-id": meta["last-column-id"]}],
        "updates": [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}],
    }
    return engine.post(body)


def test_a_column_added_inside_conflicts_only_if_the_columns_moved(lake: Inprocess) -> None:
    main(lake, "orders").create()
    session = Session(lake)
    session.post("begin")
    assert add_column(session.engine("orders"), "inside").status == 200
    assert main(lake, "orders").append_rows(1).status == 200
    assert session.post("commit").status == 200
    meta = main(lake, "orders").load()
    assert [f["name"] for f in meta["schemas"][-1]["fields"]] == ["id", "s", "inside"]
    assert main(lake, "orders").rows() == 1
    session.post("begin")
    assert add_column(session.engine("orders"), "inside_2").status == 200
    assert add_column(main(lake, "orders"), "outside").status == 200
    refused = session.post("commit")
    assert refused.status == 409
    assert refused.error["conflicts"][0]["entry"] == "sales.orders"


def test_an_id_never_changes_its_meaning_behind_an_assertion_that_was_not_made(lake: Inprocess) -> None:
    main(lake, "orders").create()
    stale = main(lake, "orders").load()
    assert add_column(main(lake, "orders"), "first").status == 200
    schema = {**stale["schemas"][0], "schema-id": 1}
    schema["fields"] = [*schema["fields"], {"id": 3, "name": "second", "required": False, "type": "int"}]
    updates = [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}]
    engine = main(lake, "orders")
    engine.load()
    assert engine.post({"requirements": [], "updates": updates}).status == 409
    rename = [{"type": "assert-current-schema-id", "current-schema-id": 1}]
    assert engine.post({"requirements": rename, "updates": updates}).status == 200


def test_strict_writes_are_never_rebased(lake: Inprocess) -> None:
    main(lake, "orders").create()
    for in_transaction in (False, True):
        session = Session(lake)
        if in_transaction:
            session.post("begin")
        number = session.post("statements", {"strict": True}).body["statement"]
        engine = session.engine("orders")
        meta = engine.load()
        body = engine.body(meta, engine.append(meta, 1000))
        main(lake, "orders").append_rows(1)
        answer = engine.post(body)
        session.delete(f"statements/{number}")
        if in_transaction:
            assert answer.status == 200, "nobody else is in the overlay"
            assert session.post("commit").status == 409
        else:
            assert answer.status == 400
            assert answer.error["message"].startswith("conflict: ")
    assert main(lake, "orders").rows() == 2


def test_begin_twice_commit_without_begin_and_checkout_inside_are_refused(lake: Inprocess) -> None:
    session = Session(lake)
    assert session.post("commit").status == 400
    assert session.post("savepoints", {"name": "x"}).status == 400
    told = session.post("begin", {"transaction-id": "11111111-2222"}).body
    assert session.post("begin", {"transaction-id": "11111111-2222"}).body["transaction"] == told["transaction"]
    assert session.post("begin").status == 400
    assert session.post("checkout", {"ref": "main"}).status == 400
    assert session.post("rollback").status == 200
    assert session.post("rollback").status == 200
    assert session.post("begin", {"transaction-id": "11111111-2222"}).status == 400, "used already"


def test_checkout_moves_an_address_and_tags_are_read_only(lake: Inprocess) -> None:
    main(lake, "orders").create()
    lake.post("/api/v1/repos/lake/branches", {"name": "dev"})
    lake.post("/api/v1/repos/lake/tags", {"name": "v1"})
    session = Session(lake)
    assert session.post("checkout", {"ref": "dev"}).status == 200
    assert session.engine("orders").append_rows(5).status == 200
    assert main(lake, "orders").rows() == 0
    assert Engine(lake, "lake@dev", "sales", "orders").rows() == 5
    assert session.post("checkout", {"ref": "v1"}).status == 200
    assert session.engine("orders").append_rows(5).status == 403
    assert session.post("begin").status == 403
    assert session.post("checkout", {"ref": "nowhere"}).status == 404


def test_a_snapshot_without_its_manifest_list_is_refused(lake: Inprocess) -> None:
    main(lake, "orders").create()
    engine = main(lake, "orders")
    for location in ("x", "file:///etc/passwd", f"{engine.load()['location']}/metadata/missing.avro", "s3://b/l.avro"):
        meta = engine.load()
        snapshot = {**engine.append(meta, 1), "manifest-list": location}
        refused = engine.post(engine.body(meta, snapshot))
        assert refused.status == 400
        assert refused.error["field"] == "updates[0].snapshot.manifest-list"
    assert engine.rows() == 0


def test_a_table_moves_only_to_where_nothing_is(lake: Inprocess) -> None:
    for table in ("orders", "other"):
        main(lake, table).create()
    engine, other = main(lake, "orders"), main(lake, "other").load()["location"]
    home = engine.load()["location"]

    def move(location: str) -> int:
        updates = [{"action": "set-location", "location": location}]
        return int(engine.post({"requirements": [], "updates": updates}).status)

    root = home.rpartition("/lake/")[0]
    assert [move(place) for place in (other, f"{other}/inside", root, "file:///tmp")] == [400, 400, 400, 400]
    assert [move(place) for place in (home, f"{root}/elsewhere/orders", home)] == [200, 200, 200]
