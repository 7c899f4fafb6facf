"""The whole server without socket and process: requests go to the very routes, answers come back as HTTP's would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from icefield.app import Application, create
from icefield.config import Settings
from icefield.model.errors import IcefieldError
from icefield.rest.http import Request, split_path
from icefield.rest.status import answer_error
from support.server import Answer


class Inprocess:
    def __init__(self, data: Path, **parts: Any) -> None:
        self.application: Application = create(Settings(data=data), **parts)
        self.routes = self.application.rest._routes

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        raw, _, query = path.partition("?")
        told = {"content-type": "application/json", **(headers or {})}
        if token is not None:
            told["authorization"] = f"Bearer {token}"
        content = b"" if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode())
        try:
            asked = dict(parse_qsl(query, keep_blank_values=True))
            request = Request(method, split_path(raw.encode()), asked, told, content)
            found = self.routes.find(method, request.path)
            assert not isinstance(found, list), f"no route {method} {path}"
            handler, names = found
            response = handler(Request(method, request.path, request.query, told, content, names))
        except IcefieldError as error:
            response = answer_error(error)
        return Answer(
            response.status,
            json.loads(response.body) if response.body else None,
            {k.lower(): v for k, v in response.headers},
        )

    def get(self, path: str, **kwargs: Any) -> Answer:
        return self("GET", path, **kwargs)

    def post(self, path: str, body: Any = None, **kwargs: Any) -> Answer:
        return self("POST", path, {} if body is None else body, **kwargs)

    def delete(self, path: str, **kwargs: Any) -> Answer:
        return self("DELETE", path, **kwargs)

    def close(self) -> None:
        self.application.close()
