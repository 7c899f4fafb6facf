"""What a statement did to a target: the fill less what is deleted, with what is new, is the table PostgreSQL has."""

# ruff: noqa: E501 (a statement reads best on one line)

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from conftest import Loop
from icefield.engine.port import FetchedFrom
from icefield.pgwire.brain_link import BrainLink
from icefield.sql import changes, types
from icefield.sql.brain.pool import Brain
from icefield.sql.changes import Difference, Target
from icefield.sql.origin import Origin
from icefield.sql.shadows import Column, Shadow

pytestmark = pytest.mark.sql

COLUMNS = tuple(
    Column(name, types.from_iceberg(kind), False) for name, kind in (("id", "int"), ("n", "int"), ("t", "string"))
)
ROWS = 2000
_FIRST_ROW_ID = 10_000


@pytest.fixture
def link(loop: Loop, brain: Brain) -> Iterator[BrainLink]:
    client = loop(brain.open_client({}))
    loop(
        brain.admin.query(
            "SET icefield.ddl = 'on'; CREATE TABLE public.t (id int, n int, t text, UNIQUE (id));"
            f'ALTER TABLE public.t OWNER TO "{brain.role}"'
        )
    )
    yield client
    loop(client.close())
    loop(brain.admin.query("DROP TABLE public.t"))


async def run(link: BrainLink, statements: list[str], *, version: int, count: int = ROWS) -> tuple[Any, Difference]:
    """The rows before, the difference that the statements made, and the rows that the brain has after them."""
    oid = int((await link.query("SELECT 'public.t'::regclass::oid")).scalar() or 0)
    shadow = Shadow((), "t", COLUMNS, "public", oid=oid)
    origin = Origin()
    origin.source = FetchedFrom(1, version, ("f0", "f1"))
    text = [(i, i % 7, "x" * (1500 if i % 97 == 0 else i % 13)) for i in range(count)]
    identity: dict[str, Any] = {
        "_file": pa.array([i % 2 for i in range(count)], pa.int32()),
        "_pos": pa.array([i // 2 for i in range(count)], pa.int64()),
    }
    if version >= 3:
        identity["_row_id"] = pa.array([_FIRST_ROW_ID + i for i in range(count)], pa.int64())
    batch = pa.RecordBatch.from_pydict({"id": pa.array([r[0] for r in text], pa.int32())} | identity)
    origin.add(batch, 1)
    target = Target(shadow, origin, count)
    await link.query("BEGIN ISOLATION LEVEL REPEATABLE READ; SAVEPOINT icefield_fill; TRUNCATE ONLY public.t")
    await link.copy_in("COPY public.t FROM STDIN", ["\t".join(map(str, r)).encode() + b"\n" for r in text])
    await changes.prepare(link, target)
    await link.query("SAVEPOINT icefield_statement")
    for statement in statements:
        await link.query(statement)
    difference = await changes.read(link, target)
    after = [
        (int(i) if i is not None else None, int(n) if n is not None else None, t)
        for i, n, t in (await link.query("SELECT id, n, t FROM public.t")).rows
    ]
    await link.query("ROLLBACK TO SAVEPOINT icefield_fill; RELEASE SAVEPOINT icefield_fill; COMMIT")
    assert (await link.query("SELECT count(*) FROM public.t")).scalar() == "0"
    named = origin.deleted(difference.deleted).to_pydict()
    assert [f + 2 * p for f, p in zip(named["file"], named["pos"], strict=True)] == difference.deleted.tolist()
    assert sum(origin.alive()) == count
    left = [row for at, row in enumerate(text) if at not in set(difference.deleted.tolist())]
    new = [tuple(row[name] for name in ("id", "n", "t")) for row in difference.rows.to_pylist()]
    assert Counter(left) + Counter(new) == Counter(after)
    return text, difference


def row_ids(difference: Difference) -> dict[Any, int | None]:
    return {row["id"]: row["_row_id"] for row in difference.rows.to_pylist()}


def test_an_update_names_the_rows_it_replaces(loop: Loop, link: BrainLink) -> None:
    _, found = loop(run(link, ["UPDATE t SET n = n + 1 WHERE id % 3 = 0"], version=3))
    assert found.deleted.tolist() == list(range(0, ROWS, 3))
    assert row_ids(found) == {i: _FIRST_ROW_ID + i for i in range(0, ROWS, 3)}
    assert found.replaced == len(found.deleted)


def test_a_large_table_whose_places_come_from_several_workers(loop: Loop, link: BrainLink) -> None:
    loop(link.query("SET min_parallel_table_scan_size = 0; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0"))
    _, found = loop(run(link, ["UPDATE t SET n = n + 1 WHERE id % 10 = 7"], version=3, count=100_000))
    assert found.deleted.tolist() == list(range(7, 100_000, 10))
    assert row_ids(found) == {i: _FIRST_ROW_ID + i for i in range(7, 100_000, 10)}


def test_a_row_after_truncate_replaces_none(loop: Loop, link: BrainLink) -> None:
    statement = "DO $$ BEGIN TRUNCATE t; INSERT INTO t VALUES (-1, 0, 'new'), (-2, 0, 'new'); END $$"
    _, found = loop(run(link, [statement], version=3))
    assert found.deleted.tolist() == list(range(ROWS))
    assert row_ids(found) == {-1: None, -2: None}


def test_format_2_has_no_row_ids(loop: Loop, link: BrainLink) -> None:
    _, found = loop(run(link, ["UPDATE t SET n = 0 WHERE id < 3", "DELETE FROM t WHERE id = 5"], version=2))
    assert found.rows.column_names == ["id", "n", "t"]
    assert found.deleted.tolist() == [0, 1, 2, 5]


@pytest.mark.parametrize(
    ("statements", "deleted", "ids"),
    [
        (["DELETE FROM t WHERE id IN (0, 1999)"], [0, 1999], {}),
        (["INSERT INTO t VALUES (-1, 0, 'new')"], [], {-1: None}),
        (["UPDATE t SET id = id + 100000 WHERE id = 7", "UPDATE t SET n = 5 WHERE id = 100007"], [7], {100007: 10_007}),
        (["UPDATE t SET n = 5 WHERE id = 7", "DELETE FROM t WHERE id = 7"], [7], {}),
        (["DELETE FROM t WHERE id = 7", "INSERT INTO t VALUES (7, 1, 'again')"], [7], {7: None}),
        (["INSERT INTO t VALUES (-1, 0, 'new')", "UPDATE t SET n = 9 WHERE id = -1"], [], {-1: None}),
        (
            ["INSERT INTO t VALUES (3, 0, 'c') ON CONFLICT (id) DO UPDATE SET id = -3, t = excluded.t"],
            [3],
            {-3: 10_003},
        ),
        (["TRUNCATE t"], list(range(ROWS)), {}),
        (
            [
                (
                    "DO $$ BEGIN FOR i IN 1..3 LOOP BEGIN UPDATE t SET n = -i WHERE id = i; PERFORM 1 / (i - 2);"
                    " EXCEPTION WHEN division_by_zero THEN UPDATE t SET t = 'caught' WHERE id = i; END; END LOOP; END $$"
                )
            ],
            [1, 2, 3],
            {1: 10_001, 2: 10_002, 3: 10_003},
        ),
        (
            [
                (
                    "MERGE INTO t USING (VALUES (1), (2), (-9)) s(id) ON s.id = t.id WHEN MATCHED AND s.id = 1 THEN DELETE"
                    " WHEN MATCHED THEN UPDATE SET t = 'm' WHEN NOT MATCHED THEN INSERT VALUES (s.id, 0, 'i')"
                )
            ],
            [1, 2],
            {2: 10_002, -9: None},
        ),
        (["UPDATE t SET n = n WHERE false"], [], {}),
    ],
)
def test_statements(
    loop: Loop, link: BrainLink, statements: list[str], deleted: list[int], ids: dict[int, int | None]
) -> None:
    _, found = loop(run(link, statements, version=3))
    assert found.deleted.tolist() == deleted
    assert row_ids(found) == ids
    assert found.empty == (not deleted and not ids)


def test_an_empty_table(loop: Loop, link: BrainLink) -> None:
    _, found = loop(run(link, ["INSERT INTO t VALUES (1, 1, NULL), (2, NULL, '')"], version=3, count=0))
    assert not len(found.deleted)
    assert row_ids(found) == {1: None, 2: None}


@pytest.mark.parametrize("seed", range(12))
def test_random_statements(loop: Loop, link: BrainLink, seed: int) -> None:
    """The asserts are in ``run``: besides, every row id is kept by at most one row, and only by a changed one."""
    random_ = random.Random(seed)
    statements = []
    for _ in range(12):
        low = random_.randrange(ROWS)
        high = low + random_.randrange(1, 300)
        statements.append(
            random_.choice(
                [
                    f"UPDATE t SET n = n + 1, t = repeat('y', {random_.randrange(0, 900)}) WHERE id BETWEEN {low} AND {high}",
                    f"DELETE FROM t WHERE id BETWEEN {low} AND {low + 40}",
                    (
                        f"INSERT INTO t SELECT -g - {random_.randrange(10**6)} * 1000, 1, 'i' FROM generate_series(1, 50) g"
                        " ON CONFLICT (id) DO UPDATE SET t = 'c'"
                    ),
                    (
                        f"SAVEPOINT x; UPDATE t SET t = 'lost' WHERE id > {low}; DELETE FROM t WHERE id < {low};"
                        " ROLLBACK TO SAVEPOINT x; RELEASE SAVEPOINT x"
                    ),
                    f"UPDATE t SET id = id + 1000000 WHERE id BETWEEN {low} AND {low + 5}",
                ]
            )
        )
    _, found = loop(run(link, statements, version=3))
    kept = [i for i in row_ids(found).values() if i is not None]
    assert len(kept) == len(set(kept)) == found.replaced
    assert {i - _FIRST_ROW_ID for i in kept} <= set(found.deleted.tolist())
