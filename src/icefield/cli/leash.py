"""A process that must not outlive the one that started it: it ends when its standard input does, or its parent dies."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import time

GRACE_S = 3.0
_PR_SET_PDEATHSIG = 1


def stop_with_standard_input() -> None:
    """Ask this process to stop (SIGTERM) when its standard input ends, and end it if it does not within the grace."""

    def watch() -> None:
        try:
            while os.read(0, 4096):
                pass
        except OSError:
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(1)

    threading.Thread(target=watch, name="leash", daemon=True).start()


def standard_input_ended() -> bool:
    """Whether standard input is at its end; never waits. What is there is read and dropped."""
    try:
        while select.select([0], [], [], 0)[0]:
            if not os.read(0, 4096):
                return True
    except OSError:
        return True
    return False


def _prctl() -> ctypes.CDLL | None:
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


# Looked up at import: between fork and exec a child should do as little as it can.
_LIBC = _prctl()


def die_with_parent() -> None:
    """For ``preexec_fn``: SIGTERM when the thread that started this process ends. Linux only; elsewhere stdin tells."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
