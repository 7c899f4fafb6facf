"""What every store must do (``store/port.py``)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from icefield.store.port import DuplicateKey, Store
from icefield.store.records import (
    ALL_KINDS,
    CommitRecord,
    DeletionRecord,
    LandedRecord,
    RefRecord,
    SegmentRecord,
    SessionRecord,
    SettingRecord,
    StagedRecord,
    TransactionRecord,
)

from .samples import changed, commit, filled, ref, session

BIG = 2**63 - 1


def put(store: Store, *records: Any) -> None:
    with store.write() as writer:
        for record in records:
            writer.put(record)


def test_every_kind_comes_back_as_it_was_put(store: Store) -> None:
    for kind in ALL_KINDS:
        record = filled(kind)
        put(store, record)
        with store.read() as reader:
            assert reader.find(kind) == [record]
            assert reader.get(kind, *(getattr(record, name) for name in kind.KEY)) == record  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "record",
    [
        ref(name="a\x00b", id="", kind="\U0001f9ca é é"),
        commit(BIG, time_ms=-1, generation=0, parent=-(2**63), merged=None, root=2**53 + 1),
        commit(1, parent=None, details='{"a":"\\u0000"}', message="x" * 100_000),
        SegmentRecord(3, b""),
        SegmentRecord(3, bytes(range(256)) * 100),
        LandedRecord("e", "r", BIG, "d", 0),
        session("s", closed=True, transaction=None),
        session("s", closed=False, transaction=""),
    ],
    ids=lambda record: type(record).__name__,
)
def test_values_are_exact(store: Store, record: Any) -> None:
    put(store, record)
    with store.read() as reader:
        (found,) = reader.find(type(record))
    assert found == record
    assert [type(value) for value in vars_of(found)] == [type(value) for value in vars_of(record)]


def vars_of(record: Any) -> list[Any]:
    return [getattr(record, name) for name in record.__slots__]


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (ref(head=BIG + 1), ValueError),
        (ref(head="1"), TypeError),
        (ref(head=True), TypeError),
        (ref(head=None), TypeError),
        (ref(name=5), TypeError),
        (ref(name=None), TypeError),
        (ref(name="\ud800"), ValueError),
        (SegmentRecord(1, "text"), TypeError),  # type: ignore[arg-type]
        (session("s", closed=1), TypeError),
        ("not a record", TypeError),
    ],
    ids=str,
)
def test_a_record_that_is_not_what_its_fields_say_is_refused(store: Store, record: Any, error: type[Exception]) -> None:
    for act in ("insert", "put"):
        with pytest.raises(error), store.write() as writer:
            getattr(writer, act)(record)
    with store.read() as reader:
        assert reader.find(RefRecord) == []


def test_a_write_is_seen_after_it_and_not_before(store: Store) -> None:
    with store.write() as writer:
        writer.insert(ref())
        assert writer.get(RefRecord, "lake", "main") == ref()
        assert writer.find(RefRecord, repo="lake") == [ref()]
        with store.read() as reader:
            assert reader.get(RefRecord, "lake", "main") is None
            assert reader.find(RefRecord) == []
    with store.read() as reader:
        assert reader.get(RefRecord, "lake", "main") == ref()


def test_a_reader_stays_at_its_moment(store: Store) -> None:
    put(store, ref(head=1))
    with store.read() as reader:
        put(store, ref(head=2), ref("dev"))
        assert reader.get(RefRecord, "lake", "main") == ref(head=1)
        assert reader.find(RefRecord) == [ref(head=1)]
        with store.read() as inner:
            assert inner.get(RefRecord, "lake", "main") == ref(head=2)
        with store.write() as writer:
            writer.delete(RefRecord, "lake", "main")
        assert reader.get_many(SettingRecord, ["x"]) == {}
        assert reader.find(RefRecord) == [ref(head=1)]
    with store.read() as reader:
        assert reader.find(RefRecord) == [ref("dev")]


def test_an_exception_undoes_everything(store: Store) -> None:
    put(store, ref(head=1), ref("old"), SettingRecord("s", "1"))
    with store.write() as writer:
        writer.next_id("n")
    with pytest.raises(ZeroDivisionError), store.write() as writer:  # noqa: PT012 (all of this is to be undone)
        writer.put(ref(head=2))
        writer.insert(ref("new"))
        writer.replace(SettingRecord("s", "1"), SettingRecord("s", "2"))
        writer.delete(RefRecord, "lake", "old")
        writer.delete_where(SettingRecord, name="s")
        writer.next_id("n")
        raise ZeroDivisionError
    with store.read() as reader:
        assert reader.find(RefRecord) == [ref(head=1), ref("old")]
        assert reader.find(SettingRecord) == [SettingRecord("s", "1")]
    with store.write() as writer:
        assert writer.next_id("n") == 2


def test_insert_refuses_a_taken_key_and_the_transaction_goes_on(store: Store) -> None:
    put(store, ref(head=1))
    with store.write() as writer:
        with pytest.raises(DuplicateKey, match="main"):
            writer.insert(ref(head=2))
        writer.insert(ref("dev"))
        with pytest.raises(DuplicateKey):
            writer.insert(ref("dev"))
    with store.read() as reader:
        assert reader.find(RefRecord) == [ref("dev"), ref(head=1)]


def test_replace_is_a_compare_and_set_on_every_field(store: Store) -> None:
    now = session("s", transaction=None, closed=False, view=3)
    put(store, now)
    with store.write() as writer:
        for stale in (
            changed(now, transaction="t"),
            changed(now, transaction=""),
            changed(now, closed=True),
            changed(now, view=4),
            changed(now, token_hash="X"),
        ):
            assert not writer.replace(stale, changed(now, epoch=99))
        assert writer.find(SessionRecord) == [now]
        begun = changed(now, transaction="t", epoch=8)
        assert writer.replace(now, begun)
        assert not writer.replace(now, begun)
        assert writer.replace(begun, begun)
        assert not writer.replace(session("other"), session("other", view=1))
        assert writer.replace(begun, now)
    with store.read() as reader:
        assert reader.find(SessionRecord) == [now]


def test_replace_needs_one_key(store: Store) -> None:
    put(store, ref())
    with store.write() as writer:
        with pytest.raises(ValueError, match="one kind and key"):
            writer.replace(ref(), ref("dev"))
        with pytest.raises(ValueError, match="one kind and key"):
            writer.replace(ref(), commit(1))


def test_delete_says_whether_there_was_one(store: Store) -> None:
    put(store, ref("a"), ref("b"), ref("c", kind="tag"))
    with store.write() as writer:
        assert writer.delete(RefRecord, "lake", "a")
        assert not writer.delete(RefRecord, "lake", "a")
        assert writer.delete_where(RefRecord, kind="branch") == 1
        assert writer.delete_where(RefRecord, kind="branch") == 0
        assert writer.find(RefRecord) == [ref("c", kind="tag")]
        assert writer.delete_where(RefRecord) == 1


def test_delete_where_none(store: Store) -> None:
    put(store, session("a", transaction=None), session("b", transaction="t"))
    with store.write() as writer:
        assert writer.delete_where(SessionRecord, transaction=None, closed=False) == 1
        assert [found.id for found in writer.find(SessionRecord)] == ["b"]


def test_get_many_by_key(store: Store) -> None:
    put(store, *(commit(seq) for seq in range(1, 1200, 2)))
    with store.read() as reader:
        assert reader.get_many(CommitRecord, []) == {}
        assert reader.get_many(CommitRecord, [3, 2, 3]) == {3: commit(3)}
        found = reader.get_many(CommitRecord, range(1199, 0, -1))
        assert found == {seq: commit(seq) for seq in range(1, 1200, 2)}
        assert list(found) == list(range(1199, 0, -2))
        with pytest.raises(TypeError, match="one-column key"):
            reader.get_many(RefRecord, ["main"])


def test_find_orders_by_key_bytes(store: Store) -> None:
    names = ["", "B", "a", "ab", "b", "\u00e9", "e\u0301", "\U0001f9ca", "\uffff", "a\x00", "Z"]
    put(store, *(ref(name) for name in names), ref("a", repo="k"))
    with store.read() as reader:
        assert [found.name for found in reader.find(RefRecord, repo="lake")] == sorted(names, key=str.encode)
        assert reader.find(RefRecord)[0].repo == "k"
        assert [found.name for found in reader.find(RefRecord, repo="lake", descending=True, limit=2)] == [
            "\U0001f9ca",
            "\uffff",
        ]


def test_find_orders_by_a_field_and_then_by_key(store: Store) -> None:
    rows = [("a", 2), ("b", 1), ("c", 2), ("d", None), ("e", -5)]
    put(store, *(commit(seq, id=name, parent=parent) for seq, (name, parent) in enumerate(rows, 1)))
    with store.read() as reader:
        up = [found.id for found in reader.find(CommitRecord, order_by="parent")]
        assert up == ["d", "e", "b", "a", "c"]
        assert [found.id for found in reader.find(CommitRecord, order_by="parent", descending=True)] == up[::-1]
        assert [found.id for found in reader.find(CommitRecord, order_by="parent", limit=2)] == ["d", "e"]
        assert reader.find(CommitRecord, limit=0) == []


def test_find_by_equality_and_at_most(store: Store) -> None:
    put(
        store,
        session("a", expires_ms=10, closed=False, transaction=None),
        session("b", expires_ms=20, closed=False, transaction="t"),
        session("c", expires_ms=5, closed=True, transaction=None),
    )
    put(store, commit(1, parent=None), commit(2), commit(3))

    with store.read() as reader:

        def ids(**question: Any) -> list[str]:
            return [found.id for found in reader.find(SessionRecord, **question)]

        assert ids(closed=False) == ["a", "b"]
        assert ids(transaction=None) == ["a", "c"]
        assert ids(transaction="t") == ["b"]
        assert ids(closed=False, at_most=("expires_ms", 10)) == ["a"]
        assert ids(at_most=("expires_ms", 20), order_by="expires_ms") == ["c", "a", "b"]
        assert ids(at_most=("id", "b")) == ["a", "b"]
        assert ids(closed=True, transaction="t") == []
        assert [found.seq for found in reader.find(CommitRecord, at_most=("parent", 5))] == [2, 3]
        assert [found.seq for found in reader.find(CommitRecord, merged=None, parent=2)] == [3]


def test_questions_that_make_no_sense_are_refused(store: Store) -> None:
    with store.write() as writer:
        for question in ({"nam": 1}, {"order_by": "nam"}, {"at_most": ("nam", 1)}):
            with pytest.raises(TypeError, match="nam"):
                writer.find(RefRecord, **question)
        with pytest.raises(ValueError, match="negative"):
            writer.find(RefRecord, limit=-1)
        with pytest.raises(ValueError, match="at_most"):
            writer.find(RefRecord, at_most=("head", None))
        with pytest.raises(TypeError, match="key"):
            writer.get(RefRecord, "lake")
        with pytest.raises(TypeError, match="key"):
            writer.delete(RefRecord, "lake", "main", "x")
        with pytest.raises(TypeError, match="nam"):
            writer.delete_where(RefRecord, nam=1)


def test_ids_of_a_sequence_follow_each_other(store: Store) -> None:
    with store.write() as writer:
        assert [writer.next_id("a") for _ in range(3)] == [1, 2, 3]
        assert writer.next_id("b") == 1
    with store.write() as writer:
        assert writer.next_id("a") == 4


def test_a_block_that_was_left_answers_nothing(store: Store) -> None:
    put(store, ref())
    with store.read() as reader:
        pass
    with store.write() as writer:
        pass
    for left in (reader, writer):
        with pytest.raises(RuntimeError, match="left"):
            left.get(RefRecord, "lake", "main")
        with pytest.raises(RuntimeError, match="left"):
            left.find(RefRecord)
    with pytest.raises(RuntimeError, match="left"):
        writer.put(ref(head=9))
    with pytest.raises(RuntimeError, match="left"):
        writer.next_id("a")
    with store.read() as reader:
        assert reader.find(RefRecord) == [ref()]


def test_a_write_inside_a_write_is_refused_and_not_a_hang(store: Store) -> None:
    with store.write() as writer:
        writer.put(ref())
        with pytest.raises(RuntimeError, match="already in a write"), store.write():
            pass
        with pytest.raises(RuntimeError, match="already in a write"):
            store.close()
        writer.put(ref("dev"))
    with store.read() as reader:
        assert len(reader.find(RefRecord)) == 2


def test_a_closed_store_refuses(store: Store) -> None:
    store.close()
    store.close()
    with pytest.raises(RuntimeError, match="closed"), store.read():
        pass
    with pytest.raises(RuntimeError, match="closed"), store.write():
        pass


def in_threads(count: int, work: Any) -> None:
    failures: list[BaseException] = []
    gate = threading.Barrier(count)

    def run(number: int) -> None:
        gate.wait()
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_increments_by_replace_are_never_lost(store: Store) -> None:
    put(store, ref(head=0))
    lost: list[int] = []

    def increment(number: int) -> None:
        done = 0
        while done < 40:
            with store.read() as reader:
                seen = reader.get(RefRecord, "lake", "main")
            assert seen is not None
            with store.write() as writer:
                won = writer.replace(seen, changed(seen, head=seen.head + 1))
                writer.next_id("tries")
            done += won
            if not won:
                lost.append(number)

    in_threads(4, increment)
    with store.write() as writer:
        assert writer.get(RefRecord, "lake", "main") == ref(head=160)
        assert writer.next_id("tries") == 161 + len(lost)


def test_readers_never_see_half_a_transaction(store: Store) -> None:
    put(store, *(StagedRecord("t", position, "0") for position in range(5)), DeletionRecord("0", "", 0, 0))
    stop = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            for turn in range(1, 60):
                with store.write() as writer:
                    for position in range(5):
                        writer.put(StagedRecord("t", position, str(turn)))
                    writer.delete_where(DeletionRecord)
                    writer.put(DeletionRecord(str(turn), "", 0, 0))
            stop.set()
            return
        last = 0
        while not stop.is_set():
            with store.read() as reader:
                seen = {staged.change for staged in reader.find(StagedRecord, transaction="t")}
                seen |= {deletion.location for deletion in reader.find(DeletionRecord)}
            assert len(seen) == 1
            assert int(next(iter(seen))) >= last
            last = int(next(iter(seen)))

    in_threads(4, work)


def test_what_was_written_is_seen_by_the_next_reader_of_any_thread(store: Store) -> None:
    def work(number: int) -> None:
        for turn in range(40):
            put(store, TransactionRecord(f"{number}-{turn}", "lake", "s", "main", 1, "snapshot", "", "open", 0, 0))
            with store.read() as reader:
                assert reader.get(TransactionRecord, f"{number}-{turn}") is not None

    in_threads(3, work)
    with store.read() as reader:
        assert len(reader.find(TransactionRecord, state="open")) == 120
