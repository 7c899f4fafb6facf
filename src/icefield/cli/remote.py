"""The management API as the CLI asks it: one repo, JSON in and out, the server's errors as the model's."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from icefield.cli.locate import Place
from icefield.model.conflicts import Conflict
from icefield.model.errors import BadRequest, CommitConflict, IcefieldError, OutcomeUnknown, Unavailable

_TIMEOUT_S = 600.0


class Remote:
    """Asks one server about one repo. A new connection for every question: a CLI asks once or twice."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def get(self, what: str, **query: Any) -> dict[str, Any]:
        asked = {key: value for key, value in query.items() if value is not None}
        return self._ask("GET", self._path(what) + (f"?{urlencode(asked)}" if asked else ""))

    def post(self, what: str, body: Mapping[str, Any], *, again: bool = False) -> dict[str, Any]:
        """``again``: the request carries an id of its own, so it is asked once more if its answer is lost."""
        try:
            return self._ask("POST", self._path(what), body)
        except OutcomeUnknown:
            if not again:
                raise
        return self._ask("POST", self._path(what), body)

    def delete(self, what: str, name: str) -> None:
        self._ask("DELETE", f"{self._path(what)}/{quote(name, safe='')}")

    def health(self) -> dict[str, Any]:
        return self._ask("GET", "/api/v1/health")

    def _path(self, what: str) -> str:
        return f"/api/v1/repos/{quote(self.place.repo, safe='')}/{what}"

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        parts = urlsplit(self.place.url)
        make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = make(str(parts.hostname), parts.port, timeout=_TIMEOUT_S)
        try:
            try:
                connection.connect()
            except OSError as error:
                raise Unavailable(f"no server answers at {self.place.url} ({error.strerror or error})") from None
            payload = None if body is None else json.dumps(body).encode()
            headers = {"Content-Type": "application/json"} if payload is not None else {}
            try:
                connection.request(method, parts.path + path, payload, headers)
                response = connection.getresponse()
                return _answer(response.status, response.read(), self.place.url)
            except (OSError, http.client.HTTPException) as error:
                raise _lost(method, self.place.url, error) from None
        finally:
            connection.close()


def _lost(method: str, url: str, error: Exception) -> IcefieldError:
    if method == "GET":
        return Unavailable(f"the server at {url} went away before it answered ({error})")
    return OutcomeUnknown(f"the server at {url} went away before it answered ({error}); it may or may not be done")


def _answer(status: int, content: bytes, url: str) -> dict[str, Any]:
    try:
        body = json.loads(content) if content else {}
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise Unavailable(f"what answers at {url} is not Icefield (status {status}, no JSON object)")
    if status < 400:
        return body
    raise _error(status, body.get("error"), url)


def _error(status: int, told: Any, url: str) -> IcefieldError:
    if not isinstance(told, dict) or "message" not in told:
        return Unavailable(f"the server at {url} answered with status {status} and no reason")
    message, kind = str(told["message"]), str(told.get("type", ""))
    if kind == CommitConflict.kind:
        return CommitConflict(message, [_conflict(item) for item in told.get("conflicts") or ()])
    made = _KINDS.get(kind, IcefieldError)
    if made is BadRequest:
        return BadRequest(message, field=told.get("field"))
    return made(message)


def _conflict(told: Mapping[str, Any]) -> Conflict:
    return Conflict(
        entry=str(told.get("entry", "")),
        reason=str(told.get("reason", "")),
        message=str(told.get("message", "")),
        ours=told.get("ours"),
        theirs=told.get("theirs"),
    )


def _descendants(kind: type[IcefieldError]) -> Iterator[type[IcefieldError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _descendants(child)


_KINDS = {kind.kind: kind for kind in _descendants(IcefieldError)}
