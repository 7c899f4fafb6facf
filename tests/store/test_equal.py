"""Law: whatever is done to them, memory and SQLite answer the same."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icefield.store.memory import MemoryStore
from icefield.store.port import DuplicateKey, Store
from icefield.store.records import CommitRecord, RefRecord, SessionRecord, SettingRecord
from icefield.store.sql.sqlite import open_sqlite

from .samples import commit, ref, session

NAMES = ["", "a", "A", "a\x00", "\u00e9", "\uffff", "\U0001f9ca"]
NUMBERS = [0, 1, 2, -1, 2**63 - 1, -(2**63)]

names, numbers = st.sampled_from(NAMES), st.sampled_from(NUMBERS)
maybe_numbers = st.one_of(st.none(), numbers)
refs = st.builds(ref, names, numbers, repo=st.sampled_from(["k", "lake"]), kind=st.sampled_from(["branch", "tag"]))
commits = st.builds(commit, st.integers(1, 6), id=names, parent=maybe_numbers, merged=maybe_numbers)
sessions = st.builds(session, names, closed=st.booleans(), transaction=st.one_of(st.none(), names), expires_ms=numbers)
records = st.one_of(refs, commits, sessions)


def question(kind: type, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    options = {
        "order_by": st.sampled_from([None, *fields]),
        "descending": st.booleans(),
        "limit": st.sampled_from([None, 0, 1, 3]),
        "at_most": st.one_of(
            st.none(),
            *(
                st.tuples(st.just(name), values.filter(lambda value: value is not None))
                for name, values in fields.items()
            ),
        ),
    }
    return st.tuples(
        st.just("find"), st.just(kind), st.fixed_dictionaries(options), st.fixed_dictionaries({}, optional=fields)
    )


questions = st.one_of(
    question(RefRecord, repo=st.sampled_from(["k", "lake"]), name=names, head=numbers),
    question(CommitRecord, id=names, parent=maybe_numbers, merged=maybe_numbers),
    question(SessionRecord, closed=st.booleans(), transaction=st.one_of(st.none(), names), expires_ms=numbers),
)
operations = st.one_of(
    st.tuples(st.sampled_from(["insert", "put"]), records),
    st.one_of(*(st.tuples(st.just("replace"), some, some) for some in (refs, commits, sessions))),
    st.tuples(st.just("get"), st.just(RefRecord), st.just("lake"), names),
    st.tuples(st.just("get"), st.just(CommitRecord), st.integers(0, 7)),
    st.tuples(st.just("delete"), st.just(RefRecord), st.just("lake"), names),
    st.tuples(st.just("get_many"), st.just(CommitRecord), st.lists(st.integers(0, 7), max_size=5)),
    st.tuples(st.just("delete_where"), st.just(SessionRecord), st.fixed_dictionaries({}, optional={"id": names})),
    st.tuples(st.just("next_id"), st.sampled_from(["a", "b"])),
    questions,
)
transactions = st.lists(st.tuples(st.lists(operations, max_size=8), st.booleans()), max_size=6)


class Undo(Exception):
    pass


def run(store: Store, transaction: list[Any], keep: bool) -> list[Any]:
    answers: list[Any] = []
    try:
        with store.write() as writer:
            for name, *arguments in transaction:
                options: dict[str, Any] = {}
                while isinstance(arguments[-1], dict):
                    options |= arguments.pop()
                try:
                    answers.append(getattr(writer, name)(*arguments, **options))
                except (DuplicateKey, ValueError) as error:
                    answers.append(type(error))
            if not keep:
                raise Undo
    except Undo:
        pass
    with store.read() as reader:
        answers.extend(reader.find(kind) for kind in (RefRecord, CommitRecord, SessionRecord, SettingRecord))
    return answers


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(transactions)
def test_memory_and_sqlite_answer_the_same(history: list[tuple[list[Any], bool]]) -> None:
    memory = MemoryStore()
    with tempfile.TemporaryDirectory() as folder:
        sqlite = open_sqlite(Path(folder) / "store.db")
        try:
            for transaction, keep in history:
                assert run(sqlite, transaction, keep) == run(memory, transaction, keep)
        finally:
            sqlite.close()
