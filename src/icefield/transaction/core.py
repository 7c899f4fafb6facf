"""What every verb works with, wired once in app.py."""

from __future__ import annotations

from dataclasses import dataclass

from icefield.graph.graph import Graph
from icefield.model.effects import Clock, Randomness
from icefield.store.port import Store
from icefield.transaction.metadata_files import MetadataFiles
from icefield.transaction.tickets import Tickets
from icefield.volume.port import Volume


@dataclass(frozen=True, slots=True)
class Core:
    store: Store
    graph: Graph
    volume: Volume
    clock: Clock
    randomness: Randomness
    metadata: MetadataFiles
    tickets: Tickets
    load_token_key: bytes
    reader_grace_ms: int = 24 * 3600 * 1000
