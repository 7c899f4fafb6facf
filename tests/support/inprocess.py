"""The whole server without socket and process: requests go to the very routes, answers come back as HTTP's would."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from icefield.app import Application, create
from icefield.config import Settings
from icefield.model.errors import IcefieldError
from icefield.rest.http import Request, split_path
from icefield.rest.status import answer_error
from support.calls import Answer, Caller


class Inprocess(Caller):
    def __init__(self, data: Path, **parts: Any) -> None:
        self.application: Application = create(Settings(data=data), **parts)
        self.routes = self.application.rest._routes

    def send(self, method: str, path: str, content: bytes | None, headers: dict[str, str]) -> Answer:
        raw, _, query = path.partition("?")
        try:
            asked = dict(parse_qsl(query, keep_blank_values=True))
            request = Request(method, split_path(raw.encode()), asked, headers, content or b"")
            found = self.routes.find(method, request.path)
            assert not isinstance(found, list), f"no route {method} {path}"
            handler, names = found
            response = handler(replace(request, names=names))
        except IcefieldError as error:
            response = answer_error(error)
        return Answer.of(response.status, response.body, response.headers)

    def close(self) -> None:
        self.application.close()
