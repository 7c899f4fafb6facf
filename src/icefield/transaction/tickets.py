"""A writer's place in line, per branch. A courtesy: without it the compare-and-set still decides, only slower."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Tickets:
    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._lines: dict[tuple[str, str], threading.Lock] = {}

    @contextmanager
    def hold(self, repo: str, branch: str) -> Iterator[None]:
        with self._guard:
            line = self._lines.setdefault((repo, branch), threading.Lock())
        with line:
            yield
