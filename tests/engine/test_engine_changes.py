"""Rows that were read with identity are changed: every way, both modes, formats 2 and 3, on a real server."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from engine_door import Door, Read, Row, Worker, change, read
from pyiceberg.catalog.rest import RestCatalog

from icefield.engine.port import Cancelled, Changed, EngineFailed, RowChange
from icefield.engine.spark.remote import SparkEngine, ask
from icefield.model.errors import BadRequest, CommitConflict, IcefieldError, NoSuchTable
from support.server import Http, RunningServer
from support.spark_client import SparkClient

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("g", pa.string()), ("n", pa.int32())])
FIELDS = [("id", "long", True), ("g", "string", False), ("n", "int", False)]
VERBS = ("update", "delete", "merge")
MODES = ("merge-on-read", "copy-on-write")
KINDS = [pytest.param(v, m, id=f"v{v}-{m}") for v in (2, 3) for m in MODES]
DELETED = pa.schema([("file", pa.int32()), ("pos", pa.int64()), ("row_id", pa.int64())])


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="engine-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with RunningServer(folder / "lake") as running:
        yield running


@pytest.fixture(scope="module")
def lake(server: RunningServer) -> Http:
    http = server.http()
    assert http.post("/v1/lake/namespaces", {"namespace": ["sales"]}).status == 200
    return http


@pytest.fixture(scope="module")
def worker(lake: Http, folder: Path) -> Iterator[Worker]:
    running = Worker(lake.url, folder)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def door(lake: Http, worker: Worker) -> Iterator[Door]:
    opened = Door(lake, worker, SCHEMA)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def public(lake: Http, worker: Worker) -> Iterator[Door]:
    opened = Door(lake, worker, SCHEMA, way="public")
    yield opened
    opened.close()


@pytest.fixture(params=["internal", "public"])
def any_door(request: pytest.FixtureRequest) -> Door:
    found: Door = request.getfixturevalue("door" if request.param == "internal" else "public")
    return found


@pytest.fixture(scope="module")
def spark(lake: Http) -> Iterator[SparkClient]:
    """Somebody else's Spark, on the branch."""
    client = SparkClient(lake.url, {"lake": "lake"})
    yield client
    client.close()


class Table:
    """A table of the server, as others see it."""

    def __init__(self, lake: Http, name: str) -> None:
        self.lake, self.name = lake, name

    def metadata(self) -> dict[str, Any]:
        answer = self.lake.get(f"/v1/lake/namespaces/sales/tables/{self.name}")
        assert answer.status == 200, answer
        found: dict[str, Any] = answer.body["metadata"]
        return found

    @property
    def snapshots(self) -> int:
        return len(self.metadata().get("snapshots", []))

    def files(self) -> set[str]:
        """What lies in its data folder."""
        folder = Path(self.metadata()["location"].removeprefix("file://").removeprefix("file:")) / "data"
        return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name[0] != "."}


@pytest.fixture
def make(lake: Http, request: pytest.FixtureRequest) -> Callable[..., Table]:
    def made(version: int, mode: str, fields: Any = (), more: dict[str, str] | None = None) -> Table:
        name = "".join(c if c.isalnum() else "_" for c in request.node.name)
        columns = [{"id": n, "name": c, "type": t, "required": r} for n, (c, t, r) in enumerate(FIELDS, 1)]
        modes = {f"write.{verb}.mode": mode for verb in VERBS}
        if mode == "copy-on-write":
            modes.pop("write.delete.mode")  # it is what Iceberg does if nothing is said
        body = {
            "name": name,
            "schema": {"type": "struct", "schema-id": 0, "fields": columns},
            "partition-spec": {"spec-id": 0, "fields": list(fields)},
            "properties": {"format-version": str(version)} | modes | (more or {}),
        }
        created = lake.post("/v1/lake/namespaces/sales/tables", body)
        assert created.status == 200, created
        return Table(lake, name)

    return made


def line(number: int) -> Row:
    return {"id": number, "g": f"g{number // 10}" if number % 7 else None, "n": number % 10}


def fill(door: Door, table: Table, parts: int = 3) -> list[Row]:
    for part in range(parts):
        door.add(table.name, [line(part * 10 + n) for n in range(10)])
    return [line(n) for n in range(parts * 10)]


def plain(seen: Read) -> list[Row]:
    rows = [{name: row[name] for name in SCHEMA.names} for row in seen.rows]
    return sorted(rows, key=lambda row: row["id"])


def edited(rows: list[Row], edit: Callable[[Row], Row | None], new: list[Row]) -> list[Row]:
    kept = [row for row in map(edit, rows) if row is not None]
    return sorted(kept + new, key=lambda row: row["id"])


def set_n(numbers: set[int], value: int, gone: set[int] = frozenset()) -> Callable[[Row], Row | None]:  # type: ignore[assignment]
    return lambda row: None if row["id"] in gone else {**row, "n": value} if row["id"] in numbers else row


def ids(seen: Read) -> dict[int, int]:
    return {row["id"]: row["_row_id"] for row in seen.rows}


def sequence_numbers(spark: SparkClient, table: Table) -> dict[int, int]:
    found = spark.sql(f"SELECT id, _last_updated_sequence_number FROM lake.sales.{table.name}")
    return {row[0]: row[1] for row in found}


@pytest.mark.parametrize(("version", "mode"), KINDS)
def test_the_life_of_a_table(
    make: Callable[..., Table], any_door: Door, spark: SparkClient, version: int, mode: str
) -> None:
    door, table = any_door, make(version, mode)
    rows = fill(door, table)
    internal = any_door.engine._engine.way is None

    # Update, delete and insert at once: one snapshot.
    edit, new = set_n({6, 15}, -1, {5}), [{"id": 100, "g": None, "n": 0}]
    with door.statement() as engine:
        first = read(engine, table.name)
        told = change(engine, table.name, edit, new, "merge", first)
    rows = edited(rows, edit, new)
    assert (told.rows_written, told.rows_deleted) == (3, 3)
    assert told.way == ("public" if not internal else "row-delta" if mode == "merge-on-read" else "rewrite")
    if internal:
        expected = (1, 0, 2) if mode == "merge-on-read" else (2, 2, 0)
        assert (told.files_added, told.files_removed, told.files_with_deletes) == expected
    assert table.snapshots == 4

    # The same files again; a row that was changed before; rows at the ends of a file.
    edit = set_n({0, 6, 19}, -2, {9, 100})
    with door.statement() as engine:
        second = read(engine, table.name)
        assert plain(second) == rows
        change(engine, table.name, edit, seen=second)
    rows = edited(rows, edit, [])
    with door.statement() as engine:
        third = read(engine, table.name)
    assert plain(third) == rows

    if version == 3 and (internal or mode == "merge-on-read"):
        was, now = ids(first), ids(third)
        assert {n: now[n] for n in now} == {n: was[n] for n in now}  # nobody's row id changed
        assert ids(second)[100] not in was.values()
        changed = sequence_numbers(spark, table)
        assert {n: s for n, s in changed.items() if s > 3} == {15: 4, 0: 5, 6: 5, 19: 5}

    # All rows of a file that lost some before, and one row of another.
    with door.statement() as engine:
        seen = read(engine, table.name)
        whole = next(row["_file"] for row in seen.rows if row["id"] == 22)
        gone = {row["id"] for row in seen.rows if row["_file"] == whole} | {1}
        told = change(engine, table.name, lambda row: None if row["id"] in gone else row, verb="delete", seen=seen)
        rows = [row for row in rows if row["id"] not in gone]
        after = read(engine, table.name)
    assert plain(after) == rows
    if internal or mode == "copy-on-write":
        assert seen.source.files[whole] not in after.source.files
        assert told.files_removed >= 1

    others = spark.sql(f"SELECT id, g, n FROM lake.sales.{table.name} ORDER BY id")
    assert others == [[row["id"], row["g"], row["n"]] for row in rows]
    if internal:
        spark.sql(
            f"CALL lake.system.rewrite_data_files(table => 'sales.{table.name}', options => map('rewrite-all', 'true'))"
        )
        with door.statement() as engine:
            compacted = read(engine, table.name)
        assert plain(compacted) == rows
        assert len(compacted.source.files) == 1
        if version == 3:
            assert ids(compacted) == ids(after)

    with door.statement() as engine:
        seen = read(engine, table.name)
        assert engine.truncate(["sales"], table.name, snapshot_id=seen.source.snapshot_id).rows_deleted == len(rows)
        assert read(engine, table.name).rows == []
        with pytest.raises(CommitConflict, match="was changed since"):
            engine.truncate(["sales"], table.name, snapshot_id=seen.source.snapshot_id)


PARTITIONED = [
    {"source-id": 1, "field-id": 1000, "transform": "bucket[2]", "name": "b"},
    {"source-id": 2, "field-id": 1001, "transform": "identity", "name": "p"},
]


@pytest.mark.parametrize(("version", "mode"), KINDS)
def test_partitions(make: Callable[..., Table], any_door: Door, spark: SparkClient, version: int, mode: str) -> None:
    door, table = any_door, make(version, mode, PARTITIONED)
    rows = fill(door, table, 2)

    def move(row: Row) -> Row | None:
        if row["id"] in (3, 7, 12):
            return {**row, "g": "g1" if row["g"] != "g1" else "g0"}  # 7 leaves the NULL partition
        return {**row, "g": None} if row["id"] in (4, 15) else None if row["id"] == 14 else row

    with door.statement() as engine:
        told = change(engine, table.name, move, [{"id": 50, "g": "new", "n": None}])
        rows = edited(rows, move, [{"id": 50, "g": "new", "n": None}])
        assert plain(read(engine, table.name)) == rows
    assert told.files_added <= 12
    spark.sql(f"ALTER TABLE lake.sales.{table.name} DROP PARTITION FIELD p")
    spark.sql(f"ALTER TABLE lake.sales.{table.name} ADD PARTITION FIELD truncate(3, n)")
    edit = set_n({1, 2, 3, 16}, 40, {0, 8, 11})
    with door.statement() as engine:
        change(engine, table.name, edit, [line(60)], "merge")
        rows = edited(rows, edit, [line(60)])
        assert plain(read(engine, table.name)) == rows
        edit = set_n({2, 17, 60}, 41, {3})
        change(engine, table.name, edit)
        rows = edited(rows, edit, [])
        assert plain(read(engine, table.name)) == rows
    for where, test in (("g IS NULL", lambda r: r["g"] is None), ("n = 41", lambda r: r["n"] == 41)):
        found = spark.sql(f"SELECT id FROM lake.sales.{table.name} WHERE {where} ORDER BY id")
        assert [row[0] for row in found] == [row["id"] for row in rows if test(row)]


@contextmanager
def refused(door: Door, table: Table, error: type[IcefieldError], match: str) -> Iterator[None]:
    """Nothing changes and nothing is left behind."""
    snapshots, files = table.snapshots, table.files()
    with door.statement() as engine:
        rows = plain(read(engine, table.name))
    with pytest.raises(error, match=match):
        yield
    with door.statement() as engine:
        assert plain(read(engine, table.name)) == rows
    assert table.snapshots == snapshots
    if door.engine._engine.way is None:  # Spark's own MERGE leaves files behind when it fails
        assert table.files() == files


def gone(*rows: tuple[int, int, int | None]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(DELETED.names, row, strict=True)) for row in rows], schema=DELETED)


@pytest.mark.parametrize(("version", "mode"), KINDS)
def test_a_change_that_does_not_fit_is_refused(
    make: Callable[..., Table], any_door: Door, version: int, mode: str
) -> None:
    door, table = any_door, make(version, mode)
    fill(door, table, 2)
    with door.statement() as engine:
        stale = read(engine, table.name)
        change(engine, table.name, set_n(set(), 0, {3}))
        seen = read(engine, table.name)
    with refused(door, table, CommitConflict, "was changed since"), door.statement() as engine:
        change(engine, table.name, set_n({4}, 9), seen=stale)

    # Positions of the snapshot, but not of its rows.
    known = {(row["_file"], row["_pos"]): row for row in seen.rows}
    file = next(row["_file"] for row in seen.rows if row["id"] == (4 if mode == "merge-on-read" else 14))
    missing = next(n for n in range(100) if (file, n) not in known)
    new = [pa.RecordBatch.from_pylist([line(77)], schema=SCHEMA)]

    def attempt(deleted: pa.Table, alive: list[int] | None = None, files: tuple[str, ...] | None = None) -> Changed:
        source = seen.source if files is None else replace(seen.source, files=files)
        what = RowChange(source, "update", deleted, seen.alive if alive is None else alive)
        with door.statement() as engine:
            return engine.change(["sales"], table.name, what, SCHEMA, new)

    lost = gone((file, missing, 10**6 if version == 3 else None))
    with refused(
        door,
        table,
        CommitConflict,
        "deleted already|has no row at|not there any more|are not in table|changed or deleted",
    ):
        attempt(lost)
    with refused(door, table, CommitConflict, "no data file|not in table|changed or deleted"):
        elsewhere = tuple(path.replace("/data/", "/data/no-") for path in seen.source.files)
        attempt(gone((file, 0, 10**6 if version == 3 else None)), files=elsewhere)
    with refused(door, table, BadRequest, "deleted twice"):
        attempt(gone((0, 0, None), (0, 0, None)))
    with refused(door, table, BadRequest, "rows are deleted of"):
        attempt(gone((0, 0, None)), [0] * len(seen.alive))
    with refused(door, table, BadRequest, "not a number of a file"):
        attempt(gone((99, 0, None)))
    if door.engine._engine.way is None:
        with refused(door, table, CommitConflict, "were read of it"):
            attempt(gone((file, 0, 0)), [count + 1 for count in seen.alive])


@pytest.mark.parametrize("version", [2, 3])
def test_new_rows_must_fit(make: Callable[..., Table], door: Door, version: int) -> None:
    table = make(version, "merge-on-read")
    fill(door, table, 1)
    with refused(door, table, BadRequest, 'null value in column "id"'), door.statement() as engine:
        change(engine, table.name, lambda row: {**row, "id": None})
    loose = pa.schema([("id", pa.int64()), ("_row_id", pa.int64())])
    with door.statement() as engine:
        seen = read(engine, table.name)
        what = RowChange(seen.source, "update", gone((0, 0, 0)), seen.alive)
        for kept, match in (([5], "not replaced|could keep"), ([0, 0], "same row id|could keep")):
            rows = [pa.RecordBatch.from_pylist([{"id": 1, "_row_id": n} for n in kept], schema=loose)]
            with pytest.raises(BadRequest, match=match):
                engine.change(["sales"], table.name, what, loose, rows)


def test_nothing_is_no_snapshot_and_only_new_rows_are_an_append(make: Callable[..., Table], any_door: Door) -> None:
    door, table = any_door, make(3, "merge-on-read")
    with door.statement() as engine:
        seen = read(engine, table.name)
        assert (seen.source.snapshot_id, seen.source.files, seen.rows) == (None, (), [])
        assert change(engine, table.name) == Changed()
        assert engine.truncate(["sales"], table.name, snapshot_id=None) == Changed()
        assert table.snapshots == 0
        told = change(engine, table.name, new=[line(1), line(2)])
        assert told == Changed(rows_written=2, files_added=1, way="append")
    assert [s["summary"]["operation"] for s in table.metadata()["snapshots"]] == ["append"]
    with door.statement() as engine, pytest.raises(CommitConflict):
        engine.truncate(["sales"], table.name, snapshot_id=None)


@pytest.mark.parametrize("mode", MODES)
def test_a_change_belongs_to_its_transaction(
    make: Callable[..., Table], door: Door, lake: Http, worker: Worker, mode: str
) -> None:
    table = make(3, mode)
    rows = fill(door, table, 2)
    other = Door(lake, worker, SCHEMA)
    door.do("begin")
    with door.statement() as engine:
        change(engine, table.name, set_n({1, 11}, 5, {2}))
    with door.statement() as engine:
        change(engine, table.name, set_n({3}, 6))
    with other.statement() as engine:
        assert plain(read(engine, table.name)) == rows
    door.do("commit")
    rows = edited(edited(rows, set_n({1, 11}, 5, {2}), []), set_n({3}, 6), [])
    with other.statement() as engine:
        assert plain(read(engine, table.name)) == rows
    other.close()


def test_two_sessions_change_one_table(make: Callable[..., Table], door: Door, lake: Http, worker: Worker) -> None:
    """Who comes second with rows read before is told so, by the engine or by the server."""
    table = make(3, "merge-on-read")
    fill(door, table, 1)
    other = Door(lake, worker, SCHEMA)
    door.do("begin")
    with door.statement() as engine:
        change(engine, table.name, set_n({1}, 5))
    with other.statement() as engine:
        change(engine, table.name, set_n({1}, 7))
    assert door.http.post(f"{door.path}/commit").status == 409
    with door.statement() as engine:
        assert {row["id"]: row["n"] for row in read(engine, table.name).rows}[1] == 7
    other.close()


@pytest.mark.parametrize(("version", "mode"), KINDS)
def test_pyiceberg_reads_the_same(
    make: Callable[..., Table], door: Door, server: RunningServer, version: int, mode: str
) -> None:
    table = make(version, mode)
    rows = fill(door, table)
    edit = set_n({6, 15}, -1, {5, 29})
    with door.statement() as engine:
        change(engine, table.name, edit, [line(40)])
    rows = edited(rows, edit, [line(40)])
    catalog = RestCatalog("lake", uri=server.url, warehouse="lake")
    found = catalog.load_table(("sales", table.name)).scan().to_arrow().to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == rows


@pytest.mark.parametrize(
    ("version", "mode", "kind"),
    [(2, MODES[0], "orc"), (2, MODES[0], "avro"), (3, MODES[0], "orc"), (3, MODES[1], "avro")],
)
def test_other_file_formats(make: Callable[..., Table], door: Door, version: int, mode: str, kind: str) -> None:
    table = make(version, mode, more={"write.format.default": kind})
    rows = fill(door, table, 2)
    for edit in (set_n({1, 12}, 3, {2}), set_n({1}, 4, {13})):
        with door.statement() as engine:
            change(engine, table.name, edit)
        rows = edited(rows, edit, [])
    with door.statement() as engine:
        seen = read(engine, table.name)
    assert plain(seen) == rows
    assert all(path.endswith(kind) for path in seen.source.files)


@pytest.mark.parametrize("mode", MODES)
def test_many_rows_in_partitions_and_order(
    make: Callable[..., Table], door: Door, spark: SparkClient, mode: str
) -> None:
    """More than one batch, a sorted table, a distribution of its own: few files, right rows."""
    table = make(3, mode, PARTITIONED, {"write.update.distribution-mode": "range"})
    spark.sql(f"ALTER TABLE lake.sales.{table.name} WRITE ORDERED BY n DESC")
    many = [{"id": n, "g": f"g{n % 3}", "n": n} for n in range(40_000)]
    with door.statement() as engine:
        engine.append(["sales"], table.name, SCHEMA, [pa.RecordBatch.from_pylist(many, schema=SCHEMA)])
        edit = set_n(set(range(0, 40_000, 3)), -1)
        before = read(engine, table.name)
        told = change(engine, table.name, edit, seen=before)
        after = read(engine, table.name)
    assert plain(after) == edited(many, edit, [])
    assert ids(after) == ids(before)
    assert told.files_added <= 6


def test_a_cancelled_change_lands_nothing(make: Callable[..., Table], door: Door) -> None:
    table = make(3, "merge-on-read")
    rows = fill(door, table, 1)
    batch = pa.RecordBatch.from_pylist([{"id": n} for n in range(1000)], schema=SCHEMA)

    with door.statement() as engine:
        seen = read(engine, table.name)

        def cancelling() -> Iterator[pa.RecordBatch]:
            yield batch
            thread = threading.Thread(target=engine.cancel)
            thread.start()
            thread.join()
            yield batch

        what = RowChange(seen.source, "update", gone((0, 0, 0)), seen.alive)
        with pytest.raises(Cancelled):
            engine.change(["sales"], table.name, what, SCHEMA, cancelling())
    assert table.snapshots == 1
    assert len(table.files()) == 1
    with door.statement() as engine:
        assert plain(read(engine, table.name)) == rows


def test_the_internal_classes_are_those_that_are_pinned(worker: Worker) -> None:
    frames = SparkEngine(worker.socket).connect()
    assert ask(frames, {"op": "ping"}) == {"pid": worker.process.pid, "missing": []}
    frames.close()


def test_a_table_that_is_not_there(door: Door) -> None:
    with door.statement() as engine:
        with pytest.raises(NoSuchTable):
            engine.fetch(["sales"], "missing", identity=True)
        with pytest.raises(NoSuchTable):
            engine.truncate(["sales"], "missing", snapshot_id=1)
        with pytest.raises(NoSuchTable):
            engine.truncate(["missing"], "missing", snapshot_id=1)


def test_a_reserved_name_is_told(lake: Http, door: Door) -> None:
    columns = [{"id": 1, "name": "_pos", "type": "long", "required": False}]
    body = {"name": "reserved", "schema": {"type": "struct", "schema-id": 0, "fields": columns}}
    assert lake.post("/v1/lake/namespaces/sales/tables", body).status == 200
    with door.statement() as engine, pytest.raises(EngineFailed, match='"_pos", a name that Iceberg keeps'):
        read(engine, "reserved")


def test_identity_is_where_the_row_stands(make: Callable[..., Table], any_door: Door) -> None:
    """Against the files themselves."""
    import pyarrow.parquet as pq

    door, table = any_door, make(3, "merge-on-read", PARTITIONED)
    fill(door, table)
    with door.statement() as engine:
        change(engine, table.name, set_n({4, 22}, -4, {9}))
        seen = read(engine, table.name)
    stored = [pq.ParquetFile(path.removeprefix("file:")).read().to_pylist() for path in seen.source.files]
    for row in seen.rows:
        assert stored[row["_file"]][row["_pos"]]["id"] == row["id"]
    assert seen.schema.field("_file").type == pa.int32()
    with door.statement() as engine, engine.fetch(["sales"], table.name, ["n"], identity=True) as stream:
        assert stream.schema.names == ["n", "_file", "_pos", "_row_id"]
        assert sum(batch.num_rows for batch in stream) == len(seen.rows)
