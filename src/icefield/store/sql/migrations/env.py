"""Alembic's entry: runs on the connection, and inside the transaction, that ``migrate.py`` hands in."""

from __future__ import annotations

from alembic import context

from icefield.store.sql.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
)
context.run_migrations()
