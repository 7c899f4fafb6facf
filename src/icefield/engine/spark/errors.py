"""What Spark and Iceberg's client raise, as errors of the model: one table, for the worker and the SDK.

The server's own message survives Iceberg's client verbatim inside another sentence ("Malformed request: conflict: …"),
so a conflict is known by its first word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from icefield.engine.port import EngineFailed, EngineLost
from icefield.model.errors import (
    CommitConflict,
    Forbidden,
    IcefieldError,
    NoSuchNamespace,
    NoSuchTable,
    OutcomeUnknown,
    Unauthorized,
)

CONFLICT_MARK = "conflict: "
_CONFLICT = re.compile(r"(?:^|: )conflict: (.*)", re.DOTALL)
_BY_CLASS: dict[str, type[IcefieldError]] = {
    "org.apache.iceberg.exceptions.NoSuchTableException": NoSuchTable,
    "org.apache.spark.sql.catalyst.analysis.NoSuchTableException": NoSuchTable,
    "org.apache.iceberg.exceptions.NoSuchNamespaceException": NoSuchNamespace,
    "org.apache.iceberg.exceptions.NotAuthorizedException": Unauthorized,
    "org.apache.iceberg.exceptions.ForbiddenException": Forbidden,
    "org.apache.iceberg.exceptions.CommitFailedException": CommitConflict,
    "org.apache.iceberg.exceptions.ValidationException": CommitConflict,
    "org.apache.iceberg.exceptions.CommitStateUnknownException": OutcomeUnknown,
}
_NOT_FOUND = {"TABLE_OR_VIEW_NOT_FOUND", "TABLE_NOT_FOUND"}


def conflict_text(message: str) -> str | None:
    """The server's sentence, if this is one of its conflicts."""
    match = _CONFLICT.search(message)
    return match[1].strip() if match else None


def translate(error: BaseException) -> IcefieldError:
    """Never raises; what is not known becomes ``EngineFailed`` with the innermost message."""
    if isinstance(error, IcefieldError):
        return error
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
    from pyspark.errors import PySparkException

    if isinstance(error, Py4JNetworkError):
        return EngineLost(f"the connection to Spark broke: {error}")
    if isinstance(error, PySparkException):
        return _spark(error)
    if isinstance(error, Py4JJavaError):
        return _chain(list(_causes(error.java_exception)))
    if isinstance(error, Py4JError):
        return EngineFailed(f"Spark could not be called: {error}")
    return EngineFailed(f"{type(error).__name__}: {error}")


def _spark(error: Any) -> IcefieldError:
    message = str(error).split("\n\nJVM stacktrace:")[0].strip()
    text = conflict_text(message)
    if text is not None:
        return CommitConflict(text)
    origin = getattr(error, "_origin", None)
    if (error.getCondition() or "").split(".")[0] in _NOT_FOUND:
        return NoSuchTable(message.splitlines()[0])
    if origin is not None:
        chain = list(_causes(origin))
        if any(name in _BY_CLASS for name, _ in chain):
            return _chain(chain)
    return EngineFailed(message)


def _chain(causes: list[tuple[str, str]]) -> IcefieldError:
    for _, message in causes:
        text = conflict_text(message)
        if text is not None:
            return CommitConflict(text)
    for name, message in causes:
        kind = _BY_CLASS.get(name)
        if kind is not None:
            return kind(message or name)
    # The innermost cause says what happened; what wraps it says which stage of which job.
    name, message = causes[-1] if causes else ("", "")
    return EngineFailed(f"{name.rsplit('.', 1)[-1]}: {message}" if message else name or "Spark failed")


def _causes(throwable: Any) -> Iterator[tuple[str, str]]:
    for _ in range(20):
        if throwable is None:
            return
        yield str(throwable.getClass().getName()), str(throwable.getMessage() or "")
        throwable = throwable.getCause()
