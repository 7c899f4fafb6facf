"""Local files: every file appears whole and synced under its final name, or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from urllib.parse import urlsplit

from icefield.volume.port import FileExists, FileTooLarge, NoSuchFile

TEMPORARY_PREFIX = ".icefield-"
MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 3_500
"""Linux takes 4,096; the rest is for the names of what lies in it."""


class LocalVolume:
    """A folder. Locations are ``file:///absolute/path``; ``file:/path`` and a bare path mean the same file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._durable: set[Path] = {self._folder}
        """Folders whose place in the folder above is synced for certain."""
        self.root = "file://" + str(self._folder)

    def path_of(self, location: str) -> Path:
        path = local_path(location)
        if path is None:
            raise NoSuchFile(f"{location} is not a local file")
        return path

    def holds(self, location: str) -> bool:
        path = local_path(location)
        if path is None or ".." in path.parts or not _can_be(path):
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
        fresh: set[Path] = set()
        try:
            for location, content in files.items():
                path = self.path_of(location)
                fresh |= self._make_folders(path.parent)
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
        self._sync(folders, fresh)

    def _make_folders(self, folder: Path) -> set[Path]:
        """Makes the folder; returns it and those above it that may not be durable. One that is there already may have
        been made a moment ago, by another thread or an engine, and be synced by nobody."""
        folder.mkdir(parents=True, exist_ok=True)
        return {at for at in (folder, *folder.parents) if at.is_relative_to(self._folder)} - self._durable

    def _sync(self, folders: set[Path], fresh: set[Path]) -> None:
        for folder in sorted(folders | {at.parent for at in fresh}, key=lambda f: len(f.parts), reverse=True):
            _sync_folder(folder)
        self._durable |= fresh

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
        self._sync(set(), self._make_folders(self.path_of(location)))


def local_path(location: str) -> Path | None:
    if location.startswith("/"):
        return Path(location)
    try:
        parts = urlsplit(location)
    except ValueError:
        return None  # file://[x
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return None
    # Engines write a table's paths as they got them: nothing is escaped, so nothing is unescaped.
    raw = location[len("file:") :]
    if raw.startswith("//"):
        raw = raw[2:]
        raw = raw[raw.index("/") :] if "/" in raw else "/"
    return Path(raw)


def _can_be(path: Path) -> bool:
    """Can there be a file of this name: does the system take it, and is what it lies in a folder?"""
    text = os.fsencode(path)
    if b"\0" in text or len(text) > MAX_PATH_BYTES or any(len(os.fsencode(p)) > MAX_NAME_BYTES for p in path.parts):
        return False
    return next((above.is_dir() for above in path.parents if above.exists()), False)


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
