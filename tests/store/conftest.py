from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from icefield.store.port import Store

from .implementations import IMPLEMENTATIONS


@pytest.fixture(params=sorted(IMPLEMENTATIONS))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = IMPLEMENTATIONS[request.param](tmp_path)
    yield opened
    opened.close()
