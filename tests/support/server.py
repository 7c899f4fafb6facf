"""A real server as a process of its own, and what carries requests to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from support.calls import Answer, Caller


class Http(Caller):
    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self.token = token

    def send(self, method: str, path: str, content: bytes | None, headers: dict[str, str]) -> Answer:
        request = urllib.request.Request(self.url + path, content, headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
                return Answer.of(response.status, response.read(), response.headers.items())
        except urllib.error.HTTPError as error:
            with error:
                return Answer.of(error.code, error.read(), error.headers.items())


class RunningServer:
    """``icefield serve`` on a folder. ``kill`` is kill -9; ``start`` again goes on where the folder is."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self.data = data
        self.arguments = arguments
        self.process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> RunningServer:
        command = [sys.executable, "-m", "icefield.cli", "serve", "--data", str(self.data), "--port", "0"]
        log = (self.data.parent / f"{self.data.name}.log").open("a")
        self.process = subprocess.Popen(
            [*command, *self.arguments], stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ}
        )
        log.close()
        assert self.process.stdout is not None
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            line = self.process.stdout.readline()
            if line.startswith("ready "):
                self.url = json.loads(line[len("ready ") :])["url"]
                return self
            if not line and self.process.poll() is not None:
                break
        raise AssertionError(f"the server did not start: {(self.data.parent / f'{self.data.name}.log').read_text()}")

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self.process is None:
            return
        self.process.send_signal(number)
        self.process.wait(timeout=30)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None

    def http(self, token: str | None = None) -> Http:
        return Http(self.url, token)

    def __enter__(self) -> RunningServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
