"""The server's side of a conversation: what is handled, what is skipped, what is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefield.pgwire import messages as m
from icefield.pgwire.codec import encode
from icefield.pgwire.connection import NEED_DATA, ServerConnection
from icefield.pgwire.errors import ProtocolError
from icefield.pgwire.states import ON_MESSAGE, ON_OUTCOME, Outcome, State

PARSE, BIND = m.Parse("", "SELECT 1"), m.Bind("", "")
DESCRIBE, EXECUTE = m.Describe(m.Target.PORTAL, ""), m.Execute("")
QUERY, SYNC, FLUSH = m.Query("SELECT 1"), m.Sync(), m.Flush()
DATA, DONE, FAIL = m.CopyData(b"1\n"), m.CopyDone(), m.CopyFail("no")


def opened() -> ServerConnection:
    connection = ServerConnection()
    connection.receive(encode(m.StartupMessage({"user": "u"})))
    assert connection.next_event() == m.StartupMessage({"user": "u"})
    connection.answered(Outcome.OPENED)
    return connection


def feed(connection: ServerConnection, *messages: m.FrontendMessage) -> None:
    connection.receive(b"".join(map(encode, messages)))


def test_startup_begins_with_refused_encryption():
    connection = ServerConnection()
    feed(connection, m.SSLRequest(), m.GSSENCRequest(), m.StartupMessage({"user": "u"}))
    events = [connection.next_event() for _ in range(3)]
    assert [type(e) for e in events] == [m.SSLRequest, m.GSSENCRequest, m.StartupMessage]


def test_a_cancel_request_ends_its_connection():
    connection = ServerConnection()
    feed(connection, m.CancelRequest(1, 2))
    assert connection.next_event() == m.CancelRequest(1, 2)
    assert connection.state is State.CLOSED


def test_simple_queries_one_after_the_other():
    connection = opened()
    feed(connection, QUERY, QUERY)
    for _ in range(2):
        assert connection.next_event() == QUERY
        assert connection.state is State.SIMPLE
        connection.answered(Outcome.READY)
    assert connection.next_event() is NEED_DATA
    assert connection.state is State.READY


def test_an_error_in_a_simple_query_skips_nothing():
    connection = opened()
    feed(connection, QUERY, PARSE)
    connection.next_event()
    connection.answered(Outcome.FAILED)
    connection.answered(Outcome.READY)
    assert connection.next_event() == PARSE


def test_an_error_in_an_extended_series_skips_to_its_sync():
    connection = opened()
    feed(connection, PARSE, BIND, DESCRIBE, EXECUTE, QUERY, FLUSH, DATA, SYNC, PARSE)
    assert connection.next_event() == PARSE
    connection.answered(Outcome.FAILED)
    assert connection.next_event() == SYNC
    connection.answered(Outcome.READY)
    assert connection.next_event() == PARSE


def test_an_error_in_sync_is_followed_by_ready():
    connection = opened()
    feed(connection, PARSE, SYNC, QUERY)
    connection.next_event()
    connection.next_event()
    connection.answered(Outcome.FAILED)
    connection.answered(Outcome.READY)
    assert connection.next_event() == QUERY


@pytest.mark.parametrize("end", [DONE, FAIL])
def test_copy_in_of_a_simple_query(end):
    connection = opened()
    feed(connection, QUERY)
    connection.next_event()
    connection.answered(Outcome.COPY_IN)
    feed(connection, DATA, FLUSH, SYNC, DATA, end, QUERY)
    assert [connection.next_event() for _ in range(3)] == [DATA, DATA, end]
    assert connection.state is State.SIMPLE
    connection.answered(Outcome.READY)
    assert connection.next_event() == QUERY


def test_copy_in_that_fails_on_our_side_drops_what_is_on_its_way():
    connection = opened()
    feed(connection, QUERY)
    connection.next_event()
    connection.answered(Outcome.COPY_IN)
    feed(connection, DATA, DATA, DATA, DONE, QUERY)
    assert connection.next_event() == DATA
    connection.answered(Outcome.FAILED)
    connection.answered(Outcome.READY)
    assert connection.next_event() == QUERY


def test_copy_in_of_an_extended_series():
    connection = opened()
    feed(connection, EXECUTE)
    connection.next_event()
    connection.answered(Outcome.COPY_IN)
    feed(connection, SYNC, DATA, DONE, SYNC)  # libpq sends a Sync with the Execute: it is ignored
    assert [connection.next_event() for _ in range(3)] == [DATA, DONE, SYNC]


def test_copy_in_of_an_extended_series_that_fails():
    connection = opened()
    feed(connection, EXECUTE)
    connection.next_event()
    connection.answered(Outcome.COPY_IN)
    feed(connection, DATA, DATA, DONE, SYNC)
    assert connection.next_event() == DATA
    connection.answered(Outcome.FAILED)
    assert connection.next_event() == SYNC


def test_a_statement_during_copy_fails_the_copy():
    connection = opened()
    feed(connection, QUERY)
    connection.next_event()
    connection.answered(Outcome.COPY_IN)
    feed(connection, QUERY)
    with pytest.raises(ProtocolError) as caught:
        connection.next_event()
    assert not caught.value.fatal
    connection.answered(Outcome.FAILED)
    connection.answered(Outcome.READY)
    assert connection.state is State.READY


def test_a_broken_parse_is_skipped_like_a_failed_one():
    connection = opened()
    connection.receive(b"P\x00\x00\x00\x05x")
    feed(connection, BIND, SYNC)
    with pytest.raises(ProtocolError) as caught:
        connection.next_event()
    assert not caught.value.fatal
    connection.answered(Outcome.FAILED)
    assert connection.next_event() == SYNC


def test_a_password_nobody_asked_for_is_fatal():
    connection = opened()
    feed(connection, m.Password(b"x"))
    with pytest.raises(ProtocolError) as caught:
        connection.next_event()
    assert caught.value.fatal
    assert connection.state is State.CLOSED


def test_outcomes_lead_only_to_states_that_go_on():
    for _, state in ON_OUTCOME.items():
        assert state in ON_MESSAGE or (state, Outcome.READY) in ON_OUTCOME
    for row in ON_MESSAGE.values():
        for state, _ in row.values():
            assert state in ON_MESSAGE or state is State.CLOSED or (state, Outcome.READY) in ON_OUTCOME


def test_every_message_can_be_handled_somewhere():
    handled = {cls for row in ON_MESSAGE.values() for cls in row}
    assert handled == set(m.FrontendMessage.__args__) - {m.Password}


def _drive(connection: ServerConnection, fail_every: int, events: list[object]) -> None:
    """A server that answers everything, failing each ``fail_every``-th message; adds to the events."""
    while connection.state is not State.CLOSED:
        try:
            event = connection.next_event()
        except ProtocolError as error:
            events.append("error")
            if error.fatal:
                return
            connection.answered(Outcome.FAILED)
        else:
            if event is NEED_DATA:
                return
            events.append(event)
            if isinstance(event, m.StartupMessage):
                connection.answered(Outcome.OPENED)
            elif fail_every and len(events) % fail_every == 0:
                connection.answered(Outcome.FAILED)
        if connection.state in (State.SIMPLE, State.SYNCING):
            connection.answered(Outcome.READY)


@given(
    st.lists(st.sampled_from([PARSE, BIND, EXECUTE, QUERY, SYNC, FLUSH, DATA, DONE, FAIL]), max_size=12),
    st.binary(max_size=12),
    st.integers(0, 3),
    st.lists(st.integers(0, 200), max_size=6),
)
def test_events_do_not_depend_on_how_the_bytes_arrive(messages, garbage, fail_every, cuts):
    data = encode(m.StartupMessage({"user": "u"})) + b"".join(map(encode, messages)) + garbage
    expected: list[object] = []
    whole = ServerConnection()
    whole.receive(data)
    _drive(whole, fail_every, expected)

    got: list[object] = []
    cut = ServerConnection()
    edges = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    for start, end in pairwise(edges):
        cut.receive(data[start:end])
        _drive(cut, fail_every, got)
    assert got == expected
