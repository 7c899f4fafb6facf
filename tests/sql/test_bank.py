"""A bank of accounts that SQL and Spark change at the same time: money stays, and nothing acknowledged is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import pytest
from bank.actors import SqlWriter
from bank.books import Books, Move, Row, Seen
from bank.faulty_door import faulty_door
from bank.run import ALL_IN_TURN, VARIANTS, Bank, Pace, Report, Variant, run

from support.spark_client import SparkClient
from support.up import Up

pytestmark = [pytest.mark.sql, pytest.mark.spark]

KINDS = ("one statement", "transaction", "savepoints", "opens", "Spark appends", "Spark updates", "Spark compacts")
OpenBank = Callable[[Variant], Bank]
Tell = Callable[[str, Report], None]


@pytest.fixture(scope="module")
def spark(up: Up) -> Iterator[SparkClient]:
    client = SparkClient(up.url, {"lake": "lake"})
    yield client
    client.close()


@pytest.fixture(scope="module")
def pyiceberg(up: Up) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog("lake", type="rest", uri=up.url, warehouse="lake")


@pytest.fixture
def open_bank(up: Up, spark: SparkClient, pyiceberg: Any) -> OpenBank:
    return lambda variant: Bank(up.dsn(), spark, pyiceberg, variant)


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    """The rate is part of what a run says, also when all is well."""

    def told(what: str, report: Report) -> None:
        with capsys.disabled():
            print(f"\nbank, {what}: {report}")

    return told


@pytest.mark.timeout(900)
def test_money_stays_and_no_acknowledged_change_is_lost(open_bank: OpenBank, tell: Tell) -> None:
    """On one table that goes through all variants."""
    pace = Pace(60, at_least=100, kinds=KINDS, at_most_s=420)
    report = run(open_bank(ALL_IN_TURN[0]), pace, phases=ALL_IN_TURN)
    tell("all variants in turn", report)
    assert report.problems == []
    assert report.landed >= 100
    for kind in KINDS:
        assert report.tally.landed[kind], f"{kind} never landed: nothing is proven about it"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_money_stays_for_minutes(variant: Variant, open_bank: OpenBank, tell: Tell) -> None:
    """Ten minutes with the next one."""
    report = run(open_bank(variant), Pace(75, at_least=100, kinds=KINDS, at_most_s=300), seed=2)
    tell(str(variant), report)
    assert report.problems == []
    assert report.landed >= 100


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_money_stays_for_many_minutes_in_a_table_that_goes_through_all_variants(
    open_bank: OpenBank, tell: Tell
) -> None:
    report = run(
        open_bank(ALL_IN_TURN[0]), Pace(300, at_least=400, kinds=KINDS, at_most_s=600), phases=ALL_IN_TURN, seed=3
    )
    tell("all variants in turn", report)
    assert report.problems == []
    assert report.landed >= 400


# That it would be found -----------------------------------------------------------------------------------------------


class MovesInTwoStatements(SqlWriter):
    """Reads, and then writes what it has read: whoever came in between is undone."""

    KINDS: ClassVar[Mapping[str, int]] = {"one statement": 1}

    def move_at_once(self, move: Move) -> int:
        found = {row[0]: row for row in self.rows(f"SELECT id, balance, moves FROM {self.table}")}
        values = ", ".join(
            f"({number}::bigint, {found[number][1] + amount}::bigint, {found[number][2] + 1}::bigint)"
            for number, amount in ((move.source, -move.amount), (move.target, move.amount))
        )
        return self.execute(
            f"UPDATE {self.table} AS t SET balance = d.balance, moves = d.moves"
            f" FROM (VALUES {values}) AS d(id, balance, moves) WHERE t.id = d.id"
        )

    def draw_move(self, among: list[int] | None = None) -> Move:
        return super().draw_move(list(range(4)))


class Opens(SqlWriter):
    KINDS: ClassVar[Mapping[str, int]] = {"opens": 1}


class OnlyMoves(SqlWriter):
    KINDS: ClassVar[Mapping[str, int]] = {"one statement": 1}


LOOKING = Pace(30, until_found=True, spark_rests_s=1.0, reader_rests_s=0.5)


def test_a_lost_update_is_found(open_bank: OpenBank) -> None:
    report = run(open_bank(VARIANTS[0]), LOOKING, writer=MovesInTwoStatements)
    assert any("that were acknowledged: lost" in problem for problem in report.problems), str(report)


@pytest.mark.parametrize(
    ("fault", "writer", "found"),
    [
        ("refusals_are_acknowledged", OnlyMoves, "that were acknowledged: lost"),
        ("nothing_is_strict", Opens, "times"),
    ],
)
def test_a_fault_of_the_door_is_found(
    fault: str, writer: type[SqlWriter], found: str, open_bank: OpenBank, up: Up
) -> None:
    with faulty_door(up, fault) as dsn:
        report = run(open_bank(VARIANTS[2]), LOOKING, writer=writer, dsns=(dsn, dsn))
    assert any(found in problem for problem in report.problems), f"{report}\n{report.problems}"


def books() -> Books:
    kept = Books()
    for number in (1, 2):
        kept.opened(number, 100)
    kept.opened_pair(3, 4, 7)
    kept.moved(Move(1, 2, 30))
    return kept


RIGHT = [(1, 70, 1), (2, 130, 1), (3, 7, 0), (4, -7, 0)]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([(1, 100, 0), (2, 100, 0), *RIGHT[2:]], "lost"),
        ([(1, 40, 2), (2, 160, 2), *RIGHT[2:]], "only 1 were asked for"),
        ([(1, 70, 1), (2, 131, 1), *RIGHT[2:]], "the sum is 201"),
        ([(1, 71, 1), (2, 129, 1), *RIGHT[2:]], "has 71, not 70"),
        ([*RIGHT, RIGHT[0]], "there 2 times"),
        (RIGHT[:3], "account 4 is missing"),
        ([*RIGHT, (9, 0, 0)], "never opened"),
    ],
)
def test_what_is_wrong_in_the_end_is_found(rows: list[Row], problem: str) -> None:
    assert books().compare("who", RIGHT) == []
    assert problem in "\n".join(books().compare("who", rows))


def test_what_is_in_doubt_may_have_happened_or_not() -> None:
    kept = books()
    kept.moved(Move(1, 2, 5), doubtful=True)
    kept.opened(5, doubtful=True)
    kept.closed((3, 4), doubtful=True)
    for moved in (0, 1):
        rows = [(1, 70 - 5 * moved, 1 + moved), (2, 130 + 5 * moved, 1 + moved)]
        for rest in ([], RIGHT[2:], [*RIGHT[2:], (5, 0, 0)]):
            assert kept.compare("who", [*rows, *rest]) == []


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        (Seen(201, 4, 4, 2), "sum of 201"),
        (Seen(200, 5, 4, 2), "5 rows of 4"),
        (Seen(200, 4, 4, 1), "1 moves, though 2 were acknowledged"),
    ],
)
def test_what_is_wrong_meanwhile_is_found(seen: Seen, problem: str) -> None:
    kept = books()
    kept.looked("who", kept.acknowledged_moves, Seen(200, 4, 4, 2))
    assert kept.problems == []
    kept.looked("who", kept.acknowledged_moves, seen)
    assert problem in "\n".join(kept.problems)
