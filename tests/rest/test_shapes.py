"""The catalog answer of a session: what its fingerprint covers, and that it costs what has changed."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from icefield.catalog.places import Place, open_place
from icefield.catalog.shapes import Shapes
from icefield.model.names import parse_address
from icefield.transaction.metadata_files import MetadataFiles
from support.inprocess import Inprocess
from support.writer import SCHEMA, Engine

Json = dict[str, Any]
SALES = "/v1/lake/namespaces/sales"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Inprocess]:
    lake = Inprocess(tmp_path / "lake")
    lake.post("/v1/lake/namespaces", {"namespace": ["sales"]})
    for name in ("orders", "customers"):
        assert Engine(lake, "lake", "sales", name).create(version=3).status == 200
    yield lake
    lake.close()


class Session:
    def __init__(self, lake: Inprocess, ref: str = "main") -> None:
        self.lake = lake
        told = lake.post("/api/v1/sessions", {"ref": ref}).body
        self.path, self.token, self.address = f"/api/v1/sessions/{told['id']}", told["token"], told["address"]

    def ask(self, verb: str, body: Json | None = None) -> Any:
        return self.lake.post(f"{self.path}/{verb}", body, token=self.token)

    def catalog(self, unless: str = "") -> Json:
        answer = self.lake.get(f"{self.path}/catalog?unless={unless}", token=self.token)
        assert answer.status == 200, answer
        found: Json = answer.body
        return found

    def orders(self) -> Engine:
        engine = Engine(self.lake, self.address, "sales", "orders", token=self.token)
        engine.load()
        return engine


def say(engine: Engine, *updates: Json) -> None:
    engine.load()
    answer = engine.post({"requirements": [], "updates": list(updates)})
    assert answer.status == 200, answer


def properties(**values: str) -> Json:
    return {"action": "set-properties", "updates": {k.replace("__", "."): v for k, v in values.items()}}


def schema(change: Any) -> list[Json]:
    """The table's schema with a change, as the current one."""
    new = copy.deepcopy(SCHEMA)
    change(new)
    return [{"action": "add-schema", "schema": new}, {"action": "set-current-schema", "schema-id": -1}]


def _doc(s: Json) -> None:
    s["fields"][0]["doc"] = "what it is"


def _write_default(s: Json) -> None:
    s["fields"][1]["write-default"] = "x"


def _required(s: Json) -> None:
    s["fields"][0]["required"] = True
    s["identifier-field-ids"] = [s["fields"][0]["id"]]


SPEC = {"spec-id": 1, "fields": [{"source-id": 1, "field-id": 1000, "name": "b", "transform": "bucket[4]"}]}


@pytest.mark.parametrize(
    "updates",
    [
        [properties(comment="all orders")],
        [properties(icefield__default__1="now()")],
        [properties(icefield__check__positive="$1 > 0")],
        schema(_doc),
        schema(_write_default),
        [{"action": "add-spec", "spec": SPEC}, {"action": "set-default-spec", "spec-id": -1}],
    ],
)
def test_what_a_shadow_is_made_from_changes_the_fingerprint(lake: Inprocess, updates: list[Json]) -> None:
    session = Session(lake)
    before = session.catalog()
    say(Engine(lake, "lake", "sales", "orders"), *updates)
    after = session.catalog(before["fingerprint"])
    assert "unchanged" not in after
    assert after["fingerprint"] != before["fingerprint"]
    orders = next(t for t in after["tables"] if t["name"] == "orders")
    told = lake.get(f"{SALES}/tables/orders").body["metadata"]
    current = next(s for s in told["schemas"] if s["schema-id"] == told["current-schema-id"])
    assert orders["schema"] == current
    assert orders["partition-spec"]["spec-id"] == told["default-spec-id"]
    assert all(told["properties"][key] == value for key, value in orders["properties"].items())


def test_the_format_version_and_identifier_fields_change_it(lake: Inprocess) -> None:
    fields = copy.deepcopy(SCHEMA)
    _required(fields)
    lake.post(f"{SALES}/tables", {"name": "old", "schema": fields, "properties": {"format-version": "2"}})
    lake.post(f"{SALES}/tables", {"name": "plain", "schema": SCHEMA, "properties": {"format-version": "2"}})
    session = Session(lake)
    first = session.catalog()
    assert next(t for t in first["tables"] if t["name"] == "old")["schema"]["identifier-field-ids"] == [1]
    say(Engine(lake, "lake", "sales", "old"), {"action": "upgrade-format-version", "format-version": 3})
    second = session.catalog(first["fingerprint"])
    assert second["fingerprint"] != first["fingerprint"]
    assert {t["name"]: t["format-version"] for t in second["tables"]}["old"] == 3
    _required(fields := copy.deepcopy(SCHEMA))
    del fields["identifier-field-ids"]
    say(
        Engine(lake, "lake", "sales", "old"),
        {"action": "add-schema", "schema": fields},
        {"action": "set-current-schema", "schema-id": -1},
    )
    assert session.catalog(second["fingerprint"])["fingerprint"] != second["fingerprint"]


def test_rows_and_other_properties_leave_it_alone(lake: Inprocess) -> None:
    session = Session(lake)
    before = session.catalog()["fingerprint"]
    orders = Engine(lake, "lake", "sales", "orders")
    orders.append_rows(3)
    say(orders, properties(write__parquet__compression="zstd", icefields="no prefix of ours"))
    told = session.catalog(before)
    assert told["unchanged"] is True
    assert told["commit"] == lake.get("/api/v1/repos/lake/log?limit=1").body["commits"][0]["id"]
    # What is told does follow: the snapshot, and where the metadata is.
    loaded = lake.get(orders.path).body
    told = next(t for t in session.catalog()["tables"] if t["name"] == "orders")
    assert told["metadata-location"] == loaded["metadata-location"]
    assert told["snapshot-id"] == loaded["metadata"]["current-snapshot-id"]
    assert told["properties"]["icefields"] == "no prefix of ours"


def test_names_come_and_go_and_one_shape_has_one_fingerprint(lake: Inprocess) -> None:
    session = Session(lake)
    first = session.catalog()
    lake.post("/v1/lake/namespaces", {"namespace": ["hr"]})
    second = session.catalog()
    assert second["namespaces"] == [["hr"], ["sales"]]
    rename = {
        "source": {"namespace": ["sales"], "name": "orders"},
        "destination": {"namespace": ["hr"], "name": "orders"},
    }
    lake.post("/v1/lake/tables/rename", rename)
    third = session.catalog()
    assert [(t["namespace"], t["name"]) for t in third["tables"]] == [(["hr"], "orders"), (["sales"], "customers")]
    lake.post("/v1/lake/tables/rename", {"source": rename["destination"], "destination": rename["source"]})
    assert session.catalog(second["fingerprint"])["unchanged"] is True
    lake.delete("/v1/lake/namespaces/hr")
    assert session.catalog(first["fingerprint"])["unchanged"] is True
    lake.delete(f"{SALES}/tables/orders")
    Engine(lake, "lake", "sales", "orders").create(version=3)
    assert session.catalog(first["fingerprint"])["fingerprint"] != first["fingerprint"], "another table of its name"
    assert len({first["fingerprint"], second["fingerprint"], third["fingerprint"]}) == 3


def test_a_transaction_sees_its_own_shape(lake: Inprocess) -> None:
    session, other = Session(lake), Session(lake)
    before = session.catalog()["fingerprint"]
    session.ask("begin")
    assert session.catalog(before)["unchanged"] is True
    session.orders().append_rows(3)
    assert session.catalog(before)["unchanged"] is True
    session.ask("savepoints", {"name": "s"})
    say(session.orders(), properties(comment="mine"))
    Engine(lake, session.address, "sales", "new", token=session.token).create()
    lake.delete(f"/v1/{session.address}/namespaces/sales/tables/customers", token=session.token)
    inside = session.catalog(before)
    assert [t["name"] for t in inside["tables"]] == ["new", "orders"]
    assert other.catalog(before)["unchanged"] is True
    session.ask("savepoints/s/rollback")
    assert session.catalog(before)["unchanged"] is True
    say(session.orders(), properties(comment="mine"))
    alone = session.catalog(before)["fingerprint"]
    assert alone not in (before, inside["fingerprint"])
    assert session.ask("commit").status == 200
    assert session.catalog(alone)["unchanged"] is True, "what landed has the shape that it had inside"


class Counting(MetadataFiles):
    loads = 0

    def load(self, location: str) -> Json:
        self.loads += 1
        return super().load(location)


def at(lake: Inprocess, address: str = "lake") -> Place:
    app = lake.application
    return open_place(app.core, app.sessions, parse_address(address), bearer=None, principal="")


def test_a_call_reads_what_has_changed_and_nothing_else(lake: Inprocess) -> None:
    metadata = Counting(lake.application.core.volume)
    shapes = Shapes(metadata)
    for number in range(40):
        Engine(lake, "lake", "sales", f"t{number}").create()
    told = shapes.answer(at(lake), None)
    assert (len(told["tables"]), metadata.loads) == (42, 42)
    shapes.answer(at(lake), None)
    assert metadata.loads == 42
    Engine(lake, "lake", "sales", "t7").append_rows(1)
    assert shapes.answer(at(lake), told["fingerprint"])["unchanged"] is True
    assert metadata.loads == 43
    lake.post("/api/v1/repos/lake/branches", {"name": "dev"})
    assert shapes.answer(at(lake, "lake@dev"), told["fingerprint"])["unchanged"] is True
    assert metadata.loads == 43, "a branch of it is the same tree"


def test_however_a_shape_came_about_it_is_what_a_fresh_server_says(lake: Inprocess) -> None:
    """Shapes made from the one before, from a transaction's or from nothing."""
    rng = random.Random(3)
    shapes = Shapes(lake.application.core.metadata)
    lake.post("/api/v1/repos/lake/branches", {"name": "dev"})
    for _ in range(60):
        prefix = rng.choice(["lake", "lake@dev"])
        engine = Engine(lake, prefix, "sales", f"t{rng.randrange(4)}")
        if lake.get(engine.path).status == 404:
            assert engine.create().status == 200
        elif rng.random() < 0.4:
            assert lake.delete(engine.path).status == 204
        else:
            say(engine, properties(comment=str(rng.randrange(3))))
        place = at(lake, rng.choice(["lake", "lake@dev"]))
        assert shapes.answer(place, None) == Shapes(lake.application.core.metadata).answer(place, None)
