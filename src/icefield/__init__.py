"""Icefield: transactions, branches and plain SQL for Apache Iceberg. One server, three doors."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from icefield.client.connect import connect
    from icefield.client.lake import Lake
    from icefield.client.transaction import Rollback
    from icefield.model import errors

__all__ = ["Lake", "Rollback", "__version__", "connect", "errors"]

_HOME = {
    "connect": "icefield.client.connect",
    "Lake": "icefield.client.lake",
    "Rollback": "icefield.client.transaction",
}


def __getattr__(name: str) -> Any:
    # The SDK is loaded on first use, so that the server never pays for it (and never needs PySpark).
    if name == "errors":
        return importlib.import_module("icefield.model.errors")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'icefield' has no attribute {name!r}")
