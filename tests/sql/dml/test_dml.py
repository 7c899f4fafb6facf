"""DML on lake tables and on a second PostgreSQL: answers, SQLSTATE, messages, notices and tables equal.

A case runs on one drawn variant; ``-m slow`` runs every case on every variant. Cases run in savepoints that are
rolled back; some of them, and those that begin transactions themselves, run in autocommit on a branch of their own,
which Spark, PyIceberg and DuckDB then read. See README.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from dml.asking import Connection
from dml.cases import Case
from dml.generated import CASES as GENERATED
from dml.generated import generate
from dml.handwritten import CASES as HANDWRITTEN
from dml.handwritten import LIMITS
from dml.readers import DuckDbReader, PyIcebergReader, Reader, SparkReader
from dml.running import Difference, answers, drawn, in_autocommit, in_savepoints, state
from dml.sides import LakeSide, PostgresSide
from dml.tables import VARIANTS, Variant
from icefield.sql.brain.cluster import BrainTemplate, Cluster
from support.spark_client import SparkClient
from support.up import Up

CASES = [*HANDWRITTEN, *GENERATED]
IN_AUTOCOMMIT, IN_AUTOCOMMIT_QUICKLY = 10, 30
"""One case of so many runs outside a transaction: in the slow suite, in the quick one."""


def quick(case: Case) -> bool:
    """All that is generated, and half of what is written by hand: the quick suite has five minutes."""
    return case in GENERATED or drawn(case, 2, "quick") == 0


def told(differences: Sequence[Difference]) -> str:
    return "\n".join([f"{len(differences)} differ", *map(str, differences)])


# The corpus itself ---------------------------------------------------------------------------------------------------


def test_there_are_enough_of_them() -> None:
    assert len({str(case) for case in HANDWRITTEN if quick(case)}) >= 120
    assert len({str(case) for case in GENERATED}) >= 400
    assert [str(case) for case in generate()] == [str(case) for case in GENERATED]
    assert {drawn(case, len(VARIANTS)) for case in CASES} == set(range(len(VARIANTS)))


@pytest.fixture(scope="module")
def second() -> Iterator[PostgresSide]:
    with Cluster.clone(BrainTemplate()) as cluster:
        yield PostgresSide(cluster, VARIANTS)


@pytest.mark.sql
def test_no_answer_depends_on_the_order_in_which_rows_are_stored(second: PostgresSide) -> None:
    with Cluster.clone(BrainTemplate()) as cluster:
        shuffled = PostgresSide(cluster, VARIANTS, shuffled=True)
        within = [case for case in CASES if not case.alone]
        differences = in_savepoints(second, shuffled, VARIANTS[0], within)
        differences += in_autocommit(second, shuffled, VARIANTS[-1], [case for case in CASES if case.alone])
        assert not differences, told(differences)


@pytest.mark.sql
def test_a_difference_is_found(second: PostgresSide) -> None:
    """The comparison itself: of rows, tags, errors, notices and tables."""
    with Cluster.clone(BrainTemplate()) as cluster:
        other = PostgresSide(cluster, VARIANTS[:1])
        changing = Connection(other.dsn("base"))
        changing.must(VARIANTS[0].place("UPDATE dml.t SET t = 'another' WHERE id = 1"))
        changing.must(VARIANTS[0].place("ALTER TABLE dml.k DROP CONSTRAINT k_a_b_key"))
        changing.close()
        found = in_savepoints(
            second,
            other,
            VARIANTS[0],
            [
                Case(("UPDATE dml.t SET n = n RETURNING *",)),
                Case(("DELETE FROM dml.t WHERE t = 'one'",)),
                Case(("UPDATE dml.s SET v = t.t FROM dml.t WHERE t.id = 1",)),
                Case(("UPDATE dml.k SET a = 1, b = 'same'",)),
                Case(("DO $$ BEGIN RAISE NOTICE '%', (SELECT t FROM dml.t WHERE id = 1); DELETE FROM dml.t; END $$",)),
                Case(("DELETE FROM dml.t WHERE id = 2", "DELETE FROM dml.t")),
            ],
        )
    assert [str(difference.what).partition(" of ")[0] for difference in found] == [
        "answer", "answer", "tables afterwards", "answer", "answer",
    ]  # fmt: skip


# The lake ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spark(up: Up) -> Iterator[SparkClient]:
    client = SparkClient(up.url, {"lake": "lake"})
    yield client
    client.close()


@pytest.fixture(scope="module")
def lake(up: Up, spark: SparkClient) -> LakeSide:
    return LakeSide(up, spark, VARIANTS)


@pytest.fixture(scope="module")
def readers(up: Up, spark: SparkClient) -> Iterator[list[Reader]]:
    duck = DuckDbReader(up.url)
    yield [SparkReader(up.url, spark), PyIcebergReader(up.url), duck]
    duck.close()


def run(
    second: PostgresSide,
    lake: LakeSide,
    readers: Sequence[Reader],
    parts: Sequence[tuple[Variant, Sequence[Case]]],
    *,
    share: int,
) -> list[Difference]:
    """Two connections at a time: while Spark plans for one, the brain of the other works. ``share``: one of so many
    in autocommit."""
    differences: list[Difference] = []
    with ThreadPoolExecutor(2) as pool:
        works = []
        for variant, cases in parts:
            outside = [case for case in cases if case.alone or drawn(case, share, "autocommit") == 0]
            within = [case for case in cases if case not in outside]
            works.append(pool.submit(in_savepoints, second, lake, variant, within))
            works.append(pool.submit(in_autocommit, second, lake, variant, outside, readers))
        for work in works:
            differences += work.result()
    return differences


@pytest.mark.spark
@pytest.mark.sql
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("case", "sqlstate"), LIMITS, ids=lambda value: str(value)[:40])
def test_what_is_not_done_is_refused(case: Case, sqlstate: str, lake: LakeSide) -> None:
    with_others = Case(("SELECT 1",))
    connection = lake.connect()
    try:
        before = state(connection, with_others, VARIANTS[0])
        if not case.alone:
            connection.must("BEGIN")
        error = answers(connection, case, VARIANTS[0])[-1].error
        assert error is not None
        assert error[0] == sqlstate
        if connection.open_transaction:
            connection.must("ROLLBACK")
        assert state(connection, with_others, VARIANTS[0]) == before
    finally:
        connection.close()


@pytest.mark.spark
@pytest.mark.sql
@pytest.mark.timeout(1800)
def test_every_statement_does_what_postgresql_does(second: PostgresSide, lake: LakeSide, readers: list[Reader]) -> None:
    parts = [
        (variant, [case for case in CASES if quick(case) and drawn(case, len(VARIANTS)) == number])
        for number, variant in enumerate(VARIANTS)
    ]
    differences = run(second, lake, readers, parts, share=IN_AUTOCOMMIT_QUICKLY)
    assert not differences, told(differences)


@pytest.mark.spark
@pytest.mark.sql
@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_statement_does_what_postgresql_does_on(
    variant: Variant, second: PostgresSide, lake: LakeSide, readers: list[Reader]
) -> None:
    differences = run(second, lake, readers, [(variant, CASES[::2]), (variant, CASES[1::2])], share=IN_AUTOCOMMIT)
    assert not differences, told(differences)
