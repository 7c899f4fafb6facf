"""The tour, whole and real; and that it never empties a folder that is not its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from icefield.cli.keeper import MARK_VARIABLE


def demo(data: Path, *options: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "icefield.cli", "demo", "--data", str(data), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def test_a_folder_that_no_demo_made_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("years of work")
    done = demo(tmp_path)
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
    assert precious.read_text() == "years of work"


@pytest.mark.spark
@pytest.mark.sql
@pytest.mark.timeout(600)
def test_the_tour_shows_nothing_on_main_and_then_everything(tmp_path: Path) -> None:
    data = tmp_path / "a lake"
    data.mkdir()
    (data / ".icefield-demo").write_text("")
    (data / "left over").write_text("by an earlier tour")
    done = demo(data, "--json", timeout=540)
    assert done.returncode == 0, done.stdout + done.stderr
    told: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]

    seen = {line["seen"]["when"]: line["seen"] for line in told if "when" in line.get("seen", {})}
    assert [(when, one["pipeline"], one["main"]) for when, one in seen.items()] == [
        ("before COMMIT", [200, 5000], [0, 0]),
        ("after COMMIT on the branch", [200, 5000], [0, 0]),
        ("after the merge", [200, 5000], [200, 5000]),
    ]
    (report,) = [line["seen"]["report"] for line in told if "report" in line.get("seen", {})]
    assert sum(orders for _, orders, _ in report) == 5000
    assert told[-1]["done"] is True

    assert not (data / "left over").exists()
    assert not (data / "up.json").exists(), "it was stopped in an orderly way"
    assert not (data / "server.json").exists()
    assert _marked_with(str(data)) == []


def _marked_with(text: str) -> list[str]:
    """Supervised processes that name ``text`` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                marked = MARK_VARIABLE.encode() in (entry / "environ").read_bytes()
                if marked and text.encode() in (entry / "cmdline").read_bytes():
                    found.append(entry.name)
            except OSError:
                continue
    return found
