"""The ASGI application: bytes in, a handler in a worker thread, bytes out. Nothing here knows a verb."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

from icefield import telemetry
from icefield.model.errors import BadRequest, IcefieldError
from icefield.rest.http import MAX_BODY_BYTES, Request, Response, Routes, answer, split_path
from icefield.rest.status import answer_error

log = logging.getLogger(__name__)

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
SLOW_MS = 2_000


class TooLarge(Exception):
    pass


class ClientGone(Exception):
    pass


class RestApplication:
    def __init__(self, routes: Routes, *, threads: int = 16) -> None:
        self._routes = routes
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="rest")
        self.last_request = time.monotonic()

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        self.last_request = time.monotonic()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        with telemetry.request(headers.get("x-request-id", "")[:64] or None) as request_id:
            try:
                response = await self._respond(scope, headers, receive)
            except ClientGone:
                return
            await _send(send, scope["method"], response, request_id)

    async def _respond(self, scope: Scope, headers: dict[str, str], receive: Receive) -> Response:
        try:
            _check_host(headers.get("host", ""))
            body = await _read_body(headers, receive)
            request = Request(
                scope["method"],
                split_path(scope["raw_path"]),
                dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)),
                headers,
                body,
            )
            found = self._routes.find(request.method, request.path)
            if isinstance(found, list):
                return _no_route(request, found)
            handler, names = found
            loop = asyncio.get_running_loop()
            work = functools.partial(_run, handler, replace(request, names=names), telemetry.current_request_id())
            return await loop.run_in_executor(self._threads, work)
        except TooLarge:
            message = f"the body is larger than {MAX_BODY_BYTES} bytes"
            return answer({"error": {"message": message, "type": "BadRequestException", "code": 413}}, status=413)
        except IcefieldError as error:
            return answer_error(error)


def _run(handler: Callable[[Request], Response], request: Request, request_id: str | None) -> Response:
    with telemetry.request(request_id):
        started = time.monotonic()
        try:
            response = handler(request)
        except IcefieldError as error:
            response = answer_error(error)
        except Exception:
            # What happened is not known: 500 tells a client so, and the log has the rest under the request's id.
            log.exception("unexpected failure in %s /%s", request.method, "/".join(request.path))
            message = f"unexpected failure; the server's log has it under request {request_id}"
            body = {"error": {"message": message, "type": "InternalServerError", "code": 500}}
            return answer(body, status=500)
        took = (time.monotonic() - started) * 1000
        level = logging.INFO if took > SLOW_MS or response.status >= 500 else logging.DEBUG
        log.log(level, "%s /%s -> %d in %d ms", request.method, "/".join(request.path), response.status, took)
        return response


def _check_host(host: str) -> None:
    """A page whose name was re-bound to loopback sends its own name as host."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    if name.lower() not in LOCAL_HOSTS:
        raise BadRequest(f"host {host!r} is not this server: it answers on loopback only", field="host")


def _no_route(request: Request, methods: list[str]) -> Response:
    path = "/" + "/".join(request.path)
    if methods:
        message = f"{request.method} is not known for {path}; it takes {', '.join(sorted(set(methods)))}"
        body = {"error": {"message": message, "type": "BadRequestException", "code": 405}}
        return answer(body, status=405, headers=[("allow", ", ".join(sorted(set(methods))))])
    message = f"no such route: {request.method} {path} (not part of this version; GET /v1/config lists what is)"
    return answer({"error": {"message": message, "type": "NoSuchRouteException", "code": 404}}, status=404)


async def _read_body(headers: Mapping[str, str], receive: Receive) -> bytes:
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > MAX_BODY_BYTES:
        raise TooLarge
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise TooLarge
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def _send(send: Send, method: str, response: Response, request_id: str) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    headers.append((b"x-request-id", request_id.encode("latin-1")))
    if response.body:
        headers.append((b"content-type", b"application/json"))
    if response.status not in (204, 304):
        headers.append((b"content-length", str(len(response.body)).encode()))
    body = b"" if method == "HEAD" else response.body
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
