"""Iceberg REST over sockets: what the HTTP server itself checks, and many clients at once (routes: test_routes.py)."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from support.server import Http, RunningServer
from support.writer import Engine

from .test_routes import body_of, ctas

NAMESPACES = "/v1/lake/namespaces"
TABLES = f"{NAMESPACES}/sales/tables"


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
        engine = Engine(mine, "lake", "sales", "orders")
        staged = mine.post(TABLES, body_of(**{"stage-create": True})).body["metadata"]
        engine.writes_for(staged)
        sent = ctas(staged, engine.append(staged, number + 1))
        begin.wait()
        return mine.post(engine.path, sent).status, number + 1

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(make, range(8)))
    winners = [rows for status, rows in found if status == 200]
    assert sorted(status for status, _ in found) == [200] + [409] * 7
    assert Engine(http, "lake", "sales", "orders").rows() == winners[0]


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
