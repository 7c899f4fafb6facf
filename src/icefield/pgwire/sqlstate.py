"""model.errors -> SQLSTATE: one table, nowhere else."""

from __future__ import annotations

from icefield.model import errors as e
from icefield.pgwire.errors import PgError

SQLSTATE: dict[type[e.IcefieldError], tuple[str, str | None]] = {
    e.IcefieldError: ("XX000", None),
    e.BadRequest: ("22023", None),
    e.NotSupported: ("0A000", None),
    e.Unauthorized: ("28000", None),
    e.Forbidden: ("42501", None),
    e.NotFound: ("42704", None),
    e.NoSuchRepo: ("3D000", "The part of the database name before '@' is a repo; SHOW BRANCHES lists a repo's refs."),
    e.NoSuchRef: ("3D000", "SHOW BRANCHES lists what there is."),
    e.NoSuchNamespace: ("3F000", None),
    e.NoSuchTable: ("42P01", None),
    e.NoSuchSession: ("08003", "The session's lease ran out or it was closed: connect again."),
    e.NoSuchTransaction: ("25P01", None),
    e.NoSuchSavepoint: ("3B001", None),
    e.AlreadyExists: ("42P07", None),
    e.NotEmpty: ("2BP01", None),
    e.Unprocessable: ("22023", None),
    e.CommitConflict: ("40001", "The transaction was rolled back: run it again."),
    e.WrongState: ("55000", None),
    e.ReadOnly: ("25006", "Tags and commits cannot be written to: USE BRANCH moves the session to a branch."),
    e.Unavailable: ("57P03", "Nothing happened: try again."),
    e.OutcomeUnknown: ("08007", "The commit may or may not have landed: look before doing it again."),
}
"""SQLSTATE and hint by class; a class that is not here takes its parent's."""


def to_pg_error(error: e.IcefieldError) -> PgError:
    cls = next(c for c in type(error).__mro__ if c in SQLSTATE)
    sqlstate, hint = SQLSTATE[cls]
    detail = None
    if isinstance(error, e.CommitConflict) and error.conflicts:
        detail = "\n".join(f"{c.entry}: {c.message}" for c in error.conflicts)
    return PgError(sqlstate, error.message, detail=detail, hint=hint)
