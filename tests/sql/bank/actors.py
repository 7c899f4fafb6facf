"""Those who act on the bank at the same time: two writers and a reader of the SQL door, and a plain Spark.

Each is a thread that takes one step after the other. What a step did goes to the books, how it ended to the ``Tally``.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import psycopg

from bank.books import Books, Move, Seen
from support.spark_client import SparkClient, SparkFailed

ATTEMPTS = 5
"""How often a writer tries a transaction of its own again, with the same moves, before it gives up."""
_PATIENCE = 4
"""How many times as long as its last step took Spark waits for the SQL writers, who need longer than it does."""
IN_DOUBT = ("08007", "40003")
READS = ("SQL sums", "Spark sums")
OPENED_BY_SPARK, OPENED_BY_SQL, PAIRS = 1_000_000, 2_000_000, 3_000_000


@dataclass
class Tally:
    """By kind of step: how often it landed, was refused, was tried again; and how long what landed took."""

    landed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    doubtful: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def __iadd__(self, other: Tally) -> Tally:
        self.landed += other.landed
        self.refused += other.refused
        self.again += other.again
        self.doubtful += other.doubtful
        self.seconds |= {k: self.seconds.get(k, []) + v for k, v in other.seconds.items()}
        return self


class Actor(threading.Thread):
    def __init__(self, name: str, books: Books, seed: int, pause_s: float) -> None:
        super().__init__(name=name, daemon=True)
        self.books = books
        self.drawn = random.Random(f"{name} {seed}")
        self.pause_s = pause_s
        self.tally = Tally()
        self.changes = 0
        """How many landed."""
        self.ending = threading.Event()
        self.doing: tuple[float, str] | None = None
        """Since when it does what."""
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                self.step()
                self.rest()
        except BaseException as error:  # handed to the test, which must fail
            self.failure = error
        finally:
            self.doing = None

    def step(self) -> None:
        raise NotImplementedError

    def rest(self) -> None:
        self.ending.wait(self.pause_s)

    @contextmanager
    def at(self, what: str) -> Iterator[None]:
        self.doing = (time.monotonic(), what)
        try:
            yield
        finally:
            self.doing = None

    def landed(self, kind: str, begun: float) -> None:
        self.tally.landed[kind] += 1
        self.changes += kind not in READS
        self.tally.seconds.setdefault(kind, []).append(time.monotonic() - begun)

    def draw_move(self, among: list[int] | None = None) -> Move:
        source, target = self.drawn.sample(among or self.books.movable, 2)
        return Move(source, target, self.drawn.randint(1, 50))


# SQL ------------------------------------------------------------------------------------------------------------------


class Refused(Exception):
    """40001."""


class Doubtful(Exception):
    pass


class SqlActor(Actor):
    def __init__(self, name: str, dsn: str, table: str, books: Books, seed: int, pause_s: float = 0.0) -> None:
        super().__init__(name, books, seed, pause_s)
        self.dsn = dsn
        self.table = table
        self.connection = psycopg.connect(dsn, autocommit=True)

    def close(self) -> None:
        self.connection.close()

    @contextmanager
    def judged(self, what: str) -> Iterator[None]:
        """What the door answers: done, or 40001, or (what must not be) anything else."""
        try:
            with self.at(what):
                yield
        except psycopg.Error as error:
            if error.sqlstate == "40001":
                raise Refused from error
            self.books.found(f"{self.name}: {what}: {error.sqlstate} {error}")
            if self.connection.closed:
                self.connection = psycopg.connect(self.dsn, autocommit=True)
            if error.sqlstate is None or error.sqlstate in IN_DOUBT:
                raise Doubtful from error
            raise Refused from error

    def execute(self, statement: str, params: tuple[int, ...] = ()) -> int:
        """By the simple protocol, or with parameters by the extended one."""
        return self.connection.execute(statement.encode(), params or None).rowcount

    def rows(self, statement: str) -> list[tuple[int, ...]]:
        return self.connection.execute(statement.encode()).fetchall()

    def quietly_roll_back(self) -> None:
        with self.at("ROLLBACK"):
            self.connection.execute("ROLLBACK")


class SqlWriter(SqlActor):
    """Moves money in one statement or in transactions, opens accounts, closes pairs."""

    KINDS: ClassVar[Mapping[str, int]] = {
        "one statement": 8,
        "transaction": 4,
        "savepoints": 2,
        "opens": 2,
        "closes": 1,
    }
    _numbers = iter(range(OPENED_BY_SQL, PAIRS))
    """Shared by all: two writers want to open the same account now and then."""
    _last_number = OPENED_BY_SQL

    def step(self) -> None:
        (kind,) = self.drawn.choices(list(self.KINDS), list(self.KINDS.values()))
        do: Callable[[], None] = getattr(self, f"_{kind.replace(' ', '_')}")
        do()

    # one statement --------------------------------------------------------------------------------------------------

    def _one_statement(self) -> None:
        move = self.draw_move()
        begun = time.monotonic()
        try:
            with self.judged(f"one statement: {move}"):
                changed = self.move_at_once(move)
        except Refused:
            self.tally.refused["one statement"] += 1
        except Doubtful:
            self.tally.doubtful["one statement"] += 1
            self.books.moved(move, doubtful=True)
        else:
            self.books.moved(move)
            self.landed("one statement", begun)
            if changed != 2:
                self.books.found(f"{self.name}: {move} changed {changed} rows")

    def move_at_once(self, move: Move) -> int:
        a, b, amount = move.source, move.target, move.amount
        values = f"(VALUES ({a}::bigint, {-amount}::bigint), ({b}, {amount})) AS d(id, amount)"
        match self.drawn.randrange(4):
            case 0:
                return self.execute(
                    f"UPDATE {self.table} SET balance = balance + CASE id WHEN {a} THEN {-amount} ELSE {amount} END,"
                    f" moves = moves + 1 WHERE id IN ({a}, {b})"
                )
            case 1:
                return self.execute(
                    f"UPDATE {self.table} SET balance = balance + CASE WHEN id = %s THEN -%s::bigint ELSE %s::bigint"
                    " END, moves = moves + 1 WHERE id IN (%s, %s)",
                    (a, amount, amount, a, b),
                )
            case 2:
                return self.execute(
                    f"UPDATE {self.table} AS t SET balance = t.balance + d.amount, moves = t.moves + 1"
                    f" FROM {values} WHERE t.id = d.id"
                )
            case _:
                return self.execute(
                    f"MERGE INTO {self.table} AS t USING {values} ON t.id = d.id"
                    " WHEN MATCHED THEN UPDATE SET balance = t.balance + d.amount, moves = t.moves + 1"
                )

    def _opens(self) -> None:
        """If it is not there yet. Nothing is read but that: landed twice from one view, it would be there twice."""
        number = SqlWriter._last_number
        if self.drawn.randrange(2):
            number = SqlWriter._last_number = next(SqlWriter._numbers)
        begun = time.monotonic()
        try:
            with self.judged(f"opens {number}"):
                opened = self.execute(
                    f"MERGE INTO {self.table} AS t USING (VALUES ({number}::bigint)) AS n(id) ON t.id = n.id"
                    " WHEN NOT MATCHED THEN INSERT (id, balance, moves) VALUES (n.id, 0, 0)"
                )
        except Refused:
            self.tally.refused["opens"] += 1
        except Doubtful:
            self.tally.doubtful["opens"] += 1
            self.books.opened(number, doubtful=True)
        else:
            if opened:
                self.books.opened(number)
                self.landed("opens", begun)

    def _closes(self) -> None:
        pair = self.books.take_pair()
        if pair is None:
            return
        begun = time.monotonic()
        try:
            with self.judged(f"closes {pair}"):
                closed = self.execute(f"DELETE FROM {self.table} WHERE id BETWEEN {pair[0]} AND {pair[1]}")
        except Refused:
            self.tally.refused["closes"] += 1
            self.books.keep_pair(pair)
        except Doubtful:
            self.tally.doubtful["closes"] += 1
            self.books.closed(pair, doubtful=True)
        else:
            self.books.closed(pair)
            self.landed("closes", begun)
            if closed != 2:
                self.books.found(f"{self.name}: {closed} accounts of the pair {pair} were there")

    # transactions ---------------------------------------------------------------------------------------------------

    def _transaction(self) -> None:
        move = self.draw_move()
        self._in_transaction("transaction", [move], [self._change(move.source, -move.amount), self._gain(move)])

    def _savepoints(self) -> None:
        """On the way, something is undone."""
        a, b, wrong, amount = *self.drawn.sample(self.books.movable, 3), self.drawn.randint(1, 50)
        move = Move(a, b, amount)
        steps = [self._change(a, -amount), "SAVEPOINT one", self._change(wrong, amount)]
        steps += ["ROLLBACK TO SAVEPOINT one", "SAVEPOINT two", self._gain(move), "RELEASE SAVEPOINT two"]
        self._in_transaction("savepoints", [move], steps)

    def _change(self, number: int, amount: int) -> str:
        return f"UPDATE {self.table} SET balance = balance + {amount}, moves = moves + 1 WHERE id = {number}"

    def _gain(self, move: Move) -> str:
        return self._change(move.target, move.amount)

    def _in_transaction(self, kind: str, moves: list[Move], steps: list[str]) -> None:
        begun = time.monotonic()
        for attempt in range(ATTEMPTS):
            if self.ending.is_set():
                return
            if attempt:
                self.tally.again[kind] += 1
                time.sleep(self.drawn.uniform(0, 0.2 * attempt))
            try:
                self._try_transaction(kind, steps)
            except Refused:
                self.quietly_roll_back()
            except Doubtful:
                self.tally.doubtful[kind] += 1
                self.books.moved(*moves, doubtful=True)
                return
            else:
                self.books.moved(*moves)
                self.landed(kind, begun)
                return
        self.tally.refused[kind] += 1

    def _try_transaction(self, kind: str, steps: list[str]) -> None:
        for step in ("BEGIN", *steps, "COMMIT"):
            try:
                with self.judged(f"{kind}: {step}"):
                    changed = self.execute(step)
            except Doubtful:
                if step == "COMMIT":
                    raise
                raise Refused from None
            if step.startswith("UPDATE") and changed != 1:
                self.books.found(f"{self.name}: {step} changed {changed} rows")


class SqlReader(SqlActor):
    """Sums up while others write: alone, and twice in a transaction, which sees one state."""

    def step(self) -> None:
        before = self.books.acknowledged_moves
        again = self.drawn.randrange(3) == 0
        begun = time.monotonic()
        try:
            with self.judged("sums up"):
                if again:
                    self.execute("BEGIN")
                seen = self._sum()
                if again:
                    if (second := self._sum()) != seen:
                        self.books.found(f"{self.name} saw {seen} and then {second} in one transaction")
                    self.execute("COMMIT")
        except (Refused, Doubtful) as error:
            self.books.found(f"{self.name} could not read: {error.__cause__}")
            self.quietly_roll_back()
            return
        self.books.looked(self.name, before, seen)
        self.landed("SQL sums", begun)

    def _sum(self) -> Seen:
        ((total, accounts, different, moves),) = self.rows(
            f"SELECT sum(balance)::bigint, count(*), count(DISTINCT id), sum(moves)::bigint FROM {self.table}"
        )
        return Seen(total, accounts, different, moves)


# Spark ----------------------------------------------------------------------------------------------------------------


class SparkActor(Actor):
    """An ordinary Spark on a plain address: appends, moves money, compacts, sums up."""

    KINDS: ClassVar[Mapping[str, int]] = {"Spark appends": 4, "Spark updates": 3, "Spark compacts": 1, "Spark sums": 2}
    _CONFLICT = ("CommitFailedException", "ValidationException")

    def __init__(
        self, name: str, spark: SparkClient, table: str, books: Books, seed: int, pause_s: float, others: list[Actor]
    ) -> None:
        super().__init__(name, books, seed, pause_s)
        self.spark = spark
        self.table = table
        self.others = others
        self.catalog, _, self.inner = table.partition(".")
        self._next = OPENED_BY_SPARK
        self._next_pair = PAIRS
        self.script: list[str] = []
        """To be done next, before anything that is drawn."""

    def step(self) -> None:
        self._begun, self._changes = time.monotonic(), self.changes
        while self.script:
            self._try("Spark alters", self.script.pop(0))
        (kind,) = self.drawn.choices(list(self.KINDS), list(self.KINDS.values()))
        do: Callable[[], None] = getattr(self, f"_{kind.removeprefix('Spark ')}")
        do()

    def rest(self) -> None:
        """Whatever lands refuses the SQL writers' open changes: until one of theirs landed, but not for ever."""
        super().rest()
        took = time.monotonic() - self._begun
        theirs = sum(other.changes for other in self.others)
        deadline = time.monotonic() + _PATIENCE * took
        while self.changes > self._changes and theirs == sum(other.changes for other in self.others):
            if time.monotonic() >= deadline or self.ending.wait(0.02):
                return

    def _try(self, kind: str, statement: str) -> bool | None:
        """True: it landed; False: it did not; None: nobody knows."""
        begun = time.monotonic()
        try:
            with self.at(statement):
                self.spark.sql(statement)
        except SparkFailed as failed:
            if "CommitStateUnknownException" in str(failed):
                self.tally.doubtful[kind] += 1
                return None
            self.tally.refused[kind] += 1
            if not any(conflict in str(failed) for conflict in self._CONFLICT):
                self.books.found(f"{self.name}: {statement[:200]}: {str(failed)[:600]}")
            return False
        self.landed(kind, begun)
        return True

    def _appends(self) -> None:
        if self.drawn.randrange(2):
            number = self._next
            self._next += 1
            done = self._try("Spark appends", f"insert into {self.table} values ({number}, 0, 0)")
            if done is not False:
                self.books.opened(number, doubtful=done is None)
        else:
            one, other, amount = self._next_pair, self._next_pair + 1, self.drawn.randint(1, 1000)
            self._next_pair += 2
            done = self._try(
                "Spark appends", f"insert into {self.table} values ({one}, {amount}, 0), ({other}, {-amount}, 0)"
            )
            if done is not False:
                self.books.opened_pair(one, other, amount, doubtful=done is None)

    def _updates(self) -> None:
        move = self.draw_move()
        a, b, amount = move.source, move.target, move.amount
        done = self._try(
            "Spark updates",
            f"update {self.table} set balance = balance + case id when {a} then {-amount} else {amount} end,"
            f" moves = moves + 1 where id in ({a}, {b})",
        )
        if done is not False:
            self.books.moved(move, doubtful=done is None)

    def _compacts(self) -> None:
        self._try(
            "Spark compacts",
            f"call {self.catalog}.system.rewrite_data_files(table => '{self.inner}', options => map("
            "'min-input-files', '4', 'delete-file-threshold', '1'))",
        )

    def _sums(self) -> None:
        before = self.books.acknowledged_moves
        begun = time.monotonic()
        with self.at("sums up"):
            ((total, accounts, different, moves),) = self.spark.sql(
                f"select sum(balance), count(*), count(distinct id), sum(moves) from {self.table}"
            )
        self.books.looked(self.name, before, Seen(total, accounts, different, moves))
        self.landed("Spark sums", begun)
