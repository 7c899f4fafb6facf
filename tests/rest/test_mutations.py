"""Valid requests of every route that writes, broken at random: 2xx or a 4xx that says why, and what stays is readable.

Each example has a table, a session and names of its own, so a failure is found again by its own example. The bodies
are broken by pieces of themselves as well as by strangers, and a second test breaks the manifests they name.
"""

from __future__ import annotations

import copy
import io
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, note, settings

from icefield.iceberg.metadata import check_metadata
from icefield.store.memory import MemoryStore
from support.inprocess import Inprocess
from support.writer import SCHEMA, Engine, updates_of

Json = dict[str, Any]
Asked = tuple[str, str, Any, str | None]
"""Method, path, body, token."""

FIELD: Json = {"id": 9, "name": "c", "required": False, "type": "int"}
NESTED: Json = {
    "type": "struct",
    "schema-id": 0,
    "identifier-field-ids": [1],
    "fields": [
        {"id": 1, "name": "i", "required": True, "type": "long", "doc": "key"},
        {"id": 2, "name": "at", "required": False, "type": "timestamptz"},
        {"id": 3, "name": "l", "required": False, "type": "decimal(9,2)"},
        {
            "id": 4,
            "name": "m",
            "required": False,
            "type": {
                "type": "map",
                "key-id": 5,
                "key": "string",
                "value-id": 6,
                "value-required": False,
                "value": {"type": "list", "element-id": 7, "element": "uuid", "element-required": True},
            },
        },
        {"id": 8, "name": "s", "required": False, "type": {"type": "struct", "fields": [FIELD]}},
    ],
}


class Lake:
    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="icefield-mutations-")
        self.call = Inprocess(Path(self.folder.name) / "lake", store=MemoryStore())
        self.call.post("/v1/lake/namespaces", {"namespace": ["sales"]})
        self.call.post("/api/v1/repos/lake/branches", {"name": "dev"})
        self.number = 0

    def close(self) -> None:
        self.call.close()
        self.folder.cleanup()

    def scene(self) -> Scene:
        self.number += 1
        return Scene(self.call, f"t{self.number}")


class Scene:
    """What one example plays with."""

    def __init__(self, call: Inprocess, name: str) -> None:
        self.call, self.name = call, name

    def table(self, version: int, *, rows: int = 2) -> Engine:
        engine = Engine(self.call, "lake", "sales", self.name)
        assert engine.create(version=version).status == 200
        assert engine.append_rows(rows).status == 200
        return engine

    def session(self, *, begun: bool = False, marked: bool = False) -> tuple[str, str, str]:
        told = self.call.post("/api/v1/sessions", {}).body
        path, token = f"/api/v1/sessions/{told['id']}", told["token"]
        if begun:
            assert self.call.post(f"{path}/begin", {}, token=token).status == 200
            assert self.call.post(f"{path}/savepoints", {"name": "s"}, token=token).status == 200
        if marked:
            assert self.call.post(f"{path}/statements", {}, token=token).status == 200
        return path, token, told["address"]

    @property
    def identifier(self) -> Json:
        return {"namespace": ["sales"], "name": self.name}

    def appending(self, version: int, *, stale: bool) -> tuple[Engine, Json]:
        engine = self.table(version)
        meta = engine.load()
        body = engine.body(meta, engine.append(meta, 3))
        if stale:
            assert engine.append_rows(4).status == 200
        return engine, body

    def staged(self) -> tuple[str, Json]:
        body = {"name": self.name, "schema": SCHEMA, "stage-create": True}
        staged = self.call.post("/v1/lake/namespaces/sales/tables", body).body["metadata"]
        engine = Engine(self.call, "lake", "sales", self.name)
        engine.writes_for(staged)
        return engine.path, {
            "identifier": self.identifier,
            "requirements": [{"type": "assert-create"}],
            "updates": [
                {"action": "assign-uuid", "uuid": staged["table-uuid"]},
                {"action": "upgrade-format-version", "format-version": 2},
                {"action": "add-schema", "schema": staged["schemas"][0], "last-column-id": 2},
                {"action": "set-current-schema", "schema-id": -1},
                {"action": "add-spec", "spec": staged["partition-specs"][0]},
                {"action": "set-default-spec", "spec-id": -1},
                {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
                {"action": "set-default-sort-order", "sort-order-id": -1},
                {"action": "set-location", "location": staged["location"]},
                {"action": "set-properties", "updates": staged["properties"]},
                *updates_of(engine.append(staged, 3)),
            ],
        }

    def reshaping(self, version: int) -> tuple[Engine, Json]:
        """One of nearly every update that there is, as a commit that would land."""
        engine = self.table(version)
        meta = engine.load()
        snapshot = meta["current-snapshot-id"]
        column = {**FIELD, "id": meta["last-column-id"] + 1}
        file = f"{engine.folders['metadata']}/statistics.puffin"
        statistics = {
            "snapshot-id": snapshot,
            "statistics-path": file,
            "file-size-in-bytes": 10,
            "file-footer-size-in-bytes": 5,
            "blob-metadata": [{"type": "t", "snapshot-id": snapshot, "sequence-number": 1, "fields": [1]}],
        }
        field = {"source-id": 1, "field-id": 1000, "name": "p", "transform": "bucket[4]"}
        ordered = {"source-id": 1, "transform": "truncate[3]", "direction": "asc", "null-order": "nulls-first"}
        return engine, {
            "requirements": [
                {"type": "assert-table-uuid", "uuid": meta["table-uuid"]},
                {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": snapshot},
                {"type": "assert-last-assigned-field-id", "last-assigned-field-id": meta["last-column-id"]},
                {"type": "assert-current-schema-id", "current-schema-id": 0},
                {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": meta["last-partition-id"]},
                {"type": "assert-default-spec-id", "default-spec-id": 0},
                {"type": "assert-default-sort-order-id", "default-sort-order-id": 0},
            ],
            "updates": [
                {"action": "add-schema", "schema": {**SCHEMA, "schema-id": 1, "fields": [*SCHEMA["fields"], column]}},
                {"action": "set-current-schema", "schema-id": -1},
                {"action": "add-spec", "spec": {"spec-id": 1, "fields": [field]}},
                {"action": "set-default-spec", "spec-id": -1},
                {"action": "add-sort-order", "sort-order": {"order-id": 1, "fields": [ordered]}},
                {"action": "set-default-sort-order", "sort-order-id": -1},
                {"action": "set-properties", "updates": {"a": "b", "write.metadata.previous-versions-max": "2"}},
                {"action": "remove-properties", "removals": ["a"]},
                {"action": "set-location", "location": meta["location"]},
                {"action": "set-snapshot-ref", "ref-name": "t", "type": "tag", "snapshot-id": snapshot},
                {"action": "remove-snapshot-ref", "ref-name": "t"},
                {"action": "set-statistics", "snapshot-id": snapshot, "statistics": statistics},
                {"action": "remove-statistics", "snapshot-id": snapshot},
                {"action": "remove-schemas", "schema-ids": [0]},
                {"action": "remove-partition-specs", "spec-ids": [0]},
                {"action": "remove-snapshots", "snapshot-ids": [snapshot]},
                {"action": "upgrade-format-version", "format-version": 3},
            ],
        }


# -- the requests: one maker per row, (route pattern, maker) -----------------------------------------------------------

TABLES = "/v1/{prefix}/namespaces/{namespace}/tables"
COMMIT, MANY = f"{TABLES}/{{table}}", "/v1/{prefix}/transactions/commit"
SESSION = "/api/v1/sessions/{session}"
Maker = Callable[[Scene], Asked]


def _commit(make: Callable[[Scene], tuple[Engine, Json]]) -> Maker:
    def ask(scene: Scene) -> Asked:
        engine, body = make(scene)
        return "POST", engine.path, body, None

    return ask


def _many(scene: Scene) -> Asked:
    other = Scene(scene.call, f"{scene.name}b")
    _, one = scene.appending(3, stale=True)
    _, two = other.staged()
    return (
        "POST",
        "/v1/lake/transactions/commit",
        {"table-changes": [{"identifier": scene.identifier, **one}, two]},
        None,
    )


def _in_session(scene: Scene) -> Asked:
    engine, body = scene.appending(2, stale=False)
    _, token, address = scene.session(begun=True)
    return "POST", engine.path.replace("/lake/", f"/{address}/"), body, token


def _create(scene: Scene) -> Asked:
    body = {
        "name": scene.name,
        "location": f"{scene.call.application.core.volume.root}/own/{scene.name}",
        "schema": NESTED,
        "partition-spec": {
            "spec-id": 0,
            "fields": [{"source-id": 2, "field-id": 1000, "name": "d", "transform": "day"}],
        },
        "write-order": {
            "order-id": 1,
            "fields": [{"source-id": 1, "transform": "identity", "direction": "desc", "null-order": "nulls-last"}],
        },
        "properties": {"format-version": "3", "owner": "ann", "commit.retry.num-retries": "4"},
        "stage-create": False,
    }
    return "POST", "/v1/lake/namespaces/sales/tables", body, None


def _staged_commit(scene: Scene) -> Asked:
    path, body = scene.staged()
    return "POST", path, body, None


def _rename(scene: Scene) -> Asked:
    scene.table(2)
    destination = {"namespace": ["sales"], "name": f"{scene.name}-renamed"}
    return "POST", "/v1/lake/tables/rename", {"source": scene.identifier, "destination": destination}, None


def _plain(path: str, body: Json) -> Maker:
    return lambda scene: (
        "POST",
        path,
        {k: v.replace("{name}", scene.name) if isinstance(v, str) else v for k, v in body.items()},
        None,
    )


def _verb(verb: str, body: Json, *, begun: bool = False) -> Maker:
    def ask(scene: Scene) -> Asked:
        path, token, _ = scene.session(begun=begun)
        return "POST", f"{path}/{verb}", body, token

    return ask


def _namespace(scene: Scene) -> Asked:
    return "POST", "/v1/lake/namespaces", {"namespace": ["sales", scene.name], "properties": {"a": "b"}}, None


def _merge(scene: Scene) -> Asked:
    branch = f"b-{scene.name}"
    assert scene.call.post("/api/v1/repos/lake/branches", {"name": branch}).status == 200
    assert Engine(scene.call, f"lake@{branch}", "sales", scene.name).create().status == 200
    body = {"from": branch, "into": "main", "message": "m", "id": str(uuid.UUID(int=int(scene.name[1:])))}
    return "POST", "/api/v1/repos/lake/merge", {**body, "dry-run": False}, None


def _sequence(scene: Scene) -> Asked:
    scene.table(2)
    path, token, _ = scene.session()
    return "POST", f"{path}/sequences", {**scene.identifier, "field-id": 1, "count": 32, "at-least": 5}, token


REQUESTS: list[tuple[str, Maker]] = [
    (COMMIT, _commit(lambda s: s.appending(2, stale=False))),
    (COMMIT, _commit(lambda s: s.appending(2, stale=True))),
    (COMMIT, _commit(lambda s: s.appending(3, stale=True))),
    (COMMIT, _commit(lambda s: s.reshaping(2))),
    (COMMIT, _commit(lambda s: s.reshaping(3))),
    (COMMIT, _in_session),
    (COMMIT, _staged_commit),
    (MANY, _many),
    (TABLES, _create),
    ("/v1/{prefix}/tables/rename", _rename),
    ("/v1/{prefix}/namespaces", _namespace),
    (
        "/v1/{prefix}/namespaces/{namespace}/properties",
        _plain("/v1/lake/namespaces/sales/properties", {"updates": {"a": "b"}, "removals": ["c"]}),
    ),
    (
        f"{COMMIT}/metrics",
        _plain("/v1/lake/namespaces/sales/tables/t/metrics", {"report-type": "scan-report", "table-name": "t"}),
    ),
    ("/api/v1/repos", _plain("/api/v1/repos", {"name": "r-{name}", "client-gc": "allow"})),
    ("/api/v1/repos/{repo}/branches", _plain("/api/v1/repos/lake/branches", {"name": "x-{name}", "from": "main"})),
    ("/api/v1/repos/{repo}/tags", _plain("/api/v1/repos/lake/tags", {"name": "v-{name}", "from": "dev"})),
    ("/api/v1/repos/{repo}/merge", _merge),
    ("/api/v1/sessions", _plain("/api/v1/sessions", {"repo": "lake", "ref": "dev", "lease-ms": 5_000})),
    (f"{SESSION}/heartbeat", _verb("heartbeat", {})),
    (f"{SESSION}/checkout", _verb("checkout", {"ref": "dev"})),
    (f"{SESSION}/statements", _verb("statements", {"strict": True})),
    (f"{SESSION}/begin", _verb("begin", {"message": "m", "transaction-id": "12345678-90ab"})),
    (f"{SESSION}/savepoints", _verb("savepoints", {"name": "s"}, begun=True)),
    (f"{SESSION}/savepoints/{{name}}/rollback", _verb("savepoints/s/rollback", {}, begun=True)),
    (f"{SESSION}/commit", _verb("commit", {"message": "m", "transaction-id": None}, begun=True)),
    (f"{SESSION}/rollback", _verb("rollback", {}, begun=True)),
    (f"{SESSION}/sequences", _sequence),
]


@pytest.fixture(scope="module")
def lake() -> Iterator[Lake]:
    lake = Lake()
    yield lake
    lake.close()


def test_no_route_that_writes_is_forgotten_here(lake: Lake) -> None:
    known = {
        "/" + "/".join(segments)
        for routes in lake.call.routes._routes.values()
        for method, segments, _ in routes
        if method == "POST" and (segments[:2] == ("api", "v1") or segments[:2] == ("v1", "{prefix}"))
    }
    assert {pattern for pattern, _ in REQUESTS} == known


@pytest.mark.parametrize("number", range(len(REQUESTS)))
def test_unbroken_each_request_is_taken(lake: Lake, number: int) -> None:
    """Else the mutations would all be refused for one and the same reason."""
    scene = lake.scene()
    method, path, body, token = REQUESTS[number][1](scene)
    answer = lake.call(method, path, body, token=token)
    if path.endswith(scene.name) and any(u["action"] == "remove-snapshots" for u in body["updates"]):
        assert answer.status in (200, 400), answer  # its updates are valid one by one, not all together
    else:
        assert answer.status in (200, 204), answer


# -- breaking them -----------------------------------------------------------------------------------------------------

STRANGERS: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(
        [None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, -(2**64), 10**400, 0.5, -0.0, 1e308, float("nan")]
    ),
    st.sampled_from(["", " ", "main", "\x00", "\x1f", "\ud800", "..", "../..", "file:///etc", "x" * 5_000, "null"]),
    st.sampled_from(["struct", "list", "decimal(99,99)", "fixed[-1]", "bucket[0]", "variant", "day", "add-snapshot"]),
    st.integers(),
    st.text(max_size=8),
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    ),
)


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        found += spots(inner, (*path, key))
    return found


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


def broken(data: st.DataObject, document: Json) -> Any:
    document = copy.deepcopy(document)
    for _ in range(data.draw(st.sampled_from([1, 1, 1, 2, 3]))):
        places = spots(document)
        how = data.draw(st.sampled_from(["stranger", "stranger", "piece", "remove", "twice", "rename", "add", "whole"]))
        if how == "whole" or not places:
            if data.draw(st.integers(0, 5)) == 0:
                return data.draw(STRANGERS)
            how = "add"
        path = data.draw(st.sampled_from(places)) if places else ("x",)
        holder, key = at(document, path[:-1]), path[-1]
        if how == "stranger":
            holder[key] = data.draw(STRANGERS)
        elif how == "piece":
            holder[key] = copy.deepcopy(at(document, data.draw(st.sampled_from(places))))
        elif how == "remove":
            del holder[key]
        elif how == "twice" and isinstance(holder, list):
            holder.insert(0, copy.deepcopy(holder[key]))
        elif how == "rename" and isinstance(holder, dict):
            holder[data.draw(st.text(max_size=5))] = holder.pop(key)
        elif isinstance(holder, dict):
            holder[data.draw(st.text(max_size=5))] = data.draw(STRANGERS)
    return document


def judge(answer: Any) -> None:
    assert 200 <= answer.status < 500, answer
    if answer.status >= 400:
        assert answer.error["message"].strip(), answer
        assert answer.error["type"], answer
        assert answer.error["code"] == answer.status, answer


def readable(scene: Scene) -> None:
    """Whatever was accepted is a table that loads, whose file is sound and that the log and the door can tell of."""
    path = f"/v1/lake/namespaces/sales/tables/{scene.name}"
    loaded = scene.call.get(path)
    assert loaded.status in (200, 404), loaded
    if loaded.status == 200:
        check_metadata(loaded.body["metadata"])
    assert scene.call.get("/api/v1/repos/lake/log?limit=5").status == 200
    assert scene.call.get("/api/v1/repos/lake/diff?from=main&to=dev").status == 200
    session, token, _ = scene.session()
    assert scene.call.get(f"{session}/catalog", token=token).status == 200


QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)


@settings(QUIET, max_examples=650)
@given(st.data())
def test_a_broken_request_is_answered_cleanly_and_breaks_nothing(lake: Lake, data: st.DataObject) -> None:
    scene = lake.scene()
    _, make = data.draw(st.sampled_from(REQUESTS))
    method, path, body, token = make(scene)
    body = broken(data, body)
    note(f"{method} {path} {body}")
    answer = lake.call(method, path, body, token=token)
    judge(answer)
    if answer.status < 300:
        readable(scene)


@settings(QUIET, max_examples=150)
@given(st.data())
def test_broken_manifests_are_refused_cleanly(lake: Lake, data: st.DataObject) -> None:
    """A stale append is rebased, which reads what the client wrote."""
    scene = lake.scene()
    version = data.draw(st.sampled_from([2, 3]))
    engine, body = scene.appending(version, stale=True)
    listed = Path(body["updates"][0]["snapshot"]["manifest-list"].removeprefix("file://"))
    lines = fastavro.reader(io.BytesIO(listed.read_bytes()))
    wrote = [listed, *(Path(line["manifest_path"].removeprefix("file://")) for line in lines)]
    victim = data.draw(st.sampled_from([listed, *wrote]))
    content = bytearray(victim.read_bytes())
    how = data.draw(st.sampled_from(["flip", "cut", "empty", "grow", "other", "gone", "folder"]))

    def spot() -> int:
        """By its share of the file, whose length differs a little from run to run."""
        return data.draw(st.integers(0, 9_999)) * len(content) // 10_000

    if how == "flip":
        for _ in range(data.draw(st.integers(1, 4))):
            content[spot()] = data.draw(st.integers(0, 255))
    elif how == "cut":
        del content[spot() :]
    elif how == "empty":
        content.clear()
    elif how == "grow":
        content += data.draw(st.binary(min_size=1, max_size=40))
    elif how == "other":
        content = bytearray(data.draw(st.sampled_from(wrote)).read_bytes())
    note(f"{how} {victim}")
    if how in ("gone", "folder"):
        victim.unlink()
        if how == "folder":
            victim.mkdir()
    else:
        victim.write_bytes(content)
    judge(engine.post(body))
    loaded = scene.call.get(engine.path)
    assert loaded.status == 200
    check_metadata(loaded.body["metadata"])
