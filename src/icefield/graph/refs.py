"""Refs: what a name resolves to, and how a branch moves.

A branch moves only by compare-and-set on its whole record, in the store transaction that also writes the commit.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from typing import Literal

from icefield.model.errors import AlreadyExists, BadRequest, NoSuchRef, NoSuchRepo, ReadOnly
from icefield.model.names import check_ref_name
from icefield.store.port import StoreReader, StoreWriter
from icefield.store.records import CommitRecord, RefLogRecord, RefRecord, RepoRecord

RefKind = Literal["branch", "tag"]

PREFIX_MIN = 8
"""Characters of a commit id that name it, if no other begins so."""
_COMMIT_ID = re.compile(rf"[0-9a-f]{{{PREFIX_MIN},40}}")
_NAMES_SHOWN = 10


class HeadMoved(Exception):
    """The ref is not what was read: somebody else moved or dropped it. Read again, apply again."""

    def __init__(self, expected: RefRecord, found: RefRecord | None) -> None:
        super().__init__(f"{expected.kind} {expected.name!r} of repo {expected.repo!r} is not what was read")
        self.expected = expected
        self.found = found


@dataclass(frozen=True, slots=True)
class Resolved:
    """``ref_record`` is None for a commit; ``name`` is the ref's, or the commit's full id."""

    kind: Literal["branch", "tag", "commit"]
    name: str
    ref_record: RefRecord | None
    commit: CommitRecord


def get_repo(reader: StoreReader, name: str) -> RepoRecord:
    repo = reader.get(RepoRecord, name)
    if repo is None:
        known = [repo.name for repo in reader.find(RepoRecord)]
        raise NoSuchRepo(f"there is no repo {name!r}{_hint(name, known, 'repos')}")
    return repo


def resolve(reader: StoreReader, repo: str, ref: str | None) -> Resolved:
    """None is the default branch. A ref's name wins over a commit id."""
    name = get_repo(reader, repo).default_branch if ref is None else ref
    found = reader.get(RefRecord, repo, name)
    if found is not None:
        return Resolved("tag" if found.kind == "tag" else "branch", name, found, commit_of(reader, found.head))
    get_repo(reader, repo)
    if _COMMIT_ID.fullmatch(name):
        commit = _commit_by_id(reader, repo, name)
        if commit is not None:
            return Resolved("commit", commit.id, None, commit)
    raise _no_such_ref(reader, repo, name)


def commit_of(reader: StoreReader, seq: int) -> CommitRecord:
    commit = reader.get(CommitRecord, seq)
    if commit is None:
        raise LookupError(f"commit {seq} is not in the store")
    return commit


def _commit_by_id(reader: StoreReader, repo: str, prefix: str) -> CommitRecord | None:
    # "g" comes after every hex digit: the last ids up to there are those with the prefix.
    last = reader.find(CommitRecord, repo=repo, at_most=("id", prefix + "g"), order_by="id", descending=True, limit=2)
    with_prefix = [commit for commit in last if commit.id.startswith(prefix)]
    if len(with_prefix) > 1:
        raise NoSuchRef(f"{prefix!r} is the beginning of several commits of repo {repo!r}: give more of the id")
    return with_prefix[0] if with_prefix else None


def refs_of(reader: StoreReader, repo: str) -> list[RefRecord]:
    get_repo(reader, repo)
    return reader.find(RefRecord, repo=repo)


def create_ref(
    writer: StoreWriter, repo: str, name: str, kind: RefKind, commit: CommitRecord, *, ref_id: str, now_ms: int
) -> RefRecord:
    check_ref_name(name)
    get_repo(writer, repo)
    if commit.repo != repo or writer.get(CommitRecord, commit.seq) != commit:
        raise NoSuchRef(f"repo {repo!r} has no commit {commit.id}")
    there = writer.get(RefRecord, repo, name)
    if there is not None:
        raise AlreadyExists(f"repo {repo!r} already has a {there.kind} {name!r}")
    ref = RefRecord(repo, name, kind, commit.seq, ref_id, now_ms)
    writer.insert(ref)
    _record(writer, ref, max(now_ms, commit.time_ms))
    return ref


def drop_ref(writer: StoreWriter, repo: str, name: str, kind: RefKind | None) -> RefRecord:
    default = get_repo(writer, repo).default_branch
    ref = writer.get(RefRecord, repo, name)
    if ref is None:
        raise _no_such_ref(writer, repo, name)
    if kind is not None and ref.kind != kind:
        raise NoSuchRef(f"{name!r} of repo {repo!r} is a {ref.kind}, not a {kind}")
    if name == default:
        raise BadRequest(f"{name!r} is the default branch of repo {repo!r} and cannot be dropped", field="name")
    writer.delete(RefRecord, repo, name)
    return ref


def check_head(reader: StoreReader, ref: RefRecord) -> None:
    """``HeadMoved`` unless the ref still is what was read; ``ReadOnly`` if it never moves."""
    if ref.kind != "branch":
        raise ReadOnly(f"{ref.name!r} is a {ref.kind} of repo {ref.repo!r} and does not move; write to a branch")
    found = reader.get(RefRecord, ref.repo, ref.name)
    if found != ref:
        raise HeadMoved(ref, found)


def move_head(writer: StoreWriter, ref: RefRecord, commit: CommitRecord, *, now_ms: int) -> RefRecord:
    """The compare-and-set that everything else serves."""
    moved = replace(ref, head=commit.seq)
    if not writer.replace(ref, moved):
        raise HeadMoved(ref, writer.get(RefRecord, ref.repo, ref.name))
    _record(writer, moved, max(now_ms, commit.time_ms))
    return moved


def _record(writer: StoreWriter, ref: RefRecord, time_ms: int) -> None:
    writer.insert(RefLogRecord(writer.next_id("ref-log"), ref.repo, ref.name, ref.head, time_ms))


def _no_such_ref(reader: StoreReader, repo: str, name: str) -> NoSuchRef:
    known = [ref.name for ref in reader.find(RefRecord, repo=repo)]
    return NoSuchRef(f"repo {repo!r} has no branch, tag or commit {name!r}{_hint(name, known, 'branches and tags')}")


def _hint(name: str, known: list[str], what: str) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    if not known:
        return f"; there are no {what} yet"
    shown = ", ".join(known[:_NAMES_SHOWN])
    return f"; {what}: {shown}{', …' if len(known) > _NAMES_SHOWN else ''}"
