"""A writer's place in line, per branch. A courtesy: without it the compare-and-set still decides, only slower.

``hold`` is for the moment of landing. A *turn* is for longer: whoever was overtaken again and again, because it reads
and writes for longer than others need to land, takes a turn before it reads. Until it has landed (or for ``TURN_S`` at
most) others wait with landing on that branch; those who have waited go before the next turn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

TURN_S = 10.0
_MOST_WAITING = 6
"""Each keeps a thread of the server. Whoever comes when so many wait already does not wait, nor take a turn."""

Branch = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Turn:
    holder: str
    until: float


class Tickets:
    def __init__(self) -> None:
        self._guard = threading.Condition()
        self._lines: dict[Branch, tuple[threading.Lock, int]] = {}
        """Each with how many stand in it: an empty one goes away, as every transaction has one."""
        self._turns: dict[Branch, _Turn] = {}
        self._landers: dict[Branch, int] = {}
        """How many wait for a turn to end, to land."""
        self._waiting = 0

    @contextmanager
    def hold(self, repo: str, branch: str, holder: str | None = None) -> Iterator[None]:
        """``holder``: the transaction that lands, which may have the turn."""
        name = (repo, branch)
        with self._guard:
            if self._others_turn(name, holder) and self._waiting < _MOST_WAITING:
                self._landers[name] = self._landers.get(name, 0) + 1
                try:
                    self._wait(lambda: not self._others_turn(name, holder))
                finally:
                    left = self._landers.pop(name) - 1
                    if left:
                        self._landers[name] = left
                    self._guard.notify_all()
        with self._in_line(name):
            yield

    def take_turn(self, repo: str, branch: str, holder: str) -> bool:
        """Waits for those who are before it. False: it has none, and goes on without."""
        name = (repo, branch)
        with self._guard:
            if self._waiting >= _MOST_WAITING:
                return False
            if not self._wait(lambda: not self._others_turn(name, holder) and not self._landers.get(name)):
                return False
            self._turns[name] = _Turn(holder, time.monotonic() + TURN_S)
        with self._in_line(name):
            pass  # who was landing when the turn began has landed
        return True

    def end_turn(self, holder: str) -> None:
        with self._guard:
            for name in [name for name, turn in self._turns.items() if turn.holder == holder]:
                del self._turns[name]
            self._guard.notify_all()

    def _others_turn(self, name: Branch, holder: str | None) -> bool:
        turn = self._turns.get(name)
        if turn is not None and turn.until <= time.monotonic():
            del self._turns[name]
            turn = None
        return turn is not None and turn.holder != holder

    def _wait(self, over: Callable[[], bool]) -> bool:
        """Under the guard, for no longer than a turn lasts."""
        deadline = time.monotonic() + TURN_S
        self._waiting += 1
        try:
            while not over():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                # A turn may end by itself, which nobody tells.
                self._guard.wait(min(left, 0.25))
            return True
        finally:
            self._waiting -= 1

    @contextmanager
    def _in_line(self, name: Branch) -> Iterator[None]:
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
