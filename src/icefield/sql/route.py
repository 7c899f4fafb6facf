"""What a statement fetched and wrote, for ``SET icefield.explain_route = on``."""

from __future__ import annotations

from icefield.engine.port import Changed
from icefield.sql.changes import Difference
from icefield.sql.shadows import Shadow


class Route:
    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._lines: list[str] = []

    @property
    def told(self) -> bool:
        return self._wanted and bool(self._lines)

    def fetched(self, shadow: Shadow, rows: int, files: int | None) -> None:
        of = "" if files is None else f" from {_count(files, 'file')}"
        self._lines.append(f"fetched {_count(rows, 'row')}{of} of {shadow}")

    def wrote(self, shadow: Shadow, difference: Difference | None, changed: Changed) -> None:
        parts = [f"wrote {_count(changed.rows_written, 'row')} in {_count(changed.files_added, 'new file')}"]
        if changed.way == "append" and not changed.files_added:
            parts = [f"appended {_count(changed.rows_written, 'row')}"]
        if changed.rows_deleted or changed.files_removed:
            parts.append(f"took away {_count(changed.rows_deleted, 'row')}")
        if difference is not None and difference.replaced:
            parts.append(f"{difference.replaced} of them the same rows changed")
        if changed.files_with_deletes:
            parts.append(f"{_count(changed.files_with_deletes, 'file')} got deletes")
        if changed.files_removed:
            parts.append(f"{_count(changed.files_removed, 'file')} dropped")
        self._lines.append(f"{shadow}: {', '.join(parts)} ({changed.way})")

    def text(self) -> str:
        return "route: run by the brain; " + "; ".join(self._lines)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
