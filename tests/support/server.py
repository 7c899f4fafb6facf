"""A real server as a process of its own, and a small client that speaks plain JSON to it."""

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
from typing import Any


class Answer:
    def __init__(self, status: int, body: Any, headers: dict[str, str]) -> None:
        self.status = status
        self.body = body
        self.headers = headers

    @property
    def error(self) -> dict[str, Any]:
        return self.body["error"]

    def __repr__(self) -> str:
        return f"<{self.status} {str(self.body)[:300]}>"


class Http:
    """Plain requests; every status is an answer."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self.token = token

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        data = None if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode())
        request = urllib.request.Request(self.url + path, data, method=method)  # noqa: S310
        if data is not None:
            request.add_header("content-type", "application/json")
        bearer = token or self.token
        if bearer is not None:
            request.add_header("authorization", f"Bearer {bearer}")
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
                return _answer(response.status, response.read(), dict(response.headers))
        except urllib.error.HTTPError as error:
            with error:
                return _answer(error.code, error.read(), dict(error.headers))

    def get(self, path: str, **kwargs: Any) -> Answer:
        return self("GET", path, **kwargs)

    def post(self, path: str, body: Any = None, **kwargs: Any) -> Answer:
        return self("POST", path, {} if body is None else body, **kwargs)

    def delete(self, path: str, **kwargs: Any) -> Answer:
        return self("DELETE", path, **kwargs)


def _answer(status: int, content: bytes, headers: dict[str, str]) -> Answer:
    return Answer(status, json.loads(content) if content else None, {k.lower(): v for k, v in headers.items()})


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
