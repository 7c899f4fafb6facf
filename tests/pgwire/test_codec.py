"""Bytes and messages: what is written is read, however it is cut, and garbage is refused in one way only."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefield.pgwire import messages as m
from icefield.pgwire.codec import (
    STARTUP_LIMIT,
    Frame,
    backend_frames,
    decode_backend,
    decode_frontend,
    decode_startup,
    encode,
    frontend_frames,
    text,
    wire,
)
from icefield.pgwire.errors import PgError, ProtocolError

# Any bytes without NUL, as the wire's text: also what is not UTF-8.
texts = st.binary(max_size=20).map(lambda b: text(b.replace(b"\x00", b"x")))
names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=8)
oids = st.lists(st.integers(0, 2**32 - 1), max_size=5).map(tuple)
formats = st.lists(st.integers(0, 1), max_size=4).map(tuple)
values = st.lists(st.none() | st.binary(max_size=20), max_size=5).map(tuple)
targets = st.sampled_from(m.Target)
int32 = st.integers(-(2**31), 2**31 - 1)
uint32 = st.integers(0, 2**32 - 1)
int16 = st.integers(-(2**15), 2**15 - 1)
error_fields = st.dictionaries(st.sampled_from("SVCMDHPWstcdnFLR"), texts, max_size=6)

startup = st.one_of(
    st.builds(m.StartupMessage, st.dictionaries(names, texts, max_size=4), st.integers(0, 9)),
    st.just(m.SSLRequest()),
    st.just(m.GSSENCRequest()),
    st.builds(m.CancelRequest, int32, uint32),
)
frontend = st.one_of(
    st.builds(m.Password, st.binary(max_size=20)),
    st.builds(m.Query, texts),
    st.builds(m.Parse, texts, texts, oids),
    st.builds(m.Bind, texts, texts, formats, values, formats),
    st.builds(m.Describe, targets, texts),
    st.builds(m.Close, targets, texts),
    st.builds(m.Execute, texts, int32),
    st.just(m.Sync()),
    st.just(m.Flush()),
    st.just(m.Terminate()),
    st.builds(m.FunctionCall, st.binary(max_size=20)),
    st.builds(m.CopyData, st.binary(max_size=20)),
    st.just(m.CopyDone()),
    st.builds(m.CopyFail, texts),
)
columns = st.lists(st.builds(m.FieldDescription, texts, uint32, uint32, int16, int16, int32, int16), max_size=4)
backend = st.one_of(
    st.builds(m.Authentication, uint32, st.binary(max_size=20)),
    st.builds(m.NegotiateProtocolVersion, uint32, st.lists(texts, max_size=3).map(tuple)),
    st.builds(m.BackendKeyData, int32, uint32),
    st.builds(m.ParameterStatus, texts, texts),
    st.builds(m.ReadyForQuery, st.sampled_from([b"I", b"T", b"E"])),
    st.builds(m.RowDescription, columns.map(tuple)),
    st.builds(m.DataRow, values),
    st.builds(m.CommandComplete, texts),
    st.just(m.EmptyQueryResponse()),
    st.builds(m.ErrorResponse, error_fields),
    st.builds(m.NoticeResponse, error_fields),
    st.builds(m.NotificationResponse, int32, texts, texts),
    st.sampled_from([m.ParseComplete(), m.BindComplete(), m.CloseComplete(), m.NoData(), m.PortalSuspended()]),
    st.builds(m.ParameterDescription, oids),
    st.builds(m.CopyInResponse, st.integers(0, 1), formats),
    st.builds(m.CopyOutResponse, st.integers(0, 1), formats),
    st.builds(m.CopyBothResponse, st.integers(0, 1), formats),
    st.builds(m.CopyData, st.binary(max_size=20)),
    st.just(m.CopyDone()),
    st.builds(m.FunctionCallResponse, st.none() | st.binary(max_size=20)),
)


def test_every_message_is_covered():
    """A message added to the protocol is added to the round trips, too."""
    listed = {cls for strategy in (startup, frontend, backend) for cls in _classes(strategy)}
    assert listed >= set(m.FrontendMessage.__args__) | set(m.BackendMessage.__args__)


def _classes(strategy):
    found = set()

    @settings(max_examples=300, database=None, derandomize=True)
    @given(strategy)
    def look(message):
        found.add(type(message))

    look()
    return found


@given(startup)
def test_startup_packets_round_trip(message):
    frames = frontend_frames()
    frames.feed(encode(message))
    frame = frames.next_startup()
    assert decode_startup(frame.body) == message
    assert len(frames) == 0


@given(frontend)
def test_frontend_messages_round_trip(message):
    frames = frontend_frames()
    frames.feed(encode(message))
    assert decode_frontend(frames.next()) == message
    assert len(frames) == 0


@given(backend)
def test_backend_messages_round_trip(message):
    frames = backend_frames()
    frames.feed(encode(message))
    assert decode_backend(frames.next()) == message
    assert len(frames) == 0


@settings(max_examples=40)
@given(st.lists(frontend, min_size=1, max_size=3))
def test_every_split_point_gives_the_same_messages(sent):
    data = b"".join(map(encode, sent))
    for cut in range(len(data) + 1):
        frames, got = frontend_frames(), []
        for part in (data[:cut], data[cut:]):
            frames.feed(part)
            while (frame := frames.next()) is not None:
                got.append(decode_frontend(frame))
        assert got == sent


@settings(max_examples=40)
@given(st.lists(backend, min_size=1, max_size=6), st.integers(1, 7))
def test_runs_are_the_same_bytes_in_order(sent, size):
    """Relaying loses nothing and cuts only between messages, whatever the pieces."""
    data = b"".join(map(encode, sent))
    frames, got, count = backend_frames(), b"", 0
    for start in range(0, len(data), size):
        frames.feed(data[start : start + size])
        while (run := frames.next_run(b"Dd")) is not None:
            inner = backend_frames()
            inner.feed(run.data)
            for _ in range(run.count):
                assert inner.next().kind == run.kind
            assert len(inner) == 0
            got += run.data
            count += run.count
    assert (got, count) == (data, len(sent))


def test_adjacent_rows_come_as_one_run():
    frames = backend_frames()
    rows = encode(m.DataRow((b"1", None))) * 1000
    frames.feed(encode(m.ParseComplete()) + rows + encode(m.CommandComplete("SELECT 1000")))
    runs = [frames.next_run(b"D") for _ in range(3)]
    assert [(run.kind, run.count) for run in runs] == [(b"1", 1), (b"D", 1000), (b"C", 1)]
    assert runs[1].data == rows


def refusal(call, *args):
    """The ProtocolError that a call raises, if it does; anything else it raises is a fault."""
    try:
        call(*args)
    except ProtocolError as error:
        return error
    return None


def _read_all(frames, decode):
    while (frame := frames.next()) is not None:
        error = refusal(decode, frame)
        assert error is None or (error.sqlstate, error.fatal) == ("08P01", False)  # the frame was sound


def _read_startup(data):
    frames = frontend_frames()
    frames.feed(data)
    frame = frames.next_startup()
    if frame is not None:
        decode_startup(frame.body)


@given(st.binary(max_size=200))
def test_garbage_is_a_protocol_error_and_nothing_else(data):
    for frames, decode in ((frontend_frames(), decode_frontend), (backend_frames(), decode_backend)):
        frames.feed(data)
        error = refusal(_read_all, frames, decode)
        assert error is None or error.fatal
    error = refusal(_read_startup, data)
    assert error is None or (error.sqlstate, error.fatal) == ("08P01", True)


@given(st.sampled_from(b"QPBDCESHFdcfp"), st.binary(max_size=60))
def test_a_garbled_body_in_a_sound_frame_is_an_error_that_the_conversation_survives(kind, body):
    frame = Frame(bytes((kind,)), body)
    error = refusal(decode_frontend, frame)
    if error is None:
        assert encode(decode_frontend(frame))[5:] == body
    else:
        assert not error.fatal


@given(st.sampled_from(b"RKSZTDCIEN123nAtsGHWdcvV"), st.binary(max_size=60))
def test_a_garbled_backend_body_never_crashes(kind, body):
    error = refusal(decode_backend, Frame(bytes((kind,)), body))
    assert error is None or not error.fatal


@pytest.mark.parametrize("kind", [b"D", b"E", b"S", b"p"])
def test_what_is_too_long_is_refused_before_it_is_buffered(kind):
    frames = frontend_frames()
    frames.feed(kind + (100_000).to_bytes(4, "big"))
    with pytest.raises(ProtocolError, match="the limit is"):
        frames.next()


def test_the_limit_of_statements_is_the_owners():
    frames = frontend_frames(large_limit=100)
    frames.feed(encode(m.Query("x" * 99)))
    assert isinstance(decode_frontend(frames.next()), m.Query)
    frames.feed(encode(m.Query("x" * 100)))
    with pytest.raises(ProtocolError):
        frames.next()


def test_startup_packets_have_bounds_and_a_version():
    frames = frontend_frames()
    frames.feed((STARTUP_LIMIT + 1).to_bytes(4, "big") + b"\0" * 10)
    with pytest.raises(ProtocolError):
        frames.next_startup()
    with pytest.raises(ProtocolError, match=r"2\.0"):
        decode_startup((2 << 16).to_bytes(4, "big"))


def test_text_keeps_the_bytes_of_any_encoding():
    assert wire(text(b"caf\xe9 \xff")) == b"caf\xe9 \xff"
    with pytest.raises(ValueError, match="U\\+0000"):
        wire("a\x00b")


def test_an_error_can_quote_anything():
    error = PgError("XX000", "bad \x00 and \ud800 text")
    frames = backend_frames()
    frames.feed(encode(m.ErrorResponse(error.to_fields())))
    assert decode_backend(frames.next()).fields["M"] == "bad \\0 and \\ud800 text"


@given(error_fields)
def test_errors_keep_their_fields(fields):
    error = PgError.from_fields(fields)
    kept = {k: v for k, v in fields.items() if k not in "SVP"}
    assert {k: v for k, v in error.to_fields().items() if k in kept} == kept
