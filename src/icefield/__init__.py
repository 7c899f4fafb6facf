"""Icefield: transactions, branches and plain SQL for Apache Iceberg. One server, three doors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from icefield.client.lake import Lake
    from icefield.client.connect import connect as connect

__all__ = ["Lake", "__version__", "connect"]


def __getattr__(name: str) -> Any:
    # The SDK is loaded on first use, so that the server never pays for it (and never needs PySpark).
    if name == "connect":
        from icefield.client.connect import connect

        return connect
    if name == "Lake":
        from icefield.client.lake import Lake

        return Lake
    raise AttributeError(f"module 'icefield' has no attribute {name!r}")
