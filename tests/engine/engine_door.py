"""A worker process, and a session as the SQL door holds one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from icefield.engine.port import Changed, FetchedFrom, RowChange
from icefield.engine.spark.remote import SparkEngine, SparkEngineSession
from support.server import Http


class Worker:
    def __init__(self, server: str, folder: Path) -> None:
        self.server = server
        self.socket = folder / "engine.sock"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "icefield.engine.spark.worker", "--socket", str(self.socket)]
        self.process = subprocess.Popen(
            [*command, "--server", self.server, "--watch-stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(b"ready "):
                told = json.loads(line[len(b"ready ") :])
                assert told == {"socket": str(self.socket), "pid": self.process.pid}
                return
        raise AssertionError("the worker did not start")

    def stop(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(timeout=30)
        self.process.stdout.close()
        return code


class Door:
    """A session as the SQL door holds one: it marks, the engine works."""

    def __init__(self, http: Http, worker: Worker, schema: pa.Schema | None = None, way: str | None = None) -> None:
        opened = http.post("/api/v1/sessions", {"lease-ms": 600_000}).body  # nobody sends heartbeats
        self.http = Http(http.url, opened["token"])
        self.path = f"/api/v1/sessions/{opened['id']}"
        self.schema = schema
        engine = SparkEngine(worker.socket, way=way)
        self.engine: SparkEngineSession = engine.open_session(opened["address"], opened["token"])

    @contextmanager
    def statement(self) -> Iterator[SparkEngineSession]:
        number = self.http.post(self.path + "/statements").body["statement"]
        try:
            yield self.engine
        finally:
            assert self.http.delete(f"{self.path}/statements/{number}").status == 200

    def do(self, verb: str) -> None:
        answer = self.http.post(f"{self.path}/{verb}")
        assert answer.status == 200, answer

    def rows(self, table: str, columns: list[str] | None = None, **limits: int) -> pa.Table:
        with self.statement() as engine, engine.fetch(["sales"], table, columns, **limits) as stream:
            return pa.Table.from_batches(list(stream), schema=stream.schema)

    def add(self, table: str, rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> int:
        schema = schema or self.schema
        with self.statement() as engine:
            return engine.append(["sales"], table, schema, [pa.RecordBatch.from_pylist(rows, schema=schema)])

    def close(self) -> None:
        self.engine.close()
        self.http.delete(self.path)


Row = dict[str, Any]
IDENTITY = ("_file", "_pos", "_row_id")


@dataclass
class Read:
    """A fetch with identity."""

    source: FetchedFrom
    rows: list[Row]
    schema: pa.Schema

    @property
    def alive(self) -> list[int]:
        counts = Counter(row["_file"] for row in self.rows)
        return [counts[n] for n in range(len(self.source.files))]


def read(engine: SparkEngineSession, table: str) -> Read:
    with engine.fetch(["sales"], table, identity=True) as stream:
        assert stream.source is not None
        batches = list(stream)
        return Read(stream.source, [row for batch in batches for row in batch.to_pylist()], stream.schema)


def change(
    engine: SparkEngineSession,
    table: str,
    edit: Callable[[Row], Row | None] = lambda row: row,
    new: Iterable[Row] = (),
    verb: str = "update",
    seen: Read | None = None,
) -> Changed:
    """As the SQL door does it: reads all, edits (``None``: delete; another row: update), writes what differs."""
    seen = seen or read(engine, table)
    deleted, rows = [], []
    for row in seen.rows:
        plain = {name: value for name, value in row.items() if name not in IDENTITY}
        edited = edit(plain)
        if edited == plain:
            continue
        deleted.append({"file": row["_file"], "pos": row["_pos"], "row_id": row.get("_row_id")})
        if edited is not None:
            rows.append({**edited, "_row_id": row.get("_row_id")})
    rows += [{**row, "_row_id": None} for row in new]
    gone = pa.Table.from_pylist(
        deleted, schema=pa.schema([("file", pa.int32()), ("pos", pa.int64()), ("row_id", pa.int64())])
    )
    fields = [field for field in seen.schema if field.name not in IDENTITY]
    if seen.source.format_version >= 3:
        fields.append(pa.field("_row_id", pa.int64()))
    schema = pa.schema(fields)
    batches = [pa.RecordBatch.from_pylist(rows, schema=schema)]
    return engine.change(["sales"], table, RowChange(seen.source, verb, gone, seen.alive), schema, batches)
