"""The ids a table has used up: true maxima, raising what is served above them, and which ids a change brought.

Files store the true maxima. What a client is served may be raised into a range of its own (see the design: ids), and a
client's new ids are judged against the position at landing.
"""

from __future__ import annotations

from icefield.iceberg.schemas import field_ids, highest_field_id
from icefield.iceberg.shapes import Json
from icefield.iceberg.snapshots import ROW_LINEAGE_VERSION
from icefield.iceberg.specs import highest_partition_field_id, partition_field_ids


def counters(meta: Json) -> dict[str, int]:
    """The highest of each kind, by the file's counters and by what is really in it (dropped columns count)."""
    rows = meta.get("snapshots") or ()
    used_rows = max((row["first-row-id"] + (row.get("added-rows") or 0) for row in rows if _has_rows(row)), default=0)
    return {
        "last-column-id": max(meta["last-column-id"], max(map(highest_field_id, meta["schemas"]), default=0)),
        "last-partition-id": max(meta["last-partition-id"], highest_partition_field_id(meta["partition-specs"])),
        "next-row-id": max(meta.get("next-row-id") or 0, used_rows),
        "last-sequence-number": max(
            meta["last-sequence-number"], max((row.get("sequence-number") or 0 for row in rows), default=0)
        ),
    }


def _has_rows(snapshot: Json) -> bool:
    return snapshot.get("first-row-id") is not None


def raise_counters(
    meta: Json,
    *,
    last_column_id: int | None = None,
    last_partition_id: int | None = None,
    next_row_id: int | None = None,
) -> Json:
    """A copy to be served: counters at least as high as given, never lower than they are.

    ``next_row_id`` is ignored where the format has no row ids.
    """
    raised = dict(meta)
    if last_column_id is not None:
        raised["last-column-id"] = max(meta["last-column-id"], last_column_id)
    if last_partition_id is not None:
        raised["last-partition-id"] = max(meta["last-partition-id"], last_partition_id)
    if next_row_id is not None and meta["format-version"] >= ROW_LINEAGE_VERSION:
        raised["next-row-id"] = max(meta["next-row-id"], next_row_id)
    return raised


def new_field_ids(base: Json, new: Json) -> list[int]:
    """Field ids in ``new``'s schemas that none of ``base``'s has, sorted.

    One that is not above base's ``last-column-id`` is suspect: it was another column's, or is another range's.
    """
    known = {number for schema in base["schemas"] for number in field_ids(schema)}
    return sorted({number for schema in new["schemas"] for number in field_ids(schema)} - known)


def new_partition_field_ids(base: Json, new: Json) -> list[int]:
    """Partition field ids in ``new``'s specs that none of ``base``'s has, sorted; to be judged as ``new_field_ids``."""
    known = {number for spec in base["partition-specs"] for number in partition_field_ids(spec)}
    return sorted({number for spec in new["partition-specs"] for number in partition_field_ids(spec)} - known)
