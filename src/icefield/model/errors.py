"""The closed tree of what can go wrong. Each door translates it in one table, nowhere else.

The message is for a person and names the field, entry or statement; ``kind`` is the word that programs match.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from icefield.model.conflicts import Conflict


class IcefieldError(Exception):
    kind = "InternalError"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BadRequest(IcefieldError):
    """What was asked is malformed. ``field`` names the part of the request at fault."""

    kind = "BadRequestException"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class NotSupported(IcefieldError):
    """Well formed, but beyond what this version does. Never answered wrongly instead."""

    kind = "UnsupportedOperationException"


class Unauthorized(IcefieldError):
    kind = "NotAuthorizedException"


class Forbidden(IcefieldError):
    kind = "ForbiddenException"


class NotFound(IcefieldError):
    kind = "NotFoundException"


class NoSuchRepo(NotFound):
    kind = "NoSuchWarehouseException"


class NoSuchRef(NotFound):
    kind = "NoSuchRefException"


class NoSuchNamespace(NotFound):
    kind = "NoSuchNamespaceException"


class NoSuchTable(NotFound):
    kind = "NoSuchTableException"


class NoSuchSession(NotFound):
    kind = "NoSuchSessionException"


class NoSuchTransaction(NotFound):
    kind = "NoSuchTransactionException"


class NoSuchSavepoint(NotFound):
    kind = "NoSuchSavepointException"


class AlreadyExists(IcefieldError):
    kind = "AlreadyExistsException"


class NotEmpty(IcefieldError):
    kind = "NamespaceNotEmptyException"


class Unprocessable(IcefieldError):
    kind = "UnprocessableEntityException"


class CommitConflict(IcefieldError):
    """A change does not commute with what somebody else committed first. Lists every conflict, at once."""

    kind = "CommitFailedException"

    def __init__(self, message: str, conflicts: Sequence[Conflict] = ()) -> None:
        super().__init__(message)
        self.conflicts = tuple(conflicts)


class WrongState(IcefieldError):
    """The session or transaction is not in a state that allows this (no transaction open, already ended, …)."""

    kind = "WrongStateException"


class ReadOnly(IcefieldError):
    """A write to a tag or a commit."""

    kind = "ReadOnlyRefException"


class Unavailable(IcefieldError):
    """Could not be done now; nothing happened; asking again is safe."""

    kind = "ServiceUnavailableException"


class OutcomeUnknown(IcefieldError):
    """A commit may or may not have landed. Files must not be deleted; ask again with the same ids."""

    kind = "CommitStateUnknownException"
