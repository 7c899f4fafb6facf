"""One run of the bank: a table, actors at it for a while, and what they must have left behind."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from bank.actors import READS, Actor, SparkActor, SqlReader, SqlWriter, Tally
from bank.books import Books
from support.spark_client import SparkClient

ACCOUNTS, FILES, BALANCE = 200, 5, 1000
HANGS_S = 120
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Variant:
    format_version: int
    mode: str

    def properties(self) -> dict[str, str]:
        modes = {f"write.{verb}.mode": self.mode for verb in ("update", "delete", "merge")}
        return {"format-version": str(self.format_version), **modes}

    def __str__(self) -> str:
        return f"v{self.format_version} {self.mode}"


VARIANTS = tuple(Variant(version, mode) for version in (2, 3) for mode in ("merge-on-read", "copy-on-write"))
ALL_IN_TURN = (VARIANTS[0], VARIANTS[1], VARIANTS[3], VARIANTS[2])
"""One table on its way: a format is only ever raised."""


def _quoted(properties: dict[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())


@dataclass
class Bank:
    """A fresh table of accounts, in several data files, some of which have deletes."""

    dsn: str
    spark: SparkClient
    pyiceberg: Any
    variant: Variant

    def __post_init__(self) -> None:
        self.name = f"accounts_{next(_numbers)}"
        self.sql_table, self.spark_table = f"bank.{self.name}", f"lake.bank.{self.name}"
        self.books = Books()
        properties = _quoted(self.variant.properties())
        self.spark.sql("create namespace if not exists lake.bank")
        self.spark.sql(
            f"create table {self.spark_table} (id bigint not null, balance bigint not null, moves bigint not null)"
            f" using iceberg tblproperties ({properties})"
        )
        each = ACCOUNTS // FILES
        for first in range(0, ACCOUNTS, each):
            self.spark.sql(
                f"insert into {self.spark_table} select /*+ coalesce(1) */ id, {BALANCE}, 0"
                f" from range({first}, {first + each + 2})"
            )
            self.spark.sql(f"delete from {self.spark_table} where id >= {first + each}")
        for number in range(ACCOUNTS):
            self.books.opened(number, BALANCE)

    def found_by(self) -> Iterator[tuple[str, list[tuple[int, int, int]]]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            query = f"SELECT id, balance, moves FROM {self.sql_table}"
            yield "SQL", connection.execute(query.encode()).fetchall()
        rows = self.spark.sql(f"select id, balance, moves from {self.spark_table}")
        yield "Spark", [(row[0], row[1], row[2]) for row in rows]
        found = self.pyiceberg.load_table(f"bank.{self.name}").scan().to_arrow()
        columns = [found[name].to_pylist() for name in ("id", "balance", "moves")]
        yield "PyIceberg", list(zip(*columns, strict=True))

    def check(self) -> list[str]:
        """Everything that is not as it must be; nobody may write any more."""
        problems = list(self.books.problems)
        for who, rows in self.found_by():
            problems += self.books.compare(who, rows)
        return problems


@dataclass
class Report:
    seconds: float
    tally: Tally
    problems: list[str]

    @property
    def landed(self) -> int:
        """Changes only."""
        return sum(count for kind, count in self.tally.landed.items() if kind not in READS)

    @property
    def by_sql(self) -> int:
        return sum(count for kind, count in self.tally.landed.items() if not kind.startswith(("Spark", "SQL")))

    def __str__(self) -> str:
        tally = self.tally
        head = (
            f"{self.landed} changes landed in {self.seconds:.0f} s ({self.landed / self.seconds:.2f}/s),"
            f" {self.by_sql} of them by SQL; {sum(tally.refused.values())} refused, {sum(tally.again.values())} tried"
            f" again by the client, {sum(tally.doubtful.values())} in doubt"
        )
        lines = [head]
        for kind in sorted(tally.landed.keys() | tally.refused.keys()):
            took = tally.seconds.get(kind) or [0.0]
            lines.append(
                f"  {kind:<15} {tally.landed[kind]:4} landed, {tally.refused[kind]:3} refused, {tally.again[kind]:3}"
                f" again, median {statistics.median(took):.2f} s, longest {max(took):.2f} s"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class Pace:
    """How long a run goes on, and how long each rests between two steps."""

    seconds: float
    at_least: int = 0
    """Changes: it goes on until as many have landed, …"""
    kinds: tuple[str, ...] = ()
    """… and one of each of these kinds …"""
    at_most_s: float = 0.0
    """… but not longer than this."""
    until_found: bool = False
    """It ends with the first problem."""
    spark_rests_s: float = 0.1
    reader_rests_s: float = 2.0


def run(
    bank: Bank,
    pace: Pace,
    *,
    seed: int = 1,
    phases: Sequence[Variant] = (),
    writer: type[SqlWriter] = SqlWriter,
    dsns: Sequence[str] = (),
) -> Report:
    """``phases``: what Spark makes of the table as time goes on. ``dsns``: the writers' doors, if not all the same."""
    writers = [
        writer(f"writer {number}", dsn, bank.sql_table, bank.books, seed)
        for number, dsn in enumerate(dsns or (bank.dsn, bank.dsn), 1)
    ]
    reader = SqlReader("reader", bank.dsn, bank.sql_table, bank.books, seed, pace.reader_rests_s)
    spark = SparkActor("Spark", bank.spark, bank.spark_table, bank.books, seed, pace.spark_rests_s, [*writers])
    actors: list[Actor] = [*writers, reader, spark]
    for sql_actor in (*writers, reader):
        sql_actor.rows(f"SELECT count(*) FROM {bank.sql_table}")  # a first statement opens engine sessions
    begun = time.monotonic()
    for actor in actors:
        actor.start()
    turns = iter(phases)
    turn_s = pace.seconds / len(phases) if phases else 0.0
    next_turn = begun + turn_s
    next(turns, None)

    def goes_on() -> bool:
        passed = time.monotonic() - begun
        if pace.until_found and bank.books.problems:
            return False
        few = sum(actor.changes for actor in actors) < pace.at_least
        few = few or any(not any(actor.tally.landed[kind] for actor in actors) for kind in pace.kinds)
        return passed < pace.seconds or (few and passed < pace.at_most_s)

    while goes_on() and not any(actor.failure for actor in actors):
        _look_for_hangs(actors, bank.spark)
        if phases and time.monotonic() >= next_turn:
            next_turn += turn_s
            for variant in itertools.islice(turns, 1):
                spark.script.append(
                    f"alter table {bank.spark_table} set tblproperties ({_quoted(variant.properties())})"
                )
        time.sleep(0.2)
    for actor in actors:
        actor.ending.set()
    while any(actor.is_alive() for actor in actors):
        _look_for_hangs(actors, bank.spark)
        time.sleep(0.1)
    seconds = time.monotonic() - begun
    for sql_actor in (*writers, reader):
        sql_actor.close()
    for actor in actors:
        if actor.failure is not None:
            raise actor.failure
    return Report(seconds, _sum(actors), bank.check())


def _sum(actors: Sequence[Actor]) -> Tally:
    tally = Tally()
    for actor in actors:
        tally += actor.tally
    return tally


def _look_for_hangs(actors: Sequence[Actor], spark: SparkClient) -> None:
    for actor in actors:
        doing = actor.doing
        if doing is not None and time.monotonic() - doing[0] > HANGS_S:
            with contextlib.suppress(OSError):
                spark.process.kill()
            raise AssertionError(f"{actor.name} hangs: {doing[1]}")
