"""A statement that is a transaction of its own: it commits before its answer is told, and runs again on a conflict.

Only a conflict of *ours* is one: somebody else changed the lake meanwhile. A 40001 that the client's own code raises
comes from the brain and goes to the client.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from icefield.model.errors import CommitConflict
from icefield.pgwire.errors import PgError
from icefield.pgwire.sqlstate import to_pg_error
from icefield.sql.interrupts import Interrupts
from icefield.sql.spool import Spool
from icefield.sql.standing import Standing

SETTING = "icefield.commit_retries"
DEFAULT = 10
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0


def conflict_of(error: BaseException) -> PgError | None:
    """The error as a conflict of ours, if it is one. The brain's errors name the routine that raised them (R)."""
    if isinstance(error, CommitConflict):
        return to_pg_error(error)
    if isinstance(error, PgError) and error.sqlstate == "40001" and "R" not in error.fields:
        return error
    return None


class Retries:
    def __init__(self, standing: Standing, interrupts: Interrupts) -> None:
        self._at = standing
        self._interrupts = interrupts

    async def run(self, attempt: Callable[[], Awaitable[Spool]], first: Spool | None = None) -> Spool:
        """The answer of the run that was committed. ``first``: the answer of a run that was made already.

        ``attempt`` begins with ``standing.enter``, so that each run has a view of its own.
        """
        runs = 0
        limit: int | None = None
        while True:
            runs += 1
            spool, first = first, None
            try:
                if spool is None:
                    spool = await attempt()
                await self.leave()
                return spool
            except BaseException as error:
                if spool is not None:
                    spool.close()
                conflict = conflict_of(error)
                if conflict is None:
                    raise
                async with self._interrupts.shielded():
                    await self._at.fail()
                self._interrupts.check()
                if limit is None:
                    limit = await self._limit()
                if runs > limit:
                    raise _used_up(conflict, runs) from error
            await self._interrupts.pause(_pause(runs))

    async def leave(self) -> None:
        """Commit what is implicit. Before that a statement may be stopped, from then on it is not."""
        async with self._interrupts.shielded():
            self._interrupts.check()
            await self._at.leave()

    async def commit(self) -> bool:
        """Of the client's own transaction. False: it was failed, and is rolled back."""
        async with self._interrupts.shielded():
            self._interrupts.check()
            return await self._at.commit()

    async def _limit(self) -> int:
        answer = await self._at.link.query(f"SELECT pg_catalog.current_setting('{SETTING}', true)")
        setting = answer.scalar()
        if not setting:
            return DEFAULT
        if not setting.isascii() or not setting.isdecimal() or len(setting) > 9:
            raise PgError(
                "22023",
                f'invalid value for parameter "{SETTING}": "{setting}"',
                hint="It must be a whole number: how often a statement that met a conflict runs again.",
            )
        return int(setting)


def _pause(runs: int) -> float:
    """Short, growing, and not the same for two who met."""
    return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(runs - 1, 10)) * random.uniform(0.5, 1.5)  # noqa: S311


def _used_up(conflict: PgError, runs: int) -> PgError:
    times = f"{runs} times" if runs > 1 else "once"
    return PgError(
        "40001",
        "could not serialize access due to concurrent changes of the lake",
        detail=conflict.detail or conflict.message,
        hint=f"The statement ran {times} and was rolled back: run it again, or raise {SETTING}.",
    )
