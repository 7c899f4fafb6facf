"""The management API, /api/v1: repos, refs, log, diff, merge, sessions and their transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from icefield import __version__
from icefield.access.identity import bearer_of, principal_of
from icefield.catalog import branches
from icefield.catalog.places import Place, open_place
from icefield.catalog.sequences import take_numbers
from icefield.catalog.shapes import Shapes
from icefield.model.errors import BadRequest
from icefield.model.names import Address, Identifier, check_level
from icefield.rest.http import Request, Response, Routes, answer
from icefield.rest.wire import read_namespace
from icefield.store.records import DeletionRecord, SessionRecord, TransactionRecord
from icefield.transaction.core import Core
from icefield.transaction.sessions import Sessions

SessionHandler = Callable[[SessionRecord, Request], dict[str, Any]]


class ManagementRoutes:
    def __init__(self, core: Core, sessions: Sessions, default_repo: str, data: str) -> None:
        self._core = core
        self._sessions = sessions
        self._default_repo = default_repo
        self._data = data
        self._shapes = Shapes(core.metadata)

    def register(self, routes: Routes) -> None:
        api = "/api/v1"
        repo = api + "/repos/{repo}"
        routes.add("GET", api + "/health", self.health)
        routes.add("GET", api + "/repos", self.repos)
        routes.add("POST", api + "/repos", self.create_repo)
        routes.add("GET", repo + "/refs", self.refs)
        for kind, word in (("branch", "branches"), ("tag", "tags")):
            routes.add("POST", f"{repo}/{word}", self._create_ref(kind))
            routes.add("DELETE", f"{repo}/{word}/{{name}}", self._drop_ref(kind))
        routes.add("GET", repo + "/log", self.log)
        routes.add("GET", repo + "/diff", self.diff)
        routes.add("POST", repo + "/merge", self.merge)
        routes.add("GET", repo + "/deletions", self.deletions)
        routes.add("GET", api + "/transactions/{transaction}", self.any_transaction)
        routes.add("POST", api + "/sessions", self.open_session)
        session = api + "/sessions/{session}"
        for method, pattern, handler in (
            ("GET", "", self.describe),
            ("DELETE", "", self.close),
            ("POST", "/heartbeat", self.heartbeat),
            ("POST", "/checkout", self.checkout),
            ("POST", "/statements", self.mark),
            ("DELETE", "/statements/{statement}", self.returned),
            ("POST", "/begin", self.begin),
            ("POST", "/savepoints", self.savepoint),
            ("POST", "/savepoints/{name}/rollback", self.rollback_to),
            ("DELETE", "/savepoints/{name}", self.release),
            ("POST", "/commit", self.commit),
            ("POST", "/rollback", self.rollback),
            ("GET", "/catalog", self.catalog),
            ("POST", "/sequences", self.sequence),
            ("GET", "/transactions/{transaction}", self.transaction),
        ):
            routes.add(method, session + pattern, self._in_session(handler))

    def any_transaction(self, request: Request) -> Response:
        """A transaction by its id alone; the token is still its session's."""
        with self._core.store.read() as reader:
            record = reader.get(TransactionRecord, request.names["transaction"])
        bearer = bearer_of(request.headers.get("authorization"))
        session = self._sessions.authenticate(record.session if record is not None else "-", bearer)
        return answer(self._sessions.transaction_state(session, request.names["transaction"]))

    # -- repos and refs ---------------------------------------------------------------------------------------------

    def health(self, request: Request) -> Response:
        names = [repo["name"] for repo in branches.repos(self._core)]
        return answer({"status": "ok", "version": __version__, "data": self._data, "repos": names})

    def repos(self, request: Request) -> Response:
        return answer({"repos": branches.repos(self._core)})

    def create_repo(self, request: Request) -> Response:
        document = request.json()
        properties = {k: _text(document, k) for k in ("client-gc",) if document.get(k) is not None}
        return answer(branches.create_repo(self._core, _text(document, "name"), properties))

    def refs(self, request: Request) -> Response:
        return answer({"refs": branches.refs(self._core, request.names["repo"])})

    def _create_ref(self, kind: str) -> Callable[[Request], Response]:
        def create(request: Request) -> Response:
            document = request.json()
            start = _maybe_text(document, "from")
            return answer(branches.create_ref(self._core, request.names["repo"], kind, _text(document, "name"), start))

        return create

    def _drop_ref(self, kind: str) -> Callable[[Request], Response]:
        def drop(request: Request) -> Response:
            branches.drop_ref(self._core, request.names["repo"], kind, request.names["name"])
            return answer({})

        return drop

    def log(self, request: Request) -> Response:
        return answer(
            branches.log(
                self._core,
                request.names["repo"],
                request.query.get("ref"),
                limit=request.number("limit", 50),
                before=request.query.get("before"),
            )
        )

    def diff(self, request: Request) -> Response:
        found = branches.diff(self._core, request.names["repo"], request.query.get("from"), request.query.get("to"))
        return answer({"entries": found})

    def merge(self, request: Request) -> Response:
        document = request.json()
        dry_run = document.get("dry-run", False)
        if not isinstance(dry_run, bool):
            raise BadRequest("dry-run must be true or false", field="dry-run")
        return answer(
            branches.merge(
                self._core,
                request.names["repo"],
                source=_text(document, "from"),
                into=_text(document, "into"),
                principal=principal_of(bearer_of(request.headers.get("authorization"))),
                message=_maybe_text(document, "message"),
                id_=_maybe_text(document, "id"),
                dry_run=dry_run,
            )
        )

    def deletions(self, request: Request) -> Response:
        with self._core.store.read() as reader:
            self._core.graph.repo(reader, request.names["repo"])
            found = reader.find(DeletionRecord)
        return answer(
            {
                "files": [
                    {
                        "location": each.location,
                        "reason": each.reason,
                        "enqueued-ms": each.enqueued_ms,
                        "not-before-ms": each.not_before_ms,
                    }
                    for each in found
                ]
            }
        )

    # -- sessions ---------------------------------------------------------------------------------------------------

    def open_session(self, request: Request) -> Response:
        document = request.json()
        lease = document.get("lease-ms")
        if lease is not None and type(lease) is not int:
            raise BadRequest("lease-ms must be a whole number", field="lease-ms")
        session, token = self._sessions.open(
            _maybe_text(document, "repo") or self._default_repo,
            _maybe_text(document, "ref"),
            principal=principal_of(bearer_of(request.headers.get("authorization"))),
            lease_ms=lease,
        )
        told = self._sessions.describe(session)
        return answer(
            {
                "id": session.id,
                "token": token,
                "address": str(Address(session.repo, session=session.id)),
                "repo": session.repo,
                "ref": session.ref,
                "commit": told["commit"],
                "epoch": session.epoch,
                "lease-ms": session.lease_ms,
            }
        )

    def _in_session(self, handler: SessionHandler) -> Callable[[Request], Response]:
        def run(request: Request) -> Response:
            bearer = bearer_of(request.headers.get("authorization"))
            session = self._sessions.authenticate(request.names["session"], bearer)
            return answer(handler(session, request))

        return run

    def describe(self, session: SessionRecord, request: Request) -> dict[str, Any]:
        address = str(Address(session.repo, session=session.id))
        return {"address": address, **self._sessions.describe(session)}

    def close(self, session: SessionRecord, request: Request) -> dict[str, Any]:
        self._sessions.close(session)
        return {}

    def heartbeat(self, session: SessionRecord, request: Request) -> dict[str, Any]:
        self._sessions.heartbeat(session)
        return {}

    def checkout(self, session: SessionRecord, request: Request) -> dict[str, Any]:
        return self._sessions.describe(self._sessions.checkout(session, _text(request.json(), "ref")))

    def mark(self, session: SessionRecord, request: Request) -> dict[str, Any]:
        return self._sessions.mark(session, strict=_flag(request.json(), "strict"))

    def returned(self, session: SessionRecord, request: Request) -> dict[str, Any]:
        number = request.names["statement"]
        if not number.isascii() or not number.isdecimal() or len(number) > 18:
            raise BadRequest(f"statement must be a number, not {number!r}", field="statement")
        self._sessions.returned(session, int(number))
        return {}

    def begin(self, session: SessionRecord, request: Request) -> dict[str, Any]:
        document = request.json()
        return self._sessions.begin(
            session,
            message=_maybe_text(document, "message") or "",
            transaction=_maybe_text(document, "transaction-id"),
            turn=_flag(document, "turn"),
        )

    def savepoint(self, session: SessionRecord, request: Request) -> dict[str, Any]:
        self._sessions.savepoint(session, _text(request.json(), "name"))
        return {}

    def rollback_to(self, session: SessionRecord, request: Request) -> dict[str, Any]:
        self._sessions.rollback_to(session, request.names["name"])
        return {}

    def release(self, session: SessionRecord, request: Request) -> dict[str, Any]:
        self._sessions.release(session, request.names["name"])
        return {}

    def commit(self, session: SessionRecord, request: Request) -> dict[str, Any]:
        document = request.json()
        return self._sessions.commit(
            session, message=_maybe_text(document, "message"), transaction=_maybe_text(document, "transaction-id")
        )

    def rollback(self, session: SessionRecord, request: Request) -> dict[str, Any]:
        self._sessions.rollback(session)
        return {}

    def catalog(self, session: SessionRecord, request: Request) -> dict[str, Any]:
        return self._shapes.answer(self._place(session, request), request.query.get("unless"))

    def sequence(self, session: SessionRecord, request: Request) -> dict[str, Any]:
        document = request.json()
        name = _text(document, "name")
        check_level(name, "name")
        table = Identifier(read_namespace(document.get("namespace"), "namespace"), name)
        numbers = {field: _whole(document, field) for field in ("field-id", "count")}
        at_least = _whole(document, "at-least") if document.get("at-least") is not None else 0
        first = take_numbers(
            self._place(session, request), table, numbers["field-id"], numbers["count"], at_least=at_least
        )
        return {"first": first}

    def _place(self, session: SessionRecord, request: Request) -> Place:
        """What the session sees now, with all that its transaction has staged."""
        return open_place(
            self._core,
            self._sessions,
            Address(session.repo, session=session.id),
            bearer=bearer_of(request.headers.get("authorization")),
            principal=session.principal,
        )

    def transaction(self, session: SessionRecord, request: Request) -> dict[str, Any]:
        return self._sessions.transaction_state(session, request.names["transaction"])


def _text(document: dict[str, Any], field: str) -> str:
    value = document.get(field)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{field} must be a text", field=field)
    return value


def _whole(document: dict[str, Any], field: str) -> int:
    value = document.get(field)
    if type(value) is not int:
        raise BadRequest(f"{field} must be a whole number", field=field)
    return value


def _flag(document: dict[str, Any], field: str) -> bool:
    value = document.get(field, False)
    if not isinstance(value, bool):
        raise BadRequest(f"{field} must be true or false", field=field)
    return value


def _maybe_text(document: dict[str, Any], field: str) -> str | None:
    value = document.get(field)
    if value is not None and not isinstance(value, str):
        raise BadRequest(f"{field} must be a text", field=field)
    return value
