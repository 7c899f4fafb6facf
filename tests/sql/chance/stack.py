"""``icefield up`` with parts that can be killed: who they are now, and whether they are ready again."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import time
from pathlib import Path
from typing import Any

from chance.programs import PartName
from icefield.cli.stack import StackProcess

_READY_WITHIN_S = 120


class Stack:
    def __init__(self, data: Path) -> None:
        self.data = data
        self.kills = 0
        self._process = StackProcess(data)
        self._pids: dict[str, int] = {}
        self._ready: set[str] = set()
        self.doors = self._process.wait_until_up(self._note)

    def _note(self, event: dict[str, Any]) -> None:
        if event["event"] == "ready":
            self._pids[event["part"]] = event["pid"]
            self._ready.add(event["part"])
        elif event["event"] == "died":
            self._ready.discard(event["part"])

    def _take(self, timeout_s: float) -> None:
        with contextlib.suppress(queue.Empty):
            while (event := self._process.events.get(timeout=timeout_s)) is not None:
                self._note(event)
                timeout_s = 0.001
            raise AssertionError("icefield up ended")

    def kill(self, part: PartName) -> None:
        """Whatever it does. It is started again by itself."""
        self._take(0.001)
        self._ready.discard(part)
        self.kills += 1
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pids[part], signal.SIGKILL)

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + _READY_WITHIN_S
        self._take(0.001)
        while len(self._ready) < len(self._pids):
            assert time.monotonic() < deadline, f"only {self._ready} came back"
            self._take(0.1)

    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.doors.sql_port} user=ann dbname=lake connect_timeout=30"

    def stop(self) -> None:
        self._process.stop()
