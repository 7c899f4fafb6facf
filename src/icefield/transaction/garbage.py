"""Which files only a dropped part of an overlay wrote. Only what lies below the transaction's own folders is named:
a file that a client put elsewhere may be somebody else's, and is left to garbage collection.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from icefield.iceberg.manifest_list import read_list
from icefield.iceberg.manifests import read_manifest
from icefield.model.errors import IcefieldError
from icefield.transaction.changes import Change
from icefield.transaction.core import Core
from icefield.transaction.served import transaction_folder


def files_written(core: Core, transaction: str, dropped: Sequence[Change], kept: Sequence[Change]) -> list[str]:
    """Locations to enqueue: manifest lists, manifests and data files that the dropped changes brought."""
    own = f"/{transaction_folder(transaction)}/"
    reached = set(_files_of(core, kept, own, set()))
    return sorted(set(_files_of(core, dropped, own, set())) - reached)


def _files_of(core: Core, changes: Iterable[Change], own: str, read: set[str]) -> Iterable[str]:
    """``read``: lists and manifests that were opened already. Every change names nearly all that the one before it
    names, so without it a hundred inserts would be read a million times over."""
    for change in changes:
        for location in change.superseded:
            if own in location:
                yield location
        for entry in change.entries.values():
            if entry is not None and entry.metadata_location is not None and own in entry.metadata_location:
                yield entry.metadata_location
                yield from _files_of_table(core, entry.metadata_location, own, read)


def _files_of_table(core: Core, metadata_location: str, own: str, read: set[str]) -> Iterable[str]:
    try:
        metadata = core.metadata.load(metadata_location)
        for snapshot in metadata.get("snapshots") or ():
            manifest_list = snapshot.get("manifest-list") or ""
            if own not in manifest_list or manifest_list in read:
                continue
            read.add(manifest_list)
            yield manifest_list
            for line in read_list(manifest_list, core.metadata.read_manifest(manifest_list)).manifests:
                if own not in line.path or line.path in read:
                    continue
                read.add(line.path)
                yield line.path
                for entry in read_manifest(line.path, core.metadata.read_manifest(line.path)).entries:
                    if own in entry.path:
                        yield entry.path
    except IcefieldError:
        # A file that is gone or cannot be read names nothing; what it held is found by garbage collection.
        return
