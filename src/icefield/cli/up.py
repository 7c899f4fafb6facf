"""``icefield up``: server, engine worker and SQL door as supervised child processes.

Each prints a ready line with where it is. A port that was picked for port 0 is kept over restarts, so that everybody
finds a restarted part where it was.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.status import Status
from rich.text import Text

from icefield.cli import leash, output
from icefield.cli.child import Part, Ready, python
from icefield.cli.locate import UP_FILE
from icefield.cli.supervisor import Event, Supervisor, run_until_signal
from icefield.config import Settings

SERVER, ENGINE, DOOR = "server", "spark", "sql"
_TITLES = {SERVER: "server", ENGINE: "Spark", DOOR: "PostgreSQL door"}

# The first start fetches Iceberg's jar and unpacks a JRE; a slow line must not look like a failure.
_ENGINE_READY_S = 900.0
_DOOR_READY_S = 180.0
_SERVER_READY_S = 60.0
_SHORT = 60


def run(settings: Settings, *, as_json: bool, leashed: bool = False) -> int:
    """Blocks until SIGTERM or Ctrl-C (``leashed``: or until standard input ends); the exit code."""
    # A socket's path may have 107 bytes at most, and a data folder, or a user's own temporary one, may lie deep.
    here = tempfile.gettempdir()
    short = Path(tempfile.mkdtemp(prefix="icefield-", dir=here if len(here) < _SHORT else "/tmp"))  # noqa: S108
    settings.data.mkdir(parents=True, exist_ok=True)
    view = _JsonView() if as_json else _PeopleView(settings)
    stack = Stack(settings, short / "engine.sock", view)
    supervisor = Supervisor(stack.parts(), logs=settings.data / "logs", on_event=stack.take, scratch=short)

    def watch_standard_input() -> None:
        if leashed and leash.standard_input_ended():
            supervisor.stop()

    try:
        run_until_signal(supervisor, watch_standard_input)
    finally:
        view.close()
        stack.forget()
    return 0


class Stack:
    """The three parts, the ports they have, and the up file, which stands while all of them were ready once."""

    def __init__(self, settings: Settings, engine_socket: Path, view: _JsonView | _PeopleView) -> None:
        self._settings = settings
        self._engine_socket = engine_socket
        self._view = view
        self._ports = {SERVER: settings.port, DOOR: settings.sql_port}
        self._ready: dict[str, Ready] = {}
        self._begun = time.monotonic()
        self._up_file: Path | None = None

    def parts(self) -> list[Part]:
        settings = self._settings
        return [
            Part(
                SERVER,
                self._server_command,
                ready_within_s=_SERVER_READY_S,
                environment={"ICEFIELD_LEASE_MS": str(settings.lease_ms)},
            ),
            Part(
                ENGINE,
                self._engine_command,
                needs=(SERVER,),
                ready_within_s=_ENGINE_READY_S,
                # What it leaves behind when it is killed goes with the folder of its socket.
                environment={"TMPDIR": str(self._engine_socket.parent)},
            ),
            Part(DOOR, self._door_command, needs=(SERVER,), ready_within_s=_DOOR_READY_S),
        ]

    def take(self, event: Event) -> None:
        """What the supervisor tells: shown, remembered, and told to everybody once all is up."""
        self._view.event(event)
        if event.kind != "ready":
            return
        self._ready[event.part] = event.detail
        if event.part == SERVER:
            self._ports[SERVER] = urlsplit(str(event.detail["url"])).port or self._ports[SERVER]
        elif event.part == DOOR:
            self._ports[DOOR] = int(event.detail.get("port", self._ports[DOOR]))
        if self._up_file is None and len(self._ready) == len(_TITLES):
            summary = {
                "pid": os.getpid(),
                "server": self._ready[SERVER]["url"],
                "sql-port": self._ports[DOOR],
                "repo": self._settings.repo,
                "data": str(self._settings.data.resolve()),
            }
            self._up_file = self._settings.data / UP_FILE
            _write(self._up_file, summary)
            self._view.up(summary, time.monotonic() - self._begun)

    def forget(self) -> None:
        if self._up_file is not None:
            self._up_file.unlink(missing_ok=True)

    def _server_command(self, _: Mapping[str, Ready]) -> list[str]:
        settings = self._settings
        command = python("icefield.cli", "serve", "--data", str(settings.data), "--port", str(self._ports[SERVER]))
        command += ["--repo", settings.repo, "--host", settings.host, "--log-level", settings.log_level]
        return [*command, "--log-format", "json", "--leashed"]

    def _engine_command(self, ready: Mapping[str, Ready]) -> list[str]:
        url = str(ready[SERVER]["url"])
        command = python("icefield.engine.spark.worker", "--socket", str(self._engine_socket), "--server", url)
        return [*command, "--watch-stdin"]

    def _door_command(self, ready: Mapping[str, Ready]) -> list[str]:
        settings, url = self._settings, str(ready[SERVER]["url"])
        command = python("icefield.sql.door", "--host", settings.host, "--port", str(self._ports[DOOR]))
        command += ["--server", url, "--engine-socket", str(self._engine_socket), "--data", str(settings.data)]
        command += ["--max-fetched-rows", str(settings.max_fetched_rows)]
        return [*command, "--log-level", settings.log_level, "--log-format", "json"]


def _write(path: Path, value: Mapping[str, Any]) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(value), encoding="utf-8")
    beside.replace(path)


class _JsonView:
    """One JSON line per event."""

    def event(self, event: Event) -> None:
        seconds = round(event.seconds, 2)
        output.print_json(
            {"event": event.kind, "part": event.part, "pid": event.pid, "seconds": seconds, **event.detail}
        )

    def up(self, summary: Mapping[str, Any], seconds: float) -> None:
        output.print_json({"event": "up", "seconds": round(seconds, 2), **summary})

    def close(self) -> None:
        pass


class _PeopleView:
    """A line with a check mark for each part, a spinner for what is still starting, and then how to come in."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._begun: dict[str, float] = {}
        self._said: dict[str, str] = {}
        self._status: Status | None = None

    def event(self, event: Event) -> None:
        title = _TITLES[event.part]
        if event.kind == "starting":
            self._begun[title] = time.monotonic()
        elif event.kind == "progress":
            self._said[title] = str(event.detail["text"])
        elif event.kind == "ready":
            self._begun.pop(title, None)
            where = event.detail.get("url") or (f"port {event.detail['port']}" if "port" in event.detail else "")
            output.console.print(
                Text.assemble(("✓ ", "green"), f"{title:<16}", output.plain(where), f"  {event.seconds:.1f} s")
            )
        elif event.kind == "died":
            self._begun.pop(title, None)
            again = event.detail.get("again-in-s")
            then = "" if again is None else f"; starting it again in {again} s"
            output.console.print(
                Text.assemble(("✗ ", "red"), f"{title} ended ({event.detail['exit']})", then), soft_wrap=True
            )
        elif event.kind == "stopped":
            output.console.print(Text(f"  {title} stopped", style="dim"))
        self._show_waiting()

    def up(self, summary: Mapping[str, Any], seconds: float) -> None:
        self.close()
        data = self._settings.data
        output.console.print(Text(f"\nIcefield is up ({seconds:.0f} s). Come in:", style="bold"))
        for label, line in (
            ("psql", f"icefield connect psql --data {data}"),
            ("Spark", f"icefield connect spark --data {data}"),
            ("REST", f"{summary['server']}/v1/config?warehouse={summary['repo']}"),
            ("logs", f"{data / 'logs'}"),
        ):
            output.console.print(Text.assemble(f"  {label:<7}", (line, "cyan")), soft_wrap=True)
        output.console.print(Text("Ctrl-C stops everything.", style="dim"))

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _show_waiting(self) -> None:
        if not self._begun:
            self.close()
            return
        told = [f"{title} ({self._said[title]})" if title in self._said else title for title in self._begun]
        text = f"starting {', '.join(told)} …"
        if self._status is None:
            self._status = output.console.status(output.plain(text))
            self._status.start()
        else:
            self._status.update(output.plain(text))
