"""kill -9 under four concurrent writers, ten times: nothing acknowledged is lost, nothing is there twice or by half."""

from __future__ import annotations

import http.client
import random
import threading
import time
import urllib.error
from pathlib import Path
from typing import Any

from support.server import Answer, RunningServer
from support.writer import Engine

KILLS = 10
WRITERS = 4
TABLES = ("orders", "customers")
LOST = (urllib.error.URLError, ConnectionError, TimeoutError, http.client.HTTPException)


class Writer(threading.Thread):
    """Appends to both tables in one multi-table commit, again and again; asks again until it has an answer."""

    def __init__(self, server: RunningServer, stop: threading.Event, number: int) -> None:
        super().__init__(name=f"writer-{number}")
        self.server, self.stop = server, stop
        self.acknowledged = 0
        self.refused = 0
        self.retried = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self.once()
        except BaseException as error:  # handed to the test, which must fail
            self.failure = error

    def once(self) -> None:
        changes = self.patiently(self.prepare)
        asked = 0

        def post() -> Answer:
            nonlocal asked
            asked += 1
            return self.server.http().post("/v1/lake/transactions/commit", {"table-changes": changes})

        answer = self.patiently(post)
        self.retried += asked > 1
        if answer.status == 204:
            self.acknowledged += 1
        else:
            assert answer.status == 409, answer
            self.refused += 1

    def prepare(self) -> list[dict[str, Any]]:
        changes = []
        for table in TABLES:
            engine = Engine(self.server.http(), "lake", "sales", table)
            meta = engine.load()
            body = engine.body(meta, engine.append(meta, 1))
            changes.append({"identifier": {"namespace": ["sales"], "name": table}, **body})
        return changes

    def patiently(self, ask: Any) -> Any:
        deadline = time.monotonic() + 60
        while True:
            try:
                answer = ask()
            except LOST:
                assert time.monotonic() < deadline, "the server did not come back"
                time.sleep(0.02)
                continue
            if isinstance(answer, Answer) and answer.status >= 500:
                time.sleep(0.02)
                continue
            return answer


def test_kill_under_four_writers(tmp_path: Path) -> None:
    server = RunningServer(tmp_path / "lake").start()
    server.http().post("/v1/lake/namespaces", {"namespace": ["sales"]})
    for table in TABLES:
        Engine(server.http(), "lake", "sales", table).create(version=3)
    stop = threading.Event()
    writers = [Writer(server, stop, number) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    seeded = random.Random(20261119)
    for _ in range(KILLS):
        time.sleep(seeded.uniform(0.2, 0.8))
        server.kill()
        server.start()
    time.sleep(0.5)
    stop.set()
    for writer in writers:
        writer.join(timeout=90)
        assert not writer.is_alive()
        assert writer.failure is None, writer.failure
    acknowledged = sum(writer.acknowledged for writer in writers)
    assert acknowledged >= KILLS
    assert sum(writer.retried for writer in writers) >= 1, "no kill ever met a commit: the test proves nothing"
    for table in TABLES:
        engine = Engine(server.http(), "lake", "sales", table)
        live = engine.live_files()
        assert len(live) == acknowledged, f"{table}: {len(live)} files for {acknowledged} acknowledged commits"
        spans = sorted(f.first_row_id for f in live.values() if f.first_row_id is not None)
        assert len(spans) == len(set(spans)), "row ids are used once"
    commits, before = [], None
    while True:
        page = server.http().get("/api/v1/repos/lake/log?limit=1000" + (f"&before={before}" if before else "")).body
        commits += page["commits"]
        before = page.get("next")
        if before is None:
            break
    landed = [c for c in commits if c["operation"] == "commit-transaction"]
    assert len(landed) == acknowledged
    assert all(len(c["entries"]) == len(TABLES) for c in landed)
    server.stop()
