"""Who asks. Without principals the server listens on loopback only, and whoever can reach it is this machine's user."""

from __future__ import annotations

LOCAL = "local"


def bearer_of(authorization: str | None) -> str | None:
    if authorization is None:
        return None
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def principal_of(bearer: str | None) -> str:
    return LOCAL
