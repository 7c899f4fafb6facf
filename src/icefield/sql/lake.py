"""The SQL door's way to the server: one client's session, and the few REST calls that its DDL needs, over HTTP.

Plain asyncio; one request at a time per ``Http``. Errors of the server come back as what they were there
(``model.errors``). A request whose answer was lost is ``OutcomeUnknown`` for a commit and ``Unavailable`` else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urlencode, urlsplit

from icefield.model import errors as e
from icefield.model.conflicts import Conflict

_IDLE_S = 2.0
"""A connection that rested longer is not used again: the server may be closing it just now."""
_REFS = {"branch": "branches", "tag": "tags"}


def _kinds() -> dict[str, type[e.IcefieldError]]:
    found: dict[str, type[e.IcefieldError]] = {}
    todo: list[type[e.IcefieldError]] = [e.IcefieldError]
    while todo:
        cls = todo.pop()
        found.setdefault(cls.kind, cls)
        todo.extend(cls.__subclasses__())
    return found


_BY_CODE: dict[int, type[e.IcefieldError]] = {
    400: e.BadRequest,
    401: e.Unauthorized,
    403: e.Forbidden,
    404: e.NotFound,
    406: e.NotSupported,
    409: e.CommitConflict,
    422: e.Unprocessable,
    501: e.NotSupported,
    503: e.Unavailable,
}


def to_error(code: int, body: Any) -> e.IcefieldError:
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return _BY_CODE.get(code, e.IcefieldError)(f"the server answered {code} without saying why")
    message = str(error.get("message", f"the server answered {code}"))
    cls = _kinds().get(str(error.get("type", ""))) or _BY_CODE.get(code, e.IcefieldError)
    if issubclass(cls, e.CommitConflict):
        conflicts = [
            Conflict(c["entry"], c["reason"], c["message"], c.get("ours"), c.get("theirs"))
            for c in error.get("conflicts", ())
        ]
        return cls(message, conflicts)
    return cls(message)


class Lost(e.Unavailable):
    """The request was sent, and no answer came."""


class Http:
    """HTTP/1.1 to one server, JSON both ways."""

    def __init__(self, server_url: str, *, timeout_s: float = 120.0) -> None:
        parts = urlsplit(server_url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._timeout_s = timeout_s
        self._lock = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used = 0.0

    async def request(self, method: str, path: str, body: Any = None, *, token: str | None = None) -> Any:
        async with self._lock:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await self._request(method, path, body, token)
            except BaseException as error:
                if not isinstance(error, e.IcefieldError) or isinstance(error, Lost):
                    self._drop()
                if isinstance(error, TimeoutError):
                    raise Lost(f"the server did not answer within {self._timeout_s:.0f} s") from None
                if isinstance(error, ConnectionError | OSError | EOFError | ValueError):
                    raise Lost(f"the connection to the server was lost: {error}") from error
                raise

    async def _request(self, method: str, path: str, body: Any, token: str | None) -> Any:
        payload = b"" if body is None else json.dumps(body).encode()
        head = [f"{method} {path} HTTP/1.1", f"Host: {self._host}:{self._port}", f"Content-Length: {len(payload)}"]
        if body is not None:
            head.append("Content-Type: application/json")
        if token is not None:
            head.append(f"Authorization: Bearer {token}")
        reader, writer = await self._open()
        writer.write("\r\n".join([*head, "", ""]).encode("latin-1") + payload)
        await writer.drain()
        code, headers = await _head(reader)
        data = b"" if code == 204 else await _body(reader, headers)
        self._used = time.monotonic()
        if headers.get("connection", "").lower() == "close":
            self._drop()
        answer = json.loads(data) if data else {}
        if code >= 400:
            raise to_error(code, answer)
        return answer

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is not None and time.monotonic() - self._used > _IDLE_S:
            self._drop()
        if self._streams is None:
            try:
                self._streams = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
            except OSError as error:
                raise e.Unavailable(
                    f"the server at {self._host}:{self._port} cannot be reached: {error.strerror or error}"
                ) from None
        return self._streams

    def _drop(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def close(self) -> None:
        self._drop()


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    line = (await reader.readuntil(b"\n")).decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while (header := (await reader.readuntil(b"\n")).decode("latin-1").strip()) != "":
        name, _, value = header.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(line[1]), headers


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        parts: list[bytes] = []
        while size := int((await reader.readuntil(b"\n")).split(b";")[0], 16):
            parts.append(await reader.readexactly(size))
            await reader.readexactly(2)
        while (await reader.readuntil(b"\n")).strip():
            pass
        return b"".join(parts)
    length = headers.get("content-length")
    return await reader.readexactly(int(length)) if length is not None else await reader.read()


@dataclass(frozen=True, slots=True)
class View:
    commit: str
    moved: bool
    statement: int


class LakeSession:
    """A session on the server. ``heartbeat`` runs in a task of its own, over a connection of its own."""

    def __init__(self, server_url: str, opened: Mapping[str, Any], http: Http) -> None:
        self._http = http
        self._beat_http = Http(server_url, timeout_s=10)
        self._beat: asyncio.Task[None] | None = None
        self._transaction = ""
        self.repo: str = opened["repo"]
        self._take(opened)

    def _take(self, opened: Mapping[str, Any]) -> None:
        self.id: str = opened["id"]
        self.token: str = opened["token"]
        self.address: str = opened["address"]
        self.ref: str = opened["ref"]
        self.doubtful = False
        """An answer was lost, so that what the server holds for this session is not known: ``reopen``."""
        self._load_tokens: dict[tuple[tuple[str, ...], str], str] = {}
        self._lease_s = int(opened.get("lease-ms", 60_000)) / 1000
        self._path = f"/api/v1/sessions/{quote(self.id, safe='')}"
        self._rest = f"/v1/{quote(self.address, safe='')}"

    @classmethod
    async def open(cls, server_url: str, repo: str, ref: str | None) -> LakeSession:
        http = Http(server_url)
        body = {"repo": repo} if ref is None else {"repo": repo, "ref": ref}
        try:
            session = cls(server_url, await http.request("POST", "/api/v1/sessions", body), http)
        except BaseException:
            await http.close()
            raise
        session._beat = asyncio.create_task(session._heartbeat(), name=f"heartbeat of {session.id}")
        return session

    async def reopen(self, ref: str | None = None) -> None:
        """A new session on the server in place of this one, on the same ref (or ``ref``). Not inside a transaction."""
        old = self._path, self.token
        opened = await self._http.request("POST", "/api/v1/sessions", {"repo": self.repo, "ref": ref or self.ref})
        self._take(opened)
        with contextlib.suppress(e.IcefieldError):
            await self._http.request("DELETE", old[0], token=old[1])

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 4)
            # A lost session shows at the next call, where somebody waits for the answer.
            with contextlib.suppress(e.IcefieldError):
                await self._beat_http.request("POST", f"{self._path}/heartbeat", {}, token=self.token)

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return await self._http.request(method, self._path + path, body, token=self.token)

    async def _change(self, method: str, path: str, body: Any = None) -> Any:
        """What changes the session's state: if the answer is lost, nobody knows whether it did."""
        try:
            return await self._ask(method, path, body)
        except Lost:
            self.doubtful = True
            raise

    async def _end(self, method: str, path: str, body: Any = None) -> None:
        """What gives something back: if it fails in whatever way, the server may hold it still."""
        try:
            await self._ask(method, path, body)
        except e.Unavailable:
            self.doubtful = True
            raise

    async def mark(self, strict: bool = False) -> View:
        """``strict``: what this statement writes is never rebased over what somebody else landed meanwhile."""
        self._load_tokens.clear()
        answer = await self._change("POST", "/statements", {"strict": True} if strict else {})
        return View(answer["commit"], bool(answer["moved"]), answer["statement"])

    async def returned(self, statement: int) -> None:
        await self._end("DELETE", f"/statements/{statement}")

    async def catalog(self, unless: str | None) -> Any:
        """None if it is still what ``unless`` names."""
        answer = await self._ask("GET", "/catalog" if unless is None else f"/catalog?unless={quote(unless, safe='')}")
        return None if answer.get("unchanged") else answer

    async def begin(self, *, turn: bool = False) -> str:
        """The base commit. ``turn``: others on the branch wait a while with landing, until this has ended."""
        answer = await self._change("POST", "/begin", {"turn": True} if turn else {})
        self._transaction = answer["transaction"]
        return str(answer["base"])

    async def savepoint(self, name: str) -> None:
        await self._change("POST", "/savepoints", {"name": name})

    async def rollback_to(self, name: str) -> None:
        await self._change("POST", f"/savepoints/{quote(name, safe='')}/rollback", {})

    async def release(self, name: str) -> None:
        await self._change("DELETE", f"/savepoints/{quote(name, safe='')}")

    async def commit(self) -> None:
        """Raises CommitConflict (it is rolled back then), or OutcomeUnknown if nobody can say what became of it."""
        transaction = self._transaction
        try:
            await self._ask("POST", "/commit", {})
        except (Lost, e.OutcomeUnknown):
            state = await self._outcome(transaction)
            if state == "committed":
                return
            if state in ("rolled-back", "failed"):
                raise e.CommitConflict("the transaction was rolled back by the server") from None
            self.doubtful = True
            raise e.OutcomeUnknown(
                f"the server's answer to COMMIT was lost, and what became of transaction {transaction} is not known"
            ) from None

    async def _outcome(self, transaction: str) -> str | None:
        for wait in (0.2, 1.0, 3.0):
            await asyncio.sleep(wait)
            try:
                answer = await self._http.request(
                    "GET", f"/api/v1/transactions/{quote(transaction, safe='')}", token=self.token
                )
            except e.IcefieldError:
                continue
            if answer.get("state") != "open":
                return str(answer.get("state"))
        return None

    async def rollback(self) -> None:
        await self._end("POST", "/rollback", {})

    async def checkout(self, ref: str) -> None:
        await self._change("POST", "/checkout", {"ref": ref})
        self.ref = ref

    async def sequence(
        self, namespace: Sequence[str], name: str, field_id: int, count: int, at_least: int | None = None
    ) -> int:
        """The first of ``count`` numbers (from 0) of a column's counter that nobody else gets, ever.

        If the answer is lost the numbers are, too: a gap, as PostgreSQL's sequences have them.
        """
        body: dict[str, Any] = {"namespace": list(namespace), "name": name, "field-id": field_id, "count": count}
        if at_least is not None:
            body["at-least"] = at_least
        return int((await self._ask("POST", "/sequences", body))["first"])

    # The repo: branches, tags, merge and log ------------------------------------------------------------------------

    async def refs(self) -> list[dict[str, Any]]:
        return list((await self._of_repo("GET", "/refs"))["refs"])

    async def create_ref(self, kind: Literal["branch", "tag"], name: str, start: str | None = None) -> dict[str, Any]:
        """At the head of ``start`` (a ref or a commit id), by default of the default branch."""
        body = {"name": name} if start is None else {"name": name, "from": start}
        return dict(await self._of_repo("POST", f"/{_REFS[kind]}", body))

    async def drop_ref(self, kind: Literal["branch", "tag"], name: str) -> None:
        await self._of_repo("DELETE", f"/{_REFS[kind]}/{quote(name, safe='')}")

    async def merge(self, source: str, into: str, *, dry_run: bool = False, message: str | None = None) -> Any:
        """``{"result", "commit", …}``; CommitConflict names every conflict. Lands once, however often it is sent."""
        body: dict[str, Any] = {"from": source, "into": into, "id": str(uuid.uuid4())}
        if message is not None:
            body["message"] = message
        if dry_run:
            body["dry-run"] = True
        for wait in (0.2, 1.0, 3.0):
            try:
                return await self._of_repo("POST", "/merge", body)
            except Lost:
                await asyncio.sleep(wait)
        try:
            return await self._of_repo("POST", "/merge", body)
        except e.Unavailable:
            raise e.OutcomeUnknown(
                f"the server's answer to the merge of {source} into {into} was lost, and what became of it is not known"
            ) from None

    async def log(self, ref: str | None, limit: int, *, before: str | None = None) -> Any:
        """``{"commits": […], "next": …}``, newest first; ``next`` (if there are more) is the next page's ``before``."""
        asked = {"ref": ref or self.ref, "limit": str(limit)}
        if before is not None:
            asked["before"] = before
        return await self._of_repo("GET", f"/log?{urlencode(asked)}")

    async def _of_repo(self, method: str, path: str, body: Any = None) -> Any:
        repo = f"/api/v1/repos/{quote(self.repo, safe='')}"
        return await self._http.request(method, repo + path, body, token=self.token)

    # Iceberg REST, at the session's address -------------------------------------------------------------------------

    async def create_namespace(self, namespace: Sequence[str]) -> None:
        await self._catalog("POST", "/namespaces", {"namespace": list(namespace), "properties": {}})

    async def drop_namespace(self, namespace: Sequence[str]) -> None:
        await self._catalog("DELETE", f"/namespaces/{_levels(namespace)}")

    async def create_table(self, namespace: Sequence[str], body: Mapping[str, Any]) -> Any:
        return await self._catalog("POST", f"/namespaces/{_levels(namespace)}/tables", dict(body))

    async def load_table(self, namespace: Sequence[str], name: str) -> Any:
        """The load result (``metadata``, ``metadata-location``, ``config``), inside a marked statement.

        Its load token is kept for ``commit_table``: it says which statement a commit belongs to.
        """
        answer = await self._catalog("GET", _table(namespace, name))
        token = (answer.get("config") or {}).get("token")
        if token is not None:
            self._load_tokens[tuple(namespace), name] = str(token)
        return answer

    async def commit_table(
        self,
        namespace: Sequence[str],
        name: str,
        updates: Sequence[Mapping[str, Any]],
        requirements: Sequence[Mapping[str, Any]],
    ) -> Any:
        """One commit to a table, inside the marked statement that loaded it (if none did, it is loaded here)."""
        key = tuple(namespace), name
        if key not in self._load_tokens:
            await self.load_table(namespace, name)
        token = self._load_tokens.pop(key, None)
        body = {"requirements": [dict(r) for r in requirements], "updates": [dict(u) for u in updates]}
        return await self._catalog("POST", _table(namespace, name), body, token=token)

    async def rename_table(self, namespace: Sequence[str], name: str, to: Sequence[str], to_name: str) -> None:
        source, destination = {"namespace": list(namespace), "name": name}, {"namespace": list(to), "name": to_name}
        await self._catalog("POST", "/tables/rename", {"source": source, "destination": destination})

    async def drop_table(self, namespace: Sequence[str], name: str) -> None:
        await self._catalog("DELETE", _table(namespace, name))

    async def _catalog(self, method: str, path: str, body: Any = None, *, token: str | None = None) -> Any:
        return await self._http.request(method, self._rest + path, body, token=token or self.token)

    async def close(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._beat
        with contextlib.suppress(e.IcefieldError, TimeoutError):
            async with asyncio.timeout(5):
                await self._ask("DELETE", "")
        await self._http.close()
        await self._beat_http.close()


def _table(namespace: Sequence[str], name: str) -> str:
    return f"/namespaces/{_levels(namespace)}/tables/{quote(name, safe='')}"


def _levels(namespace: Sequence[str]) -> str:
    return quote("\x1f".join(namespace), safe="")
