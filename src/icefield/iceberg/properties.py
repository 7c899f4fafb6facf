"""Table properties: the reserved ones that are orders rather than values, and what a new table gets by default."""

from __future__ import annotations

import re
from typing import Final

from icefield.iceberg.shapes import INT32_MAX, bad, describe
from icefield.model.errors import NotSupported

FORMAT_VERSION: Final = "format-version"
RESERVED: Final = frozenset(
    {
        FORMAT_VERSION,
        "uuid",
        "snapshot-count",
        "current-snapshot-id",
        "current-snapshot-summary",
        "current-snapshot-timestamp-ms",
        "current-schema",
        "default-partition-spec",
        "default-sort-order",
    }
)
NEW_TABLE_DEFAULTS: Final = {"write.parquet.compression-codec": "zstd"}
"""What Java writes into every new table, so that a changed default never changes an old table."""

DEFAULT_FORMAT_VERSION: Final = 2
MIN_FORMAT_VERSION: Final = 2
MAX_FORMAT_VERSION: Final = 3

PREVIOUS_VERSIONS_MAX: Final = "write.metadata.previous-versions-max"
PREVIOUS_VERSIONS_MAX_DEFAULT: Final = 100

_COMMIT_NUMBERS: Final = (
    "commit.retry.num-retries",
    "commit.retry.min-wait-ms",
    "commit.retry.max-wait-ms",
    "commit.retry.total-timeout-ms",
)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}")


def unreserved(properties: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in properties.items() if key not in RESERVED}


def integer(text: str) -> int | None:
    """What Java's Integer.parseInt would answer; None where it would throw."""
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -INT32_MAX - 1 <= number <= INT32_MAX else None


def format_version_of(properties: dict[str, str], path: str) -> int | None:
    text = properties.get(FORMAT_VERSION)
    if text is None:
        return None
    at = f"{path}[{FORMAT_VERSION!r}]"
    number = integer(text)
    if number is None or number < 1:
        raise bad(at, f"must be a format version, not {describe(text)}")
    return supported_version(number, at)


def supported_version(number: int, path: str) -> int:
    if not MIN_FORMAT_VERSION <= number <= MAX_FORMAT_VERSION:
        raise NotSupported(
            f"{path}: table format version {number} is not supported; "
            f"Icefield takes versions {MIN_FORMAT_VERSION} to {MAX_FORMAT_VERSION}"
        )
    return number


def check_new_table(properties: dict[str, str], path: str) -> None:
    """A value every Java commit to the table would stumble over is refused while nothing depends on it."""
    for key in _COMMIT_NUMBERS:
        text = properties.get(key)
        if text is None:
            continue
        number = integer(text)
        if number is None or number < 0:
            raise bad(f"{path}[{key!r}]", f"must be a non-negative integer, not {describe(text)}")


def previous_versions_max(properties: dict[str, str]) -> int:
    number = integer(properties.get(PREVIOUS_VERSIONS_MAX, ""))
    return max(1, PREVIOUS_VERSIONS_MAX_DEFAULT if number is None else number)
