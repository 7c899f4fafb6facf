"""A program, done by a lake's door and by a PostgreSQL with heap tables, step by step, and compared.

Between crashes every answer must be PostgreSQL's: rows, tag, SQLSTATE and message, notices, whether a transaction is
open or failed. After a crash a statement may fail, until something was done outside of transactions again: then both
sides' transactions are rolled back. What became of a COMMIT (or of a statement that is a transaction of its own) whose
answer is an error is looked up: the lake must be in the state before it or in the state after it, in both tables.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
from dml.asking import Answer, Connection, Copy, Lost, Statement
from psycopg import pq

from chance.programs import ANEW, KEYED, LOOSE, STATE, Kill, Say, Step, written
from chance.stack import Stack

_BACK_WITHIN_S = 90
_SETTLED_AFTER_S = 1.0
_CONTROL = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")
_REFUSED = ("40001",)
_CRASHED = ("08", "40", "57", "58")
"""The classes of SQLSTATE that tell of a crash."""


class Different(AssertionError):
    pass


Rows = tuple[tuple[str | None, ...], ...]


class Link(Connection):
    def ask(self, statement: Statement, *, extended: bool = False) -> Answer:
        try:
            return super().ask(statement, extended=extended)
        except psycopg.Error as error:
            raise Lost(str(error)) from error

    @property
    def status(self) -> str:
        return pq.TransactionStatus(self._pq.transaction_status).name


@dataclass
class Side:
    make: Callable[[], Link]
    schema: str = ""
    link: Link = field(init=False)

    def __post_init__(self) -> None:
        self.link = self.make()

    def stand_in(self, schema: str) -> None:
        self.schema = schema
        self.link.must(f"SET search_path = {schema}")

    def ask(self, say: Say) -> Answer:
        return self.link.ask(say.statement, extended=say.extended).as_multiset()

    def again(self) -> None:
        self.link.close()
        self.link = self.make()
        if self.schema:
            self.stand_in(self.schema)

    def state(self) -> Rows:
        return self.link.must(STATE).as_multiset().rows


@dataclass(frozen=True)
class Variant:
    format_version: int
    mode: str

    @property
    def schema(self) -> str:
        return f"chance_v{self.format_version}_{'mor' if self.mode == 'merge-on-read' else 'cow'}"

    def properties(self) -> str:
        modes = ", ".join(f"'write.{verb}.mode' = '{self.mode}'" for verb in ("update", "delete", "merge"))
        return f"WITH ('format-version' = '{self.format_version}', {modes})"

    def made(self, *, lake: bool) -> list[str]:
        iceberg, properties = ("ICEBERG", self.properties()) if lake else ("", "")
        return [
            f"CREATE SCHEMA {self.schema}",
            f"CREATE {iceberg} TABLE {self.schema}.keyed ({KEYED}) {properties}",
            f"CREATE {iceberg} TABLE {self.schema}.loose ({LOOSE}) {properties}",
        ]


VARIANTS = tuple(Variant(version, mode) for version in (2, 3) for mode in ("merge-on-read", "copy-on-write"))


Elsewhere = Callable[[str], Rows]
"""A table as another client reads it, its values as text."""


class Both:
    """``told``: what happened, by kind, so that a test can say that enough of it did."""

    def __init__(
        self, stack: Stack | None, lake: Side, heap: Side, looker: Side, elsewhere: Elsewhere | None = None
    ) -> None:
        """``looker``: a second connection to the PostgreSQL, which sees what is committed."""
        self.stack, self.lake, self.heap, self.looker = stack, lake, heap, looker
        self.elsewhere = elsewhere
        self.told: Counter[str] = Counter()
        self._made: set[Variant] = set()
        self._shaken = False

    # a program --------------------------------------------------------------------------------------------------------

    def play(self, variant: Variant, program: tuple[Step, ...]) -> None:
        self._stand_anew(variant)
        at, pending = 0, None
        try:
            while at < len(program):
                step = program[at]
                if isinstance(step, Kill):
                    pending = self._kill(step)
                else:
                    self._step(step, pending)
                    pending = None
                at += 1
            if self.heap.link.status != "IDLE":
                self._step(Say("ROLLBACK"), None)
            self._come_back()
            self._compare_states()
            self._compare_elsewhere(variant)
        except Different as different:
            raise Different(f"{different}\n{variant}\n{written(program, at)}") from different

    def _stand_anew(self, variant: Variant) -> None:
        self._come_back()  # from a crash of a program that failed
        sides = (self.lake, self.heap, self.looker)
        if variant not in self._made:
            self._made.add(variant)
            for side in (self.lake, self.heap):
                for statement in variant.made(lake=side is self.lake and self.stack is not None):
                    side.link.must(statement)
        for side in sides:
            if side.schema != variant.schema:
                side.stand_in(variant.schema)
        for side in (self.lake, self.heap):
            if side.link.status != "IDLE":
                side.again()  # left behind by a program that failed
            side.link.must("; ".join(ANEW))
        self._shaken = False

    # a step -----------------------------------------------------------------------------------------------------------

    def _kill(self, kill: Kill) -> Kill | None:
        assert self.stack is not None
        self._shaken = True
        self.told[f"kill {kill.part}"] += 1
        if kill.after_s is not None:
            return kill
        self.stack.kill(kill.part)
        self.stack.wait_until_ready()
        return None

    def _step(self, say: Say, kill: Kill | None) -> None:
        before = self.heap.link.status
        found = self._asked_of_lake(say, kill)
        self.told[_word(say)] += 1
        if self._shaken and (isinstance(found, Lost) or found.error is not None):
            self._failed_after_crash(say, found, in_transaction=before != "IDLE")
            return
        if isinstance(found, Lost):
            raise Different(f"the connection was lost: {found}")
        expected = self.heap.ask(say)
        self._compare(say, expected, found)
        if self.heap.link.status == "IDLE" and before == "IDLE" and not isinstance(say.statement, Copy):
            # Done outside of transactions; it may have been done without the part that is down, so ask on.
            self._shaken = self._shaken and not self._all_is_well()
        if expected.error is not None:
            self.told[f"error {expected.error[0]}"] += 1

    def _asked_of_lake(self, say: Say, kill: Kill | None) -> Answer | Lost:
        timer: threading.Timer | None = None
        if kill is not None:
            assert self.stack is not None
            timer = threading.Timer(kill.after_s or 0.0, self.stack.kill, [kill.part])
            timer.start()
        try:
            return self.lake.ask(say)
        except Lost as lost:
            return lost
        finally:
            if timer is not None:
                timer.join()

    def _compare(self, say: Say, expected: Answer, found: Answer) -> None:
        if expected != found:
            shown = [answer.error or (answer.tag, answer.rows, answer.notices) for answer in (expected, found)]
            raise Different(f"{say}\n  expected {shown[0]}\n  found    {shown[1]}")
        states = (self.heap.link.status, self.lake.link.status)
        if states[0] != states[1]:
            raise Different(f"after {say} the transaction is {states[1]}, not {states[0]}")

    def _compare_states(self) -> None:
        lake, heap = self.lake.state(), self.looker.state()
        if lake != heap:
            missing, surplus = Counter(heap) - Counter(lake), Counter(lake) - Counter(heap)
            raise Different(f"rows missing: {list(missing.elements())}, rows too many: {list(surplus.elements())}")

    def _compare_elsewhere(self, variant: Variant) -> None:
        if self.elsewhere is None:
            return
        for table in ("keyed", "loose"):
            expected = Counter(self.looker.link.must(f"SELECT * FROM {table}").rows)
            found = Counter(self.elsewhere(f"{variant.schema}.{table}"))
            if found != expected:
                raise Different(f"another client reads {table} as {found - expected} instead of {expected - found}")

    # after a crash ----------------------------------------------------------------------------------------------------

    def _failed_after_crash(self, say: Say, found: Answer | Lost, *, in_transaction: bool) -> None:
        """The lake answered with an error, or not at all."""
        changes = not in_transaction and _word(say) not in _CONTROL
        if changes:
            self.heap.link.must("BEGIN")
        committed = changes or (in_transaction and _word(say) == "COMMIT")
        if not (in_transaction and committed):
            expected = self.heap.ask(say)
            if isinstance(found, Answer) and expected.error == found.error:
                if changes:
                    self.heap.link.must("ROLLBACK")
                self._compare(say, expected, found)
                return  # it fails without any crash, too
        self._judge_error(say, found)
        self.told["failed by crash"] += 1
        after = None
        if committed and self.heap.link.status == "INTRANS":
            after = self.heap.state()
        self._come_back()
        landed = after is not None and self._landed(say, after, found)
        self.told["in doubt, " + ("landed" if landed else "not landed")] += committed
        if self.heap.link.status != "IDLE":
            self.heap.link.must("COMMIT" if landed else "ROLLBACK")
        self._compare_states()
        self._shaken = False

    def _judge_error(self, say: Say, found: Answer | Lost) -> None:
        if isinstance(found, Lost):
            self.told["lost"] += 1
            return
        assert found.error is not None
        state, message = found.error
        self.told[f"crash {state}"] += 1
        if not (state or "").startswith(_CRASHED):
            raise Different(f"{say}: a crash is told as {state}: {message}")

    def _landed(self, say: Say, after: Rows, found: Answer | Lost) -> bool:
        before = self.looker.state()
        if before == after:
            return False
        deadline = time.monotonic() + _SETTLED_AFTER_S
        refused = isinstance(found, Answer) and found.error is not None and found.error[0] in _REFUSED
        while True:
            now = self.lake.state()
            if now == after:
                if refused:
                    raise Different(
                        f"{say} was refused ({found.error if isinstance(found, Answer) else ''}), and landed"
                    )
                return True
            if now != before:
                raise Different(
                    f"{say} landed by half:\n  before {before}\n  after  {after}\n  found  {now}\n  answer {found}"
                )
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.2)

    def _come_back(self) -> None:
        """Everything is up again, the lake's transaction is over, and it answers."""
        if self.stack is None or not self._shaken:
            return
        self.stack.wait_until_ready()
        deadline = time.monotonic() + _BACK_WITHIN_S
        while not self._all_is_well():
            if time.monotonic() >= deadline:
                raise Different("the lake does not come back")
            time.sleep(0.2)

    def _all_is_well(self) -> bool:
        try:
            if self.lake.link.status == "UNKNOWN":
                self.lake.again()
            elif self.lake.link.status != "IDLE":
                self.lake.link.must("ROLLBACK")
            answer = self.lake.link.ask(STATE)
        except (Lost, AssertionError):
            return False
        if answer.error is not None:
            self.told[f"crash {answer.error[0]}"] += 1
        return answer.error is None


def _word(say: Say) -> str:
    text = say.statement.statement if isinstance(say.statement, Copy) else say.statement
    return text.split(maxsplit=1)[0].strip(";").upper()
