"""Laws that a second reading found open: what happens between a landing and its answer, refs that go away under a
transaction, words that are said blindly, ids at their ends.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from icefield.store.port import Store, StoreReader, StoreWriter
from icefield.store.records import OutcomeRecord, RangeRecord
from icefield.store.sql.sqlite import open_sqlite
from icefield.transaction import ranges
from icefield.volume.local import LocalVolume
from support.inprocess import Inprocess
from support.writer import Engine

NOTHING: Callable[[], None] = lambda: None  # noqa: E731
FIELD = {"id": 1, "name": "id", "required": False, "type": "long"}


class Watched:
    """A store that lets something happen right after its next write transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.then = NOTHING

    @contextmanager
    def read(self) -> Iterator[StoreReader]:
        with self._store.read() as reader:
            yield reader

    @contextmanager
    def write(self) -> Iterator[StoreWriter]:
        with self._store.write() as writer:
            yield writer
        then, self.then = self.then, NOTHING
        then()

    def close(self) -> None:
        self._store.close()


class Counting(LocalVolume):
    reads = 0

    def read(self, location: str, *, limit: int | None = None) -> bytes:
        self.reads += 1
        return super().read(location, limit=limit)


@pytest.fixture
def store(tmp_path: Path) -> Watched:
    return Watched(open_sqlite(tmp_path / "watched.db"))


@pytest.fixture
def volume(tmp_path: Path) -> Counting:
    (tmp_path / "volume").mkdir()
    return Counting(tmp_path / "volume")


@pytest.fixture
def lake(tmp_path: Path, store: Watched, volume: Counting) -> Iterator[Inprocess]:
    lake = Inprocess(tmp_path / "lake", store=store, volume=volume)
    assert lake.post("/v1/lake/namespaces", {"namespace": ["sales"]}).status == 200
    yield lake
    lake.close()


class Session:
    def __init__(self, lake: Inprocess, ref: str | None = None) -> None:
        self.lake = lake
        told = lake.post("/api/v1/sessions", {"ref": ref}).body
        self.id, self.token, self.address = told["id"], told["token"], told["address"]

    def post(self, verb: str, body: Any = None) -> Any:
        return self.lake.post(f"/api/v1/sessions/{self.id}/{verb}", body, token=self.token)

    def engine(self, table: str) -> Engine:
        return Engine(self.lake, self.address, "sales", table, token=self.token)


def main(lake: Inprocess, table: str, ref: str = "lake") -> Engine:
    return Engine(lake, ref, "sales", table)


def branch(lake: Inprocess, name: str, **more: str) -> None:
    assert lake.post("/api/v1/repos/lake/branches", {"name": name, **more}).status == 200


def elsewhere(lake: Inprocess) -> None:
    """What follows is another worker's, who has its own line to wait in."""
    lake.application.core.tickets._lines.clear()


def say(engine: Engine, *updates: dict[str, Any], requirements: list[dict[str, Any]] | None = None) -> Any:
    engine.load()
    return engine.post({"requirements": requirements or [], "updates": list(updates)})


# --- between the landing and its answer ------------------------------------------------------------------------------


def test_a_commit_that_landed_is_never_told_as_refused(lake: Inprocess, store: Watched) -> None:
    """A client that hears 404 deletes the files it wrote, and history names them by then."""
    main(lake, "orders").create()
    path = "/v1/lake/namespaces/sales/tables/orders"
    engine = main(lake, "orders")
    meta = engine.load()

    def dropped() -> None:
        elsewhere(lake)
        assert lake.delete(path).status == 204

    store.then = dropped
    assert engine.append_rows(3, meta=meta).status == 200
    assert lake.get(path).status == 404


def test_a_commit_whose_session_ended_meanwhile_is_told_as_landed(lake: Inprocess, store: Watched) -> None:
    main(lake, "orders").create()
    session = Session(lake)
    engine = session.engine("orders")
    meta = engine.load()
    store.then = lambda: lake.application.sessions.close(
        lake.application.sessions.authenticate(session.id, session.token)
    )
    assert engine.append_rows(3, meta=meta).status == 200
    assert main(lake, "orders").rows() == 3


# --- refs that go away under a transaction ---------------------------------------------------------------------------


def test_a_transaction_whose_branch_was_dropped_can_be_rolled_back(lake: Inprocess) -> None:
    main(lake, "orders").create()
    branch(lake, "dev")
    session = Session(lake, "dev")
    session.post("begin")
    session.engine("orders").append_rows(1)
    assert lake.delete("/api/v1/repos/lake/branches/dev").status == 200
    assert session.post("commit").status == 404
    assert session.post("rollback").status == 200
    assert session.post("checkout", {"ref": "main"}).status == 200
    assert session.engine("orders").rows() == 0


def test_a_transaction_never_lands_on_another_branch_that_has_its_branchs_name(lake: Inprocess) -> None:
    main(lake, "orders").create()
    branch(lake, "old")
    branch(lake, "dev")
    main(lake, "orders", "lake@dev").append_rows(1)
    session = Session(lake, "dev")
    session.post("begin")
    session.engine("other").create()
    assert lake.delete("/api/v1/repos/lake/branches/dev").status == 200
    branch(lake, "dev", **{"from": "old"})
    refused = session.post("commit")
    assert refused.status == 409
    assert "another" in refused.error["message"]
    assert lake.get("/v1/lake@dev/namespaces/sales/tables/other").status == 404


# --- words that are said blindly -------------------------------------------------------------------------------------


def test_a_property_set_differently_inside_and_outside_is_a_conflict(lake: Inprocess) -> None:
    for table in ("same", "other", "differ"):
        main(lake, table).create()
    session = Session(lake)
    session.post("begin")
    for table in ("same", "other", "differ"):
        say(session.engine(table), {"action": "set-properties", "updates": {"p": "inside"}})
    say(main(lake, "same"), {"action": "set-properties", "updates": {"p": "inside"}})
    say(main(lake, "other"), {"action": "set-properties", "updates": {"q": "outside"}})
    say(main(lake, "differ"), {"action": "set-properties", "updates": {"p": "outside"}})
    refused = session.post("commit")
    assert refused.status == 409
    assert [c["entry"] for c in refused.error["conflicts"]] == ["sales.differ"]
    assert main(lake, "differ").load()["properties"]["p"] == "outside"


def test_a_table_replaced_inside_never_takes_rows_away_that_came_meanwhile(lake: Inprocess) -> None:
    main(lake, "orders").create()
    main(lake, "orders").append_rows(1)
    session = Session(lake)
    session.post("begin")
    replaced = say(session.engine("orders"), {"action": "remove-snapshot-ref", "ref-name": "main"})
    assert replaced.status == 200
    main(lake, "orders").append_rows(2)
    assert session.post("commit").status == 409
    assert main(lake, "orders").rows() == 3


@pytest.mark.parametrize("action", ["SET-LOCATION", "Set-Properties"])
def test_an_action_in_capitals_is_held_to_the_same_rules(lake: Inprocess, tmp_path: Path, action: str) -> None:
    main(lake, "orders").create()
    outside = f"file://{tmp_path}/outside"
    body = {"location": outside} if "LOC" in action else {"updates": {"write.metadata.path": outside}}
    assert say(main(lake, "orders"), {"action": action, **body}).status == 400
    if "LOC" not in action:
        assert say(main(lake, "orders"), {"action": "set-properties", "updated": body["updates"]}).status == 400
    assert not (tmp_path / "outside").exists()


def test_a_snapshot_posted_in_capitals_lands_once(lake: Inprocess) -> None:
    main(lake, "orders").create()
    engine = main(lake, "orders")
    meta = engine.load()
    body = engine.body(meta, engine.append(meta, 3))
    for update in body["updates"]:
        update["action"] = update["action"].upper()
    assert engine.post(body).status == 200
    main(lake, "orders").append_rows(1)
    assert engine.post(body).status == 200
    assert main(lake, "orders").rows() == 4


def test_a_commit_of_several_tables_asked_again_lands_once_with_all_of_them(lake: Inprocess) -> None:
    for table in ("a", "b"):
        main(lake, table).create()
    engine = main(lake, "a")
    meta, other = engine.load(), main(lake, "b").load()
    schema = {**other["schemas"][0], "schema-id": 1}
    schema["fields"] = [*schema["fields"], {"id": 3, "name": "new", "required": False, "type": "int"}]
    column = {
        "requirements": [{"type": "assert-last-assigned-field-id", "last-assigned-field-id": 2}],
        "updates": [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}],
    }
    both = [engine.body(meta, engine.append(meta, 3)), column]
    changes = [
        {"identifier": {"namespace": ["sales"], "name": name}, **body} for name, body in zip("ab", both, strict=True)
    ]
    for asked in (changes, changes, changes[::-1]):
        assert lake.post("/v1/lake/transactions/commit", {"table-changes": asked}).status == 204
    assert main(lake, "a").rows() == 3
    main(lake, "c").create()
    wider = [*changes, {"identifier": {"namespace": ["sales"], "name": "c"}, "requirements": [], "updates": []}]
    assert lake.post("/v1/lake/transactions/commit", {"table-changes": wider}).status == 409


@pytest.mark.parametrize("inside", [False, True])
def test_what_a_table_was_served_is_not_kept_by_one_made_like_it(lake: Inprocess, inside: bool) -> None:
    main(lake, "orders").create()
    session = Session(lake)
    if inside:
        session.post("begin")
    engine = session.engine("orders")
    served = engine.load()["properties"]
    schema = {"type": "struct", "fields": [FIELD]}
    told = {"name": "like", "schema": schema, "properties": {**served, "mine": "1"}}
    assert lake.post(engine.collection, told, token=session.token).status == 200
    if inside:
        assert session.post("commit").status == 200
    location = lake.get("/v1/lake/namespaces/sales/tables/like").body["metadata-location"]
    kept = json.loads(Path(location.removeprefix("file://")).read_bytes())["properties"]
    assert kept["mine"] == "1"
    assert not {"icefield.ref", "gc.enabled", "write.data.path", "write.metadata.path"} & set(kept)
    assert not any("isolation" in key for key in kept)


# --- staged creation -------------------------------------------------------------------------------------------------


def staged(lake: Inprocess, name: str) -> dict[str, Any]:
    body = {"name": name, "schema": {"type": "struct", "fields": [FIELD]}, "stage-create": True}
    meta = lake.post("/v1/lake/namespaces/sales/tables", body).body["metadata"]
    return {
        "requirements": [{"type": "assert-create"}],
        "updates": [
            {"action": "assign-uuid", "uuid": meta["table-uuid"]},
            {"action": "add-schema", "schema": meta["schemas"][0], "last-column-id": 1},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": meta["partition-specs"][0]},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": meta["sort-orders"][0]},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-location", "location": meta["location"]},
        ],
    }


@pytest.mark.parametrize("gone", ["dropped", "renamed"])
def test_a_staged_creation_asked_again_never_makes_a_second_table(lake: Inprocess, gone: str) -> None:
    path = "/v1/lake/namespaces/sales/tables/made"
    body = staged(lake, "made")
    assert lake.post(path, body).status == 200
    assert lake.post(path, body).status == 200, "asked again: it has landed"
    if gone == "dropped":
        assert lake.delete(path).status == 204
    else:
        names = {"source": ("made"), "destination": "elsewhere"}
        told = {key: {"namespace": ["sales"], "name": name} for key, name in names.items()}
        assert lake.post("/v1/lake/tables/rename", told).status == 204
    assert lake.post(path, body).status == 409
    assert lake.get(path).status == 404


def test_a_created_tables_name_and_location_are_checked_on_every_way(lake: Inprocess) -> None:
    tables = "/v1/lake/namespaces/sales/tables"
    body = staged(lake, "made")
    assert lake.post(f"{tables}/a%00b", body).status == 400
    assert lake.post(f"{tables}/{'x' * 600}", body).status == 400
    for wrong in (5, ["x"], {}, "", "file://[x/a", "file:///a\x00b"):
        updates = [u for u in body["updates"] if u["action"] not in ("set-location", "assign-uuid")]
        updates.append({"action": "set-location", "location": wrong})
        answer = lake.post(f"{tables}/made", {**body, "updates": updates})
        assert answer.status == 400, (wrong, answer)


def test_a_table_with_a_location_of_its_own_made_twice_exists_already(lake: Inprocess, volume: Counting) -> None:
    body = {"name": "own", "schema": {"type": "struct", "fields": [FIELD]}, "location": f"{volume.root}/own"}
    for stage in (False, True):
        for expected in (409, 409) if stage else (200, 409):
            answer = lake.post("/v1/lake/namespaces/sales/tables", {**body, "stage-create": stage})
            assert answer.status == expected


def test_weird_locations_are_refused_by_name(lake: Inprocess, volume: Counting) -> None:
    main(lake, "orders").create()
    file = lake.get("/v1/lake/namespaces/sales/tables/orders").body["metadata-location"]
    schema = {"type": "struct", "fields": [FIELD]}
    for number, wrong in enumerate(
        (
            "file://[x/a",
            f"{volume.root}/a\x00b",
            f"{volume.root}/{'x' * 300}",
            f"{file}/x",
            f"{volume.root}/" + "x/" * 3000,
        )
    ):
        request = {"name": f"t{number}", "schema": schema}
        answer = lake.post("/v1/lake/namespaces/sales/tables", {**request, "location": wrong})
        assert (answer.status, answer.error["field"]) == (400, "location"), wrong
        answer = lake.post(
            "/v1/lake/namespaces/sales/tables", {**request, "properties": {"write.metadata.path": wrong}}
        )
        assert answer.status == 400, wrong
        assert say(main(lake, "orders"), {"action": "set-location", "location": wrong}).status == 400, wrong
        snapshot = {"snapshot-id": 5, "sequence-number": 1, "timestamp-ms": 1, "summary": {"operation": "append"}}
        update = {"action": "add-snapshot", "snapshot": {**snapshot, "manifest-list": wrong}}
        assert say(main(lake, "orders"), update).status < 500, wrong


# --- ids at their ends -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("highest", [2_147_483_446, 2_147_483_000])
def test_a_table_whose_field_ids_are_used_up_can_still_be_read_on_every_branch(lake: Inprocess, highest: int) -> None:
    path = "namespaces/sales/tables/made"
    body = staged(lake, "made")
    body["updates"][1]["schema"]["fields"][0]["id"] = highest
    assert lake.post(f"/v1/lake/{path}", body).status == 200
    branch(lake, "dev")
    for address in ("lake", "lake@dev"):
        loaded = lake.get(f"/v1/{address}/{path}")
        assert loaded.status == 200
        assert loaded.body["metadata"]["last-column-id"] < 2**31
        assert loaded.body["metadata"]["last-partition-id"] < 2**31


def test_no_range_ever_ends_above_what_its_kind_can_hold(lake: Inprocess, store: Watched) -> None:
    for kind, highest in ranges.HIGHEST.items():
        for free in (highest - 1, highest):
            entry = str(uuid.uuid4())
            with store.write() as writer:
                for ref in ("one", "other"):
                    ranges._allocate(writer, entry, kind, ref, free, before=None)
                found = writer.find(RangeRecord, entry=entry)
            assert all(each.low <= each.high <= highest for each in found)
            assert found[0].high <= found[1].low or found[1].high <= found[0].low


def test_every_snapshot_of_a_chain_stays_in_its_refs_row_ids(lake: Inprocess) -> None:
    main(lake, "orders").create(version=3)
    branch(lake, "dev")
    main(lake, "orders").load()
    engine = main(lake, "orders", "lake@dev")
    meta = engine.load()
    main_top = main(lake, "orders").load()["next-row-id"] + ranges.WIDTH[ranges.ROWS]
    engine_on_main = main(lake, "orders")
    meta = engine_on_main.load()
    first = engine_on_main.append(meta, 5)
    first["added-rows"] = ranges.WIDTH[ranges.ROWS] - 1
    second = {**first, "snapshot-id": first["snapshot-id"] + 1, "parent-snapshot-id": first["snapshot-id"]}
    second |= {"sequence-number": first["sequence-number"] + 1, "added-rows": 100}
    second["first-row-id"] = first["first-row-id"] + first["added-rows"]
    answer = engine_on_main.post(engine_on_main.body(meta, first, second))
    assert answer.status == 200 or answer.status in (400, 409)
    if answer.status == 200:
        last = answer.body["metadata"]["snapshots"][-1]
        assert last["first-row-id"] + last["added-rows"] <= main_top or last["first-row-id"] >= main_top


# --- merge -----------------------------------------------------------------------------------------------------------


def test_a_merge_asked_again_while_the_first_is_under_way_lands_once(
    lake: Inprocess, store: Watched, volume: Counting
) -> None:
    branch(lake, "dev")
    main(lake, "a").create()
    main(lake, "b", "lake@dev").create()
    body = {"from": "dev", "into": "main", "id": str(uuid.uuid4())}
    answers = []

    def ask() -> None:
        answers.append(lake.post("/api/v1/repos/lake/merge", body).body)

    original = volume.write_new

    def meanwhile(files: dict[str, bytes]) -> None:
        elsewhere(lake)
        volume.write_new = original  # type: ignore[method-assign]
        ask()

    volume.write_new = meanwhile  # type: ignore[method-assign]
    ask()
    assert answers[0] == answers[1]
    assert answers[0]["result"] == "merged"
    merges = [c for c in lake.get("/api/v1/repos/lake/log").body["commits"] if c["operation"] == "merge"]
    assert len(merges) == 1
    with store.read() as reader:
        assert len(reader.find(OutcomeRecord)) == 1


def test_an_id_of_one_merge_never_answers_another(lake: Inprocess) -> None:
    for name in ("one", "two"):
        branch(lake, name)
        main(lake, name, f"lake@{name}").create()
    told = {"into": "main", "id": str(uuid.uuid4())}
    assert lake.post("/api/v1/repos/lake/merge", {**told, "from": "one"}).status == 200
    assert lake.post("/api/v1/repos/lake/merge", {**told, "from": "two"}).status == 400


def test_two_branches_merged_into_two_others_leave_a_base_to_go_on_from(lake: Inprocess) -> None:
    """Two best merge bases, one with each side's part: together they are the base."""
    for table in ("a", "b"):
        main(lake, table).create()
    for name in ("f1", "f2", "dev"):
        branch(lake, name)
    main(lake, "a", "lake@f1").append_rows(1)
    main(lake, "b", "lake@f2").append_rows(2)
    for name, into in (("f1", "main"), ("f2", "main"), ("f2", "dev"), ("f1", "dev")):
        assert lake.post("/api/v1/repos/lake/merge", {"from": name, "into": into}).status == 200
    main(lake, "a").append_rows(10)
    main(lake, "b", "lake@dev").append_rows(20)
    merged = lake.post("/api/v1/repos/lake/merge", {"from": "main", "into": "dev"})
    assert merged.status == 200, merged
    assert (main(lake, "a", "lake@dev").rows(), main(lake, "b", "lake@dev").rows()) == (11, 22)
    main(lake, "a").append_rows(100)
    main(lake, "a", "lake@dev").append_rows(100)
    assert lake.post("/api/v1/repos/lake/merge", {"from": "dev", "into": "main"}).status == 409


# --- cost ------------------------------------------------------------------------------------------------------------


def test_rollback_reads_each_manifest_once(lake: Inprocess, volume: Counting) -> None:
    main(lake, "orders").create()
    session = Session(lake)
    session.post("begin")
    for _ in range(12):
        assert session.engine("orders").append_rows(1).status == 200
    volume.reads = 0
    assert session.post("rollback").status == 200
    assert volume.reads <= 3 * 12


# --- names that move while a transaction is open ----------------------------------------------------------------------


def rename(lake: Inprocess, address: str, source: str, destination: str, token: str | None = None) -> Any:
    told = {k: {"namespace": ["sales"], "name": n} for k, n in (("source", source), ("destination", destination))}
    return lake.post(f"/v1/{address}/tables/rename", told, token=token)


def test_two_tables_swapped_inside_meet_appends_outside(lake: Inprocess) -> None:
    for table, size in (("a", 1), ("b", 2)):
        main(lake, table).create()
        main(lake, table).append_rows(size)
    session = Session(lake)
    session.post("begin")
    for source, destination in (("a", "t"), ("b", "a"), ("t", "b")):
        assert rename(lake, session.address, source, destination, session.token).status == 204
    main(lake, "a").append_rows(10)
    assert session.post("commit").status == 200
    assert (main(lake, "a").rows(), main(lake, "b").rows()) == (2, 11)
    assert lake.get("/v1/lake/namespaces/sales/tables/t").status == 404


def test_a_change_inside_follows_a_rename_outside(lake: Inprocess) -> None:
    main(lake, "a").create()
    main(lake, "a").append_rows(1)
    session = Session(lake)
    session.post("begin")
    session.engine("a").append_rows(10)
    assert rename(lake, "lake", "a", "renamed").status == 204
    main(lake, "a").create()
    main(lake, "a").append_rows(500)
    main(lake, "renamed").append_rows(100)
    assert session.post("commit").status == 200
    assert (main(lake, "a").rows(), main(lake, "renamed").rows()) == (500, 111)


@pytest.mark.parametrize("touched", [False, True])
def test_a_table_dropped_and_made_again_inside_is_another_one(lake: Inprocess, touched: bool) -> None:
    main(lake, "a").create()
    main(lake, "a").append_rows(1)
    before = main(lake, "a").load()
    session = Session(lake)
    session.post("begin")
    session.engine("a").append_rows(5)
    path = f"/v1/{session.address}/namespaces/sales/tables/a"
    assert lake.delete(path, token=session.token).status == 204
    session.engine("a").create()
    session.engine("a").append_rows(7)
    if touched:
        main(lake, "a").append_rows(2)
        assert session.post("commit").status == 409
        assert main(lake, "a").rows() == 3
    else:
        assert session.post("commit").status == 200
        after = main(lake, "a").load()
        assert main(lake, "a").rows() == 7
        assert after["location"] != before["location"]
        assert after["table-uuid"] != before["table-uuid"]


def test_a_table_changed_inside_and_gone_outside_is_a_conflict(lake: Inprocess) -> None:
    for again in (False, True):
        main(lake, "a").create()
        session = Session(lake)
        session.post("begin")
        session.engine("a").append_rows(5)
        assert lake.delete("/v1/lake/namespaces/sales/tables/a").status == 204
        if again:
            main(lake, "a").create()
        refused = session.post("commit")
        assert refused.status == 409
        assert [c["entry"] for c in refused.error["conflicts"]] == ["sales.a"]


def test_renamed_and_changed_inside_then_moved_under_it(lake: Inprocess) -> None:
    main(lake, "a").create()
    session = Session(lake)
    session.post("begin")
    session.engine("a").append_rows(5)
    assert rename(lake, session.address, "a", "b", session.token).status == 204
    session.engine("b").append_rows(6)
    main(lake, "other").create()
    assert session.post("commit").status == 200
    assert main(lake, "b").rows() == 11
    session.post("begin")
    session.engine("b").append_rows(5)
    assert rename(lake, session.address, "b", "a", session.token).status == 204
    main(lake, "b").append_rows(1)
    told = session.post("commit")
    if told.status == 200:
        assert main(lake, "a").rows() == 17
    else:
        assert told.status == 409
        assert main(lake, "b").rows() == 12


def test_a_namespaces_properties_are_merged_one_by_one(lake: Inprocess) -> None:
    path = "namespaces/sales/properties"
    lake.post(f"/v1/lake/{path}", {"updates": {"a": "0", "b": "0"}})
    for inside, outside, status in (
        ({"a": "1"}, {"b": "1"}, 200),
        ({"a": "2"}, {"a": "2"}, 200),
        ({"a": "3"}, {"a": "4"}, 409),
    ):
        session = Session(lake)
        session.post("begin")
        assert lake.post(f"/v1/{session.address}/{path}", {"updates": inside}, token=session.token).status == 200
        assert lake.post(f"/v1/lake/{path}", {"updates": outside}).status == 200
        assert session.post("commit").status == status
    assert lake.get("/v1/lake/namespaces/sales").body["properties"] == {"a": "4", "b": "1"}


# --- durability, and what a refused write leaves ----------------------------------------------------------------------


def test_every_folder_above_a_metadata_file_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that somebody else made a moment ago: its name is durable only once the folder above it is synced."""
    volume = LocalVolume(tmp_path)
    synced: list[Path] = []
    monkeypatch.setattr("icefield.volume.local._sync_folder", synced.append)
    (tmp_path / "a" / "b").mkdir(parents=True)
    volume.write_new({f"{volume.root}/a/b/c/file": b"x"})
    assert set(synced) == {tmp_path, tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/c"}
    synced.clear()
    volume.write_new({f"{volume.root}/a/b/c/other": b"x"})
    assert synced == [tmp_path / "a/b/c"], "what is durable stays so"
    synced.clear()
    volume.make_folder(f"{volume.root}/d/e")
    assert set(synced) == {tmp_path, tmp_path / "d"}


def test_what_was_written_for_a_statement_that_returned_meanwhile_is_queued(lake: Inprocess, volume: Counting) -> None:
    main(lake, "orders").create()
    session = Session(lake)
    transaction = session.post("begin").body["transaction"]
    statement = session.post("statements").body["statement"]
    engine = session.engine("orders")
    meta = engine.load()
    written: list[str] = []
    original = volume.write_new

    def meanwhile(files: dict[str, bytes]) -> None:
        volume.write_new = original  # type: ignore[method-assign]
        original(files)
        written.extend(files)
        lake.delete(f"/api/v1/sessions/{session.id}/statements/{statement}", token=session.token)

    volume.write_new = meanwhile  # type: ignore[method-assign]
    assert engine.append_rows(3, meta=meta).status == 400
    queued = {each["location"] for each in lake.get("/api/v1/repos/lake/deletions").body["files"]}
    assert written
    assert all(f"/tx-{transaction}/" in location for location in written)
    assert set(written) <= queued


def test_a_write_that_changes_nothing_leaves_the_statements_view_where_it_is(lake: Inprocess) -> None:
    session = Session(lake)
    session.post("statements")
    namespaces = f"/v1/{session.address}/namespaces"
    assert lake.post("/v1/lake/namespaces", {"namespace": ["later"]}).status == 200
    assert lake.post(f"{namespaces}/sales/properties", {"updates": {}}, token=session.token).status == 200
    assert lake.get(namespaces, token=session.token).body["namespaces"] == [["sales"]]
