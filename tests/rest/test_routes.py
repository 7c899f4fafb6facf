"""Every route of Iceberg REST, in-process: what it answers, what it refuses and how it says so."""

from __future__ import annotations

import copy
import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from icefield.rest.iceberg import ROUTES
from support.inprocess import Inprocess
from support.writer import SCHEMA, Engine, updates_of

Json = dict[str, Any]
SALES = "/v1/lake/namespaces/sales"
ORDERS = f"{SALES}/tables/orders"
REPO = "/api/v1/repos/lake"

AWKWARD = [
    "a.b",
    "a/b",
    "a b",
    " ",
    "100%",
    "%2F",
    "%1F",
    "a+b",
    "a?b=c&d",
    "a#b",
    "..",
    ".",
    "\N{SNOWMAN}\N{COMBINING ENCLOSING KEYCAP}",
    "\N{FAMILY} \N{GRINNING FACE}",
    'quo"te\\',
    "tab\tnew\nline",
    "tables",
    "Ä" * 256,
]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Inprocess]:
    lake = Inprocess(tmp_path / "lake")
    assert lake.post("/v1/lake/namespaces", {"namespace": ["sales"]}).status == 200
    yield lake
    lake.close()


def seg(*levels: str) -> str:
    """A path segment, as clients write it."""
    return quote("\x1f".join(levels), safe="")


def table(lake: Inprocess, name: str = "orders", prefix: str = "lake", *, rows: int = 0, version: int = 2) -> Engine:
    engine = Engine(lake, prefix, "sales", name)
    if lake.get(engine.path).status == 404:
        assert engine.create(version=version).status == 200
    if rows:
        assert engine.append_rows(rows).status == 200
    return engine


def body_of(name: str = "orders", **more: Any) -> Json:
    return {"name": name, "schema": copy.deepcopy(SCHEMA), **more}


def on_disk(location: str) -> Json:
    meta: Json = json.loads(Path(location.removeprefix("file://")).read_bytes())
    return meta


def head(lake: Inprocess, ref: str = "main") -> str:
    return str(lake.get(f"{REPO}/log?ref={ref}&limit=1").body["commits"][0]["id"])


def refused(answer: Any, field: str | None, *words: str, status: int = 400) -> None:
    """The answer says which part of the request is at fault, as ``field`` or in words."""
    assert answer.status == status, answer
    assert answer.error["code"] == status
    assert answer.error["type"]
    if field is not None:
        assert answer.error.get("field") == field, answer
    for word in words:
        assert word in answer.error["message"], answer


# -- config and the list of routes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["", "lake", "lake@dev"])
def test_config_names_the_prefix_and_every_route(lake: Inprocess, address: str) -> None:
    lake.post(f"{REPO}/branches", {"name": "dev"})
    config = lake.get(f"/v1/config?warehouse={quote(address, safe='')}").body
    assert config["overrides"]["prefix"] == (address or "lake")
    assert set(config["endpoints"]) == {f"{method} /v1/{{prefix}}{pattern}" for method, pattern, _ in ROUTES}
    assert lake.get(f"/v1/{config['overrides']['prefix']}/namespaces").body["namespaces"] == [["sales"]]


def test_a_prefix_round_trips_where_a_ref_has_a_slash(lake: Inprocess) -> None:
    lake.post(f"{REPO}/branches", {"name": "team/a.b-c"})
    prefix = lake.get("/v1/config?warehouse=lake%40team%2Fa.b-c").body["overrides"]["prefix"]
    assert "/" not in prefix
    assert lake.get(f"/v1/{prefix}/namespaces/sales").status == 200


@pytest.mark.parametrize(
    ("address", "status"),
    [("nosuch", 404), ("lake@nosuch", 404), ("lake@~nosuch", 401), ("la ke", 400), ("lake@", 400), ("lake@a..b", 400)],
)
def test_an_address_that_leads_nowhere_is_refused_on_config_and_on_every_other_route(
    lake: Inprocess, address: str, status: int
) -> None:
    for path in (f"/v1/config?warehouse={quote(address, safe='')}", f"/v1/{quote(address, safe='')}/namespaces"):
        answer = lake.get(path)
        assert answer.status == status, (path, answer)
        assert answer.error["message"]


def test_routes_without_a_prefix_stand_at_the_default_repo(lake: Inprocess) -> None:
    assert lake.get("/v1/namespaces").body["namespaces"] == [["sales"]]


# -- namespaces -------------------------------------------------------------------------------------------------------


def test_the_life_of_a_namespace(lake: Inprocess) -> None:
    told = {"namespace": ["hr"], "properties": {"owner": "ann", "empty": ""}}
    assert lake.post("/v1/lake/namespaces", told).body == told
    assert lake.get("/v1/lake/namespaces/hr").body == told
    assert lake("HEAD", "/v1/lake/namespaces/hr").status == 204
    assert lake.get("/v1/lake/namespaces").body["namespaces"] == [["hr"], ["sales"]]
    again = lake.post("/v1/lake/namespaces", told)
    refused(again, None, "hr", status=409)
    assert again.error["type"] == "AlreadyExistsException"
    changed = lake.post(
        "/v1/lake/namespaces/hr/properties", {"removals": ["owner", "ghost"], "updates": {"empty": "no", "b": "1"}}
    )
    assert changed.body == {"updated": ["b", "empty"], "removed": ["owner"], "missing": ["ghost"]}
    assert lake.get("/v1/lake/namespaces/hr").body["properties"] == {"b": "1", "empty": "no"}
    assert lake.delete("/v1/lake/namespaces/hr").status == 204
    for answer in (
        lake.get("/v1/lake/namespaces/hr"),
        lake("HEAD", "/v1/lake/namespaces/hr"),
        lake.delete("/v1/lake/namespaces/hr"),
        lake.get("/v1/lake/namespaces/hr/tables"),
        lake.post("/v1/lake/namespaces/hr/properties", {"updates": {"a": "b"}}),
        lake.post("/v1/lake/namespaces/hr/tables", body_of()),
        lake.get("/v1/lake/namespaces?parent=hr"),
    ):
        refused(answer, None, "hr", status=404)
        assert answer.error["type"] == "NoSuchNamespaceException"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "namespace"),
        ({"namespace": None}, "namespace"),
        ({"namespace": "hr"}, "namespace"),
        ({"namespace": []}, "namespace"),
        ({"namespace": [1]}, "namespace"),
        ({"namespace": [""]}, "namespace"),
        ({"namespace": ["a", ""]}, "namespace"),
        ({"namespace": ["a\x1fb"]}, "namespace"),
        ({"namespace": ["a\x00b"]}, "namespace"),
        ({"namespace": ["x" * 513]}, "namespace"),
        ({"namespace": ["a"] * 17}, "namespace"),
        ({"namespace": ["hr"], "properties": []}, "properties"),
        ({"namespace": ["hr"], "properties": {"a": 1}}, "properties"),
        ({"namespace": ["hr"], "properties": {"a": None}}, "properties"),
    ],
)
def test_a_malformed_namespace_is_refused_by_name(lake: Inprocess, body: Json, field: str) -> None:
    before = head(lake)
    refused(lake.post("/v1/lake/namespaces", body), field, field)
    assert head(lake) == before


@pytest.mark.parametrize(
    ("body", "field", "status"),
    [
        ({"removals": "a"}, "removals", 400),
        ({"removals": [1]}, "removals", 400),
        ({"updates": ["a"]}, "updates", 400),
        ({"updates": {"a": {}}}, "updates", 400),
        ({"removals": ["a"], "updates": {"a": "b"}}, None, 422),
    ],
)
def test_malformed_property_updates_are_refused(lake: Inprocess, body: Json, field: str | None, status: int) -> None:
    refused(lake.post(f"{SALES}/properties", body), field, status=status)
    assert lake.get(SALES).body["properties"] == {}


def test_a_namespace_that_holds_something_is_not_dropped(lake: Inprocess) -> None:
    lake.post("/v1/lake/namespaces", {"namespace": ["sales", "inner"]})
    refused(lake.delete(SALES), None, "sales", "not empty", status=409)
    assert lake.delete(f"/v1/lake/namespaces/{seg('sales', 'inner')}").status == 204
    table(lake)
    answer = lake.delete(SALES)
    refused(answer, None, "not empty", status=409)
    assert answer.error["type"] == "NamespaceNotEmptyException"
    assert lake.delete(ORDERS).status == 204
    assert lake.delete(SALES).status == 204


def test_a_namespace_needs_its_parent(lake: Inprocess) -> None:
    refused(lake.post("/v1/lake/namespaces", {"namespace": ["no", "such"]}), None, "no", status=404)


@pytest.mark.parametrize("name", AWKWARD)
def test_any_name_goes_through_every_route(lake: Inprocess, name: str) -> None:
    outer, inner = [name], [name, f"{name[:9]}'s"]
    for namespace in (outer, inner):
        assert lake.post("/v1/lake/namespaces", {"namespace": namespace}).body["namespace"] == namespace
        assert lake.get(f"/v1/lake/namespaces/{seg(*namespace)}").body["namespace"] == namespace
    assert lake.get(f"/v1/lake/namespaces?parent={seg(*outer)}").body["namespaces"] == [inner]
    tables = f"/v1/lake/namespaces/{seg(*inner)}/tables"
    created = lake.post(tables, body_of(name))
    assert created.status == 200, created
    assert Path(created.body["metadata-location"].removeprefix("file://")).is_file()
    root = lake.application.core.volume.root
    inside = Path(created.body["metadata"]["location"]).relative_to(f"{root}/lake")
    assert len(inside.parts) == 3, "a name is one folder, whatever is in it"
    assert lake.get(tables).body["identifiers"] == [{"namespace": inner, "name": name}]
    path = f"{tables}/{seg(name)}"
    assert lake("HEAD", path).status == 204
    assert lake.get(path).body["metadata"]["table-uuid"] == created.body["metadata"]["table-uuid"]
    told = {
        "identifier": {"namespace": inner, "name": name},
        "updates": [{"action": "set-properties", "updates": {"owner": name}}],
    }
    assert lake.post(path, told).body["metadata"]["properties"]["owner"] == name
    told["updates"][0]["updates"] = {"by": "all"}
    assert lake.post("/v1/lake/transactions/commit", {"table-changes": [told]}).status == 204
    assert lake.post(f"{path}/metrics", {"report-type": "scan-report"}).status == 204
    renamed = {"source": told["identifier"], "destination": {"namespace": outer, "name": name}}
    assert lake.post("/v1/lake/tables/rename", renamed).status == 204
    moved = f"/v1/lake/namespaces/{seg(*outer)}/tables/{seg(name)}"
    assert lake.get(moved).body["metadata"]["properties"]["by"] == "all"
    assert lake.get(path).status == 404
    assert lake.delete(moved).status == 204
    assert lake.delete(f"/v1/lake/namespaces/{seg(*inner)}").status == 204
    assert lake.delete(f"/v1/lake/namespaces/{seg(*outer)}").status == 204


def test_a_dot_is_part_of_a_name_and_never_a_separator(lake: Inprocess) -> None:
    lake.post("/v1/lake/namespaces", {"namespace": ["a"]})
    lake.post("/v1/lake/namespaces", {"namespace": ["a", "b"]})
    assert lake.get("/v1/lake/namespaces/a.b").status == 404
    lake.post("/v1/lake/namespaces", {"namespace": ["a.b"], "properties": {"is": "another"}})
    assert lake.get("/v1/lake/namespaces/a.b").body["properties"] == {"is": "another"}
    assert lake.get(f"/v1/lake/namespaces/{seg('a', 'b')}").body["properties"] == {}


def test_names_that_look_alike_in_a_folder_get_folders_of_their_own(lake: Inprocess) -> None:
    told = [lake.post(f"{SALES}/tables", body_of(name)).body["metadata"] for name in ("a/b", "a_b", "a.b", "a b")]
    assert len({meta["location"] for meta in told}) == 4


# -- pages ------------------------------------------------------------------------------------------------------------


def names_of(body: Json) -> list[str]:
    if "identifiers" in body:
        return [each["name"] for each in body["identifiers"]]
    return [each[-1] for each in body["namespaces"]]


@pytest.mark.parametrize("kind", ["namespaces", "tables"])
def test_pages_lose_nothing_while_the_lake_changes_between_them(lake: Inprocess, kind: str) -> None:
    collection = "/v1/lake/namespaces" if kind == "namespaces" else f"{SALES}/tables"

    def make(name: str) -> None:
        body = {"namespace": [name]} if kind == "namespaces" else body_of(name)
        assert lake.post(collection, body).status == 200

    staying = sorted(["a", "B", "b.c", "z", "Ä", "\N{GRINNING FACE}", "\uffee", "m1", "m2"])
    for name in ["doomed", *staying]:
        make(name)
    seen: list[str] = []
    token, pages = "", 0
    while token is not None:
        answer = lake.get(f"{collection}?pageSize=2&pageToken={quote(token, safe='')}")
        assert answer.status == 200, answer
        found = names_of(answer.body)
        assert len(found) <= 2
        seen += found
        token = answer.body["next-page-token"]
        pages += 1
        if pages == 1:
            make("0-before-all-that-was-shown")
            make("zz-after")
            assert lake.delete(f"{collection}/doomed").status == 204
        assert pages < 20
    assert [n for n in seen if n in staying] == staying
    assert len(seen) == len(set(seen))
    assert "zz-after" in seen
    whole = names_of(lake.get(collection).body)
    assert set(whole) >= {*staying, "zz-after", "0-before-all-that-was-shown"}
    assert whole == sorted(whole)


def test_a_client_that_asks_for_no_pages_gets_all_at_once(lake: Inprocess) -> None:
    for number in range(5):
        table(lake, f"t{number}")
    for query in ("", "?pageSize=2", "?pageToken=", "?pageToken=&pageSize="):
        body = lake.get(f"{SALES}/tables{query}").body
        assert (len(body["identifiers"]), body["next-page-token"]) == (5, None), query


@pytest.mark.parametrize("query", ["pageToken=%21", "pageToken=%F0%9F%98%80&pageSize=1", "pageToken=_w=="])
def test_a_strange_page_token_is_refused(lake: Inprocess, query: str) -> None:
    refused(lake.get(f"{SALES}/tables?{query}"), "pageToken", "pageToken")


@pytest.mark.parametrize("size", ["-1", "two", "1.5", "9" * 30])
def test_a_strange_page_size_is_refused(lake: Inprocess, size: str) -> None:
    refused(lake.get(f"/v1/lake/namespaces?pageToken=&pageSize={size}"), "pageSize", "pageSize")


# -- create -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_the_life_of_a_table(lake: Inprocess, version: int) -> None:
    created = lake.post(f"{SALES}/tables", body_of(properties={"format-version": str(version), "owner": "ann"}))
    assert created.status == 200
    assert created.headers["etag"] == lake.get(ORDERS).headers["etag"]
    meta = created.body["metadata"]
    assert (meta["format-version"], meta["properties"]["owner"]) == (version, "ann")
    assert "format-version" not in meta["properties"]
    assert lake("HEAD", ORDERS).status == 204
    assert lake.get(f"{SALES}/tables").body["identifiers"] == [{"namespace": ["sales"], "name": "orders"}]
    engine = table(lake, rows=3)
    assert engine.rows() == 3
    again = lake.post(f"{SALES}/tables", body_of())
    refused(again, None, "sales.orders", status=409)
    assert again.error["type"] == "AlreadyExistsException"
    assert lake.delete(ORDERS).status == 204
    assert lake("HEAD", ORDERS).status == 404
    for answer in (
        lake.get(ORDERS),
        lake.delete(ORDERS),
        lake.post(ORDERS, {"updates": [{"action": "set-properties", "updates": {"a": "b"}}]}),
    ):
        refused(answer, None, "sales.orders", status=404)
        assert answer.error["type"] == "NoSuchTableException"


def _partitioned(*fields: Json) -> Json:
    return {"partition-spec": {"spec-id": 0, "fields": list(fields)}}


def _fields(*fields: Json) -> Json:
    return {"schema": {"type": "struct", "fields": list(fields)}}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": None}, "name"),
        ({"name": 5}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a\x1fb"}, "name"),
        ({"name": "x" * 513}, "name"),
        ({"schema": None}, "schema"),
        ({"schema": []}, "schema"),
        ({"schema": {"type": "struct"}}, "schema.fields"),
        (
            {"schema": {"type": "struct", "fields": [{"id": 1, "name": "a", "required": False}]}},
            "schema.fields[0].type",
        ),
        (
            {"schema": {"type": "struct", "fields": [{"id": 1, "name": "a", "required": False, "type": "money"}]}},
            "schema.fields[0].type",
        ),
        ({"properties": []}, "properties"),
        ({"properties": {"a": 1}}, None),
        ({"location": 5}, "location"),
        ({"stage-create": "yes"}, "stage-create"),
        ({"partition-spec": []}, "partition-spec"),
        ({"partition-spec": {"spec-id": 0}}, "partition-spec.fields"),
        ({"write-order": 1}, "write-order"),
        ({"write-order": {"order-id": 1, "fields": [{}]}}, "write-order.fields[0].transform"),
        (_partitioned({"source-id": 99, "transform": "identity", "name": "p"}), None),
        (_partitioned({"source-id": 1, "transform": "bucket[x]", "name": "p"}), None),
        (_fields({"id": 1, "name": "a", "required": "no", "type": "int"}), "schema.fields[0].required"),
        (_fields(*[{"id": 1, "name": "a", "required": False, "type": "int"}] * 2), None),
    ],
)
def test_a_malformed_table_is_refused_by_field(lake: Inprocess, change: Json, field: str | None) -> None:
    before = head(lake)
    body = {**body_of(), **change}
    refused(lake.post(f"{SALES}/tables", body), field)
    for key in change:
        body.pop(key)
        if key in ("name", "schema"):
            refused(lake.post(f"{SALES}/tables", body), key, "missing")
    assert head(lake) == before
    assert lake.get(f"{SALES}/tables").body["identifiers"] == []


@pytest.mark.parametrize("version", ["1", "4", "0", "-2", "two", ""])
def test_other_format_versions_are_refused_by_number(lake: Inprocess, version: str) -> None:
    answer = lake.post(f"{SALES}/tables", body_of(properties={"format-version": version}))
    refused(answer, None, "version")
    assert lake.get(ORDERS).status == 404


def test_a_table_never_becomes_format_1(lake: Inprocess) -> None:
    table(lake)
    answer = lake.post(ORDERS, {"updates": [{"action": "upgrade-format-version", "format-version": 1}]})
    refused(answer, None, "version")
    answer = lake.post(ORDERS, {"updates": [{"action": "set-properties", "updates": {"format-version": "1"}}]})
    refused(answer, None, "version")
    assert lake.get(ORDERS).body["metadata"]["format-version"] == 2


def test_a_dropped_and_a_renamed_table_never_lend_their_folder(lake: Inprocess) -> None:
    locations = []
    for _ in range(3):
        locations.append(table(lake).load()["location"])
        lake.delete(ORDERS)
    locations.append(table(lake).load()["location"])
    renamed = {
        "source": {"namespace": ["sales"], "name": "orders"},
        "destination": {"namespace": ["sales"], "name": "old"},
    }
    assert lake.post("/v1/lake/tables/rename", renamed).status == 204
    locations.append(table(lake).load()["location"])
    assert len(set(locations)) == len(locations)


def test_a_location_of_the_clients_own_is_honoured_below_the_root_where_nothing_is(
    lake: Inprocess, tmp_path: Path
) -> None:
    root = lake.application.core.volume.root
    wanted = f"{root}/mine/orders"
    created = lake.post(f"{SALES}/tables", body_of(location=wanted + "/"))
    assert created.body["metadata"]["location"] == wanted
    assert created.body["metadata-location"].startswith(f"{wanted}/metadata/")
    refused(lake.post(f"{SALES}/tables", body_of("other", location=wanted)), "location", "exists")
    for nested in (f"{wanted}/data", f"{wanted}/nested/table"):
        refused(lake.post(f"{SALES}/tables", body_of("other", location=nested)), "location", "location")
    lake.delete(ORDERS)
    refused(lake.post(f"{SALES}/tables", body_of("other", location=wanted)), "location", "exists")
    assert lake.get(f"{SALES}/tables").body["identifiers"] == []


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/icefield",
        "{root}",
        "{root}/",
        "{root}/../elsewhere",
        "{root}/a/../../elsewhere",
        "{root}/link/t",
        "{root}-sibling/t",
        "s3://bucket/t",
        "file://otherhost/t",
        "file:relative",
        "relative/t",
        "file://[x",
        "http://example.org/t",
        "{root}/nul\x00",
        "{root}/" + "x" * 300,
    ],
)
@pytest.mark.parametrize("how", ["location", "write.metadata.path"])
def test_where_the_server_writes_lies_below_its_root(lake: Inprocess, tmp_path: Path, location: str, how: str) -> None:
    root = Path(lake.application.core.volume.root.removeprefix("file://"))
    (tmp_path / "outside").mkdir()
    (root / "link").symlink_to(tmp_path / "outside")
    location = location.replace("{root}", f"file://{root}")
    if how == "location":
        refused(lake.post(f"{SALES}/tables", body_of(location=location)), "location", "location")
        return
    if location.rstrip("/") == f"file://{root}":
        return  # inside; a folder that many tables' metadata share
    told = {"write.metadata.path": location}
    refused(lake.post(f"{SALES}/tables", body_of(properties=told)), None, "write.metadata.path")
    table(lake)
    for update in (
        {"action": "set-properties", "updates": told},
        {"action": "set-properties", "updated": told},
        {"action": "SET-Properties", "updates": told},
        {"action": "set-location", "location": location},
    ):
        before = head(lake)
        refused(lake.post(ORDERS, {"updates": [update]}), None, "must lie below")
        assert head(lake) == before
    assert not list((tmp_path / "outside").iterdir())


def test_a_refused_creation_does_not_use_its_location_up(lake: Inprocess) -> None:
    lake.post(f"{REPO}/tags", {"name": "v1"})
    told = body_of(location=f"{lake.application.core.volume.root}/mine/orders")
    for more in ({}, {"stage-create": True}):
        assert lake.post("/v1/lake/namespaces/ghost/tables", {**told, **more}).status == 404
        refused(lake.post("/v1/lake@v1/namespaces/sales/tables", {**told, **more}), None, "branch", status=403)
    assert lake.post(f"{SALES}/tables", told).status == 200
    again = lake.post(f"{SALES}/tables", told)
    refused(again, None, "already exists", status=409)
    assert again.error["type"] == "AlreadyExistsException", "what create-if-not-exists looks for"


# -- load -------------------------------------------------------------------------------------------------------------


def test_an_etag_spares_the_answer_until_something_changes(lake: Inprocess) -> None:
    engine = table(lake, rows=1)
    first = lake.get(ORDERS)
    etag = first.headers["etag"]
    for told in (etag, f'"other", {etag}'):
        same = lake.get(ORDERS, headers={"if-none-match": told})
        assert (same.status, same.body, same.headers["etag"]) == (304, None, etag)
    assert lake.get(f"{ORDERS}?snapshots=refs", headers={"if-none-match": etag}).status == 200
    assert lake.get(ORDERS, headers={"if-none-match": '"other"'}).status == 200
    committed = engine.append_rows(2)
    after = lake.get(ORDERS, headers={"if-none-match": etag})
    assert after.status == 200
    assert after.headers["etag"] == committed.headers["etag"] != etag
    lake.delete(ORDERS)
    assert lake.get(ORDERS, headers={"if-none-match": etag}).status == 404


def test_an_etag_of_one_ref_says_nothing_about_another(lake: Inprocess) -> None:
    table(lake, rows=1)
    lake.post(f"{REPO}/branches", {"name": "dev"})
    lake.post(f"{REPO}/tags", {"name": "v1"})
    dev, tag = (ORDERS.replace("/lake/", f"/lake@{ref}/") for ref in ("dev", "v1"))
    etags = [lake.get(path).headers["etag"] for path in (ORDERS, dev, tag)]
    assert len(set(etags)) == 3, "what is laid over and the next free ids differ"
    assert lake.get(dev, headers={"if-none-match": etags[0]}).status == 200


def test_an_etag_of_a_session_ends_with_its_epoch_and_its_statement(lake: Inprocess) -> None:
    table(lake, rows=1)
    told = lake.post("/api/v1/sessions", {}).body
    token, path = told["token"], f"/api/v1/sessions/{told['id']}"
    orders = ORDERS.replace("/lake/", f"/{told['address']}/")
    seen = [lake.get(ORDERS).headers["etag"]]

    def look() -> None:
        etag = lake.get(orders, token=token).headers["etag"]
        assert etag not in seen
        for old in seen:
            assert lake.get(orders, token=token, headers={"if-none-match": old}).status == 200
        assert lake.get(orders, token=token, headers={"if-none-match": etag}).status == 304
        seen.append(etag)

    look()
    lake.post(f"{path}/begin", token=token)
    look()
    lake.post(f"{path}/rollback", token=token)
    look()
    lake.post(f"{path}/statements", token=token)
    look()


def test_snapshots_refs_shows_only_what_a_ref_names(lake: Inprocess) -> None:
    engine = table(lake)
    for rows in (1, 2, 3):
        engine.append_rows(rows)
    every = engine.load()
    tagged = every["snapshots"][0]["snapshot-id"]
    told = {"action": "set-snapshot-ref", "ref-name": "first", "type": "tag", "snapshot-id": tagged}
    assert lake.post(ORDERS, {"updates": [told]}).status == 200
    few = lake.get(f"{ORDERS}?snapshots=refs").body["metadata"]
    assert {s["snapshot-id"] for s in few["snapshots"]} == {tagged, every["current-snapshot-id"]}
    assert len(lake.get(f"{ORDERS}?snapshots=all").body["metadata"]["snapshots"]) == 3
    refused(lake.get(f"{ORDERS}?snapshots=some"), "snapshots", "some")


# -- commit -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"updates": {}}, "updates", ["updates"]),
        ({"updates": [1]}, "updates[0]", ["updates[0]"]),
        ({"requirements": "x"}, "requirements", ["requirements"]),
        ({"requirements": [None]}, "requirements[0]", ["requirements[0]"]),
        ({"updates": [{}]}, "updates[0].action", ["missing"]),
        ({"updates": [{"action": 7}]}, "updates[0].action", ["string"]),
        ({"updates": [{"action": "paint-red"}]}, "updates[0].action", ["paint-red"]),
        ({"updates": [{"action": "add-view-version"}]}, "updates[0].action", ["add-view-version"]),
        ({"requirements": [{}], "updates": []}, "requirements[0].type", ["missing"]),
        ({"requirements": [{"type": "assert-full-moon"}]}, "requirements[0].type", ["assert-full-moon"]),
        ({"requirements": [{"type": "assert-table-uuid"}]}, "requirements[0].uuid", ["assert-table-uuid", "missing"]),
        ({"requirements": [{"type": "assert-table-uuid", "uuid": "x"}]}, "requirements[0].uuid", ["UUID"]),
        ({"updates": [{"action": "set-location"}]}, "updates[0].location", ["location"]),
        ({"updates": [{"action": "set-properties"}]}, "updates[0].updates", ["missing"]),
        ({"updates": [{"action": "set-properties", "updates": {"a": 1}}]}, None, ["set-properties", "updates[0]"]),
        ({"updates": [{"action": "remove-properties", "removals": "a"}]}, "updates[0].removals", ["list"]),
        ({"updates": [{"action": "set-current-schema", "schema-id": 77}]}, "updates[0].schema-id", ["77"]),
        ({"updates": [{"action": "add-snapshot", "snapshot": 1}]}, "updates[0].snapshot", ["object"]),
        ({"updates": [{"action": "set-snapshot-ref", "ref-name": "main"}]}, None, ["set-snapshot-ref", "missing"]),
        ({"updates": [{"action": "add-schema", "schema": 5}]}, "updates[0].schema", ["schema"]),
        ({"updates": [{"action": "set-current-schema", "schema-id": "x"}]}, "updates[0].schema-id", ["schema-id"]),
        ({"updates": [{"action": "add-snapshot", "snapshot": {}}]}, None, ["snapshot-id"]),
        (
            {"updates": [{"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 99}]},
            None,
            ["99"],
        ),
        (
            {"updates": [{"action": "set-snapshot-ref", "ref-name": "main", "type": "twig", "snapshot-id": 99}]},
            None,
            ["twig"],
        ),
        ({"updates": [{"action": "set-default-spec", "spec-id": 9}]}, "updates[0].spec-id", ["9"]),
        ({"updates": [{"action": "upgrade-format-version", "format-version": 9}]}, None, ["format-version"]),
        ({"updates": [{"action": "set-location", "location": 1}]}, "updates[0].location", ["location"]),
        ({"requirements": [{"type": "assert-table-uuid", "uuid": 1}]}, "requirements[0].uuid", ["uuid"]),
        ({"requirements": [{"type": "assert-ref-snapshot-id", "ref": 1}]}, "requirements[0].ref", ["ref"]),
        (
            {"requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": "x"}]},
            None,
            ["snapshot-id"],
        ),
        ({"requirements": [{"type": "assert-current-schema-id"}]}, None, ["current-schema-id"]),
        (
            {"requirements": [{"type": "assert-last-assigned-field-id", "last-assigned-field-id": 1.5}]},
            None,
            ["last-assigned-field-id"],
        ),
        ({"identifier": {"namespace": ["sales"], "name": "other"}}, "identifier", ["sales.orders"]),
        ({"identifier": 5}, "identifier", ["identifier"]),
    ],
)
def test_a_malformed_commit_is_refused_by_update_requirement_and_field(
    lake: Inprocess, body: Json, field: str | None, words: list[str]
) -> None:
    table(lake)
    before = head(lake)
    refused(lake.post(ORDERS, body), field, *words)
    change = {"identifier": {"namespace": ["sales"], "name": "orders"}, **body}
    if body.get("identifier") is None:
        answer = lake.post("/v1/lake/transactions/commit", {"table-changes": [change]})
        refused(answer, None, *(w for w in words if "[" not in w))
    assert head(lake) == before


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"snapshot-id": []}, "updates[1].snapshot-id"),
        ({"snapshot-id": None}, "updates[1].snapshot-id"),
        ({"type": {}}, "updates[1].type"),
        ({"ref-name": ["main"]}, "updates[1].ref-name"),
    ],
)
def test_a_malformed_commit_is_refused_by_field_where_it_is_stale_too(
    lake: Inprocess, change: Json, field: str
) -> None:
    engine = table(lake, rows=1)
    meta = engine.load()
    body = engine.body(meta, engine.append(meta, 3))
    engine.append_rows(2)
    body["updates"][1] |= change
    refused(engine.post(body), field)
    assert engine.rows() == 3


def test_what_a_requirement_asserts_is_checked_and_told(lake: Inprocess) -> None:
    table(lake)
    for requirement in (
        {"type": "assert-table-uuid", "uuid": str(uuid.uuid4())},
        {"type": "assert-current-schema-id", "current-schema-id": 5},
        {"type": "assert-default-spec-id", "default-spec-id": 5},
        {"type": "assert-default-sort-order-id", "default-sort-order-id": 5},
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 77},
        {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 77},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 12},
        {"type": "assert-create"},
    ):
        answer = lake.post(
            ORDERS,
            {"requirements": [requirement], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]},
        )
        refused(answer, None, "sales.orders", status=409)
        if requirement["type"] == "assert-create":
            assert answer.error["type"] == "AlreadyExistsException"
            continue
        assert answer.error["type"] == "CommitFailedException"
        assert [c["entry"] for c in answer.error["conflicts"]] == ["sales.orders"]
    assert "a" not in lake.get(ORDERS).body["metadata"]["properties"]


def test_a_manifest_list_outside_the_volume_is_never_read(lake: Inprocess, tmp_path: Path) -> None:
    engine = table(lake)
    meta = engine.load()
    stale = engine.append(meta, 1)
    engine.append_rows(1)  # now the server must read the list of the other
    outside = tmp_path / "secret.avro"
    outside.write_bytes(Path(stale["manifest-list"].removeprefix("file://")).read_bytes())
    for location in (
        f"file://{outside}",
        str(outside),
        "/etc/passwd",
        f"{meta['location']}/../../../../../../etc/passwd",
        "s3://x/y",
    ):
        refused(engine.post(engine.body(meta, {**stale, "manifest-list": location})), None, "lies outside")
    missing = {**stale, "manifest-list": f"{meta['location']}/metadata/none.avro"}
    refused(engine.post(engine.body(meta, missing)), None, "none.avro")


def test_a_commit_answers_what_a_load_answers(lake: Inprocess) -> None:
    engine = table(lake)
    answer = engine.append_rows(5)
    loaded = lake.get(ORDERS)
    assert answer.headers["etag"] == loaded.headers["etag"]
    assert lake.post(ORDERS, {"updates": [], "requirements": []}).status == 200
    assert answer.body["metadata"] == loaded.body["metadata"]
    assert answer.body["metadata-location"] == loaded.body["metadata-location"]


# -- rename -----------------------------------------------------------------------------------------------------------


def names(namespace: list[str], name: str) -> Json:
    return {"namespace": namespace, "name": name}


def test_rename_moves_a_table_across_namespaces_and_nothing_else(lake: Inprocess) -> None:
    table(lake, rows=2)
    before = lake.get(ORDERS).body
    lake.post("/v1/lake/namespaces", {"namespace": ["hr"]})
    told = {"source": names(["sales"], "orders"), "destination": names(["hr"], "people")}
    assert lake.post("/v1/lake/tables/rename", told).status == 204
    after = lake.get("/v1/lake/namespaces/hr/tables/people").body
    assert after["metadata-location"] == before["metadata-location"]
    assert after["metadata"]["table-uuid"] == before["metadata"]["table-uuid"]
    assert lake.get(f"{SALES}/tables").body["identifiers"] == []
    assert Engine(lake, "lake", "hr", "people").append_rows(1).status == 200
    (line,) = lake.get(f"{REPO}/log?limit=1").body["commits"][0]["entries"]
    assert line["name"] == "hr.people"


def test_rename_says_what_stands_in_its_way(lake: Inprocess) -> None:
    table(lake)
    table(lake, "taken")
    orders = names(["sales"], "orders")
    path = "/v1/lake/tables/rename"
    before = head(lake)
    refused(lake.post(path, {"source": orders, "destination": names(["sales"], "taken")}), None, "taken", status=409)
    refused(lake.post(path, {"source": orders, "destination": names(["ghost"], "t")}), None, "ghost", status=404)
    refused(lake.post(path, {"source": names(["sales"], "ghost"), "destination": orders}), None, "ghost", status=404)
    assert lake.post(path, {"source": orders, "destination": orders}).status == 204
    assert head(lake) == before
    for body, field in (
        ({}, "source"),
        ({"source": orders}, "destination"),
        ({"source": "sales.orders", "destination": orders}, "source"),
        ({"source": {"name": "orders"}, "destination": orders}, "source.namespace"),
        ({"source": orders, "destination": {"namespace": ["sales"]}}, "destination.name"),
        ({"source": orders, "destination": names(["sales"], "")}, "destination.name"),
        ({"source": orders, "destination": names([], "t")}, "destination.namespace"),
    ):
        refused(lake.post(path, body), field, field)


# -- CREATE TABLE … AS SELECT, CREATE OR REPLACE ----------------------------------------------------------------------


def ctas(staged: Json, snapshot: Json) -> Json:
    """What Spark posts: the staged table as updates, all its properties copied back, then what the query wrote."""
    return {
        "identifier": names(["sales"], "orders"),
        "requirements": [{"type": "assert-create"}],
        "updates": [
            {"action": "assign-uuid", "uuid": staged["table-uuid"]},
            {"action": "upgrade-format-version", "format-version": staged["format-version"]},
            {"action": "add-schema", "schema": staged["schemas"][0], "last-column-id": staged["last-column-id"]},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": staged["partition-specs"][0]},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": staged["sort-orders"][0]},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-location", "location": staged["location"]},
            {"action": "set-properties", "updates": staged["properties"]},
            *updates_of(snapshot),
        ],
    }


def stage(lake: Inprocess, **properties: str) -> tuple[Json, Engine]:
    answer = lake.post(f"{SALES}/tables", body_of(properties=properties, **{"stage-create": True}))
    assert answer.status == 200, answer
    assert "metadata-location" not in answer.body
    staged = answer.body["metadata"]
    engine = Engine(lake, "lake", "sales", "orders")
    engine.load_token = None
    engine.writes_for(staged)
    return staged, engine


@pytest.mark.parametrize("version", ["2", "3"])
@pytest.mark.parametrize("own", [{}, {"gc.enabled": "false"}, {"gc.enabled": "true"}])
def test_a_staged_table_is_nowhere_until_its_commit(lake: Inprocess, version: str, own: dict[str, str]) -> None:
    before = head(lake)
    staged, engine = stage(lake, **{"format-version": version, "owner": "ann", **own})
    assert head(lake) == before
    assert lake.get(ORDERS).status == 404
    assert lake.get(f"{SALES}/tables").body["identifiers"] == []
    assert staged["properties"]["gc.enabled"] == "false"
    body = ctas(staged, engine.append(staged, 3, 4))
    answer = lake.post(ORDERS, body)
    assert answer.status == 200, answer
    loaded = lake.get(ORDERS).body
    assert loaded["metadata"]["table-uuid"] == staged["table-uuid"]
    assert loaded["metadata"]["location"] == staged["location"]
    assert engine.rows() == 7
    assert loaded["metadata"]["properties"]["gc.enabled"] == "false", "shown"
    kept = on_disk(loaded["metadata-location"])["properties"]
    expected = {"owner": "ann", "write.parquet.compression-codec": "zstd"}
    if own == {"gc.enabled": "false"}:
        expected |= own  # the user's own word, and the same as what was laid over
    if own == {"gc.enabled": "true"}:
        kept.pop("gc.enabled", None)  # what was laid over hid it from the client: it could not copy it back
    assert kept == expected, "what we laid over is not persisted"
    landed = head(lake)
    again = lake.post(ORDERS, body)
    assert again.status == 200, "the answer was lost; asked again it has landed"
    assert head(lake) == landed
    assert engine.rows() == 7


@pytest.mark.parametrize("version", [2, 3])
def test_a_table_staged_inside_a_transaction_lands_with_it(lake: Inprocess, version: int) -> None:
    told = lake.post("/api/v1/sessions", {}).body
    token, session = told["token"], f"/api/v1/sessions/{told['id']}"
    lake.post(f"{session}/begin", token=token)
    engine = Engine(lake, told["address"], "sales", "orders", token=token)
    asked = body_of(properties={"format-version": str(version), "mine": "1"}, **{"stage-create": True})
    staged = lake.post(engine.collection, asked, token=token).body["metadata"]
    engine.writes_for(staged)
    sent = ctas(staged, engine.append(staged, 4))
    assert lake.post(engine.path, sent, token=token).status == 200
    assert lake.post(engine.path, sent, token=token).status == 200, "asked again, it is staged"
    assert (engine.rows(), lake.get(ORDERS).status) == (4, 404)
    assert lake.post(f"{session}/commit", token=token).status == 200
    kept = on_disk(lake.get(ORDERS).body["metadata-location"])["properties"]
    assert kept["mine"] == "1"
    laid = ("gc.", "icefield.", "write.data.path", "write.metadata.path")
    assert not [k for k in kept if k.startswith(laid) or k.endswith("isolation-level")], "nothing only shown is kept"
    assert table(lake).rows() == 4


def test_a_staged_commit_through_transactions_commit(lake: Inprocess) -> None:
    other = table(lake, "other", rows=1)
    staged, engine = stage(lake)
    meta = other.load()
    change = {"identifier": names(["sales"], "other"), **other.body(meta, other.append(meta, 5))}
    both = {"table-changes": [ctas(staged, engine.append(staged, 3)), change]}
    assert lake.post("/v1/lake/transactions/commit", both).status == 204
    assert (engine.rows(), other.rows()) == (3, 6)
    entries = lake.get(f"{REPO}/log?limit=1").body["commits"][0]["entries"]
    assert {e["name"]: e["change"] for e in entries} == {"sales.orders": "create", "sales.other": "change"}


def test_the_second_of_two_staged_creations_is_refused(lake: Inprocess) -> None:
    (one, engine), (two, other) = stage(lake), stage(lake)
    assert one["location"] != two["location"]
    assert lake.post(ORDERS, ctas(one, engine.append(one, 3))).status == 200
    answer = lake.post(ORDERS, ctas(two, other.append(two, 4)))
    refused(answer, None, "sales.orders", status=409)
    assert answer.error["type"] == "AlreadyExistsException"
    refused(lake.post(f"{SALES}/tables", body_of(**{"stage-create": True})), None, "sales.orders", status=409)
    assert engine.rows() == 3


def test_a_staged_creation_cannot_move_out_of_the_root_or_into_another_table(lake: Inprocess) -> None:
    other = table(lake, "other", rows=1).load()
    for location in ("file:///etc/t", other["location"]):
        staged, engine = stage(lake)
        body = ctas(staged, engine.append(staged, 1))
        next(u for u in body["updates"] if u["action"] == "set-location")["location"] = location
        refused(lake.post(ORDERS, body), None, "location")
    assert lake.get(ORDERS).status == 404


def replacement(engine: Engine, meta: Json, *sizes: int, echo: bool = True) -> Json:
    """Spark's CREATE OR REPLACE TABLE … AS SELECT with another schema: no requirement on the snapshot it replaces."""
    schema = {
        "type": "struct",
        "schema-id": meta["current-schema-id"] + 1,
        "fields": [{"id": meta["last-column-id"] + 1, "name": "other", "required": False, "type": "double"}],
    }
    bare = {**meta, "refs": {}}
    snapshot = {**engine.append(bare, *sizes), "schema-id": schema["schema-id"]}
    snapshot["summary"] = {**snapshot["summary"], "operation": "append"}
    return {
        "requirements": [
            {"type": "assert-table-uuid", "uuid": meta["table-uuid"]},
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": meta["last-column-id"]},
        ],
        "updates": [
            {"action": "remove-snapshot-ref", "ref-name": "main"},
            {"action": "add-schema", "schema": schema, "last-column-id": meta["last-column-id"] + 1},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "set-location", "location": meta["location"]},
            {"action": "set-properties", "updates": {**(meta["properties"] if echo else {}), "by": "replace"}},
            *updates_of(snapshot),
        ],
    }


@pytest.mark.parametrize("version", [2, 3])
def test_a_replacement_persists_nothing_that_was_laid_over(lake: Inprocess, version: int) -> None:
    engine = table(lake, rows=5, version=version)
    meta = engine.load()
    assert meta["properties"]["gc.enabled"] == "false"
    answer = engine.post(replacement(engine, meta, 2))
    assert answer.status == 200, answer
    assert engine.rows() == 2
    kept = on_disk(answer.body["metadata-location"])["properties"]
    assert kept == {"by": "replace", "write.parquet.compression-codec": "zstd"}
    assert len(answer.body["metadata"]["snapshots"]) == 2, "history stays"


@pytest.mark.parametrize("version", [2, 3])
def test_a_stale_replacement_is_refused(lake: Inprocess, version: int) -> None:
    engine = table(lake, rows=5, version=version)
    meta = engine.load()
    stale = replacement(engine, meta, 2)
    assert engine.append_rows(7).status == 200
    before = head(lake)
    refused(engine.post(stale), None, "sales.orders", status=409)
    assert head(lake) == before
    assert engine.rows() == 12


# -- client gc --------------------------------------------------------------------------------------------------------


def test_client_gc_is_refused_by_what_is_shown_and_never_persisted(lake: Inprocess) -> None:
    engine = table(lake)
    for answer in (engine.append_rows(1), lake.get(ORDERS)):
        assert answer.body["metadata"]["properties"]["gc.enabled"] == "false"
        assert "gc.enabled" not in on_disk(answer.body["metadata-location"])["properties"]
    # A user's own word, without the marker that comes with a copy of all properties, is kept.
    for value in ("true", "false"):
        told = {"updates": [{"action": "set-properties", "updates": {"gc.enabled": value}}]}
        answer = lake.post(ORDERS, told)
        assert on_disk(answer.body["metadata-location"])["properties"]["gc.enabled"] == value
        assert answer.body["metadata"]["properties"]["gc.enabled"] == "false"
    # And kept through a copy of all properties.
    meta = engine.load()
    answer = engine.post(replacement(engine, meta, 1))
    assert on_disk(answer.body["metadata-location"])["properties"]["gc.enabled"] == "false"


def test_a_repo_that_allows_client_gc_shows_the_tables_own_word(lake: Inprocess) -> None:
    assert lake.post("/api/v1/repos", {"name": "free", "client-gc": "allow"}).body["client-gc"] == "allow"
    lake.post("/v1/free/namespaces", {"namespace": ["sales"]})
    Engine(lake, "free", "sales", "orders").create()
    properties = lake.get("/v1/free/namespaces/sales/tables/orders").body["metadata"]["properties"]
    assert "gc.enabled" not in properties


def test_drop_and_purge_keep_every_file(lake: Inprocess) -> None:
    engine = table(lake, rows=4)
    meta = engine.load()
    lake.post(f"{REPO}/branches", {"name": "dev"})
    folder = Path(meta["location"].removeprefix("file://"))
    before = {path for path in folder.rglob("*") if path.is_file()}
    assert lake.delete(f"{ORDERS}?purgeRequested=true").status == 204
    assert lake.get(ORDERS).status == 404
    assert {path for path in folder.rglob("*") if path.is_file()} == before
    assert Engine(lake, "lake@dev", "sales", "orders").rows() == 4
    assert lake.get(f"{REPO}/log?limit=1").body["commits"][0]["operation"] == "purge-table"


# -- refs that only read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tag", "commit"])
def test_tags_and_commits_are_read_and_never_written(lake: Inprocess, kind: str) -> None:
    engine = table(lake, rows=2)
    ref = head(lake)
    if kind == "tag":
        lake.post(f"{REPO}/tags", {"name": "v1"})
        ref = "v1"
    engine.append_rows(3)
    there = Engine(lake, f"lake@{ref}", "sales", "orders")
    assert there.rows() == 2
    base = f"/v1/lake@{ref}"
    meta = there.load()
    orders = names(["sales"], "orders")
    before = head(lake)
    for answer in (
        lake.post(f"{base}/namespaces", {"namespace": ["hr"]}),
        lake.delete(f"{base}/namespaces/sales"),
        lake.post(f"{base}/namespaces/sales/properties", {"updates": {"a": "b"}}),
        lake.post(f"{base}/namespaces/sales/tables", body_of("new")),
        there.post(there.body(meta, there.append(meta, 1))),
        lake.delete(f"{base}/namespaces/sales/tables/orders"),
        lake.post(f"{base}/tables/rename", {"source": orders, "destination": names(["sales"], "b")}),
        lake.post(
            f"{base}/transactions/commit",
            {"table-changes": [{"identifier": orders, "updates": [{"action": "set-properties", "updates": {}}]}]},
        ),
    ):
        refused(answer, None, "write to a branch", status=403)
    assert head(lake) == before


# -- many tables ------------------------------------------------------------------------------------------------------


def appended(engine: Engine, meta: Json, rows: int) -> Json:
    return {"identifier": names(["sales"], engine.table), **engine.body(meta, engine.append(meta, rows))}


def test_many_tables_are_committed_in_one_move(lake: Inprocess) -> None:
    engines = [table(lake, name) for name in ("a", "b", "c")]
    before = head(lake)
    changes = [appended(engine, engine.load(), 2) for engine in engines]
    assert lake.post("/v1/lake/transactions/commit", {"table-changes": changes}).status == 204
    newest = lake.get(f"{REPO}/log?limit=1").body["commits"][0]
    assert newest["parents"] == [before]
    assert {e["name"] for e in newest["entries"]} == {"sales.a", "sales.b", "sales.c"}
    landed = head(lake)
    assert lake.post("/v1/lake/transactions/commit", {"table-changes": changes}).status == 204, "asked again"
    assert head(lake) == landed
    assert [engine.rows() for engine in engines] == [2, 2, 2]


def test_all_or_nothing_and_every_conflict_is_named(lake: Inprocess) -> None:
    engines = [table(lake, name, rows=1) for name in ("a", "b", "c", "d")]
    a, b, c, _ = engines
    metas = [engine.load() for engine in engines]
    changes = [
        {"identifier": names(["sales"], "a"), **a.body(metas[0], a.row_delta(metas[0]))},
        {"identifier": names(["sales"], "b"), **b.body(metas[1], b.row_delta(metas[1]))},
        appended(c, metas[2], 5),
        {
            "identifier": names(["sales"], "d"),
            "requirements": [{"type": "assert-table-uuid", "uuid": str(uuid.uuid4())}],
            "updates": [{"action": "set-properties", "updates": {"x": "y"}}],
        },
    ]
    a.append_rows(10)
    b.append_rows(10)
    before = head(lake)
    answer = lake.post("/v1/lake/transactions/commit", {"table-changes": changes})
    refused(answer, None, "sales.a", "sales.b", "sales.d", status=409)
    assert {conflict["entry"] for conflict in answer.error["conflicts"]} == {"sales.a", "sales.b", "sales.d"}
    assert all(conflict["message"] for conflict in answer.error["conflicts"])
    assert head(lake) == before
    assert c.rows() == 1


def test_one_bad_change_spoils_all(lake: Inprocess) -> None:
    a = table(lake, "a", rows=1)
    before = head(lake)
    good = appended(a, a.load(), 5)
    ghost = {**good, "identifier": names(["sales"], "ghost")}
    unknown = {"identifier": names(["sales"], "a2"), "updates": [{"action": "paint-red"}]}
    table(lake, "a2")
    before = head(lake)
    path = "/v1/lake/transactions/commit"
    refused(lake.post(path, {"table-changes": [good, ghost]}), None, "ghost", status=404)
    answer = lake.post(path, {"table-changes": [good, unknown]})
    refused(answer, "table-changes[1].updates[0].action", "sales.a2", "paint-red")
    refused(lake.post(path, {"table-changes": [good, good]}), "table-changes", "sales.a", "twice")
    refused(lake.post(path, {"table-changes": []}), "table-changes", "at least one")
    refused(lake.post(path, {}), "table-changes", "table-changes")
    refused(lake.post(path, {"table-changes": {}}), "table-changes", "table-changes")
    refused(lake.post(path, {"table-changes": [good, 5]}), "table-changes[1]", "table-changes[1]")
    refused(lake.post(path, {"table-changes": [{"updates": []}]}), "table-changes[0].identifier")
    refused(lake.post(path, {"table-changes": [{**good, "updates": 5}]}), "table-changes[0].updates")
    refused(lake.post(path, {"table-changes": [{**good, "requirements": [5]}]}), "table-changes[0].requirements[0]")
    assert head(lake) == before
    assert a.rows() == 1


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_metrics_are_accepted(lake: Inprocess) -> None:
    table(lake)
    assert lake.post(f"{ORDERS}/metrics", {"report-type": "commit-report", "anything": [1]}).status == 204
    refused(lake.post(f"{ORDERS}/metrics", b"["), "body", "JSON")


@pytest.mark.parametrize("pattern", sorted({pattern for method, pattern, _ in ROUTES if method == "POST"}))
@pytest.mark.parametrize("body", [b"[]", b"7", b'"x"', b"null", b"{", b'{"a":"\xff"}', b'{"a":' * 5000, b"\x00"])
def test_what_is_not_a_json_object_is_refused_everywhere(lake: Inprocess, pattern: str, body: bytes) -> None:
    path = "/v1/lake" + pattern.replace("{namespace}", "sales").replace("{table}", "orders")
    refused(lake.post(path, body), "body", "body")
    refused(lake.post(path, body, headers={"content-type": "text/plain"}), "content-type", "application/json")


def test_a_table_whose_metadata_file_is_gone_is_an_error_that_says_so(lake: Inprocess) -> None:
    """Somebody deleted the folder by hand."""
    meta = table(lake).load()
    shutil.rmtree(meta["location"].removeprefix("file://"))
    lake.application.core.metadata._cached.clear()
    answer = lake.get(ORDERS)
    assert 400 <= answer.status < 500
    assert "metadata" in answer.error["message"]
