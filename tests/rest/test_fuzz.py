"""Mutations of valid requests: every answer is 2xx or 4xx, every error says something, and the server goes on."""

from __future__ import annotations

import copy
import itertools
import random
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, note, settings

from icefield.store.memory import MemoryStore
from support.inprocess import Inprocess
from support.writer import SCHEMA, Engine

Json = dict[str, Any]
ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    -(2**63) - 1,
    1.5,
    1e308,
    "",
    "x",
    "main",
    "\x00",
    "\x1f",
    "../..",
    "file:///etc/passwd",
    "😀" * 200,
    "9" * 400,
    [],
    [[]],
    [None],
    {},
    {"": None},
    {"action": "add-snapshot"},
    {"type": "struct", "fields": []},
]


class World:
    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="icefield-fuzz-")
        self.lake = Inprocess(Path(self.folder.name) / "lake", store=MemoryStore())
        self.lake.post("/v1/lake/namespaces", {"namespace": ["sales"]})
        self.numbers = itertools.count()
        self.new_table()
        self.lake.post("/api/v1/repos/lake/branches", {"name": "dev"})
        self.session = self.lake.post("/api/v1/sessions", {"lease-ms": 24 * 3600 * 1000}).body

    def new_table(self) -> None:
        self.engine = Engine(self.lake, "lake", "sales", f"orders{next(self.numbers)}")
        assert self.engine.create(version=3).status == 200
        assert self.engine.append_rows(3).status == 200

    def requests(self) -> list[tuple[str, str, Any]]:
        """Valid ones. A mutation that was accepted may have renamed the table, or put nonsense where its files are."""
        try:
            return self._requests()
        except (AssertionError, LookupError, OSError, StopIteration, ValueError):
            self.new_table()
            return self._requests()

    def _requests(self) -> list[tuple[str, str, Any]]:
        meta = self.engine.load()
        append = self.engine.body(meta, self.engine.append(meta, 2))
        delta = self.engine.body(meta, self.engine.row_delta(meta))
        field = {"id": meta["last-column-id"] + 1, "name": "c", "required": False, "type": "int"}
        fields = [*SCHEMA["fields"], field]
        shapes = {
            "requirements": [
                {"type": "assert-table-uuid", "uuid": meta["table-uuid"]},
                {"type": "assert-current-schema-id", "current-schema-id": meta["current-schema-id"]},
                {"type": "assert-last-assigned-field-id", "last-assigned-field-id": meta["last-column-id"]},
                {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": meta["last-partition-id"]},
                {"type": "assert-default-spec-id", "default-spec-id": 0},
                {"type": "assert-default-sort-order-id", "default-sort-order-id": 0},
            ],
            "updates": [
                {"action": "add-schema", "schema": {"type": "struct", "schema-id": 1, "fields": fields}},
                {"action": "set-current-schema", "schema-id": -1},
                {
                    "action": "add-spec",
                    "spec": {
                        "spec-id": 1,
                        "fields": [{"source-id": 1, "field-id": 1000, "name": "p", "transform": "bucket[4]"}],
                    },
                },
                {"action": "set-default-spec", "spec-id": -1},
                {
                    "action": "add-sort-order",
                    "sort-order": {
                        "order-id": 1,
                        "fields": [
                            {"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
                        ],
                    },
                },
                {"action": "set-default-sort-order", "sort-order-id": -1},
                {"action": "set-properties", "updates": {"a": "b"}},
                {"action": "remove-properties", "removals": ["a"]},
                {"action": "set-location", "location": meta["location"]},
                {
                    "action": "set-snapshot-ref",
                    "ref-name": "t",
                    "type": "tag",
                    "snapshot-id": meta["snapshots"][-1]["snapshot-id"],
                    "max-ref-age-ms": 5,
                },
                {"action": "remove-snapshot-ref", "ref-name": "t"},
                {"action": "remove-snapshots", "snapshot-ids": [meta["snapshots"][0]["snapshot-id"]]},
                {"action": "upgrade-format-version", "format-version": 3},
            ],
        }
        orders = {"namespace": ["sales"], "name": self.engine.table}
        create = {
            "name": "new",
            "schema": SCHEMA,
            "partition-spec": {
                "spec-id": 0,
                "fields": [{"source-id": 1, "field-id": 1000, "transform": "identity", "name": "p"}],
            },
            "write-order": {
                "order-id": 1,
                "fields": [{"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}],
            },
            "properties": {"format-version": "3"},
            "stage-create": False,
        }
        at = f"/v1/{self.session['address']}"
        session = f"/api/v1/sessions/{self.session['id']}"
        return [
            ("POST", self.engine.path, append),
            ("POST", self.engine.path, delta),
            ("POST", self.engine.path, shapes),
            ("POST", f"{at}/namespaces/sales/tables/{self.engine.table}", append),
            ("POST", f"{at}/namespaces/sales/tables/{self.engine.table}", shapes),
            ("POST", "/v1/lake/transactions/commit", {"table-changes": [{"identifier": orders, **append}]}),
            ("POST", "/v1/lake/transactions/commit", {"table-changes": [{"identifier": orders, **shapes}]}),
            ("POST", self.engine.collection, create),
            ("POST", self.engine.collection, {**create, "stage-create": True}),
            (
                "POST",
                "/v1/lake/tables/rename",
                {"source": orders, "destination": {"namespace": ["sales"], "name": "o2"}},
            ),
            ("POST", "/v1/lake/namespaces", {"namespace": ["a", "b"], "properties": {"a": "b"}}),
            ("POST", "/v1/lake/namespaces/sales/properties", {"updates": {"a": "b"}, "removals": ["c"]}),
            ("POST", "/api/v1/repos", {"name": "other", "client-gc": "refuse"}),
            ("POST", "/api/v1/repos/lake/branches", {"name": "b", "from": "main"}),
            ("POST", "/api/v1/repos/lake/tags", {"name": "b", "from": "main"}),
            (
                "POST",
                "/api/v1/repos/lake/merge",
                {"from": "dev", "into": "main", "message": "m", "id": "i", "dry-run": False},
            ),
            ("POST", "/api/v1/sessions", {"repo": "lake", "ref": "main", "lease-ms": 5000}),
            ("POST", f"{session}/checkout", {"ref": "dev"}),
            ("POST", f"{session}/statements", {"strict": True}),
            ("POST", f"{session}/begin", {"message": "m", "transaction-id": "12345678-1234"}),
            ("POST", f"{session}/savepoints", {"name": "s"}),
            ("POST", f"{session}/sequences", {**orders, "field-id": 1, "count": 32, "at-least": 5}),
            ("POST", f"{session}/commit", {"message": "m", "transaction-id": "12345678-1234"}),
            ("GET", "/api/v1/repos/lake/log?limit=5&ref=main", None),
            ("GET", "/api/v1/repos/lake/diff?from=main&to=dev", None),
            ("GET", f"{self.engine.path}?snapshots=refs", None),
            ("GET", f"{self.engine.collection}?pageSize=2&pageToken=", None),
            ("GET", "/v1/config?warehouse=lake@dev", None),
            ("DELETE", f"{session}/statements/1", None),
            ("DELETE", "/api/v1/repos/lake/branches/b", None),
        ]


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    found = [path]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += spots(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += spots(inner, (*path, index))
    return found


def mutate(rng: random.Random, document: Any) -> Any:
    document = copy.deepcopy(document)
    for _ in range(rng.randint(1, 3)):
        path = rng.choice(spots(document))
        how = rng.choice(("replace", "replace", "remove", "twice", "rename"))
        if not path:
            return rng.choice(ODD)
        holder = document
        for step in path[:-1]:
            holder = holder[step]
        key = path[-1]
        if how == "replace":
            holder[key] = copy.deepcopy(rng.choice(ODD))
        elif how == "remove":
            del holder[key]
        elif how == "twice" and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        elif how == "rename" and isinstance(holder, dict):
            holder[rng.choice(("", "x", "snapshot-id", "fields"))] = holder.pop(key)
    return document


SEGMENTS = ("%00", "%1F", "%1Fx", "x", "lake@", "lake@~", "lake@~x", "~", "%2e%2e", "%F0%9F%98%80", "9" * 600)


def mutate_path(rng: random.Random, path: str) -> str:
    segments = path.split("/")
    if rng.randrange(4) == 0:
        segments[rng.randrange(2, len(segments))] = rng.choice(SEGMENTS)
    return "/".join(segments)


def fuzz(examples: int) -> None:
    world = World()
    try:

        @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(st.integers(0, 2**63))
        def run(seed: int) -> None:
            rng = random.Random(seed)
            method, path, sent = rng.choice(world.requests())
            path = mutate_path(rng, path)
            sent = mutate(rng, sent) if sent is not None else None
            token = rng.choice((world.session["token"],) * 6 + (None, "", "x", "ifl.x", "ifl.x.y"))
            note(f"{method} {path} {sent}")
            if isinstance(world.lake.routes.find(method, tuple(path.partition("?")[0].strip("/").split("/"))), list):
                return
            answer = world.lake(method, path, sent, token=token)
            assert 200 <= answer.status < 300 or 400 <= answer.status < 500, answer
            if answer.status >= 400:
                assert answer.error["message"].strip(), answer
                assert answer.error["type"]
                assert answer.error["code"] == answer.status

        run()
        assert world.lake.get("/api/v1/health").status == 200
        log = world.lake.get("/api/v1/repos/lake/log?limit=1000").body["commits"]
        for commit in log[:20]:
            for identifier in world.lake.get(f"/v1/lake@{commit['id']}/namespaces/sales/tables").body.get(
                "identifiers", ()
            ):
                if identifier["name"].isascii() and identifier["name"].isalnum():
                    path = f"/v1/lake@{commit['id']}/namespaces/sales/tables/{identifier['name']}"
                    assert world.lake.get(path).status == 200, "what was accepted can be read"
    finally:
        world.lake.close()
        world.folder.cleanup()


def test_a_thousand_odd_requests_are_answered_cleanly() -> None:
    fuzz(1_000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_odd_requests_are_answered_cleanly() -> None:
    fuzz(30_000)
