"""What a client is shown may differ from the file: raised counters, safety, isolation, a transaction's own write paths.

Never what a reader of the file would see (schemas, snapshots, refs), and never persisted. A client that copies all
properties back (Spark's CREATE OR REPLACE and CREATE … AS SELECT do) is recognised by the marker among them, and the
overlaid values are taken out again where they are unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MARKER = "icefield.ref"
DATA_PATH = "write.data.path"
METADATA_PATH = "write.metadata.path"


@dataclass(frozen=True, slots=True)
class Overlaid:
    """The properties laid over every answer at one address."""

    ref: str
    refuse_client_gc: bool
    session: bool
    transaction: str | None = None

    def properties(self, own: Mapping[str, str], location: str) -> dict[str, str]:
        laid = {MARKER: self.ref}
        if self.refuse_client_gc:
            laid["gc.enabled"] = "false"
        if self.session:
            # The session's own isolation governs; the server owes the check and does it at landing.
            for verb in ("delete", "update", "merge"):
                laid[f"write.{verb}.isolation-level"] = "snapshot"
        if self.transaction is not None:
            folder = transaction_folder(self.transaction)
            data = own.get(DATA_PATH) or f"{location}/data"
            laid[DATA_PATH] = f"{data.rstrip('/')}/{folder}"
            laid[METADATA_PATH] = f"{metadata_folder(own, location)}/{folder}"
        return laid

    def lay_over(self, metadata: dict[str, Any]) -> dict[str, Any]:
        own = metadata.get("properties") or {}
        return {**metadata, "properties": {**own, **self.properties(own, metadata["location"])}}

    def config(self, location: str) -> dict[str, str]:
        # Only where it means something: DuckDB takes any s3 setting for vended credentials, and asks for a region.
        on_s3 = location.startswith(("s3:", "s3a:"))
        return {"s3.delete-enabled": "false"} if self.refuse_client_gc and on_s3 else {}

    def take_out(self, updates: list[dict[str, Any]], own: Mapping[str, str], location: str) -> list[dict[str, Any]]:
        """The client's updates without what only came back because we had laid it over."""
        kept: list[dict[str, Any]] = []
        for update in updates:
            values = update.get("updates") if update.get("action") == "set-properties" else None
            if isinstance(values, dict):
                update = {**update, "updates": self.without_echo(values, own, location)}
            kept.append(update)
        return kept

    def without_echo(self, values: Mapping[str, Any], own: Mapping[str, str], location: str) -> dict[str, Any]:
        """The properties a client sends, without what it was served as one of a table's. That may be another table
        (CREATE TABLE … LIKE), whose paths are then recognised by the transaction's folder they end in."""
        if MARKER not in values:
            return dict(values)
        laid = self.properties(own, location)
        folder = transaction_folder(self.transaction) if self.transaction is not None else None

        def ours(key: str, value: Any) -> bool:
            if key in (DATA_PATH, METADATA_PATH) and folder is not None and str(value).endswith(f"/{folder}"):
                return True
            return key == MARKER or (laid.get(key) == value and own.get(key) != value)

        return {key: value for key, value in values.items() if not ours(key, value)}


def transaction_folder(transaction: str) -> str:
    return f"tx-{transaction}"


def metadata_folder(own: Mapping[str, str], location: str) -> str:
    return (own.get(METADATA_PATH) or f"{location}/metadata").rstrip("/")
