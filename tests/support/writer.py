"""An engine in miniature: writes manifests and lists as Java does (with fastavro alone) and commits them over REST."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "iceberg"))

from iceberg_worlds import SCHEMA, Live, World, updates_of

Json = dict[str, Any]
RENAMED = {f"{word}_files_count": f"{word}_data_files_count" for word in ("added", "existing", "deleted")}


class Disk(dict[str, bytes]):
    """Files by location, on disk."""

    def __getitem__(self, location: str) -> bytes:
        return Path(location.removeprefix("file://")).read_bytes()

    def __setitem__(self, location: str, content: bytes) -> None:
        path = Path(location.removeprefix("file://"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


class Engine(World):
    """One table's writer, standing at one address (``/v1/lake@dev`` …)."""

    def __init__(
        self,
        call: Callable[..., Any],
        prefix: str,
        namespace: str,
        name: str,
        *,
        token: str | None = None,
        rng: random.Random | None = None,
    ):
        """``rng``: where snapshot ids and the names of files come from, for runs that can be run again."""
        super().__init__(version=2)
        self.files = Disk()
        self.rng = rng or random.SystemRandom()
        self.numbers = itertools.count(self.rng.getrandbits(62))  # snapshot ids as random as everybody's
        self.call = call
        self.path = f"/v1/{prefix}/namespaces/{namespace}/tables/{name}"
        self.collection = f"/v1/{prefix}/namespaces/{namespace}/tables"
        self.table = name
        self.token = token
        self.folders = {"data": "", "metadata": ""}

    def name(self, what: str) -> str:
        folder = self.folders["data" if what == "data" else "metadata"]
        return f"{folder}/{what}-{self.rng.getrandbits(128):032x}.avro"

    def lines(self, meta: Json, ref: str = "main") -> list[Json]:
        """A list that the server wrote has the specification's field names; this writer uses Java's old ones."""
        return [{RENAMED.get(name, name): value for name, value in line.items()} for line in super().lines(meta, ref)]

    def create(self, *, version: int = 2) -> Any:
        body = {"name": self.table, "schema": SCHEMA, "properties": {"format-version": str(version)}}
        return self.call("POST", self.collection, body, token=self.token)

    def load(self) -> Json:
        answer = self.call("GET", self.path, token=self.token)
        assert answer.status == 200, answer
        meta: Json = answer.body["metadata"]
        meta.setdefault("refs", {})
        self.writes_for(meta)
        self.load_token = answer.body.get("config", {}).get("token")
        return meta

    def writes_for(self, meta: Json) -> None:
        """Files go where Java puts them; inside a transaction the server names folders of the transaction's own."""
        self.version = meta["format-version"]
        for kind in self.folders:
            self.folders[kind] = meta["properties"].get(f"write.{kind}.path") or f"{meta['location']}/{kind}"

    def body(self, meta: Json, *snapshots: Json) -> Json:
        before = meta["refs"].get("main", {}).get("snapshot-id")
        return {
            "requirements": [
                {"type": "assert-table-uuid", "uuid": meta["table-uuid"]},
                {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": before},
            ],
            "updates": updates_of(*snapshots),
        }

    def post(self, body: Json) -> Any:
        return self.call("POST", self.path, body, token=self.load_token or self.token)

    def append_rows(self, *sizes: int, meta: Json | None = None) -> Any:
        meta = meta or self.load()
        snapshot = self.append(meta, *sizes)
        return self.post(self.body(meta, snapshot))

    def live_files(self) -> dict[str, Live]:
        return self.live(self.load())

    def rows(self) -> int:
        return sum(f.record_count for f in self.live_files().values())
