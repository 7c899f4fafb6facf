"""A load token names the load that later calls belong to: session, epoch, statement and table.

It goes out with every table load on a session address (``config.token``), Java sends it back with every later call of
that table object, and so the server knows which statement a POST belongs to without keeping state.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass

import msgspec

PREFIX = "ifl."


@dataclass(frozen=True, slots=True)
class LoadToken:
    session: str
    epoch: int
    statements: tuple[int, ...]
    """Those in flight at the load. The write is in time as long as one of them has not returned."""
    table: str


def seal(token: LoadToken, key: bytes) -> str:
    body = msgspec.json.encode([token.session, token.epoch, token.statements, token.table])
    return PREFIX + _text(body) + "." + _text(_sign(body, key))


def unseal(text: str, key: bytes) -> LoadToken | None:
    """None for whatever this server did not seal."""
    if not text.startswith(PREFIX):
        return None
    body_text, dot, signature_text = text[len(PREFIX) :].partition(".")
    try:
        body, signature = _bytes(body_text), _bytes(signature_text)
    except (binascii.Error, ValueError):
        return None
    if not dot or not hmac.compare_digest(signature, _sign(body, key)):
        return None
    session, epoch, statements, table = msgspec.json.decode(body)
    return LoadToken(session, epoch, tuple(statements), table)


def _sign(body: bytes, key: bytes) -> bytes:
    return hmac.new(key, body, hashlib.sha256).digest()


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
