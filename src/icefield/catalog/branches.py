"""Branches and tags; log, diff and merge of whole repos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from icefield.graph.graph import Resolved
from icefield.graph.tree import Tree
from icefield.graph.tree import diff as tree_diff
from icefield.merge.trees import merge_trees
from icefield.model.conflicts import Conflict
from icefield.model.entries import Entry, EntryKind
from icefield.model.errors import BadRequest, CommitConflict, ReadOnly
from icefield.model.names import Identifier, check_ref_name, check_repo_name
from icefield.store.port import StoreReader, StoreWriter
from icefield.store.records import CommitRecord, OutcomeRecord
from icefield.transaction import ranges
from icefield.transaction.changes import Change, Key, key_name
from icefield.transaction.core import Core
from icefield.transaction.landing import land, refuses_client_gc
from icefield.transaction.ranges import Scope
from icefield.transaction.served import Overlaid
from icefield.transaction.sessions import outcome_of
from icefield.transaction.steps import Standing, Step

MAX_LOG_PAGE = 1_000


def create_repo(core: Core, name: str, properties: Mapping[str, str]) -> dict[str, Any]:

    check_repo_name(name)
    for key, value in properties.items():
        if key != "client-gc" or value not in ("refuse", "allow"):
            raise BadRequest(f"property {key}: only client-gc = refuse | allow is known", field=f"properties.{key}")
    with core.store.write() as writer:
        repo = core.graph.create_repo(writer, name, properties=dict(properties))
    core.volume.make_folder(f"{core.volume.root}/{name}")
    return {
        "name": repo.name,
        "default-branch": repo.default_branch,
        "client-gc": "refuse" if refuses_client_gc(repo) else "allow",
    }


def repos(core: Core) -> list[dict[str, Any]]:
    with core.store.read() as reader:
        return [
            {
                "name": repo.name,
                "default-branch": repo.default_branch,
                "client-gc": "refuse" if refuses_client_gc(repo) else "allow",
            }
            for repo in core.graph.repos(reader)
        ]


def refs(core: Core, repo: str) -> list[dict[str, Any]]:
    with core.store.read() as reader:
        default = core.graph.repo(reader, repo).default_branch
        found = []
        for ref in core.graph.refs(reader, repo):
            commit = reader.get(CommitRecord, ref.head)
            assert commit is not None
            found.append(
                {
                    "name": ref.name,
                    "kind": ref.kind,
                    "commit": commit.id,
                    "default": ref.name == default,
                    "created-ms": ref.created_ms,
                }
            )
    return found


def create_ref(core: Core, repo: str, kind: str, name: str, start: str | None) -> dict[str, Any]:
    check_ref_name(name)
    with core.store.write() as writer:
        commit = core.graph.resolve(writer, repo, start).commit
        make = core.graph.create_branch if kind == "branch" else core.graph.create_tag
        ref = make(writer, repo, name, commit)
    return {"name": ref.name, "kind": ref.kind, "commit": commit.id, "default": False, "created-ms": ref.created_ms}


def drop_ref(core: Core, repo: str, kind: str, name: str) -> None:
    with core.store.write() as writer:
        resolved = core.graph.resolve(writer, repo, name)
        if resolved.kind != kind:
            raise BadRequest(f"{name} is a {resolved.kind}, not a {kind}", field="name")
        core.graph.drop_ref(writer, repo, name)


def log(core: Core, repo: str, ref: str | None, *, limit: int, before: str | None) -> dict[str, Any]:
    if not 1 <= limit <= MAX_LOG_PAGE:
        raise BadRequest(f"limit must lie between 1 and {MAX_LOG_PAGE}", field="limit")
    with core.store.read() as reader:
        head = core.graph.resolve(reader, repo, ref).commit
        start = core.graph.resolve(reader, repo, before).commit if before is not None else None
        page = core.graph.log(reader, head, limit=limit + 1, before=start)
        told = [_commit_to_json(reader, commit) for commit in page[:limit]]
    answer: dict[str, Any] = {"commits": told}
    if len(page) > limit:
        answer["next"] = told[-1]["id"]
    return answer


def diff(core: Core, repo: str, from_: str | None, to: str | None) -> list[dict[str, Any]]:
    with core.store.read() as reader:
        one = core.graph.resolve(reader, repo, from_).commit
        other = core.graph.resolve(reader, repo, to).commit
    found = []
    for each in core.graph.diff(one, other):
        line: dict[str, Any] = {
            "name": each.name,
            "kind": each.kind.value,
            "change": each.change,
            "from": _side(core, each.from_entry),
            "to": _side(core, each.to_entry),
        }
        if each.from_key is not None and each.from_key != each.key:
            line["from-name"] = key_name(each.from_key)
        found.append(line)
    return found


def _side(core: Core, entry: Entry | None) -> dict[str, Any] | None:
    if entry is None:
        return None
    if entry.metadata_location is None:
        return {"properties": dict(entry.properties)}
    metadata = core.metadata.load(entry.metadata_location)
    current = metadata.get("current-snapshot-id")
    snapshot = next((s for s in metadata.get("snapshots") or () if s["snapshot-id"] == current), None)
    records = ((snapshot or {}).get("summary") or {}).get("total-records")
    return {
        "snapshot-id": snapshot["snapshot-id"] if snapshot is not None else None,
        "records": int(records)
        if isinstance(records, str) and records.isdecimal()
        else (0 if snapshot is None else None),
        "metadata-location": entry.metadata_location,
    }


def _commit_to_json(reader: StoreReader, commit: CommitRecord) -> dict[str, Any]:
    details = msgspec.json.decode(commit.details)
    parents = [reader.get(CommitRecord, seq) for seq in (commit.parent, commit.merged) if seq is not None]
    told = {
        "id": commit.id,
        "parents": [parent.id for parent in parents if parent is not None],
        "time-ms": commit.time_ms,
        "principal": commit.principal,
        "message": commit.message,
        "operation": details.get("operation", ""),
        "entries": details.get("entries", []),
    }
    if "transaction" in details:
        told["transaction"] = details["transaction"]
    return told


def merge(
    core: Core,
    repo: str,
    *,
    source: str,
    into: str,
    principal: str,
    message: str | None = None,
    id_: str | None = None,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Fast-forward where nothing happened on the other side; else entries that changed on one side only; else
    conflicts, all at once. Asked again with the same id it answers the first outcome."""
    asked = _Asked(f"merge/{repo}/{id_}" if id_ is not None else None, source, into)
    with core.store.read() as reader:
        first = asked.first_outcome(reader)
    if first is not None:
        return first
    with core.store.read() as reader:
        target = core.graph.resolve(reader, repo, into)
        theirs = core.graph.resolve(reader, repo, source)
        overlaid = Overlaid(target.name, refuses_client_gc(core.graph.repo(reader, repo)), False)
    if target.kind != "branch":
        raise ReadOnly(f"{into} is a {target.kind}: it does not change; merge into a branch")
    words = message or f"merge {source} into {into}"
    if dry_run:
        return _dry_run(core, target, theirs)
    forward = _fast_forward(core, repo, target.name, theirs, asked)
    if forward is not None:
        return forward

    steps: list[Step] = []

    def verb(at: Standing) -> Sequence[Step]:
        head = core.graph.resolve(at.reader, repo, target.name).commit
        if core.graph.is_ancestor(at.reader, theirs.commit, head):
            raise _Settled
        steps[:] = _merge_steps(core, at.reader, head, theirs.commit, target.name, theirs.name)
        return steps

    outcome: dict[str, Any] = {}

    def also(writer: StoreWriter, commit: CommitRecord) -> None:
        outcome.update(result="merged", commit=commit.id, conflicts=[])
        asked.record(core, writer, outcome)

    try:
        land(
            core,
            repo,
            target.name,
            verb,
            overlaid=overlaid,
            message=words,
            principal=principal,
            details={"operation": "merge", "from": source},
            merged=theirs.commit,
            also=also,
        )
    except _Settled:
        settled = _fast_forward(core, repo, target.name, theirs, asked)
        assert settled is not None, "a branch never moves back"
        return settled
    except CommitConflict as conflict:
        raise CommitConflict(f"cannot merge {source} into {into}: {conflict.message}", conflict.conflicts) from None
    return outcome


class _Settled(Exception):
    """Somebody else merged this very commit while we were about to: there is nothing left to do."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A merge by the id that it is asked for again with."""

    key: str | None
    source: str
    into: str

    def first_outcome(self, reader: StoreReader) -> dict[str, Any] | None:
        record = reader.get(OutcomeRecord, self.key) if self.key is not None else None
        if record is None:
            return None
        outcome = outcome_of(record)
        if [self.source, self.into] != outcome.pop("asked"):
            raise BadRequest("this id was used for a merge of other branches: every merge needs its own", field="id")
        return outcome

    def record(self, core: Core, writer: StoreWriter, outcome: Mapping[str, Any]) -> None:
        if self.key is not None:
            told = msgspec.json.encode({**outcome, "asked": [self.source, self.into]}).decode()
            writer.put(OutcomeRecord(self.key, told, core.clock.now_ms()))


def _dry_run(core: Core, target: Resolved, theirs: Resolved) -> dict[str, Any]:
    with core.store.read() as reader:
        if core.graph.is_ancestor(reader, theirs.commit, target.commit):
            return {"result": "nothing-to-do", "commit": target.commit.id, "conflicts": [], "entries": []}
        if core.graph.is_ancestor(reader, target.commit, theirs.commit):
            return {"result": "fast-forward", "commit": theirs.commit.id, "conflicts": [], "entries": []}
        steps = _merge_steps(core, reader, target.commit, theirs.commit, target.name, theirs.name)
    names = [key_name(k) for step in steps for k in step.change.entries]
    return {"result": "merged", "commit": None, "conflicts": [], "entries": names}


def _fast_forward(core: Core, repo: str, into: str, theirs: Resolved, asked: _Asked) -> dict[str, Any] | None:
    """Moves the head along, or says that there is nothing to do; None if the branches have parted."""
    _read_ahead(core, repo, into, theirs)
    with core.tickets.hold(repo, into), core.store.write() as writer:
        first = asked.first_outcome(writer)
        if first is not None:
            return first
        target = core.graph.resolve(writer, repo, into)
        if core.graph.is_ancestor(writer, theirs.commit, target.commit):
            outcome = {"result": "nothing-to-do", "commit": target.commit.id, "conflicts": []}
        elif core.graph.is_ancestor(writer, target.commit, theirs.commit):
            assert target.ref_record is not None
            changed = tree_diff(core.graph.tree(target.commit), core.graph.tree(theirs.commit))
            core.graph.move(writer, target.ref_record, theirs.commit)
            for _, entry in changed.values():
                _renew(core, writer, target.ref_record.id, entry)
            outcome = {"result": "fast-forward", "commit": theirs.commit.id, "conflicts": []}
        else:
            return None
        asked.record(core, writer, outcome)
        return outcome


def _read_ahead(core: Core, repo: str, into: str, theirs: Resolved) -> None:
    """Nobody else can write while the head moves along, so what that needs of files is read before."""
    with core.store.read() as reader:
        target = core.graph.resolve(reader, repo, into)
        if not core.graph.is_ancestor(reader, target.commit, theirs.commit):
            return
    for _, entry in tree_diff(core.graph.tree(target.commit), core.graph.tree(theirs.commit)).values():
        if entry is not None and entry.kind is EntryKind.TABLE and entry.metadata_location is not None:
            core.metadata.load(entry.metadata_location)


def _renew(core: Core, writer: StoreWriter, ref_id: str, entry: Entry | None) -> None:
    if entry is not None and entry.kind is EntryKind.TABLE and entry.metadata_location is not None:
        ranges.renew(writer, entry.id, Scope(ref_id), core.metadata.load(entry.metadata_location))


def _merge_steps(
    core: Core, reader: StoreReader, ours: CommitRecord, theirs: CommitRecord, our_name: str, their_name: str
) -> list[Step]:
    ours_tree, theirs_tree = core.graph.tree(ours), core.graph.tree(theirs)
    bases = core.graph.merge_bases(reader, ours, theirs)
    base = core.graph.tree(bases[0])  # every repo begins with one commit, so there is always a base
    between = _merged_bases(core, reader, bases)
    unsettled = _disputed(core, bases) if between is None else set()
    our_changes = _since(base, between or {}, ours_tree)
    their_changes = _since(base, between or {}, theirs_tree)
    merged = merge_trees(our_changes, their_changes, our_name=our_name, their_name=their_name)
    conflicts = [*merged.conflicts, *_criss_cross(unsettled, ours_tree, theirs_tree, merged.conflicts)]
    if conflicts:
        raise CommitConflict("; ".join(c.message for c in conflicts), conflicts)
    steps = []
    for key, entry in merged.changes.items():
        metadata = {}
        if entry is not None and entry.kind is EntryKind.TABLE and entry.metadata_location is not None:
            metadata[entry.id] = core.metadata.load(entry.metadata_location)
        word = "drop" if entry is None else ("create" if ours_tree.get(key) is None else "change")
        steps.append(Step(Change(word, {key: entry}), metadata=metadata))
    return steps


def _merged_bases(core: Core, reader: StoreReader, bases: Sequence[CommitRecord]) -> dict[Key, Entry | None] | None:
    """Two best bases make one where they merge by themselves: both sides hold that merge, and nothing ever takes a
    change back. Answers what it changes in the first of them; None if there is no such base."""
    if len(bases) == 1:
        return {}
    if len(bases) > 2:
        return None
    before = core.graph.merge_bases(reader, *bases)
    if len(before) != 1:
        return None
    trunk, first, second = (core.graph.tree(commit) for commit in (before[0], *bases))
    merged = merge_trees(tree_diff(trunk, first), tree_diff(trunk, second))
    return None if merged.conflicts else merged.changes


def _since(base: Tree, between: Mapping[Key, Entry | None], tree: Tree) -> dict[Key, tuple[Entry | None, Entry | None]]:
    """What the tree changed since the base with what lies between laid over it."""
    changes = {key: change for key, change in tree_diff(base, tree).items() if key not in between}
    for key, before in between.items():
        now = tree.get(key)
        if now != before:
            changes[key] = (before, now)
    return changes


def _disputed(core: Core, bases: Sequence[CommitRecord]) -> set[Key]:
    """Criss-cross: names that the best merge bases disagree about have no base that could be trusted alone."""
    disputed: set[Key] = set()
    for other in bases[1:]:
        disputed |= set(tree_diff(core.graph.tree(bases[0]), core.graph.tree(other)))
    return disputed


def _criss_cross(disputed: set[Key], ours: Tree, theirs: Tree, known: Sequence[Conflict]) -> list[Conflict]:
    named = {conflict.entry for conflict in known}
    found = []
    for key in sorted(disputed, key=key_name):
        if ours.get(key) != theirs.get(key) and key_name(key) not in named:
            what = "table" if isinstance(key, Identifier) else "namespace"
            message = (
                f"{what} {key_name(key)} was changed on both branches between two crossing merges: "
                "merge the branches in the other direction first, or drop one side's change"
            )
            found.append(Conflict(key_name(key), "criss-cross", message))
    return found


__all__ = ["create_ref", "create_repo", "diff", "drop_ref", "log", "merge", "refs", "repos"]
