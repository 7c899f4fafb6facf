"""A client's DDL run in the brain, in a savepoint that stays open until the lake has taken it; what may not pass."""

from __future__ import annotations

from collections.abc import Mapping

from icefield.pgwire import messages as m
from icefield.pgwire.brain_link import BrainLink
from icefield.pgwire.codec import encode
from icefield.pgwire.errors import PgError
from icefield.sql import types
from icefield.sql.ddl.readback import Attribute, Relation
from icefield.sql.standing import Standing

SAVEPOINT = "SAVEPOINT icefield_ddl"
ALLOW = "SET LOCAL icefield.ddl = 'on'"
AGAIN = "ROLLBACK TO SAVEPOINT icefield_ddl"
DONE = "SET LOCAL icefield.ddl = 'off'; RELEASE SAVEPOINT icefield_ddl"

Notices = list[bytes]


async def begin(at: Standing) -> None:
    await at.link.query(f"{SAVEPOINT}; {ALLOW}")


async def run(at: Standing, sql: str) -> Notices:
    """As the client's own DDL, after ``begin``."""
    if at.read_only:
        await at.link.query("SET TRANSACTION READ ONLY")
    result = await at.link.query(sql)
    return [encode(m.NoticeResponse(notice)) for notice in result.notices]


async def done(at: Standing) -> None:
    await at.link.query(DONE)


def type_of(attribute: Attribute, position: int | None = None) -> types.ColumnType:
    try:
        return types.from_postgres(attribute.type_oid, attribute.typmod, attribute.shown)
    except types.Unsupported as why:
        raise PgError("0A000", f'column "{attribute.name}": {why.reason}', hint=why.hint, position=position) from None


def refuse_what_cannot_be_kept(relation: Relation, type_at: Mapping[str, int] | None = None) -> None:
    """Raises 0A000 for what PostgreSQL can do with a table and an Iceberg table cannot remember."""
    for attribute in relation.attributes:
        at = (type_at or {}).get(attribute.name)
        for there, what, hint in (
            (attribute.generated, "GENERATED ALWAYS AS", "Compute the value in INSERT, or in a view."),
            (attribute.collated, "COLLATE", "Text is compared by code point; write COLLATE in the query."),
            (
                attribute.foreign,
                "DEFAULT with functions, types or sequences of this session",
                "Nobody else has them: use what is built in.",
            ),
        ):
            if there:
                raise PgError(
                    "0A000",
                    f'{what} is not supported in an Iceberg table (column "{attribute.name}")',
                    hint=hint,
                    position=None if at is None else at + 1,
                )
    for constraint in relation.constraints:
        if constraint.unsupported is not None:
            raise PgError(
                "0A000",
                f'{constraint.unsupported} is not supported in an Iceberg table (constraint "{constraint.name}")',
                hint="Supported are NOT NULL, CHECK, UNIQUE and PRIMARY KEY, checked at once.",
            )
    if not relation.attributes:
        raise PgError("0A000", "an Iceberg table must have at least one column")


async def exhaust_sequences(link: BrainLink, relation: Relation, known: frozenset[int] = frozenset()) -> None:
    """Those that are new stand at their end from now on: numbers come from the server (``shadows.Sequence``)."""
    steps = []
    for sequence in relation.sequences:
        if sequence.oid not in known:
            last = sequence.max if sequence.increment > 0 else sequence.min
            steps.append(f"ALTER SEQUENCE {sequence.sql_name} NO CYCLE CACHE 1")
            steps.append(f"SELECT pg_catalog.setval({sequence.oid}::pg_catalog.regclass, {last}, true)")
    if steps:
        await link.query("; ".join(steps))
