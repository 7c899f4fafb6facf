"""The engine port over the worker's socket: for doors, which hold no JVM. Thread-safe.

A worker that was restarted is connected to again at the next request, and its session opened again; a request that was
in flight ends with ``EngineLost``.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from icefield.engine.port import Changed, EngineBusy, EngineLost, FetchedFrom, RowChange
from icefield.engine.spark.frames import (
    ConnectionEnded,
    FrameSocket,
    alive_schema,
    deleted_schema,
    error_from_json,
    source_frame,
    source_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

CONNECT_SECONDS = 60.0
"""How long a request waits for a worker that is being started again."""


class SparkEngine:
    """``engine.port.Engine``."""

    def __init__(self, path: Path | str, *, connect_seconds: float = CONNECT_SECONDS, way: str | None = None) -> None:
        """``way``: how rows are changed, else as the worker is set: ``public``, or anything else for the default."""
        self._path = str(path)
        self.way = way
        self._connect_seconds = connect_seconds

    def open_session(self, address: str, token: str) -> SparkEngineSession:
        return SparkEngineSession(self, address, token)

    def ping(self) -> None:
        frames = self.connect()
        try:
            ask(frames, {"op": "ping"})
        finally:
            frames.close()

    def close(self) -> None:
        """Nothing is shared between sessions: each closes its own connection."""

    def connect(self, seconds: float | None = None) -> FrameSocket:
        deadline = time.monotonic() + (self._connect_seconds if seconds is None else seconds)
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.connect(self._path)
                return FrameSocket(sock)
            except OSError as error:
                sock.close()
                if time.monotonic() > deadline:
                    raise EngineLost(f"the engine does not answer at {self._path}: {error}") from error
                time.sleep(0.1)


def ask(frames: FrameSocket, header: dict[str, Any]) -> dict[str, Any]:
    try:
        frames.send(header)
        return _answer(frames.receive()[0])
    except ConnectionEnded as error:
        raise _lost(error) from error


def _answer(header: dict[str, Any]) -> dict[str, Any]:
    if "error" in header:
        raise error_from_json(header["error"])
    answer: dict[str, Any] = header["ok"]
    return answer


def _frames_of(change: RowChange) -> Iterator[tuple[dict[str, Any], Any]]:
    import pyarrow as pa

    yield source_frame(change.source)
    alive = pa.RecordBatch.from_arrays([pa.array(change.alive, pa.int64())], schema=alive_schema())
    yield {"alive": alive.num_rows}, alive.serialize()
    schema = deleted_schema()
    for batch in change.deleted.select(schema.names).cast(schema).to_batches():
        yield {"deleted": batch.num_rows}, batch.serialize()


def _lost(error: ConnectionEnded) -> EngineLost:
    return EngineLost(f"the engine went away in the middle of the request: {error}")


class SparkEngineSession:
    """``engine.port.EngineSession``. Connects at its first request."""

    def __init__(self, engine: SparkEngine, address: str, token: str) -> None:
        self._engine = engine
        self._address = address
        self._token = token
        self._busy = threading.Lock()
        self._frames: FrameSocket | None = None
        self._id: str | None = None

    def fetch(
        self,
        namespace: Sequence[str],
        name: str,
        columns: Sequence[str] | None = None,
        *,
        max_rows: int | None = None,
        identity: bool = False,
    ) -> SparkRowStream:
        header = {
            "op": "fetch",
            "namespace": list(namespace),
            "name": name,
            "columns": None if columns is None else list(columns),
            "max-rows": max_rows,
            "identity": identity,
        }
        frames = self._take()
        try:
            frames.send(header)
            answer, body = frames.receive()
            source = None
            if "source" in answer:
                source = source_of(answer, body)
                answer, body = frames.receive()
            if "schema" not in answer:
                _answer(answer)
            return SparkRowStream(self, frames, body, source)
        except ConnectionEnded as error:
            self._give_back(broken=True)
            raise _lost(error) from error
        except BaseException:
            self._give_back()
            raise

    def append(self, namespace: Sequence[str], name: str, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> int:
        header = {"op": "append", "namespace": list(namespace), "name": name}
        return int(self._send_rows(header, (), schema, rows)["rows"])

    def change(
        self,
        namespace: Sequence[str],
        name: str,
        change: RowChange,
        schema: pa.Schema,
        rows: Iterable[pa.RecordBatch],
    ) -> Changed:
        header = {"op": "change", "namespace": list(namespace), "name": name, "verb": change.verb}
        return Changed(**self._send_rows(header, _frames_of(change), schema, rows))

    def truncate(self, namespace: Sequence[str], name: str, *, snapshot_id: int | None) -> Changed:
        header = {"op": "truncate", "namespace": list(namespace), "name": name, "snapshot-id": snapshot_id}
        frames = self._take()
        broken = False
        try:
            frames.send(header)
            return Changed(**_answer(frames.receive()[0]))
        except ConnectionEnded as error:
            broken = True
            raise _lost(error) from error
        finally:
            self._give_back(broken=broken)

    def _send_rows(
        self,
        header: dict[str, Any],
        first: Iterable[tuple[dict[str, Any], Any]],
        schema: pa.Schema,
        rows: Iterable[pa.RecordBatch],
    ) -> dict[str, Any]:
        frames = self._take()
        broken = False
        try:
            frames.send(header)
            try:
                for told, body in first:
                    frames.send(told, body)
                frames.send({"schema": True}, schema.serialize())
                for batch in rows:
                    if batch.num_rows:
                        frames.send({"rows": batch.num_rows}, batch.serialize())
            except ConnectionEnded:
                raise
            except BaseException:
                # The caller's rows failed: the engine must not take what came so far for all of it.
                frames.send({"abort": True})
                frames.receive()
                raise
            frames.send({"end": True})
            return _answer(frames.receive()[0])
        except ConnectionEnded as error:
            broken = True
            raise _lost(error) from error
        finally:
            self._give_back(broken=broken)

    def cancel(self) -> None:
        session = self._id
        if session is None or not self._busy.locked():
            return
        frames = self._engine.connect(seconds=5.0)
        try:
            ask(frames, {"op": "cancel", "session": session})
        finally:
            frames.close()

    def close(self) -> None:
        frames, self._frames, self._id = self._frames, None, None
        if frames is not None:
            frames.close()  # the worker sees the end of the connection and drops the session

    def _take(self) -> FrameSocket:
        """The connection, for one request; opened if there is none or the worker was restarted."""
        if not self._busy.acquire(blocking=False):
            raise EngineBusy("this engine session runs another request: finish or close that one first")
        try:
            if self._frames is not None and self._frames.is_stale():
                self.close()
            if self._frames is None:
                frames = self._engine.connect()
                try:
                    told = {"op": "open", "address": self._address, "token": self._token, "way": self._engine.way}
                    opened = ask(frames, told)
                except BaseException:
                    frames.close()
                    raise
                self._frames, self._id = frames, str(opened["session"])
            return self._frames
        except BaseException:
            self._busy.release()
            raise

    def _give_back(self, *, broken: bool = False) -> None:
        if broken:
            self.close()
        self._busy.release()


class SparkRowStream:
    """``engine.port.RowStream``: batches as they arrive."""

    def __init__(
        self, session: SparkEngineSession, frames: FrameSocket, schema: bytes, source: FetchedFrom | None
    ) -> None:
        import pyarrow as pa

        self._session = session
        self._frames = frames
        self._open = True
        self._schema: pa.Schema = pa.ipc.read_schema(pa.py_buffer(schema))
        self._source = source

    @property
    def source(self) -> FetchedFrom | None:
        return self._source

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        while self._open:
            header, body = self._next()
            if "rows" in header:
                yield pa.ipc.read_record_batch(pa.py_buffer(body), self._schema)
                continue
            self._finish()
            _answer(header)

    def close(self) -> None:
        """Stops the engine's work if it is not done; what is under way is thrown away."""
        if not self._open:
            return
        try:
            self._session.cancel()
            while "rows" in self._next()[0]:
                pass
        except EngineLost:
            return  # the connection is given up already
        except BaseException:
            self._finish(broken=True)
            raise
        self._finish()

    def _next(self) -> tuple[dict[str, Any], bytes]:
        try:
            return self._frames.receive()
        except ConnectionEnded as error:
            self._finish(broken=True)
            raise _lost(error) from error

    def _finish(self, *, broken: bool = False) -> None:
        if self._open:
            self._open = False
            self._session._give_back(broken=broken)

    def __enter__(self) -> SparkRowStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
