"""Errors to HTTP: the one table. 5xx says "unknown outcome" to a client, so only what is unknown may use it."""

from __future__ import annotations

from typing import Any

from icefield.catalog.places import SessionConflict
from icefield.model import errors
from icefield.rest.http import Response, answer

STATUS: tuple[tuple[type[errors.IcefieldError], int], ...] = (
    (SessionConflict, 400),  # final; 409 would be a question to Java, see DESIGN: isolation
    (errors.BadRequest, 400),
    (errors.NotSupported, 400),
    (errors.WrongState, 400),
    (errors.Unauthorized, 401),
    (errors.Forbidden, 403),
    (errors.ReadOnly, 403),
    (errors.NotFound, 404),
    (errors.AlreadyExists, 409),
    (errors.NotEmpty, 409),
    (errors.CommitConflict, 409),
    (errors.Unprocessable, 422),
    (errors.Unavailable, 429),  # nothing happened, ask again; 503 would read as "unknown" after a commit
    (errors.OutcomeUnknown, 500),
)


def status_of(error: errors.IcefieldError) -> int:
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)


def answer_error(error: errors.IcefieldError, status: int | None = None) -> Response:
    code = status_of(error) if status is None else status
    body: dict[str, Any] = {"message": error.message, "type": error.kind, "code": code}
    if isinstance(error, errors.CommitConflict) and error.conflicts:
        body["conflicts"] = [conflict.to_json() for conflict in error.conflicts]
    if isinstance(error, errors.BadRequest) and error.field is not None:
        body["field"] = error.field
    headers = [("retry-after", "1")] if code == 429 else []
    return answer({"error": body}, status=code, headers=headers)
