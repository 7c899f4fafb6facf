"""What a table's metadata reaches, for whoever deletes files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icefield.iceberg.manifest_list import Read, existing, read_list


def reachable_files(metadata: Mapping[str, Any], read: Read) -> set[str]:
    """The manifest lists and manifests of every snapshot in a metadata file."""
    read = existing(read)
    files: set[str] = set()
    for snapshot in metadata.get("snapshots") or ():
        location = snapshot.get("manifest-list")
        if location is None:
            files.update(snapshot.get("manifests") or ())
        elif location not in files:
            files.add(location)
            files.update(line.path for line in read_list(location, read(location)).manifests)
    return files
