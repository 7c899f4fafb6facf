"""The relational form of every record kind: one table per kind, its columns taken from the dataclass.

What stands here besides: the table's name, its indexes, and which tables are clustered by their key. A change here or
in ``store/records.py`` needs a migration (a test compares the two).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from icefield.store import records
from icefield.store.kinds import shape_of

metadata = sa.MetaData()

# Order by bytes, as Python orders str; PostgreSQL would otherwise order by language.
TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
# In SQLite only INTEGER (64 bits as well) makes a key the row's own number.
INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

_TYPES: Mapping[type, Any] = {str: TEXT, int: INTEGER, bytes: sa.LargeBinary(), bool: sa.Boolean()}


def _table(kind: type, name: str, *indexes: tuple[str, ...], clustered: bool = False) -> sa.Table:
    """``clustered``: small rows with a key of several columns or of text live in the key's own tree (SQLite)."""
    shape = shape_of(kind)
    columns: list[sa.Column[Any]] = [
        sa.Column(
            field.name,
            _TYPES[field.type],
            primary_key=field.name in shape.key,
            nullable=field.nullable,
            autoincrement=False,
        )
        for field in shape.fields
    ]
    keyed = [sa.Index(f"ix_{name}_{'_'.join(index)}", *index) for index in indexes]
    return sa.Table(name, metadata, *columns, *keyed, sqlite_with_rowid=not clustered)


TABLES: Mapping[type, sa.Table] = {
    records.RepoRecord: _table(records.RepoRecord, "repos", clustered=True),
    records.RefRecord: _table(records.RefRecord, "refs", clustered=True),
    records.RefLogRecord: _table(records.RefLogRecord, "ref_log", ("repo", "ref", "seq")),
    records.CommitRecord: _table(records.CommitRecord, "commits", ("repo", "id")),
    records.SegmentRecord: _table(records.SegmentRecord, "segments"),
    records.RangeRecord: _table(records.RangeRecord, "ranges", clustered=True),
    records.RangeTopRecord: _table(records.RangeTopRecord, "range_tops", clustered=True),
    records.SequenceRecord: _table(records.SequenceRecord, "column_sequences", clustered=True),
    records.LandedRecord: _table(records.LandedRecord, "landed", clustered=True),
    records.OutcomeRecord: _table(records.OutcomeRecord, "outcomes"),
    records.SessionRecord: _table(records.SessionRecord, "sessions", ("closed", "expires_ms")),
    records.TransactionRecord: _table(records.TransactionRecord, "transactions", ("session",), ("state",)),
    records.StagedRecord: _table(records.StagedRecord, "staged"),
    records.SavepointRecord: _table(records.SavepointRecord, "savepoints", clustered=True),
    records.DeletionRecord: _table(records.DeletionRecord, "deletions", ("not_before_ms",), clustered=True),
    records.SettingRecord: _table(records.SettingRecord, "settings", clustered=True),
}

SEQUENCES = sa.Table(
    "sequences",
    metadata,
    sa.Column("name", TEXT, primary_key=True, nullable=False),
    sa.Column("value", INTEGER, nullable=False),
    sqlite_with_rowid=False,
)
