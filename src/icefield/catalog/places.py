"""A place: where a client stands, opened. Every verb of the catalog is said at a place.

lake, lake@dev          a branch: a write lands at once
lake@v1, lake@3f2c…     a tag or a commit: reads only
lake@~<session>         a session's symbolic ref: a branch or, after BEGIN, a transaction
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from icefield.graph.tree import TreeView
from icefield.model.errors import BadRequest, CommitConflict, ReadOnly, Unauthorized, WrongState
from icefield.model.names import Address, Identifier
from icefield.store.port import StoreReader
from icefield.store.records import CommitRecord, SessionRecord
from icefield.transaction import ranges, transactions
from icefield.transaction.core import Core
from icefield.transaction.landing import Guard, Landed, land, refuses_client_gc
from icefield.transaction.load_tokens import PREFIX, LoadToken, seal, unseal
from icefield.transaction.ranges import Scope
from icefield.transaction.served import Overlaid
from icefield.transaction.sessions import Seen, Sessions, in_flight
from icefield.transaction.steps import Seen as SeenByStatement
from icefield.transaction.steps import Verb


@dataclass(frozen=True, slots=True)
class Place:
    core: Core
    sessions: Sessions
    repo: str
    principal: str
    overlaid: Overlaid
    scope: Scope | None
    """None where nothing can be written: no ids are handed out there."""
    kind: str
    name: str
    commit: CommitRecord
    view: TreeView
    session: SessionRecord | None = None
    transaction: str | None = None
    token: LoadToken | None = None
    """The load that a call on a session address belongs to, where the client says so."""

    def at(self, commit: CommitRecord) -> Place:
        """The same place as it was at this commit."""
        return replace(self, commit=commit, view=self.core.graph.tree(commit))

    # -- reading ----------------------------------------------------------------------------------------------------

    def served(self, entry: str, metadata: dict[str, Any]) -> dict[str, Any]:
        """The metadata as clients of this place must see it."""
        if self.scope is not None:
            core = self.core
            with core.store.read() as reader:
                where = ranges.positions(reader, entry, self.scope, metadata)
            if where is None:
                with core.store.write() as writer:
                    where = ranges.ensure(writer, entry, self.scope, metadata)
            metadata = where.raised(metadata)
        return self.overlaid.lay_over(metadata)

    def config(self, entry: str, location: str) -> dict[str, str]:
        """What goes with a table load besides the metadata."""
        config = self.overlaid.config(location)
        if self.session is not None:
            if self.token is not None:
                flying = self.token.statements
            else:
                flying = tuple(s["n"] for s in in_flight(self.session))
            config["token"] = seal(
                LoadToken(self.session.id, self.session.epoch, flying, entry), self.core.load_token_key
            )
        return config

    def etag(self, *parts: str) -> str:
        """Covers everything that may differ in the answer: the ref, the epoch, the statement, what is laid over."""
        told = [self.repo, self.kind, self.name, self.transaction or "", repr(self.overlaid), repr(self.scope), *parts]
        if self.session is not None:
            told += [self.session.id, str(self.session.epoch), str(self.session.statement)]
        return '"' + hashlib.sha256("\x00".join(told).encode()).hexdigest()[:32] + '"'

    # -- writing ----------------------------------------------------------------------------------------------------

    def write(self, verb: Verb, *, message: str, operation: str, table_commit: bool = False) -> Landed | None:
        """Lands the verb on the branch, or stages it in the transaction (then None)."""
        if self.scope is None:
            raise ReadOnly(f"{self.name} is a {self.kind}: it does not change; write to a branch")
        strict = False
        guard: Guard | None = None
        if self.session is not None:
            strict = self._check_statement(self.session, table_commit)

            def still_in_time(writer: StoreReader) -> None:
                """Once more in the store transaction that writes: the statement may have returned in between."""
                assert self.session is not None
                now = writer.get(SessionRecord, self.session.id)
                if now is None or now.epoch != self.session.epoch or now.closed:
                    raise WrongState(
                        f"session {self.session.id} moved on while this write was under way: it is refused"
                    )
                self._check_statement(now, table_commit)

            guard = still_in_time

        try:
            if self.transaction is not None:
                transactions.stage(
                    self.core, self.transaction, verb, overlaid=self.overlaid, strict=strict, guard=guard
                )
                return None
            landed = land(
                self.core,
                self.repo,
                self.name,
                verb,
                overlaid=self.overlaid,
                message=message,
                principal=self.principal,
                details={"operation": operation},
                strict=strict,
                seen=self._seen() if self.session is not None else None,
                guard=guard,
            )
        except CommitConflict as conflict:
            if self.session is None:
                raise
            # 409 is a question to Java: it would validate at the weaker level it was served and post again.
            raise SessionConflict(conflict) from conflict
        if self.session is not None and (landed.steps or table_commit):
            # What changed nothing leaves the statement where it stands; a table commit asked again must see itself.
            self.sessions.moved_by_own_commit(self.session, landed.commit)
        return landed

    def check_writable(self) -> None:
        """May something other than a table commit be written here, now?"""
        if self.scope is None:
            raise ReadOnly(f"{self.name} is a {self.kind}: it does not change; write to a branch")
        if self.session is not None:
            self._check_statement(self.session, False)

    def _seen(self) -> SeenByStatement:
        """Each table as it is in the view that the session's statement reads."""
        view, metadata = self.view, self.core.metadata

        def seen(identifier: Identifier, entry_id: str) -> dict[str, Any] | None:
            entry = view.get(identifier)
            if entry is None or entry.id != entry_id:  # renamed in between
                entry = next((each for _, each in view.items() if each.id == entry_id), None)
            if entry is None or entry.metadata_location is None:
                return None
            return metadata.load(entry.metadata_location)

        return seen

    def _check_statement(self, session: SessionRecord, table_commit: bool) -> bool:
        """Nothing of an earlier epoch lands. Says whether the statement is a strict write."""
        flying = {s["n"]: s for s in in_flight(session)}
        token = self.token
        if token is not None and token.epoch != session.epoch:
            raise WrongState(
                f"this write belongs to an earlier epoch of session {session.id} (its transaction ended, or the "
                "session moved to another branch): nothing of it was kept"
            )
        if session.statement == 0:
            return False  # never marked
        if table_commit:
            if token is None:
                raise WrongState(
                    "a commit to a table on a marked session needs the load token of its statement "
                    "(bind Spark with rest.auth.type=oauth2, token=<session token>)"
                )
            own = [flying[n] for n in token.statements if n in flying]
            if not own:
                raise WrongState(
                    f"the statement of session {session.id} that this write belongs to has returned already: "
                    "its late write is refused"
                )
            return any(s["strict"] for s in own)
        if not flying:
            raise WrongState(f"no statement of session {session.id} is in flight: its late write is refused")
        return any(s["strict"] for s in flying.values())


class SessionConflict(CommitConflict):
    """A conflict told on a session address: final, not a question."""

    def __init__(self, conflict: CommitConflict) -> None:
        super().__init__(f"conflict: {conflict.message}", conflict.conflicts)


def open_place(core: Core, sessions: Sessions, address: Address, *, bearer: str | None, principal: str) -> Place:
    if address.session is not None:
        return _open_session(core, sessions, address, bearer)
    with core.store.read() as reader:
        repo = core.graph.repo(reader, address.repo)
        resolved = core.graph.resolve(reader, address.repo, address.ref)
    writable = resolved.kind == "branch" and resolved.ref_record is not None
    return Place(
        core,
        sessions,
        repo.name,
        principal,
        Overlaid(resolved.name, refuses_client_gc(repo), False),
        Scope(resolved.ref_record.id) if writable and resolved.ref_record is not None else None,
        resolved.kind,
        resolved.name,
        resolved.commit,
        core.graph.tree(resolved.commit),
    )


def _open_session(core: Core, sessions: Sessions, address: Address, bearer: str | None) -> Place:
    assert address.session is not None
    token: LoadToken | None = None
    if bearer is not None and bearer.startswith(PREFIX):
        token = unseal(bearer, core.load_token_key)
        if token is None:
            raise Unauthorized(f"session {address.session}: this load token was not made by this server")
        session = sessions.by_load_token(address.session, token)
    else:
        session = sessions.authenticate(address.session, bearer)
    if session.repo != address.repo:
        raise BadRequest(f"session {session.id} belongs to repo {session.repo}, not {address.repo}", field="prefix")
    seen: Seen = sessions.see(session)
    with core.store.read() as reader:
        repo = core.graph.repo(reader, session.repo)
        resolved = core.graph.resolve(reader, session.repo, seen.session.ref)
    transaction = seen.opened.record.id if seen.opened is not None else None
    scope = Scope(resolved.ref_record.id, transaction) if resolved.kind == "branch" and resolved.ref_record else None
    return Place(
        core,
        sessions,
        repo.name,
        session.principal,
        Overlaid(seen.session.ref, refuses_client_gc(repo), True, transaction),
        scope,
        resolved.kind,
        seen.session.ref,
        seen.commit,
        seen.view,
        seen.session,
        transaction,
        token,
    )


__all__: Sequence[str] = ["Place", "SessionConflict", "open_place"]
