"""Iceberg REST, route by route: what is right, what is refused and how it is named."""

from __future__ import annotations

import copy
import http.client
import itertools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from support.inprocess import Inprocess
from support.server import Http, RunningServer
from support.writer import SCHEMA, Engine

NAMESPACES = "/v1/lake/namespaces"
TABLES = f"{NAMESPACES}/sales/tables"
Json = dict[str, Any]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Inprocess]:
    lake = Inprocess(tmp_path / "lake")
    assert lake.post(NAMESPACES, {"namespace": ["sales"]}).status == 200
    yield lake
    lake.close()


@pytest.fixture
def orders(lake: Inprocess) -> Engine:
    engine = Engine(lake, "lake", "sales", "orders")
    assert engine.create().status == 200
    return engine


def body(name: str, **more: Any) -> Json:
    return {"name": name, "schema": copy.deepcopy(SCHEMA), **more}


def set_properties(**values: str) -> Json:
    return {"updates": [{"action": "set-properties", "updates": values}], "requirements": []}


def stored(answer: Any) -> Json:
    """The metadata file itself, not what is laid over it."""
    location = answer.body["metadata-location"]
    found: Json = json.loads(Path(location.removeprefix("file://")).read_bytes())
    return found


def refused(answer: Any, status: int, *names: str) -> None:
    assert answer.status == status, answer
    for name in names:
        assert name in answer.error["message"], answer
    assert answer.error["code"] == status
    assert answer.error["type"]


# -- config -----------------------------------------------------------------------------------------------------------


def test_config_gives_the_prefix_and_every_endpoint(lake: Inprocess) -> None:
    lake.post("/api/v1/repos/lake/branches", {"name": "team/dev"})
    for warehouse, prefix in (
        ("", "lake"),
        ("?warehouse=lake", "lake"),
        ("?warehouse=lake%40team%2Fdev", "lake@team%2Fdev"),
    ):
        answer = lake.get(f"/v1/config{warehouse}").body
        assert answer["overrides"]["prefix"] == prefix
        assert lake.get(f"/v1/{prefix}/namespaces").body["namespaces"] == [["sales"]]
    endpoints = answer["endpoints"]
    assert "POST /v1/{prefix}/transactions/commit" in endpoints
    assert "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}" in endpoints
    assert not [e for e in endpoints if "view" in e]
    refused(lake.get("/v1/config?warehouse=nowhere"), 404, "nowhere")
    refused(lake.get("/v1/config?warehouse=lake@nowhere"), 404, "nowhere")
    refused(lake.get("/v1/config?warehouse=..%2F.."), 400, "..")


def test_routes_work_without_a_prefix_for_the_default_repo(lake: Inprocess) -> None:
    assert lake.get("/v1/namespaces").body["namespaces"] == [["sales"]]


# -- namespaces -------------------------------------------------------------------------------------------------------


def test_a_namespace_from_making_to_dropping(lake: Inprocess) -> None:
    made = lake.post(NAMESPACES, {"namespace": ["a"], "properties": {"owner": "me"}})
    assert made.body == {"namespace": ["a"], "properties": {"owner": "me"}}
    refused(lake.post(NAMESPACES, {"namespace": ["a"]}), 409, "a")
    assert lake.post(NAMESPACES, {"namespace": ["a", "b"]}).status == 200
    refused(lake.post(NAMESPACES, {"namespace": ["x", "y"]}), 404, "x")
    assert lake.get(f"{NAMESPACES}?parent=a").body["namespaces"] == [["a", "b"]]
    assert lake.get(NAMESPACES).body["namespaces"] == [["a"], ["sales"]]
    assert lake("HEAD", f"{NAMESPACES}/a%1Fb").status == 204
    assert lake("HEAD", f"{NAMESPACES}/a%1Fc").status == 404
    answer = lake.post(f"{NAMESPACES}/a/properties", {"updates": {"x": "1"}, "removals": ["owner", "none"]})
    assert answer.body == {"updated": ["x"], "removed": ["owner"], "missing": ["none"]}
    assert lake.get(f"{NAMESPACES}/a").body["properties"] == {"x": "1"}
    refused(lake.post(f"{NAMESPACES}/a/properties", {"updates": {"x": "1"}, "removals": ["x"]}), 422, "x")
    refused(lake.delete(f"{NAMESPACES}/a"), 409, "a", "not empty")
    assert lake.delete(f"{NAMESPACES}/a%1Fb").status == 204
    assert lake.delete(f"{NAMESPACES}/a").status == 204
    for answer in (lake.get(f"{NAMESPACES}/a"), lake.delete(f"{NAMESPACES}/a"), lake.get(f"{NAMESPACES}?parent=a")):
        refused(answer, 404, "a")


@pytest.mark.parametrize(
    ("sent", "names"),
    [
        ({}, "namespace"),
        ({"namespace": "a"}, "namespace"),
        ({"namespace": []}, "namespace"),
        ({"namespace": [""]}, "namespace"),
        ({"namespace": [1]}, "namespace"),
        ({"namespace": [None]}, "namespace"),
        ({"namespace": ["a\x1fb"]}, "namespace"),
        ({"namespace": ["a\x00"]}, "namespace"),
        ({"namespace": ["x" * 513]}, "namespace"),
        ({"namespace": ["x"] * 17}, "namespace"),
        ({"namespace": ["a"], "properties": []}, "properties"),
        ({"namespace": ["a"], "properties": {"k": 1}}, "properties"),
        ({"namespace": ["a"], "properties": {"k": None}}, "properties"),
    ],
)
def test_a_malformed_namespace_names_the_field(lake: Inprocess, sent: Json, names: str) -> None:
    refused(lake.post(NAMESPACES, sent), 400, names)
    assert lake.get(NAMESPACES).body["namespaces"] == [["sales"]]


@pytest.mark.parametrize(
    ("sent", "names"),
    [
        ({"updates": []}, "updates"),
        ({"updates": {"a": 1}}, "updates"),
        ({"removals": "a"}, "removals"),
        ({"removals": [1]}, "removals"),
    ],
)
def test_malformed_namespace_properties_name_the_field(lake: Inprocess, sent: Json, names: str) -> None:
    refused(lake.post(f"{NAMESPACES}/sales/properties", sent), 400, names)


NAMES = [
    "with.dot",
    "with/slash",
    "with space",
    "100%",
    "%2F",
    "größe",
    "数据",
    "👩‍🚀",
    "+",
    "a&b=c",
    "'\"`",
    "..",
    ".",
    "-",
    "~",
    "#?",
    "tables",
    "\\",
]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_can_be_used_and_comes_back_as_it_was(lake: Inprocess, name: str) -> None:
    segment = quote(name, safe="")
    assert lake.post(NAMESPACES, {"namespace": [name]}).status == 200
    assert lake.post(NAMESPACES, {"namespace": [name, name]}).status == 200
    nested = f"{NAMESPACES}/{segment}%1F{segment}"
    assert lake.get(nested).body["namespace"] == [name, name]
    created = lake.post(f"{nested}/tables", body(name))
    assert created.status == 200, created
    assert lake.get(f"{nested}/tables").body["identifiers"] == [{"namespace": [name, name], "name": name}]
    path = f"{nested}/tables/{segment}"
    assert lake("HEAD", path).status == 204
    assert lake.post(path, set_properties(k="v")).status == 200
    assert lake.get(path).body["metadata"]["properties"]["k"] == "v"
    root = Path(lake.application.core.volume.root.removeprefix("file://"))
    location = Path(created.body["metadata"]["location"].removeprefix("file://"))
    assert location.is_relative_to(root / "lake")
    assert len(location.relative_to(root).parts) == 4, "a name is one folder, whatever is in it"
    target = {"namespace": ["sales"], "name": name}
    assert (
        lake.post(
            "/v1/lake/tables/rename", {"source": {"namespace": [name, name], "name": name}, "destination": target}
        ).status
        == 204
    )
    assert lake.delete(f"{TABLES}/{segment}").status == 204
    assert lake.delete(nested).status == 204


def test_two_names_that_look_alike_in_a_folder_get_folders_of_their_own(lake: Inprocess) -> None:
    locations = [lake.post(TABLES, body(name)).body["metadata"]["location"] for name in ("a/b", "a_b", "a.b", "a b")]
    assert len(set(locations)) == 4


def test_pages_lose_nothing(lake: Inprocess) -> None:
    names = sorted(f"t{number}" for number in range(7))
    for name in names:
        lake.post(TABLES, body(name))
    seen: list[str] = []
    token = ""
    while True:
        page = lake.get(
            f"{TABLES}?pageSize=3&pageToken={quote(token)}" if token else f"{TABLES}?pageSize=3&pageToken="
        ).body
        assert len(page["identifiers"]) <= 3
        seen += [i["name"] for i in page["identifiers"]]
        token = page["next-page-token"]
        if token is None:
            break
        if len(seen) == 3:
            lake.delete(f"{TABLES}/{seen[-1]}")  # the page's last one goes: the next page begins after it all the same
    assert seen == names
    assert len(lake.get(TABLES).body["identifiers"]) == 6, "who does not ask for pages gets everything"
    refused(lake.get(f"{TABLES}?pageSize=x&pageToken="), 400, "pageSize")
    refused(lake.get(f"{TABLES}?pageSize=-1&pageToken="), 400, "pageSize")
    for bad in ("%00", "a", "!!!!", "%F0%9F%98%80", "/w=="):
        refused(lake.get(f"{TABLES}?pageSize=3&pageToken={bad}"), 400, "pageToken")


# -- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "status", "names"),
    [
        ({"name": None}, 400, "name"),
        ({"name": 7}, 400, "name"),
        ({"name": ""}, 400, "name"),
        ({"name": "a\x1fb"}, 400, "name"),
        ({"schema": None}, 400, "schema"),
        ({"schema": []}, 400, "schema"),
        ({"schema": {"type": "struct"}}, 400, "fields"),
        (
            {"schema": {"type": "struct", "fields": [{"id": 1, "name": "a", "required": False, "type": "nonsense"}]}},
            400,
            "nonsense",
        ),
        (
            {"schema": {"type": "struct", "fields": [{"id": 1, "name": "a", "required": "no", "type": "int"}]}},
            400,
            "required",
        ),
        (
            {"schema": {"type": "struct", "fields": [{"id": 1, "name": "a", "required": False, "type": "int"}] * 2}},
            400,
            "a",
        ),
        (
            {"partition-spec": {"fields": [{"source-id": 99, "transform": "identity", "name": "p"}]}},
            400,
            "partition-spec",
        ),
        ({"partition-spec": {"fields": [{"source-id": 1, "transform": "bucket[x]", "name": "p"}]}}, 400, "bucket[x]"),
        ({"write-order": {"order-id": 1, "fields": [{}]}}, 400, "write-order"),
        ({"properties": {"a": 1}}, 400, "properties"),
        ({"properties": {"format-version": "1"}}, 400, "format"),
        ({"properties": {"format-version": "4"}}, 400, "format"),
        ({"properties": {"format-version": "two"}}, 400, "format"),
        ({"stage-create": "yes"}, 400, "stage-create"),
        ({"location": 1}, 400, "location"),
        ({"location": "s3://elsewhere/x"}, 400, "location"),
        ({"location": "file:///etc/icefield"}, 400, "location"),
        ({"location": "http://127.0.0.1/x"}, 400, "location"),
        ({"location": "relative"}, 400, "location"),
        ({"properties": {"write.metadata.path": "file:///tmp/elsewhere"}}, 400, "write.metadata.path"),
    ],
)
def test_a_malformed_create_names_what_is_wrong(lake: Inprocess, more: Json, status: int, names: str) -> None:
    refused(lake.post(TABLES, body("x") | more), status, names)
    assert lake.get(TABLES).body["identifiers"] == []


def test_create_load_exists_drop(lake: Inprocess) -> None:
    created = lake.post(TABLES, body("orders", properties={"k": "v"}))
    assert created.headers["etag"]
    assert created.body["metadata"]["properties"]["k"] == "v"
    assert created.body["metadata"]["format-version"] == 2
    assert lake("HEAD", f"{TABLES}/orders").status == 204
    assert lake.get(f"{TABLES}/orders").body == created.body
    refused(lake.post(TABLES, body("orders")), 409, "sales.orders")
    refused(lake.post(f"{NAMESPACES}/nowhere/tables", body("orders")), 404, "nowhere")
    assert lake.delete(f"{TABLES}/orders").status == 204
    for answer in (lake.get(f"{TABLES}/orders"), lake.delete(f"{TABLES}/orders"), lake("HEAD", f"{TABLES}/orders")):
        refused(answer, 404, "sales.orders")
    refused(lake.get(f"{NAMESPACES}/nowhere/tables"), 404, "nowhere")
    refused(lake.get(f"{NAMESPACES}/nowhere/tables/t"), 404, "nowhere.t")
    refused(lake.get(f"{TABLES}/x?snapshots=some"), 400, "snapshots")


def test_drop_then_create_again_is_another_table_elsewhere(lake: Inprocess, orders: Engine) -> None:
    first = orders.load()
    orders.append_rows(3)
    lake.delete(orders.path)
    orders.create()
    second = orders.load()
    assert first["location"] != second["location"]
    assert first["table-uuid"] != second["table-uuid"]
    assert orders.rows() == 0


def test_purge_keeps_the_files_and_history_reads_them(lake: Inprocess, orders: Engine) -> None:
    orders.append_rows(3)
    meta = orders.load()
    at = lake.get("/api/v1/repos/lake/log?limit=1").body["commits"][0]["id"]
    assert lake.delete(f"{orders.path}?purgeRequested=true").status == 204
    assert Engine(lake, f"lake@{at}", "sales", "orders").rows() == 3
    assert Path(meta["snapshots"][0]["manifest-list"].removeprefix("file://")).exists()
    assert lake.get("/api/v1/repos/lake/deletions").body["files"] == []


def test_etag_304_and_when_it_changes(lake: Inprocess, orders: Engine) -> None:
    lake.post("/api/v1/repos/lake/branches", {"name": "dev"})
    first = lake.get(orders.path)
    etag = first.headers["etag"]
    same = lake.get(orders.path, headers={"if-none-match": f'"other", {etag}'})
    assert (same.status, same.body, same.headers["etag"]) == (304, None, etag)
    elsewhere = orders.path.replace("/lake/", "/lake@dev/")
    tags = {etag, lake.get(elsewhere).headers["etag"], lake.get(f"{orders.path}?snapshots=refs").headers["etag"]}
    told = lake.post("/api/v1/sessions", {}).body
    mine, token = orders.path.replace("/lake/", f"/{told['address']}/"), told["token"]
    session = f"/api/v1/sessions/{told['id']}"

    def seen() -> str:
        return str(lake.get(mine, token=token).headers["etag"])

    tags.add(seen())
    lake.post(f"{session}/begin", token=token)
    tags.add(seen())
    lake.post(f"{session}/savepoints", {"name": "s"}, token=token)
    lake.post(f"{session}/savepoints/s/rollback", token=token)
    tags.add(seen())
    lake.post(f"{session}/rollback", token=token)
    tags.add(seen())
    lake.post(f"{session}/statements", token=token)
    tags.add(seen())
    assert len(tags) == 8, "ref, snapshots, session, transaction, epoch and statement are all covered"
    committed = orders.append_rows(1)
    assert committed.headers["etag"] not in tags
    after = lake.get(orders.path, headers={"if-none-match": etag})
    assert after.status == 200
    assert after.headers["etag"] == committed.headers["etag"]


def test_snapshots_refs_leaves_out_what_no_snapshot_ref_names(lake: Inprocess, orders: Engine) -> None:
    for size in (1, 2):
        orders.append_rows(size)
    assert len(lake.get(orders.path).body["metadata"]["snapshots"]) == 2
    assert len(lake.get(f"{orders.path}?snapshots=refs").body["metadata"]["snapshots"]) == 1


def test_rename_within_and_across_namespaces(lake: Inprocess, orders: Engine) -> None:
    orders.append_rows(3)
    lake.post(NAMESPACES, {"namespace": ["archive"]})
    lake.post(TABLES, body("taken"))

    def rename(source: tuple[str, str], target: tuple[str, str]) -> Any:
        spots = [{"namespace": [space], "name": name} for space, name in (source, target)]
        return lake.post("/v1/lake/tables/rename", {"source": spots[0], "destination": spots[1]})

    before = orders.load()
    assert rename(("sales", "orders"), ("archive", "old orders")).status == 204
    moved = Engine(lake, "lake", "archive", "old%20orders")
    assert moved.rows() == 3
    assert moved.load()["table-uuid"] == before["table-uuid"]
    assert moved.append_rows(1).status == 200
    refused(lake.get(orders.path), 404)
    refused(rename(("sales", "orders"), ("sales", "x")), 404, "sales.orders")
    refused(rename(("archive", "old orders"), ("sales", "taken")), 409, "sales.taken")
    refused(rename(("archive", "old orders"), ("nowhere", "x")), 404, "nowhere")
    assert rename(("archive", "old orders"), ("archive", "old orders")).status == 204


@pytest.mark.parametrize(
    ("sent", "names"),
    [
        ({}, "source"),
        ({"source": "x"}, "source"),
        ({"source": {"namespace": ["sales"]}, "destination": {}}, "source.name"),
        ({"source": {"namespace": "sales", "name": "o"}}, "source.namespace"),
        ({"source": {"namespace": ["sales"], "name": "orders"}}, "destination"),
        (
            {"source": {"namespace": ["sales"], "name": "orders"}, "destination": {"namespace": ["sales"], "name": ""}},
            "destination.name",
        ),
    ],
)
def test_a_malformed_rename_names_the_field(lake: Inprocess, orders: Engine, sent: Json, names: str) -> None:
    refused(lake.post("/v1/lake/tables/rename", sent), 400, names)


def test_locations_of_ones_own(lake: Inprocess, orders: Engine) -> None:
    root = lake.application.core.volume.root
    mine = f"{root}/elsewhere/mine/"
    assert lake.post(TABLES, body("mine", location=mine)).body["metadata"]["location"] == mine.rstrip("/")
    of_orders = orders.load()["location"]
    for location in (
        mine,
        root,
        f"{root}/",
        of_orders,
        f"{of_orders}/data",
        f"{of_orders}/nested/table",
        f"{mine}deeper",
        f"{root}/elsewhere",
        f"{root}/../outside",
        f"{root}/a/../../outside",
        f"{root}x",
        str(root).replace("file://", "file://otherhost"),
    ):
        refused(lake.post(TABLES, body("other", location=location)), 400, "location")
    (Path(root.removeprefix("file://")) / "link").symlink_to("/tmp")
    refused(lake.post(TABLES, body("other", location=f"{root}/link/x")), 400, "location")


# -- commits ----------------------------------------------------------------------------------------------------------


def test_commit_and_what_it_answers(lake: Inprocess, orders: Engine) -> None:
    meta = orders.load()
    answer = orders.append_rows(3)
    assert answer.body["metadata-location"] != meta.get("metadata-location")
    assert answer.headers["etag"] == lake.get(orders.path).headers["etag"]
    assert lake.get(orders.path).body["metadata"] == answer.body["metadata"]
    assert lake.post(orders.path, {"updates": [], "requirements": []}).status == 200
    refused(lake.post(f"{TABLES}/nowhere", set_properties(a="b")), 404, "nowhere")
    told = {"identifier": {"namespace": ["sales"], "name": "orders"}, **set_properties(a="b")}
    assert lake.post(orders.path, told).status == 200
    told["identifier"]["name"] = "other"
    refused(lake.post(orders.path, told), 400, "identifier")


@pytest.mark.parametrize(
    ("sent", "names"),
    [
        ({"updates": {}}, "updates"),
        ({"updates": [1]}, "updates[0]"),
        ({"updates": [{}]}, "action"),
        ({"updates": [{"action": "add-nonsense"}]}, "add-nonsense"),
        ({"updates": [{"action": "set-properties"}]}, "updates"),
        ({"updates": [{"action": "set-properties", "updates": {"a": 1}}]}, "set-properties"),
        ({"updates": [{"action": "remove-properties", "removals": "a"}]}, "remove-properties"),
        ({"updates": [{"action": "add-schema", "schema": 5}]}, "schema"),
        ({"updates": [{"action": "set-current-schema", "schema-id": "x"}]}, "schema-id"),
        ({"updates": [{"action": "set-current-schema", "schema-id": 77}]}, "77"),
        ({"updates": [{"action": "add-snapshot", "snapshot": {}}]}, "snapshot-id"),
        ({"updates": [{"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 99}]}, "99"),
        ({"updates": [{"action": "set-snapshot-ref", "ref-name": "main", "type": "twig", "snapshot-id": 99}]}, "twig"),
        ({"updates": [{"action": "set-default-spec", "spec-id": 9}]}, "9"),
        ({"updates": [{"action": "upgrade-format-version", "format-version": 9}]}, "format-version"),
        ({"updates": [{"action": "set-location", "location": "file:///elsewhere"}]}, "location"),
        ({"updates": [{"action": "set-location", "location": "s3://b/x"}]}, "location"),
        ({"updates": [{"action": "set-location", "location": 1}]}, "location"),
        (
            {"updates": [{"action": "set-properties", "updates": {"write.metadata.path": "/etc"}}]},
            "write.metadata.path",
        ),
        ({"requirements": {}}, "requirements"),
        ({"requirements": [1]}, "requirements[0]"),
        ({"requirements": [{}]}, "type"),
        ({"requirements": [{"type": "assert-nonsense"}]}, "assert-nonsense"),
        ({"requirements": [{"type": "assert-table-uuid"}]}, "uuid"),
        ({"requirements": [{"type": "assert-table-uuid", "uuid": 1}]}, "uuid"),
        ({"requirements": [{"type": "assert-ref-snapshot-id", "ref": 1}]}, "ref"),
        ({"requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": "x"}]}, "snapshot-id"),
        ({"requirements": [{"type": "assert-current-schema-id"}]}, "current-schema-id"),
        (
            {"requirements": [{"type": "assert-last-assigned-field-id", "last-assigned-field-id": 1.5}]},
            "last-assigned-field-id",
        ),
    ],
)
def test_a_malformed_commit_names_the_update_or_requirement(
    lake: Inprocess, orders: Engine, sent: Json, names: str
) -> None:
    before = lake.get(orders.path).body
    refused(lake.post(orders.path, sent), 400, names)
    change = {"identifier": {"namespace": ["sales"], "name": "orders"}, **sent}
    refused(lake.post("/v1/lake/transactions/commit", {"table-changes": [change]}), 400, names)
    assert lake.get(orders.path).body == before


@pytest.mark.parametrize(
    "requirement",
    [
        {"type": "assert-create"},
        {"type": "assert-table-uuid", "uuid": "00000000-0000-4000-8000-000000000000"},
        {"type": "assert-current-schema-id", "current-schema-id": 4},
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 77},
        {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 77},
        {"type": "assert-default-spec-id", "default-spec-id": 7},
        {"type": "assert-default-sort-order-id", "default-sort-order-id": 7},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 12},
    ],
    ids=lambda r: str(r["type"]),
)
def test_a_requirement_that_does_not_hold_is_409_with_the_table_named(
    lake: Inprocess, orders: Engine, requirement: Json
) -> None:
    sent = {**set_properties(a="b"), "requirements": [requirement]}
    answer = lake.post(orders.path, sent)
    refused(answer, 409, "sales.orders")
    assert "a" not in lake.get(orders.path).body["metadata"]["properties"]


def test_a_manifest_list_outside_the_volume_is_never_read(lake: Inprocess, orders: Engine, tmp_path: Path) -> None:
    meta = orders.load()
    stale = orders.append(meta, 1)
    orders.append_rows(1)  # now the server must read the list of the other
    outside = tmp_path / "secret.avro"
    outside.write_bytes(Path(stale["manifest-list"].removeprefix("file://")).read_bytes())
    for location in (
        f"file://{outside}",
        str(outside),
        "/etc/passwd",
        f"{meta['location']}/../../../../../../etc/passwd",
        "s3://x/y",
    ):
        refused(orders.post(orders.body(meta, {**stale, "manifest-list": location})), 400, "lies outside")
    missing = {**stale, "manifest-list": f"{meta['location']}/metadata/none.avro"}
    refused(orders.post(orders.body(meta, missing)), 400, "none.avro")


def test_client_gc_is_shown_and_never_persisted(lake: Inprocess, orders: Engine) -> None:
    shown = lake.get(orders.path).body["metadata"]["properties"]
    assert shown["gc.enabled"] == "false"
    answer = lake.post(orders.path, set_properties(k="v"))
    assert "gc.enabled" not in stored(answer)["properties"]
    echoed = lake.post(orders.path, set_properties(**{**shown, "k": "w"}))
    assert {k: v for k, v in stored(echoed)["properties"].items() if k.startswith(("gc.", "icefield."))} == {}
    assert stored(echoed)["properties"]["k"] == "w"
    own = lake.post(orders.path, set_properties(**{"gc.enabled": "true"}))
    assert stored(own)["properties"]["gc.enabled"] == "true", "what the user sets is kept"
    assert own.body["metadata"]["properties"]["gc.enabled"] == "false", "and the repo's rule is still shown"
    lake.post("/api/v1/repos", {"name": "free", "client-gc": "allow"})
    lake.post("/v1/free/namespaces", {"namespace": ["sales"]})
    free = lake.post("/v1/free/namespaces/sales/tables", body("t"))
    assert "gc.enabled" not in free.body["metadata"]["properties"]


def ctas(staged: Json, engine: Engine, *, rows: int) -> Json:
    """What Spark posts after a stage-create (recorded), with one append."""
    engine.location = staged["location"]
    snapshot = engine.append({**staged, "refs": {}}, rows)
    updates = [
        {"action": "assign-uuid", "uuid": staged["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": staged["format-version"]},
        {"action": "add-schema", "schema": staged["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": staged["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": staged["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": staged["location"]},
        {"action": "set-properties", "updates": staged["properties"]},
        {"action": "add-snapshot", "snapshot": snapshot},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot["snapshot-id"]},
    ]
    return {"requirements": [{"type": "assert-create"}], "updates": updates}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("in_session", [False, True])
def test_stage_create_and_the_commit_that_makes_it(lake: Inprocess, version: int, in_session: bool) -> None:
    prefix, token = "lake", None
    if in_session:
        session = lake.post("/api/v1/sessions", {}).body
        prefix, token = session["address"], session["token"]
        lake.post(f"/api/v1/sessions/{session['id']}/begin", token=token)
    engine = Engine(lake, prefix, "sales", "made", token=token)
    engine.version = version
    asked = body("made", **{"stage-create": True, "properties": {"format-version": str(version), "mine": "1"}})
    answer = lake.post(engine.collection, asked, token=token)
    assert answer.status == 200, answer
    assert "metadata-location" not in answer.body
    staged = answer.body["metadata"]
    assert staged["properties"]["gc.enabled"] == "false"
    refused(lake.get(engine.path, token=token), 404)
    sent = ctas(staged, engine, rows=4)
    made = lake.post(engine.path, sent, token=token)
    assert made.status == 200, made
    again = lake.post(engine.path, sent, token=token)
    assert again.status == 200, "asked again, it has landed"
    assert engine.rows() == 4
    if in_session:
        refused(lake.get(f"{TABLES}/made"), 404)
        assert lake.post(f"/api/v1/sessions/{session['id']}/commit", token=token).status == 200
    loaded = lake.get(f"{TABLES}/made")
    properties = stored(loaded)["properties"]
    assert properties["mine"] == "1"
    laid = [k for k in properties if k.startswith(("gc.", "icefield.", "write.data.path", "write.metadata.path"))]
    assert not laid, "nothing that was only shown is kept"
    assert not [k for k in properties if k.endswith("isolation-level")]
    assert Engine(lake, "lake", "sales", "made").rows() == 4
    refused(lake.post(TABLES, asked), 409, "sales.made")
    other = lake.post(TABLES, asked | {"name": "other"}).body["metadata"]
    late = ctas(other, engine, rows=1)
    refused(lake.post(f"{TABLES}/made", late), 409, "sales.made")


def test_replace_with_echoed_properties_keeps_only_the_users(lake: Inprocess, orders: Engine) -> None:
    """Spark's CREATE OR REPLACE copies all properties back."""
    lake.post(orders.path, set_properties(mine="1"))
    orders.append_rows(3)
    meta = orders.load()
    field = {"id": meta["last-column-id"] + 1, "name": "new", "required": False, "type": "int"}
    sent = {
        "requirements": [
            {"type": "assert-table-uuid", "uuid": meta["table-uuid"]},
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": meta["last-column-id"]},
        ],
        "updates": [
            {"action": "remove-snapshot-ref", "ref-name": "main"},
            {"action": "add-schema", "schema": {"type": "struct", "schema-id": 1, "fields": [field]}},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "set-properties", "updates": {**meta["properties"], "more": "2"}},
        ],
    }
    answer = lake.post(orders.path, sent)
    assert answer.status == 200, answer
    properties = stored(answer)["properties"]
    assert (properties["mine"], properties["more"]) == ("1", "2")
    assert not [k for k in properties if k.startswith(("gc.", "icefield."))]
    assert orders.rows() == 0
    refused(orders.post(orders.body(meta, orders.append(meta, 1))), 409, "sales.orders")


# -- several tables ---------------------------------------------------------------------------------------------------


def test_several_tables_in_one_commit_or_none(lake: Inprocess) -> None:
    engines = [Engine(lake, "lake", "sales", name) for name in "abc"]
    for engine in engines:
        engine.create()
    metas = [engine.load() for engine in engines]
    changes = [
        {"identifier": {"namespace": ["sales"], "name": e.table}, **e.body(m, e.row_delta(m))}
        for e, m in zip(engines, metas, strict=True)
    ]
    before = lake.get("/api/v1/repos/lake/log?limit=1").body["commits"][0]["id"]
    for engine in engines[:2]:
        engine.append_rows(1)
    answer = lake.post("/v1/lake/transactions/commit", {"table-changes": changes})
    refused(answer, 409, "sales.a", "sales.b")
    assert {c["entry"] for c in answer.error["conflicts"]} == {"sales.a", "sales.b"}, "all conflicts at once"
    assert engines[2].load()["snapshots"] == []
    assert lake.post("/v1/lake/transactions/commit", {"table-changes": changes[2:]}).status == 204
    newest = lake.get("/api/v1/repos/lake/log?limit=1").body["commits"][0]
    assert newest["entries"] == [{"name": "sales.c", "change": "change"}]
    assert newest["id"] != before
    changes[0]["identifier"]["name"] = "nowhere"
    refused(lake.post("/v1/lake/transactions/commit", {"table-changes": changes[:1]}), 404, "nowhere")


@pytest.mark.parametrize(
    ("sent", "names"),
    [
        ({}, "table-changes"),
        ({"table-changes": {}}, "table-changes"),
        ({"table-changes": []}, "table-changes"),
        ({"table-changes": [1]}, "table-changes[0]"),
        ({"table-changes": [{}]}, "table-changes[0].identifier"),
        ({"table-changes": [{"identifier": {"namespace": ["sales"], "name": "orders"}}] * 2}, "twice"),
        (
            {"table-changes": [{"identifier": {"namespace": [], "name": "orders"}}]},
            "table-changes[0].identifier.namespace",
        ),
        (
            {"table-changes": [{"identifier": {"namespace": ["sales"], "name": "orders"}, "updates": 1}]},
            "table-changes[0].updates",
        ),
    ],
)
def test_a_malformed_transaction_names_the_field(lake: Inprocess, orders: Engine, sent: Json, names: str) -> None:
    refused(lake.post("/v1/lake/transactions/commit", sent), 400, names)


def test_metrics_are_accepted(lake: Inprocess, orders: Engine) -> None:
    assert lake.post(f"{orders.path}/metrics", {"report-type": "scan-report", "anything": 1}).status == 204


def test_tags_and_commits_refuse_every_write(lake: Inprocess, orders: Engine) -> None:
    lake.post("/api/v1/repos/lake/tags", {"name": "v1"})
    at = lake.get("/api/v1/repos/lake/log?limit=1").body["commits"][0]["id"]
    for ref in ("v1", at):
        base = f"/v1/lake@{ref}"
        spot = {"namespace": ["sales"], "name": "orders"}
        for answer in (
            lake.post(f"{base}/namespaces", {"namespace": ["x"]}),
            lake.delete(f"{base}/namespaces/sales"),
            lake.post(f"{base}/namespaces/sales/properties", {"updates": {"a": "b"}}),
            lake.post(f"{base}/namespaces/sales/tables", body("x")),
            lake.delete(f"{base}/namespaces/sales/tables/orders"),
            lake.post(f"{base}/namespaces/sales/tables/orders", set_properties(a="b")),
            lake.post(f"{base}/tables/rename", {"source": spot, "destination": spot}),
            lake.post(
                f"{base}/transactions/commit", {"table-changes": [{"identifier": spot, **set_properties(a="b")}]}
            ),
        ):
            refused(answer, 403, "does not change")
        assert lake.get(f"{base}/namespaces/sales/tables/orders").status == 200


# -- over a real server -----------------------------------------------------------------------------------------------


def raw(
    server: RunningServer, method: str, path: str, content: bytes | None, headers: dict[str, str]
) -> tuple[int, Any]:
    host, port = server.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": f"{host}:{port}", **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        if content:
            connection.send(content)
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text else None
    finally:
        connection.close()


def test_what_the_http_server_itself_checks(server: RunningServer) -> None:
    json_type = {"Content-Type": "application/json"}
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "169.254.169.254"):
        status, told = raw(server, "GET", "/v1/config", None, {"Host": host})
        assert (status, "host" in told["error"]["message"]) == (400, True), host
    for host in ("localhost", "LOCALHOST:1", "[::1]:80", "127.0.0.1"):
        assert raw(server, "GET", "/v1/config", None, {"Host": host})[0] == 200

    sent = json.dumps({"namespace": ["x"]}).encode()
    size = {"Content-Length": str(len(sent))}
    for kind in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}):
        status, told = raw(server, "POST", NAMESPACES, sent, {**kind, **size})
        assert (status, told["error"]["field"]) == (400, "content-type")
    assert raw(server, "POST", NAMESPACES, sent, {"Content-Type": "Application/JSON; charset=utf-8", **size})[0] == 200

    status, told = raw(server, "POST", NAMESPACES, None, {**json_type, "Content-Length": str(1 << 40)})
    assert (status, "larger" in told["error"]["message"]) == (413, True)

    deep = b'{"namespace":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    for content in (
        deep,
        b"{",
        b"[]",
        b'"x"',
        b"\xff",
        b'{"namespace": ["\xff"]}',
        b'{"namespace": ["\\ud800"]}',
        b"nul",
    ):
        status, told = raw(server, "POST", NAMESPACES, content, {**json_type, "Content-Length": str(len(content))})
        assert status == 400, content[:40]
        assert told["error"]["message"]
    path = f"{NAMESPACES}/x/tables"
    for depth in (200, 2_000):
        nested = _nested(depth)
        status, told = raw(server, "POST", path, nested, {**json_type, "Content-Length": str(len(nested))})
        assert status == 400, told

    for method, at, expected in (
        ("GET", "/", 404),
        ("GET", "/v1/nothing/at/all", 404),
        ("GET", "/v1/lake/namespaces/x/views", 404),
        ("PUT", NAMESPACES, 405),
        ("DELETE", NAMESPACES, 405),
        ("POST", "/v1/config", 405),
        ("GET", f"{NAMESPACES}/%FF", 400),
    ):
        status, told = raw(server, method, at, None, {})
        assert status == expected, at
        assert told["error"]["message"]
    status, _ = raw(server, "HEAD", f"{NAMESPACES}/none", None, {})
    assert status == 404
    assert server.http().get("/api/v1/health").body["status"] == "ok"


def _nested(depth: int) -> bytes:
    """A struct in a struct in a struct …: valid JSON that recursion would not survive."""
    kind = b'"int"'
    for number in range(depth):
        kind = b'{"type":"struct","fields":[{"id":%d,"name":"f","required":false,"type":%s}]}' % (number + 2, kind)
    return b'{"name":"t","schema":{"type":"struct","fields":[{"id":1,"name":"a","required":false,"type":%s}]}}' % kind


def test_eight_threads_append_to_one_table_and_all_land_once(server: RunningServer, http: Http) -> None:
    http.post(NAMESPACES, {"namespace": ["sales"]})
    Engine(http, "lake", "sales", "orders").create(version=3)
    each = 4
    begin = threading.Barrier(8)

    def append(number: int) -> list[int]:
        engine = Engine(server.http(), "lake", "sales", "orders")
        begin.wait()
        return [engine.append_rows(10**number % 7 + 1).status for _ in range(each)]

    with ThreadPoolExecutor(8) as threads:
        statuses = [status for found in threads.map(append, range(8)) for status in found]
    assert statuses == [200] * 8 * each
    engine = Engine(http, "lake", "sales", "orders")
    meta = engine.load()
    live = engine.live(meta)
    assert len(live) == len(meta["snapshots"]) == 8 * each
    assert [s["sequence-number"] for s in meta["snapshots"]] == list(range(1, 8 * each + 1))
    spans = sorted((f.first_row_id, f.record_count) for f in live.values())
    assert all(start + count <= after for (start, count), (after, _) in itertools.pairwise(spans))


def test_of_eight_creators_exactly_one_wins(server: RunningServer, http: Http) -> None:
    http.post(NAMESPACES, {"namespace": ["sales"]})
    begin = threading.Barrier(8)

    def make(number: int) -> tuple[int, int]:
        mine = server.http()
        engine = Engine(mine, "lake", "sales", "made")
        staged = mine.post(TABLES, body("made", **{"stage-create": True})).body["metadata"]
        sent = ctas(staged, engine, rows=number + 1)
        begin.wait()
        return mine.post(engine.path, sent).status, number + 1

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(make, range(8)))
    winners = [rows for status, rows in found if status == 200]
    assert sorted(status for status, _ in found) == [200] + [409] * 7
    assert Engine(http, "lake", "sales", "made").rows() == winners[0]


def test_readers_in_a_marked_session_never_see_half_of_a_commit(server: RunningServer, http: Http) -> None:
    http.post(NAMESPACES, {"namespace": ["sales"]})
    for name in "ab":
        Engine(http, "lake", "sales", name).create()
    done = threading.Event()
    seen: list[tuple[int, int]] = []

    def read() -> None:
        mine = server.http()
        told = mine.post("/api/v1/sessions", {}).body
        token, path = told["token"], f"/api/v1/sessions/{told['id']}/statements"
        while True:
            last = done.is_set()
            number = mine.post(path, token=token).body["statement"]
            rows = [Engine(mine, told["address"], "sales", name, token=token).rows() for name in "ab"]
            mine.delete(f"{path}/{number}", token=token)
            seen.append((rows[0], rows[1]))
            if last:
                return

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(12):
        changes = []
        for name in "ab":
            engine = Engine(http, "lake", "sales", name)
            meta = engine.load()
            changes.append(
                {"identifier": {"namespace": ["sales"], "name": name}, **engine.body(meta, engine.append(meta, 1))}
            )
        assert http.post("/v1/lake/transactions/commit", {"table-changes": changes}).status == 204
    done.set()
    for reader in readers:
        reader.join()
    assert all(a == b for a, b in seen), seen
    assert (12, 12) in seen
