"""Requests and answers, free of any server: what a handler gets and gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from icefield.model.errors import BadRequest

MAX_BODY_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: tuple[str, ...]
    """The path's segments, percent-decoded one by one: a slash inside a name stays inside it."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    names: Mapping[str, str] = field(default_factory=dict)
    """What the route's {placeholders} matched."""

    def json(self) -> dict[str, Any]:
        """The body, which must be an object; an empty body is an empty one."""
        if not self.body:
            return {}
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # A page in somebody's browser can post forms and text to loopback, JSON it cannot.
            raise BadRequest(f"content-type must be application/json, not {kind or 'missing'}", field="content-type")
        try:
            document = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise BadRequest(f"the body is not valid JSON: {error}", field="body") from None
        if not isinstance(document, dict):
            raise BadRequest("the body must be a JSON object", field="body")
        return document

    def number(self, name: str, default: int) -> int:
        text = self.query.get(name)
        if text is None or text == "":
            return default
        if not text.isascii() or not text.isdecimal() or len(text) > 9:
            raise BadRequest(f"{name} must be a number, not {text!r}", field=name)
        return int(text)


@dataclass(frozen=True, slots=True)
class Response:
    status: int = 200
    body: bytes = b""
    headers: Sequence[tuple[str, str]] = ()


Handler = Callable[[Request], Response]


def answer(document: Any, *, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Response:
    return Response(status, msgspec.json.encode(document), headers)


NO_CONTENT = Response(204)


class Routes:
    """Method + path pattern -> handler. ``{name}`` matches one segment."""

    def __init__(self) -> None:
        self._routes: dict[int, list[tuple[str, tuple[str, ...], Handler]]] = {}

    def add(self, method: str, pattern: str, handler: Handler) -> None:
        segments = tuple(pattern.strip("/").split("/"))
        self._routes.setdefault(len(segments), []).append((method, segments, handler))

    def find(self, method: str, path: tuple[str, ...]) -> tuple[Handler, dict[str, str]] | list[str]:
        """The handler and what its placeholders matched; else the methods that this path does take."""
        others: list[str] = []
        for its_method, segments, handler in self._routes.get(len(path), ()):
            names: dict[str, str] = {}
            for pattern, segment in zip(segments, path, strict=True):
                if pattern.startswith("{"):
                    names[pattern[1:-1]] = segment
                elif pattern != segment:
                    break
            else:
                if its_method == method:
                    return handler, names
                others.append(its_method)
        return others


def split_path(raw: bytes) -> tuple[str, ...]:
    segments = []
    for part in raw.split(b"?", 1)[0].strip(b"/").split(b"/"):
        try:
            segments.append(unquote_to_bytes(part).decode("utf-8"))
        except UnicodeDecodeError:
            raise BadRequest("the path is not valid UTF-8", field="path") from None
    return tuple(segments)
