"""A line for the person who waits: printed once something has taken longer than two seconds, and when it is done."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_SECONDS = 2.0


@contextmanager
def progress(what: str) -> Iterator[None]:
    started = time.monotonic()
    shown = threading.Event()

    def show() -> None:
        shown.set()
        print(f"icefield: {what} …", file=sys.stderr, flush=True)

    timer = threading.Timer(PATIENCE_SECONDS, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if shown.is_set():
            print(f"icefield: {what}: {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
