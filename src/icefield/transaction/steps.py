"""A verb is a function from where it stands to the steps it takes; it never knows whether they land or are staged.

On a branch the steps are published (``landing.py``), inside a transaction they are staged (``transactions.py``). Both
may run a verb again on a newer head, so a verb has no effects: files it needs written are part of its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icefield.graph.tree import TreeView
from icefield.model.names import Identifier
from icefield.store.port import StoreReader
from icefield.transaction.changes import Change
from icefield.transaction.ranges import Scope
from icefield.transaction.served import Overlaid

Seen = Callable[[Identifier, str], Mapping[str, Any] | None]
"""A table's name at the head, its entry -> the table as the statement's view has it; None if it has it not."""


@dataclass(frozen=True, slots=True)
class Standing:
    view: TreeView
    reader: StoreReader
    repo: str
    scope: Scope
    overlaid: Overlaid
    posted: Callable[[str, int], str | None]
    """The retry law: (entry, snapshot id) -> digest of the add-snapshot that is part of this ref already."""
    taken: Callable[[str, int], bool]
    """The ids law: (entry, snapshot id) -> has it landed on any ref? One id never names two contents."""
    strict: bool = False
    seen: Seen | None = None
    """What the statement saw, where that may differ from ``view``: outside a transaction."""


@dataclass(frozen=True, slots=True)
class Step:
    change: Change
    files: Mapping[str, bytes] = field(default_factory=dict)
    metadata: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """Entry -> the metadata it will have; its ids decide whether the ref needs a fresh range."""
    answered: bool = False
    """A retry of what has landed already: there is nothing to do."""


Verb = Callable[[Standing], Sequence[Step]]
