"""Commits: immutable nodes of the graph, and how one is made.

A commit's id is a hash over its parents, its changes and its words, not over its tree: the tree follows from them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from icefield.graph import keys
from icefield.graph.diff import describe
from icefield.graph.tree import TreeEdit
from icefield.model.entries import Entry
from icefield.store.port import StoreWriter
from icefield.store.records import CommitRecord, SegmentRecord

TOUCHED_MAX = 1000
"""So many entries are named in a commit's details; the rest is counted."""
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Words:
    """What a commit says about itself."""

    message: str
    principal: str
    details: Mapping[str, Any]


def make_commit(
    writer: StoreWriter,
    repo: str,
    parent: CommitRecord | None,
    edit: TreeEdit | None,
    words: Words,
    *,
    now_ms: int,
    merged: CommitRecord | None = None,
) -> CommitRecord:
    """Stores a commit and the new nodes of its tree. No ref knows it yet."""
    base = None if parent is None else parent.root
    if edit is not None and edit.base != base:
        raise ValueError("the edit was made on another tree than the parent's")
    parents = [commit for commit in (parent, merged) if commit is not None]
    details = dict(words.details)
    if edit is not None and edit.changes and "entries" not in details:
        touched = [{"name": diff.name, "change": diff.change} for diff in describe(edit.changes)]
        details["entries"] = touched[:TOUCHED_MAX]
        if len(touched) > TOUCHED_MAX:
            details["entries-total"] = len(touched)
    seq = writer.next_id("commit")
    time_ms = max([now_ms, *(commit.time_ms + 1 for commit in parents)])
    text = json.dumps(details, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    commit = CommitRecord(
        seq=seq,
        repo=repo,
        id=_commit_id(repo, seq, parents, edit, words, time_ms, text),
        parent=None if parent is None else parent.seq,
        merged=None if merged is None else merged.seq,
        generation=1 + max((commit.generation for commit in parents), default=0),
        time_ms=time_ms,
        principal=words.principal,
        message=words.message,
        root=base if edit is None else _store(writer, edit),
        details=text,
    )
    writer.insert(commit)
    return commit


def _store(writer: StoreWriter, edit: TreeEdit) -> int | None:
    """Nodes of one edit point at each other by position: their segments' numbers must follow each other."""
    numbers = [writer.next_id("segment") for _ in edit.segments]
    if not numbers:
        return edit.root
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise RuntimeError(f"the store gave numbers with gaps in one transaction: {numbers}")
    for number, segment in zip(numbers, edit.segments, strict=True):
        writer.insert(SegmentRecord(number, segment))
    return edit.root_id(numbers[0])


def _commit_id(
    repo: str,
    seq: int,
    parents: list[CommitRecord],
    edit: TreeEdit | None,
    words: Words,
    time_ms: int,
    details: str,
) -> str:
    """``seq`` is part of it: two branches may make the same change of the same parent in the same millisecond."""
    changes = {} if edit is None else edit.changes
    content = (
        "icefield-commit-1",
        repo,
        seq,
        [parent.id for parent in parents],
        [(keys.encode(key), _plain(entry)) for key, (_, entry) in changes.items()],
        time_ms,
        words.principal,
        words.message,
        details,
    )
    return hashlib.blake2b(_encode(content), digest_size=20).hexdigest()


def _plain(entry: Entry | None) -> tuple[Any, ...] | None:
    if entry is None:
        return None
    return entry.id, entry.kind.value, entry.metadata_location, entry.location, entry.properties
