"""./dev where something is missing: it says what, and what to install. That it installs is tried by using it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("cat", "cksum", "dirname", "grep", "rm", "sh", "sleep", "tail", "tr")

OLD = 'case "$2" in *version_info*) exit 1;; *print*) echo 3.9.2;; esac'
WITHOUT_VENV = 'case "$2" in *ensurepip*) exit 1;; *%d*) echo 3.11;; esac'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout without .venv, in a folder whose name has a space."""
    folder = tmp_path / "ice field"
    folder.mkdir()
    for name in ("dev", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    return folder


def run(project: Path, *arguments: str, python: str | None) -> subprocess.CompletedProcess[str]:
    """With a PATH of a few plain tools, and of a python3 that is this shell script."""
    tools = project.parent / "bin"
    tools.mkdir(exist_ok=True)
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None
        if not (tools / name).exists():
            (tools / name).symlink_to(found)
    if python is not None:
        (tools / "python3").write_text(f"#!/bin/sh\n{python}\n")
        (tools / "python3").chmod(0o755)
    return subprocess.run(
        [str(project / "dev"), *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd="/",
        env={"PATH": str(tools), "HOME": os.environ.get("HOME", "/")},
    )


@pytest.mark.parametrize(
    ("python", "said"),
    [
        (None, "apt-get install python3 python3-venv"),
        (OLD, "python3 here is 3.9.2; Icefield needs 3.11 or newer"),
        (WITHOUT_VENV, "apt-get install python3-venv"),
    ],
)
def test_what_is_missing_is_named_with_what_to_install(project: Path, python: str | None, said: str) -> None:
    for verb in ("setup", "demo", "test", "lint"):
        done = run(project, verb, python=python)
        assert done.returncode == 1
        assert said in done.stderr
        assert not (project / ".venv").exists()


def test_without_a_verb_it_tells_its_verbs(project: Path) -> None:
    done = run(project, python=None)
    assert done.returncode == 0
    for verb in ("setup", "demo", "test", "lint", "bench"):
        assert f"./dev {verb}" in done.stdout


def test_a_verb_it_does_not_know_is_an_error(project: Path) -> None:
    done = run(project, "dance", python=None)
    assert done.returncode == 1
    assert "no verb named dance" in done.stderr
