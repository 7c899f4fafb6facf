"""The volume port: a named storage root that holds files which never change once written."""

from __future__ import annotations

from typing import Protocol


class Volume(Protocol):
    root: str
    """The location that everything of this volume lies below, e.g. ``file:///srv/lake/warehouse``."""

    def write_new(self, files: dict[str, bytes]) -> None:
        """Writes files that do not exist yet (location -> content), all durable (file and folder synced) on return.

        Raises ``FileExists`` if a location is taken; a crash leaves no partial file under its final name.
        """
        ...

    def read(self, location: str, *, limit: int | None = None) -> bytes:
        """Raises ``NoSuchFile``; ``FileTooLarge`` above ``limit`` bytes."""
        ...

    def exists(self, location: str) -> bool: ...

    def make_folder(self, location: str) -> None:
        """For engines that expect a table's folders to be there (DuckDB on local files); nothing on object stores."""
        ...

    def holds(self, location: str) -> bool:
        """Is this location below the root, with no way out of it (``..``, symlinks, another scheme)?"""
        ...


class NoSuchFile(Exception):
    pass


class FileExists(Exception):
    pass


class FileTooLarge(Exception):
    pass
