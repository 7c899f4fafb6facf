"""One snapshot for all that was written, or none of it left behind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from icefield.engine.spark.internals import LiveTable

log = logging.getLogger("icefield.engine")

Check = Callable[[], None]
"""Raises ``Cancelled`` if the request was cancelled. After the commit was sent nobody asks."""


class Written:
    """The locations of files that no snapshot has yet."""

    def __init__(self, table: LiveTable) -> None:
        self._table = table
        self._locations: set[str] = set()
        self._sent = False

    def add(self, files: Any) -> None:
        """A Java list of content files."""
        java = self._table.java_vm
        self._locations.update(java.texts(files, java.path_of_file))

    def commit(self, operation: Any, check: Check) -> None:
        check()
        self._sent = True
        operation.commit()

    def failed(self, error: BaseException) -> None:
        """Removes the files if it is certain that they are in no snapshot."""
        if not self._sent or self._is_certain(error):
            self.remove()

    def _is_certain(self, error: BaseException) -> bool:
        from py4j.protocol import Py4JJavaError

        if not isinstance(error, Py4JJavaError):
            return False
        return self._table.java_vm.is_a(error.java_exception, "org.apache.iceberg.exceptions.CleanableFailure")

    def remove(self) -> None:
        files = self._table.java.io()
        for location in self._locations:
            try:
                files.deleteFile(location)
            except Exception as error:  # the change failed for another reason, which is to be told
                log.warning("a file that is of no use could not be removed: %s: %s", location, error)
        self._locations.clear()


@contextmanager
def writing(table: LiveTable) -> Iterator[Written]:
    written = Written(table)
    try:
        yield written
    except BaseException as error:
        written.failed(error)
        raise
