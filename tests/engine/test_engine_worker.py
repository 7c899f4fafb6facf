"""The engine as the SQL door uses it: a worker process, its socket, real tables of a real server."""

from __future__ import annotations

import datetime as dt
import math
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from engine_door import Door, Worker

from icefield.engine.port import Cancelled, EngineBusy, EngineLost, TooManyRows
from icefield.model.errors import BadRequest, NoSuchTable
from support.server import Http, RunningServer

pytestmark = pytest.mark.spark

COLUMNS = [
    ("id", "long", True),
    ("b", "boolean", False),
    ("i", "int", False),
    ("x", "double", False),
    ("n", "decimal(38, 10)", False),
    ("s", "string", False),
    ("d", "date", False),
    ("ts", "timestamp", False),
    ("tz", "timestamptz", False),
]
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("b", pa.bool_()),
        ("i", pa.int32()),
        ("x", pa.float64()),
        ("n", pa.decimal128(38, 10)),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("ts", pa.timestamp("us")),
        ("tz", pa.timestamp("us", "UTC")),
    ]
)
ROWS: list[dict[str, Any]] = [
    {"id": 1},
    {
        "id": -(2**63),
        "b": True,
        "i": -(2**31),
        "x": -0.0,
        "n": Decimal("-9999999999999999999999999999.9999999999"),
        "s": "\x01é😀\n'\"",
        "d": dt.date(1, 1, 1),
        "ts": dt.datetime(1, 1, 1),  # noqa: DTZ001
        "tz": dt.datetime(1, 1, 1, tzinfo=dt.UTC),
    },
    {
        "id": 2**63 - 1,
        "b": False,
        "i": 2**31 - 1,
        "x": math.inf,
        "n": Decimal("0.0000000001"),
        "s": "",
        "d": dt.date(9999, 12, 31),
        "ts": dt.datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
        "tz": dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
    },
    {"id": 2, "x": math.nan, "d": dt.date(1582, 10, 10), "ts": dt.datetime(1582, 10, 10, 1, 2, 3, 4)},  # noqa: DTZ001
]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="engine-") as name:  # a socket's path must be short
        yield Path(name)


@pytest.fixture(scope="module")
def lake(folder: Path) -> Iterator[Http]:
    with RunningServer(folder / "lake") as running:
        http = running.http()
        assert http.post("/v1/lake/namespaces", {"namespace": ["sales"]}).status == 200
        yield http


@pytest.fixture(scope="module")
def worker(lake: Http, folder: Path) -> Iterator[Worker]:
    running = Worker(lake.url, folder)
    yield running
    assert running.stop() == 0


@pytest.fixture
def table(lake: Http, request: pytest.FixtureRequest) -> str:
    fields = [{"id": n, "name": c, "type": t, "required": r} for n, (c, t, r) in enumerate(COLUMNS, 1)]
    name = f"t-{request.node.name[5:]}"
    schema = {"type": "struct", "schema-id": 0, "fields": fields}
    created = lake.post("/v1/lake/namespaces/sales/tables", {"name": name, "schema": schema})
    assert created.status == 200, created
    return name


@pytest.fixture
def door(lake: Http, worker: Worker) -> Iterator[Door]:
    opened = Door(lake, worker, SCHEMA)
    yield opened
    opened.close()


@pytest.fixture
def other(lake: Http, worker: Worker) -> Iterator[Door]:
    opened = Door(lake, worker, SCHEMA)
    yield opened
    opened.close()


def same(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> bool:
    """NaN is NaN, and -0.0 is not 0.0."""
    return [{k: repr(v) for k, v in row.items()} for row in left] == [
        {k: repr(v) for k, v in row.items()} for row in right
    ]


def test_awkward_values_go_in_and_come_out_exactly(door: Door, table: str) -> None:
    assert door.add(table, ROWS) == len(ROWS)
    found = door.rows(table)
    assert found.schema.types == SCHEMA.types
    wanted = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA).sort_by("id").to_pylist()
    assert same(found.sort_by("id").to_pylist(), wanted)


def test_columns_are_the_asked_ones_in_their_order(door: Door, table: str) -> None:
    door.add(table, [{"id": 1, "s": "a"}, {"id": 2}])
    assert door.rows(table, ["s", "id"]).sort_by("id").to_pylist() == [{"s": "a", "id": 1}, {"s": None, "id": 2}]
    with pytest.raises(BadRequest, match='has no column "S"'):
        door.rows(table, ["S"])


def test_no_columns_still_have_rows(door: Door, table: str) -> None:
    door.add(table, [{"id": n} for n in range(5)])
    with door.statement() as engine, engine.fetch(["sales"], table, []) as stream:
        assert (sum(batch.num_rows for batch in stream), stream.schema.names) == (5, [])


def test_too_many_rows_is_an_error_never_a_cut(door: Door, table: str) -> None:
    door.add(table, [{"id": n} for n in range(10)])
    assert door.rows(table, max_rows=10).num_rows == 10
    with pytest.raises(TooManyRows, match=r"more than 9 rows") as caught:
        door.rows(table, max_rows=9)
    assert caught.value.limit == 9
    assert door.rows(table).num_rows == 10


def test_a_table_that_is_not_there(door: Door) -> None:
    with pytest.raises(NoSuchTable):
        door.rows("missing")
    with pytest.raises(NoSuchTable):
        door.add("missing", [{"id": 1}])


def test_an_append_is_one_snapshot_and_nothing_is_none(door: Door, lake: Http, table: str) -> None:
    many = pa.RecordBatch.from_pylist([{"id": n, "s": str(n)} for n in range(50_000)], schema=SCHEMA)
    with door.statement() as engine:
        assert engine.append(["sales"], table, SCHEMA, [many, many.slice(0, 10), many]) == 100_010
        assert engine.append(["sales"], table, SCHEMA, []) == 0
    loaded = lake.get(f"/v1/lake/namespaces/sales/tables/{table}").body["metadata"]
    assert [s["summary"]["total-records"] for s in loaded["snapshots"]] == ["100010"]
    assert door.rows(table, ["id"]).num_rows == 100_010


def test_columns_are_matched_by_name_and_converted_if_they_fit(door: Door, table: str) -> None:
    given = pa.schema([("x", pa.float32()), ("id", pa.int16())])
    assert door.add(table, [{"x": 0.5, "id": 7}], given) == 1
    assert door.rows(table, ["id", "x", "s"]).to_pylist() == [{"id": 7, "x": 0.5, "s": None}]


@pytest.mark.parametrize(
    ("schema", "row", "message"),
    [
        ([("id", pa.int64())], {"id": None}, r'null value in column "id"'),
        ([("s", pa.string())], {"s": "x"}, r'null value in column "id"'),
        ([("id", pa.int64()), ("zz", pa.int64())], {"id": 1, "zz": 1}, r'has no column "zz"'),
        ([("id", pa.int64()), ("i", pa.int64())], {"id": 1, "i": 2**40}, r'column "i" does not fit int32'),
    ],
    ids=["null", "left out", "unknown", "too large"],
)
def test_what_does_not_fit_is_refused_and_nothing_lands(
    door: Door, lake: Http, schema: Any, row: dict[str, Any], message: str
) -> None:
    name = "unfit"
    fields = [{"id": n, "name": c, "type": t, "required": r} for n, (c, t, r) in enumerate(COLUMNS, 1)]
    lake.post(
        "/v1/lake/namespaces/sales/tables",
        {"name": name, "schema": {"type": "struct", "schema-id": 0, "fields": fields}},
    )
    with pytest.raises(BadRequest, match=message):
        door.add(name, [row], pa.schema(schema))
    assert door.rows(name).num_rows == 0


def test_rows_that_fail_on_the_way_land_nothing(door: Door, table: str) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"id": 1}], schema=SCHEMA)
        raise ValueError("the door's own trouble")

    with door.statement() as engine, pytest.raises(ValueError, match="own trouble"):
        engine.append(["sales"], table, SCHEMA, failing())
    assert door.rows(table).num_rows == 0


def test_a_session_sees_its_own_transaction_and_nobody_elses(door: Door, other: Door, table: str) -> None:
    door.add(table, [{"id": 1}])
    door.do("begin")
    door.add(table, [{"id": 2}])
    assert (door.rows(table).num_rows, other.rows(table).num_rows) == (2, 1)
    door.do("rollback")
    assert door.rows(table).num_rows == 1
    door.do("begin")
    door.add(table, [{"id": 3}])
    door.do("commit")
    assert sorted(other.rows(table)["id"].to_pylist()) == [1, 3]


def test_one_request_at_a_time_and_a_stream_may_be_left(door: Door, table: str) -> None:
    door.add(table, [{"id": n} for n in range(1000)])
    with door.statement() as engine:
        stream = engine.fetch(["sales"], table)
        with pytest.raises(EngineBusy):
            engine.fetch(["sales"], table)
        stream.close()
        stream.close()
    assert door.rows(table).num_rows == 1000


def test_cancel_ends_the_request_and_not_the_session(door: Door, table: str) -> None:
    batch = pa.RecordBatch.from_pylist([{"id": n, "s": "x" * 500} for n in range(20_000)], schema=SCHEMA)
    with door.statement() as engine:
        engine.append(["sales"], table, SCHEMA, [batch] * 3)
    with door.statement() as engine, engine.fetch(["sales"], table) as stream:
        rows = iter(stream)
        next(rows)  # the rest does not fit into the socket: the worker waits for us
        canceller = threading.Thread(target=engine.cancel)
        canceller.start()
        canceller.join(timeout=30)
        with pytest.raises(Cancelled):
            list(rows)
    assert door.rows(table, ["id"]).num_rows == 60_000


def test_two_sessions_work_at_the_same_time(door: Door, other: Door, table: str) -> None:
    door.add(table, [{"id": n} for n in range(100)])
    counts: list[int] = []
    threads = [threading.Thread(target=lambda d=d: counts.append(d.rows(table).num_rows)) for d in (door, other) * 1]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert counts == [100, 100]


def test_a_worker_that_dies_is_found_again(door: Door, worker: Worker, table: str) -> None:
    """Last in this file: the worker is started twice."""
    door.add(table, [{"id": 1, "s": "x" * 1000}])
    started, resume = threading.Event(), threading.Event()

    def stalled() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"id": 2}], schema=SCHEMA)
        started.set()
        resume.wait(60)

    errors: list[BaseException] = []

    def write() -> None:
        try:
            with door.statement() as engine:
                engine.append(["sales"], table, SCHEMA, stalled())
        except BaseException as error:
            errors.append(error)

    writing = threading.Thread(target=write)
    writing.start()
    assert started.wait(60)
    jvm = int(Path(f"/proc/{worker.process.pid}/task/{worker.process.pid}/children").read_text().split()[0])
    os.kill(jvm, signal.SIGKILL)
    assert worker.process.wait(timeout=30) == 70
    resume.set()
    writing.join(timeout=30)
    assert [type(error) for error in errors] == [EngineLost]
    assert worker.process.stdin is not None
    assert worker.process.stdout is not None
    worker.process.stdin.close()
    worker.process.stdout.close()
    worker.start()
    assert door.rows(table, ["id"]).to_pylist() == [{"id": 1}]
