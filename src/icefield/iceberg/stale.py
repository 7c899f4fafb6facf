"""How a well formed commit may not fit the table any more: its snapshot is numbered for an older head."""

from __future__ import annotations

from icefield.model.errors import CommitConflict


class StaleSnapshot(CommitConflict):
    """A snapshot's ``field`` (``sequence-number`` or ``first-row-id``) is behind the table's position.

    Nothing is wrong with the request itself: the caller may rebase the snapshot (fresh numbers) and apply again.
    """

    def __init__(self, *, snapshot_id: int, field: str, given: int, position: int) -> None:
        super().__init__(
            f"snapshot {snapshot_id} was written for an older version of the table: its {field} is {given}, "
            f"the table is at {position}; reload the table and try again"
        )
        self.snapshot_id = snapshot_id
        self.field = field
        self.given = given
        self.position = position
