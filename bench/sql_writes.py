"""What SQL writes cost beside natural Spark statements with the same effect: ratios of one run, by turns.

    ./dev bench sql-writes [--rounds 5] [--only fill|changes] [--format 2|3] [--mode MODE] [--match TEXT]

A server, one Spark and a PostgreSQL door. Spark runs in a process of its own: the engine of the door, and the natural
statements on a session of the same Spark, which an ordinary user would have (adaptive, bound to the branch). The door
runs here, so that the time of its fills can be seen. One table of 1,000,000 rows x 6 columns in 20 files, once for each
side; after each statement both are rolled back to where they began.

fill     ours: all rows under the shadow, with their identity. Beside: the sum of Spark's own toArrow of the same
         columns and libpq's binary COPY of the same bytes into a like table of the same PostgreSQL.
changes  ours: the whole statement through psycopg, without its fill. Beside: Spark's own UPDATE or DELETE.

A ratio is the median of the rounds' ratios. Ends with 1 if one is above its bar.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from icefield.engine.spark.remote import SparkEngine
from icefield.pgwire.server import PgServer
from icefield.sql.brain.pool import Brain, BrainPool
from icefield.sql.door import Sessions
from icefield.sql.under import Fills

ROWS, FILES = 1_000_000, 20
FILL_BAR, CHANGE_BAR = 1.3, 1.5
MODES = ("merge-on-read", "copy-on-write")
COLUMNS = ("id", "a", "amount", "name", "at", "f")

MAKE = (
    "CREATE TABLE {table} (id bigint, a int, amount decimal(12,2), name string, at timestamp, f double) USING iceberg"
    " TBLPROPERTIES ('format-version'='{version}')"
)
ROW = (
    "id",
    "cast(id % 1000 AS int) AS a",
    "cast((id * 7919 % 10000000) / 100.0 AS decimal(12,2)) AS amount",
    "concat('name-', id * 31 % 100003, '-', id) AS name",
    "timestamp_micros(1700000000000000 + id * 1234567) AS at",
    "id * 0.37 AS f",
)
CHANGES = (
    ("1 row", "id = 500500"),
    ("1,000 rows of all files", "id % 1000 = 7"),
    ("1,000 rows of one file", "id >= 500000 AND id < 501000"),
    ("100,000 rows of all files", "id % 10 = 7"),
    # Not whole files only: Spark drops such without looking into them, which says nothing of its way with rows.
    ("100,000 rows of three files", "id >= 510000 AND id < 610000"),
)
STATEMENTS = (
    ("update", "UPDATE {table} SET a = a + 1, amount = amount + 1 WHERE {where}"),
    ("delete", "DELETE FROM {table} WHERE {where}"),
)
WARM_UP = CHANGES[1]


# ------------------------------------------------------------------ the parts


class Spark:
    """A process with the one Spark: the engine at a socket, and natural statements by lines of JSON."""

    def __init__(self, url: str, socket: Path) -> None:
        command = [sys.executable, __file__, "--spark", url, str(socket)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._receive()

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer = json.loads(line)
                if "error" in answer:
                    raise SystemExit(f"Spark: {answer['error']}")
                return answer
        raise SystemExit("Spark ended")

    def __call__(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._receive()

    def sql(self, statement: str) -> float:
        """Seconds."""
        return float(self(sql=statement)["seconds"])

    def value(self, query: str) -> Any:
        return self(sql=query)["value"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def spark_process(url: str, socket: str) -> None:
    from icefield.engine.spark import worker
    from icefield.engine.spark.session import Binding, new_session, start_spark

    root = start_spark("bench", worker._CONF)
    engine = worker.Worker(url, root)
    threading.Thread(target=engine.serve, args=(worker._listen(Path(socket)),), daemon=True).start()
    usual = {"spark.sql.adaptive.enabled": "true", "spark.sql.execution.arrow.maxRecordsPerBatch": "10000"}
    spark = new_session(root, Binding(url, "lake"), usual)

    def to_arrow(table: str) -> None:
        found = spark.table(table).select(*COLUMNS).toArrow()
        assert found.num_rows == ROWS

    print("{}", flush=True)
    for line in sys.stdin:
        asked, answer = json.loads(line), {}
        begun = time.perf_counter()
        try:
            if "to-arrow" in asked:
                to_arrow(asked["to-arrow"])
            elif "rows-into" in asked:
                spark.range(0, ROWS, 1, FILES).selectExpr(*ROW).writeTo(asked["rows-into"]).append()
            else:
                found = spark.sql(asked["sql"]).collect()
                answer["value"] = found[0][0] if found else None
        except Exception as error:
            answer["error"] = str(error)[:2000]
        answer["seconds"] = time.perf_counter() - begun
        print(json.dumps(answer, default=str), flush=True)


class Door:
    """The PostgreSQL door in a thread of this process. ``fills`` grows by the seconds of each fill."""

    def __init__(self, url: str, socket: Path) -> None:
        self.fills: list[float] = []
        self.brains: list[Brain] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._pool = BrainPool(spares=0)
        self._executor = ThreadPoolExecutor(8)
        self._engine = SparkEngine(socket)
        sessions = Sessions(server_url=url, engine=self._engine, pool=self._pool, executor=self._executor)
        self._server = PgServer(sessions, host="127.0.0.1", port=0)
        self._watch()
        self.run(self._server.start())
        self.port = self._server.port

    def _watch(self) -> None:
        take, put = self._pool.take, Fills.put

        async def taken(*args: Any) -> Brain:
            self.brains.append(await take(*args))
            return self.brains[-1]

        async def timed(*args: Any, **kwargs: Any) -> None:
            begun = time.perf_counter()
            try:
                await put(*args, **kwargs)
            finally:
                self.fills.append(time.perf_counter() - begun)

        self._pool.take = taken  # type: ignore[assignment,method-assign]
        Fills.put = timed  # type: ignore[method-assign]

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(300)

    def close(self) -> None:
        self.run(self._server.stop())
        self.run(self._pool.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "icefield.cli", "serve", "--data", str(folder / "lake"), "--port", "0"]
    server = subprocess.Popen(
        [*command, "--leashed"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert server.stdout is not None
    try:
        yield json.loads(server.stdout.readline().removeprefix("ready "))["url"]
    finally:
        server.terminate()
        server.wait(30)


def make(spark: Spark, version: int) -> tuple[str, str]:
    """A table for each side: natural, ours."""
    tables = f"bench.natural_v{version}", f"bench.ours_v{version}"
    for table in tables:
        spark.sql(MAKE.format(table=table, version=version))
        spark(**{"rows-into": table})
        files = spark.value(f"SELECT count(*) FROM {table}.files")
        assert files == FILES, files
    return tables


class Bench:
    def __init__(self, spark: Spark, door: Door, client: psycopg.Connection[Any], rounds: int) -> None:
        self.spark, self.door, self.client, self.rounds = spark, door, client, rounds

    def reset(self, table: str) -> None:
        first = self.spark.value(f"SELECT min_by(snapshot_id, committed_at) FROM {table}.snapshots")
        self.spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {first})")

    def set_mode(self, table: str, mode: str) -> None:
        properties = ", ".join(f"'write.{verb}.mode'='{mode}'" for verb, _ in STATEMENTS)
        self.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({properties})")

    def state(self, table: str) -> Any:
        columns = ", ".join(COLUMNS)
        return self.spark.value(f"SELECT struct(count(*), bit_xor(xxhash64({columns})), sum(id), sum(a)) FROM {table}")

    def ours(self, statement: str) -> tuple[float, float]:
        """Seconds of the statement, and of its fills among them."""
        self.door.fills.clear()
        begun = time.perf_counter()
        self.client.execute(statement.encode())
        return time.perf_counter() - begun, sum(self.door.fills)


# ------------------------------------------------------------------ what is measured


@dataclass
class Line:
    title: str
    bar: float
    natural: list[float]
    ours: list[float]
    beside: str = ""

    @property
    def ratio(self) -> float:
        return statistics.median(ours / natural for natural, ours in zip(self.natural, self.ours, strict=True))

    @property
    def passed(self) -> bool:
        return self.ratio <= self.bar

    def tell(self) -> None:
        natural, ours = statistics.median(self.natural), statistics.median(self.ours)
        verdict = "pass" if self.passed else "FAIL"
        ratio, bar = f"{self.ratio:>7.2f}", f"{self.bar:>6.1f}"
        print(f"{self.title:<58}{natural:>9.2f}{ours:>8.2f}{ratio}{bar}  {verdict}  {self.beside}", flush=True)


def by_turns(
    rounds: int, natural: Callable[[], float], ours: Callable[[], float], first_turn: int = 0
) -> tuple[list[float], list[float]]:
    """Each side begins every other round."""
    times: tuple[list[float], list[float]] = [], []
    for turn in range(first_turn, first_turn + rounds):
        for side in (0, 1) if turn % 2 else (1, 0):
            times[side].append((natural, ours)[side]())
    return times


def fill(bench: Bench, version: int, tables: tuple[str, str]) -> Line:
    natural, ours = tables
    with bench.client.cursor().copy(f"COPY (SELECT * FROM {ours}) TO STDOUT (FORMAT binary)".encode()) as copied:
        data = b"".join(copied)
    brain = bench.door.brains[-1]
    copy = f"bench_copy_{version}"
    bench.door.run(brain.admin.query(f"CREATE TABLE {copy} (LIKE {ours}); ALTER TABLE {copy} OWNER TO {brain.role}"))
    parts: list[tuple[float, float]] = []

    def beside() -> float:
        to_arrow = float(bench.spark(**{"to-arrow": natural})["seconds"])
        with psycopg.connect(
            host=str(brain.cluster.socket_dir), user=brain.role, password=brain._password, dbname=brain.database
        ) as direct:
            direct.execute(f"TRUNCATE {copy}".encode())
            begun = time.perf_counter()
            with direct.cursor().copy(f"COPY {copy} FROM STDIN (FORMAT binary)".encode()) as into:
                for at in range(0, len(data), 1 << 20):
                    into.write(data[at : at + (1 << 20)])
            copying = time.perf_counter() - begun
            direct.rollback()
        parts.append((to_arrow, copying))
        return to_arrow + copying

    def filled() -> float:
        return bench.ours(f"UPDATE {ours} SET a = a WHERE false")[1]

    beside(), filled()
    parts.clear()
    times = by_turns(bench.rounds, beside, filled)
    to_arrow, copying = (statistics.median(part) for part in zip(*parts, strict=True))
    note = f"toArrow {to_arrow:.2f} + COPY {copying:.2f}; {len(data) / 1e6:.0f} MB"
    line = Line(f"fill of {ROWS:,} rows x {len(COLUMNS)}, format {version}", FILL_BAR, *times, note)
    line.tell()
    return line


def changes(bench: Bench, version: int, modes: Iterable[str], tables: tuple[str, str], match: str) -> Iterator[Line]:
    for mode in modes:
        for table in tables:
            bench.set_mode(table, mode)
        for verb, statement in STATEMENTS:
            _change(bench, statement, WARM_UP[1], tables, 1)
            for size, where in CHANGES:
                title = f"{verb.upper()} {size}, format {version}, {mode}"
                if match not in title:
                    continue
                natural, ours, fills = _change(bench, statement, where, tables, bench.rounds)
                line = Line(title, CHANGE_BAR, natural, ours, f"and a fill of {statistics.median(fills):.2f}")
                line.tell()
                yield line


def _change(
    bench: Bench, statement: str, where: str, tables: tuple[str, str], rounds: int
) -> tuple[list[float], list[float], list[float]]:
    """Seconds of Spark's statements, of ours without their fills, and of the fills."""
    fills: list[float] = []

    def of_spark() -> float:
        return bench.spark.sql(statement.format(table=tables[0], where=where))

    def of_ours() -> float:
        total, filled = bench.ours(statement.format(table=tables[1], where=where))
        fills.append(filled)
        return total - filled

    natural, ours = [], []
    for turn in range(rounds):
        one, other = by_turns(1, of_spark, of_ours, turn)
        natural += one
        ours += other
        if not turn and bench.state(tables[0]) != bench.state(tables[1]):
            raise SystemExit(f"{statement} WHERE {where}: the tables differ")
        for table in tables:
            bench.reset(table)
    return natural, ours, fills


def main() -> int:
    parser = argparse.ArgumentParser(description="SQL writes beside natural Spark statements")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("fill", "changes"))
    parser.add_argument("--format", type=int, choices=(2, 3), action="append")
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--match", default="", help="only changes whose title has this text")
    options = parser.parse_args()
    lines: list[Line] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="icefield-bench-")))
        url = stack.enter_context(served(folder))
        spark = stack.enter_context(closing(Spark(url, folder / "engine.sock")))
        door = stack.enter_context(closing(Door(url, folder / "engine.sock")))
        spark.sql("CREATE NAMESPACE bench")
        formats = options.format or (3, 2)
        tables = {version: make(spark, version) for version in formats}
        client = stack.enter_context(
            psycopg.connect(f"host=127.0.0.1 port={door.port} user=ann dbname=lake", autocommit=True)
        )
        bench = Bench(spark, door, client, options.rounds)
        print(f"{'seconds, median of ' + str(options.rounds):<62}{'natural':>9}{'ours':>8}{'ratio':>7}{'bar':>6}")
        for version in formats:
            if options.only != "changes":
                lines.append(fill(bench, version, tables[version]))
            if options.only != "fill":
                lines += changes(bench, version, options.mode or MODES, tables[version], options.match)
    failed = sum(not line.passed for line in lines)
    print(f"{len(lines) - failed} of {len(lines)} within their bars")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--spark"]:
        spark_process(*sys.argv[2:4])
    else:
        sys.exit(main())
