"""``icefield.connect``: to a server by its URL, or to a folder, whose server is joined or started.

A folder has one server. Who connects first starts it, as a process of its own (never inside this one); who connects
later joins it, from any process. It ends when no session has been open for a while.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from icefield.client.http import Management
from icefield.client.lake import Lake
from icefield.engine.spark.progress import progress
from icefield.model.errors import BadRequest, IcefieldError, Unavailable
from icefield.model.names import DEFAULT_REPO

SERVER_FILE = "server.json"
LOCK_FILE = "lock"
LOG_FILE = "server.log"
IDLE_SECONDS = 10
"""How long a server that was started here outlives its last session."""
START_SECONDS = 60.0
_ATTEMPTS = 2


def connect(
    target: str | os.PathLike[str] = "./lake-data",
    *,
    repo: str = DEFAULT_REPO,
    branch: str | None = None,
    token: str | None = None,
    lease_seconds: float | None = None,
    spark_conf: Mapping[str, str] | None = None,
) -> Lake:
    """Connect to a lake.

    ``target`` is a folder (``"./lake-data"``, made if it is not there) or a server (``"http://host:8181"``).
    ``branch`` is where to stand: a branch, tag or commit id; by default the repo's default branch. ``token`` is a
    principal's, where the server has principals. ``spark_conf`` is added to Spark's configuration.
    """
    text = os.fspath(target)
    if "://" in text:
        server = Management(text, token)
    else:
        server = Management(_server_of(Path(text).expanduser().resolve(), repo), token)
    lease_ms = None if lease_seconds is None else round(lease_seconds * 1000)
    return Lake(server, repo, branch, lease_ms=lease_ms, spark_conf=spark_conf)


def _server_of(data: Path, repo: str) -> str:
    running = _running(data)
    if running is not None:
        return running
    if data.exists() and not data.is_dir():
        raise BadRequest(f"{data} is a file: a lake is a folder, or a server's URL", field="target")
    data.mkdir(parents=True, exist_ok=True)
    with progress(f"starting the server of {data}"):
        return _start(data, repo)


def _running(data: Path) -> str | None:
    """The URL of the server that owns this folder, if one answers."""
    try:
        told: dict[str, Any] = json.loads((data / SERVER_FILE).read_text(encoding="utf-8"))
        url = str(told["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    server = Management(url)
    try:
        # Another server may have come to this port since: the folder decides.
        health = server._ask("GET", "/api/v1/health", None)
        return url if health.get("data") == str(data) else None
    except IcefieldError:
        return None
    finally:
        server.close()


def _start(data: Path, repo: str) -> str:
    command = [sys.executable, "-m", "icefield.cli", "serve", "--data", str(data), "--port", "0", "--repo", repo]
    command += ["--until-idle", str(IDLE_SECONDS)]
    deadline = time.monotonic() + START_SECONDS
    for _ in range(_ATTEMPTS):
        with (data / LOG_FILE).open("ab") as log:
            said_before = log.tell()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
                start_new_session=True,  # others may join it: it does not end with us, nor by our Ctrl-C
            )
        while process.poll() is None or _owned(data):
            url = _running(data)
            if url is not None:
                return url  # ours, or that of another process that was faster
            if time.monotonic() > deadline:
                process.terminate()
                raise Unavailable(f"the server of {data} does not answer: see {data / LOG_FILE}")
            time.sleep(0.05)
        # Ended, and nobody has the folder: it could not start, or the one that was faster has just ended.
    raise Unavailable(f"the server of {data} did not start: {_last_words(data, said_before)}")


def _owned(data: Path) -> bool:
    """Whether a server has this folder, though it may not answer yet: it locks a file there."""
    try:
        with (data / LOCK_FILE).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _environment() -> dict[str, str]:
    """What configures the engine is nothing that the server knows."""
    return {k: v for k, v in os.environ.items() if not k.startswith("ICEFIELD_SPARK_") and k != "ICEFIELD_CACHE"}


def _last_words(data: Path, start: int) -> str:
    with (data / LOG_FILE).open("rb") as log:
        log.seek(start)
        lines = log.read().decode("utf-8", "replace").strip().splitlines()
    return "\n".join(lines[-10:]) or "it said nothing"
