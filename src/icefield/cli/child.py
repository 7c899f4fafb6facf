"""One child process of the supervisor, from its start to its burial: when it is ready, what it says last, its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from icefield.cli import keeper, leash

Ready = Mapping[str, Any]
"""What a part said of itself when it became ready."""

_READY = "ready"
_PROGRESS = "progress "
_LOG_LIMIT_BYTES = 20_000_000


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    command: Callable[[Mapping[str, Ready]], Sequence[str]]
    """The command line, given what the parts it needs said when they became ready."""
    needs: tuple[str, ...] = ()
    probe: Callable[[int], Ready | None] | None = None
    """Asked with the process id until it answers, for a part that prints no ready line."""
    ready_within_s: float = 60.0
    environment: Mapping[str, str] = field(default_factory=dict)


class Child:
    """A started process of a part. Its standard error and what it prints besides the two words go to ``log``."""

    def __init__(self, part: Part, command: Sequence[str], *, mark: str, log: Path) -> None:
        self.part = part
        self.mark = mark
        self.ready: Ready | None = None
        self.progress: list[str] = []
        self.last_lines: deque[str] = deque(maxlen=20)
        self._log = log
        self._unread = b""
        self._started = time.monotonic()
        with self._log_file() as errors:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **part.environment, keeper.MARK_VARIABLE: mark},
                start_new_session=True,
                preexec_fn=leash.die_with_parent,
            )
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("Popen gave no pipes, though it was asked for them")
        self._stdin: IO[bytes] = stdin
        self.stdout: IO[bytes] = stdout
        os.set_blocking(stdout.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._started

    def ended(self) -> bool:
        return self._process.poll() is not None

    def exit_in_words(self) -> str:
        code = self._process.returncode
        if code is None or code >= 0:
            return f"exit code {code}"
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"

    def read(self) -> bool:
        """Take what is in the pipe; false when nothing is, or nothing will be."""
        try:
            data = os.read(self.stdout.fileno(), 65536)
        except BlockingIOError:
            return False
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._take(line.decode("utf-8", "replace").rstrip())
        return bool(data)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL to the whole process group, and wait."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def bury(self, *, grace_s: float) -> None:
        """After its end: read the rest, close the pipes, end what it left behind."""
        while self.read():
            pass
        if self._unread:
            self._take(self._unread.decode("utf-8", "replace"))
        self.stdout.close()
        self._stdin.close()
        keeper.sweep(self.mark, grace_s=grace_s)

    def last_said(self) -> list[str]:
        """Its last lines: of its standard output, else of its log."""
        if self.last_lines:
            return list(self.last_lines)
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
                lines = log.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return []
        return [line.strip() for line in lines if line.strip()][-20:]

    def _take(self, line: str) -> None:
        if line == _READY or line.startswith(_READY + " {"):
            try:
                answer = json.loads(line[len(_READY) :] or "{}")
            except ValueError:
                answer = None
            if isinstance(answer, dict):
                self.ready = answer
                return
        if line.startswith(_PROGRESS):
            self.progress.append(line.removeprefix(_PROGRESS))
        elif line:
            self.last_lines.append(line)
            with self._log_file() as log:
                log.write(line.encode() + b"\n")

    def _log_file(self) -> IO[bytes]:
        if self._log.exists() and self._log.stat().st_size > _LOG_LIMIT_BYTES:
            self._log.replace(self._log.with_suffix(".log.1"))
        return self._log.open("ab")


def python(module: str, *arguments: str) -> list[str]:
    """The command line of one of our own modules, by the python that runs now."""
    return [sys.executable, "-m", module, *arguments]


def reason(said: Sequence[str]) -> str:
    """The line that most likely tells why: the last one that speaks of an error, else the last one."""
    for line in reversed(said):
        if "error" in line.lower():
            return line
    return said[-1] if said else "it said nothing"
