"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "repos",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("default_branch", TEXT, nullable=False),
        sa.Column("created_ms", INTEGER, nullable=False),
        sa.Column("properties", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "refs",
        sa.Column("repo", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("head", INTEGER, nullable=False),
        sa.Column("id", TEXT, nullable=False),
        sa.Column("created_ms", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("repo", "name"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "ref_log",
        sa.Column("seq", INTEGER, nullable=False),
        sa.Column("repo", TEXT, nullable=False),
        sa.Column("ref", TEXT, nullable=False),
        sa.Column("head", INTEGER, nullable=False),
        sa.Column("time_ms", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("ix_ref_log_repo_ref_seq", "ref_log", ["repo", "ref", "seq"])
    op.create_table(
        "commits",
        sa.Column("seq", INTEGER, nullable=False),
        sa.Column("repo", TEXT, nullable=False),
        sa.Column("id", TEXT, nullable=False),
        sa.Column("parent", INTEGER, nullable=True),
        sa.Column("merged", INTEGER, nullable=True),
        sa.Column("generation", INTEGER, nullable=False),
        sa.Column("time_ms", INTEGER, nullable=False),
        sa.Column("principal", TEXT, nullable=False),
        sa.Column("message", TEXT, nullable=False),
        sa.Column("root", INTEGER, nullable=True),
        sa.Column("details", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("ix_commits_repo_id", "commits", ["repo", "id"])
    op.create_table(
        "segments",
        sa.Column("id", INTEGER, nullable=False),
        sa.Column("nodes", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "ranges",
        sa.Column("entry", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("ref", TEXT, nullable=False),
        sa.Column("low", INTEGER, nullable=False),
        sa.Column("high", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("entry", "kind", "ref"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "range_tops",
        sa.Column("entry", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("top", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("entry", "kind"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "landed",
        sa.Column("entry", TEXT, nullable=False),
        sa.Column("ref", TEXT, nullable=False),
        sa.Column("snapshot_id", INTEGER, nullable=False),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("commit", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("entry", "ref", "snapshot_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "outcomes",
        sa.Column("key", TEXT, nullable=False),
        sa.Column("outcome", TEXT, nullable=False),
        sa.Column("time_ms", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "sessions",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("repo", TEXT, nullable=False),
        sa.Column("token_hash", TEXT, nullable=False),
        sa.Column("principal", TEXT, nullable=False),
        sa.Column("ref", TEXT, nullable=False),
        sa.Column("view", INTEGER, nullable=False),
        sa.Column("epoch", INTEGER, nullable=False),
        sa.Column("transaction", TEXT, nullable=True),
        sa.Column("statement", INTEGER, nullable=False),
        sa.Column("in_flight", TEXT, nullable=False),
        sa.Column("lease_ms", INTEGER, nullable=False),
        sa.Column("expires_ms", INTEGER, nullable=False),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_sessions_closed_expires_ms", "sessions", ["closed", "expires_ms"])
    op.create_table(
        "transactions",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("repo", TEXT, nullable=False),
        sa.Column("session", TEXT, nullable=False),
        sa.Column("ref", TEXT, nullable=False),
        sa.Column("base", INTEGER, nullable=False),
        sa.Column("isolation", TEXT, nullable=False),
        sa.Column("message", TEXT, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("version", INTEGER, nullable=False),
        sa.Column("started_ms", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_transactions_session", "transactions", ["session"])
    op.create_index("ix_transactions_state", "transactions", ["state"])
    op.create_table(
        "staged",
        sa.Column("transaction", TEXT, nullable=False),
        sa.Column("position", INTEGER, nullable=False),
        sa.Column("change", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("transaction", "position"),
    )
    op.create_table(
        "savepoints",
        sa.Column("transaction", TEXT, nullable=False),
        sa.Column("depth", INTEGER, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("position", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("transaction", "depth"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "deletions",
        sa.Column("location", TEXT, nullable=False),
        sa.Column("reason", TEXT, nullable=False),
        sa.Column("enqueued_ms", INTEGER, nullable=False),
        sa.Column("not_before_ms", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("location"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_deletions_not_before_ms", "deletions", ["not_before_ms"])
    op.create_table(
        "settings",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("value", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "sequences",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("value", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sqlite_with_rowid=False,
    )
