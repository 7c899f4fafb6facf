"""Logs carry the request's id and never a secret."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefield import telemetry

SECRET = "s3cr3t-Va1ue_0123456789abcdef"
log = logging.getLogger("icefield.rest.test")


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("icefield").setLevel(logging.NOTSET)


def logged(log_format: str) -> io.StringIO:
    stream = io.StringIO()
    telemetry.configure("info", log_format, stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_json_line_says_when_who_what_and_its_fields() -> None:
    stream = logged("json")
    log.info("landed %d", 3, extra={"table": "sales.orders"})
    (line,) = lines(stream)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "icefield.rest.test",
        "message": "landed 3",
        "table": "sales.orders",
    }


def test_what_is_logged_inside_a_request_carries_its_id_and_only_that() -> None:
    stream = logged("json")

    async def one(name: str) -> None:
        with telemetry.request(name):
            log.info("begin")
            await asyncio.sleep(0.001)
            log.info("end")

    async def both() -> None:
        await asyncio.gather(one("a"), one("b"))

    asyncio.run(both())
    log.info("outside")
    found = [(line["message"], line.get("request")) for line in lines(stream)]
    assert sorted(found[:-1]) == [("begin", "a"), ("begin", "b"), ("end", "a"), ("end", "b")]
    assert found[-1] == ("outside", None)


def test_levels_below_the_chosen_one_are_silent() -> None:
    stream = logged("text")
    log.debug("quiet")
    log.warning("loud")
    logging.getLogger("alembic").info("quiet too")
    assert "loud" in stream.getvalue()
    assert "quiet" not in stream.getvalue()


@pytest.mark.parametrize("log_format", ["json", "text"])
@pytest.mark.parametrize(
    "message",
    [
        f"Authorization: Bearer {SECRET}",
        f"GET /x?token={SECRET}&a=1",
        f'{{"token": "{SECRET}", "id": 1}}',
        f"{{'session-token': '{SECRET}'}}",
        f"password={SECRET} host=x",
        f"postgresql://someone:{SECRET}@127.0.0.1:5433/lake",
        f"--token {SECRET}",
        f"client_secret={SECRET}",
    ],
)
def test_no_secret_reaches_a_line(log_format: str, message: str) -> None:
    stream = logged(log_format)
    log.info(message)
    log.info("by argument: %s", message)
    log.info("by field", extra={"asked": message, "token": SECRET, "nested": {"access_token": SECRET}})
    try:
        raise ValueError(message)
    except ValueError:
        log.exception("by traceback")
    assert SECRET not in stream.getvalue()
    assert stream.getvalue().count(telemetry.HIDDEN) >= 5
    if log_format == "json":
        assert len(lines(stream)) == 4


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_a_json_line_stays_one_json_line_whatever_is_logged(text: str) -> None:
    record = logging.LogRecord("icefield", logging.INFO, "x.py", 1, "%s", (text,), None)
    line = telemetry.JsonFormatter().format(record)
    assert "\n" not in line
    assert isinstance(json.loads(line)["message"], str)


@pytest.mark.parametrize("text", ["token count is 3", "tables: sales.orders", "lake@~5f2c at http://127.0.0.1:8181/v1"])
def test_what_is_no_secret_stays_as_it_is(text: str) -> None:
    assert telemetry.redact(text) == text
