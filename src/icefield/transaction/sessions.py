"""Sessions: symbolic refs. A session points at a ref or, after BEGIN, at a transaction; moving it is all that BEGIN,
COMMIT, ROLLBACK and checkout do, so an engine bound once follows without noticing.

The view: outside a transaction a session stands on one commit and moves only when its next statement is marked, so a
statement sees all its tables at one commit. A forgotten mark gives an old view, never a torn one. A session that was
never marked follows its branch's head load by load.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from icefield.graph.tree import TreeView
from icefield.model.conflicts import Conflict
from icefield.model.errors import (
    BadRequest,
    CommitConflict,
    NoSuchRef,
    NoSuchSession,
    NoSuchTransaction,
    ReadOnly,
    Unauthorized,
    Unavailable,
    WrongState,
)
from icefield.store.port import StoreReader, StoreWriter
from icefield.store.records import CommitRecord, OutcomeRecord, SessionRecord, TransactionRecord
from icefield.transaction import transactions
from icefield.transaction.core import Core
from icefield.transaction.garbage import Written
from icefield.transaction.landing import refuses_client_gc
from icefield.transaction.load_tokens import LoadToken
from icefield.transaction.served import Overlaid
from icefield.transaction.transactions import Opened

log = logging.getLogger(__name__)

DEFAULT_LEASE_MS = 60_000
SHORTEST_LEASE_MS, LONGEST_LEASE_MS = 1_000, 24 * 3600 * 1000
MAX_SAVEPOINT_BYTES = 256

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a session's loads answer right now."""

    session: SessionRecord
    commit: CommitRecord
    view: TreeView
    opened: Opened | None


class Sessions:
    def __init__(self, core: Core, *, lease_ms: int = DEFAULT_LEASE_MS) -> None:
        self._core = core
        self._lease_ms = lease_ms

    # -- life of a session ------------------------------------------------------------------------------------------

    def open(
        self, repo: str, ref: str | None, *, principal: str, lease_ms: int | None = None
    ) -> tuple[SessionRecord, str]:
        """The new session and its secret token, which is kept nowhere."""
        lease = self._lease_ms if lease_ms is None else lease_ms
        if not SHORTEST_LEASE_MS <= lease <= LONGEST_LEASE_MS:
            raise BadRequest(f"lease-ms must lie between {SHORTEST_LEASE_MS} and {LONGEST_LEASE_MS}", field="lease-ms")
        core = self._core
        token = core.randomness.token()
        with core.store.read() as reader:
            resolved = core.graph.resolve(reader, repo, ref)
        session = SessionRecord(
            id=core.randomness.uuid().replace("-", "")[:16],
            repo=repo,
            token_hash=_hash(token),
            principal=principal,
            ref=resolved.name,
            view=resolved.commit.seq,
            epoch=0,
            transaction=None,
            statement=0,
            in_flight="[]",
            lease_ms=lease,
            expires_ms=core.clock.now_ms() + lease,
            closed=False,
        )
        with core.store.write() as writer:
            writer.insert(session)
        return session, token

    def authenticate(self, id_: str, bearer: str | None) -> SessionRecord:
        """By the session's token. The answer is the same whether the session exists or not."""
        with self._core.store.read() as reader:
            session = reader.get(SessionRecord, id_)
        if bearer is None or session is None or not hmac.compare_digest(session.token_hash, _hash(bearer)):
            raise Unauthorized(f"session {id_}: its token is missing or wrong; send it as bearer token")
        return self._alive(session)

    def by_load_token(self, id_: str, token: LoadToken) -> SessionRecord:
        with self._core.store.read() as reader:
            session = reader.get(SessionRecord, id_)
        if session is None or token.session != id_:
            raise Unauthorized(f"the load token belongs to another session than {id_}")
        return self._alive(session)

    def _alive(self, session: SessionRecord) -> SessionRecord:
        if session.closed or session.expires_ms < self._core.clock.now_ms():
            if not session.closed:
                self.expire(session)
            raise NoSuchSession(
                f"session {session.id} has ended (closed, or its lease ran out and its transaction was rolled back): "
                "open another"
            )
        return session

    def heartbeat(self, session: SessionRecord) -> None:
        def beat(writer: StoreWriter, now: SessionRecord) -> SessionRecord:
            return replace(now, expires_ms=self._core.clock.now_ms() + now.lease_ms)

        self._change(session.id, beat)

    def close(self, session: SessionRecord) -> None:
        files = self._files_of(session)

        def end(writer: StoreWriter, now: SessionRecord) -> SessionRecord:
            self._roll_back(writer, now, files)
            return replace(now, closed=True, transaction=None, epoch=now.epoch + 1, in_flight="[]")

        self._change(session.id, end)

    def expire(self, session: SessionRecord) -> bool:
        """Ends a session whose lease ran out: its transaction is rolled back. Says whether it did."""
        files = self._files_of(session)

        def end(writer: StoreWriter, now: SessionRecord) -> SessionRecord:
            if now.expires_ms >= self._core.clock.now_ms():
                return now  # a heartbeat came in between
            log.info("session %s: its lease ran out, its transaction is rolled back", now.id)
            self._roll_back(writer, now, files)
            return replace(now, closed=True, transaction=None, epoch=now.epoch + 1, in_flight="[]")

        return self._change(session.id, end).closed

    def sweep(self) -> int:
        """Ends every session whose lease ran out; how many."""
        with self._core.store.read() as reader:
            late = reader.find(SessionRecord, closed=False, at_most=("expires_ms", self._core.clock.now_ms() - 1))
        return sum(self._expire_if_can_be(session) for session in late)

    def _expire_if_can_be(self, session: SessionRecord) -> bool:
        """One session that cannot be ended does not keep the others alive."""
        try:
            return self.expire(session)
        except NoSuchSession:
            return False  # it was closed in between
        except Exception:
            log.exception("session %s: its lease ran out, and it could not be ended", session.id)
            return False

    def count_open(self) -> int:
        with self._core.store.read() as reader:
            return len(reader.find(SessionRecord, closed=False))

    # -- statements -------------------------------------------------------------------------------------------------

    def mark(self, session: SessionRecord, *, strict: bool = False) -> dict[str, Any]:
        """A statement begins. The view moves to the head of the session's ref, if no other statement is in flight."""
        core = self._core
        before = session.view

        def begin(writer: StoreWriter, now: SessionRecord) -> SessionRecord:
            nonlocal before
            before = now.view
            flying = in_flight(now)
            view = now.view
            if not flying and now.transaction is None:
                view = core.graph.resolve(writer, now.repo, now.ref).commit.seq
            number = now.statement + 1
            return replace(
                now,
                view=view,
                statement=number,
                in_flight=_encode_flight([*flying, {"n": number, "strict": strict}]),
                expires_ms=core.clock.now_ms() + now.lease_ms,
            )

        now = self._change(session.id, begin)
        with core.store.read() as reader:
            commit = reader.get(CommitRecord, now.view)
        assert commit is not None
        return {"statement": now.statement, "commit": commit.id, "epoch": now.epoch, "moved": before != now.view}

    def returned(self, session: SessionRecord, statement: int) -> None:
        def end(writer: StoreWriter, now: SessionRecord) -> SessionRecord:
            kept = [s for s in in_flight(now) if s["n"] != statement]
            return replace(now, in_flight=_encode_flight(kept))

        self._change(session.id, end)

    # -- moving the symbolic ref ------------------------------------------------------------------------------------

    def checkout(self, session: SessionRecord, ref: str) -> SessionRecord:
        def move(writer: StoreWriter, now: SessionRecord) -> SessionRecord:
            if now.transaction is not None:
                raise WrongState("a transaction is open: commit it or roll it back before changing to another branch")
            _nothing_in_flight(now)
            resolved = self._core.graph.resolve(writer, now.repo, ref)
            return replace(now, ref=resolved.name, view=resolved.commit.seq, epoch=now.epoch + 1)

        return self._change(session.id, move)

    def begin(
        self, session: SessionRecord, *, message: str = "", transaction: str | None = None, turn: bool = False
    ) -> dict[str, Any]:
        """``turn``: it was overtaken before; until it has ended, others wait a while with landing on its branch."""
        core = self._core
        id_ = transaction or core.randomness.uuid()
        _check_transaction_id(id_)
        if turn:
            core.tickets.take_turn(session.repo, session.ref, id_)
        try:
            return self._begin(session, id_, message)
        except BaseException:
            core.tickets.end_turn(id_)
            raise

    def _begin(self, session: SessionRecord, id_: str, message: str) -> dict[str, Any]:
        core = self._core
        base: CommitRecord | None = None

        def start(writer: StoreWriter, now: SessionRecord) -> SessionRecord:
            nonlocal base
            known = writer.get(TransactionRecord, id_)
            if known is not None:
                if known.session != now.id or now.transaction != id_:
                    raise WrongState(f"transaction id {id_} has been used already: every transaction needs its own")
                base = writer.get(CommitRecord, known.base)  # asked again: the answer was lost
                return now
            if now.transaction is not None:
                raise WrongState("there is already a transaction in progress in this session")
            _nothing_in_flight(now)
            resolved = core.graph.resolve(writer, now.repo, now.ref)
            if resolved.kind != "branch":
                raise ReadOnly(f"{now.ref} is a {resolved.kind}: it does not change; check out a branch to write")
            base = resolved.commit
            transactions.begin(
                core, writer, id_=id_, repo=now.repo, session=now.id, branch=now.ref, base=base, message=message
            )
            return replace(now, transaction=id_, view=base.seq, epoch=now.epoch + 1)

        now = self._change(session.id, start)
        assert base is not None
        return {"transaction": id_, "base": base.id, "epoch": now.epoch}

    def savepoint(self, session: SessionRecord, name: str) -> None:
        if not name or len(name.encode("utf-8", "replace")) > MAX_SAVEPOINT_BYTES:
            raise BadRequest(f"name of a savepoint: 1 to {MAX_SAVEPOINT_BYTES} bytes", field="name")
        self._in_transaction(session, lambda writer, opened: transactions.savepoint(self._core, writer, opened, name))

    def rollback_to(self, session: SessionRecord, name: str) -> None:
        files = self._files_of(session)

        def back(writer: StoreWriter, opened: Opened) -> None:
            transactions.rollback_to(self._core, writer, opened, files.of(opened.record.id), name)

        self._in_transaction(session, back, new_epoch=True)

    def release(self, session: SessionRecord, name: str) -> None:
        self._in_transaction(session, lambda writer, opened: transactions.release(self._core, writer, opened, name))

    def rollback(self, session: SessionRecord) -> None:
        """Asked again, it has been done. Statements in flight do not hold it up: nothing of theirs lands any more."""
        files = self._files_of(session)

        def back(writer: StoreWriter, now: SessionRecord) -> SessionRecord:
            if now.transaction is None:
                return now
            self._roll_back(writer, now, files)
            return replace(now, transaction=None, epoch=now.epoch + 1, view=self._newest_view(writer, now))

        self._change(session.id, back)

    def commit(
        self, session: SessionRecord, *, message: str | None = None, transaction: str | None = None
    ) -> dict[str, Any]:
        core = self._core
        with core.store.read() as reader:
            now = reader.get(SessionRecord, session.id)
            assert now is not None
            asked = transaction or now.transaction
            if asked is None:
                raise WrongState("there is no transaction in progress in this session")
            if now.transaction != asked:
                return self._first_outcome(reader, now, asked)
            opened = transactions.read(core, reader, asked)
            repo = core.graph.repo(reader, now.repo)
        _nothing_in_flight(now)

        def leave(writer: StoreWriter) -> None:
            latest = writer.get(SessionRecord, now.id)
            if latest is None or latest.transaction != asked:
                raise WrongState(f"transaction {asked} ended while it was being committed")
            _nothing_in_flight(latest)
            head = core.graph.resolve(writer, now.repo, now.ref).commit
            writer.put(replace(latest, transaction=None, epoch=latest.epoch + 1, view=head.seq))

        try:
            return transactions.commit(
                core,
                opened,
                overlaid=Overlaid(now.ref, refuses_client_gc(repo), True),
                principal=now.principal,
                message=message,
                also=leave,
            )
        except CommitConflict as conflict:
            self._fail(now, asked, conflict)
            raise
        finally:
            core.tickets.end_turn(asked)

    def _fail(self, session: SessionRecord, transaction: str, conflict: CommitConflict) -> None:
        """A transaction that conflicts is over; asked for again, it answers the same conflicts."""
        files = self._files_of(session)

        def end(writer: StoreWriter, now: SessionRecord) -> SessionRecord:
            if now.transaction != transaction:
                return now
            opened = transactions.read(self._core, writer, transaction)
            transactions.rollback(self._core, writer, opened, files.of(transaction), state=transactions.FAILED)
            outcome = {
                "result": "conflict",
                "message": conflict.message,
                "conflicts": [c.to_json() for c in conflict.conflicts],
                "transaction": transaction,
            }
            text = msgspec.json.encode(outcome).decode()
            writer.put(OutcomeRecord(transactions.outcome_key(transaction), text, self._core.clock.now_ms()))
            return replace(now, transaction=None, epoch=now.epoch + 1, view=self._newest_view(writer, now))

        self._change(session.id, end)

    def _first_outcome(self, reader: StoreReader, session: SessionRecord, transaction: str) -> dict[str, Any]:
        record = reader.get(TransactionRecord, transaction)
        if record is None or record.session != session.id:
            raise NoSuchTransaction(f"there is no transaction {transaction} in this session")
        outcome = reader.get(OutcomeRecord, transactions.outcome_key(transaction))
        if outcome is None:
            raise WrongState(f"transaction {transaction} has ended: it was {record.state}")
        return outcome_of(outcome)

    def transaction_state(self, session: SessionRecord, transaction: str) -> dict[str, Any]:
        with self._core.store.read() as reader:
            record = reader.get(TransactionRecord, transaction)
            if record is None or record.session != session.id:
                raise NoSuchTransaction(f"there is no transaction {transaction} in this session")
            answer: dict[str, Any] = {"transaction": transaction, "state": record.state}
            outcome = reader.get(OutcomeRecord, transactions.outcome_key(transaction))
        if outcome is not None:
            told = msgspec.json.decode(outcome.outcome)
            answer |= {k: told[k] for k in ("commit", "conflicts", "result") if k in told}
        return answer

    # -- what a session sees ----------------------------------------------------------------------------------------

    def see(self, session: SessionRecord) -> Seen:
        core = self._core
        with core.store.read() as reader:
            now = reader.get(SessionRecord, session.id)
            assert now is not None
            if now.transaction is not None:
                opened = transactions.read(core, reader, now.transaction)
                return Seen(now, opened.base, transactions.view(core, opened), opened)
            if now.statement == 0:
                commit: CommitRecord | None = core.graph.resolve(reader, now.repo, now.ref).commit
            else:
                commit = reader.get(CommitRecord, now.view)
        assert commit is not None
        return Seen(now, commit, core.graph.tree(commit), None)

    def moved_by_own_commit(self, session: SessionRecord, commit: CommitRecord) -> None:
        """After an autocommit the session sees what it wrote (Java loads the table again and looks for it)."""

        def move(writer: StoreWriter, now: SessionRecord) -> SessionRecord:
            if now.transaction is not None or now.view >= commit.seq:
                return now
            return replace(now, view=commit.seq)

        # A session that ended meanwhile has no view to move, and its commit has landed all the same.
        with contextlib.suppress(NoSuchSession):
            self._change(session.id, move)

    def describe(self, session: SessionRecord) -> dict[str, Any]:
        seen = self.see(session)
        transaction = None
        if seen.opened is not None:
            transaction = {
                "id": seen.opened.record.id,
                "base": seen.opened.base.id,
                "isolation": seen.opened.record.isolation,
                "savepoints": [point.name for point in seen.opened.savepoints],
            }
        return {
            "id": session.id,
            "repo": seen.session.repo,
            "ref": seen.session.ref,
            "commit": seen.commit.id,
            "epoch": seen.session.epoch,
            "transaction": transaction,
        }

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _in_transaction(
        self, session: SessionRecord, act: Callable[[StoreWriter, Opened], None], *, new_epoch: bool = False
    ) -> None:
        def run(writer: StoreWriter, now: SessionRecord) -> SessionRecord:
            if now.transaction is None:
                raise WrongState("there is no transaction in progress in this session")
            _nothing_in_flight(now)
            act(writer, transactions.read(self._core, writer, now.transaction))
            # What was loaded before ROLLBACK TO belongs to a past that is gone: its late POSTs must not land.
            return replace(now, epoch=now.epoch + 1) if new_epoch else now

        self._change(session.id, run)

    def _newest_view(self, reader: StoreReader, session: SessionRecord) -> int:
        """The head of the session's ref; where the ref is gone, what it saw last, until it is checked out elsewhere."""
        try:
            return self._core.graph.resolve(reader, session.repo, session.ref).commit.seq
        except NoSuchRef:
            return session.view

    def _files_of(self, session: SessionRecord) -> Written:
        """The files of the session's transaction, read while nobody waits for the store."""
        with self._core.store.read() as reader:
            now = reader.get(SessionRecord, session.id)
            transaction = now.transaction if now is not None else None
            staged = transactions.read(self._core, reader, transaction).staged if transaction is not None else ()
        files = Written(self._core, transaction or "-")
        files.read_ahead(staged)
        return files

    def _roll_back(self, writer: StoreWriter, session: SessionRecord, files: Written) -> None:
        if session.transaction is not None:
            opened = transactions.read(self._core, writer, session.transaction)
            transactions.rollback(self._core, writer, opened, files.of(session.transaction))
            self._core.tickets.end_turn(session.transaction)

    def _change(self, id_: str, change: Callable[[StoreWriter, SessionRecord], SessionRecord]) -> SessionRecord:
        with self._core.store.write() as writer:
            now = writer.get(SessionRecord, id_)
            if now is None:
                raise NoSuchSession(f"there is no session {id_}")
            if now.closed:
                raise NoSuchSession(f"session {id_} has ended: open another")
            after = change(writer, now)
            if after is not now and not writer.replace(now, after):
                raise Unavailable("the session was changed by somebody else at the same time: ask again")
            return after


def in_flight(session: SessionRecord) -> list[dict[str, Any]]:
    flying: list[dict[str, Any]] = msgspec.json.decode(session.in_flight)
    return flying


def outcome_of(record: OutcomeRecord) -> dict[str, Any]:
    """The first outcome, told again: a conflict is raised again."""
    outcome: dict[str, Any] = msgspec.json.decode(record.outcome)
    if outcome["result"] == "conflict":
        raise CommitConflict(outcome["message"], [Conflict(**c) for c in outcome["conflicts"]])
    return outcome


def _nothing_in_flight(session: SessionRecord) -> None:
    flying = in_flight(session)
    if flying:
        raise WrongState(
            f"statement {flying[0]['n']} of session {session.id} has not returned yet: "
            "wait for it, or close the session"
        )


def _check_transaction_id(id_: str) -> None:
    if not (8 <= len(id_) <= 64 and id_.replace("-", "").isalnum() and id_.isascii()):
        raise BadRequest("transaction-id: 8 to 64 letters, digits and '-'; a UUID is best", field="transaction-id")


def _encode_flight(statements: list[dict[str, Any]]) -> str:
    return msgspec.json.encode(statements).decode()


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


__all__ = ["Seen", "Sessions", "in_flight", "outcome_of"]
