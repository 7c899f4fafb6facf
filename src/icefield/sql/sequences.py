"""Numbers of serial and identity columns: counted by the server, handed out by the brain's own sequences.

A shadow's sequence holds a window of numbers that belong to this session alone. When it is used up, PostgreSQL says
that its maximum is reached (2200H); then the server gives more, the window moves, and the statement runs again from
where the sequence stood. So numbers are unique among all sessions and branches, and one session that works alone gets
what PostgreSQL would give it: 1, 2, 3 …
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from icefield.pgwire.errors import PgError
from icefield.sql.shadows import Sequence, Shadow
from icefield.sql.standing import Standing

EXHAUSTED = "2200H"
_FIRST, _MOST = 32, 1 << 20
_NAME = re.compile(r'^nextval: reached (?:maximum|minimum) value of sequence "(.*)" \(-?\d+\)$', re.DOTALL)


@dataclass(frozen=True, slots=True)
class _State:
    last: int
    called: bool


class SequenceWindows:
    """For one statement: remembers where sequences stood, so that it can run again from there."""

    def __init__(self, standing: Standing) -> None:
        self._at = standing
        self._before: dict[str, _State] = {}
        self._wanted: dict[str, int] = {}

    async def remember(self, shadows: Iterable[Shadow]) -> None:
        for shadow in shadows:
            for sequence in shadow.sequences:
                if sequence.sql_name not in self._before:
                    self._before[sequence.sql_name] = await self._state(sequence.sql_name)

    async def restore(self) -> None:
        """What the brain gave out in a run that was undone it gives out again."""
        for name, state in self._before.items():
            await self._at.link.execute(
                "SELECT pg_catalog.setval($1::pg_catalog.regclass, $2::pg_catalog.int8, $3::pg_catalog.bool)",
                [name, str(state.last), "t" if state.called else "f"],
            )

    async def extend(self, error: PgError) -> bool:
        """True: the sequence that the error names has more numbers now, so the statement may run again."""
        found = _NAME.match(error.message) if error.sqlstate == EXHAUSTED else None
        if found is None:
            return False
        named = [
            (shadow, sequence)
            for shadow in self._at.shadows.tables.values()
            for sequence in shadow.sequences
            if sequence.name == found[1]
        ]
        more = False
        for shadow, sequence in named:
            more = await self._extend(shadow, sequence) or more
        return more

    async def _extend(self, shadow: Shadow, sequence: Sequence) -> bool:
        at, name = self._at, sequence.sql_name
        count = self._wanted.get(name, _FIRST)
        self._wanted[name] = min(count * 8, _MOST)
        left = (sequence.max - sequence.start if sequence.increment > 0 else sequence.start - sequence.min) // abs(
            sequence.increment
        ) + 1
        first = await at.lake.sequence(shadow.namespace, shadow.name, sequence.field_id, count)
        if first >= left:
            return False  # PostgreSQL's own words, and its own limit
        last = min(first + count, left) - 1
        begin, end = (sequence.start + number * sequence.increment for number in (first, last))
        edge = "MAXVALUE" if sequence.increment > 0 else "MINVALUE"
        limit = await self._limit(name, sequence.increment > 0)
        goes_on = limit + sequence.increment == begin and first > 0
        steps = ["SET LOCAL icefield.ddl = 'on'"]
        if goes_on:
            steps.append(f"ALTER SEQUENCE {name} {edge} {end}")
        else:
            steps.append(f"ALTER SEQUENCE {name} {edge} {end} RESTART {begin}")
            self._before[name] = _State(begin, False)
        steps.append("SET LOCAL icefield.ddl = 'off'")
        await at.link.query("; ".join(steps))
        return True

    async def _state(self, name: str) -> _State:
        answer = await self._at.link.query(f"SELECT last_value, is_called FROM {name}")
        last, called = answer.rows[0]
        return _State(int(last or 0), called == "t")

    async def _limit(self, name: str, ascending: bool) -> int:
        column = "seqmax" if ascending else "seqmin"
        answer = await self._at.link.execute(
            f"SELECT {column} FROM pg_catalog.pg_sequence WHERE seqrelid OPERATOR(pg_catalog.=)"
            " $1::pg_catalog.regclass::pg_catalog.oid",
            [name],
        )
        return int(answer.scalar() or 0)
