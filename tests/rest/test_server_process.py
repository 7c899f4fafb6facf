"""``icefield serve`` as a process: what HTTP itself may carry, its life from start to stop, one owner per folder.

The races over HTTP (appends, creations, torn reads) are in test_catalog.py.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from support.server import Answer, Http, RunningServer
from support.writer import Engine

NAMESPACES = "/v1/lake/namespaces"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One for all tests of HTTP itself; the others start their own."""
    with RunningServer(tmp_path_factory.mktemp("http") / "lake") as running:
        yield running


def ask(
    server: RunningServer, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    host, port = server.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        response = connection.getresponse()
        return response.status, response.read(), {k.lower(): v for k, v in response.getheaders()}
    finally:
        connection.close()


def message(content: bytes) -> str:
    told: str = json.loads(content)["error"]["message"]
    return told


def serve(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A server that is expected not to start."""
    command = [sys.executable, "-m", "icefield.cli", "serve", "--data", str(data), "--port", "0", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ}, check=False)


# -- HTTP -------------------------------------------------------------------------------------------------------------


def test_who_asks_and_how_is_checked_before_what(server: RunningServer) -> None:
    """Host and content type: what a page in somebody's browser can send is refused."""
    for host in (
        "evil.example",
        "evil.example:8181",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
        "10.0.0.1",
    ):
        status, content, _ = ask(server, "GET", "/v1/config", host=host)
        assert status == 400
        assert host in message(content)
    for host in ("localhost", "Localhost:9", "127.0.0.1:1", "[::1]:5", "[::1]"):
        assert ask(server, "GET", "/v1/config", host=host)[0] == 200
    made = b'{"namespace":["made"]}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        status, content, _ = ask(server, "POST", NAMESPACES, made, content_type=kind)
        assert (status, json.loads(content)["error"]["field"]) == (400, "content-type")
    assert ask(server, "GET", f"{NAMESPACES}/made")[0] == 404
    assert ask(server, "POST", NAMESPACES, made, content_type="application/json; charset=UTF-8")[0] == 200


def test_a_body_that_is_no_object_is_a_400_that_says_so(server: RunningServer) -> None:
    deep = b'{"namespace":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    for content in (b"{", b"nonsense", b"[]", b"1", b'"x"', b"null", b"\xff\xfe", b"\x00", b'{"a":1}{', deep):
        for path in (NAMESPACES, "/api/v1/sessions", "/v1/lake/transactions/commit"):
            status, answer, _ = ask(server, "POST", path, content, **JSON)
            assert status == 400, (path, content[:20], answer)
            assert "body" in message(answer)
    assert ask(server, "GET", "/api/v1/health")[0] == 200


def test_unknown_routes_and_methods_say_what_there_is(server: RunningServer) -> None:
    for method, path in (
        ("GET", "/"),
        ("GET", "/v2/config"),
        ("GET", f"{NAMESPACES}/sales/views"),
        ("POST", "/v1/lake/no/such/route/at/all"),
        ("DELETE", "/api/v1/nothing"),
    ):
        status, content, _ = ask(server, method, path)
        assert status == 404, path
        assert f"{method} {path}" in message(content)
    for method, path, allowed in (
        ("PUT", NAMESPACES, "GET, POST"),
        ("PATCH", f"{NAMESPACES}/sales", "DELETE, GET, HEAD"),
        ("GET", "/v1/lake/tables/rename", "POST"),
        ("DELETE", "/api/v1/health", "GET"),
    ):
        status, content, headers = ask(server, method, path)
        assert (status, headers["allow"]) == (405, allowed)
        assert allowed in message(content)


def test_head_never_has_a_body_and_leaves_the_connection_whole(server: RunningServer) -> None:
    ask(server, "POST", NAMESPACES, b'{"namespace":["sales"]}', **JSON)
    host, port = server.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    for path, expected in (("sales", 204), ("ghost", 404), ("sales/tables/ghost", 404)):
        connection.request("HEAD", f"{NAMESPACES}/{path}")
        response = connection.getresponse()
        assert (response.status, response.read()) == (expected, b"")
        connection.request("GET", "/api/v1/health")  # on the same connection
        assert json.loads(connection.getresponse().read())["status"] == "ok"
    connection.close()
    with socket.create_connection((host, int(port)), timeout=60) as raw:
        raw.sendall(f"HEAD {NAMESPACES}/ghost HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        received = b""
        while part := raw.recv(65536):
            received += part
    assert received.split(b"\r\n\r\n", 1)[1] == b"", "not a byte after the headers"


def test_every_answer_has_a_request_id(server: RunningServer) -> None:
    seen = set()
    for method, path in (("GET", "/api/v1/health"), ("GET", "/nowhere"), ("PUT", NAMESPACES), ("HEAD", "/v1/config")):
        headers = ask(server, method, path)[2]
        seen.add(headers["x-request-id"])
    assert len(seen) == 4
    assert ask(server, "GET", "/api/v1/health", x_request_id="my-own-7")[2]["x-request-id"] == "my-own-7"
    assert len(ask(server, "GET", "/api/v1/health", x_request_id="x" * 500)[2]["x-request-id"]) <= 64


def test_awkward_names_come_through_real_http(server: RunningServer, http: Http) -> None:
    for name in ("a.b/c d%2F+?#&=", "\N{GRINNING FACE}\N{COMBINING ACUTE ACCENT}", "..", "%1F"):
        assert http.post(NAMESPACES, {"namespace": [name]}).status == 200
        assert http.post(NAMESPACES, {"namespace": [name, name]}).status == 200
        path = f"{NAMESPACES}/{quote(f'{name}{chr(31)}{name}', safe='')}"
        assert http.get(path).body["namespace"] == [name, name]
        assert http.get(f"{NAMESPACES}?parent={quote(name, safe='')}").body["namespaces"] == [[name, name]]
        engine = Engine(http, "lake", quote(f"{name}\x1f{name}", safe=""), name)
        engine.path = f"{path}/tables/{quote(name, safe='')}"
        assert engine.create().status == 200
        assert engine.append_rows(3).status == 200
        assert engine.rows() == 3


def test_of_eight_plain_creations_of_one_table_exactly_one_wins(server: RunningServer, http: Http) -> None:
    """The staged ones are in test_catalog.py."""
    http.post(NAMESPACES, {"namespace": ["race"]})
    begin = threading.Barrier(8)

    def make(_: int) -> Answer:
        engine = Engine(server.http(), "lake", "race", "one")
        begin.wait()
        answer: Answer = engine.create()
        return answer

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(make, range(8)))
    assert sorted(a.status for a in answers) == [200] + [409] * 7
    (winner,) = (a for a in answers if a.status == 200)
    assert {a.error["type"] for a in answers if a.status == 409} == {"AlreadyExistsException"}
    loaded = http.get(f"{NAMESPACES}/race/tables/one").body
    assert loaded["metadata"]["table-uuid"] == winner.body["metadata"]["table-uuid"]
    assert loaded["metadata-location"] == winner.body["metadata-location"]
    made = [c for c in http.get("/api/v1/repos/lake/log").body["commits"] if "race.one" in str(c["entries"])]
    assert len(made) == 1


# -- one folder, one server -------------------------------------------------------------------------------------------


def test_a_folder_has_one_server_which_announces_itself(tmp_path: Path) -> None:
    data = tmp_path / "lake"
    server = RunningServer(data).start()
    try:
        announced = json.loads((data / "server.json").read_text())
        assert announced["url"] == server.url
        assert server.process is not None
        assert announced["pid"] == server.process.pid
        second = serve(data)
        assert second.returncode not in (0, None)
        assert "another server runs on" in second.stderr
        assert str(data) in second.stderr
        assert "Traceback" not in second.stderr
        assert json.loads((data / "server.json").read_text()) == announced, "the first one's word stands"
        assert server.http().get("/api/v1/health").body["data"] == str(data.resolve())
    finally:
        server.stop()
    with RunningServer(data) as third:
        assert third.http().get("/api/v1/health").status == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: int) -> None:
    data = tmp_path / "lake"
    with RunningServer(data) as server:
        process = server.process
        assert process is not None
        idle = http.client.HTTPConnection(*_address(server), timeout=60)
        idle.request("GET", "/api/v1/health")
        idle.getresponse().read()  # a client that keeps its connection does not hold the server up
        process.send_signal(number)
        assert process.wait(timeout=30) == 0
        idle.close()
        assert not (data / "server.json").exists()
    assert "Traceback" not in (tmp_path / "lake.log").read_text()


def _address(server: RunningServer) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


def test_a_port_that_is_taken_is_said_plainly(server: RunningServer, tmp_path: Path) -> None:
    port = _address(server)[1]
    second = serve(tmp_path / "other", "--port", str(port))
    assert second.returncode != 0
    assert str(port) in second.stderr
    assert "Traceback" not in second.stderr


def test_a_stale_announcement_does_not_keep_a_server_from_starting(tmp_path: Path) -> None:
    data = tmp_path / "lake"
    server = RunningServer(data).start()
    server.kill()
    assert (data / "server.json").exists(), "kill -9 removes nothing"
    with RunningServer(data) as again:
        assert json.loads((data / "server.json").read_text())["url"] == again.url


# -- what outlives a restart ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restart_keeps_everything_and_an_open_transaction_goes_on(tmp_path: Path, how: str) -> None:
    with RunningServer(tmp_path / "lake") as server:
        http = server.http()
        http.post(NAMESPACES, {"namespace": ["sales"], "properties": {"owner": "ann"}})
        orders = Engine(http, "lake", "sales", "orders")
        orders.create(version=3)
        orders.append_rows(5)
        http.post("/api/v1/repos/lake/branches", {"name": "dev"})
        told = http.post("/api/v1/sessions", {"lease-ms": 600_000}).body
        token, path = told["token"], f"/api/v1/sessions/{told['id']}"
        transaction = str(uuid.uuid4())
        begun = http.post(f"{path}/begin", {"transaction-id": transaction, "message": "over the edge"}, token=token)
        assert begun.status == 200, begun
        inside = Engine(http, told["address"], "sales", "orders", token=token)
        assert inside.append_rows(7).status == 200
        assert http.post(f"{path}/savepoints", {"name": "s"}, token=token).status == 200
        assert inside.append_rows(100).status == 200
        before = everything(http)
        loaded = http.get(inside.path, token=token)

        getattr(server, how)()
        server.start()
        http = server.http()
        assert everything(http) == before
        described = http.get(path, token=token).body
        assert described["transaction"]["id"] == transaction
        assert described["transaction"]["savepoints"] == ["s"]
        inside = Engine(http, told["address"], "sales", "orders", token=token)
        assert inside.load() == loaded.body["metadata"]
        assert inside.rows() == 112
        # the load token of before the restart still says which load a commit belongs to
        meta = inside.load()
        late = http.post(
            inside.path, inside.body(meta, inside.append(meta, 1000)), token=loaded.body["config"]["token"]
        )
        assert late.status == 200, late
        assert http.post(f"{path}/savepoints/s/rollback", token=token).status == 200
        assert inside.rows() == 12
        assert http.post(f"{path}/commit", {"transaction-id": transaction}, token=token).body["result"] == "committed"
        first = http.get(f"/api/v1/transactions/{transaction}", token=token).body

        getattr(server, how)()
        server.start()
        http = server.http()
        assert Engine(http, "lake", "sales", "orders").rows() == 12
        assert Engine(http, "lake@dev", "sales", "orders").rows() == 5
        assert http.get(f"/api/v1/transactions/{transaction}", token=token).body == first
        again = http.post(f"{path}/commit", {"transaction-id": transaction}, token=token)
        assert (again.status, again.body["commit"]) == (200, first["commit"])
        assert http.get("/api/v1/repos/lake/log?limit=1").body["commits"][0]["message"] == "over the edge"


def everything(http: Http) -> list[Any]:
    asked: list[Answer] = [
        http.get(path)
        for path in (
            NAMESPACES,
            f"{NAMESPACES}/sales",
            f"{NAMESPACES}/sales/tables",
            f"{NAMESPACES}/sales/tables/orders",
            "/v1/lake@dev/namespaces/sales/tables/orders",
            "/api/v1/repos",
            "/api/v1/repos/lake/refs",
            "/api/v1/repos/lake/log",
        )
    ]
    assert [a.status for a in asked] == [200] * len(asked)
    return [(a.body, a.headers.get("etag")) for a in asked]
