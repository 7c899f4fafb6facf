"""A conflict is a value: which entry, what each side did, and a sentence for a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Conflict:
    entry: str
    """The entry's name, dotted, or the namespace's."""
    reason: str
    """One short word-with-dashes for programs: ``both-changed``, ``schema-changed``, ``created-on-both`` …"""
    message: str
    ours: str | None = None
    theirs: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "entry": self.entry,
            "reason": self.reason,
            "message": self.message,
            "ours": self.ours,
            "theirs": self.theirs,
        }
