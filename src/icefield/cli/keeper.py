"""The keeper: a small process beside the supervisor that ends what is left when the supervisor is gone.

The supervisor marks every child's environment, and grandchildren inherit the mark, also when they leave the process
group (a PostgreSQL does). The keeper waits for its standard input to end, which happens however the supervisor ends,
then asks every marked process to stop and kills the ones that did not. Needs /proc; elsewhere the children's own
leashes (leash.py) must do.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

# Not ICEFIELD_*: those are settings, and an unknown one is an error.
MARK_VARIABLE = "_ICEFIELD_UP"
_GRACE_S = 2.5
_PROC = Path("/proc")


class Keeper:
    """The supervisor's end: starts the keeper and holds the pipe that keeps it waiting."""

    def __init__(self, scratch: Path | None = None) -> None:
        """``scratch``: a folder to remove when all is over, whoever ends it."""
        self._scratch = scratch
        self.mark = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._process: subprocess.Popen[bytes] | None = None
        if _PROC.joinpath("self/environ").exists():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "icefield.cli.keeper", self.mark, *([str(scratch)] if scratch else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def close(self) -> None:
        """For an orderly end, when nothing marked is left: the keeper finds nothing and leaves."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


def sweep(mark: str, *, grace_s: float) -> int:
    """End every process that carries ``mark`` or one that begins with it and a dot; how many there were."""
    first = marked(mark)
    _signal(first, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    left = first
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = marked(mark)
    # One that forked while it was looked for is found in the next round.
    for _ in range(20):
        if not left:
            break
        _signal(left, signal.SIGKILL)
        time.sleep(0.05)
        left = marked(mark)
    return len(first)


def marked(mark: str) -> list[int]:
    exact, below = f"{MARK_VARIABLE}={mark}".encode(), f"{MARK_VARIABLE}={mark}.".encode()
    found = []
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = entry.joinpath("environ").read_bytes()
        except OSError:
            continue  # gone, or somebody else's
        # A zombie's environment reads empty, so what only waits for its parent does not count.
        if any(item == exact or item.startswith(below) for item in environment.split(b"\0")):
            found.append(int(entry.name))
    return found


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def main(mark: str, *scratch: str) -> None:
    while os.read(0, 4096):
        pass
    sweep(mark, grace_s=_GRACE_S)
    for folder in scratch:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
