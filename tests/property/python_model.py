"""A lake as a Python program sees it, as plain values: branches -> commits -> tables -> rows.

It decides what a transaction or a merge must come to, without any of Icefield's code. A row is ``(k, v)``; a ``k`` is
given out once and never again, so it says which row it is, whatever became of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

Row = tuple[int, int]
_states = itertools.count(1)


@dataclass(frozen=True)
class Table:
    uid: int
    """Which table it is: one that was dropped and made again is another."""
    format: int
    lazy: bool
    """Merge-on-read: deletes are files of their own."""
    columns: tuple[str, ...] = ()
    """Those that were added to k and v."""
    rows: frozenset[Row] = frozenset()
    state: int = field(default_factory=lambda: next(_states))
    """Equal in two places: nothing was committed to it in between."""

    def now(self, rows: Iterable[Row], columns: tuple[str, ...] | None = None) -> Table:
        return replace(
            self, rows=frozenset(rows), columns=self.columns if columns is None else columns, state=next(_states)
        )


Tree = Mapping[str, Table]


@dataclass(frozen=True)
class Commit:
    id: str
    parents: tuple[str, ...]
    tree: Tree | None
    """None: one of two that came at once, and which one was first is not known."""


@dataclass(frozen=True)
class Appended:
    uid: int
    rows: frozenset[Row]


@dataclass(frozen=True)
class Other:
    """Any write that is not a plain append."""

    uid: int


@dataclass
class Open:
    """A transaction."""

    id: str
    branch: str
    base: Tree
    tree: Tree
    said: tuple[Appended | Other, ...] = ()
    savepoints: list[tuple[Tree, tuple[Appended | Other, ...]]] = field(default_factory=list)


@dataclass
class Outcome:
    tree: dict[str, Table] = field(default_factory=dict)
    conflicts: set[str] = field(default_factory=set)
    uncertain: bool = False
    """Several merge bases disagree: refusing is right as well."""


def three_way(base: Tree, ours: Tree, theirs: Tree, settled: Mapping[int, Table] | None = None) -> Outcome:
    """Tables match by identity. ``settled``: changed on both sides, and what both changes come to."""
    outcome = Outcome()
    sides = [{table.uid: (name, table) for name, table in tree.items()} for tree in (base, ours, theirs)]
    for uid in dict.fromkeys(itertools.chain(*sides)):
        b, o, t = (side.get(uid) for side in sides)
        if b and (not o or not t):
            left = o or t
            if left and left != b:
                outcome.conflicts.add(b[0])  # dropped here, changed there
            continue
        if o and t and o != t and b and b != o and b != t and uid not in (settled or {}):
            outcome.conflicts.add(b[0])
            continue
        name, table = (o or t) if not (o and t) else (t if o == b else o)  # type: ignore[misc]
        if name in outcome.tree:
            outcome.conflicts.add(name)  # made on both sides
        outcome.tree[name] = (settled or {}).get(uid, table)
    return outcome


def land(transaction: Open, head: Tree) -> Outcome:
    """COMMIT. Appends land on whatever is there now; anything else wants the table as it was read."""
    before = {table.uid: table for table in transaction.base.values()}
    mine = {table.uid: table for table in transaction.tree.values()}
    settled = {}
    for table in head.values():
        was, is_ = before.get(table.uid), mine.get(table.uid)
        if was and is_ and was != is_ and was != table:
            said = [one for one in transaction.said if one.uid == table.uid]
            if all(isinstance(one, Appended) for one in said):
                settled[table.uid] = table.now(table.rows.union(*(one.rows for one in said)))  # type: ignore[union-attr]
    return three_way(transaction.base, head, transaction.tree, settled)


class Commits(dict[str, Commit]):
    def ancestors(self, id_: str) -> set[str]:
        found: set[str] = set()
        todo = [id_]
        while todo:
            at = todo.pop()
            if at not in found:
                found.add(at)
                todo.extend(self[at].parents)
        return found

    def tree(self, id_: str) -> Tree:
        tree = self[id_].tree
        assert tree is not None
        return tree

    def merge(self, ours: str, theirs: str) -> Outcome:
        common = self.ancestors(ours) & self.ancestors(theirs)
        bases = [self[id_].tree for id_ in common if not any(id_ in self.ancestors(c) - {c} for c in common)]
        outcome = three_way(bases[0] or {}, self.tree(ours), self.tree(theirs))
        outcome.uncertain = any(tree != bases[0] for tree in bases)
        return outcome


def differences(start: Tree, end: Tree) -> set[tuple[str, str]]:
    one, other = ({table.uid: (name, table) for name, table in tree.items()} for tree in (start, end))
    return (
        {(name, "dropped") for uid, (name, _) in one.items() if uid not in other}
        | {(name, "created") for uid, (name, _) in other.items() if uid not in one}
        | {(name, "changed") for uid, (name, table) in other.items() if uid in one and one[uid][1] != table}
    )
