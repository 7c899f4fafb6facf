"""The SparkSession of a lake, and this process's one Spark that all lakes share.

The first lake's session is Spark's root session: ``SparkSession.getActiveSession()`` and ``builder.getOrCreate()`` give
it. Further lakes get sessions of the same Spark. Who starts Spark stops it: the last lake, if a lake started it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from icefield.client.lease import Lease
from icefield.client.statements import Hook, Statements
from icefield.engine.spark import session as spark_session
from icefield.engine.spark.session import Binding
from icefield.model.errors import WrongState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCK = threading.RLock()
_USERS: set[int] = set()
_STARTED: SparkSession | None = None
"""The root session, if a lake of this process started it."""


class BoundSpark:
    def __init__(self, server: str, lease: Lease, conf: Mapping[str, str]) -> None:
        global _STARTED
        binding = Binding(server, lease.address, lease.token)
        with _LOCK:
            self.session, started = spark_session.bound_session(binding, app="icefield", conf=conf)
            if started:
                _STARTED = self.session
            _USERS.add(id(self))
        self.statements = Statements(lease, self.session)
        self._hook = Hook.of(self.session.sparkContext._gateway._gateway_client)
        self._hook.add(self.statements)

    def refuse_streams(self) -> None:
        """A stream writes on by itself: in a transaction that is rolled back its rows would be lost for good.

        A transaction inside ``foreachBatch`` is the stream's own, and fine.
        """
        own = self.session.sparkContext.getLocalProperty("sql.streaming.queryId")
        names = [query.name or query.id for query in self.session.streams.active if query.id != own]
        if names:
            raise WrongState(
                f"a transaction cannot begin while streaming queries of this session run ({', '.join(names)}): "
                "what they write would be rolled back with it. Give the transaction its own icefield.connect()"
            )

    def retire(self) -> None:
        """Its server session is gone. Spark itself goes on, for a new session."""
        self._hook.remove(self.statements)
        with self._hook.unmarked():
            spark_session.close_catalog(self.session)
        with _LOCK:
            _USERS.discard(id(self))

    def close(self) -> None:
        global _STARTED
        self.retire()
        with _LOCK:
            if _STARTED is not None and not _USERS:
                started, _STARTED = _STARTED, None
                spark_session.stop_spark(started)
