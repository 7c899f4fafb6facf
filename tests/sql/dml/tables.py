"""The tables that every statement meets, in eight variants; made on either side by the same steps.

    dml.t  awkward rows without keys: NULLs, duplicates, rows of NULLs alone      dml.s  a source with doubles
    dml.k  PRIMARY KEY, UNIQUE, CHECK, NOT NULL, DEFAULT                          dml.x  further types
    dml.p  always partitioned by bucket and day                                   dml.g  an identity column

A statement says ``dml.t``; ``Variant.place`` puts in the schema where the variant's table stands. A plain PostgreSQL has
the same schemas, with the same rows in all of them. Rows come in several INSERTs (several data files), and another
engine (Spark, on a lake) deletes and updates some of them before any statement runs (``Step.elsewhere``).
"""

from __future__ import annotations

# ruff: noqa: E501 (a row reads best on one line)
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

TABLES = ("t", "s", "k", "p", "x", "g")


@dataclass(frozen=True)
class Variant:
    format_version: int
    mode: str
    partitioned: bool

    def __str__(self) -> str:
        return f"v{self.format_version} {self.mode}{', partitioned' if self.partitioned else ''}"

    def schema(self, table: str) -> str:
        """``s`` and ``g`` stand once; ``p`` and ``x`` once for both ways of partitioning."""
        if table in ("s", "g"):
            return "dml"
        mode = "cow" if self.mode == "copy-on-write" else "mor"
        parted = "_parted" if self.partitioned and table in ("t", "k") else ""
        return f"dml_v{self.format_version}_{mode}{parted}"

    def place(self, text: str) -> str:
        return re.sub(r"\bdml\.([tskpxg])\b", lambda found: f"{self.schema(found[1])}.{found[1]}", text)

    def properties(self) -> str:
        modes = ", ".join(f"'write.{verb}.mode' = '{self.mode}'" for verb in ("update", "delete", "merge"))
        return f"WITH ('format-version' = '{self.format_version}', {modes})"


VARIANTS = tuple(
    Variant(format_version, mode, partitioned)
    for format_version, mode, partitioned in product((2, 3), ("merge-on-read", "copy-on-write"), (False, True))
)


@dataclass(frozen=True)
class Table:
    name: str
    columns: str
    partitions: str
    """PARTITION BY what, or "": ``t`` and ``k`` only in the partitioned variants."""
    batches: tuple[tuple[str, ...], ...]
    elsewhere: tuple[str, ...] = ()


# Ids from 900 on are deleted before any statement runs; they stand in files with rows that stay.
T = Table(
    "t",
    "id integer, i integer, l bigint, n numeric(12,2), t text, d double precision, dt date, ts timestamp, tz timestamptz, b boolean",
    "bucket(4, id), day(ts)",
    (
        (
            "(1, 1, 10, 1.50, 'one', 1.5, '2024-01-01', '2024-01-01 10:00:00', '2024-01-01 10:00:00+00', true)",
            "(2, 2, 20, 2.50, 'two', 2.5, '2024-01-02', '2024-01-01 11:00:00', '2024-01-01 11:00:00+02', false)",
            "(3, 3, 30, -3.50, 'three', -0.5, '2024-01-03', '2024-01-02 00:00:00', '2024-01-02 00:00:00+00', NULL)",
            "(4, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
            "(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
            "(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
            "(5, 5, 50, 0.00, '', 0, '1970-01-01', '1970-01-01 00:00:00', '1970-01-01 00:00:00+00', true)",
            "(6, -6, -60, -0.01, ' ', '-0', '1969-12-31', '1969-12-31 23:59:59.999999', '1969-12-31 23:59:59.999999+00', false)",
            "(7, 7, 70, 7.00, '7', 'NaN', '2024-02-29', '2024-01-02 12:34:56.789', '2024-02-29 12:34:56.789+00', true)",
            "(8, 8, 80, 8.80, '8', 'Infinity', '2024-02-29', '2024-01-02 12:34:56.789001', '2024-02-29 12:34:56.789+00', true)",
            "(9, 9, 90, 9.99, 'nine', '-Infinity', '2024-01-09', '2024-01-01 10:00:00', NULL, false)",
            "(900, 1, 1, 1, 'gone', 1, '2024-01-01', '2024-01-01 10:00:00', NULL, true)",
            "(901, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        ),
        (
            "(10, 2147483647, 9223372036854775807, 9999999999.99, 'most', 1.7976931348623157e308, '9999-12-31', '2024-01-03 23:59:59.999999', '9999-12-31 23:59:59.999999+00', true)",
            "(11, -2147483648, -9223372036854775808, -9999999999.99, 'least', -1.7976931348623157e308, '0001-01-01', '2024-01-03 00:00:00', '0001-01-01 00:00:00+00', false)",
            "(12, 12, 9007199254740993, 12.12, 'ä', 0.1, '2024-03-31', '2024-01-02 02:30:00', '2024-03-31 02:30:00+01', NULL)",
            r"(13, 13, 130, 13.13, E'line\nbreak\ttab\\back''quote\"', 0.3, '2024-01-13', '2024-01-01 10:00:00', '2024-01-13 00:00:00+00', true)",
            "(14, 14, 140, 14.14, '日本語😀', 5e-324, NULL, NULL, '2024-01-14 00:00:00+00', false)",
            "(15, 1, 10, 1.50, 'one', 1.5, '2024-01-01', '2024-01-01 10:00:00', '2024-01-01 10:00:00+00', true)",
            "(20, 20, 200, 20.00, 'twin', 20, '2024-01-20', '2024-01-02 20:00:00', '2024-01-20 20:00:00+00', true)",
            "(20, 20, 200, 20.00, 'twin', 20, '2024-01-20', '2024-01-02 20:00:00', '2024-01-20 20:00:00+00', true)",
            "(20, 20, 200, 20.00, 'twin', 20, '2024-01-20', '2024-01-02 20:00:00', '2024-01-20 20:00:00+00', true)",
            "(21, 21, NULL, 21.00, 'half', NULL, '2024-01-21', '2024-01-02 20:00:00', NULL, NULL)",
            "(21, 22, 210, NULL, 'HALF', 21.5, NULL, '2024-01-01 21:00:00', '2024-01-21 21:00:00+00', false)",
            "(902, 902, 2, 2, 'gone', 2, '2024-01-01', '2024-01-02 10:00:00', NULL, true)",
        ),
        (
            "(30, 0, 0, 0, 'zero', 0, '2000-02-29', '2024-01-01 00:00:00', '2000-02-29 00:00:00+00', false)",
            "(31, 3, 30, -3.50, 'three', -0.5, '2024-01-03', '2024-01-02 00:00:00', '2024-01-02 00:00:00+00', NULL)",
            "(32, 100, 1000, 100.00, 'x', 1e10, '2024-04-01', '2024-01-03 01:00:00', '2024-04-01 00:00:00+00', true)",
            "(33, 100, 1000, 100.00, 'y', 1e10, '2024-04-01', '2024-01-03 02:00:00', '2024-04-01 00:00:00+00', true)",
            "(34, -100, -1000, -100.25, 'a,b;c', 1e-10, '2024-04-02', '2024-01-03 03:00:00', NULL, NULL)",
            "(35, NULL, 35, NULL, 'null i', NULL, '2024-04-03', NULL, NULL, true)",
            "(36, 36, NULL, 36.00, NULL, 36, NULL, '2024-01-03 04:00:00', NULL, false)",
            "(NULL, 37, 370, 37.00, 'null id', 37, '2024-04-05', '2024-01-02 05:00:00', '2024-04-05 00:00:00+00', true)",
            "(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
            "(20, 20, 200, 20.00, 'twin', 20, '2024-01-20', '2024-01-02 20:00:00', '2024-01-20 20:00:00+00', true)",
            "(38, 38, 380, 38.00, '%_\\', 38, '2024-04-06', '0001-01-01 00:00:00', '1900-01-01 00:00:00+00', NULL)",
            "(39, 39, 390, 39.00, 'Zz', 39, '2024-04-07', '9999-12-31 23:59:59.999999', '2038-01-19 03:14:08+00', false)",
            "(903, 3, 3, 3, 'gone', 3, '2024-01-01', NULL, NULL, NULL)",
        ),
    ),
    ("DELETE FROM dml.t WHERE id >= 900", "UPDATE dml.t SET l = 1000 WHERE id = 33"),
)

S = Table(
    "s",
    "id integer, v text, q numeric(12,2), x bigint, ts timestamp",
    "",
    (
        (
            "(1, 'first', 1.00, 1, '2024-01-01 00:00:00')",
            "(2, 'second', 2.00, 2, '2024-01-02 00:00:00')",
            "(2, 'second again', 2.20, 2, '2024-01-02 12:00:00')",
            "(3, NULL, NULL, NULL, NULL)",
            "(5, 'five', 5.55, 5, '2024-01-05 00:00:00')",
            "(7, 'seven', 7.70, 7, '2024-01-03 00:00:00')",
        ),
        (
            "(20, 'twin', 20.00, 20, '2024-01-02 20:00:00')",
            "(20, 'twin', 20.00, 20, '2024-01-02 20:00:00')",
            "(21, 'half', -21.00, 21, '2024-01-04 00:00:00')",
            "(NULL, 'nobody', 0.00, 0, '2024-01-01 00:00:00')",
            "(NULL, NULL, NULL, NULL, NULL)",
            "(100, 'new', 100.00, 100, '2024-02-01 00:00:00')",
            "(101, '', -1.00, -1, '2023-12-31 00:00:00')",
            "(102, 'newest', 0.10, 9223372036854775807, '2024-02-02 00:00:00')",
        ),
    ),
)

K = Table(
    "k",
    "id integer PRIMARY KEY, a integer NOT NULL DEFAULT 7, b text, c numeric(12,2) DEFAULT 0 CHECK (c >= 0),"
    " note text NOT NULL DEFAULT 'new', at timestamp, UNIQUE (a, b)",
    "bucket(4, id), day(at)",
    (
        (
            "(1, 1, 'a', 1.00, 'one', '2024-01-01 00:00:00')",
            "(2, 1, 'b', 2.00, 'two', '2024-01-01 12:00:00')",
            "(3, 2, 'a', NULL, 'three', '2024-01-02 00:00:00')",
            "(4, 2, NULL, 4.00, 'four', NULL)",
            "(5, 2, NULL, 5.50, 'five', '2024-01-02 01:00:00')",
            "(6, 3, 'c', 0.00, '', '2024-01-03 00:00:00')",
            "(900, 900, 'gone', 0.00, 'gone', '2024-01-01 00:00:00')",
        ),
        (
            "(7, 3, 'd', 7.00, 'seven', '2024-01-03 07:00:00')",
            "(8, 4, '', 8.00, 'eight', '2024-01-01 08:00:00')",
            "(9, -9, 'ä', 9.00, 'nine', NULL)",
            "(10, 7, 'x', 10.00, 'ten', '2024-01-02 10:00:00')",
            "(901, 901, 'gone', 0.00, 'gone', '2024-01-02 00:00:00')",
        ),
    ),
    ("DELETE FROM dml.k WHERE id >= 900",),
)

P = Table(
    "p",
    "id bigint NOT NULL, ts timestamp, t text, n numeric(12,2)",
    "bucket(4, id), day(ts)",
    (
        (
            "(1, '2024-01-01 00:00:00', 'a', 1.00)",
            "(2, '2024-01-01 23:59:59.999999', 'b', 2.00)",
            "(3, '2024-01-02 00:00:00', 'c', 3.00)",
            "(4, NULL, 'd', 4.00)",
            "(5, '2024-01-02 05:00:00', NULL, NULL)",
            "(5, '2024-01-02 05:00:00', NULL, NULL)",
            "(900, '2024-01-02 00:00:00', 'gone', 9.00)",
        ),
        (
            "(6, '1969-12-31 23:00:00', 'f', -6.00)",
            "(7, '2024-01-01 07:00:00', 'g', 7.00)",
            "(8, '2024-01-02 08:00:00', 'h', 8.00)",
            "(9, NULL, 'i', 9.00)",
            "(10, '2024-01-03 10:00:00', 'j', 10.00)",
            "(901, '2024-01-03 00:00:00', 'gone', 9.00)",
        ),
    ),
    ("DELETE FROM dml.p WHERE id >= 900",),
)

X = Table(
    "x",
    "id integer, si smallint, vc varchar(10), u uuid, j jsonb, ar integer[]",
    "",
    (
        (
            "(1, 1, 'one', '00000000-0000-0000-0000-000000000001', '{\"a\": 1, \"b\": [1, 2, {\"c\": null}]}', '{1,2,3}')",
            "(2, -32768, '', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '[]', '{}')",
            "(3, 32767, 'ten chars!', 'ffffffff-ffff-ffff-ffff-ffffffffffff', '\"text\"', '{NULL,3}')",
            "(4, NULL, NULL, NULL, NULL, NULL)",
            "(5, 5, 'ä日😀', '00000000-0000-0000-0000-000000000005', 'null', '{5}')",
            "(5, 5, 'ä日😀', '00000000-0000-0000-0000-000000000005', 'null', '{5}')",
            "(6, 6, ' x ', '00000000-0000-0000-0000-000000000006', '{\"a\": 1.50, \"k\": \"v\"}', '{2147483647,-2147483648}')",
        ),
    ),
)

G = Table(
    "g", "id integer GENERATED BY DEFAULT AS IDENTITY, v text", "", (("(1000, 'given')", "(1001, 'given, too')"),)
)

_ALL = {table.name: table for table in (T, S, K, P, X, G)}


@dataclass(frozen=True)
class Step:
    sql: str
    elsewhere: bool = False
    """By another engine than the one under test. The table's name is in braces: Spark names its catalog before it."""


def steps(variants: Sequence[Variant], *, lake: bool, shuffled: bool = False) -> Iterator[Step]:
    """What makes the tables. ``shuffled``: rows stored in another order, for proof that no answer depends on it."""
    made: set[str] = set()
    schemas = sorted({variant.schema(name) for variant in variants for name in TABLES})
    for schema in schemas:
        yield Step(f"CREATE SCHEMA {schema}")
    for variant in variants:
        for name, table in _ALL.items():
            place = f"{variant.schema(name)}.{name}"
            if place not in made:
                made.add(place)
                yield from _table(variant, table, place, lake=lake, shuffled=shuffled)


def _table(variant: Variant, table: Table, place: str, *, lake: bool, shuffled: bool) -> Iterator[Step]:
    if lake:
        always = table.name == "p"
        parted = bool(table.partitions) and (always or variant.partitioned)
        partitions = f"PARTITION BY ({table.partitions}) " if parted else ""
        yield Step(f"CREATE ICEBERG TABLE {place} ({table.columns}) {partitions}{variant.properties()}")
    else:
        yield Step(f"CREATE TABLE {place} ({table.columns})")
    batches = [list(batch) for batch in table.batches]
    if shuffled:
        batches.reverse()
        for batch in batches:
            random.Random(len(batch)).shuffle(batch)
    for batch in batches:
        yield Step(f"INSERT INTO {place} VALUES " + ", ".join(batch))
    for text in table.elsewhere:
        yield Step(text.replace(f"dml.{table.name}", "{" + place + "}"), elsewhere=True)
