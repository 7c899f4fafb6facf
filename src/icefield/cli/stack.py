"""``icefield up`` as a child of this process: started, awaited, asked where it is, stopped. For the tour and tests."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from icefield.cli.child import python
from icefield.model.errors import Unavailable

_STOP_WITHIN_S = 45.0


@dataclass(frozen=True, slots=True)
class Doors:
    server: str
    sql_port: int
    repo: str


class StackProcess:
    """Everything on ``data``, on free ports. Its standard input is ours: if we end, however, it ends too."""

    def __init__(self, data: Path, *, repo: str = "lake") -> None:
        command = python("icefield.cli", "up", "--data", str(data), "--repo", repo)
        self._process = subprocess.Popen(
            [*command, "--port", "0", "--sql-port", "0", "--json", "--leashed"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self._process.stdout is None or self._process.stdin is None:
            raise RuntimeError("Popen gave no pipes, though it was asked for them")
        self._output: IO[bytes] = self._process.stdout
        self._input: IO[bytes] = self._process.stdin
        self.events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        """What it tells, event by event; None when it ended."""
        # Read all the time: a pipe that nobody empties would make it wait.
        self._reader = threading.Thread(target=self._read, name="icefield-up-events", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_up(self, on_event: Callable[[dict[str, Any]], None] = lambda _: None) -> Doors:
        """Events of the parts go to ``on_event``, until all are ready."""
        while (event := self.events.get()) is not None:
            if "error" in event:
                raise Unavailable(str(event["error"]["message"]))
            if event["event"] == "up":
                return Doors(event["server"], int(event["sql-port"]), event["repo"])
            on_event(event)
        raise Unavailable(f"icefield up ended with exit code {self._process.wait()} before it was ready")

    def stop(self) -> None:
        self._input.close()
        try:
            self._process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its keeper ends the rest
            self._process.wait()
        self._reader.join(_STOP_WITHIN_S)
        self._output.close()

    def _read(self) -> None:
        for line in self._output:
            try:
                self.events.put(json.loads(line))
            except ValueError:
                continue
        self.events.put(None)

    def __enter__(self) -> StackProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()
