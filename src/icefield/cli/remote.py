"""One repo of one server, as the CLI's verbs ask about it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from icefield.cli.locate import Place
from icefield.client.http import Management, segment, until_answered

_ASK_AGAIN_S = 20.0


class Remote:
    def __init__(self, place: Place) -> None:
        self._management = Management(place.url)
        self._repo = f"/api/v1/repos/{segment(place.repo)}"

    def get(self, what: str, **query: Any) -> dict[str, Any]:
        asked = {key: value for key, value in query.items() if value is not None}
        return self._management.get(f"{self._repo}/{what}" + (f"?{urlencode(asked)}" if asked else ""))

    def post(self, what: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._management.post(f"{self._repo}/{what}", body)

    def post_once(self, what: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """For a request that carries an id of its own and so may be asked again when its answer is lost."""
        ask = functools.partial(self.post, what, body)
        return until_answered(ask, seconds=_ASK_AGAIN_S, what=f"the {what}")

    def delete(self, what: str, name: str) -> None:
        self._management.delete(f"{self._repo}/{what}/{segment(name)}")
