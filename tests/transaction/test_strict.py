"""Strict writes: what depends on rows that were read lands only where nobody has touched them since."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.inprocess import Inprocess
from support.writer import SCHEMA, Engine

Json = dict[str, Any]


@pytest.fixture(params=[2, 3])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Inprocess]:
    lake = Inprocess(tmp_path / "lake")
    lake.post("/v1/lake/namespaces", {"namespace": ["sales"]})
    for name in ("orders", "customers"):
        assert main(lake, name).create(version=request.param).status == 200
        for size in (10, 20):
            assert main(lake, name).append_rows(size).status == 200
    yield lake
    lake.close()


def main(lake: Inprocess, table: str = "orders") -> Engine:
    return Engine(lake, "lake", "sales", table)


class Session:
    """As the SQL door uses one: every statement is marked, and says whether it is strict."""

    def __init__(self, lake: Inprocess, *, begin: bool = True) -> None:
        self.lake = lake
        told = lake.post("/api/v1/sessions", {}).body
        self.path, self.token, self.address = f"/api/v1/sessions/{told['id']}", told["token"], told["address"]
        if begin:
            self.ok("begin")

    def ask(self, verb: str, body: Json | None = None) -> Any:
        return self.lake.post(f"{self.path}/{verb}", body, token=self.token)

    def ok(self, verb: str, body: Json | None = None) -> Json:
        answer = self.ask(verb, body)
        assert answer.status == 200, answer
        found: Json = answer.body
        return found

    def statement(self, write: Callable[[Engine, Json], Json], *, strict: bool = True, table: str = "orders") -> Any:
        number = self.ok("statements", {"strict": strict})["statement"]
        engine = Engine(self.lake, self.address, "sales", table, token=self.token)
        answer = engine.post(write(engine, engine.load()))
        self.lake.delete(f"{self.path}/statements/{number}", token=self.token)
        return answer

    def must(self, *args: Any, **kwargs: Any) -> None:
        answer = self.statement(*args, **kwargs)
        assert answer.status == 200, answer

    def rows(self, table: str = "orders") -> int:
        return Engine(self.lake, self.address, "sales", table, token=self.token).rows()

    def conflict(self, table: str = "sales.orders") -> None:
        """COMMIT is refused, and the answer says because of which table."""
        answer = self.ask("commit")
        assert answer.status == 409, answer
        assert {c["entry"] for c in answer.error["conflicts"]} == {table}
        assert table in answer.error["message"]


def append(engine: Engine, meta: Json) -> Json:
    return engine.body(meta, engine.append(meta, 5))


def overwrite(engine: Engine, meta: Json) -> Json:
    return engine.body(meta, engine.delete(meta, min(engine.live(meta))))


def delete_rows(engine: Engine, meta: Json) -> Json:
    return engine.body(meta, engine.row_delta(meta, 1))


def compact(engine: Engine, meta: Json) -> Json:
    return engine.body(meta, engine.merge_only(meta))


def truncate(engine: Engine, meta: Json) -> Json:
    return engine.body(meta, engine.delete(meta, *engine.live(meta)))


def set_property(engine: Engine, meta: Json, key: str = "color", value: str = "blue") -> Json:
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": {key: value}}]}


def add_column(name: str) -> Callable[[Engine, Json], Json]:
    def add(engine: Engine, meta: Json) -> Json:
        current = next(s for s in meta["schemas"] if s["schema-id"] == meta["current-schema-id"])
        field = {"id": meta["last-column-id"] + 1, "name": name, "required": False, "type": "int"}
        schema = {**current, "schema-id": len(meta["schemas"]), "fields": [*current["fields"], field]}
        return {
            "requirements": [
                {"type": "assert-current-schema-id", "current-schema-id": meta["current-schema-id"]},
                {"type": "assert-last-assigned-field-id", "last-assigned-field-id": meta["last-column-id"]},
            ],
            "updates": [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}],
        }

    return add


def other_writer(lake: Inprocess, write: Callable[[Engine, Json], Json], table: str = "orders") -> None:
    engine = main(lake, table)
    answer = engine.post(write(engine, engine.load()))
    assert answer.status == 200, answer


def columns(engine: Engine) -> list[str]:
    meta = engine.load()
    return [f["name"] for s in meta["schemas"] if s["schema-id"] == meta["current-schema-id"] for f in s["fields"]]


OTHERS = [append, overwrite, delete_rows, compact, truncate, add_column("theirs")]
MINE = [append, overwrite, delete_rows, truncate]


@pytest.mark.parametrize("other", OTHERS)
def test_several_strict_statements_conflict_with_any_write_to_their_table(lake: Inprocess, other: Any) -> None:
    session = Session(lake)
    session.must(overwrite)
    session.must(append)
    other_writer(lake, other)
    session.must(delete_rows)
    before = (main(lake).rows(), main(lake).load()["snapshots"])
    session.conflict()
    assert (main(lake).rows(), main(lake).load()["snapshots"]) == before
    assert session.ask("begin").status == 200, "the transaction is over"


@pytest.mark.parametrize("mine", MINE)
@pytest.mark.parametrize("other", OTHERS)
def test_one_strict_statement_conflicts_inside_and_outside_a_transaction(
    lake: Inprocess, mine: Any, other: Any
) -> None:
    session = Session(lake)
    session.must(mine)
    other_writer(lake, other)
    session.conflict()

    other_writer(lake, append)
    alone = Session(lake, begin=False)

    def overtaken(engine: Engine, meta: Json) -> Json:
        body = mine(engine, meta)
        other_writer(lake, add_column("again") if other is OTHERS[-1] else append)
        return body

    rows = main(lake).rows()
    answer = alone.statement(overtaken)
    assert (answer.status, answer.error["type"]) == (400, "CommitFailedException"), answer
    assert answer.error["message"].startswith("conflict: table sales.orders")
    assert answer.error["conflicts"][0]["entry"] == "sales.orders"
    assert main(lake).rows() == rows + (0 if other is OTHERS[-1] else 5)
    again = alone.statement(append)
    assert again.status == 200, "run again, it sees the table as it is"


def test_what_changes_another_table_stands_in_nobodys_way(lake: Inprocess) -> None:
    session = Session(lake)
    session.must(overwrite)
    other_writer(lake, append, "customers")
    session.must(delete_rows)
    other_writer(lake, truncate, "customers")
    inside = session.rows()
    assert session.ok("commit")["result"] == "committed"
    assert main(lake).rows() == inside
    assert main(lake, "customers").rows() == 0


def test_two_strict_tables_and_both_conflicts_are_told(lake: Inprocess) -> None:
    session = Session(lake)
    session.must(delete_rows)
    session.must(delete_rows, table="customers")
    other_writer(lake, append)
    other_writer(lake, append, "customers")
    answer = session.ask("commit")
    assert {c["entry"] for c in answer.error["conflicts"]} == {"sales.orders", "sales.customers"}


@pytest.mark.parametrize("strict_first", [False, True])
def test_one_strict_statement_makes_the_transactions_change_of_the_table_strict(
    lake: Inprocess, strict_first: bool
) -> None:
    session = Session(lake)
    for strict in (strict_first, not strict_first):
        session.must(append, strict=strict)
    session.must(append, strict=False, table="customers")
    other_writer(lake, append, "customers")
    other_writer(lake, append)
    session.conflict()


def test_a_plain_insert_alone_lands_beside_others(lake: Inprocess) -> None:
    session = Session(lake)
    session.must(append, strict=False)
    session.must(append, strict=False)
    other_writer(lake, append)
    assert session.ok("commit")["result"] == "committed"
    assert main(lake).rows() == 45


def test_rolled_back_to_before_the_strict_statement_the_rest_is_an_append_again(lake: Inprocess) -> None:
    session = Session(lake)
    session.must(append, strict=False)
    session.ok("savepoints", {"name": "s"})
    session.must(overwrite)
    session.must(append)
    session.ok("savepoints/s/rollback")
    session.must(append, strict=False)
    other_writer(lake, append)
    assert session.ok("commit")["result"] == "committed"
    assert main(lake).rows() == 45

    session.ok("begin")
    session.must(append, strict=True)
    session.ok("savepoints", {"name": "s"})
    session.must(append, strict=False)
    session.ok("savepoints/s/rollback")
    other_writer(lake, append)
    session.conflict()


def test_a_strict_statement_that_renamed_its_table_conflicts_too(lake: Inprocess) -> None:
    spots = [{"namespace": ["sales"], "name": name} for name in ("orders", "moved")]
    session = Session(lake)
    session.must(append)
    number = session.ok("statements")["statement"]
    body = {"source": spots[0], "destination": spots[1]}
    assert lake.post(f"/v1/{session.address}/tables/rename", body, token=session.token).status == 204
    lake.delete(f"{session.path}/statements/{number}", token=session.token)
    other_writer(lake, append)
    session.conflict()

    session = Session(lake)
    session.must(append)
    lake.post("/v1/lake/tables/rename", body)
    other_writer(lake, append, "moved")
    session.conflict("sales.moved")

    session = Session(lake)
    session.must(append, table="moved")
    assert lake.delete("/v1/lake/namespaces/sales/tables/moved").status == 204
    main(lake, "moved").create()
    session.conflict("sales.moved")


def test_truncate_lands_and_leaves_no_row(lake: Inprocess) -> None:
    alone = Session(lake, begin=False)
    alone.must(truncate)
    assert main(lake).rows() == 0
    session = Session(lake)
    session.must(append)
    session.must(truncate)
    session.must(append)
    assert session.rows() == 5
    other_writer(lake, append, "customers")
    assert session.ok("commit")["result"] == "committed"
    assert main(lake).rows() == 5
    meta = main(lake).load()
    assert [s["summary"]["operation"] for s in meta["snapshots"]][-3:] == ["append", "delete", "append"]


# -- ALTER TABLE ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [append, overwrite, delete_rows, compact, truncate])
def test_a_new_column_lands_beside_what_others_do_to_the_rows(lake: Inprocess, other: Any) -> None:
    session = Session(lake)
    session.must(add_column("mine"), strict=False)
    other_writer(lake, other)
    rows = main(lake).rows()
    assert session.ok("commit")["result"] == "committed"
    assert (columns(main(lake)), main(lake).rows()) == (["id", "s", "mine"], rows)


def test_a_new_column_and_rows_of_it_land_where_the_table_stayed_and_are_a_conflict_where_it_moved(
    lake: Inprocess,
) -> None:
    """What adds a column and rows is no append any more: nothing proves yet that it commutes."""
    for other, lands in (("customers", True), ("orders", False)):
        session = Session(lake)
        session.must(add_column(f"beside_{other}"), strict=False)
        session.must(append, strict=False)
        other_writer(lake, append, other)
        if lands:
            assert session.ok("commit")["result"] == "committed"
            meta = main(lake).load()
            assert meta["snapshots"][-1]["schema-id"] == meta["current-schema-id"]
        else:
            session.conflict()
    assert (columns(main(lake)), main(lake).rows()) == (["id", "s", "beside_customers"], 40)


@pytest.mark.parametrize("name", ["theirs", "mine"])
def test_a_new_column_conflicts_with_another_one(lake: Inprocess, name: str) -> None:
    session = Session(lake)
    session.must(add_column("mine"), strict=False)
    other_writer(lake, add_column(name))
    session.conflict()
    assert columns(main(lake)) == ["id", "s", name]


def drop_column(engine: Engine, meta: Json) -> Json:
    current = next(s for s in meta["schemas"] if s["schema-id"] == meta["current-schema-id"])
    schema = {**current, "schema-id": len(meta["schemas"]), "fields": current["fields"][:1]}
    return {
        "requirements": [{"type": "assert-current-schema-id", "current-schema-id": meta["current-schema-id"]}],
        "updates": [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}],
    }


def test_a_dropped_column_conflicts_with_a_new_one_either_way(lake: Inprocess) -> None:
    for mine, theirs in ((drop_column, add_column("x")), (add_column("y"), drop_column)):
        session = Session(lake)
        session.must(mine, strict=False)
        other_writer(lake, theirs)
        session.conflict()
    assert len(SCHEMA["fields"]) == 2


# -- the rules that a table remembers ---------------------------------------------------------------------------------

RULES = ["icefield.check.positive", "icefield.unique.u", "icefield.primary-key.p"]
NO_RULES = ["icefield.default.1", "icefield.pg-type.1", "icefield.sequence.1", "comment", "color"]


def rule(key: str, value: str = "1") -> Callable[[Engine, Json], Json]:
    return lambda engine, meta: set_property(engine, meta, key, value)


@pytest.mark.parametrize("key", RULES)
def test_rows_never_land_under_a_rule_they_were_not_checked_by(lake: Inprocess, key: str) -> None:
    for strict in (False, True):
        session = Session(lake)
        session.must(append, strict=strict)
        other_writer(lake, rule(key, f"in a transaction, {strict}"))
        session.conflict()

        def overtaken(engine: Engine, meta: Json, value: str = f"alone, {strict}") -> Json:
            body = append(engine, meta)
            other_writer(lake, rule(key, value))
            return body

        alone = Session(lake, begin=False)
        answer = alone.statement(overtaken, strict=strict)
        assert answer.status == 400, answer
        assert "conflict: " in answer.error["message"]
        assert key in answer.error["message"]
        assert alone.statement(append, strict=strict).status == 200, "run again, it is checked by the new rule"
    assert main(lake).rows() == 40


@pytest.mark.parametrize("key", NO_RULES)
def test_other_properties_are_no_rows_business(lake: Inprocess, key: str) -> None:
    session = Session(lake)
    session.must(append, strict=False)
    other_writer(lake, rule(key))
    assert session.ok("commit")["result"] == "committed"

    def overtaken(engine: Engine, meta: Json) -> Json:
        body = append(engine, meta)
        other_writer(lake, rule(key, "2"))
        return body

    assert Session(lake, begin=False).statement(overtaken, strict=False).status == 200
    assert main(lake).rows() == 40


def test_a_rule_lands_beside_another_rule_and_conflicts_with_its_own_name(lake: Inprocess) -> None:
    session = Session(lake)
    session.must(rule("icefield.check.a"), strict=False)
    other_writer(lake, rule("icefield.check.b"))
    assert session.ok("commit")["result"] == "committed"
    session.ok("begin")
    session.must(rule("icefield.check.c", "mine"), strict=False)
    other_writer(lake, rule("icefield.check.c", "theirs"))
    session.conflict()


def test_a_rule_that_was_proven_on_the_rows_is_strict_and_conflicts_with_new_ones(lake: Inprocess) -> None:
    session = Session(lake)
    session.must(rule("icefield.check.a"), strict=True)
    other_writer(lake, append)
    session.conflict()

    def overtaken(engine: Engine, meta: Json) -> Json:
        other_writer(lake, append)
        return set_property(engine, meta, "icefield.check.a")

    assert Session(lake, begin=False).statement(overtaken).status == 400
    assert "icefield.check.a" not in main(lake).load()["properties"]


@pytest.mark.parametrize("lake", [3], indirect=True)
def test_many_transactions_do_not_use_up_the_row_ids_of_a_table(lake: Inprocess) -> None:
    """Each takes a range of its own and leaves the branch a fresh one; neither grows with how many there were."""
    engine = main(lake)
    rounds = 40
    before = engine.load()["next-row-id"]
    for _ in range(rounds):
        session = Session(lake)
        session.must(append)
        session.ok("commit")
    assert engine.load()["next-row-id"] - before <= rounds * 2 * (1 << 32)
    assert engine.append_rows(5).status == 200
