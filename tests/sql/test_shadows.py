"""Shadows follow the catalog: whatever it said before, the brain then holds what it says now."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefield.pgwire.errors import PgError
from icefield.sql import shadows as sh
from icefield.sql.brain.pool import Brain

pytestmark = pytest.mark.sql

TYPES = {
    "boolean": "boolean",
    "int": "integer",
    "long": "bigint",
    "double": "double precision",
    "decimal(9, 2)": "numeric(9,2)",
    "string": "text",
    "date": "date",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
}
NAMES = st.sampled_from(["a", "B", "sel ect", 'q"x', "ä", "user"])
FIELDS = st.lists(
    st.tuples(NAMES, st.sampled_from(list(TYPES)), st.booleans()), min_size=1, max_size=4, unique_by=lambda one: one[0]
)
LEVELS = st.sampled_from([("public",), ("s",), ("s", "deep"), ("Ä",)])
TABLES = st.dictionaries(st.tuples(LEVELS, NAMES), FIELDS, max_size=5)


def catalog(tables: dict[Any, Any], namespaces: list[tuple[str, ...]] | None = None) -> dict[str, Any]:
    return {
        "fingerprint": "f",
        "namespaces": [list(n) for n in (namespaces or sorted({key[0] for key in tables}))],
        "tables": [
            {
                "namespace": list(namespace),
                "name": name,
                "id": "x",
                "schema": {
                    "type": "struct",
                    "fields": [
                        {"id": n, "name": f, "type": kind, "required": required}
                        for n, (f, kind, required) in enumerate(fields, 1)
                    ],
                },
                "metadata-location": "m",
            }
            for (namespace, name), fields in tables.items()
        ],
    }


class Held:
    """What the brain holds, from test to test."""

    now = sh.Shadows()


async def follow(brain: Brain, wish: sh.Shadows) -> sh.Shadows:
    script = sh.sync_script(Held.now, wish, brain.role)
    oids = None
    if script is not None:
        await brain.admin.query(script)
        oids = sh.read_oids((await brain.admin.query(sh.OIDS_QUERY)).rows)
    Held.now = sh.carried(Held.now, wish, oids)
    return Held.now


@settings(max_examples=25, deadline=None)
@given(TABLES)
def test_the_brain_holds_what_the_catalog_says(brain: Brain, loop: Any, tables: dict[Any, Any]) -> None:
    held = loop(follow(brain, sh.wanted(catalog(tables))))
    columns = loop(
        brain.admin.query(
            "SELECT n.nspname, c.relname, a.attname, format_type(atttypid, atttypmod), attnotnull, c.relowner::regrole"
            " FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid JOIN pg_namespace n ON n.oid = relnamespace"
            " WHERE relkind = 'r' AND c.oid >= 16384 AND nspname <> 'pg_catalog' AND attnum > 0 ORDER BY c.oid, attnum"
        )
    ).rows
    found: dict[Any, list[Any]] = {}
    for schema, table, column, shown, required, owner in columns:
        found.setdefault((schema, table), []).append((column, shown, required == "t"))
        assert owner == brain.role
    assert found == {
        (".".join(namespace), name): [(f, TYPES[kind], required) for f, kind, required in fields]
        for (namespace, name), fields in tables.items()
    }
    oids = loop(brain.admin.query(sh.OIDS_QUERY)).rows
    assert {(schema, name): int(oid) for schema, name, oid in oids} == {k: v.oid for k, v in held.tables.items()}


def test_an_unchanged_table_is_left_alone(brain: Brain, loop: Any) -> None:
    one = {(("s",), "t"): [("a", "int", False)]}
    before = loop(follow(brain, sh.wanted(catalog(one))))
    after = loop(follow(brain, sh.wanted(catalog(one | {(("s",), "u"): [("a", "int", True)]}))))
    assert after.tables["s", "t"].oid == before.tables["s", "t"].oid
    changed = loop(follow(brain, sh.wanted(catalog({(("s",), "t"): [("a", "long", False)]}))))
    assert changed.tables["s", "t"].oid != before.tables["s", "t"].oid


@pytest.mark.parametrize(
    ("namespace", "name", "field", "reason"),
    [
        (["s"], "t", {"name": "a", "type": "time"}, "time"),
        (["s"], "t", {"name": "a", "type": {"type": "list"}}, "list"),
        (["s"], "t" * 64, {"name": "a", "type": "int"}, "longer"),
        (["s"], "t", {"name": "x" * 64, "type": "int"}, "longer"),
        (["s"], "t", {"name": "xmin", "type": "int"}, "xmin"),
        (["a.b"], "t", {"name": "a", "type": "int"}, "'.'"),
        (["pg_x"], "t", {"name": "a", "type": "int"}, "PostgreSQL's own"),
    ],
)
def test_what_cannot_be_shown_is_left_out_and_says_why(
    namespace: list[str], name: str, field: dict[str, Any], reason: str
) -> None:
    answer = catalog({})
    answer["namespaces"] = [namespace]
    answer["tables"] = [{"namespace": namespace, "name": name, "schema": {"fields": [field]}}]
    wish = sh.wanted(answer)
    assert not wish.tables
    (left_out,) = wish.left_out.values()
    assert reason in left_out.reason


def test_the_client_cannot_make_what_would_stay(brain: Brain, loop: Any) -> None:
    async def attempts() -> dict[str, str]:
        found = {}
        async with await brain.open_client({}) as link:
            for statement in (
                "CREATE TABLE t (a int)",
                "CREATE TABLE public.t AS SELECT 1",
                "SELECT 1 INTO t",
                "CREATE VIEW v AS SELECT 1",
                "CREATE FUNCTION f() RETURNS int LANGUAGE sql RETURN 1",
                "CREATE SEQUENCE q",
                "CREATE SCHEMA z",
                "CREATE TYPE e AS ENUM ('a')",
                "DO $$ BEGIN CREATE TABLE t (a int); END $$",
                "DROP SCHEMA public",
                "CREATE TEMP TABLE t (a int PRIMARY KEY, b serial)",
                "CREATE INDEX ON t (b)",
                "ALTER TABLE t ADD COLUMN c text DEFAULT 'x'",
                "CREATE TEMP VIEW v AS SELECT * FROM t",
                "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql RETURN 1",
                "CREATE TRIGGER g BEFORE UPDATE ON t EXECUTE FUNCTION suppress_redundant_updates_trigger()",
                "DROP TABLE t CASCADE",
            ):
                try:
                    found[statement] = (await link.query(statement)).tag
                except PgError as error:
                    found[statement] = error.sqlstate
        return found

    found = list(loop(attempts()).values())
    assert found[:10] == ["0A000"] * 10
    assert found[10:] == [
        "CREATE TABLE",
        "CREATE INDEX",
        "ALTER TABLE",
        "CREATE VIEW",
        "CREATE FUNCTION",
        "CREATE TRIGGER",
        "DROP TABLE",
    ]


@pytest.mark.parametrize("role", ["icefield", "pg_read_all_data", "public"])
def test_reserved_users_are_refused(loop: Any, role: str) -> None:
    from icefield.sql.brain.pool import BrainPool

    with pytest.raises(PgError) as caught:
        loop(BrainPool(spares=0).take("lake", role))
    assert caught.value.fatal
