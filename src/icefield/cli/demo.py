"""``icefield demo``: the tour. Everything in it is real: the stack that ``up`` starts, the SDK, a psycopg connection.

A pipeline loads two tables in one transaction on a branch, goes back to a savepoint when a batch turns out to be bad,
commits and merges. A PostgreSQL client that stays connected to main sees first nothing and then everything; after each
act the tour checks what both sides see, and fails if it is not so.
"""

from __future__ import annotations

import shlex
import shutil
import time
from contextlib import ExitStack, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from icefield.cli import output
from icefield.cli.connecting import require
from icefield.cli.stack import Doors, StackProcess
from icefield.cli.stage import Said, Stage
from icefield.model.errors import BadRequest, IcefieldError

if TYPE_CHECKING:
    import psycopg

    from icefield.client.lake import Lake

DEFAULT_DATA = Path("demo-data")
BRANCH = "nightly"
CUSTOMERS, ORDERS, BAD_ORDERS = 200, 5_000, 300

_MARKER = ".icefield-demo"
_COUNTS = "SELECT (SELECT count(*) FROM sales.customers), (SELECT count(*) FROM sales.orders)"
_REPORT = """
SELECT c.country, count(*) AS orders, sum(o.amount) AS revenue
FROM sales.orders o JOIN sales.customers c ON c.id = o.customer
GROUP BY c.country ORDER BY revenue DESC
"""


def run(data: Path | None, *, keep: bool, as_json: bool) -> int:
    require("pyspark", "psycopg", extras="spark,sql", verb="icefield demo")
    folder = _fresh_folder(data or DEFAULT_DATA)
    try:
        return Tour(folder, Stage(as_json=as_json)).run(keep=keep)
    except IcefieldError:
        raise
    except Exception as error:
        # What psycopg or Spark raised: a person who takes a tour wants a line, and where to read more.
        said = f"{type(error).__name__}: {output.first_line(str(error), 300)}"
        raise TourFailed(f"the tour could not go on: {said} (logs are in {folder / 'logs'})") from error


class TourFailed(IcefieldError):
    """Somebody saw what they should not have seen."""

    kind = "TourFailedException"


class Tour:
    def __init__(self, data: Path, stage: Stage) -> None:
        self._data = data
        self._stage = stage

    def run(self, *, keep: bool) -> int:
        import psycopg

        import icefield

        stage = self._stage
        with ExitStack() as closing:
            stage.act("Start: one server, a PostgreSQL door and Spark behind it")
            up = closing.enter_context(StackProcess(self._data))
            with stage.step("icefield up") as step:
                doors = up.wait_until_up(lambda event: stage.event(event, step))
            with stage.step("a PySpark session, bound to the lake") as step, redirect_stderr(Said(step)):
                lake: Lake = icefield.connect(doors.server, repo=doors.repo)
                closing.callback(lake.close)
                lake.spark.sql("SELECT 1").collect()
            with stage.step("a PostgreSQL client, connected to main"):
                line = f"host=127.0.0.1 port={doors.sql_port} dbname={doors.repo}"
                watcher = closing.enter_context(psycopg.connect(line, autocommit=True))
            self._prepare(lake, watcher)
            self._load(lake, watcher)
            self._publish(lake, watcher)
            self._farewell(doors, keep=keep)
            if keep:
                _wait_for_ctrl_c()
        return 0

    def _prepare(self, lake: Lake, watcher: psycopg.Connection[Any]) -> None:
        self._stage.act("Two empty tables on main, made in SQL")
        with self._stage.step("CREATE ICEBERG TABLE sales.customers, sales.orders"):
            lake.spark.sql("CREATE NAMESPACE sales")
            watcher.execute("CREATE ICEBERG TABLE sales.customers (id bigint, name text, country text)")
            watcher.execute(
                "CREATE ICEBERG TABLE sales.orders (id bigint, customer bigint, day date, amount numeric(10, 2))"
                " PARTITION BY (month(day))"
            )

    def _load(self, lake: Lake, watcher: psycopg.Connection[Any]) -> None:
        stage = self._stage
        stage.act(f"A PySpark pipeline loads both tables in one transaction, on the branch {BRANCH}")
        with stage.step(f"lake.branches.create({BRANCH!r}); lake.checkout({BRANCH!r})"):
            lake.branches.create(BRANCH)
            lake.checkout(BRANCH)
        with ExitStack() as until_commit:
            tx = until_commit.enter_context(lake.transaction(message="nightly load"))
            with stage.step("INSERT INTO sales.customers") as step:
                lake.spark.sql(_customers())
                step.then = f"{CUSTOMERS:,} rows"
            with stage.step("INSERT INTO sales.orders") as step:
                lake.spark.sql(_orders(0, ORDERS, "1"))
                step.then = f"{ORDERS:,} rows"
            with stage.step("SAVEPOINT; another batch, with negative amounts in it; ROLLBACK TO SAVEPOINT") as step:
                try:
                    with tx.savepoint():
                        lake.spark.sql(_orders(ORDERS, BAD_ORDERS, "-1"))
                        bad = lake.spark.sql("SELECT count(*) FROM sales.orders WHERE amount < 0").collect()[0][0]
                        raise _BadBatch(f"{bad} orders with a negative amount")
                except _BadBatch as found:
                    step.then = f"{found}: undone"
            self._both_see(lake, watcher, pipeline=(CUSTOMERS, ORDERS), main=(0, 0), when="before COMMIT")
            with stage.step("COMMIT"):
                until_commit.close()
        self._both_see(lake, watcher, pipeline=(CUSTOMERS, ORDERS), main=(0, 0), when="after COMMIT on the branch")

    def _publish(self, lake: Lake, watcher: psycopg.Connection[Any]) -> None:
        stage = self._stage
        stage.act(f"Merge: {BRANCH} into main, both tables in one move")
        with stage.step(f"lake.merge({BRANCH!r}, into='main')"):
            lake.merge(BRANCH, into="main")
        self._both_see(lake, watcher, pipeline=(CUSTOMERS, ORDERS), main=(CUSTOMERS, ORDERS), when="after the merge")
        with stage.step("the PostgreSQL client asks for a report: JOIN, GROUP BY, over the very same tables"):
            rows = watcher.execute(_REPORT).fetchall()
        if sum(row[1] for row in rows) != ORDERS:
            raise TourFailed(f"the report counts {sum(row[1] for row in rows)} orders, and there are {ORDERS}")
        told = [(country, f"{orders:,}", f"{revenue:,.2f}") for country, orders, revenue in rows]
        report = output.table(("COUNTRY", "ORDERS", "REVENUE"), told, empty="nothing")
        stage.show(report, report=[[country, orders, str(revenue)] for country, orders, revenue in rows])

    def _both_see(
        self,
        lake: Lake,
        watcher: psycopg.Connection[Any],
        *,
        pipeline: tuple[int, int],
        main: tuple[int, int],
        when: str,
    ) -> None:
        with self._stage.step(f"who sees what, {when}"):
            inside = tuple(lake.spark.sql(_COUNTS).collect()[0])
            outside = watcher.execute(_COUNTS).fetchone()
        rows = [
            ("the pipeline (PySpark)", BRANCH, *map(_count, inside)),
            ("the PostgreSQL client", "main", *map(_count, outside or ())),
        ]
        seen = output.table(("WHO", "BRANCH", "CUSTOMERS", "ORDERS"), rows, empty="")
        self._stage.show(seen, when=when, pipeline=list(inside), main=list(outside or ()))
        for who, sees, should in (("the pipeline", inside, pipeline), ("the client on main", outside, main)):
            if sees != should:
                raise TourFailed(f"{when}, {who} sees {sees} rows of (customers, orders), and should see {should}")

    def _farewell(self, doors: Doors, *, keep: bool) -> None:
        where = f" --data {shlex.quote(str(self._data))}"
        lines = [
            ("psql", f"icefield connect psql{where}", "SHOW BRANCHES; SELECT * FROM sales.orders LIMIT 5;"),
            (
                "SDK",
                f'import icefield; lake = icefield.connect("{self._data}")',
                'lake.spark.table("sales.orders").show()',
            ),
            ("PySpark", f"icefield connect spark --shell{where}", 'spark.sql("SELECT * FROM sales.orders").show()'),
            ("history", f"icefield log{where}", f"icefield diff main {BRANCH}{where}"),
        ]
        if keep:
            first = "Everything runs on until Ctrl-C. In another terminal, after  . .venv/bin/activate :"
        else:
            first = "The lake stays. Go on with it, after  . .venv/bin/activate :"
            lines.insert(0, ("start", f"icefield up{where}", "server, Spark, PostgreSQL door; Ctrl-C stops them"))
        grid = Table.grid(padding=(0, 2))
        for title, command, hint in lines:
            grid.add_row("", "", "")
            grid.add_row(Text(title, style="bold"), Text.assemble((command, "cyan"), ("\n" + hint, "dim")))
        self._stage.end(
            Group(Text(first), grid), data=str(self._data), server=doors.server, **{"sql-port": doors.sql_port}
        )


def _count(rows: int) -> Text:
    return Text(f"{rows:,}", style="bold green" if rows else "dim")


class _BadBatch(Exception):
    """What the pipeline's own check finds."""


def _customers() -> str:
    return f"""
        INSERT INTO sales.customers
        SELECT id, concat('customer ', id),
               element_at(array('Norway', 'Chile', 'Japan', 'Kenya'), cast(id % 4 + 1 AS int))
        FROM range({CUSTOMERS})
    """


def _orders(first: int, count: int, sign: str) -> str:
    return f"""
        INSERT INTO sales.orders
        SELECT id, id % {CUSTOMERS}, date_add(DATE '2026-09-01', cast(id % 90 AS int)),
               cast({sign} * (5 + (id * 37) % 400 + 0.99) AS decimal(10, 2))
        FROM range({first}, {first + count})
    """


def _fresh_folder(data: Path) -> Path:
    """An empty folder; one that an earlier tour made is emptied, any other is left alone."""
    if data.exists():
        if not data.is_dir() or (any(data.iterdir()) and not (data / _MARKER).exists()):
            raise BadRequest(f"{data} holds something that no demo made: give an empty --data folder", field="data")
        shutil.rmtree(data)
    data.mkdir(parents=True)
    (data / _MARKER).write_text("made by icefield demo, which empties this folder when it is run again\n")
    return data


def _wait_for_ctrl_c() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        pass
