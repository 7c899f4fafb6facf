"""The engine as a process of its own, for doors that must not run a JVM: ``python -m icefield.engine.spark.worker``.

Listens on a Unix socket (mode 0600) and speaks ``frames``. One connection is one engine session and one thread. The
socket is there before Spark is: who connects early waits. Standard output says ``ready {…}``, for a supervisor. When
Spark's JVM dies this process ends, too: whoever supervises it starts it again, and every request in flight ends with an
error.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icefield.engine.port import Cancelled, EngineFailed, RowChange
from icefield.engine.spark.changes import change as changing
from icefield.engine.spark.errors import translate
from icefield.engine.spark.frames import (
    ConnectionEnded,
    FrameSocket,
    alive_schema,
    deleted_schema,
    error_to_json,
    source_frame,
    source_of,
)
from icefield.engine.spark.internals import make_inactive, missing
from icefield.engine.spark.rows import Fetch, append
from icefield.engine.spark.session import CATALOG, Binding, close_catalog, driver, new_session, start_spark
from icefield.model.errors import BadRequest, IcefieldError, OutcomeUnknown

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

log = logging.getLogger("icefield.engine")

JVM_DIED = 70
_CONF = {
    # Adaptive execution keeps a thread, and by it the session, for ever; a fetch has nothing to adapt.
    "spark.sql.adaptive.enabled": "false",
    # The SQL door's names are PostgreSQL's: "A" and "a" are two columns.
    "spark.sql.caseSensitive": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.shuffle.partitions": "4",
}


class Worker:
    def __init__(self, server: str, root: SparkSession) -> None:
        self._server = server
        self._root = root
        self._lock = threading.Lock()
        self._missing: list[str] | None = None
        self._running: dict[str, _Conversation] = {}

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return  # closed: the process ends
            threading.Thread(target=self._converse, args=(sock,), name="icefield-engine", daemon=True).start()

    def _converse(self, sock: socket.socket) -> None:
        conversation = _Conversation(self, FrameSocket(sock))
        try:
            conversation.run()
        except ConnectionEnded:
            pass
        except Exception:
            log.exception("a conversation ended by an error of the engine worker's own")
        finally:
            conversation.end()

    def missing(self) -> list[str]:
        """Internal classes that rows are changed by and that this Iceberg does not have."""
        if self._missing is None:
            self._missing = missing(self._root)
            if self._missing:
                log.warning("rows are changed by public SQL, for want of %s", ", ".join(self._missing))
        return self._missing

    @property
    def way(self) -> str:
        return os.environ.get(changing.WAY_VARIABLE, "") or (changing.PUBLIC if self.missing() else "")

    def bind(self, address: str, token: str | None) -> SparkSession:
        return new_session(self._root, Binding(self._server, address, token))

    def enter(self, conversation: _Conversation) -> None:
        with self._lock:
            self._running[conversation.id] = conversation

    def leave(self, conversation: _Conversation) -> None:
        with self._lock:
            self._running.pop(conversation.id, None)

    def cancel(self, session: str) -> bool:
        with self._lock:
            conversation = self._running.get(session)
        return conversation.cancel() if conversation else False

    def cancel_jobs(self, group: str) -> None:
        self._root.sparkContext.cancelJobGroup(group)

    def set_job_group(self, group: str) -> None:
        # Interrupting a task's thread may close a file that another task reads through the same handle.
        self._root.sparkContext.setJobGroup(group, "icefield engine request", interruptOnCancel=False)


class _Conversation:
    """One connection: a session, and its requests one after the other."""

    def __init__(self, worker: Worker, frames: FrameSocket) -> None:
        self.id = uuid.uuid4().hex
        self._worker = worker
        self._frames = frames
        self._session: SparkSession | None = None
        self._way = ""
        self._lock = threading.Lock()
        self._job: str | None = None
        self._cancelled = False

    def run(self) -> None:
        while True:
            header, _ = self._frames.receive()
            op = header.get("op")
            if op == "close":
                self._frames.send({"ok": {}})
                return
            verb = _VERBS.get(str(op))
            try:
                if verb is None:
                    raise BadRequest(f"the engine has no operation {op!r}", field="op")
                self._begin()
                try:
                    answer = verb(self, header)
                finally:
                    self._finish()
            except ConnectionEnded:
                raise
            except BaseException as error:
                known = translate(error)
                if self._cancelled and not isinstance(known, OutcomeUnknown):
                    known = Cancelled("the request was cancelled")
                if type(known) is EngineFailed:
                    log.warning("request %s failed: %s", op, known.message)
                self._frames.send({"error": error_to_json(known)})
            else:
                self._frames.send({"ok": answer})

    def _begin(self) -> None:
        with self._lock:
            self._job = f"icefield-{uuid.uuid4().hex}"
            self._cancelled = False
        self._worker.set_job_group(self._job)

    def _finish(self) -> None:
        with self._lock:
            self._job = None
        if self._session is not None:
            with suppress(Exception):  # a JVM that is gone has told the request itself
                make_inactive(self._session)

    def cancel(self) -> bool:
        with self._lock:
            if self._job is None:
                return False
            self._cancelled = True
            self._worker.cancel_jobs(self._job)
            return True

    def end(self) -> None:
        self._worker.leave(self)
        self._frames.close()
        session, self._session = self._session, None
        if session is not None:
            close_catalog(session)

    # Verbs

    def _open(self, header: Mapping[str, Any]) -> dict[str, Any]:
        if self._session is not None:
            raise BadRequest("this connection has opened its session already", field="op")
        address = header.get("address")
        if not isinstance(address, str) or not address:
            raise BadRequest("address must be the address of a session, as lake@~id", field="address")
        self._session = self._worker.bind(address, header.get("token"))
        self._way = str(header.get("way") or self._worker.way)
        self._worker.enter(self)
        return {"session": self.id}

    def _fetch(self, header: Mapping[str, Any]) -> dict[str, Any]:
        session, namespace, name = self._opened(), header["namespace"], header["name"]
        identity = changing.table_of(session, namespace, name, self._way) if header.get("identity") else None
        stream = Fetch(session, namespace, name, header.get("columns"), header.get("max-rows"), identity=identity)
        if stream.source is not None:
            self._frames.send(*source_frame(stream.source))
        self._frames.send({"schema": True}, stream.schema.serialize())
        for count, message in stream:
            self._check()
            self._frames.send({"rows": count}, message)
        return {"rows": stream.rows}

    def _append(self, header: Mapping[str, Any]) -> dict[str, Any]:
        import pyarrow as pa

        incoming = _Incoming(self._frames)
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(incoming.frame("schema")[1]))
            return {
                "rows": append(
                    self._opened(), header["namespace"], header["name"], schema, incoming.batches(schema, self)
                )
            }
        finally:
            incoming.drain()

    def _change(self, header: Mapping[str, Any]) -> dict[str, Any]:
        import pyarrow as pa

        incoming = _Incoming(self._frames)
        try:
            source = source_of(*incoming.frame("source"))
            alive = pa.ipc.read_record_batch(pa.py_buffer(incoming.frame("alive")[1]), alive_schema()).column(0)
            deleted = incoming.table(deleted_schema(), "deleted")
            change = RowChange(source, header["verb"], deleted, alive.to_pylist())
            schema = pa.ipc.read_schema(pa.py_buffer(incoming.frame("schema")[1]))
            rows = incoming.batches(schema, self)
            table = changing.table_of(self._opened(), header["namespace"], header["name"], self._way)
            return asdict(changing.make_change(table, change, schema, rows, self._check))
        finally:
            incoming.drain()

    def _truncate(self, header: Mapping[str, Any]) -> dict[str, Any]:
        table = changing.table_of(self._opened(), header["namespace"], header["name"], self._way)
        return asdict(changing.truncate(table, header.get("snapshot-id"), self._check))

    def _ping(self, _: Mapping[str, Any]) -> dict[str, Any]:
        self._worker._root.sparkContext.statusTracker().getActiveJobsIds()
        return {"pid": os.getpid(), "missing": self._worker.missing()}

    def _cancel(self, header: Mapping[str, Any]) -> dict[str, Any]:
        return {"found": self._worker.cancel(str(header.get("session")))}

    def _opened(self) -> SparkSession:
        if self._session is None:
            raise BadRequest("open a session first", field="op")
        return self._session

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def _check(self) -> None:
        if self._cancelled:
            raise Cancelled("the request was cancelled")


_VERBS = {
    "open": _Conversation._open,
    "fetch": _Conversation._fetch,
    "append": _Conversation._append,
    "change": _Conversation._change,
    "truncate": _Conversation._truncate,
    "ping": _Conversation._ping,
    "cancel": _Conversation._cancel,
}


class _Incoming:
    """What follows an append or a change. Whatever becomes of it, all of its frames are taken off the connection."""

    def __init__(self, frames: FrameSocket) -> None:
        self._frames = frames
        self._over = False
        self._held: tuple[dict[str, Any], bytes] | None = None

    def frame(self, kind: str) -> tuple[dict[str, Any], bytes]:
        header, body = self._held or self._next()
        self._held = None
        if kind not in header:
            if "abort" in header:
                raise Cancelled("the request was cancelled")
            raise BadRequest(f"the frame {kind!r} is missing", field=kind)
        return header, body

    def table(self, schema: pa.Schema, kind: str) -> pa.Table:
        """All frames of a kind that follow, as one table."""
        import pyarrow as pa

        batches: list[pa.RecordBatch] = []
        while True:
            header, body = self._next()
            if kind not in header:
                self._held = header, body
                return pa.Table.from_batches(batches, schema=schema)
            batches.append(pa.ipc.read_record_batch(pa.py_buffer(body), schema))

    def batches(self, schema: pa.Schema, conversation: _Conversation) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        while True:
            header, body = self._next()
            if conversation.cancelled or "abort" in header:
                raise Cancelled("the request was cancelled")
            if self._over:
                return
            yield pa.ipc.read_record_batch(pa.py_buffer(body), schema)

    def drain(self) -> None:
        while not self._over:
            self._next()

    def _next(self) -> tuple[dict[str, Any], bytes]:
        header, body = self._frames.receive()
        self._over = "end" in header or "abort" in header
        return header, body


def _listen(path: Path) -> socket.socket:
    with suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(old)
    listener.listen(64)
    return listener


def _end_with_jvm() -> None:
    jvm = driver()
    if jvm is not None:
        jvm.process.wait()
        log.error("Spark's JVM ended with status %s", jvm.process.returncode)
    os._exit(JVM_DIED)


def _end_with_stdin() -> None:
    with suppress(OSError):
        while sys.stdin.buffer.read(4096):
            pass
    os._exit(0)  # the JVM ends by itself: our end of its standard input closes with us


@contextmanager
def _told(what: str) -> Iterator[None]:
    """What is only a courtesy may fail; somebody should be able to find out."""
    try:
        yield
    except Exception as error:
        log.warning("%s failed: %s", what, error)


def _warm_up(root: SparkSession) -> None:
    """A JVM's first append, fetch and change take seconds (classes, code generation): let nobody wait for them."""
    import pyarrow as pa

    with _told("warming up"), tempfile.TemporaryDirectory(prefix="icefield-warm-") as folder:
        session = root.newSession()
        prefix = f"spark.sql.catalog.{CATALOG}"
        for key, value in (
            (prefix, "org.apache.iceberg.spark.SparkCatalog"),
            (f"{prefix}.type", "hadoop"),
            (f"{prefix}.warehouse", folder),
        ):
            session.conf.set(key, value)
        session.sql(
            f"CREATE TABLE {CATALOG}.warm.t (id bigint, s string) USING iceberg "
            "TBLPROPERTIES ('format-version' = '3', 'write.merge.mode' = 'merge-on-read')"
        )
        rows = pa.RecordBatch.from_pydict({"id": [1, 2, 3], "s": ["a", "b", "c"]})
        append(session, ["warm"], "t", rows.schema, [rows])
        for _ in Fetch(session, ["warm"], "t", None, None):
            pass
        for verb in ("merge", "update"):
            _warm_change(session, verb)
        make_inactive(session)
        close_catalog(session)


def _warm_change(session: SparkSession, verb: str) -> None:
    import pyarrow as pa

    table = changing.table_of(session, ["warm"], "t", "")
    stream = Fetch(session, ["warm"], "t", None, None, identity=table)
    batches = [pa.ipc.read_record_batch(pa.py_buffer(message), stream.schema) for _, message in stream]
    seen = pa.Table.from_batches(batches, schema=stream.schema)
    one = seen.slice(0, 1)
    deleted = pa.table({"file": one["_file"], "pos": one["_pos"], "row_id": one["_row_id"]})
    new = one.select(["id", "s", "_row_id"])
    assert stream.source is not None
    alive = [seen["_file"].to_pylist().count(n) for n in range(len(stream.source.files))]
    change = RowChange(stream.source, verb, deleted, alive)
    changing.make_change(changing.table_of(session, ["warm"], "t", ""), change, new.schema, new.to_batches(), _go_on)


def _go_on() -> None:
    """Nobody cancels a warm-up."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="icefield.engine.spark.worker", description="Spark for the SQL door")
    parser.add_argument("--socket", required=True, type=Path, help="the Unix socket to listen on")
    parser.add_argument("--server", required=True, help="the server's address, as http://127.0.0.1:8181")
    parser.add_argument("--watch-stdin", action="store_true", help="end when standard input closes")
    options = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    log.setLevel(logging.INFO)
    # A broken connection to the JVM is told by our own errors; Py4J's traces say no more.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)

    listener = _listen(options.socket)
    if options.watch_stdin:
        threading.Thread(target=_end_with_stdin, name="icefield-parent", daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    print("progress starting Spark", flush=True)
    try:
        root = start_spark("icefield engine", _CONF)
    except IcefieldError as error:
        log.error("Spark did not start: %s", error.message)
        return 1
    threading.Thread(target=_end_with_jvm, name="icefield-jvm", daemon=True).start()
    threading.Thread(target=_warm_up, args=(root,), name="icefield-warm-up", daemon=True).start()
    log.info("engine ready at %s", options.socket)
    print("ready", json.dumps({"socket": str(options.socket), "pid": os.getpid()}), flush=True)
    try:
        Worker(options.server, root).serve(listener)
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
