"""Shadows follow the catalog: whatever it said before, the brain then holds what it says now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefield.pgwire.errors import PgError
from icefield.sql import shadows as sh
from icefield.sql.brain.pool import Brain
from icefield.sql.ddl import readback, remembered

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
    notices: Any = ()
    if script is not None:
        notices = (await brain.admin.query(script)).notices
        oids = sh.read_oids((await brain.admin.query(sh.OIDS_QUERY)).rows)
    Held.now = sh.carried(Held.now, wish, oids, notices)
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


# What a table remembers ----------------------------------------------------------------------------------------------

PIECES = {
    "icefield.default.1": "((1 + 2) * 3)",
    "icefield.default.2": "'it''s'::text",
    "icefield.check.one": "($1 > 0)",
    "icefield.check.both": "(($1 IS NOT NULL) OR (length($2) > 1))",
    "icefield.unique.Key": "2,1",
    "icefield.unique.nulls": "2 nulls not distinct",
    "icefield.primary-key.pk": "1",
    "icefield.sequence.3": """{"kind": "serial", "name": "t_c_seq", "type": "bigint", "start": 5, "increment": 2,
        "min": 1, "max": 99, "cycle": false}""",
    "icefield.sequence.4": """{"kind": "by default", "name": "Own", "type": "integer", "start": 3, "increment": -1,
        "min": -9, "max": 4, "cycle": true}""",
    "icefield.not-null.1": "given",
    "comment": "what's \\ it",
}
DRESSED = [("a", "int", True), ("B b", "string", False), ("c", "long", True), ("d", "int", True)]


def dressed(properties: dict[str, str], name: str = "t", version: str = "m") -> dict[str, Any]:
    answer = catalog({(("s",), name): DRESSED})
    answer["tables"][0] |= {"properties": properties, "metadata-location": version, "format-version": 3}
    return answer


async def relation(brain: Brain, oid: int) -> readback.Relation:
    await brain.admin.query("BEGIN; SET LOCAL icefield.ddl = 'on'")
    try:
        return await readback.look(brain.admin, oid)
    finally:
        await brain.admin.query("ROLLBACK")


@settings(max_examples=30, deadline=None)
@given(st.sets(st.sampled_from(sorted(PIECES))), st.sets(st.sampled_from(sorted(PIECES))))
def test_a_shadow_is_dressed_as_the_table_remembers(brain: Brain, loop: Any, first: set[str], then: set[str]) -> None:
    oids = set()
    loop(follow(brain, sh.wanted(catalog({}))))
    for names in (first, then):
        properties = {name: PIECES[name] for name in names}
        shadow = loop(follow(brain, sh.wanted(dressed(properties)))).tables["s", "t"]
        assert shadow.broken == ()
        assert remembered.to_properties(shadow.memory).keys() == names
        found = readback.memory_of(loop(relation(brain, shadow.oid)), {1: 1, 2: 2, 3: 3, 4: 4})
        counters = tuple(replace(counter, cycle=False) for counter in shadow.memory.counters)
        assert found == replace(shadow.memory, counters=counters)
        oids.add(shadow.oid)
    assert len(oids) == 1  # what only dresses a table does not make it anew


def test_a_sequence_is_exhausted_until_a_window_is_opened(brain: Brain, loop: Any) -> None:
    shadow = loop(follow(brain, sh.wanted(dressed(PIECES)))).tables["s", "t"]
    up, down = shadow.sequences
    assert (up.sql_name, up.field_id, up.start, up.increment, up.min, up.max) == ('"s"."t_c_seq"', 3, 5, 2, 1, 99)
    assert (down.name, down.kind, down.cycle) == ("Own", "by default", True)

    async def numbers(name: str) -> list[str | None]:
        got = []
        for _ in range(4):
            try:
                got.append((await brain.admin.query(f"SELECT nextval('{name}')")).scalar())
            except PgError as error:
                got.append(error.sqlstate)
        return got

    assert loop(numbers(up.sql_name)) == ["2200H"] * 4
    assert loop(numbers(down.sql_name)) == ["2200H"] * 4
    loop(brain.admin.query(f"ALTER SEQUENCE {up.sql_name} MAXVALUE 9 RESTART 5"))
    loop(brain.admin.query(f"ALTER SEQUENCE {down.sql_name} MINVALUE 2 RESTART 3"))
    assert loop(numbers(up.sql_name)) == ["5", "7", "9", "2200H"]
    assert loop(numbers(down.sql_name)) == ["3", "2", "2200H", "2200H"]


UNFIT = {
    "icefield.default.2": "nosuch(1)",
    "icefield.default.1": "1) CHECK (a > 1",
    "icefield.check.gone": "($9 > 1)",
    "icefield.check.types": "($1 > 'x'::text)",
    "icefield.check.evil": "true); RESET ROLE; CREATE TABLE s.evil (a int); SELECT (1",
    "icefield.check.hidden": "true) --",
    "icefield.unique.gone": "1,9",
    "icefield.unique.t": "1",
    "icefield.sequence.2": '{"kind": "serial"}',
    "icefield.sequence.4": PIECES["icefield.sequence.4"].replace("by default", "always").replace("Own", "t"),
    "icefield.primary-key.many": "1,1",
}


def test_what_does_not_fit_makes_a_table_unwritable_and_nothing_else(brain: Brain, loop: Any) -> None:
    loop(follow(brain, sh.wanted(catalog({}))))
    shadow = loop(follow(brain, sh.wanted(dressed({**UNFIT, "icefield.check.good": "($1 > 0)"})))).tables["s", "t"]
    fits = {"icefield.sequence.4"}  # a sequence takes another name
    assert {unfit.property for unfit in shadow.broken} == UNFIT.keys() - fits
    assert all(unfit.reason for unfit in shadow.broken)
    with pytest.raises(PgError) as caught:
        shadow.check_writable()
    assert caught.value.sqlstate == "0A000"
    assert "ALTER TABLE" in (caught.value.hint or "")
    found = loop(relation(brain, shadow.oid))
    assert [one.name for one in found.constraints if one.kind == "c"] == ["good"]
    assert loop(brain.admin.query("SELECT to_regclass('s.evil')")).scalar() is None
    again = loop(follow(brain, sh.wanted(dressed({**UNFIT, "icefield.check.good": "($1 > 1)"}, version="n"))))
    assert {unfit.property for unfit in again.tables["s", "t"].broken} == UNFIT.keys() - fits
    good = {"icefield.check.good": "($1 > 1)", "icefield.default.2": "'x'::text"}
    again = loop(follow(brain, sh.wanted(dressed(good))))
    assert again.tables["s", "t"].broken == ()
    again.tables["s", "t"].check_writable()


def test_plain_tables_are_made_in_one_plain_script() -> None:
    wish = sh.wanted(catalog({(("s",), f"t{n}"): [("a", "int", False)] for n in range(1000)}))
    script = sh.sync_script(sh.Shadows(), wish, "ann")
    assert script is not None
    assert "DO " not in script
    assert script.count("CREATE TABLE") == 1000
