"""Clock and randomness, handed in: one seed replays one history."""

from __future__ import annotations

import secrets
import time
import uuid
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int: ...


class Randomness(Protocol):
    def uuid(self) -> str: ...
    def token(self) -> str:
        """A secret with at least 128 random bits, URL-safe."""
        ...

    def snapshot_id(self) -> int: ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SystemRandomness:
    def uuid(self) -> str:
        return str(uuid.uuid4())

    def token(self) -> str:
        return secrets.token_urlsafe(24)

    def snapshot_id(self) -> int:
        return secrets.randbits(63) or 1
