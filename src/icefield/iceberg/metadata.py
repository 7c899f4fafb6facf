"""Table metadata as plain JSON dicts: the one door to the metadata engine.

Everything is pure: no function changes what it is given, and what a change leaves alone is shared with the base.
Metadata that comes from outside goes through ``check_metadata`` first; requests need no check before.
"""

from __future__ import annotations

from icefield.iceberg.checks import check_metadata
from icefield.iceberg.counters import counters, new_field_ids, new_partition_field_ids, raise_counters
from icefield.iceberg.create import new_table, validate_create
from icefield.iceberg.metadata_log import with_metadata_log
from icefield.iceberg.requirements import FailedRequirement, failed_requirements
from icefield.iceberg.schemas import highest_field_id
from icefield.iceberg.snapshots import current_snapshot_id, snapshot_refs, snapshots_by_id
from icefield.iceberg.stale import StaleSnapshot
from icefield.iceberg.updates import apply_updates

__all__ = [
    "FailedRequirement",
    "StaleSnapshot",
    "apply_updates",
    "check_metadata",
    "counters",
    "current_snapshot_id",
    "failed_requirements",
    "highest_field_id",
    "new_field_ids",
    "new_partition_field_ids",
    "new_table",
    "raise_counters",
    "snapshot_refs",
    "snapshots_by_id",
    "validate_create",
    "with_metadata_log",
]
