"""The commit graph of all repos in a store: the one door to this folder.

Whoever calls brings the store transaction, so that what belongs together lands together (the move of a head, the retry
record, the deletion queue). Only ``tree`` may read by itself: nodes never change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from icefield.graph import refs
from icefield.graph.ancestry import Ancestry, BonesCache
from icefield.graph.commits import Words, make_commit
from icefield.graph.diff import EntryDiff, diff_trees
from icefield.graph.nodes import CACHE_BYTES, CommittedNodes, NodeCache, OwnNodes
from icefield.graph.refs import HeadMoved, RefKind, Resolved
from icefield.graph.tree import Tree, TreeEdit
from icefield.model.effects import Clock, Randomness
from icefield.model.errors import AlreadyExists, BadRequest
from icefield.model.names import DEFAULT_BRANCH, check_ref_name, check_repo_name
from icefield.store.port import Store, StoreReader, StoreWriter
from icefield.store.records import CommitRecord, RefRecord, RepoRecord


class Graph:
    def __init__(self, store: Store, clock: Clock, randomness: Randomness, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._clock = clock
        self._randomness = randomness
        self._nodes = CommittedNodes(store, NodeCache(cache_bytes))
        self._bones = BonesCache()

    # Repos

    def create_repo(
        self,
        writer: StoreWriter,
        name: str,
        *,
        default_branch: str = DEFAULT_BRANCH,
        properties: Mapping[str, str] | None = None,
        principal: str = "",
    ) -> RepoRecord:
        """With an empty first commit and the default branch on it."""
        check_repo_name(name)
        check_ref_name(default_branch)
        if writer.get(RepoRecord, name) is not None:
            raise AlreadyExists(f"there is a repo {name!r} already")
        now = self._clock.now_ms()
        text = json.dumps(dict(properties or {}), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        repo = RepoRecord(name, default_branch, now, text)
        writer.insert(repo)
        words = Words(f"repo {name} created", principal, {"operation": "create-repo"})
        first = make_commit(writer, name, None, None, words, now_ms=now)
        self.create_branch(writer, name, default_branch, first)
        return repo

    def repos(self, reader: StoreReader) -> list[RepoRecord]:
        return reader.find(RepoRecord)

    def repo(self, reader: StoreReader, name: str) -> RepoRecord:
        return refs.get_repo(reader, name)

    # Refs

    def resolve(self, reader: StoreReader, repo: str, ref: str | None = None) -> Resolved:
        """A branch, a tag, a commit id, or eight or more characters that only one commit id begins with."""
        return refs.resolve(reader, repo, ref)

    def refs(self, reader: StoreReader, repo: str) -> list[RefRecord]:
        return refs.refs_of(reader, repo)

    def create_branch(self, writer: StoreWriter, repo: str, name: str, commit: CommitRecord) -> RefRecord:
        return self._create_ref(writer, repo, name, "branch", commit)

    def create_tag(self, writer: StoreWriter, repo: str, name: str, commit: CommitRecord) -> RefRecord:
        return self._create_ref(writer, repo, name, "tag", commit)

    def drop_ref(self, writer: StoreWriter, repo: str, name: str, *, kind: RefKind | None = None) -> RefRecord:
        """Gives back what was dropped. ``kind``: only if it is such a one."""
        return refs.drop_ref(writer, repo, name, kind)

    def publish(
        self,
        writer: StoreWriter,
        ref: RefRecord,
        edit: TreeEdit | None,
        *,
        message: str,
        principal: str,
        details: Mapping[str, Any],
        merged: CommitRecord | None = None,
    ) -> tuple[CommitRecord, RefRecord]:
        """Makes a commit on a branch, whose record must still be what was read (else ``HeadMoved``; nothing is done).

        ``edit`` was made on the tree of the branch's head; None keeps that tree. The commit's details name the entries
        touched, unless the caller's do.
        """
        refs.check_head(writer, ref)
        if merged is not None and merged.repo != ref.repo:
            raise BadRequest(f"commit {merged.id} is of repo {merged.repo!r}, not {ref.repo!r}", field="from")
        now = self._clock.now_ms()
        parent = refs.commit_of(writer, ref.head)
        words = Words(message, principal, details)
        commit = make_commit(writer, ref.repo, parent, edit, words, now_ms=now, merged=merged)
        return commit, refs.move_head(writer, ref, commit, now_ms=now)

    def move(self, writer: StoreWriter, ref: RefRecord, commit: CommitRecord) -> RefRecord:
        """Fast-forward: the branch goes on to a commit that has its head as an ancestor."""
        refs.check_head(writer, ref)
        if not self.is_ancestor(writer, refs.commit_of(writer, ref.head), commit):
            raise BadRequest(
                f"branch {ref.name!r} cannot move to commit {commit.id}: it is no descendant", field="into"
            )
        return refs.move_head(writer, ref, commit, now_ms=self._clock.now_ms())

    def _create_ref(self, writer: StoreWriter, repo: str, name: str, kind: RefKind, commit: CommitRecord) -> RefRecord:
        ref_id, now = self._randomness.uuid(), self._clock.now_ms()
        return refs.create_ref(writer, repo, name, kind, commit, ref_id=ref_id, now_ms=now)

    # Commits

    def commit(self, reader: StoreReader, seq: int) -> CommitRecord:
        return refs.commit_of(reader, seq)

    def tree(self, commit: CommitRecord, reader: StoreReader | None = None) -> Tree:
        """The tree of a committed commit; of one that a write transaction has just made, through that writer."""
        return Tree(self._nodes if reader is None else OwnNodes(reader), commit.root)

    def diff(self, a: CommitRecord, b: CommitRecord) -> list[EntryDiff]:
        """From ``a`` to ``b``, by entry; costs what has changed, not what is there."""
        return diff_trees(self.tree(a), self.tree(b))

    def merge_bases(self, reader: StoreReader, a: CommitRecord, b: CommitRecord) -> tuple[CommitRecord, ...]:
        """All best common ancestors (several after criss-cross merges; none between repos)."""
        return Ancestry(reader, self._bones).merge_bases(a, b)

    def is_ancestor(self, reader: StoreReader, a: CommitRecord, b: CommitRecord) -> bool:
        """Is ``a`` reached from ``b``, or the same?"""
        return Ancestry(reader, self._bones).is_ancestor(a, b)

    def log(
        self, reader: StoreReader, commit: CommitRecord, limit: int = 50, before: CommitRecord | None = None
    ) -> list[CommitRecord]:
        """The commit and all its ancestors, newest first; ``before`` is the last one of the previous page."""
        return Ancestry(reader, self._bones).log(commit, limit, before)


__all__ = ["Graph", "HeadMoved", "Resolved"]
