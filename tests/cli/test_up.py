"""``icefield up``, all of it real: server, Spark, brain and door; what dies comes back, and nothing outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from icefield.cli.stack import Doors, StackProcess
from icefield.client.http import Management

psycopg = pytest.importorskip("psycopg")
pytestmark = [pytest.mark.spark, pytest.mark.sql, pytest.mark.timeout(600)]


class Stack:
    def __init__(self, data: Path) -> None:
        self.data = data
        self.process = StackProcess(data)
        self.pids: dict[str, int] = {}
        self.doors: Doors = self.process.wait_until_up(self._note)

    def _note(self, event: dict[str, Any]) -> None:
        if event["event"] == "ready":
            self.pids[event["part"]] = event["pid"]

    def kill(self, part: str) -> int:
        """kill -9, then wait until the supervisor has another one ready; its process id."""
        before = self.pids[part]
        os.kill(before, signal.SIGKILL)
        while (event := self.process.events.get(timeout=120)) is not None:
            self._note(event)
            if event["event"] == "ready" and event["part"] == part:
                assert event["pid"] != before
                return int(event["pid"])
        raise AssertionError("icefield up ended")

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        line = f"host=127.0.0.1 port={self.doors.sql_port} dbname=lake connect_timeout=20"
        with psycopg.connect(line, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    running = Stack(tmp_path_factory.mktemp("up") / "a lake")
    yield running
    running.process.stop()


def descendants(pid: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [pid]
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found[1:]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(what: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def test_both_doors_answer(stack: Stack) -> None:
    assert Management(stack.doors.server).get("/api/v1/health")["status"] == "ok"
    assert stack.query("SELECT 1 + 1") == [(2,)]


def test_psql_finds_its_way_by_the_data_folder(stack: Stack) -> None:
    command = [
        sys.executable,
        "-m",
        "icefield.cli",
        "connect",
        "psql",
        "--data",
        str(stack.data),
        "-c",
        "SELECT 41 + 1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "42" in done.stdout


def test_the_up_file_says_where_everything_is(stack: Stack) -> None:
    told = json.loads((stack.data / "up.json").read_text())
    assert told["server"] == stack.doors.server
    assert told["sql-port"] == stack.doors.sql_port
    assert told["pid"] == stack.process.pid


def test_a_killed_server_comes_back_at_its_place_and_the_others_stay(stack: Stack) -> None:
    others = {part: pid for part, pid in stack.pids.items() if part != "server"}
    stack.kill("server")
    assert Management(stack.doors.server).get("/api/v1/health")["status"] == "ok"
    assert {part: stack.pids[part] for part in others} == others
    assert all(alive(pid) for pid in others.values())
    assert stack.query("SELECT 1") == [(1,)]


def test_a_killed_door_comes_back_on_its_port_and_leaves_no_postgres_behind(stack: Stack) -> None:
    before = descendants(stack.pids["sql"])
    assert before, "the door runs a brain"
    stack.kill("sql")
    assert not any(alive(pid) for pid in before)
    assert stack.query("SELECT 1") == [(1,)]


def test_a_killed_engine_comes_back_and_reads_the_lake(stack: Stack) -> None:
    stack.query("CREATE SCHEMA IF NOT EXISTS up")
    stack.query("CREATE ICEBERG TABLE up.t (id bigint)")
    stack.query("INSERT INTO up.t VALUES (1), (2)")
    jvm = descendants(stack.pids["spark"])
    stack.kill("spark")
    assert not any(alive(pid) for pid in jvm)
    assert stack.query("SELECT id FROM up.t ORDER BY id") == [(1,), (2,)]


def test_kill_9_of_the_supervisor_leaves_no_process_within_five_seconds(stack: Stack) -> None:
    """The last one here: it ends the stack. That it also ends in an orderly way is shown by the tour (test_demo.py)."""
    everything = descendants(stack.process.pid)
    assert len(everything) >= 6, "server, engine, JVM, door, brain, keeper"
    os.kill(stack.process.pid, signal.SIGKILL)
    wait_for(lambda: not any(alive(pid) for pid in everything), seconds=5)
