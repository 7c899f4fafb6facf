"""What a commit costs in the graph: bytes and milliseconds, in SQLite, at 100,000 entries.

    .venv/bin/python bench/graph.py [entries] [commits]

Figures to compare with: 1.5 KB of nodes and 2.1 KB of growth per one-table commit at 1,000,000 tables.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from icefield.graph.graph import Graph
from icefield.graph.keys import Key
from icefield.model.effects import SystemClock, SystemRandomness
from icefield.model.entries import Entry, EntryKind
from icefield.model.names import Identifier
from icefield.store.records import RefRecord, SegmentRecord
from icefield.store.sql.sqlite import open_sqlite

DRAW = random.Random(5)


def name(number: int) -> Identifier:
    return Identifier((f"team_{number % 90:02d}", "warehouse"), f"fact_table_number_{number:07d}")


def table(number: int) -> Entry:
    unique, version = (f"{DRAW.getrandbits(128):032x}" for _ in range(2))
    location = f"s3://company-lake/warehouse/team_{number % 90:02d}/fact_{number:07d}-{number:08x}"
    return Entry(unique, EntryKind.TABLE, f"{location}/metadata/00017-{version}.metadata.json", location)


def milliseconds(times: list[float]) -> str:
    ordered = sorted(times)
    return f"p50 {ordered[len(ordered) // 2] * 1e3:.2f} ms, p95 {ordered[len(ordered) * 95 // 100] * 1e3:.2f} ms"


def timed(work: Callable[..., object], *arguments: object) -> float:
    begin = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - begin


def main(entries: int = 100_000, commits: int = 2_000) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        store = open_sqlite(path)
        graph = Graph(store, SystemClock(), SystemRandomness())
        with store.write() as writer:
            graph.create_repo(writer, "lake")

        def publish(changes: dict[Key, Entry | None]) -> None:
            with store.read() as reader:
                head = graph.resolve(reader, "lake")
            ref: RefRecord | None = head.ref_record
            if ref is None:
                raise RuntimeError("the default branch is no ref")
            edit = graph.tree(head.commit).edit(changes)
            with store.write() as writer:
                graph.publish(writer, ref, edit, message="bench", principal="bench", details={"operation": "bench"})

        def size() -> int:
            with store.write() as writer:
                writer.next_id("bench")
            return path.stat().st_size + path.with_name("store.db-wal").stat().st_size

        def checkpointed() -> int:
            connection = store._database.connect()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.close()
            return path.stat().st_size

        everything: dict[Key, Entry | None] = {}
        for number in range(90):
            for space in (name(number).namespace[:1], name(number).namespace):
                everything[space] = Entry(f"{DRAW.getrandbits(128):032x}", EntryKind.NAMESPACE)
        everything |= {name(number): table(number) for number in range(entries)}
        print(f"build {entries:,} entries: {timed(publish, everything):.2f} s, {checkpointed() / 1e6:.1f} MB")

        with store.read() as reader:
            before_segments = {segment.id for segment in reader.find(SegmentRecord)}
        before = checkpointed()
        times = [timed(publish, {name(n): table(n)}) for n in (DRAW.randrange(entries) for _ in range(commits))]
        growth = (checkpointed() - before) / commits
        with store.read() as reader:
            made = [len(one.nodes) for one in reader.find(SegmentRecord) if one.id not in before_segments]
        print(
            f"one-table commit (read head, edit, publish, sync): {milliseconds(times)}; "
            f"nodes {sum(made) / commits:,.0f} B, growth {growth:,.0f} B"
        )

        with store.read() as reader:
            head = graph.resolve(reader, "lake").commit
            earlier = graph.log(reader, head, 11)[-1]
            bases = timed(graph.merge_bases, reader, graph.commit(reader, 1), head)
            log = timed(graph.log, reader, head, 50)
        tree = graph.tree(head)
        warm = [timed(tree.get, name(n)) for n in (DRAW.randrange(entries) for _ in range(2_000))]
        cold_tree = Graph(store, SystemClock(), SystemRandomness()).tree(head)
        picked = [DRAW.randrange(entries) for _ in range(200)]
        cold = [timed(cold_tree.get, name(n)) for n in picked]
        fresh = Graph(store, SystemClock(), SystemRandomness())
        print(f"get: cached {milliseconds(warm)}; filling the cache {milliseconds(cold)}")
        space = ("team_05", "warehouse")
        print(
            f"list {len(tree.children(space)):,}: cold {timed(fresh.tree(head).children, space) * 1e3:.1f} ms, "
            f"warm {timed(tree.children, space) * 1e3:.1f} ms; "
            f"namespaces of the top: {timed(tree.namespaces, ()) * 1e3:.1f} ms"
        )
        print(
            f"diff over 10 commits: {timed(graph.diff, earlier, head) * 1e3:.1f} ms; "
            f"log of 50: {log * 1e3:.1f} ms; "
            f"merge base over {commits:,} commits, first time: {bases * 1e3:.1f} ms"
        )
        store.close()


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
