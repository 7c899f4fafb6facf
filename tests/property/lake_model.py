"""A lake as plain Python: refs -> commits -> names -> tables -> sets of files and columns.

It decides what must land, what must be refused, and where the server may choose (``May``), without any of the server's
code. Names are tuples: ``("a",)`` is a namespace, ``("a", "t")`` a table in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

Key = tuple[str, ...]
_states = itertools.count(1)


def fresh_state() -> int:
    """Two equal state numbers are one and the same content."""
    return next(_states)


@dataclass(frozen=True)
class Entry:
    """A table, or (``format`` 0) a namespace. ``uid`` is its identity, whatever it is called."""

    uid: str
    state: int
    format: int = 0
    columns: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    past: tuple[tuple[int, frozenset[str]], ...] = ()
    """The current snapshot's line of ancestors, oldest first: its id, and the files that are live at it."""

    @property
    def files(self) -> frozenset[str]:
        return self.past[-1][1] if self.past else frozenset()

    @property
    def snapshot(self) -> int | None:
        return self.past[-1][0] if self.past else None

    @property
    def lineage(self) -> tuple[int, ...]:
        return tuple(id_ for id_, _ in self.past)


Tree = Mapping[Key, Entry]


@dataclass(frozen=True)
class Op:
    """What one POST does to one table: one of

    append (``links``: per snapshot its id and the files it adds), other (one snapshot that replaces ``removed`` by what
    its link adds), rewind (back to the ancestor ``target``), column, partition (a new one of that ``name``).
    """

    kind: str
    base: Entry
    """The table as its writer loaded it."""
    links: tuple[tuple[int, frozenset[str]], ...] = ()
    removed: frozenset[str] = frozenset()
    target: int | None = None
    name: str = ""
    strict: bool = False

    @property
    def snapshots(self) -> frozenset[int]:
        return frozenset(id_ for id_, _ in self.links)

    def apply(self, to: Entry) -> Entry:
        past = to.past
        for id_, added in self.links:
            live = past[-1][1] if past else frozenset()
            past = (*past, (id_, (live - self.removed) | added))
        if self.kind == "rewind":
            past = past[: [id_ for id_, _ in past].index(self.target) + 1]
        columns = (*to.columns, self.name) if self.kind == "column" else to.columns
        partitions = (*to.partitions, self.name) if self.kind == "partition" else to.partitions
        return replace(to, state=fresh_state(), past=past, columns=columns, partitions=partitions)


@dataclass(frozen=True)
class Refused:
    """A conflict. ``why`` is for the reader of a failing example."""

    why: str


@dataclass(frozen=True)
class May:
    """Commuting here is not required (the server may be conservative); but if it lands, this is the result."""

    entry: Entry
    why: str


def judge(op: Op, now: Entry) -> Entry | Refused | May:
    """One POST on the table as it is now at the address. (What landed already is not asked here.)"""
    if op.base.uid != now.uid:
        return Refused("another table stands under this name")
    if op.kind == "column":
        return op.apply(now) if op.base.columns == now.columns else Refused("columns were added meanwhile")
    if op.kind == "partition":
        return (
            op.apply(now) if op.base.partitions == now.partitions else Refused("partition fields were added meanwhile")
        )
    if op.base.snapshot == now.snapshot:
        return op.apply(now)
    if op.strict:
        return Refused("a strict write is never rebased")
    if op.kind != "append":
        return Refused("only appends are rebased")
    if op.base.snapshot is not None and op.base.snapshot not in now.lineage:
        return Refused("its base is no ancestor of the head: the table was taken back behind it")
    return op.apply(now)


def replay(ops: Iterable[Op], base: Entry, now: Entry) -> Entry | Refused | May:
    """A transaction's work on a table that others changed since the transaction's base."""
    ops = list(ops)
    if any(op.strict for op in ops):
        return Refused("a strict write is never rebased")
    kinds = {op.kind for op in ops}
    if "column" in kinds and base.columns != now.columns:
        return Refused("both added columns: the transaction borrowed its field ids from the branch")
    if "partition" in kinds and base.partitions != now.partitions:
        return Refused("both added partition fields")
    moved = base.snapshot != now.snapshot
    if moved and kinds & {"other", "rewind"}:
        return Refused("only appends are rebased")
    if moved and "append" in kinds and base.snapshot is not None and base.snapshot not in now.lineage:
        return Refused("its base is no ancestor of the head")
    result = now
    for op in ops:
        result = op.apply(result)
    if kinds <= {"append"}:
        return result
    if kinds <= {"column"} and base.partitions == now.partitions:
        return result
    return May(result, f"{'+'.join(sorted(kinds))} on a table that moved: commutes, but nothing promises it yet")


@dataclass
class Merged:
    tree: dict[Key, Entry] = field(default_factory=dict)
    conflicts: list[frozenset[str]] = field(default_factory=list)
    """One for each thing that does not merge: the names that a conflict about it may be listed under."""
    may: list[str] = field(default_factory=list)
    """Why the server may refuse what this model could merge."""


def three_way(base: Tree, ours: Tree, theirs: Tree, settled: Mapping[str, Entry] | None = None) -> Merged:
    """Entries match by identity, then by name. ``settled``: tables whose content has been decided already."""
    merged = Merged()
    where = [{entry.uid: (key, entry) for key, entry in side.items()} for side in (base, ours, theirs)]
    holders: dict[Key, list[str]] = {}
    taken: dict[str, Entry] = {}
    for uid in dict.fromkeys(itertools.chain(*where)):
        b, o, t = (side.get(uid) for side in where)
        names = frozenset(dotted(spot[0]) for spot in (b, o, t) if spot is not None)
        if (o is None and t is None) or (b is not None and (o is None or t is None) and (t == b or o == b)):
            continue  # dropped, and not touched on the other side
        if o is None or t is None:
            if b is not None:
                merged.conflicts.append(names)
                continue
            key, entry = o or t  # type: ignore[misc]  # created on one side
        else:
            name = _one(b and b[0], o[0], t[0])
            decided = (settled or {}).get(uid)
            content = decided or _one(b and b[1], o[1], t[1])
            if name is None or content is None:
                merged.conflicts.append(names)
                continue
            key, entry = name, content
        holders.setdefault(key, []).append(uid)
        taken[uid] = entry
    for key, uids in holders.items():
        if len(uids) > 1:
            merged.conflicts.append(frozenset({dotted(key)}))
        elif len(key) > 1 and key[:-1] not in holders:
            merged.conflicts.append(frozenset({dotted(key), dotted(key[:-1])}))
        else:
            merged.tree[key] = taken[uids[0]]
    return merged


T = TypeVar("T")


def _one(base: T | None, ours: T, theirs: T) -> T | None:
    """None where both sides changed it differently."""
    if ours == theirs or theirs == base:
        return ours
    return theirs if ours == base else None


def dotted(key: Key) -> str:
    return ".".join(key)


@dataclass
class Staged:
    tree: Tree
    ops: tuple[tuple[str, Op], ...] = ()


@dataclass
class Transaction:
    id: str
    branch: str
    base: str
    staged: list[Staged] = field(default_factory=list)
    savepoints: list[tuple[str, int]] = field(default_factory=list)

    def tree(self, base: Tree) -> Tree:
        return self.staged[-1].tree if self.staged else base

    def ops(self, uid: str) -> list[Op]:
        return [op for staged in self.staged for its, op in staged.ops if its == uid]

    @property
    def landed(self) -> set[tuple[str, int]]:
        return {(uid, id_) for staged in self.staged for uid, op in staged.ops for id_ in op.snapshots}


def land_transaction(transaction: Transaction, base: Tree, head: Tree) -> Merged:
    """COMMIT: the overlay's changes on the branch's head, as one merge."""
    overlay = transaction.tree(base)
    spots = {entry.uid: (key, entry) for key, entry in base.items()}
    heads = {entry.uid: (key, entry) for key, entry in head.items()}
    settled: dict[str, Entry] = {}
    refused: list[frozenset[str]] = []
    may: list[str] = []
    for key, entry in overlay.items():
        before, now = spots.get(entry.uid), heads.get(entry.uid)
        if before is None or now is None or entry.state == before[1].state or now[1].state == before[1].state:
            continue
        verdict = replay(transaction.ops(entry.uid), before[1], now[1])
        if isinstance(verdict, Refused):
            refused.append(frozenset({dotted(k) for k in (key, before[0], now[0])}))
            continue
        if isinstance(verdict, May):
            may.append(verdict.why)
            verdict = verdict.entry
        if key != before[0]:
            may.append("renamed and changed here, changed there: commutes, but nothing promises it yet")
        settled[entry.uid] = verdict
    merged = three_way(base, head, overlay, settled)
    merged.conflicts += [names for names in refused if names not in merged.conflicts]
    merged.may += may
    return merged


@dataclass(frozen=True)
class Commit:
    id: str
    parents: tuple[str, ...]
    tree: Tree


@dataclass
class Ref:
    kind: str
    commit: str
    uid: int
    """A branch that was dropped and made again is another one."""
    landed: set[tuple[str, int]] = field(default_factory=set)
    """The snapshots that were posted here: asked again, they have landed."""


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

    def merge_bases(self, one: str, other: str) -> list[str]:
        common = self.ancestors(one) & self.ancestors(other)
        return [c for c in common if not any(c != d and c in self.ancestors(d) for d in common)]

    def merge(self, ours: str, theirs: str) -> Merged:
        """Of two branches. Where several best bases disagree about something that differs now, nothing is certain."""
        bases = [self[id_].tree for id_ in self.merge_bases(ours, theirs)]
        merged = three_way(bases[0], self[ours].tree, self[theirs].tree)
        ours_by_uid, theirs_by_uid = by_uid(self[ours].tree), by_uid(self[theirs].tree)
        for uid in {uid for tree in bases for uid in by_uid(tree)}:
            told = {by_uid(tree).get(uid) for tree in bases}
            if len(told) > 1 and ours_by_uid.get(uid) != theirs_by_uid.get(uid):
                merged.may.append("criss-cross: the merge bases disagree about an entry")
        return merged


def by_uid(tree: Tree) -> dict[str, tuple[Key, int]]:
    return {entry.uid: (key, entry.state) for key, entry in tree.items()}
