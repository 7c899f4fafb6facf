"""The lake through Spark: what a PySpark program sees while the ref of its session moves."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError

import icefield
from icefield.client.lake import Lake
from icefield.client.transaction import Rollback
from icefield.engine.spark.session import Binding, close_catalog, new_session
from icefield.model.errors import CommitConflict, NoSuchSession, NotSupported, WrongState
from support.proxy import Proxy
from support.server import RunningServer

pytestmark = pytest.mark.spark


class Home:
    """A repo of its own for a test, on a server and a Spark that all tests share."""

    def __init__(self, url: str, repo: str) -> None:
        self.url = url
        self.repo = repo

    def connect(self, **options: Any) -> Lake:
        return icefield.connect(self.url, repo=self.repo, **options)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("shared") / "lake") as running:
        yield running


@pytest.fixture(scope="module")
def first(shared: RunningServer) -> Iterator[Lake]:
    """The lake whose session is Spark's root session: it keeps Spark running for all tests."""
    with icefield.connect(shared.url, spark_conf={"spark.sql.shuffle.partitions": "2"}) as lake:
        lake.sql("CREATE NAMESPACE home")
        yield lake


@pytest.fixture
def home(shared: RunningServer, first: Lake) -> Home:
    repo = "r" + uuid.uuid4().hex[:12]
    assert shared.http().post("/api/v1/repos", {"name": repo}).status == 200
    assert shared.http().post(f"/v1/{repo}/namespaces", {"namespace": ["s"]}).status == 200
    return Home(shared.url, repo)


@pytest.fixture
def proxy(home: Home) -> Iterator[Proxy]:
    with Proxy(home.url) as running:
        home.url = running.url
        yield running


@pytest.fixture
def lake(home: Home) -> Iterator[Lake]:
    with home.connect() as opened:
        yield opened


@pytest.fixture
def other(home: Home, lake: Lake) -> Iterator[Lake]:
    with home.connect() as opened:
        yield opened


def make(lake: Lake, table: str, *values: int) -> None:
    lake.sql(f"CREATE TABLE {table} (id bigint)")
    if values:
        lake.sql(f"INSERT INTO {table} VALUES {', '.join(f'({value})' for value in values)}")


def ids(lake: Lake, table: str) -> list[int]:
    return sorted(row.id for row in lake.table(table).collect())


def test_the_root_session_is_the_bound_one(first: Lake) -> None:
    from pyspark.sql import SparkSession

    assert SparkSession.getActiveSession() is first.spark
    assert SparkSession.builder.getOrCreate().catalog.currentCatalog() == "lake"
    assert first.spark is first.spark


# Transactions


def test_two_tables_land_together(lake: Lake, other: Lake) -> None:
    make(lake, "s.a", 1)
    make(lake, "s.b")
    with lake.transaction(message="daily load") as tx:
        lake.sql("INSERT INTO s.a VALUES (2)")
        lake.table("s.a").writeTo("s.b").append()
        lake.sql("CREATE TABLE s.c AS SELECT * FROM s.b")
        assert (ids(lake, "s.a"), ids(lake, "s.b"), ids(lake, "s.c")) == ([1, 2], [1, 2], [1, 2])
        assert (ids(other, "s.a"), ids(other, "s.b")) == ([1], [])
        assert not other.spark.catalog.tableExists("s.c")
    assert (ids(other, "s.a"), ids(other, "s.b"), ids(other, "s.c")) == ([1, 2], [1, 2], [1, 2])
    head = lake.log(limit=1)[0]
    assert (head.message, head.transaction) == ("daily load", tx.id)
    assert {name for name, _ in head.changes} == {"s.a", "s.b", "s.c"}


def test_savepoints_and_rollback(lake: Lake) -> None:
    make(lake, "s.a", 1)
    with pytest.raises(KeyError), lake.transaction():  # noqa: PT012
        lake.sql("DELETE FROM s.a")
        raise KeyError
    with lake.transaction() as tx:
        lake.sql("INSERT INTO s.a VALUES (2)")
        with tx.savepoint():
            lake.sql("UPDATE s.a SET id = id + 100")
            assert ids(lake, "s.a") == [101, 102]
            raise Rollback
        assert ids(lake, "s.a") == [1, 2]
        with tx.savepoint():
            lake.sql("INSERT INTO s.a VALUES (3)")
    assert ids(lake, "s.a") == [1, 2, 3]


def test_checkout_and_merge(lake: Lake) -> None:
    make(lake, "s.a", 1)
    lake.branches.create("audit")
    lake.checkout("audit")
    lake.sql("INSERT INTO s.a VALUES (2)")
    assert ids(lake, "s.a") == [1, 2]
    lake.checkout("main")
    frame = lake.table("s.a")
    assert sorted(row.id for row in frame.collect()) == [1]
    lake.merge("audit", into="main")
    assert sorted(row.id for row in frame.collect()) == [1, 2]
    first = lake.log()[-1].id
    lake.checkout(first)
    assert not lake.spark.catalog.tableExists("s.a")


def test_a_commit_that_conflicts(lake: Lake, other: Lake) -> None:
    make(lake, "s.a", 1, 2)
    make(lake, "s.b")
    with pytest.raises(CommitConflict) as caught, lake.transaction():  # noqa: PT012
        lake.sql("INSERT INTO s.b VALUES (1)")
        lake.sql("UPDATE s.a SET id = 10 WHERE id = 1")
        other.sql("UPDATE s.a SET id = 20 WHERE id = 1")
    assert [conflict.entry for conflict in caught.value.conflicts] == ["s.a"]
    assert (ids(lake, "s.a"), ids(lake, "s.b")) == ([2, 20], [])


def test_a_transaction_waits_for_no_other_lake_of_this_process(lake: Lake, other: Lake) -> None:
    make(lake, "s.a", 1)
    running, release = threading.Event(), threading.Event()

    def slow() -> None:
        from icefield.client.statements import Hook

        hook = Hook.of(other.spark.sparkContext._gateway._gateway_client)
        statements = next(one for one in hook._lakes if one.lease is other._lease)
        number = statements.begin(strict=False)
        running.set()
        release.wait(30)
        statements.end(number)

    thread = threading.Thread(target=slow)
    thread.start()
    assert running.wait(30)
    with lake.transaction():
        lake.sql("INSERT INTO s.a VALUES (2)")
    with pytest.raises(WrongState, match="not returned"):
        other.transaction().begin()
    release.set()
    thread.join()
    assert ids(other, "s.a") == [1, 2]


# One view for a statement


TORN = "SELECT (SELECT count(*) FROM s.a) AS a, (SELECT count(*) FROM s.b) AS b"


def both_at_each_load(home: Home, lake: Lake, proxy: Proxy, read: Callable[[], Any]) -> list[tuple[int, int]]:
    """Runs ``read`` over and over; at its 1st, 2nd … table load somebody else commits a row to both tables."""
    found = []
    for position in range(1, 5):
        lake.branches.create(f"writer-{position}")
        with home.connect(branch=f"writer-{position}") as writer, writer.transaction():
            writer.sql("INSERT INTO s.a VALUES (1)")
            writer.sql("INSERT INTO s.b VALUES (1)")
        loads = 0

        def commit_in_between(method: str, path: str, position: int = position) -> None:
            nonlocal loads
            if method == "GET" and "/namespaces/s/tables/" in path:
                loads += 1
                if loads == position:
                    lake.merge(f"writer-{position}", into="main")

        proxy.before = commit_in_between
        row = read()
        proxy.before = lambda method, path: None
        assert loads >= position
        found.append((row.a, row.b))
    return found


def test_a_select_over_two_tables_is_never_torn(home: Home, proxy: Proxy, lake: Lake) -> None:
    make(lake, "s.a")
    make(lake, "s.b")
    found = both_at_each_load(home, lake, proxy, lambda: lake.sql(TORN).collect()[0])
    assert [a for a, b in found if a != b] == []
    assert lake.sql(TORN).collect()[0].a == 4


def test_without_marks_it_is_torn(home: Home, proxy: Proxy, lake: Lake) -> None:
    """The test above can fail: the same on a plain address, where nobody marks statements."""
    make(lake, "s.a")
    make(lake, "s.b")
    plain = new_session(lake.spark, Binding(proxy.url, home.repo))
    found = both_at_each_load(home, lake, proxy, lambda: plain.sql(TORN).collect()[0])
    close_catalog(plain)
    assert [(a, b) for a, b in found if a != b] != []


# What Spark remembers


def test_a_cached_frame_shows_no_rolled_back_rows(lake: Lake) -> None:
    make(lake, "s.a", 1)
    cached = lake.table("s.a").where("id > 0").cache()
    lake.sql("CACHE TABLE s.a")
    assert cached.count() == 1
    with lake.transaction():
        lake.sql("INSERT INTO s.a VALUES (2)")
        assert (cached.count(), len(cached.collect()), ids(lake, "s.a")) == (2, 2, [1, 2])
        raise Rollback
    assert (cached.count(), len(cached.collect()), ids(lake, "s.a")) == (1, 1, [1])
    lake.spark.catalog.clearCache()


def test_a_cached_frame_follows_what_others_commit(lake: Lake, other: Lake) -> None:
    make(lake, "s.a", 1)
    cached = lake.table("s.a").cache()
    assert len(cached.collect()) == 1
    with other.transaction():
        other.sql("INSERT INTO s.a VALUES (2)")
    assert (cached.count(), len(cached.collect()), ids(lake, "s.a")) == (2, 2, [1, 2])
    lake.spark.catalog.clearCache()


def test_what_was_cached_inside_a_rolled_back_transaction(lake: Lake) -> None:
    from pyspark.errors import AnalysisException

    make(lake, "s.a", 1)
    with lake.transaction():
        lake.sql("INSERT INTO s.a VALUES (2)")
        make(lake, "s.gone", 7)
        inside = lake.table("s.a").cache()
        gone = lake.table("s.gone").cache()
        assert (inside.count(), gone.count()) == (2, 1)
        raise Rollback
    assert (inside.count(), len(inside.collect()), ids(lake, "s.a")) == (1, 1, [1])
    for run in (gone.count, gone.collect):
        with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
            run()


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(lambda frame: [row.id for row in frame.collect()], id="collect"),
        pytest.param(lambda frame: frame.toPandas().id.tolist(), id="toPandas"),
        pytest.param(lambda frame: frame.toArrow()["id"].to_pylist(), id="toArrow"),
        pytest.param(lambda frame: [row.id for row in frame.toLocalIterator()], id="toLocalIterator"),
        pytest.param(lambda frame: [row.id for row in frame.tail(10)], id="tail"),
        pytest.param(lambda frame: [row.id for row in frame.localCheckpoint().collect()], id="localCheckpoint"),
    ],
)
def test_the_same_frame_again_follows_the_ref(lake: Lake, rows: Callable[[Any], list[int]]) -> None:
    """Plain Spark keeps the plan of the first run: after ROLLBACK it would read files that are gone."""
    make(lake, "s.a", 1)
    frame = lake.table("s.a")
    assert rows(frame) == [1]
    with lake.transaction():
        lake.sql("INSERT INTO s.a VALUES (2)")
        assert sorted(rows(frame)) == [1, 2]
        inside = lake.table("s.a").where("id > 1")
        assert rows(inside) == [2]
        raise Rollback
    assert (rows(frame), rows(inside)) == ([1], [])


def test_a_statement_that_ran_does_not_run_again(lake: Lake) -> None:
    make(lake, "s.a")
    inserted = lake.sql("INSERT INTO s.a VALUES (1)")
    lake.sql("INSERT INTO s.a VALUES (2)")
    inserted.collect()
    inserted.collect()
    assert ids(lake, "s.a") == [1, 2]


# Writes


def test_how_a_write_is_marked(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from icefield.client.statements import Statements

    marks: list[bool] = []
    begin = Statements.begin

    def spy(self: Statements, *, strict: bool) -> int:
        marks.append(strict)
        return begin(self, strict=strict)

    make(lake, "s.a", 1)
    make(lake, "s.b")
    frame = lake.table("s.a")
    monkeypatch.setattr(Statements, "begin", spy)
    writes: list[tuple[Callable[[], Any], bool]] = [
        (lambda: frame.writeTo("s.b").append(), False),
        (lambda: frame.write.insertInto("s.b"), False),
        (lambda: frame.write.mode("append").saveAsTable("s.b"), False),
        (lambda: frame.write.insertInto("s.b", overwrite=True), True),
        (lambda: frame.write.mode("overwrite").insertInto("s.b"), True),
        (lambda: frame.writeTo("s.b").overwritePartitions(), True),
        (lambda: frame.write.saveAsTable("s.c"), True),
        (lambda: frame.writeTo("s.d").create(), True),
    ]
    for number, (write, strict) in enumerate(writes):
        marks.clear()
        write()
        assert (number, marks) == (number, [strict])
    marks.clear()
    frame.where("id > 0").select("id").withColumn("x", frame.id + 1).schema  # noqa: B018
    assert marks == []
    assert ids(lake, "s.b") == [1]


def test_an_autocommit_that_conflicts_is_run_again(lake: Lake, home: Home, proxy: Proxy) -> None:
    make(lake, "s.a", 1)
    with home.connect() as mine:
        posts = 0

        def somebody_else_first(method: str, path: str) -> None:
            nonlocal posts
            if method == "POST" and path.endswith("/namespaces/s/tables/a"):
                posts += 1
                if posts == 1:
                    lake.sql("UPDATE s.a SET id = id + 10")

        proxy.before = somebody_else_first
        mine.sql("UPDATE s.a SET id = id + 100")
        proxy.before = lambda method, path: None
        assert posts >= 2
        assert ids(mine, "s.a") == [111]


def test_a_commit_that_arrives_after_rollback_is_refused(lake: Lake, proxy: Proxy) -> None:
    make(lake, "s.a", 1)
    head = lake.log()[0].id
    with icefield.connect(proxy.url, repo=lake.repo) as late:
        tx = late.transaction().begin()
        spark = late.spark
        arrived, release = threading.Event(), threading.Event()

        def hold(method: str, path: str) -> None:
            if method == "POST" and path.endswith("/namespaces/s/tables/a"):
                arrived.set()
                release.wait(60)

        proxy.before = hold
        errors: list[BaseException] = []

        def write() -> None:
            try:
                spark.sql("INSERT INTO s.a VALUES (2)")
            except BaseException as error:
                errors.append(error)

        writing = threading.Thread(target=write)
        writing.start()
        assert arrived.wait(60)
        tx.rollback()
        release.set()
        writing.join(60)
        assert len(errors) == 1
        assert ids(late, "s.a") == [1]
    assert lake.log()[0].id == head


# Ends


def test_a_lease_that_ran_out_rolls_back_and_spark_goes_on(home: Home, lake: Lake) -> None:
    make(lake, "s.a", 1)
    with home.connect(lease_seconds=2) as short:
        short.sql("SELECT 1").collect()
        tx = short.transaction().begin()
        spark = short.spark
        spark.sql("INSERT INTO s.a VALUES (2)")
        short._lease._over.set()  # as when the machine sleeps
        time.sleep(4)
        with pytest.raises(NoSuchSession, match="new SparkSession"):
            spark.sql("INSERT INTO s.a VALUES (3)")
        with pytest.raises(NoSuchSession):
            tx.commit()
        assert ids(lake, "s.a") == [1]
        assert short.spark is not spark
        short.sql("INSERT INTO s.a VALUES (4)")
    assert ids(lake, "s.a") == [1, 4]


def interrupted(proxy: Proxy, ends: Callable[[str, str], bool], run: Callable[[], Any]) -> threading.Event:
    """Ctrl-C while ``run`` waits for the server; what it asked is answered when the event is set."""
    release = threading.Event()
    once = iter([True])

    def hold(method: str, path: str) -> None:
        if ends(method, path) and next(once, False):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            release.wait(60)

    proxy.before = hold
    # PySpark's own handler talks to Spark on the connection that is in use: Py4J then gives up the call.
    with pytest.raises((KeyboardInterrupt, Py4JError)):
        run()
    return release


def test_an_interrupted_read_ends_its_statement(home: Home, proxy: Proxy, lake: Lake) -> None:
    make(lake, "s.a", 1)
    spark = lake.spark
    release = interrupted(
        proxy, lambda method, path: path.split("?")[0].endswith("/tables/a"), spark.table("s.a").count
    )
    release.set()
    with lake.transaction():
        spark.sql("INSERT INTO s.a VALUES (2)")
    assert ids(lake, "s.a") == [1, 2]


def test_an_interrupted_write_lands_nothing_afterwards(home: Home, proxy: Proxy, lake: Lake) -> None:
    make(lake, "s.a", 1)
    spark = lake.spark
    release = interrupted(
        proxy,
        lambda method, path: method == "POST" and path.endswith("/tables/a"),
        lambda: spark.sql("INSERT INTO s.a VALUES (2)"),
    )
    release.set()
    assert ids(lake, "s.a") == [1]
    assert lake.spark is not spark
    lake.sql("INSERT INTO s.a VALUES (3)")
    time.sleep(1)
    assert ids(lake, "s.a") == [1, 3]


# Streams


def test_streams(lake: Lake, other: Lake, tmp_path: Path) -> None:
    make(lake, "s.a")
    make(lake, "s.b")
    spark = lake.spark
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()

    with pytest.raises(NotSupported, match="foreachBatch"):
        source.writeStream.option("checkpointLocation", str(tmp_path / "c1")).toTable("s.a")

    failures: list[BaseException] = []

    def both(batch: Any, number: int) -> None:
        try:
            if number > 1:
                return
            with lake.transaction(message=f"batch {number}"):
                batch.selectExpr("value AS id").writeTo("s.a").append()
                batch.selectExpr("value AS id").writeTo("s.b").append()
        except BaseException as error:
            failures.append(error)
            raise

    query = source.writeStream.foreachBatch(both).option("checkpointLocation", str(tmp_path / "c2")).start()
    try:
        deadline = time.monotonic() + 60
        while len(ids(other, "s.b")) < 4 and not failures and time.monotonic() < deadline:
            time.sleep(0.2)
        assert failures == []
        with pytest.raises(WrongState, match="streaming queries"):
            lake.transaction().begin()
    finally:
        query.stop()
    assert ids(lake, "s.a") == ids(lake, "s.b") == [0, 1, 2, 3]
    with lake.transaction():
        lake.sql("INSERT INTO s.a VALUES (9)")


def test_the_token_stays_out_of_sight(lake: Lake) -> None:
    lake.sql("SELECT 1").collect()
    token = lake._lease.token
    children = Path("/proc/self/task").glob("*/children")
    commands = [Path(f"/proc/{pid}/cmdline").read_text() for c in children for pid in c.read_text().split()]
    assert any("SparkSubmit" in command for command in commands)
    assert not [command for command in commands if token in command]
