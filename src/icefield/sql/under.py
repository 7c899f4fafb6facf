"""Rows under shadows for the time of one statement: put there, kept account of, taken away again.

``begin`` starts a round, ``put`` fills one shadow: for reading, or as a target that may be changed (``changes.py``). A
table may hold rows that violate its own constraints, because another engine, which knows nothing of them, wrote them:
then the constraint is left out for the fill (``Loosened``: the round begins again), and new rows are checked all the
same.
"""

from __future__ import annotations

from collections.abc import Iterable

from icefield.pgwire.errors import PgError
from icefield.sql import changes, rows
from icefield.sql.changes import Target
from icefield.sql.fill import TableRows, too_many_rows
from icefield.sql.origin import Origin
from icefield.sql.route import Route
from icefield.sql.shadows import Key, Shadow
from icefield.sql.standing import Standing

DEFAULT_MAX_ROWS = 5_000_000
_CHECK, _UNIQUE = "23514", "23505"


class Loosened(Exception):
    """A constraint stood in the way of the table's own rows. It is known now: fill again."""


class Fills:
    def __init__(self, standing: Standing, table_rows: TableRows) -> None:
        self._at = standing
        self._rows = table_rows
        self._loose: dict[int, dict[str, str]] = {}
        """By shadow: constraints that its rows violate, with their definitions."""
        self._read: dict[int, Shadow] = {}
        self._targets: dict[int, Target] = {}
        self._xids: dict[int, str | None] = {}
        self._limit = self._left = DEFAULT_MAX_ROWS
        self.route = Route(False)

    async def begin(self, max_rows: str | None, explain_route: str | None) -> None:
        self._limit = self._left = _max_rows(max_rows)
        self._read, self._targets, self._xids = {}, {}, {}
        self.route = Route(explain_route in ("on", "true", "yes", "1"))

    @property
    def oids(self) -> set[int]:
        return self._read.keys() | self._targets.keys()

    def targets(self) -> Iterable[Target]:
        return self._targets.values()

    async def put(self, key: Key, *, change: bool, keeps_constraints: bool = False) -> None:
        """Raises Loosened, and PgError for what cannot be put there."""
        at = self._at
        async with at.statement():
            shadow = await at.versioned(at.shadows.tables[key])
            if not keeps_constraints:
                await self._loosen(shadow)
            if change:
                await self._make_fresh(shadow)
            origin = Origin() if change else None
            count = await self._copy(shadow, origin, keeps_constraints=keeps_constraints)
        self._left -= count
        self.route.fetched(shadow, count, len(origin.source.files) if origin and origin.source else None)
        if origin is None:
            at.filled(key, count)
            self._read[shadow.oid] = shadow
            return
        target = Target(shadow, origin, count)
        self._targets[shadow.oid] = target
        if not keeps_constraints:
            await self._tighten(shadow)
            await changes.prepare(at.link, target)

    async def will_append(self, shadow: Shadow) -> None:
        """After the fills, before the statement: by what its rows will be told from those of a fill."""
        if shadow.oid in self._read:
            one = await self._at.link.query(f"SELECT xmin::pg_catalog.text FROM ONLY {shadow.sql_name} LIMIT 1")
            self._xids[shadow.oid] = one.scalar()

    def appended(self, shadow: Shadow) -> Target:
        """What a plain INSERT left under a shadow, whether that was filled for reading or not."""
        return Target(shadow, Origin(), xid=self._xids.get(shadow.oid))

    async def empty(self, also: Shadow | None) -> None:
        """Take the rows away without undoing anything: what must stay is in the same transaction."""
        shadows = {**self._read, **{oid: target.shadow for oid, target in self._targets.items()}}
        if also is not None:
            shadows[also.oid] = also
        steps = ["SET LOCAL icefield.ddl = 'on'"]
        for oid, shadow in shadows.items():
            if oid in self._targets:
                steps.append(f"DROP TRIGGER IF EXISTS {changes.TRACE} ON {shadow.sql_name}")
            steps.append(f"DELETE FROM ONLY {shadow.sql_name}")
            for name, definition in self._loose.get(oid, {}).items():
                constraint = rows.quote_ident(name)
                steps.append(f"ALTER TABLE {shadow.sql_name} DROP CONSTRAINT IF EXISTS {constraint}")
                steps.append(f"ALTER TABLE {shadow.sql_name} ADD CONSTRAINT {constraint} {definition}")
        steps.append("SET LOCAL icefield.ddl = 'off'")
        await self._at.link.query("; ".join(steps))

    # one shadow -----------------------------------------------------------------------------------------------------

    async def _make_fresh(self, shadow: Shadow) -> None:
        """A new file, in which COPY puts row after row."""
        try:
            await self._at.link.query(f"TRUNCATE ONLY {shadow.sql_name}")
        except PgError as error:
            if error.sqlstate == "55006":
                raise PgError(
                    "0A000",
                    f'a lake table cannot be changed while a cursor over it is open ("{shadow}")',
                    hint="CLOSE the cursor first, or read its rows into a temporary table.",
                ) from error
            raise

    async def _copy(self, shadow: Shadow, origin: Origin | None, *, keeps_constraints: bool) -> int:
        count = 0

        def add(number: int) -> None:
            nonlocal count
            count += number

        columns = ", ".join(rows.quote_ident(c.name) for c in shadow.columns)
        chunks = self._rows.chunks(shadow, self._left, add, origin)
        try:
            await self._at.link.copy_in(
                f"COPY {shadow.sql_name} ({columns}) FROM STDIN (FORMAT binary, ENCODING 'UTF8')", chunks
            )
        except PgError as error:
            if error.sqlstate == "54000":
                raise too_many_rows(self._limit) from error
            if error.sqlstate in (_CHECK, _UNIQUE) and error.fields.get("n") and not keeps_constraints:
                await self._note(shadow, error, change=origin is not None)
                raise Loosened from error
            if error.sqlstate == "23502" or (error.sqlstate[:2] == "22" and "R" in error.fields):
                raise PgError(
                    "58030",
                    f'table "{shadow}" holds what PostgreSQL cannot: {error.message}',
                    detail=error.detail,
                    hint="It was written by another engine, which can read it.",
                ) from error
            raise
        finally:
            await chunks.aclose()  # a COPY that failed has not read it to its end: the engine must be freed
        return count

    # constraints that do not hold -----------------------------------------------------------------------------------

    async def _note(self, shadow: Shadow, error: PgError, *, change: bool) -> None:
        name = error.fields["n"]
        if change and error.sqlstate == _UNIQUE:
            raise PgError(
                "58030",
                f'table "{shadow}" holds rows that violate its key "{name}", so that its rows cannot be changed here',
                detail=error.detail,
                hint="Another engine wrote them, which knows nothing of the key. Remove them there, or drop the key.",
            ) from error
        # The link is in a failed transaction; the definition is asked for when the round begins again.
        self._loose.setdefault(shadow.oid, {}).setdefault(name, "")

    async def _loosen(self, shadow: Shadow) -> None:
        for name, definition in self._loose.get(shadow.oid, {}).items():
            if not definition:
                found = await self._at.link.execute(
                    "SELECT pg_catalog.pg_get_constraintdef(oid) FROM pg_catalog.pg_constraint"
                    f" WHERE conrelid OPERATOR(pg_catalog.=) {shadow.oid}"
                    " AND conname OPERATOR(pg_catalog.=) $1::pg_catalog.name",
                    [name],
                )
                self._loose[shadow.oid][name] = found.scalar() or ""
            await self._at.link.query(
                "SET LOCAL icefield.ddl = 'on';"
                f"ALTER TABLE {shadow.sql_name} DROP CONSTRAINT {rows.quote_ident(name)};"
                "SET LOCAL icefield.ddl = 'off'"
            )

    async def _tighten(self, shadow: Shadow) -> None:
        """Rows that the statement writes are checked, as PostgreSQL does for a constraint that is NOT VALID."""
        for name, definition in self._loose.get(shadow.oid, {}).items():
            if definition.startswith("CHECK"):
                await self._at.link.query(
                    "SET LOCAL icefield.ddl = 'on';"
                    f"ALTER TABLE {shadow.sql_name} ADD CONSTRAINT {rows.quote_ident(name)} {definition} NOT VALID;"
                    "SET LOCAL icefield.ddl = 'off'"
                )


def _max_rows(setting: str | None) -> int:
    if not setting:
        return DEFAULT_MAX_ROWS
    try:
        limit = int(setting)
    except ValueError:
        limit = 0
    if limit < 1:
        raise PgError(
            "22023",
            f'invalid value for parameter "icefield.max_fetched_rows": "{setting}"',
            hint="It must be a whole number above 0.",
        )
    return limit
