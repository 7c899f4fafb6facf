"""Logs: one line per event, for people or as JSON, each with the id of the request it belongs to; never a secret.

Contract: modules log through ``logging.getLogger(__name__)`` with fields in ``extra``; a door opens a ``request()``
around what it does. Redaction happens on what is about to be written, so that arguments, fields and tracebacks pass it.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

HIDDEN = "***"

_request_id: ContextVar[str | None] = ContextVar("icefield_request_id", default=None)

_SECRET_NAME = r"[\w.-]*(?:token|secret|password|passwd|passfile|authorization|credential)s?"  # noqa: S105
_SECRETS = (
    re.compile(r"(?P<keep>\bBearer\s+)(?P<secret>[^\s\"',;]+)", re.IGNORECASE),
    # "token": "…", 'token': '…', also with its quotes escaped, as in JSON inside JSON
    re.compile(
        rf"(?P<keep>(?P<q>\\?[\"']){_SECRET_NAME}(?P=q)\s*:\s*\\?[\"'])(?P<secret>[^\"'\\]+)",
        re.IGNORECASE,
    ),
    # token=…, --token …, password: …
    re.compile(rf"(?P<keep>\b{_SECRET_NAME}\s*[=]\s*[\"']?)(?P<secret>[^\s\"',;&)}}\]\\]+)", re.IGNORECASE),
    re.compile(r"(?P<keep>--(?:token|password)\s+)(?P<secret>\S+)", re.IGNORECASE),
    re.compile(r"(?P<keep>\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)(?P<secret>[^\s/@]+)(?=@)", re.IGNORECASE),
)
_SECRET_FIELD = re.compile(_SECRET_NAME, re.IGNORECASE)
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def redact(text: str) -> str:
    """``text`` without what looks like a secret: bearer tokens, passwords in URLs, values named like secrets."""
    for pattern in _SECRETS:
        text = pattern.sub(lambda match: match["keep"] + HIDDEN, text)
    return text


def new_request_id() -> str:
    return secrets.token_hex(8)


def current_request_id() -> str | None:
    return _request_id.get()


@contextmanager
def request(request_id: str | None = None) -> Iterator[str]:
    """What is logged inside carries this id, or a new one if none is given; tasks started inside inherit it."""
    chosen = request_id or new_request_id()
    mark = _request_id.set(chosen)
    try:
        yield chosen
    finally:
        _request_id.reset(mark)


def configure(level: str, log_format: str, stream: TextIO | None = None) -> None:
    """Send every log of this process to ``stream`` (stderr). ``auto`` is text on a terminal, else JSON."""
    target = sys.stderr if stream is None else stream
    as_text = log_format == "text" or (log_format == "auto" and target.isatty())
    handler = logging.StreamHandler(target)
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    handler.addFilter(_add_request_id)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    # Other people's libraries tell much at info that is of no use to whoever runs a lake.
    root.setLevel(level.upper() if level == "error" else logging.WARNING)
    logging.getLogger("icefield").setLevel(level.upper())


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # Before it is JSON: what replaces a secret in the finished line might eat a quote.
        return json.dumps(_clean(line), ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """``21:03:11.402 info    rest  commit landed  request=… table=…``"""

    def format(self, record: logging.LogRecord) -> str:
        name = record.name.removeprefix("icefield.")
        line = f"{_utc(record.created)[11:23]} {record.levelname.lower():<7} {name}  {record.getMessage()}"
        shown = " ".join(f"{key}={value}" for key, value in _fields(record).items())
        if shown:
            line = f"{line}  {shown}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return redact(line)


def _add_request_id(record: logging.LogRecord) -> bool:
    request_id = _request_id.get()
    if request_id is not None and not hasattr(record, "request"):
        record.request = request_id
    return True


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): HIDDEN if _SECRET_FIELD.fullmatch(str(key)) else _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return redact(str(value))


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {
        key: HIDDEN if _SECRET_FIELD.fullmatch(key) else value
        for key, value in vars(record).items()
        if key not in _STANDARD_FIELDS
    }


def _utc(seconds: float) -> str:
    whole, rest = divmod(seconds, 1)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{int(rest * 1000):03d}Z"
