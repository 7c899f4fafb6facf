"""How tests speak to a server: plain JSON requests, whatever carries them. Every status is an answer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


class Answer:
    def __init__(self, status: int, body: Any, headers: dict[str, str]) -> None:
        self.status = status
        self.body = body
        self.headers = headers

    @classmethod
    def of(cls, status: int, content: bytes, headers: Iterable[tuple[str, str]]) -> Answer:
        return cls(status, json.loads(content) if content else None, {name.lower(): value for name, value in headers})

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.body["error"]
        return found

    def __repr__(self) -> str:
        return f"<{self.status} {str(self.body)[:300]}>"


class Caller:
    """``token``: sent where a call names none."""

    token: str | None = None

    def send(self, method: str, path: str, content: bytes | None, headers: dict[str, str]) -> Answer:
        raise NotImplementedError

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        content = None if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode())
        told = {"content-type": "application/json"} if content is not None else {}
        bearer = token or self.token
        if bearer is not None:
            told["authorization"] = f"Bearer {bearer}"
        return self.send(method, path, content, {**told, **(headers or {})})

    def get(self, path: str, **kwargs: Any) -> Answer:
        return self("GET", path, **kwargs)

    def post(self, path: str, body: Any = None, **kwargs: Any) -> Answer:
        return self("POST", path, {} if body is None else body, **kwargs)

    def delete(self, path: str, **kwargs: Any) -> Answer:
        return self("DELETE", path, **kwargs)
