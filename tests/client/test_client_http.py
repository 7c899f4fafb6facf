"""The thin client: errors are the model's, a lost answer is told from a refusal, connections are kept and renewed."""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Iterator

import pytest

from icefield.client.http import Management, error_of, until_answered
from icefield.model.conflicts import Conflict
from icefield.model.errors import (
    AlreadyExists,
    BadRequest,
    CommitConflict,
    IcefieldError,
    NoSuchRef,
    OutcomeUnknown,
    Unauthorized,
    Unavailable,
)
from support.proxy import Proxy
from support.server import RunningServer


@pytest.fixture
def proxy(server: RunningServer) -> Iterator[Proxy]:
    with Proxy(server.url) as running:
        yield running


@pytest.mark.parametrize("url", ["localhost:8181", "ftp://h/", "http://", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(BadRequest, match="not a server's address"):
        Management(url)


def test_errors_are_the_models(server: RunningServer) -> None:
    management = Management(server.url)
    management.post("/api/v1/repos/lake/branches", {"name": "dev"})
    with pytest.raises(AlreadyExists, match="dev"):
        management.post("/api/v1/repos/lake/branches", {"name": "dev"})
    with pytest.raises(NoSuchRef, match="nowhere"):
        management.get("/api/v1/repos/lake/log?ref=nowhere")
    with pytest.raises(BadRequest) as caught:
        management.post("/api/v1/repos/lake/branches", {"name": "~x"})
    assert caught.value.field is not None
    with pytest.raises(Unauthorized):
        management.with_token("wrong").get("/api/v1/sessions/0123456789abcdef")
    management.delete("/api/v1/repos/lake/branches/dev")
    management.close()


def test_every_conflict_is_carried_over() -> None:
    told = {
        "message": "m",
        "type": "CommitFailedException",
        "conflicts": [{"entry": "a.b", "reason": "r", "message": "x"}],
    }
    error = error_of(409, told, "http://h")
    assert isinstance(error, CommitConflict)
    assert error.conflicts == (Conflict("a.b", "r", "x"),)
    assert type(error_of(500, {"message": "m", "type": "NeverSeen"}, "u")) is IcefieldError
    assert type(error_of(502, None, "u")) is Unavailable


def test_nobody_there_is_unavailable_and_nothing_happened() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        management = Management(f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(Unavailable, match="no server answers"):
            management.post("/api/v1/sessions")


def test_a_lost_answer_of_a_post_is_an_unknown_outcome_and_a_get_is_asked_again(proxy: Proxy) -> None:
    management = Management(proxy.url)
    lost: list[str] = []

    def lose_once(method: str, path: str) -> bool:
        lost.append(method)
        return lost.count(method) == 1

    proxy.lose = lose_once
    with pytest.raises(OutcomeUnknown, match="may or may not"):
        management.post("/api/v1/repos/lake/branches", {"name": "dev"})
    assert {ref["name"] for ref in management.get("/api/v1/repos/lake/refs")["refs"]} == {"main", "dev"}
    assert lost == ["POST", "GET", "GET"]


def test_a_connection_is_kept_and_a_closed_one_renewed(server: RunningServer) -> None:
    management = Management(server.url)
    management.get("/api/v1/health")
    first = management._local.connection.sock
    management.get("/api/v1/health")
    assert management._local.connection.sock is first
    server.stop()
    server.arguments = ("--port", server.url.rsplit(":", 1)[1])
    server.start()
    management.url = server.url
    management.post("/api/v1/repos/lake/branches", {"name": "dev"})  # a POST on the dead connection would be a doubt
    assert management._local.connection.sock is not first


def test_threads_do_not_share_a_connection(server: RunningServer) -> None:
    management = Management(server.url)
    answers: list[str] = []

    def ask() -> None:
        for _ in range(20):
            answers.append(management.get("/api/v1/health")["status"])
        management.close()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["ok"] * 80


def test_what_has_an_id_is_asked_until_there_is_an_answer(proxy: Proxy) -> None:
    management = Management(proxy.url)
    management.post("/api/v1/repos/lake/branches", {"name": "dev"})
    answers = iter([True, True, False])
    proxy.lose = lambda method, path: path.endswith("/merge") and next(answers)
    body = {"from": "dev", "into": "main", "id": str(uuid.uuid4())}
    told = until_answered(lambda: management.post("/api/v1/repos/lake/merge", body), seconds=20, what="the merge")
    assert told["result"] == "nothing-to-do"

    proxy.lose = lambda method, path: True
    with pytest.raises(OutcomeUnknown, match="whether the merge landed is not known"):
        until_answered(lambda: management.post("/api/v1/repos/lake/merge", body), seconds=0.3, what="the merge")
