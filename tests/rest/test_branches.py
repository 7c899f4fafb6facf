"""Branches, tags, log, diff and merge over the management API."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.inprocess import Inprocess
from support.writer import Engine

REPO = "/api/v1/repos/lake"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Inprocess]:
    lake = Inprocess(tmp_path / "lake")
    assert lake.post("/v1/lake/namespaces", {"namespace": ["sales"]}).status == 200
    yield lake
    lake.close()


def table(lake: Inprocess, ref: str, name: str, *, version: int = 2, rows: int = 0) -> Engine:
    engine = Engine(lake, "lake" if ref == "main" else f"lake@{ref}", "sales", name)
    if lake.get(engine.path).status == 404:
        assert engine.create(version=version).status == 200
    if rows:
        assert engine.append_rows(rows).status == 200
    return engine


def branch(lake: Inprocess, name: str, start: str | None = None) -> Any:
    answer = lake.post(f"{REPO}/branches", {"name": name, "from": start})
    assert answer.status == 200, answer
    return answer.body


def merge(lake: Inprocess, source: str, into: str, **more: Any) -> Any:
    return lake.post(f"{REPO}/merge", {"from": source, "into": into, **more})


def log(lake: Inprocess, ref: str = "main", **query: Any) -> list[dict[str, Any]]:
    asked = "&".join(f"{key}={value}" for key, value in {"ref": ref, **query}.items())
    found: list[dict[str, Any]] = lake.get(f"{REPO}/log?{asked}").body["commits"]
    return found


def head(lake: Inprocess, ref: str = "main") -> str:
    return str(log(lake, ref, limit=1)[0]["id"])


def add_column(engine: Engine, name: str) -> Any:
    meta = engine.load()
    current = next(s for s in meta["schemas"] if s["schema-id"] == meta["current-schema-id"])
    field = {"id": meta["last-column-id"] + 1, "name": name, "required": False, "type": "int"}
    schema = {**current, "schema-id": len(meta["schemas"]), "fields": [*current["fields"], field]}
    return engine.post(
        {
            "requirements": [
                {"type": "assert-last-assigned-field-id", "last-assigned-field-id": meta["last-column-id"]}
            ],
            "updates": [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}],
        }
    )


def field_ids(engine: Engine) -> dict[str, int]:
    meta = engine.load()
    schema = next(s for s in meta["schemas"] if s["schema-id"] == meta["current-schema-id"])
    return {f["name"]: f["id"] for f in schema["fields"]}


# -- refs -------------------------------------------------------------------------------------------------------------


def test_refs_are_listed_with_kind_commit_and_default(lake: Inprocess) -> None:
    table(lake, "main", "orders", rows=1)
    branch(lake, "dev")
    assert lake.post(f"{REPO}/tags", {"name": "v1", "from": "dev"}).body["kind"] == "tag"
    found = {r["name"]: (r["kind"], r["commit"], r["default"]) for r in lake.get(f"{REPO}/refs").body["refs"]}
    at = head(lake)
    assert found == {"main": ("branch", at, True), "dev": ("branch", at, False), "v1": ("tag", at, False)}


def test_a_branch_begins_at_a_branch_a_tag_a_commit_or_an_abbreviated_commit(lake: Inprocess) -> None:
    table(lake, "main", "orders", rows=1)
    old = head(lake)
    lake.post(f"{REPO}/tags", {"name": "v1"})
    table(lake, "main", "orders", rows=2)
    for number, start in enumerate(("v1", old, old[:10])):
        assert branch(lake, f"b{number}", start)["commit"] == old
        assert Engine(lake, f"lake@b{number}", "sales", "orders").rows() == 1
    assert Engine(lake, f"lake@{old}", "sales", "orders").rows() == 1


@pytest.mark.parametrize("kind", ["branches", "tags"])
@pytest.mark.parametrize(
    ("body", "status", "names"),
    [
        ({}, 400, "name"),
        ({"name": 7}, 400, "name"),
        ({"name": ""}, 400, "name"),
        ({"name": "~x"}, 400, "~x"),
        ({"name": "a b"}, 400, "a b"),
        ({"name": "a/../b"}, 400, "a/../b"),
        ({"name": "x" * 500}, 400, "xxx"),
        ({"name": "main"}, 409, "main"),
        ({"name": "new", "from": "nowhere"}, 404, "nowhere"),
        ({"name": "new", "from": 7}, 400, "from"),
        ({"name": "new", "from": "00000000"}, 404, "00000000"),
    ],
)
def test_a_ref_that_cannot_be_made_names_what_is_wrong(
    lake: Inprocess, kind: str, body: dict[str, Any], status: int, names: str
) -> None:
    answer = lake.post(f"{REPO}/{kind}", body)
    assert answer.status == status, answer
    assert names in answer.error["message"]
    assert [r["name"] for r in lake.get(f"{REPO}/refs").body["refs"]] == ["main"]


def test_dropping_refs(lake: Inprocess) -> None:
    branch(lake, "dev")
    branch(lake, "team/feature.1")
    lake.post(f"{REPO}/tags", {"name": "v1"})
    assert "default" in lake.delete(f"{REPO}/branches/main").error["message"]
    assert lake.delete(f"{REPO}/branches/main").status == 400
    assert lake.delete(f"{REPO}/tags/dev").status == 400
    assert lake.delete(f"{REPO}/branches/v1").status == 400
    assert lake.delete(f"{REPO}/branches/nowhere").status == 404
    assert lake.delete(f"{REPO}/branches/team%2Ffeature.1").status == 200
    assert lake.delete(f"{REPO}/branches/dev").status == 200
    assert lake.delete(f"{REPO}/tags/v1").status == 200
    assert lake.delete(f"{REPO}/branches/dev").status == 404
    assert lake.get("/v1/lake@dev/namespaces").status == 404
    assert [r["name"] for r in lake.get(f"{REPO}/refs").body["refs"]] == ["main"]


def test_what_a_dropped_branch_held_stays_readable_by_commit_id(lake: Inprocess) -> None:
    branch(lake, "dev")
    table(lake, "dev", "orders", rows=5)
    at = head(lake, "dev")
    lake.delete(f"{REPO}/branches/dev")
    assert Engine(lake, f"lake@{at}", "sales", "orders").rows() == 5
    branch(lake, "back", at)
    assert Engine(lake, "lake@back", "sales", "orders").rows() == 5


def test_dropping_a_branch_with_open_sessions(lake: Inprocess) -> None:
    table(lake, "main", "orders")
    branch(lake, "dev")
    idle = lake.post("/api/v1/sessions", {"ref": "dev"}).body
    busy = lake.post("/api/v1/sessions", {"ref": "dev"}).body

    def ask(session: Any, verb: str, body: Any = None) -> Any:
        return lake.post(f"/api/v1/sessions/{session['id']}/{verb}", body, token=session["token"])

    ask(busy, "begin")
    inside = Engine(lake, busy["address"], "sales", "orders", token=busy["token"])
    assert inside.append_rows(7).status == 200
    assert lake.delete(f"{REPO}/branches/dev").status == 200
    assert "dev" in lake.get(f"/v1/{idle['address']}/namespaces", token=idle["token"]).error["message"]
    refused = ask(busy, "commit")
    assert 400 <= refused.status < 500, refused
    assert ask(busy, "rollback").status == 200, "a transaction can always be rolled back"
    for session in (idle, busy):
        assert ask(session, "checkout", {"ref": "main"}).status == 200
        assert Engine(lake, session["address"], "sales", "orders", token=session["token"]).rows() == 0


def test_a_branch_made_again_under_the_name_is_another_one(lake: Inprocess) -> None:
    """Else ids that the first one handed out would be handed out again, and what it lacks would look dropped."""
    main = table(lake, "main", "orders")
    branch(lake, "dev")
    session = lake.post("/api/v1/sessions", {"ref": "dev"}).body
    table(lake, "dev", "newer")
    lake.post(f"/api/v1/sessions/{session['id']}/begin", token=session["token"])
    inside = Engine(lake, session["address"], "sales", "orders", token=session["token"])
    assert add_column(inside, "inside").status == 200
    first = table(lake, "dev", "orders")
    assert add_column(first, "first").status == 200
    ids = {field_ids(first)["first"]}
    lake.delete(f"{REPO}/branches/dev")
    branch(lake, "dev", "main")
    assert lake.post(f"/api/v1/sessions/{session['id']}/commit", token=session["token"]).status == 409
    second = table(lake, "dev", "orders")
    assert add_column(second, "second").status == 200
    assert add_column(main, "on_main").status == 200
    ids |= {field_ids(second)["second"], field_ids(main)["on_main"]}
    assert len(ids) == 3, "three columns, three ids"


# -- log and diff -----------------------------------------------------------------------------------------------------


def test_log_pages_without_gaps_and_says_what_each_commit_did(lake: Inprocess) -> None:
    for number in range(5):
        table(lake, "main", f"t{number}")
    whole = log(lake)
    assert [c["operation"] for c in whole] == ["create-table"] * 5 + ["create-namespace", "create-repo"]
    assert whole[0]["entries"] == [{"name": "sales.t4", "change": "create"}]
    assert all(c["parents"] == [d["id"]] for c, d in itertools.pairwise(whole))
    times = [c["time-ms"] for c in whole]
    assert times == sorted(set(times), reverse=True), "graph time increases strictly"
    seen, before = [], ""
    while True:
        page = lake.get(f"{REPO}/log?limit=2{before}").body
        seen += page["commits"]
        if "next" not in page:
            break
        before = f"&before={page['next']}"
    assert seen == whole
    for bad in ("limit=0", "limit=1001", "limit=x", "limit=-1"):
        assert "limit" in lake.get(f"{REPO}/log?{bad}").error["message"]
    assert lake.get(f"{REPO}/log?ref=nowhere").status == 404
    assert lake.get(f"{REPO}/log?before=nowhere").status == 404
    assert lake.get("/api/v1/repos/nowhere/log").status == 404


def test_diff_names_what_was_created_dropped_changed_and_renamed(lake: Inprocess) -> None:
    for name in ("kept", "grown", "old_name", "gone"):
        table(lake, "main", name, rows=2)
    branch(lake, "dev")
    table(lake, "dev", "grown", rows=3)
    table(lake, "dev", "new")
    lake.delete("/v1/lake@dev/namespaces/sales/tables/gone")
    rename = {
        "source": {"namespace": ["sales"], "name": "old_name"},
        "destination": {"namespace": ["sales"], "name": "new_name"},
    }
    lake.post("/v1/lake@dev/tables/rename", rename)
    lake.post("/v1/lake@dev/namespaces", {"namespace": ["extra"]})
    found = {e["name"]: e for e in lake.get(f"{REPO}/diff?from=main&to=dev").body["entries"]}
    assert {name: e["change"] for name, e in found.items()} == {
        "sales.grown": "changed",
        "sales.new": "created",
        "sales.gone": "dropped",
        "sales.new_name": "renamed",
        "extra": "created",
    }
    assert found["sales.new_name"]["from-name"] == "sales.old_name"
    assert found["sales.grown"]["from"]["snapshot-id"] != found["sales.grown"]["to"]["snapshot-id"]
    back = {e["name"]: e["change"] for e in lake.get(f"{REPO}/diff?from=dev&to=main").body["entries"]}
    assert back["sales.new"] == "dropped"
    assert back["sales.gone"] == "created"
    assert lake.get(f"{REPO}/diff?from=dev&to=dev").body["entries"] == []
    assert lake.get(f"{REPO}/diff?from=nowhere&to=dev").status == 404


# -- merge ------------------------------------------------------------------------------------------------------------


def test_fast_forward_then_nothing_to_do(lake: Inprocess) -> None:
    table(lake, "main", "orders")
    branch(lake, "dev")
    table(lake, "dev", "orders", rows=4)
    assert merge(lake, "dev", "main", **{"dry-run": True}).body["result"] == "fast-forward"
    assert table(lake, "main", "orders").rows() == 0
    answer = merge(lake, "dev", "main").body
    assert (answer["result"], answer["commit"]) == ("fast-forward", head(lake, "dev"))
    assert table(lake, "main", "orders").rows() == 4
    assert merge(lake, "dev", "main").body["result"] == "nothing-to-do"
    assert merge(lake, "main", "dev").body["result"] == "nothing-to-do"


def test_a_real_merge_takes_both_sides_and_records_both_parents(lake: Inprocess) -> None:
    table(lake, "main", "a", rows=1)
    table(lake, "main", "b", rows=1)
    branch(lake, "dev")
    table(lake, "main", "a", rows=10)
    table(lake, "dev", "b", rows=100)
    table(lake, "dev", "c", rows=5)
    before = head(lake)
    trial = merge(lake, "dev", "main", **{"dry-run": True}).body
    assert (trial["result"], sorted(trial["entries"])) == ("merged", ["sales.b", "sales.c"])
    assert head(lake) == before
    answer = merge(lake, "dev", "main", message="the merge").body
    newest = log(lake)[0]
    assert newest["id"] == answer["commit"]
    assert newest["parents"] == [before, head(lake, "dev")]
    assert (newest["message"], newest["operation"]) == ("the merge", "merge")
    assert [table(lake, "main", name).rows() for name in "abc"] == [11, 101, 5]
    assert [table(lake, "dev", name).rows() for name in "ab"] == [1, 101], "the other branch does not move"


def test_a_merge_asked_for_again_answers_its_first_outcome(lake: Inprocess) -> None:
    table(lake, "main", "orders")
    branch(lake, "dev")
    table(lake, "dev", "orders", rows=4)
    table(lake, "main", "other")
    first = merge(lake, "dev", "main", id="merge-1").body
    table(lake, "dev", "orders", rows=4)
    table(lake, "main", "other", rows=1)
    at = head(lake)
    assert merge(lake, "dev", "main", id="merge-1").body == first
    assert head(lake) == at
    assert merge(lake, "dev", "main", id="merge-2").body["result"] == "merged"
    assert table(lake, "main", "orders").rows() == 8


def test_every_conflict_is_listed_at_once_and_nothing_moves(lake: Inprocess) -> None:
    for name in ("both", "dropped_here", "dropped_there", "renamed", "fine"):
        table(lake, "main", name, rows=1)
    lake.post("/v1/lake/namespaces", {"namespace": ["empty"]})
    branch(lake, "dev")
    tables = "namespaces/sales/tables"

    def rename(prefix: str, source: str, target: str) -> None:
        spots = [{"namespace": ["sales"], "name": name} for name in (source, target)]
        assert lake.post(f"/v1/{prefix}/tables/rename", {"source": spots[0], "destination": spots[1]}).status == 204

    for ref in ("main", "dev"):
        table(lake, ref, "both", rows=1)
        table(lake, ref, "made_on_both")
        rename("lake" if ref == "main" else "lake@dev", "renamed", f"renamed_on_{ref}")
    lake.delete(f"/v1/lake/{tables}/dropped_here")
    table(lake, "dev", "dropped_here", rows=1)
    lake.delete(f"/v1/lake@dev/{tables}/dropped_there")
    table(lake, "main", "dropped_there", rows=1)
    lake.delete("/v1/lake/namespaces/empty")
    assert lake.post("/v1/lake@dev/namespaces/empty/tables", _create("inside")).status == 200
    table(lake, "dev", "fine", rows=1)
    before = head(lake)
    expected = {
        ("sales.both", "both-changed"),
        ("sales.made_on_both", "created-on-both"),
        ("sales.renamed", "renamed-differently"),
        ("sales.dropped_here", "deleted-and-changed"),
        ("sales.dropped_there", "deleted-and-changed"),
        ("empty.inside", "namespace-dropped"),
    }
    for more in ({"dry-run": True}, {}):
        answer = merge(lake, "dev", "main", **more)
        assert answer.status == 409
        assert {(c["entry"], c["reason"]) for c in answer.error["conflicts"]} == expected
        for conflict in answer.error["conflicts"]:
            assert conflict["entry"] in conflict["message"]
            assert conflict["ours"]
            assert conflict["theirs"]
    assert head(lake) == before
    assert table(lake, "main", "fine").rows() == 1


def _create(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "schema": {"type": "struct", "fields": [{"id": 1, "name": "i", "required": False, "type": "int"}]},
    }


def test_rename_on_one_side_and_change_on_the_other_are_both_taken(lake: Inprocess) -> None:
    table(lake, "main", "orders", rows=1)
    branch(lake, "dev")
    spots = [{"namespace": ["sales"], "name": name} for name in ("orders", "invoices")]
    lake.post("/v1/lake@dev/tables/rename", {"source": spots[0], "destination": spots[1]})
    table(lake, "main", "orders", rows=10)
    assert merge(lake, "dev", "main").body["result"] == "merged"
    assert lake.get("/v1/lake/namespaces/sales/tables/orders").status == 404
    assert table(lake, "main", "invoices").rows() == 11


def test_drop_and_recreate_is_another_entry(lake: Inprocess) -> None:
    table(lake, "main", "orders", rows=1)
    branch(lake, "dev")
    lake.delete("/v1/lake@dev/namespaces/sales/tables/orders")
    table(lake, "dev", "orders", rows=2)
    table(lake, "main", "orders", rows=10)
    answer = merge(lake, "dev", "main")
    assert answer.status == 409
    assert {c["entry"] for c in answer.error["conflicts"]} == {"sales.orders"}


def test_properties_of_a_namespace_merge_one_by_one(lake: Inprocess) -> None:
    path = "namespaces/sales/properties"
    lake.post(f"/v1/lake/{path}", {"updates": {"owner": "a", "x": "1"}})
    branch(lake, "dev")
    lake.post(f"/v1/lake/{path}", {"updates": {"owner": "b"}})
    lake.post(f"/v1/lake@dev/{path}", {"updates": {"y": "2"}, "removals": ["x"]})
    assert merge(lake, "dev", "main").body["result"] == "merged"
    assert lake.get("/v1/lake/namespaces/sales").body["properties"] == {"owner": "b", "y": "2"}
    lake.post(f"/v1/lake/{path}", {"updates": {"owner": "c"}})
    lake.post(f"/v1/lake@dev/{path}", {"updates": {"owner": "d"}})
    answer = merge(lake, "dev", "main")
    assert [c["reason"] for c in answer.error["conflicts"]] == ["property-changed"]


def test_criss_cross_merges_are_named_or_right(lake: Inprocess) -> None:
    for name in "ab":
        table(lake, "main", name, rows=1)
    branch(lake, "dev")
    table(lake, "main", "a", rows=10)
    table(lake, "dev", "b", rows=100)
    branch(lake, "main_before", "main")
    branch(lake, "dev_before", "dev")
    assert merge(lake, "dev_before", "main").body["result"] == "merged"
    assert merge(lake, "main_before", "dev").body["result"] == "merged"
    assert [table(lake, ref, name).rows() for ref in ("main", "dev") for name in "ab"] == [11, 101, 11, 101]
    table(lake, "dev", "c", rows=7)
    both_ways = merge(lake, "dev", "main")
    assert both_ways.status == 200, "a and b are the same on both sides"
    assert [table(lake, "main", name).rows() for name in "abc"] == [11, 101, 7]


def test_criss_cross_with_a_change_to_a_disputed_table_is_a_conflict_of_that_name(lake: Inprocess) -> None:
    for name in "ab":
        table(lake, "main", name, rows=1)
    branch(lake, "dev")
    table(lake, "main", "a", rows=10)
    table(lake, "dev", "b", rows=100)
    branch(lake, "main_before", "main")
    branch(lake, "dev_before", "dev")
    merge(lake, "dev_before", "main")
    merge(lake, "main_before", "dev")
    table(lake, "dev", "a", rows=1000)
    before = head(lake)
    answer = merge(lake, "dev", "main")
    if answer.status == 409:
        assert {(c["entry"], c["reason"]) for c in answer.error["conflicts"]} <= {
            ("sales.a", "criss-cross"),
            ("sales.a", "both-changed"),
        }
        assert head(lake) == before
    else:
        assert [table(lake, "main", name).rows() for name in "ab"] == [1011, 101]


def test_three_rounds_of_merges_in_both_directions(lake: Inprocess) -> None:
    table(lake, "main", "here", rows=1)
    table(lake, "main", "there", rows=1)
    branch(lake, "dev")
    for _ in range(3):
        table(lake, "main", "here", rows=1)
        table(lake, "dev", "there", rows=1)
        assert merge(lake, "dev", "main").body["result"] == "merged"
        assert merge(lake, "main", "dev").body["result"] == "fast-forward"
    for ref in ("main", "dev"):
        assert [table(lake, ref, name).rows() for name in ("here", "there")] == [4, 4]


def test_a_tag_and_a_commit_can_be_merged_from_and_never_into(lake: Inprocess) -> None:
    table(lake, "main", "orders")
    branch(lake, "dev")
    table(lake, "dev", "orders", rows=3)
    lake.post(f"{REPO}/tags", {"name": "v1", "from": "dev"})
    assert merge(lake, "main", "v1").status == 403
    assert merge(lake, "main", head(lake)).status == 403
    assert merge(lake, "v1", "main").body["result"] == "fast-forward"
    assert merge(lake, head(lake, "dev"), "main").body["result"] == "nothing-to-do"


@pytest.mark.parametrize(
    ("body", "status", "names"),
    [
        ({}, 400, "from"),
        ({"from": "dev"}, 400, "into"),
        ({"from": 1, "into": "main"}, 400, "from"),
        ({"from": "dev", "into": []}, 400, "into"),
        ({"from": "dev", "into": "main", "dry-run": "yes"}, 400, "dry-run"),
        ({"from": "dev", "into": "main", "id": 1}, 400, "id"),
        ({"from": "dev", "into": "main", "message": {}}, 400, "message"),
        ({"from": "nowhere", "into": "main"}, 404, "nowhere"),
        ({"from": "dev", "into": "nowhere"}, 404, "nowhere"),
    ],
)
def test_a_malformed_merge_names_the_field(lake: Inprocess, body: dict[str, Any], status: int, names: str) -> None:
    branch(lake, "dev")
    answer = lake.post(f"{REPO}/merge", body)
    assert answer.status == status, answer
    assert names in answer.error["message"]


# -- ids --------------------------------------------------------------------------------------------------------------


def test_two_branches_hand_out_disjoint_field_ids_also_after_merges(lake: Inprocess) -> None:
    engines = {"main": table(lake, "main", "orders", version=3)}
    for name in ("dev", "fix"):
        branch(lake, name)
        engines[name] = table(lake, name, "orders")
    known: dict[int, str] = {}

    def grow(ref: str, column: str) -> None:
        assert add_column(engines[ref], column).status == 200
        id_ = field_ids(engines[ref])[column]
        assert known.setdefault(id_, column) == column, f"id {id_} is {known[id_]}'s"

    grow("dev", "a")
    grow("main", "b")
    grow("fix", "c")
    assert field_ids(engines["main"])["b"] == 3, "main's ids go on as if there were no branches"
    branch(lake, "fix2", "fix")
    engines["fix2"] = table(lake, "fix2", "orders")
    grow("fix2", "d")
    assert merge(lake, "fix2", "fix").body["result"] == "fast-forward"
    grow("fix2", "e")
    grow("fix", "f")
    grow("dev", "g")
    branch(lake, "dev2", "dev")
    engines["dev2"] = table(lake, "dev2", "orders")
    grow("dev2", "h")
    assert merge(lake, "dev2", "dev").body["result"] == "fast-forward"
    for ref in engines:
        grow(ref, f"last_{ref}")


def test_row_ids_of_two_branches_are_disjoint_also_after_a_merge(lake: Inprocess) -> None:
    main = table(lake, "main", "orders", version=3, rows=10)
    branch(lake, "dev")
    dev = table(lake, "dev", "orders", rows=5)
    branch(lake, "fix")
    fix = table(lake, "fix", "orders", rows=6)
    spans = {}

    def note(engine: Engine) -> None:
        for path, file in engine.live_files().items():
            span = (file.first_row_id, file.first_row_id + file.record_count)
            assert spans.setdefault(path, span) == span
        ordered = sorted(spans.values())
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(ordered))

    for engine in (main, dev, fix):
        note(engine)
    assert merge(lake, "dev", "main").body["result"] == "fast-forward"
    for engine in (main, dev, fix, main, dev):
        assert engine.append_rows(3).status == 200
        note(engine)


def test_a_snapshot_posted_at_two_refs_lands_at_one(lake: Inprocess) -> None:
    """One snapshot id never names two contents."""
    main = table(lake, "main", "orders", version=3, rows=1)
    branch(lake, "dev")
    dev = table(lake, "dev", "orders")
    dev.load()
    meta = main.load()
    body = main.body(meta, main.append(meta, 3))
    session = lake.post("/api/v1/sessions", {}).body
    lake.post(f"/api/v1/sessions/{session['id']}/begin", token=session["token"])
    inside = Engine(lake, session["address"], "sales", "orders", token=session["token"])
    inside.load()
    assert inside.post(body).status == 200
    assert main.post(body).status == 200
    assert main.post(body).status == 200, "asked again, it has landed"
    refused = dev.post(body)
    assert refused.status == 409
    assert refused.error["conflicts"][0]["reason"] == "snapshot-id-taken"
    refused = lake.post(f"/api/v1/sessions/{session['id']}/commit", token=session["token"])
    assert refused.status == 409
    assert {c["reason"] for c in refused.error["conflicts"]} == {"snapshot-id-taken"}
    assert (main.rows(), dev.rows()) == (4, 1)


@pytest.mark.parametrize("version", [2, 3])
def test_what_a_rebase_wrote_in_a_transaction_and_lands_is_not_queued(lake: Inprocess, version: int) -> None:
    main = table(lake, "main", "orders", version=version, rows=1)
    session = lake.post("/api/v1/sessions", {}).body
    lake.post(f"/api/v1/sessions/{session['id']}/begin", token=session["token"])
    inside = Engine(lake, session["address"], "sales", "orders", token=session["token"])
    meta = inside.load()
    for body in [inside.body(meta, inside.append(meta, size)) for size in (2, 3)]:
        assert inside.post(body).status == 200
    lake.post(f"/api/v1/sessions/{session['id']}/commit", token=session["token"])
    assert main.rows() == 6
    queued = {file["location"] for file in lake.get(f"{REPO}/deletions").body["files"]}
    lists = {snapshot["manifest-list"] for snapshot in main.load()["snapshots"]}
    assert len(lists) == 3
    assert not lists & queued
