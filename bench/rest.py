"""The REST door: loads, commits to distinct tables, commits to one table, COMMITs of transactions.

Runs ``icefield serve`` on a folder of its own and loads it from this process, so client and server share the cores:
read the figures as ratios to each other, in one run.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TABLES = 16
SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}


class Connection:
    def __init__(self, url: str) -> None:
        self._http = http.client.HTTPConnection(url.partition("//")[2], timeout=60)

    def __call__(self, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
        headers = {"content-type": "application/json"} if body is not None else {}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        self._http.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._http.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{method} {path}: {answer.status} {content[:500]!r}")
        return json.loads(content) if content else None


def table(number: int) -> str:
    return f"/v1/lake/namespaces/bench/tables/t{number}"


def load(call: Connection, worker: int, turn: int) -> None:
    call("GET", table(worker % TABLES))


def commit(call: Connection, worker: int, turn: int) -> None:
    update = {"action": "set-properties", "updates": {"turn": str(turn)}}
    call("POST", table(worker % TABLES), {"requirements": [], "updates": [update]})


def commit_one(call: Connection, worker: int, turn: int) -> None:
    update = {"action": "set-properties", "updates": {f"worker-{worker}": str(turn)}}
    call("POST", table(0), {"requirements": [], "updates": [update]})


def transaction(call: Connection, worker: int, turn: int) -> None:
    """BEGIN, a commit to a table of the worker's own, COMMIT."""
    told = call("POST", "/api/v1/sessions", {})
    session, token = f"/api/v1/sessions/{told['id']}", told["token"]
    call("POST", f"{session}/begin", {}, token)
    update = {"action": "set-properties", "updates": {"turn": str(turn)}}
    path = table(worker % TABLES).replace("/v1/lake/", f"/v1/{told['address']}/")
    call("POST", path, {"requirements": [], "updates": [update]}, token)
    call("POST", f"{session}/commit", {}, token)
    call("DELETE", session, None, token)


def measure(url: str, act: Callable[[Connection, int, int], None], workers: int, turns: int) -> tuple[float, float]:
    """Acts per second, and the median time of one in ms."""
    times: list[float] = []

    def work(worker: int) -> None:
        call = Connection(url)
        for turn in range(turns):
            begun = time.perf_counter()
            act(call, worker, turn)
            times.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return workers * turns / (time.perf_counter() - begun), sorted(times)[len(times) // 2] * 1000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "icefield.cli", "serve", "--data", str(Path(folder) / "lake"), "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert server.stdout is not None
        url = json.loads(server.stdout.readline().removeprefix("ready "))["url"]
        call = Connection(url)
        call("POST", "/v1/lake/namespaces", {"namespace": ["bench"]})
        for number in range(TABLES):
            call("POST", "/v1/lake/namespaces/bench/tables", {"name": f"t{number}", "schema": SCHEMA})
        print(f"{'what':<34}{'clients':>8}{'per s':>10}{'median ms':>12}")
        for name, act, turns in (
            ("load a table", load, 400),
            ("commit, distinct tables", commit, 60),
            ("commit, one table", commit_one, 60),
            ("BEGIN, commit a table, COMMIT", transaction, 30),
        ):
            for workers in (1, 8):
                rate, median = measure(url, act, workers, turns)
                print(f"{name:<34}{workers:>8}{rate:>10.0f}{median:>12.2f}")
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
