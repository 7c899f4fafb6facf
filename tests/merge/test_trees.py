"""The laws of merging trees, on random trees and histories, and each rule by an example."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icefield.merge.trees import Change, Key, TreeMerge, merge_trees
from icefield.model.entries import Entry, EntryKind
from icefield.model.names import Identifier

Tree = dict[Key, Entry]


def diff(base: Tree, now: Tree) -> dict[Key, Change]:
    return {key: (base.get(key), now.get(key)) for key in {*base, *now} if base.get(key) != now.get(key)}


def merged(base: Tree, ours: Tree, theirs: Tree) -> TreeMerge:
    return merge_trees(diff(base, ours), diff(base, theirs))


def applied(ours: Tree, merge: TreeMerge) -> Tree:
    tree = dict(ours)
    for key, entry in merge.changes.items():
        if entry is None:
            assert key in tree, "takes away what is not there"
            del tree[key]
        else:
            assert tree.get(key) != entry, "changes nothing"
            tree[key] = entry
    return tree


def table(entry_id: str, version: int = 1) -> Entry:
    return Entry(entry_id, EntryKind.TABLE, f"file:///w/{entry_id}/{version}.json", f"file:///w/{entry_id}")


def namespace(entry_id: str, **properties: str) -> Entry:
    return Entry(entry_id, EntryKind.NAMESPACE, properties=tuple(sorted(properties.items())))


A, B, C = Identifier(("s",), "a"), Identifier(("s",), "b"), Identifier(("s",), "c")
S: Key = ("s",)


# --- the laws ----------------------------------------------------------------------------------------------------

NAMESPACES = [("s",), ("t",), ("s", "u")]
TABLES = [Identifier(namespace, name) for namespace in NAMESPACES for name in "ab"]


def step(tree: Tree, draw: Any, prefix: str, number: int) -> None:
    """One thing a user may do, as the catalog would let him."""
    spaces = [key for key in NAMESPACES if key in tree]
    tables = [key for key in TABLES if key in tree]
    free = [key for key in TABLES if key not in tree and key.namespace in tree]
    verbs = ["space"]
    verbs += ["create"] * 2 if free else []
    verbs += ["change", "change", "drop", "drop"] if tables else []
    verbs += ["rename", "rename"] if tables and free else []
    verbs += ["property", "unspace"] if spaces else []
    match draw(st.sampled_from(verbs)):
        case "space":
            key = draw(st.sampled_from(NAMESPACES))
            tree.setdefault(key, namespace(f"{prefix}n{number}"))
        case "unspace":
            key = draw(st.sampled_from(spaces))
            inside = [k for k in tree if (k.namespace if isinstance(k, Identifier) else k[:-1])[: len(key)] == key]
            if not inside:
                del tree[key]
        case "property":
            key = draw(st.sampled_from(spaces))
            properties = dict(tree[key].properties) | {draw(st.sampled_from("pq")): draw(st.sampled_from("xy"))}
            tree[key] = replace(tree[key], properties=tuple(sorted(properties.items())))
        case "create":
            tree[draw(st.sampled_from(free))] = table(f"{prefix}t{number}")
        case "change":
            key = draw(st.sampled_from(tables))
            tree[key] = table(tree[key].id, draw(st.integers(2, 4)))
        case "drop":
            del tree[draw(st.sampled_from(tables))]
        case "rename":
            tree[draw(st.sampled_from(free))] = tree.pop(draw(st.sampled_from(tables)))


@st.composite
def histories(draw: Any) -> tuple[Tree, Tree, Tree]:
    def grow(tree: Tree, prefix: str, most: int) -> Tree:
        tree = dict(tree)
        for number in range(draw(st.integers(0, most))):
            step(tree, draw, prefix, number)
        return tree

    base = grow({}, "base-", 8)
    return base, grow(base, "ours-", 3), grow(base, "theirs-", 3)


laws = settings(max_examples=1500, deadline=None)


def check_tree(tree: Tree) -> None:
    ids = [entry.id for entry in tree.values()]
    assert len(set(ids)) == len(ids), "an entry stands under two names"
    for key in tree:
        inner = key.namespace if isinstance(key, Identifier) else key[:-1]
        assert not inner or isinstance(key, tuple) or inner in tree, f"{key} stands in no namespace"


@laws
@given(histories())
def test_nothing_changed_on_one_side(history: tuple[Tree, Tree, Tree]) -> None:
    base, ours, _ = history
    assert merged(base, ours, base) == TreeMerge()
    takes_all = merged(base, base, ours)
    assert not takes_all.conflicts
    assert applied(base, takes_all) == ours


@laws
@given(histories())
def test_the_same_on_both_sides(history: tuple[Tree, Tree, Tree]) -> None:
    base, ours, _ = history
    assert merged(base, ours, dict(ours)) == TreeMerge()


@laws
@given(histories())
def test_symmetry(history: tuple[Tree, Tree, Tree]) -> None:
    base, ours, theirs = history
    here, there = merged(base, ours, theirs), merged(base, theirs, ours)
    assert {(c.entry, c.reason) for c in here.conflicts} == {(c.entry, c.reason) for c in there.conflicts}
    if not here.conflicts:
        assert applied(ours, here) == applied(theirs, there)


@laws
@given(histories())
def test_merging_again_changes_nothing(history: tuple[Tree, Tree, Tree]) -> None:
    base, ours, theirs = history
    first = merged(base, ours, theirs)
    if first.conflicts:
        assert first.changes == {}
        return
    result = applied(ours, first)
    # After the merge, theirs is the base; and theirs may take the merge in turn.
    assert merged(theirs, result, theirs) == TreeMerge()
    assert applied(theirs, merged(theirs, theirs, result)) == result


@laws
@given(histories())
def test_nothing_is_lost_and_every_name_is_one_entry(history: tuple[Tree, Tree, Tree]) -> None:
    base, ours, theirs = history
    merge = merged(base, ours, theirs)
    if merge.conflicts:
        return
    result = applied(ours, merge)
    check_tree(result)
    by_id = [{entry.id: (key, entry) for key, entry in tree.items()} for tree in (base, ours, theirs, result)]
    for entry_id in {*by_id[0], *by_id[1], *by_id[2]}:
        was, here, there, now = (tree.get(entry_id) for tree in by_id)
        if here is None or there is None:
            dropped = was is not None
            assert now == (None if dropped else here or there)
            continue
        assert now is not None
        for old, one, other, new in zip(was or (None, None), here, there, now, strict=True):
            if isinstance(new, Entry) and new.kind == EntryKind.NAMESPACE:
                properties = [dict(entry.properties) if entry else {} for entry in (old, one, other, new)]
                for name in {name for each in properties for name in each}:
                    o, x, y, n = (each.get(name) for each in properties)
                    assert n == (y if x == o else x)
            else:
                assert new == (other if one == old else one)


# --- the rules, one by one ---------------------------------------------------------------------------------------


def reasons(merge: TreeMerge) -> list[tuple[str, str]]:
    assert merge.changes == {} or not merge.conflicts
    return [(conflict.entry, conflict.reason) for conflict in merge.conflicts]


def test_rename_and_change_are_both_taken() -> None:
    base: Tree = {A: table("1")}
    merge = merged(base, {B: table("1")}, {A: table("1", 2)})
    assert merge == TreeMerge({B: table("1", 2)})
    assert merged(base, {A: table("1", 2)}, {B: table("1")}) == TreeMerge({A: None, B: table("1", 2)})


def test_two_different_renames() -> None:
    merge = merged({A: table("1")}, {B: table("1")}, {C: table("1")})
    assert reasons(merge) == [("s.a", "renamed-differently")]
    assert "s.b on ours" in merge.conflicts[0].message
    assert "s.c on theirs" in merge.conflicts[0].message
    assert (merge.conflicts[0].ours, merge.conflicts[0].theirs) == ("renamed to s.b", "renamed to s.c")


def test_two_different_renames_of_a_table_that_both_changed_are_two_conflicts() -> None:
    merge = merged({A: table("1")}, {B: table("1", 2)}, {C: table("1", 3)})
    assert reasons(merge) == [("s.a", "both-changed"), ("s.a", "renamed-differently")]


def test_the_same_rename_on_both_sides() -> None:
    assert merged({A: table("1")}, {B: table("1")}, {B: table("1", 2)}) == TreeMerge({B: table("1", 2)})


def test_names_swapped() -> None:
    base: Tree = {A: table("1"), B: table("2")}
    assert merged(base, base, {A: table("2"), B: table("1")}).changes == {A: table("2"), B: table("1")}
    assert merged(base, {A: table("1", 5), B: table("2")}, {A: table("2"), B: table("1")}).changes == {
        A: table("2"),
        B: table("1", 5),
    }


def test_created_on_both_sides() -> None:
    merge = merged({}, {A: table("1")}, {A: table("2")})
    assert reasons(merge) == [("s.a", "created-on-both")]
    assert (merge.conflicts[0].ours, merge.conflicts[0].theirs) == ("created", "created")


def test_renamed_onto_a_name_that_the_other_side_took() -> None:
    merge = merged({A: table("1")}, {B: table("1")}, {A: table("1"), B: table("2")})
    assert reasons(merge) == [("s.b", "name-taken")]
    assert (merge.conflicts[0].ours, merge.conflicts[0].theirs) == ("renamed to s.b", "created")


def test_a_name_that_was_left_is_free_for_the_other_side() -> None:
    base: Tree = {A: table("1")}
    assert merged(base, {B: table("1")}, {A: table("2"), C: table("1")}).conflicts[0].reason == "renamed-differently"
    assert merged(base, {B: table("1")}, {A: table("2"), B: table("1")}) == TreeMerge({A: table("2")})


@pytest.mark.parametrize("dropper_is_ours", [True, False])
def test_dropped_on_one_side_and_changed_on_the_other(dropper_is_ours: bool) -> None:
    base: Tree = {A: table("1")}
    sides: list[Tree] = [{}, {A: table("1", 2)}]
    ours, theirs = sides if dropper_is_ours else reversed(sides)
    merge = merged(base, ours, theirs)
    assert reasons(merge) == [("s.a", "deleted-and-changed")]
    said = (merge.conflicts[0].ours, merge.conflicts[0].theirs)
    assert said == (("dropped", "changed") if dropper_is_ours else ("changed", "dropped"))


def test_dropped_and_created_again_is_another_entry() -> None:
    base: Tree = {A: table("1")}
    assert merged(base, base, {A: table("2")}) == TreeMerge({A: table("2")})
    assert reasons(merged(base, {A: table("1", 2)}, {A: table("2")})) == [("s.a", "deleted-and-changed")]
    assert reasons(merged(base, {A: table("3")}, {A: table("2")})) == [("s.a", "created-on-both")]


def test_both_changed_one_table() -> None:
    merge = merge_trees(
        diff({A: table("1")}, {A: table("1", 2)}),
        diff({A: table("1")}, {A: table("1", 3)}),
        our_name="main",
        their_name="dev",
    )
    assert reasons(merge) == [("s.a", "both-changed")]
    assert "changed on main and on dev" in merge.conflicts[0].message
    assert "not supported yet" in merge.conflicts[0].message
    assert merge.conflicts[0].message.startswith("table s.a: ")


@pytest.mark.parametrize("dropper_is_ours", [True, False])
def test_namespace_dropped_and_an_entry_created_in_it(dropper_is_ours: bool) -> None:
    base: Tree = {S: namespace("n")}
    sides: list[Tree] = [{}, {S: namespace("n"), A: table("1")}]
    ours, theirs = sides if dropper_is_ours else reversed(sides)
    merge = merged(base, ours, theirs)
    assert reasons(merge) == [("s.a", "namespace-dropped")]
    said = (merge.conflicts[0].ours, merge.conflicts[0].theirs)
    assert said == (("namespace dropped", "created") if dropper_is_ours else ("created", "namespace dropped"))


def test_namespace_dropped_and_a_namespace_created_deep_inside() -> None:
    base: Tree = {S: namespace("n")}
    inner: Tree = {S: namespace("n"), ("s", "u"): namespace("m"), Identifier(("s", "u"), "a"): table("1")}
    assert reasons(merged(base, {}, inner)) == [("s.u", "namespace-dropped"), ("s.u.a", "namespace-dropped")]


def test_namespace_dropped_and_created_again_takes_entries() -> None:
    base: Tree = {S: namespace("n")}
    merge = merged(base, {S: namespace("n2")}, {S: namespace("n"), A: table("1")})
    assert merge == TreeMerge({A: table("1")})


def test_namespace_dropped_on_both_sides_and_used_on_one() -> None:
    base: Tree = {S: namespace("n")}
    inner: Tree = {("s", "u"): namespace("m")}
    assert merged(base, inner, {}) == TreeMerge()
    assert merged(base, {}, inner) == TreeMerge({("s", "u"): namespace("m")})


@pytest.mark.parametrize("dropper_is_ours", [True, False])
def test_namespace_dropped_and_changed_and_used(dropper_is_ours: bool) -> None:
    base: Tree = {S: namespace("n")}
    sides: list[Tree] = [{}, {S: namespace("n", a="1"), A: table("1")}]
    ours, theirs = sides if dropper_is_ours else reversed(sides)
    assert reasons(merged(base, ours, theirs)) == [("s", "deleted-and-changed"), ("s.a", "namespace-dropped")]


def test_nothing_follows_from_a_rename_that_is_open() -> None:
    base: Tree = {S: namespace("n"), A: table("1"), ("t",): namespace("m")}
    ours: Tree = {S: namespace("n"), ("t",): namespace("m"), Identifier(("t",), "a"): table("1")}
    theirs: Tree = {S: namespace("n"), B: table("1")}
    assert reasons(merged(base, ours, theirs)) == [("s.a", "renamed-differently")]
    assert reasons(merged(base, theirs, ours)) == [("s.a", "renamed-differently")]


def test_namespace_properties_merge_one_by_one() -> None:
    base: Tree = {S: namespace("n", a="1", b="1")}
    merge = merged(base, {S: namespace("n", a="2", b="1", c="3")}, {S: namespace("n", a="1", d="4")})
    assert merge == TreeMerge({S: namespace("n", a="2", c="3", d="4")})


def test_a_property_changed_differently() -> None:
    base: Tree = {S: namespace("n", a="1", b="1")}
    merge = merged(base, {S: namespace("n", a="2", b="2")}, {S: namespace("n", b="3")})
    assert reasons(merge) == [("s", "property-changed")] * 2
    assert [(c.ours, c.theirs) for c in merge.conflicts] == [("'2'", "not set"), ("'2'", "'3'")]


def test_all_conflicts_at_once() -> None:
    base: Tree = {A: table("1"), B: table("2"), C: table("3")}
    ours: Tree = {A: table("1", 2), C: table("3")}
    theirs: Tree = {A: table("1", 3), B: table("2", 2), C: table("3", 9)}
    assert reasons(merged(base, ours, theirs)) == [("s.a", "both-changed"), ("s.b", "deleted-and-changed")]


def test_sides_of_different_bases_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="same base"):
        merge_trees({A: (table("1"), table("1", 2))}, {A: (table("1", 7), table("1", 3))})


def test_an_entry_under_two_names_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="two names"):
        merge_trees({A: (None, table("1")), B: (None, table("1"))}, {})
