"""The value of a default: evaluated by the brain, as it would be stored in the lake, in Iceberg's JSON."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from icefield.pgwire.brain_link import BrainLink
from icefield.pgwire.errors import PgError
from icefield.sql import rows
from icefield.sql.ddl.remembered import quote
from icefield.sql.ddl.schema import json_value
from icefield.sql.shadows import Column

_SAVE = "SAVEPOINT icefield_value; SET LOCAL search_path = pg_catalog, pg_temp"
_UNDO = "ROLLBACK TO SAVEPOINT icefield_value; RELEASE SAVEPOINT icefield_value"


async def is_constant(link: BrainLink, expression: str) -> bool:
    """Built from immutable functions only, as PostgreSQL asks of an index's predicate."""
    await link.query(_SAVE)
    try:
        await link.query(
            "CREATE TEMP TABLE icefield_value (a pg_catalog.int4);"
            f" CREATE INDEX ON pg_temp.icefield_value (a) WHERE ({expression}) IS NULL"
        )
    except PgError as error:
        if error.fatal:
            raise
        return False
    finally:
        if not link.closed:
            await link.query(_UNDO)
    return True


async def stored_value(link: BrainLink, column: Column, expression: str, table: str) -> Any:
    """What a row that takes the default gets, as Python has what is stored. Raises PgError for what cannot be."""
    alone = replace(column, required=False)
    source = "pg_temp.icefield_value"
    await link.query(
        f"{_SAVE}; SET LOCAL extra_float_digits = 1;"
        f" CREATE TEMP TABLE icefield_value ({quote(column.name)} {column.type.sql} DEFAULT ({expression}));"
        " INSERT INTO pg_temp.icefield_value DEFAULT VALUES"
    )
    check = rows.check_query([alone], source)
    if check is not None:
        answer = (await link.query(check)).rows[0]
        for one, bad in zip(rows.checked([alone]), answer, strict=True):
            if bad == "t":
                raise rows.refuse(one, table)
    data = b"".join([part async for part in link.copy_out(rows.export_query([alone], source))])
    await link.query(_UNDO)
    return (await asyncio.to_thread(rows.import_csv, data, [alone])).column(0)[0].as_py()


async def write_default(link: BrainLink, column: Column, expression: str, table: str) -> Any:
    """For engines that know defaults: the JSON of a constant, None for anything else."""
    if not await is_constant(link, expression):
        return None
    await link.query("SAVEPOINT icefield_constant")
    try:
        value = json_value(await stored_value(link, column, expression, table))
    except PgError as error:
        if error.fatal:
            raise
        value = None  # PostgreSQL says so when a row takes it
    await link.query("ROLLBACK TO SAVEPOINT icefield_constant; RELEASE SAVEPOINT icefield_constant")
    return value
