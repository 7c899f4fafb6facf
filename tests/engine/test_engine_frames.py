"""The worker's protocol: what is sent arrives, errors come back as what they were, a dead line is noticed."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefield.engine.port import EngineFailed, TooManyRows
from icefield.engine.spark.errors import conflict_text
from icefield.engine.spark.frames import ConnectionEnded, FrameSocket, error_from_json, error_to_json
from icefield.model.errors import BadRequest, CommitConflict, NoSuchTable


@given(st.dictionaries(st.text(), st.none() | st.integers(-(2**53), 2**53) | st.text()), st.binary(max_size=2000))
def test_what_is_sent_arrives(header: dict[str, object], body: bytes) -> None:
    left, right = socket.socketpair()
    one, other = FrameSocket(left), FrameSocket(right)
    one.send(header, body)
    assert other.receive() == (header, body)
    one.close()
    with pytest.raises(ConnectionEnded):
        other.receive()
    other.close()


def test_a_closed_connection_is_stale_and_a_quiet_one_is_not() -> None:
    left, right = socket.socketpair()
    one, other = FrameSocket(left), FrameSocket(right)
    assert not one.is_stale()
    other.close()
    assert one.is_stale()
    one.close()


@pytest.mark.parametrize(
    "error", [NoSuchTable("gone"), CommitConflict("both"), BadRequest("no"), EngineFailed("x"), TooManyRows("many", 7)]
)
def test_errors_come_back_as_they_were(error: Exception) -> None:
    back = error_from_json(error_to_json(error))  # type: ignore[arg-type]
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert getattr(back, "limit", None) == getattr(error, "limit", None)


def test_an_error_of_a_newer_worker_is_an_engine_failure() -> None:
    assert type(error_from_json({"type": "SomethingNew", "message": "m"})) is EngineFailed


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("Malformed request: conflict: table a changed", "table a changed"),
        ("conflict: two\nlines", "two\nlines"),
        ("Malformed request: it looks like a conflict: it is not", None),
        ("a conflicting thing", None),
        ("", None),
    ],
)
def test_a_conflict_is_known_by_its_first_word(message: str, text: str | None) -> None:
    assert conflict_text(message) == text
