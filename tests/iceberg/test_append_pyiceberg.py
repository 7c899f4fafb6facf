"""Real tables, written by PyIceberg, rebased, applied by the metadata engine, and read again by PyIceberg."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable, Table, Transaction
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType

from icefield.iceberg.metadata import apply_updates
from icefield.iceberg.reach import reachable_files
from icefield.iceberg.rebase import Rebased, rebase_table
from icefield.iceberg.requirements import failed_requirements
from icefield.model.conflicts import Conflict

Json = dict[str, Any]
SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string())])
MERGING = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}


def path_of(location: str) -> Path:
    return Path(urlsplit(location).path)


def read(location: str) -> bytes:
    return path_of(location).read_bytes()


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "part": ["even" if i % 2 == 0 else "odd" for i in ids]}, schema=SCHEMA)


def updates_of(transaction: Transaction) -> list[Json]:
    """What PyIceberg would POST."""
    return [json.loads(update.model_dump_json(by_alias=True, exclude_none=True)) for update in transaction._updates]


def requirements_of(transaction: Transaction) -> list[Json]:
    return [json.loads(r.model_dump_json(by_alias=True)) for r in transaction._requirements]


class Server:
    """A table whose head is kept by the metadata engine; PyIceberg loads it from a file."""

    def __init__(self, folder: Path, *, partitioned: bool = False, **properties: str) -> None:
        catalog = SqlCatalog("lake", uri="sqlite:///:memory:", warehouse=f"file://{folder}")
        catalog.create_namespace("s")
        table = catalog.create_table("s.t", schema=SCHEMA, properties=properties)
        if partitioned:
            with table.update_spec() as update:
                update.add_field("part", IdentityTransform(), "part")
        self.folder = folder
        self.meta: Json = json.loads(read(table.metadata_location))
        self.numbers = itertools.count(1)
        self.times = itertools.count(self.meta["last-updated-ms"] + 60_000)
        self.rebased: list[Rebased] = []

    def load(self, meta: Json | None = None) -> Table:
        location = self.folder / f"{next(self.numbers)}.metadata.json"
        location.write_text(json.dumps(meta or self.meta))
        return StaticTable.from_metadata(f"file://{location}")

    def fresh(self, stem: str) -> str:
        return f"file://{self.folder}/{stem}-{next(self.numbers)}.avro"

    def post(self, transaction: Transaction) -> Conflict | None:
        updates, requirements = updates_of(transaction), requirements_of(transaction)
        failed = failed_requirements(self.meta, requirements)
        if failed:
            answer = rebase_table(
                None,
                self.meta,
                updates,
                failed,
                read=read,
                fresh_location=self.fresh,
                next_row_id=0,
                now_ms=next(self.times),
            )
            if isinstance(answer, Conflict):
                return answer
            for location, content in answer.new_files.items():
                assert not path_of(location).exists()
                path_of(location).write_bytes(content)
            self.rebased.append(answer)
            updates = answer.updates
        self.meta = apply_updates(self.meta, updates, now_ms=next(self.times))
        return None

    def delete_superseded(self) -> None:
        """As the deletion queue would, at once."""
        for answer in self.rebased:
            for location in answer.superseded:
                path_of(location).unlink()
        assert all(path_of(location).exists() for location in reachable_files(self.meta, read))

    def ids(self, **scan: Any) -> list[int]:
        return sorted(self.load().scan(**scan).to_arrow()["id"].to_pylist())


def begun(table: Table, *tables: pa.Table) -> Transaction:
    transaction = table.transaction()
    for added in tables:
        transaction.append(added)
    return transaction


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("properties", [{}, MERGING], ids=["fast", "merging"])
def test_six_writers_that_loaded_the_same_head(tmp_path: Path, partitioned: bool, properties: dict[str, str]) -> None:
    server = Server(tmp_path, partitioned=partitioned, **properties)
    for i in range(3):
        assert server.post(begun(server.load(), rows(i))) is None
    stale = [begun(server.load(), rows(10 * i, 10 * i + 1), rows(10 * i + 2)) for i in range(1, 7)]
    for transaction in stale:
        assert server.post(transaction) is None
    assert len(server.rebased) == 5
    server.delete_superseded()

    expected = [0, 1, 2, *(10 * i + j for i in range(1, 7) for j in range(3))]
    assert server.ids() == expected
    assert server.ids(row_filter="part = 'odd'") == [i for i in expected if i % 2]
    table = server.load()
    assert [s.sequence_number for s in table.snapshots()] == list(range(1, 16))
    # Every snapshot can be read, and each holds what the one before it held and its own rows.
    seen: list[int] = []
    for snapshot in table.snapshots():
        now = server.ids(snapshot_id=snapshot.snapshot_id)
        assert [i for i in now if i in seen] == seen
        assert snapshot.summary is not None
        assert snapshot.summary["total-records"] == str(len(now))
        seen = now
    files = table.inspect.files()
    assert table.current_snapshot().summary["total-data-files"] == str(files.num_rows)  # type: ignore[union-attr]
    assert table.current_snapshot().summary["total-files-size"] == str(  # type: ignore[union-attr]
        sum(files["file_size_in_bytes"].to_pylist())
    )


def test_writers_go_on_with_what_was_rebased(tmp_path: Path) -> None:
    server = Server(tmp_path, **MERGING)
    assert server.post(begun(server.load(), rows(1, 2))) is None
    mine, theirs = begun(server.load(), rows(3)), begun(server.load(), rows(4))
    assert server.post(theirs) is None
    assert server.post(mine) is None
    transaction = server.load().transaction()
    transaction.overwrite(rows(5), overwrite_filter="id = 4")
    assert server.post(transaction) is None
    transaction = server.load().transaction()
    transaction.delete("id = 1")
    assert server.post(transaction) is None
    assert server.ids() == [2, 3, 5]


def test_an_overwrite_that_is_stale_is_a_conflict(tmp_path: Path) -> None:
    server = Server(tmp_path)
    assert server.post(begun(server.load(), rows(1, 2))) is None
    transaction = server.load().transaction()
    transaction.overwrite(rows(5), overwrite_filter="id = 1")
    assert server.post(begun(server.load(), rows(3))) is None
    found = server.post(transaction)
    assert found is not None
    assert found.reason == "not-an-append"
    assert server.ids() == [1, 2, 3]


def test_after_the_head_deleted_what_the_writer_merged(tmp_path: Path) -> None:
    server = Server(tmp_path, **MERGING)
    for i in range(1, 4):
        assert server.post(begun(server.load(), rows(i))) is None
    mine = begun(server.load(), rows(10))
    transaction = server.load().transaction()
    transaction.delete("id = 2")
    assert server.post(transaction) is None
    assert server.post(mine) is None
    server.delete_superseded()
    assert server.ids() == [1, 3, 10]


def test_after_the_schema_and_the_partitioning_changed(tmp_path: Path) -> None:
    server = Server(tmp_path)
    assert server.post(begun(server.load(), rows(1))) is None
    mine = begun(server.load(), rows(2))
    transaction = server.load().transaction()
    with transaction.update_schema() as schema:
        schema.add_column("more", StringType())
    with transaction.update_spec() as spec:
        spec.add_field("part", IdentityTransform(), "part")
    assert server.post(transaction) is None
    other = pa.table({"id": [3], "part": ["odd"], "more": ["x"]})
    assert server.post(begun(server.load(), other)) is None
    assert server.post(mine) is None
    table = server.load()
    found = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    assert [(row["id"], row["more"]) for row in found] == [(1, None), (2, None), (3, "x")]
    assert table.current_snapshot().schema_id == table.schema().schema_id  # type: ignore[union-attr]
    assert server.ids(row_filter="part = 'odd'") == [1, 3]
