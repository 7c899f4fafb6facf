"""The list of earlier metadata files that a metadata file carries."""

from __future__ import annotations

from icefield.iceberg.properties import previous_versions_max
from icefield.iceberg.shapes import Json


def with_metadata_log(new: Json, previous_location: str | None, previous: Json | None) -> Json:
    """``new`` with the file it follows in its log, trimmed to ``write.metadata.previous-versions-max`` entries.

    Without a previous file (the table is new) the log is empty. Trimming forgets names only, never files.
    """
    if previous_location is None or previous is None:
        return {**new, "metadata-log": []}
    keep = previous_versions_max(new.get("properties") or {})
    entry = {"timestamp-ms": previous["last-updated-ms"], "metadata-file": previous_location}
    return {**new, "metadata-log": [*(previous.get("metadata-log") or ()), entry][-keep:]}
