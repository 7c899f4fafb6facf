"""The supervisor with real small programs: order, readiness, restart, orderly end, and an end by kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from icefield.cli.child import Part
from icefield.cli.keeper import MARK_VARIABLE
from icefield.cli.supervisor import Event, Supervisor
from icefield.model.errors import Unavailable

# Says that it is ready, then waits until it is told to stop.
OBEDIENT = """
import json, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("progress warming up", flush=True)
print("ready " + json.dumps({"name": sys.argv[1], "told": sys.argv[2:]}), flush=True)
signal.pause()
"""

# Ignores SIGTERM and the end of its input, and starts a grandchild that left its session and does the same.
STUBBORN = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True)"
code += "; [signal.pause() for _ in iter(int, 1)]"
grandchild = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
grandchild.stdout.readline()
print('ready {"grandchild": %d}' % grandchild.pid, flush=True)
while True:
    signal.pause()
"""

CHATTY = """
import time
for _ in range(2000):
    print("y" * 999)
print('ready {"n": 1}', flush=True)
time.sleep(60)
"""

BROKEN = """
import sys
print("loading", file=sys.stderr)
sys.exit("error: port 1 is taken")
"""


def program(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def wait_for(what: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


class Running:
    """A supervisor in a thread of its own, and what it told."""

    def __init__(self, parts: list[Part], logs: Path, grace_s: float = 2.0) -> None:
        self.events: list[Event] = []
        self.error: Unavailable | None = None
        self.supervisor = Supervisor(parts, logs=logs, on_event=self.events.append, grace_s=grace_s)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.supervisor.run()
        except Unavailable as error:
            self.error = error

    def of(self, kind: str, part: str | None = None) -> list[Event]:
        return [event for event in list(self.events) if event.kind == kind and part in (None, event.part)]

    def wait_ready(self, part: str, times: int = 1) -> Event:
        wait_for(lambda: self.error or len(self.of("ready", part)) >= times)
        assert self.error is None, self.error
        return self.of("ready", part)[times - 1]

    def stop(self) -> None:
        self.supervisor.stop()
        self.join()

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def run(*parts: Part, grace_s: float = 2.0) -> Running:
        made.append(Running(list(parts), tmp_path / "logs", grace_s))
        return made[-1]

    yield run
    for running in made:
        running.stop()


def test_a_part_starts_when_what_it_needs_is_ready_and_is_told_what_that_said(start: Callable[..., Running]) -> None:
    running = start(
        Part("second", lambda ready: program(OBEDIENT, "second", str(ready["first"]["name"])), needs=("first",)),
        Part("first", lambda _: program(OBEDIENT, "first")),
    )
    assert running.wait_ready("second").detail == {"name": "second", "told": ["first"]}
    order = [(event.kind, event.part) for event in running.events if event.kind != "progress"]
    assert order == [("starting", "first"), ("ready", "first"), ("starting", "second"), ("ready", "second")]
    assert running.of("progress", "first")[0].detail == {"text": "warming up"}


def test_parts_stop_in_the_reverse_of_their_order_and_leave_nothing(start: Callable[..., Running]) -> None:
    running = start(*(Part(name, lambda _, n=name: program(OBEDIENT, n)) for name in ("one", "two")))
    pids = [running.wait_ready(name).pid for name in ("one", "two")]
    running.stop()
    assert [event.part for event in running.of("stopped")] == ["two", "one"]
    assert not any(alive(pid) for pid in pids)


def test_a_killed_part_is_started_again_and_the_others_stay(start: Callable[..., Running]) -> None:
    running = start(
        Part("steady", lambda _: program(OBEDIENT, "steady")), Part("shaky", lambda _: program(OBEDIENT, "shaky"))
    )
    steady, first = running.wait_ready("steady"), running.wait_ready("shaky")
    os.kill(first.pid, signal.SIGKILL)
    second = running.wait_ready("shaky", times=2)
    assert second.pid != first.pid
    assert alive(second.pid)
    died = running.of("died")
    assert [(event.part, event.detail["exit"]) for event in died] == [("shaky", "killed by SIGKILL")]
    assert alive(steady.pid)
    assert len(running.of("starting", "steady")) == 1


def test_the_pause_grows_when_a_part_dies_again_and_again(start: Callable[..., Running]) -> None:
    dies = "print('ready', flush=True); import time; time.sleep(0.05)"
    running = start(Part("brief", lambda _: program(dies)))
    wait_for(lambda: len(running.of("died")) >= 3)
    pauses = [event.detail["again-in-s"] for event in running.of("died")]
    assert pauses[:3] == sorted(set(pauses[:3]))


def test_what_a_dead_part_left_behind_is_ended_before_it_is_started_again(start: Callable[..., Running]) -> None:
    running = start(Part("stubborn", lambda _: program(STUBBORN)))
    first = running.wait_ready("stubborn")
    grandchild = int(first.detail["grandchild"])
    assert alive(grandchild)
    os.kill(first.pid, signal.SIGKILL)
    running.wait_ready("stubborn", times=2)
    assert not alive(grandchild)


def test_a_part_that_does_not_stop_is_killed_with_its_grandchildren(start: Callable[..., Running]) -> None:
    running = start(Part("stubborn", lambda _: program(STUBBORN)), grace_s=0.3)
    ready = running.wait_ready("stubborn")
    begun = time.monotonic()
    running.stop()
    assert time.monotonic() - begun < 6
    assert not alive(ready.pid)
    assert not alive(int(ready.detail["grandchild"]))


def test_a_part_that_cannot_start_ends_everything_and_says_why(start: Callable[..., Running], tmp_path: Path) -> None:
    running = start(
        Part("fine", lambda _: program(OBEDIENT, "fine")), Part("broken", lambda _: program(BROKEN), needs=("fine",))
    )
    fine = running.wait_ready("fine")
    running.join()
    assert running.error is not None
    assert "broken could not be started (exit code 1): port 1 is taken" in running.error.message
    assert str(tmp_path / "logs" / "broken.log") in running.error.message
    assert not alive(fine.pid)


def test_a_part_that_is_never_ready_is_given_up(start: Callable[..., Running]) -> None:
    silent = "import time; time.sleep(60)"
    running = start(Part("silent", lambda _: program(silent), ready_within_s=0.4))
    running.join()
    assert running.error is not None
    assert "not ready within" in running.error.message


def test_a_probe_tells_that_a_part_is_ready(start: Callable[..., Running], tmp_path: Path) -> None:
    written = tmp_path / "written"
    code = f"import pathlib, time; pathlib.Path({str(written)!r}).write_text('x'); time.sleep(60)"
    running = start(
        Part("probed", lambda _: program(code), probe=lambda pid: {"pid": pid} if written.exists() else None)
    )
    ready = running.wait_ready("probed")
    assert ready.detail == {"pid": ready.pid}


def test_output_that_nobody_waits_for_goes_to_the_log_and_never_blocks_the_part(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    running = start(Part("chatty", lambda _: program(CHATTY)))
    running.wait_ready("chatty")
    assert (tmp_path / "logs" / "chatty.log").stat().st_size > 1_900_000


SUPERVISED = """
import os, sys
from pathlib import Path
from icefield.cli.child import Part
from icefield.cli.supervisor import Supervisor, run_until_signal
def tell(event):
    if event.kind == "ready":
        print(event.pid, event.detail.get("grandchild", 0), flush=True)
parts = [Part(str(n), lambda _, c=code: [sys.executable, "-c", c, "x"]) for n, code in enumerate(sys.argv[2:])]
scratch = Path(sys.argv[1]).with_name("scratch")
scratch.mkdir()
run_until_signal(Supervisor(parts, logs=Path(sys.argv[1]), on_event=tell, scratch=scratch, grace_s=1.0))
"""


def supervised(tmp_path: Path, *codes: str) -> tuple[subprocess.Popen[str], list[int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISED, str(tmp_path / "logs"), *codes], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pids = [int(word) for _ in codes for word in process.stdout.readline().split()]
    return process, [pid for pid in pids if pid]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the keeper needs /proc")
def test_kill_9_of_the_supervisor_leaves_no_process_within_five_seconds(tmp_path: Path) -> None:
    process, pids = supervised(tmp_path, OBEDIENT, STUBBORN)
    assert len(pids) == 3
    assert all(alive(pid) for pid in pids)
    process.kill()
    process.wait()
    wait_for(lambda: not any(alive(pid) for pid in pids), seconds=5)
    wait_for(lambda: not _marked_processes(), seconds=5)
    wait_for(lambda: not (tmp_path / "scratch").exists(), seconds=5)
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything_in_order(tmp_path: Path, number: signal.Signals) -> None:
    process, pids = supervised(tmp_path, OBEDIENT)
    process.send_signal(number)
    assert process.wait(10) == 0
    assert not any(alive(pid) for pid in pids)
    assert not (tmp_path / "scratch").exists()
    assert process.stdout is not None
    process.stdout.close()


def _marked_processes() -> list[str]:
    """Processes that carry the supervisor's mark and were started by this test run's python."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (
                    MARK_VARIABLE.encode() in (entry / "environ").read_bytes()
                    and b"signal.pause" in (entry / "cmdline").read_bytes()
                ):
                    found.append(entry.name)
            except OSError:
                continue
    return found
