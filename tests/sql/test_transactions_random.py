"""Random transactions, with errors and crashes in their middle: a lake's door does what PostgreSQL's heap tables do."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from chance.both import VARIANTS, Both, Different, Elsewhere, Link, Rows, Side, Variant
from chance.programs import Kill, Say, Step, programs
from chance.stack import Stack
from dml.asking import Copy
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from icefield.sql.brain.cluster import BrainTemplate, Cluster

pytestmark = [pytest.mark.sql, pytest.mark.spark]

QUICK = settings(
    max_examples=7,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # a statement takes half a second: the program is shown as it was found
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=150, derandomize=False)


@pytest.fixture(scope="module")
def heap() -> Iterator[Cluster]:
    with Cluster.clone(BrainTemplate()) as cluster:
        yield cluster


def to_heap(cluster: Cluster, database: str = "postgres") -> Link:
    return Link(
        f"host={cluster.socket_dir} user={cluster.superuser} password={cluster.superuser_password} dbname={database}"
    )


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    running = Stack(tmp_path_factory.mktemp("chance") / "lake")
    yield running
    running.stop()


def by_pyiceberg(url: str) -> Elsewhere:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("lake", type="rest", uri=url, warehouse="lake")

    def rows(table: str) -> Rows:
        found = catalog.load_table(table).scan().to_arrow()
        columns = [[None if value is None else str(value) for value in column.to_pylist()] for column in found.columns]
        return tuple(zip(*columns, strict=True))

    return rows


@pytest.fixture(scope="module")
def both(stack: Stack, heap: Cluster) -> Iterator[Both]:
    sides = Side(lambda: Link(stack.dsn())), Side(lambda: to_heap(heap)), Side(lambda: to_heap(heap))
    yield Both(stack, *sides, by_pyiceberg(stack.doors.server))
    for side in sides:
        side.link.close()


def test_random_transactions(both: Both) -> None:
    @QUICK
    @given(variant=st.sampled_from(VARIANTS), program=programs(shortest=2, longest=3))
    def play(variant: Variant, program: tuple[Step, ...]) -> None:
        both.play(variant, program)

    play()
    assert {"BEGIN", "COMMIT", "SAVEPOINT", "ROLLBACK", "UPDATE", "INSERT"} <= set(both.told), both.told


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_random_transactions(both: Both) -> None:
    @LONG
    @given(variant=st.sampled_from(VARIANTS), program=programs(longest=6))
    def play(variant: Variant, program: tuple[Step, ...]) -> None:
        both.play(variant, program)

    play()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_random_transactions_with_crashes(both: Both) -> None:
    @settings(LONG, max_examples=60)
    @given(variant=st.sampled_from(VARIANTS), program=programs(longest=4, crashes=("spark", "server", "server", "sql")))
    def play(variant: Variant, program: tuple[Step, ...]) -> None:
        both.play(variant, program)

    play()
    assert {"kill spark", "kill server", "kill sql", "in doubt, landed", "in doubt, not landed"} <= set(both.told)


# Crashes by hand: what chance may leave out in a small number of programs.

_MOVE = "UPDATE keyed SET v = coalesce(v, 0) + 1 WHERE id < 4"
_DROP = "DELETE FROM loose WHERE k = 1"
_BEGUN = (Say("BEGIN"), Say(_MOVE), Say(_DROP))
_AFTERWARDS = (Say("SELECT * FROM keyed"), Say("BEGIN"), Say(_DROP), Say("COMMIT"))

CRASHES = {
    "Spark dies in a transaction": (*_BEGUN, Kill("spark", 0.2), Say(_MOVE), *_AFTERWARDS),
    "the server dies at COMMIT": (*_BEGUN, Kill("server", 0.0), Say("COMMIT"), *_AFTERWARDS),
    "the server dies in a transaction": (*_BEGUN, Kill("server"), Say(_MOVE), Say("COMMIT"), *_AFTERWARDS),
    "the door dies at COMMIT": (*_BEGUN, Kill("sql", 0.02), Say("COMMIT"), *_AFTERWARDS),
}
MORE_CRASHES = {
    "the server dies in a statement": (Kill("server", 0.1), Say(_MOVE), *_AFTERWARDS),
    "the door dies in a savepoint": (*_BEGUN, Say("SAVEPOINT a"), Kill("sql"), Say(_DROP), *_AFTERWARDS),
    "Spark dies in a statement": (Kill("spark", 0.3), Say(_MOVE), *_AFTERWARDS),
}


@pytest.mark.parametrize("name", [*CRASHES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_CRASHES)])
def test_a_crash_by_hand(name: str, both: Both) -> None:
    both.play(VARIANTS[len(name) % len(VARIANTS)], (CRASHES | MORE_CRASHES)[name])
    assert any(what.startswith("kill ") for what in both.told)


# That a difference would be found, and that the grammar says what it means -------------------------------------------


@pytest.fixture
def twins(heap: Cluster) -> Iterator[Both]:
    """Two PostgreSQLs: no lake, no crashes."""
    admin = to_heap(heap)
    for name in ("one", "other"):
        admin.must(f"CREATE DATABASE {name}")
    lake, other, looker = (Side(partial(to_heap, heap, name)) for name in ("one", "other", "other"))
    yield Both(None, lake, other, looker)
    for side in (lake, other, looker):
        side.link.close()
    for name in ("one", "other"):
        admin.must(f"DROP DATABASE {name}")
    admin.close()


def test_programs_do_the_same_in_any_postgresql_wherever_its_rows_lie(twins: Both) -> None:
    """If they did not, no lake could be blamed. ``one`` stores its rows in another order."""
    at_first = twins.lake.ask

    def shuffled(say: Say) -> object:
        if twins.lake.link.status == "IDLE":
            for table in ("keyed", "loose"):
                twins.lake.link.must(
                    f"BEGIN; CREATE TEMP TABLE kept ON COMMIT DROP AS SELECT * FROM {table}; TRUNCATE {table};"
                    f"INSERT INTO {table} SELECT * FROM kept ORDER BY md5(kept::text); COMMIT"
                )
        return at_first(say)

    twins.lake.ask = shuffled  # type: ignore[assignment, method-assign]

    @settings(QUICK, max_examples=100)
    @given(program=programs(longest=6))
    def play(program: tuple[Step, ...]) -> None:
        twins.play(VARIANTS[0], program)

    play()
    words = {"BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE"}
    errors = {"error 22012", "error 23502", "error 23505", "error 25P01", "error 25P02", "error 3B001"}
    assert {*words, *errors, "COPY", "WITH", "DO"} <= set(twins.told), twins.told


@pytest.mark.parametrize(
    ("statement", "instead"),
    [
        ("ROLLBACK TO SAVEPOINT a", "RELEASE SAVEPOINT a"),
        ("UPDATE loose SET v = v + 1", "UPDATE loose SET v = v + 1 WHERE k < 9"),
        ("COMMIT", "ROLLBACK"),
    ],
)
def test_a_difference_is_found(twins: Both, statement: str, instead: str) -> None:
    asked = twins.lake.ask

    def wrongly(say: Say) -> object:
        return asked(Say(instead) if say.statement == statement else say)

    twins.lake.ask = wrongly  # type: ignore[assignment, method-assign]
    program = (
        *(Say("BEGIN"), Say("SAVEPOINT a"), Say("UPDATE loose SET v = v + 1"), Say("ROLLBACK TO SAVEPOINT a")),
        *(Say("UPDATE loose SET v = v + 1"), Say(Copy("COPY loose FROM STDIN", "6\t6\tx\n")), Say("COMMIT")),
    )
    with pytest.raises(Different, match=r"expected|rows missing"):
        twins.play(VARIANTS[0], program)
