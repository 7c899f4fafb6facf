"""A writer's place in line, per branch. A courtesy: without it the compare-and-set still decides, only slower."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Tickets:
    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._lines: dict[tuple[str, str], tuple[threading.Lock, int]] = {}
        """Each with how many stand in it: an empty one goes away, as every transaction has one."""

    @contextmanager
    def hold(self, repo: str, branch: str) -> Iterator[None]:
        name = (repo, branch)
        with self._guard:
            line, standing = self._lines.get(name) or (threading.Lock(), 0)
            self._lines[name] = (line, standing + 1)
        try:
            with line:
                yield
        finally:
            with self._guard:
                line, standing = self._lines.pop(name, (line, 0))
                if standing > 1:
                    self._lines[name] = (line, standing - 1)
