"""What the CLI prints: tables for people, JSON for programs, and errors as one clear line.

Contract: every verb ends in ``show`` (a value for programs, and how a person sees it); errors go to stderr for people,
and with ``--json`` to stdout too. Names and messages come from users, so control characters never reach a terminal.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from icefield.model.errors import (
    BadRequest,
    CommitConflict,
    IcefieldError,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    Unavailable,
)

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_CONFLICT = 3
EXIT_NOT_FOUND = 4
EXIT_UNREACHABLE = 5
EXIT_UNKNOWN = 6

_EXIT_CODES: tuple[tuple[type[IcefieldError], int], ...] = (
    (CommitConflict, EXIT_CONFLICT),
    (NotFound, EXIT_NOT_FOUND),
    (Unavailable, EXIT_UNREACHABLE),
    (OutcomeUnknown, EXIT_UNKNOWN),
    (BadRequest, EXIT_USAGE),
    (NotSupported, EXIT_USAGE),
)


def _console(*, stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    # Rich takes a pipe for a terminal of 80 columns and folds; what reads a pipe wants whole lines.
    width = None if stream.isatty() or "COLUMNS" in os.environ else 200
    return Console(stderr=stderr, highlight=False, width=width)


console = _console()
errors = _console(stderr=True)


def plain(text: object) -> Text:
    """Text as it is, without markup; what could steer a terminal is shown as an escape."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))
    return Text(shown)


def first_line(text: str, limit: int = 72) -> str:
    line = text.strip().partition("\n")[0].rstrip()
    return line if len(line) <= limit else line[: limit - 1] + "…"


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def show(value: Any, view: RenderableType, *, as_json: bool) -> None:
    if as_json:
        print_json(value)
    else:
        console.print(view)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> RenderableType:
    """A light table; ``empty`` is what a person reads instead of a table without rows."""
    made = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else plain(cell) for cell in row))
    return made if made.row_count else Text(empty, style="dim")


def done(text: str) -> Text:
    return Text.assemble(("✓ ", "green"), plain(text))


def short(commit: str | None) -> str:
    return "" if commit is None else commit[:12]


def when(time_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ms / 1000))


def report(error: IcefieldError, *, as_json: bool) -> int:
    """Print an error; the exit code that goes with it."""
    conflicts = error.conflicts if isinstance(error, CommitConflict) else ()
    if as_json:
        body: dict[str, Any] = {"message": error.message, "type": error.kind}
        if isinstance(error, BadRequest) and error.field is not None:
            body["field"] = error.field
        if isinstance(error, CommitConflict):
            body["conflicts"] = [conflict.to_json() for conflict in conflicts]
        print_json({"error": body})
    errors.print(Text.assemble(("error: ", "bold red"), plain(error.message)), soft_wrap=True)
    if conflicts and not as_json:
        rows = [(c.entry, c.reason, c.ours or "", c.theirs or "", c.message) for c in conflicts]
        errors.print(table(("ENTRY", "CONFLICT", "OURS", "THEIRS", ""), rows, empty=""))
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), EXIT_ERROR)
