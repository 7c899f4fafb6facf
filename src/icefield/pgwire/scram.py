"""SCRAM-SHA-256 (RFC 5802, RFC 7677) from the client's side, without channel binding and without I/O.

Passwords must be ASCII (ours are random tokens): the SASLprep of other alphabets is not done, and refused.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from icefield.pgwire.errors import PgError

MECHANISM = "SCRAM-SHA-256"
_MAX_ITERATIONS = 10_000_000


def _b64(data: bytes) -> bytes:
    return base64.b64encode(data)


def _refuse(why: str) -> PgError:
    return PgError("28000", f"authentication failed: {why}", severity="FATAL")


class ScramClient:
    """``first()`` -> the server's answer -> ``final(answer)`` -> the server's last word -> ``verify(word)``."""

    def __init__(self, password: str, nonce: str | None = None) -> None:
        if not password.isascii():
            raise _refuse("only ASCII passwords are supported")
        self._password = password.encode()
        self._nonce = (nonce or secrets.token_urlsafe(18)).encode()
        self._first_bare = b"n=,r=" + self._nonce
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        return b"n,," + self._first_bare

    def final(self, server_first: bytes) -> bytes:
        attributes = _attributes(server_first)
        try:
            nonce = attributes[b"r"]
            salt = base64.b64decode(attributes[b"s"], validate=True)
            iterations = int(attributes[b"i"])
        except (KeyError, ValueError):
            raise _refuse("the server's SCRAM challenge is malformed") from None
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise _refuse("the server's nonce does not continue ours")
        if not 1 <= iterations <= _MAX_ITERATIONS:
            raise _refuse(f"the server asks for {iterations} iterations")
        salted = hashlib.pbkdf2_hmac("sha256", self._password, salt, iterations)
        without_proof = b"c=" + _b64(b"n,,") + b",r=" + nonce
        auth_message = b",".join((self._first_bare, server_first, without_proof))
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        signature = hmac.digest(hashlib.sha256(client_key).digest(), auth_message, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), auth_message, "sha256")
        return without_proof + b",p=" + _b64(proof)

    def verify(self, server_final: bytes) -> None:
        """The server proves that it knows the password, too."""
        attributes = _attributes(server_final)
        sent = attributes.get(b"v", b"")
        if self._server_signature is None or not hmac.compare_digest(sent, _b64(self._server_signature)):
            raise _refuse("the server's signature is wrong")


def _attributes(data: bytes) -> dict[bytes, bytes]:
    pairs = (part.partition(b"=") for part in data.split(b","))
    return {name: value for name, equals, value in pairs if equals}
