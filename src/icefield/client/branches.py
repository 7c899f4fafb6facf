"""Branches, tags, commits, differences and merges, as small values that print well."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from icefield.client.http import Management, segment, until_answered
from icefield.client.lease import OUTCOME_SECONDS
from icefield.model.conflicts import Conflict
from icefield.model.errors import CommitConflict


@dataclass(frozen=True, slots=True)
class Ref:
    name: str
    kind: Literal["branch", "tag"]
    commit: str
    default: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.name} at {self.commit}" + (" (default)" if self.default else "")


@dataclass(frozen=True, slots=True)
class Commit:
    id: str
    parents: tuple[str, ...]
    time: datetime
    principal: str
    message: str
    operation: str
    changes: tuple[tuple[str, str], ...]
    """(entry, what happened to it)"""
    transaction: str | None = None

    def __str__(self) -> str:
        what = ", ".join(f"{name} {change}" for name, change in self.changes)
        words = self.message or self.operation
        return f"{self.id} {self.time:%Y-%m-%d %H:%M:%S} {words}" + (f" [{what}]" if what else "")


@dataclass(frozen=True, slots=True)
class Side:
    snapshot: int | None
    records: int | None
    metadata_location: str | None


@dataclass(frozen=True, slots=True)
class Change:
    name: str
    kind: str
    change: str
    """``created``, ``dropped``, ``changed`` or ``renamed``"""
    from_name: str | None = None
    before: Side | None = None
    after: Side | None = None

    def __str__(self) -> str:
        sign = {"created": "+", "dropped": "-", "changed": "~", "renamed": ">"}.get(self.change, "?")
        name = f"{self.from_name} -> {self.name}" if self.from_name else self.name
        counts = [str(side.records) for side in (self.before, self.after) if side and side.records is not None]
        return f"{sign} {self.kind} {name}" + (f" ({' -> '.join(counts)} rows)" if counts else "")


class Diff(Sequence[Change]):
    """What to do to ``start`` to get ``end``, by entry."""

    def __init__(self, start: str, end: str, changes: Sequence[Change]) -> None:
        self.start = start
        self.end = end
        self._changes = tuple(changes)

    def __getitem__(self, index: Any) -> Any:
        return self._changes[index]

    def __len__(self) -> int:
        return len(self._changes)

    def __str__(self) -> str:
        if not self._changes:
            return f"{self.start} and {self.end} are equal"
        return "\n".join([f"{self.start}..{self.end}", *map(str, self._changes)])

    def __repr__(self) -> str:
        return f"<Diff {self.start}..{self.end}: {len(self)} changes>"


@dataclass(frozen=True, slots=True)
class Merged:
    result: str
    """``merged``, ``fast-forward`` or ``nothing-to-do``; of a dry run also ``conflict``"""
    commit: str
    conflicts: tuple[Conflict, ...] = ()
    """Of a dry run; else conflicts are raised."""

    def __str__(self) -> str:
        if self.conflicts:
            return "\n".join(["conflicts:", *(f"  {c.entry}: {c.message}" for c in self.conflicts)])
        return f"{self.result} at {self.commit}"


class Refs:
    """The branches (or the tags) of one repo."""

    def __init__(self, server: Management, repo: str, kind: Literal["branch", "tag"]) -> None:
        self._server = server
        self._kind = kind
        self._refs = f"/api/v1/repos/{segment(repo)}/refs"
        self._path = f"/api/v1/repos/{segment(repo)}/{'branches' if kind == 'branch' else 'tags'}"

    def create(self, name: str, from_: str | None = None) -> None:
        """At the head of ``from_`` (a branch, tag or commit id), by default of the default branch."""
        self._server.post(self._path, {"name": name} | ({} if from_ is None else {"from": from_}))

    def drop(self, name: str) -> None:
        self._server.delete(f"{self._path}/{segment(name)}")

    def list(self) -> list[Ref]:
        return [ref for ref in refs_of(self._server.get(self._refs)) if ref.kind == self._kind]

    def __iter__(self) -> Iterator[Ref]:
        return iter(self.list())

    def __contains__(self, name: object) -> bool:
        return any(ref.name == name for ref in self.list())

    def __repr__(self) -> str:
        return f"<{'branches' if self._kind == 'branch' else 'tags'}: {', '.join(ref.name for ref in self.list())}>"


def refs_of(answer: Mapping[str, Any]) -> list[Ref]:
    return [Ref(r["name"], r["kind"], r["commit"], bool(r.get("default"))) for r in answer["refs"]]


def log_of(server: Management, repo: str, ref: str, limit: int) -> list[Commit]:
    answer = server.get(f"/api/v1/repos/{segment(repo)}/log?ref={segment(ref)}&limit={limit}")
    return [_commit(told) for told in answer["commits"]]


def diff_of(server: Management, repo: str, start: str, end: str) -> Diff:
    answer = server.get(f"/api/v1/repos/{segment(repo)}/diff?from={segment(start)}&to={segment(end)}")
    return Diff(start, end, [_change(told) for told in answer["entries"]])


def merge(server: Management, repo: str, source: str, into: str, message: str | None, *, dry_run: bool) -> Merged:
    """Lands once, however often asked. Raises ``CommitConflict`` with every conflict; a dry run lists them."""
    body: dict[str, Any] = {"from": source, "into": into, "id": str(uuid.uuid4())}
    if message is not None:
        body["message"] = message
    if dry_run:
        body["dry-run"] = True
    path = f"/api/v1/repos/{segment(repo)}/merge"
    try:
        answer = until_answered(
            lambda: server.post(path, body), seconds=OUTCOME_SECONDS, what=f"the merge of {source} into {into}"
        )
    except CommitConflict as error:
        if not dry_run:
            raise
        return Merged("conflict", "", tuple(error.conflicts))
    return Merged(str(answer["result"]), str(answer.get("commit") or ""))


def _commit(told: Mapping[str, Any]) -> Commit:
    return Commit(
        id=told["id"],
        parents=tuple(told["parents"]),
        time=datetime.fromtimestamp(told["time-ms"] / 1000, UTC),
        principal=str(told.get("principal") or ""),
        message=str(told.get("message") or ""),
        operation=str(told.get("operation") or ""),
        changes=tuple((entry["name"], entry["change"]) for entry in told.get("entries") or ()),
        transaction=told.get("transaction"),
    )


def _change(told: Mapping[str, Any]) -> Change:
    return Change(
        name=told["name"],
        kind=told["kind"],
        change=told["change"],
        from_name=told.get("from-name"),
        before=_side(told.get("from")),
        after=_side(told.get("to")),
    )


def _side(told: Mapping[str, Any] | None) -> Side | None:
    if told is None:
        return None
    return Side(told.get("snapshot-id"), told.get("records"), told.get("metadata-location"))
