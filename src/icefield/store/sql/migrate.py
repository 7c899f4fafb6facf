"""Brings a database's schema up to date, or refuses one that is newer than this program.

All missing migrations run in one transaction: a crash in the middle leaves the old schema. ``migrations/`` is an
ordinary Alembic folder.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from icefield.model.errors import NotSupported


def migrate(engine: sa.Engine, name: str) -> None:
    """``engine``'s transactions must keep other writers out; ``name`` is what an error calls the database."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    scripts = ScriptDirectory.from_config(config)
    with engine.begin() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
        newest = scripts.get_current_head()
        known = {script.revision for script in scripts.walk_revisions()}
        if current == newest:
            return
        if current is not None and current not in known:
            raise NotSupported(
                f"{name} was written by a newer Icefield (schema {current}; this one knows up to {newest}): "
                "install that version or choose another data folder"
            )
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
