"""Laws of what a table remembers: to properties and back, to field ids and back, expressions that stay in."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefield.sql.ddl import remembered as r
from icefield.sql.lexer import TokenKind, tokens

IDS = st.integers(1, 40)
NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=15
)
ATOMS = st.sampled_from(
    [
        "1",
        "'it''s'",
        "E'\\n'",
        "now()",
        '"a b"',
        "$1",
        "$12",
        "(1 + $3)",
        "ARRAY[1,2]",
        "'--'",
        "'$9'",
        "x.y",
        "lower($2)",
    ]
)
EXPRESSIONS = st.lists(ATOMS, min_size=1, max_size=5).map(" + ".join)
CONSTANTS = EXPRESSIONS.filter(lambda text: not r.used(text))


@st.composite
def counters(draw: st.DrawFn) -> r.Counter:
    kind = draw(st.sampled_from(["smallint", "integer", "bigint"]))
    limit = {"smallint": 2**15, "integer": 2**31, "bigint": 2**63}[kind]
    low, start, high = sorted(draw(st.lists(st.integers(-limit, limit - 1), min_size=3, max_size=3, unique=True)))
    increment = draw(st.integers(-5, 5).filter(bool))
    way = draw(st.sampled_from([r.SERIAL, r.ALWAYS, r.BY_DEFAULT]))
    return r.Counter(draw(IDS), way, draw(NAMES), kind, start, increment, low, high, draw(st.booleans()))


@st.composite
def memories(draw: st.DrawFn) -> r.Memory:
    ids = st.lists(IDS, min_size=1, max_size=3, unique=True).map(tuple)
    keys = draw(st.lists(st.builds(r.Key, NAMES, ids, st.just(False), st.booleans()), max_size=3, unique_by=_name))
    primary = draw(st.lists(st.builds(r.Key, NAMES, ids, st.just(True)), max_size=1))
    return r.Memory(
        tuple(sorted(draw(st.dictionaries(IDS, CONSTANTS, max_size=3)).items())),
        tuple(sorted(draw(st.lists(st.builds(r.Check, NAMES, EXPRESSIONS), max_size=3, unique_by=_name)), key=_name)),
        (*primary, *sorted(keys, key=_name)),
        tuple(sorted(draw(st.lists(counters(), max_size=2, unique_by=_id)), key=_id)),
        tuple(sorted(draw(st.dictionaries(IDS, NAMES, max_size=2)).items())),
        draw(st.none() | NAMES),
    )


def _name(one: r.Key | r.Check) -> str:
    return one.name


def _id(one: r.Counter) -> int:
    return one.field_id


@given(memories())
def test_a_memory_comes_back_from_its_properties(memory: r.Memory) -> None:
    everything = frozenset(range(1, 41))
    assert r.recall(r.to_properties(memory) | {"write.format": "x"}, everything) == (memory, ())


@given(memories(), st.frozensets(IDS))
def test_nothing_is_recalled_of_columns_that_are_not_there(memory: r.Memory, ids: frozenset[int]) -> None:
    found, unfit = r.recall(r.to_properties(memory), ids)
    assert {field_id for field_id, _ in found.defaults} <= ids
    assert {counter.field_id for counter in found.counters} <= ids
    assert all(set(key.field_ids) <= ids for key in found.keys)
    assert all(r.used(check.expression) <= ids for check in found.checks)
    lost = {key.property for key in memory.keys if not set(key.field_ids) <= ids}
    lost |= {r.CHECK + check.name for check in memory.checks if not r.used(check.expression) <= ids}
    assert {one.property for one in unfit} == lost


@given(
    st.dictionaries(
        st.sampled_from([r.DEFAULT, r.CHECK, r.UNIQUE, r.PRIMARY_KEY, r.SEQUENCE, r.NOT_NULL]).flatmap(
            lambda prefix: (IDS.map(str) | NAMES).map(lambda name: prefix + name)
        ),
        st.text(max_size=30),
        max_size=4,
    )
)
def test_recall_takes_whatever_properties_there_are(properties: dict[str, str]) -> None:
    memory, unfit = r.recall(properties, frozenset(range(1, 41)))
    assert all(one.property in properties and one.reason for one in unfit)
    assert r.to_properties(memory).keys() <= properties.keys()


COLUMNS = {"icefield_x_1": 7, "icefield_x_2": 3, "icefield_x_12": 12}


@given(
    st.lists(
        st.sampled_from([*COLUMNS, "lower(", ")", " + ", "'icefield_x_1'", '"q""x"', " ::text", "1.5"]), max_size=9
    )
)
def test_columns_become_ids_and_ids_columns(parts: list[str]) -> None:
    text = " ".join(parts)
    with_ids = r.with_ids(text, COLUMNS)
    assert not any(token.text in COLUMNS for token in tokens(with_ids))
    names = {field_id: name for name, field_id in COLUMNS.items()}
    assert r.with_names(with_ids, names) == " ".join(r.quote(part) if part in COLUMNS else part for part in parts)
    twice = r.renumbered(r.renumbered(with_ids, {7: 1, 3: 2, 12: 5}), {1: 7, 2: 3, 5: 12})
    assert twice == with_ids


@given(st.text(st.sampled_from("()[];'\"\\$-/*1a \n\x00E"), max_size=14) | st.text(string.printable, max_size=14))
def test_what_is_confined_ends_where_its_parentheses_end(text: str) -> None:
    if not r.confined(text):
        return
    depth, closed = 0, []
    for token in tokens(f"({text}) AFTER"):
        assert token.kind is not TokenKind.BROKEN
        if token.kind is TokenKind.SYMBOL:
            depth += (token.text == "(") - (token.text == ")")
            assert token.text != ";"
            if depth == 0:
                closed.append(token.end)
    assert closed == [len(text) + 2]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1)",
        "(1",
        "1; DROP TABLE x",
        "1 -- ",
        "1 /* x */",
        "'a",
        '"a',
        "$a$ x",
        "a[1",
        "]1[",
        "[)(]",
        "1\x00",
        "\\x",
    ],
)
def test_what_is_not_one_expression_is_not_taken(text: str) -> None:
    assert not r.confined(text)
    assert r.recall({"icefield.check.c": text, "icefield.default.1": text}, frozenset((1,)))[0] == r.NOTHING
