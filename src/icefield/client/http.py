"""HTTP to the server's management API: JSON in and out, its errors as the model's. Standard library only.

One kept connection per thread. Only a GET is sent again by itself. A POST or DELETE whose answer is lost raises
``OutcomeUnknown``; what never left this machine raises ``Unavailable``: asking again is safe. Who has an id for the
request (a commit, a merge) asks again with ``until_answered``.
"""

from __future__ import annotations

import http.client
import json
import select
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from icefield.model import errors
from icefield.model.conflicts import Conflict
from icefield.model.errors import BadRequest, CommitConflict, IcefieldError, OutcomeUnknown, Unavailable

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 300.0
_TRIES = 4
T = TypeVar("T")


class Management:
    """Asks one server, as one principal or (with a session's token) as one session. Thread-safe."""

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadRequest(f"{url!r} is not a server's address; one looks like http://127.0.0.1:8181", field="url")
        self.url = url.rstrip("/")
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._root = parts.path.rstrip("/")
        self._token = token
        self._local = threading.local()

    def with_token(self, token: str) -> Management:
        return Management(self.url, token)

    def get(self, path: str) -> dict[str, Any]:
        for attempt in range(_TRIES):
            try:
                return self._ask("GET", path, None)
            except (Unavailable, OutcomeUnknown) as error:
                if attempt == _TRIES - 1:
                    raise Unavailable(error.message) from None
                time.sleep(0.1 * 2**attempt)
        raise AssertionError("unreachable")

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._ask("POST", path, body or {})

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._ask("DELETE", path, body)

    def close(self) -> None:
        """The calling thread's connection; another thread's is closed when the thread ends."""
        self._drop()

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        connection = self._connection()
        content = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json"}
        if content is not None:
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request(method, self._root + path, content, headers)
            response = connection.getresponse()
            raw = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            raise OutcomeUnknown(
                f"the server at {self.url} did not answer {method} {path} ({error or type(error).__name__}): "
                "it may or may not be done"
            ) from error
        except BaseException:
            self._drop()  # interrupted: an answer that arrives later must not be taken for the next one's
            raise
        return self._answer(response.status, raw)

    def _connection(self) -> http.client.HTTPConnection:
        kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if kept is not None and kept.sock is not None and not _readable(kept.sock):
            return kept
        self._drop()
        make = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        fresh = make(self._host, self._port, timeout=CONNECT_SECONDS)
        try:
            fresh.connect()
        except OSError as error:
            raise Unavailable(f"no server answers at {self.url} ({error.strerror or error})") from error
        fresh.sock.settimeout(ANSWER_SECONDS)
        self._local.connection = fresh
        return fresh

    def _drop(self) -> None:
        kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        self._local.connection = None
        if kept is not None:
            kept.close()

    def _answer(self, status: int, raw: bytes) -> dict[str, Any]:
        try:
            told = json.loads(raw) if raw else {}
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise Unavailable(f"what answers at {self.url} is not Icefield (status {status}, no JSON object)")
        if status < 400:
            return told
        raise error_of(status, told.get("error"), self.url)


def until_answered(ask: Callable[[], T], *, seconds: float, what: str) -> T:
    """Asks again until there is an answer: only for what lands once however often it is asked (it has an id)."""
    deadline = time.monotonic() + seconds
    wait = 0.1
    lost = False
    while True:
        try:
            return ask()
        except OutcomeUnknown as error:
            lost = True
            last: IcefieldError = error
        except Unavailable as error:
            last = error
        if time.monotonic() + wait > deadline:
            if lost:
                raise OutcomeUnknown(f"whether {what} landed is not known: {last.message}") from last
            raise last
        time.sleep(wait)
        wait = min(wait * 2, 2.0)


def segment(text: str) -> str:
    """A name as one segment of a path."""
    return quote(text, safe="")


def error_of(status: int, told: Any, url: str) -> IcefieldError:
    if not isinstance(told, dict) or "message" not in told:
        return Unavailable(f"the server at {url} answered with status {status} and no reason")
    message, kind = str(told["message"]), str(told.get("type", ""))
    if kind == CommitConflict.kind:
        return CommitConflict(message, [_conflict(one) for one in told.get("conflicts") or ()])
    if kind == BadRequest.kind:
        return BadRequest(message, field=told.get("field"))
    return _KINDS.get(kind, IcefieldError)(message)


def _conflict(told: Mapping[str, Any]) -> Conflict:
    return Conflict(
        entry=str(told.get("entry", "")),
        reason=str(told.get("reason", "")),
        message=str(told.get("message", "")),
        ours=told.get("ours"),
        theirs=told.get("theirs"),
    )


def _readable(sock: Any) -> bool:
    """Between requests nothing may arrive: what does is the end of the connection."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


_KINDS: dict[str, type[IcefieldError]] = {
    c.kind: c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, IcefieldError)
}
