"""The shape of the lake at a place: every table with its schema. The SQL door keeps its shadows by it.

The fingerprint covers names and schemas only, so it stays the same while rows come and go.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from icefield.catalog.places import Place
from icefield.model.entries import EntryKind
from icefield.model.names import Identifier


def shape(place: Place, unless: str | None) -> dict[str, Any]:
    namespaces: list[list[str]] = []
    tables: list[dict[str, Any]] = []
    for key, entry in place.view.items():
        if entry.kind is EntryKind.NAMESPACE:
            assert isinstance(key, tuple)
            namespaces.append(list(key))
        elif entry.kind is EntryKind.TABLE and entry.metadata_location is not None:
            assert isinstance(key, Identifier)
            metadata = place.core.metadata.load(entry.metadata_location)
            tables.append(
                {
                    "namespace": list(key.namespace),
                    "name": key.name,
                    "id": entry.id,
                    "kind": entry.kind.value,
                    "schema": _current(metadata, "schemas", "schema-id", "current-schema-id"),
                    "partition-spec": _current(metadata, "partition-specs", "spec-id", "default-spec-id"),
                    "format-version": metadata["format-version"],
                    "properties": metadata.get("properties") or {},
                    "snapshot-id": metadata.get("current-snapshot-id"),
                    "metadata-location": entry.metadata_location,
                }
            )
    namespaces.sort()
    tables.sort(key=lambda t: (t["namespace"], t["name"]))
    covered = [namespaces, [[t["namespace"], t["name"], t["id"], t["schema"], t["partition-spec"]] for t in tables]]
    fingerprint = hashlib.sha256(msgspec.json.encode(covered, order="deterministic")).hexdigest()[:32]
    if fingerprint == unless:
        return {"unchanged": True, "commit": place.commit.id}
    return {"commit": place.commit.id, "fingerprint": fingerprint, "namespaces": namespaces, "tables": tables}


def _current(metadata: dict[str, Any], many: str, key: str, current: str) -> dict[str, Any] | None:
    wanted = metadata.get(current)
    return next((each for each in metadata.get(many) or () if each.get(key) == wanted), None)
