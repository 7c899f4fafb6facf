"""How many tasks write a change, and which rows go to which: few files for little, the table's own ways for much.

Spark's defaults are made for large writes: a shuffle for each partitioned or sorted table, a file per task and
partition. Little is written by one task, which sorts if the table is sorted and opens one file per partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from icefield.engine.spark.internals import LiveTable
from icefield.engine.spark.spool import Spool

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LITTLE_BYTES = 16 << 20
"""What one task writes in a second or so."""


def new_rows(table: LiveTable, spool: Spool, verb: str) -> tuple[DataFrame, dict[str, str]]:
    frame = spool.frame(table.session)
    if spool.bytes <= LITTLE_BYTES:
        return frame.coalesce(1), {"distribution-mode": "none"}
    return frame, {"distribution-mode": distribution(table, verb)}


def distribution(table: LiveTable, verb: str) -> str:
    default = "hash" if table.is_partitioned else "none"
    mode = table.property(f"write.{verb}.distribution-mode", default)
    return "none" if mode == "hash" and not table.is_partitioned else mode


def split_options(sizes: Sequence[int]) -> dict[str, str]:
    """A task for each file: what is rewritten keeps its size, so that the next change costs no more than this one."""
    largest = str(max(sizes))
    return {"split-size": largest, "file-open-cost": largest}
