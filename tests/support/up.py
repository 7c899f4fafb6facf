"""A real ``icefield up``: server, Spark, the PostgreSQL door and the brain, as a user starts them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from support.server import Http

READY_WITHIN_S = 180


class Up:
    def __init__(self, data: Path) -> None:
        self.data = data
        self.process: subprocess.Popen[bytes] | None = None
        self.told: dict[str, Any] = {}

    def start(self) -> Up:
        command = [
            sys.executable,
            "-m",
            "icefield.cli",
            "up",
            "--data",
            str(self.data),
            "--port",
            "0",
            "--sql-port",
            "0",
        ]
        self.data.parent.mkdir(parents=True, exist_ok=True)
        with (self.data.parent / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--json", "--leashed"], stdout=log, stderr=log, stdin=subprocess.PIPE
            )
        deadline = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                self.told = json.loads((self.data / "up.json").read_text())
                return self
            except (OSError, ValueError):
                time.sleep(0.1)
        raise AssertionError(f"icefield up did not start: {(self.data.parent / 'up.log').read_text()[-4000:]}")

    @property
    def url(self) -> str:
        return str(self.told["server"])

    @property
    def sql_port(self) -> int:
        return int(self.told["sql-port"])

    def http(self) -> Http:
        return Http(self.url)

    def dsn(self, database: str = "lake", user: str = "ann") -> str:
        return f"host=127.0.0.1 port={self.sql_port} user={user} dbname={database}"

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait(timeout=60)
            self.process = None
