"""A second PostgreSQL door of a running ``icefield up``, with a fault: to show that the bank finds it.

As a script: ``faulty_door.py <fault> <arguments of icefield.sql.door>``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.up import Up


def nothing_is_strict() -> None:
    from icefield.sql.lake import LakeSession

    mark = LakeSession.mark

    async def unmarked(self: LakeSession, strict: bool = False) -> Any:
        return await mark(self)

    LakeSession.mark = unmarked  # type: ignore[method-assign]


def refusals_are_acknowledged() -> None:
    from icefield.model.errors import CommitConflict
    from icefield.sql.lake import LakeSession

    commit = LakeSession.commit

    async def believed(self: LakeSession) -> None:
        with contextlib.suppress(CommitConflict):
            await commit(self)

    LakeSession.commit = believed  # type: ignore[method-assign]


FAULTS = {fault.__name__: fault for fault in (nothing_is_strict, refusals_are_acknowledged)}


def _arguments_of_the_door(up: Up) -> list[str]:
    """As ``up`` started its own, but for the port."""
    assert up.process is not None
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode().split("\0")[:-1] if entry.name.isdigit() else []
            if "icefield.sql.door" in words and str(up.data) in words:
                arguments = words[words.index("icefield.sql.door") + 1 :]
                arguments[arguments.index("--port") + 1] = "0"
                return arguments
    raise AssertionError("icefield up runs no door")


@contextlib.contextmanager
def faulty_door(up: Up, fault: str) -> Iterator[str]:
    """The way in, as psycopg takes it."""
    process = subprocess.Popen(
        [sys.executable, __file__, fault, *_arguments_of_the_door(up)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2])])},
    )
    assert process.stdout is not None
    try:
        line = next(line for line in process.stdout if line.startswith("ready "))
        yield f"host=127.0.0.1 port={json.loads(line.removeprefix('ready '))['port']} user=ann dbname=lake"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
        process.stdout.close()


if __name__ == "__main__":
    from icefield.sql.door import main

    FAULTS[sys.argv[1]]()
    raise SystemExit(main(sys.argv[2:]))
