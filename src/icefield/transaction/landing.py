"""Landing: a verb's steps become one commit on a branch, in one move of its head, or nothing happens at all.

The loop: read the head, run the verb on it, write its files and sync them (nothing is visible yet), then one store
transaction moves the head by compare-and-set and records all that goes with it. Losing that race to somebody else's
commit is nobody's conflict: the verb runs again on the newer head and decides there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from icefield.graph.graph import HeadMoved
from icefield.model.errors import IcefieldError, ReadOnly, Unavailable
from icefield.store.port import StoreReader, StoreWriter
from icefield.store.records import (
    CommitRecord,
    DeletionRecord,
    LandedRecord,
    RepoRecord,
    StagedRecord,
    TransactionRecord,
)
from icefield.transaction import ranges
from icefield.transaction.changes import entries_after, key_name
from icefield.transaction.core import Core
from icefield.transaction.metadata_files import encode
from icefield.transaction.ranges import Scope
from icefield.transaction.served import Overlaid
from icefield.transaction.steps import Seen, Standing, Step, Verb

log = logging.getLogger(__name__)

ATTEMPTS = 100
"""Every attempt lost means another commit landed, so the line moves; this only stops a loop gone wrong."""


@dataclass(frozen=True, slots=True)
class Landed:
    commit: CommitRecord
    steps: Sequence[Step]


Also = Callable[[StoreWriter, CommitRecord], None]
Guard = Callable[[StoreReader], None]

ANY_REF = "*"
"""In a LandedRecord: the snapshot has landed on some ref. No ref's id is spelt so."""


def land(
    core: Core,
    repo: str,
    branch: str,
    verb: Verb,
    *,
    overlaid: Overlaid,
    message: str,
    principal: str,
    details: dict[str, Any] | None = None,
    strict: bool = False,
    seen: Seen | None = None,
    merged: CommitRecord | None = None,
    also: Also | None = None,
    guard: Guard | None = None,
    ends: str | None = None,
) -> Landed:
    """``also`` belongs to what lands, and is done even where the verb has nothing to do. ``guard`` may still refuse.
    ``ends``: the transaction that lands, and is over then."""
    with core.tickets.hold(repo, branch, ends):
        for _ in range(ATTEMPTS):
            with core.store.read() as reader:
                resolved = core.graph.resolve(reader, repo, branch)
                if resolved.kind != "branch" or resolved.ref_record is None:
                    raise ReadOnly(f"{branch} is a {resolved.kind}: it does not change; write to a branch")
                ref = resolved.ref_record
                tree = core.graph.tree(resolved.commit)
                standing = Standing(
                    view=tree,
                    reader=reader,
                    repo=repo,
                    scope=Scope(ref.id),
                    overlaid=overlaid,
                    posted=posted(reader, ref.id),
                    taken=taken(reader),
                    strict=strict,
                    seen=seen,
                )
                steps = [step for step in verb(standing) if not step.answered]
            if not steps and also is None:
                return Landed(resolved.commit, ())
            core.volume.write_new({location: content for step in steps for location, content in step.files.items()})
            edit = tree.edit(entries_after(step.change for step in steps)) if steps else None
            try:
                with abandoned_if_refused(core, steps), core.store.write() as writer:
                    if guard is not None:
                        guard(writer)
                    commit = resolved.commit
                    if edit is not None or merged is not None:
                        commit, _ = core.graph.publish(
                            writer,
                            ref,
                            edit,
                            message=message,
                            principal=principal,
                            details={**(details or {}), "entries": summary(steps)},
                            merged=merged,
                        )
                    settle(core, writer, ref.id, commit, steps, ends=ends)
                    if also is not None:
                        also(writer, commit)
            except HeadMoved:
                _abandon(core, steps, "attempt that lost the race for the head")
                continue
            _remember(core, steps)
            return Landed(commit, steps)
    raise Unavailable(f"branch {branch} of repo {repo} moves too fast: nothing was changed; ask again")


def settle(
    core: Core,
    writer: StoreWriter,
    ref_id: str,
    commit: CommitRecord,
    steps: Sequence[Step],
    *,
    ends: str | None = None,
) -> None:
    """What must be recorded in the very store transaction that moves the head."""
    for step in steps:
        words = step.change.words
        if words is not None:
            for snapshot_id, digest in words.digests.items():
                for where in (ref_id, ANY_REF):
                    writer.put(LandedRecord(words.entry, where, int(snapshot_id), digest, commit.seq))
        for entry, metadata in step.metadata.items():
            ranges.renew(writer, entry, Scope(ref_id), metadata)
        enqueue(core, writer, _nobodys(writer, step.change.superseded, ends), "replaced by a rebase")


def _nobodys(reader: StoreReader, locations: Sequence[str], ends: str | None) -> list[str]:
    """Those that no other open transaction's overlay names: a client may have posted one commit there as well."""
    if not locations:
        return []
    open_ = [record.id for record in reader.find(TransactionRecord, state="open") if record.id != ends]
    staged = [each.change for id_ in open_ for each in reader.find(StagedRecord, transaction=id_)]
    as_told = {location: msgspec.json.encode(location).decode() for location in locations}
    return [location for location in locations if not any(as_told[location] in text for text in staged)]


def enqueue(core: Core, writer: StoreWriter, locations: Sequence[str], reason: str) -> None:
    """Puts files into the deletion queue. Nothing leaves the volume before the reader grace has passed."""
    now = core.clock.now_ms()
    for location in locations:
        if writer.get(DeletionRecord, location) is None:
            writer.put(DeletionRecord(location, reason, now, now + core.reader_grace_ms))


def summary(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """The lines that ``log`` shows for a commit: one per entry, the last word wins."""
    lines: dict[str, dict[str, Any]] = {}
    for step in steps:
        for key, entry in step.change.entries.items():
            if step.change.operation == "rename" and entry is None:
                continue
            lines[key_name(key)] = {"name": key_name(key), "change": step.change.operation}
    return list(lines.values())


def refuses_client_gc(repo: RepoRecord) -> bool:
    return '"client-gc":"allow"' not in repo.properties.replace(" ", "")


def posted(reader: StoreReader, ref_id: str) -> Callable[[str, int], str | None]:
    def digest(entry: str, snapshot_id: int) -> str | None:
        record = reader.get(LandedRecord, entry, ref_id, snapshot_id)
        return record.digest if record is not None else None

    return digest


def taken(reader: StoreReader) -> Callable[[str, int], bool]:
    return lambda entry, snapshot_id: reader.get(LandedRecord, entry, ANY_REF, snapshot_id) is not None


def _remember(core: Core, steps: Sequence[Step]) -> None:
    for step in steps:
        for entry in step.change.entries.values():
            if entry is not None and entry.metadata_location is not None and entry.id in step.metadata:
                metadata = step.metadata[entry.id]
                content = step.files.get(entry.metadata_location)
                core.metadata.remember(
                    entry.metadata_location, metadata, len(content) if content is not None else len(encode(metadata))
                )


@contextmanager
def abandoned_if_refused(core: Core, steps: Sequence[Step]) -> Iterator[None]:
    """Around a store transaction: where it refuses, and so is undone, what was written for it is nobody's."""
    try:
        yield
    except IcefieldError:
        _abandon(core, steps, "write that was refused")
        raise


def _abandon(core: Core, steps: Sequence[Step], reason: str) -> None:
    """Files of this attempt are ours alone and no commit will ever reach them."""
    locations = [location for step in steps for location in step.files]
    if locations:
        with core.store.write() as writer:
            enqueue(core, writer, locations, reason)
