"""A lake as a Python program holds it: one session on the server, one SparkSession bound to it.

The session is a symbolic ref: it stands on a branch, in a transaction on the transaction. Spark was bound to it once
and follows. One lake is one session: threads that want transactions of their own connect on their own.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from icefield.client import branches
from icefield.client.branches import Commit, Diff, Merged, Refs
from icefield.client.http import Management
from icefield.client.lease import Lease
from icefield.client.transaction import Rollback, Transaction
from icefield.model.errors import NoSuchSession, WrongState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from icefield.client.sparks import BoundSpark


class Lake:
    """Made by ``icefield.connect``. Close it, or use it as a context manager; else it is closed at exit."""

    Rollback = Rollback

    def __init__(
        self,
        server: Management,
        repo: str,
        ref: str | None = None,
        *,
        lease_ms: int | None = None,
        spark_conf: Mapping[str, str] | None = None,
    ) -> None:
        self._server = server
        self._lease_ms = lease_ms
        self._spark_conf = dict(spark_conf or {})
        self._lock = threading.RLock()
        self._lease = Lease.open(server, repo, ref, lease_ms)
        self._spark: BoundSpark | None = None
        self._transaction: Transaction | None = None
        self._closed = False
        self.repo = self._lease.repo
        self.branches = Refs(server, self.repo, "branch")
        self.tags = Refs(server, self.repo, "tag")
        _OPEN.add(self)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def ref(self) -> str:
        """The branch, tag or commit id this lake stands on."""
        return self._lease.ref

    @property
    def spark(self) -> SparkSession:
        """The SparkSession bound to this lake; Spark is started when it is first asked for.

        Its catalog is ``lake``, and the default: ``sales.orders`` is a table of this lake, at ``ref`` or, inside a
        transaction, in the transaction. If the session ended (its lease ran out), the next ``spark`` is a new one.
        """
        with self._lock:
            self._check_usable()
            if self._spark is None:
                from icefield.client.sparks import BoundSpark

                self._spark = BoundSpark(self._server.url, self._lease, self._spark_conf)
            return self._spark.session

    def sql(self, query: str, args: Any = None, **frames: Any) -> DataFrame:
        """``lake.spark.sql``."""
        return self.spark.sql(query, args, **frames)

    def table(self, name: str) -> DataFrame:
        """``lake.spark.table``."""
        return self.spark.table(name)

    def transaction(self, message: str = "", *, id: str | None = None) -> Transaction:  # noqa: A002
        """Several statements over several tables, landed in one move of the branch: ``with lake.transaction(): …``.

        Isolation is snapshot: reads see the commit it began at, and its own writes.
        """
        self._check_usable()
        return Transaction(self, message, id)

    def checkout(self, ref: str) -> None:
        """Stand on another branch, tag or commit. Tables are read there from the next statement on."""
        with self._lock:
            self._check_usable()
            self._lease.checkout(ref)
            self._moved()

    def diff(self, start: str, end: str | None = None) -> Diff:
        """What changes from ``start`` to ``end`` (by default: where this lake stands), by entry."""
        self._check_open()
        return branches.diff_of(self._server, self.repo, start, self.ref if end is None else end)

    def merge(
        self, source: str, into: str | None = None, message: str | None = None, *, dry_run: bool = False
    ) -> Merged:
        """Raises ``CommitConflict`` naming every conflict; a dry run lists them instead and changes nothing."""
        self._check_open()
        target = self.ref if into is None else into
        return branches.merge(self._server, self.repo, source, target, message, dry_run=dry_run)

    def log(self, ref: str | None = None, *, limit: int = 20) -> list[Commit]:
        """Commits of ``ref`` (by default: where this lake stands), the newest first."""
        self._check_open()
        return branches.log_of(self._server, self.repo, self.ref if ref is None else ref, limit)

    def close(self) -> None:
        """An open transaction is rolled back. Spark stops with the last lake that uses it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            _OPEN.discard(self)
            if self._transaction is not None:
                self._transaction.state = "rolled back"
                self._transaction = None
            self._lease.close()
            if self._spark is not None:
                self._spark.close()
                self._spark = None
            self._server.close()

    def __enter__(self) -> Lake:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Lake {self.repo}@{self.ref} at {self.url}{', closed' if self._closed else ''}>"

    # For Transaction

    def _begin(self, transaction: Transaction) -> str:
        with self._lock:
            self._check_usable()
            if self._transaction is not None:
                raise WrongState(
                    f"transaction {self._transaction.id} is open in this lake: commit it or roll it back first, "
                    "or use tx.savepoint() inside it; another thread needs its own icefield.connect()"
                )
            if self._spark is not None:
                self._spark.refuse_streams()
            base = str(self._lease.begin(transaction.id, transaction.message)["base"])
            self._transaction = transaction
            if self._spark is not None:
                self._spark.statements.in_transaction = True
            self._moved()
            return base

    def _transaction_ended(self, transaction: Transaction) -> None:
        with self._lock:
            if self._transaction is transaction:
                self._transaction = None
                if self._spark is not None:
                    self._spark.statements.in_transaction = False
            self._moved()

    def _moved(self) -> None:
        if self._spark is not None:
            self._spark.statements.moved()

    def _check_open(self) -> None:
        if self._closed:
            raise WrongState("this lake is closed: icefield.connect() gives another")

    def _check_usable(self) -> None:
        """Open, and its session alive: a session that ended outside a transaction is replaced by a new one."""
        self._check_open()
        if not self._lease.lost:
            return
        if self._transaction is not None:
            # What comes next belongs to the transaction: it must not run on its own, outside of it.
            raise NoSuchSession(
                f"the session of transaction {self._transaction.id} has ended (its lease ran out, or a write was "
                "interrupted), so it is rolled back: leave its block, then begin again"
            )
        if self._spark is not None:
            self._spark.retire()
            self._spark = None
        self._lease.close()
        self._lease = Lease.open(self._server, self.repo, self._lease.ref, self._lease_ms)


_OPEN: weakref.WeakSet[Lake] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for lake in list(_OPEN):
        lake.close()
