"""Fixtures shared by all suites: real servers, each on a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server import Http, RunningServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """``icefield serve`` as a process, on a fresh folder."""
    with RunningServer(tmp_path / "lake") as running:
        yield running


@pytest.fixture
def http(server: RunningServer) -> Http:
    return server.http()
