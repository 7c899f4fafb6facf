"""The numbers that a table's serial and identity columns take.

Counted per table entry and field id, so that a rename keeps them and all branches share them: rows that were numbered
on two branches can be merged. As in PostgreSQL a number is handed out once and never taken back: each call is a store
transaction of its own, whatever becomes of the caller's. The counter says how many were taken; what they mean (start,
increment, cycle) is the table's own property.
"""

from __future__ import annotations

from icefield.catalog.places import Place
from icefield.model.entries import EntryKind
from icefield.model.errors import BadRequest, NoSuchTable, ReadOnly
from icefield.model.names import Identifier
from icefield.store.kinds import INT64_MAX
from icefield.store.records import SequenceRecord

MAX_COUNT = 1 << 31
MAX_FIELD_ID = (1 << 31) - 1


def take_numbers(place: Place, table: Identifier, field_id: int, count: int, *, at_least: int = 0) -> int:
    """The first of ``count`` numbers, none below ``at_least``, that are the caller's for ever.

    The field need not be in the table's schema yet: a column that is added with values for the rows there are needs its
    numbers first.
    """
    _check("field-id", field_id, 1, MAX_FIELD_ID)
    _check("count", count, 1, MAX_COUNT)
    _check("at-least", at_least, 0, INT64_MAX)
    entry = place.view.get(table)
    if entry is None or entry.kind is not EntryKind.TABLE:
        raise NoSuchTable(f"Table does not exist: {table}")
    if place.scope is None:
        raise ReadOnly(f"{place.name} is a {place.kind}: numbers are for rows to be written; check out a branch")
    with place.core.store.write() as writer:
        known = writer.get(SequenceRecord, entry.id, field_id)
        first = max(known.next if known is not None else 0, at_least)
        if first > INT64_MAX - count:
            raise BadRequest(
                f"count: the sequence of field {field_id} of table {table} has no {count} numbers left", field="count"
            )
        writer.put(SequenceRecord(entry.id, field_id, first + count))
    return first


def _check(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise BadRequest(f"{field} must lie between {low} and {high}, not {value}", field=field)
