"""Where the sequences of columns stand."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "column_sequences",
        sa.Column("entry", TEXT, nullable=False),
        sa.Column("field", INTEGER, nullable=False),
        sa.Column("next", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("entry", "field"),
        sqlite_with_rowid=False,
    )
