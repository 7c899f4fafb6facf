"""The session this lake holds on the server: opened, kept alive by a heartbeat, told what moves its ref, closed.

What is marked and what is in flight is ``statements``' business; here is one method per request. A session that is
gone (its lease ran out while the machine slept, the server lost it) is found out by whoever asks next.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from icefield.client.http import Management, segment, until_answered
from icefield.model.errors import IcefieldError, NoSuchSession, Unauthorized

log = logging.getLogger("icefield.client")

OUTCOME_SECONDS = 60.0
"""How long a COMMIT without an answer is asked again."""
SHORTEST_BEAT = 0.2


class Lease:
    def __init__(self, server: Management, opened: Mapping[str, Any]) -> None:
        self.id = str(opened["id"])
        self.address = str(opened["address"])
        self.token = str(opened["token"])
        self.repo = str(opened["repo"])
        self.ref = str(opened["ref"])
        self.lost = False
        """Known to have ended on the server."""
        self._seconds = int(opened["lease-ms"]) / 1000
        self._server = server.with_token(self.token)
        self._path = f"/api/v1/sessions/{segment(self.id)}"
        self._over = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="icefield-heartbeat", daemon=True)
        self._heart.start()

    @classmethod
    def open(cls, server: Management, repo: str, ref: str | None, lease_ms: int | None = None) -> Lease:
        body: dict[str, Any] = {"repo": repo}
        if ref is not None:
            body["ref"] = ref
        if lease_ms is not None:
            body["lease-ms"] = lease_ms
        return cls(server, server.post("/api/v1/sessions", body))

    def mark(self, *, strict: bool = False) -> dict[str, Any]:
        return self._post("/statements", {"strict": True} if strict else {})

    def returned(self, statement: int) -> None:
        self._call(lambda: self._server.delete(f"{self._path}/statements/{statement}"))

    def describe(self) -> dict[str, Any]:
        return self._call(lambda: self._server.get(self._path))

    def checkout(self, ref: str) -> None:
        self._post("/checkout", {"ref": ref})
        self.ref = ref

    def begin(self, transaction: str, message: str) -> dict[str, Any]:
        body = {"transaction-id": transaction, "message": message}
        return until_answered(lambda: self._post("/begin", body), seconds=OUTCOME_SECONDS, what="BEGIN")

    def commit(self, transaction: str, message: str | None) -> dict[str, Any]:
        """Asked again with the same id until there is an answer, which is the first outcome."""
        body = {"transaction-id": transaction} | ({} if message is None else {"message": message})
        return until_answered(
            lambda: self._post("/commit", body), seconds=OUTCOME_SECONDS, what=f"transaction {transaction}"
        )

    def rollback(self) -> None:
        until_answered(lambda: self._post("/rollback", {}), seconds=OUTCOME_SECONDS, what="ROLLBACK")

    def savepoint(self, name: str) -> None:
        self._post("/savepoints", {"name": name})

    def rollback_to(self, name: str) -> None:
        self._post(f"/savepoints/{segment(name)}/rollback", {})

    def release(self, name: str) -> None:
        self._call(lambda: self._server.delete(f"{self._path}/savepoints/{segment(name)}"))

    def transaction_state(self, transaction: str) -> dict[str, Any]:
        return self._call(lambda: self._server.get(f"/api/v1/transactions/{segment(transaction)}"))

    def close(self) -> None:
        """Never raises: a session that cannot be closed ends with its lease."""
        self._over.set()
        if not self.lost:
            self.lost = True
            try:
                self._server.delete(self._path)
            except IcefieldError as error:
                log.debug("session %s could not be closed: %s", self.id, error.message)
        self._server.close()

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._call(lambda: self._server.post(self._path + path, body))

    def _call(self, ask: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = ask()
        except (NoSuchSession, Unauthorized):
            self.lost = True
            raise
        return answer

    def _beat(self) -> None:
        pause = max(SHORTEST_BEAT, self._seconds / 3)
        while not self._over.wait(pause):
            if self.lost:
                return
            try:
                self._post("/heartbeat", {})
            except (NoSuchSession, Unauthorized):
                if not self._over.is_set():
                    log.warning("the session %s has ended on the server: its open transaction was rolled back", self.id)
                return
            except IcefieldError as error:
                log.warning("no heartbeat: %s", error.message)
