"""Where the server is that a verb asks: ``--server URL``, ICEFIELD_SERVER, or what runs on the data folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from icefield.config import SERVER_VARIABLE, Settings, load
from icefield.model.errors import BadRequest, Unavailable

UP_FILE = "up.json"
"""Written into the data folder by ``icefield up``: its process id, and where each part is."""


@dataclass(frozen=True, slots=True)
class Place:
    url: str
    repo: str
    data: Path | None
    """The data folder, if the server was found through it."""


def settings(flags: Mapping[str, Any]) -> Settings:
    return load(flags, os.environ, folder=Path.cwd())


def find(server: str | None, data: Path | None, repo: str | None) -> Place:
    if server is not None and data is not None:
        raise BadRequest("give --server or --data, not both", field="server")
    known = settings({"data": data, "repo": repo})
    url = server or (os.environ.get(SERVER_VARIABLE) if data is None else None)
    if url is not None:
        return Place(_checked(url), known.repo, None)
    running = _read(known.server_file)
    if running is None:
        raise Unavailable(
            f"no server runs on {known.data}. Start one with: icefield up --data {known.data}"
            " (or name one: --server URL)"
        )
    return Place(_checked(str(running.get("url", ""))), known.repo, known.data)


def sql_port(place: Place) -> int:
    """The PostgreSQL door that belongs to a server, as ``icefield up`` wrote it down."""
    up = None if place.data is None else _read(place.data / UP_FILE)
    if up is None or not _runs(int(up["pid"])):
        raise Unavailable(
            "cannot tell where the PostgreSQL door is: it is started by  icefield up ; then give --data, or --sql-port"
        )
    return int(up["sql-port"])


def _runs(pid: int) -> bool:
    """Whether who wrote the file is still there: one that was killed took nothing away."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's, and so there
    return True


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Unavailable(f"cannot read {path}: {error}") from None
    if not isinstance(found, dict):
        raise Unavailable(f"{path} does not hold what a server writes there")
    return found


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadRequest(f"{url!r} is not a server's address; one looks like http://127.0.0.1:8181", field="server")
    return url.rstrip("/")
