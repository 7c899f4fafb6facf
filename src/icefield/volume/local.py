"""Local files: every file appears whole and synced under its final name, or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from urllib.parse import urlsplit

from icefield.volume.port import FileExists, FileTooLarge, NoSuchFile

TEMPORARY_PREFIX = ".icefield-"


class LocalVolume:
    """A folder. Locations are ``file:///absolute/path``; ``file:/path`` and a bare path mean the same file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self.root = "file://" + str(self._folder)

    def path_of(self, location: str) -> Path:
        path = local_path(location)
        if path is None:
            raise NoSuchFile(f"{location} is not a local file")
        return path

    def holds(self, location: str) -> bool:
        path = local_path(location)
        if path is None or ".." in path.parts:
            return False
        # A symlink on the way could lead out of the root: judge where the path really ends up.
        return Path(os.path.realpath(path)).is_relative_to(self._folder)

    def write_new(self, files: dict[str, bytes]) -> None:
        """All files are written and synced under a temporary name first; a name that is taken undoes the whole call."""
        if not files:
            return
        written: list[tuple[Path, Path]] = []
        linked: list[Path] = []
        folders: set[Path] = set()
        try:
            for location, content in files.items():
                path = self.path_of(location)
                folders |= _make_folders(path.parent)
                folders.add(path.parent)
                temporary = path.parent / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}.tmp"
                written.append((temporary, path))
                _write_synced(temporary, content)
            for temporary, path in written:
                # link() refuses a taken name, atomically; rename() would replace it silently.
                try:
                    os.link(temporary, path)
                except FileExistsError:
                    raise FileExists(f"{path} exists already") from None
                linked.append(path)
        except BaseException:
            for path in linked:
                path.unlink(missing_ok=True)
            raise
        finally:
            for temporary, _ in written:
                temporary.unlink(missing_ok=True)
        for folder in sorted(folders, key=lambda f: len(f.parts), reverse=True):
            _sync_folder(folder)

    def read(self, location: str, *, limit: int | None = None) -> bytes:
        path = self.path_of(location)
        try:
            with path.open("rb") as file:
                if limit is not None and os.fstat(file.fileno()).st_size > limit:
                    raise FileTooLarge(f"{location} is larger than {limit} bytes")
                return file.read()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise NoSuchFile(f"{location} does not exist") from None

    def exists(self, location: str) -> bool:
        path = local_path(location)
        return path is not None and path.exists()

    def make_folder(self, location: str) -> None:
        self.path_of(location).mkdir(parents=True, exist_ok=True)


def local_path(location: str) -> Path | None:
    if location.startswith("/"):
        return Path(location)
    parts = urlsplit(location)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return None
    # Engines write a table's paths as they got them: nothing is escaped, so nothing is unescaped.
    raw = location[len("file:") :]
    if raw.startswith("//"):
        raw = raw[2:]
        raw = raw[raw.index("/") :] if "/" in raw else "/"
    return Path(raw)


def _make_folders(folder: Path) -> set[Path]:
    """Makes the folder and what is missing above it; returns the folders whose listing changed."""
    missing: list[Path] = []
    at = folder
    while not at.exists():
        missing.append(at)
        at = at.parent
    folder.mkdir(parents=True, exist_ok=True)
    return {made.parent for made in missing}


def _write_synced(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
