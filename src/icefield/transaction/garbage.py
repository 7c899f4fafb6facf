"""Which files only a dropped part of an overlay wrote. Only what lies below the transaction's own folders is named:
a file that a client put elsewhere may be somebody else's, and is left to garbage collection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from icefield.iceberg.manifest_list import read_list
from icefield.iceberg.manifests import read_manifest
from icefield.model.errors import IcefieldError
from icefield.transaction.changes import Change
from icefield.transaction.core import Core
from icefield.transaction.served import transaction_folder

Landed = Callable[[str, int], bool]
"""(entry, snapshot id) -> has a branch got it? The same commit may have been posted there as well."""


@dataclass(slots=True)
class Written:
    """The files of one transaction. What was read of them once is not read again: ``read_ahead`` does the reading while
    nobody waits, so that ``dropped`` costs next to nothing inside a store transaction."""

    core: Core
    transaction: str
    _named: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Manifest list or manifest -> those it names that are the transaction's own."""
    _snapshots: dict[str, tuple[tuple[int, str], ...]] = field(default_factory=dict)
    """Metadata file -> its snapshots with a manifest list of the transaction's own."""

    def of(self, transaction: str) -> Written:
        """What was read ahead, if it was of this transaction: another one may have begun since."""
        return self if self.transaction == transaction else Written(self.core, transaction)

    def read_ahead(self, changes: Iterable[Change]) -> None:
        self._files(changes, lambda entry, snapshot: False, set())

    def dropped(self, dropped: Sequence[Change], kept: Sequence[Change], landed: Landed) -> list[str]:
        """Locations to enqueue: manifest lists, manifests and data files that the dropped changes brought."""
        reached: set[str] = set()
        stays = self._files(kept, landed, reached)
        return sorted(self._files(dropped, landed, reached) - stays - reached)

    def _files(self, changes: Iterable[Change], landed: Landed, reached: set[str]) -> set[str]:
        """``reached`` takes what snapshots name that have landed: it is not the transaction's any more."""
        found: set[str] = set()
        for change in changes:
            posted = change.words
            if posted is not None and any(landed(posted.entry, int(snapshot)) for snapshot in posted.digests):
                for location in change.superseded:
                    self._walk(location, reached)
            found.update(location for location in change.superseded if self._own(location))
            for entry in change.entries.values():
                if entry is None or entry.metadata_location is None or not self._own(entry.metadata_location):
                    continue
                found.add(entry.metadata_location)
                for snapshot, manifest_list in self._snapshots_of(entry.metadata_location):
                    self._walk(manifest_list, reached if landed(entry.id, snapshot) else found)
        return found

    def _walk(self, manifest_list: str, into: set[str]) -> None:
        """Every list names nearly all that the one before it names: what is there already is not walked again."""
        if manifest_list in into or not self._own(manifest_list):
            return
        into.add(manifest_list)
        for manifest in self._read(manifest_list, self._manifests):
            if manifest not in into:
                into.add(manifest)
                into.update(self._read(manifest, self._data_files))

    def _own(self, location: str) -> bool:
        return f"/{transaction_folder(self.transaction)}/" in location

    def _snapshots_of(self, metadata_location: str) -> tuple[tuple[int, str], ...]:
        found = self._snapshots.get(metadata_location)
        if found is None:
            try:
                metadata = self.core.metadata.load(metadata_location)
            except IcefieldError:
                metadata = {}
            lists = ((s["snapshot-id"], s.get("manifest-list") or "") for s in metadata.get("snapshots") or ())
            found = self._snapshots[metadata_location] = tuple(each for each in lists if self._own(each[1]))
        return found

    def _read(self, location: str, names: Callable[[str], Iterable[str]]) -> tuple[str, ...]:
        found = self._named.get(location)
        if found is None:
            try:
                found = tuple(name for name in names(location) if self._own(name))
            except IcefieldError:
                # A file that is gone or cannot be read names nothing; what it held is found by garbage collection.
                found = ()
            self._named[location] = found
        return found

    def _manifests(self, location: str) -> Iterable[str]:
        return [line.path for line in read_list(location, self.core.metadata.read_manifest(location)).manifests]

    def _data_files(self, location: str) -> Iterable[str]:
        return [entry.path for entry in read_manifest(location, self.core.metadata.read_manifest(location)).entries]
