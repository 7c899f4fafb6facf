"""Keeps a set of child processes running: starts them in order, waits until each is ready, restarts what dies.

Contract:
- A part is ready when it prints a line ``ready {json}`` on its standard output, or when its ``probe`` says so. With
  ``progress <text>`` it tells how far it is.
- A part whose ``needs`` are ready is started. One that ends before it was ever ready ends the whole run, with the line
  that tells why; one that dies later is started again after a growing pause, and the others go on.
- ``stop()`` (from a signal handler too) ends them all, last started first: SIGTERM, a grace, SIGKILL.
- No child outlives this process, not even on ``kill -9``: each gets SIGTERM when this process dies (Linux), sees its
  standard input end, and the keeper (keeper.py) ends whatever is left, grandchildren too.

One thread, one loop: the death signal follows the thread that started the child, and forking is safe with one only.
"""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from icefield.cli.child import Child, Part, reason
from icefield.cli.keeper import Keeper
from icefield.model.errors import Unavailable

_TICK_S = 0.1
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_LONG_LIFE_S = 60.0


@dataclass(frozen=True, slots=True)
class Event:
    """Something a person or a program wants to know about a part."""

    kind: Literal["starting", "progress", "ready", "died", "stopping", "stopped"]
    part: str
    pid: int
    seconds: float = 0.0
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Seat:
    """A part's place: whoever sits on it now, and how often it had to be filled."""

    part: Part
    child: Child | None = None
    announced: bool = False
    """Ready now, and said so: the parts that need it may start."""
    ever_ready: bool = False
    starts: int = 0
    failures: int = 0
    start_not_before: float = 0.0


class Supervisor:
    """Runs ``parts`` until ``stop()``, or until one cannot be started. Logs go to ``<logs>/<name>.log``.

    ``scratch`` is a folder of the parts' sockets and the like, which is gone when all this is over.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        logs: Path,
        on_event: Callable[[Event], None],
        scratch: Path | None = None,
        grace_s: float = 10.0,
    ) -> None:
        self._seats = {part.name: _Seat(part) for part in parts}
        self._logs = logs
        self._on_event = on_event
        self._scratch = scratch
        self._grace_s = grace_s
        self._stopping = False
        self._selector = selectors.DefaultSelector()

    def stop(self) -> None:
        self._stopping = True

    def run(self, on_tick: Callable[[], None] = lambda: None) -> None:
        """Blocks. Raises Unavailable when a part could not be started for the first time."""
        self._logs.mkdir(parents=True, exist_ok=True)
        keeper = Keeper(self._scratch)
        try:
            while not self._stopping:
                for seat in self._seats.values():
                    self._look_after(seat, keeper.mark)
                self._read_outputs(_TICK_S)
                on_tick()
        finally:
            for seat in reversed(list(self._seats.values())):
                if seat.child is not None:
                    self._dismiss(seat, seat.child)
            keeper.close()
            self._selector.close()

    def _look_after(self, seat: _Seat, mark: str) -> None:
        child = seat.child
        if child is None:
            if time.monotonic() >= seat.start_not_before and all(self._is_ready(name) for name in seat.part.needs):
                self._start(seat, mark)
            return
        if child.ready is None and seat.part.probe is not None:
            child.ready = seat.part.probe(child.pid)
        for text in child.progress:
            self._on_event(Event("progress", seat.part.name, child.pid, child.age_s, {"text": text}))
        child.progress.clear()
        if child.ready is not None and not seat.announced:
            seat.announced = seat.ever_ready = True
            self._on_event(Event("ready", seat.part.name, child.pid, child.age_s, child.ready))
        if child.ready is None and child.age_s > seat.part.ready_within_s and not child.ended():
            self._end(child)
            child.last_lines.append(f"not ready within {seat.part.ready_within_s:.0f} s")
        if child.ended():
            self._after_death(seat, child)

    def _is_ready(self, name: str) -> bool:
        return self._seats[name].announced

    def _start(self, seat: _Seat, mark: str) -> None:
        part = seat.part
        needed = {name: self._seats[name].child for name in part.needs}
        command = part.command({name: (child.ready if child else None) or {} for name, child in needed.items()})
        seat.starts += 1
        child = Child(part, command, mark=f"{mark}.{part.name}.{seat.starts}", log=self._logs / f"{part.name}.log")
        seat.child = child
        self._selector.register(child.stdout, selectors.EVENT_READ, child)
        self._on_event(Event("starting", part.name, child.pid, detail={"start": seat.starts}))

    def _after_death(self, seat: _Seat, child: Child) -> None:
        """Sweep up what it left, and start it again later, or give up."""
        lived = child.age_s
        self._bury(seat, child, grace_s=0.5)
        said = child.last_said()
        detail: dict[str, Any] = {"exit": child.exit_in_words(), "said": said[-5:]}
        name = seat.part.name
        if not seat.ever_ready:
            self._on_event(Event("died", name, child.pid, lived, detail))
            log = self._logs / f"{name}.log"
            why = reason(said).removeprefix("error: ")
            raise Unavailable(f"{name} could not be started ({detail['exit']}): {why} (its log is {log})")
        seat.failures = 1 if lived > _LONG_LIFE_S else seat.failures + 1
        pause = _PAUSES_S[min(seat.failures, len(_PAUSES_S)) - 1]
        seat.start_not_before = time.monotonic() + pause
        self._on_event(Event("died", name, child.pid, lived, {**detail, "again-in-s": pause}))

    def _dismiss(self, seat: _Seat, child: Child) -> None:
        self._on_event(Event("stopping", seat.part.name, child.pid))
        begun = time.monotonic()
        self._end(child)
        self._bury(seat, child, grace_s=1.0)
        self._on_event(Event("stopped", seat.part.name, child.pid, time.monotonic() - begun))

    def _end(self, child: Child) -> None:
        """SIGTERM, the grace, SIGKILL. Outputs are read meanwhile, lest it wait for us."""
        child.terminate()
        deadline = time.monotonic() + self._grace_s
        while not child.ended() and time.monotonic() < deadline:
            self._read_outputs(0.05)
        if not child.ended():
            child.kill()

    def _bury(self, seat: _Seat, child: Child, *, grace_s: float) -> None:
        self._forget(child)
        child.bury(grace_s=grace_s)
        seat.child = None
        seat.announced = False

    def _forget(self, child: Child) -> None:
        if child.stdout in self._selector.get_map():
            self._selector.unregister(child.stdout)

    def _read_outputs(self, timeout_s: float) -> None:
        if not self._selector.get_map():
            time.sleep(timeout_s)
            return
        for key, _ in self._selector.select(timeout_s):
            child: Child = key.data
            if not child.read():
                self._forget(child)  # it closed its output; whether it ended, poll() tells


def run_until_signal(supervisor: Supervisor, on_tick: Callable[[], None] = lambda: None) -> None:
    """``run()``, with SIGTERM, SIGINT and SIGHUP as ``stop()``; restores what was there before."""
    asked = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: supervisor.stop()) for number in asked}
    try:
        supervisor.run(on_tick)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
