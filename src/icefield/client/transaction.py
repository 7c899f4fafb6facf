"""``with lake.transaction() as tx``: several tables, one commit; and savepoints inside it.

Leaving the block commits, an exception rolls back and goes on. An exception inside ``with tx.savepoint()`` rolls back
to that savepoint and goes on; ``raise Rollback`` leaves a block quietly, undone.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from icefield.model.errors import CommitConflict, IcefieldError, NoSuchSession, Unauthorized, WrongState

if TYPE_CHECKING:
    from icefield.client.lake import Lake

log = logging.getLogger("icefield.client")

State = Literal["new", "open", "committed", "rolled back"]


class Rollback(Exception):
    """Leaves the innermost ``transaction()`` or ``savepoint()`` block, undone, and goes no further.

    ``Rollback(tx)`` leaves and undoes that whole transaction from inside a savepoint.
    """

    def __init__(self, transaction: Transaction | None = None) -> None:
        super().__init__()
        self.transaction = transaction


@dataclass(frozen=True, slots=True)
class Committed:
    transaction: str
    commit: str
    """The commit that holds the transaction; the base if there was nothing to do."""
    changed: bool

    def __str__(self) -> str:
        return f"committed as {self.commit}" if self.changed else "nothing to commit"


class Transaction:
    """Begun by ``with`` (or ``begin()``); ended by the block, or by ``commit()`` or ``rollback()``, once."""

    def __init__(self, lake: Lake, message: str, id_: str | None = None) -> None:
        self._lake = lake
        self._savepoints = 0
        self.id = id_ or str(uuid.uuid4())
        self.message = message
        self.base: str | None = None
        """The commit it began at."""
        self.state: State = "new"
        self.result: Committed | None = None

    def __repr__(self) -> str:
        return f"<Transaction {self.id} {self.state} on {self._lake.ref}>"

    def begin(self) -> Transaction:
        if self.state != "new":
            raise WrongState(f"transaction {self.id} is {self.state}: every transaction begins once")
        self.base = self._lake._begin(self)
        self.state = "open"
        return self

    def commit(self, message: str | None = None) -> Committed:
        """All of it, in one move of the branch. Raises ``CommitConflict`` with all conflicts; then it is rolled back.

        If the answer is lost it is asked again, by the transaction's id, and lands once; only a server that stays
        away leads to ``OutcomeUnknown``, and then ``commit()`` may be called again.
        """
        if self.state == "committed" and self.result is not None:
            return self.result
        self._check_open("commit")
        try:
            answer = self._lake._lease.commit(self.id, message)
        except (CommitConflict, NoSuchSession, Unauthorized):
            self._ended("rolled back")
            raise
        self.result = Committed(self.id, str(answer["commit"]), answer.get("result") == "committed")
        self._ended("committed")
        return self.result

    def rollback(self) -> None:
        if self.state == "rolled back":
            return
        self._check_open("rollback")
        try:
            self._lake._lease.rollback()
        except (NoSuchSession, Unauthorized):
            pass  # the session ended, and its transaction with it
        self._ended("rolled back")

    @contextmanager
    def savepoint(self, name: str | None = None) -> Iterator[Transaction]:
        """What is done in the block is undone if it raises."""
        self._check_open("savepoint")
        self._savepoints += 1
        name = name or f"savepoint-{self._savepoints}"
        lease = self._lake._lease
        lease.savepoint(name)
        try:
            yield self
        except BaseException as error:
            if self.state == "open":
                self._undo(name, error)
            if isinstance(error, Rollback) and error.transaction is None:
                return
            raise
        else:
            if self.state == "open":
                lease.release(name)

    def _undo(self, name: str, error: BaseException) -> None:
        lease = self._lake._lease
        try:
            lease.rollback_to(name)
            lease.release(name)
        except IcefieldError as second:
            # Half of the block would stay: then nothing may.
            error.add_note(
                f"rolling back to savepoint {name} failed ({second.message}): the transaction is rolled back"
            )
            self.rollback()
        self._lake._moved()

    def __enter__(self) -> Transaction:
        if self.state == "new":
            self.begin()
        self._check_open("with")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        quiet = isinstance(error, Rollback) and error.transaction in (None, self)
        if self.state != "open":
            return quiet
        if error is None:
            self.commit()
            return False
        try:
            self.rollback()
        except IcefieldError as second:
            # The server rolls back by itself when the lease ends; the first error is the one to hear of.
            error.add_note(f"and the rollback was not answered: {second.message}")
            self._ended("rolled back")
        return quiet

    def _check_open(self, verb: str) -> None:
        if self.state != "open":
            raise WrongState(f"{verb}: transaction {self.id} is not open, it is {self.state}")

    def _ended(self, state: State) -> None:
        self.state = state
        self._lake._transaction_ended(self)
