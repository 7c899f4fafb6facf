"""A hypothesis state machine at the Python level: ``icefield serve``, ``icefield.connect()`` and Spark, all real.

The same laws as ``test_history.py``, but through everything that a PySpark program goes through.
Slower by far, so fewer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import icefield
from icefield.client import statements
from icefield.client.lease import Lease
from icefield.client.statements import Hook
from property.python_history import PythonHistory
from support.server import RunningServer

pytestmark = pytest.mark.spark

QUICK = settings(
    max_examples=5,
    stateful_step_count=14,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # a step takes half a second: the history as it was found is shown, not a shorter one
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=16, stateful_step_count=30, derandomize=False)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a server; a first lake keeps Spark running for all histories."""
    with (
        RunningServer(tmp_path_factory.mktemp("histories") / "lake") as server,
        icefield.connect(server.url, spark_conf={"spark.sql.shuffle.partitions": "1"}) as first,
    ):
        first.sql("SELECT 1").collect()
        yield server.url


@pytest.fixture
def machine(url: str) -> type[PythonHistory]:
    return type("PythonHistory", (PythonHistory,), {"url": url, "seen": Counter()})


def test_random_histories_are_what_the_model_says(machine: type[PythonHistory]) -> None:
    run_state_machine_as_test(machine, settings=QUICK)
    assert {"begins", "ends", "writes", "merges_branch"} <= set(machine.seen)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_long_random_histories_are_what_the_model_says(machine: type[PythonHistory]) -> None:
    run_state_machine_as_test(machine, settings=LONG)
    # What chance brings about surely; the histories by hand below make the rest happen.
    missing = {
        *("begins", "conflict", "rebased commit", "rollback", "savepoint undone"),
        *("fast-forward", "merge conflict", "both_at_once", "reads_kept_frame", "kept frame without a table"),
    } - set(machine.seen)
    assert missing == set(), dict(machine.seen)


# Short histories by hand: what chance may leave out in a small number of examples, and which fault each one finds.


def remembers(history: PythonHistory) -> Iterator[None]:
    """Frames that are held on to, one cached and one collected, through a transaction that is rolled back."""
    history.starts(3, 2, lazy=False)
    yield history.acts(0, "keeps_frame", pick=0, more=7)
    yield history.acts(0, "keeps_frame", pick=1, more=2)
    history.acts(0, "begins", 0, 1)
    history.writes(0, 0, 1, "inserts")
    history.writes(0, 1, 1, "appends_frame")
    yield history.acts(0, "reads_kept_frame", pick=0, more=3)
    yield history.acts(0, "reads_kept_frame", pick=1, more=2)
    history.acts(0, "ends", pick=0, more=0)
    yield history.acts(0, "reads_kept_frame", pick=0, more=3)
    yield history.acts(0, "reads_kept_frame", pick=1, more=2)
    history.writes(1, 0, 0, "updates")
    yield history.acts(0, "reads_kept_frame", pick=0, more=3)
    history.writes(1, 0, 0, "adds_column")
    yield history.acts(0, "reads_kept_frame", pick=0, more=0)
    history.acts(1, "makes_or_drops_table", pick=1, more=0)
    yield history.acts(0, "reads_kept_frame", pick=1, more=2)


def savepoints(history: PythonHistory) -> Iterator[None]:
    """One kept, two nested ones left by an error that is caught outside of both, one left by Rollback."""
    history.starts(2, 3, lazy=False)
    yield history.acts(0, "begins", 0, 0)
    history.acts(0, "sets_savepoint", 0, more=1)
    yield history.writes(0, 0, 1, "inserts") and None
    yield history.acts(0, "leaves_savepoint", pick=0, more=0)
    history.acts(0, "sets_savepoint", 0, more=1)
    history.writes(0, 1, 1, "updates")
    history.acts(0, "sets_savepoint", 0, more=1)
    yield history.writes(0, 0, 4, "deletes") and None
    yield history.acts(0, "leaves_savepoint", pick=2, more=1)
    history.acts(0, "sets_savepoint", 0, more=0)
    history.acts(0, "makes_or_drops_table", pick=0, more=0)
    yield history.acts(0, "leaves_savepoint", pick=1, more=0)
    yield history.acts(0, "fails", pick=0, more=0)
    yield history.acts(0, "fails", pick=0, more=1)
    yield history.acts(0, "ends", pick=1, more=0)


def stale(history: PythonHistory) -> Iterator[None]:
    """Overtaken transactions: appends land; a MERGE that only inserts, and with it all of its transaction, does not."""
    history.starts(3, 2, lazy=True)
    for how, theirs in (("inserts", "deletes"), ("inserts_select", "inserts"), ("merges_rows", "inserts")):
        history.acts(0, "begins", 0, 1)
        history.writes(0, 0, 2, how)
        history.writes(0, 1, 2, "appends_frame")
        history.writes(1, 0, 1, theirs)
        yield history.acts(0, "ends", pick=1, more=0)
    yield history.acts(0, "both_at_once", pick=0, more=1)


def branches(history: PythonHistory) -> Iterator[None]:
    history.starts(3, 2, lazy=False)
    history.acts(1, "makes_branch", pick=0, more=1)
    history.writes(1, 0, 1, "adds_column")
    yield history.writes(1, 0, 1, "updates") and None
    history.acts(0, "begins", 0, 0)
    history.writes(0, 1, 0, "updates")
    yield history.acts(0, "merges_branch", pick=0, more=0)  # dev into main, which fast-forwards under a transaction
    yield history.acts(0, "ends", pick=1, more=1)
    yield history.writes(1, 0, 0, "adds_column") and None
    yield history.acts(0, "merges_branch", pick=0, more=0)
    history.writes(0, 0, 1, "inserts")
    history.writes(1, 0, 1, "inserts")
    yield history.acts(0, "merges_branch", pick=1, more=0)
    yield history.acts(1, "looks_back", pick=1, more=0)
    for more in range(4):
        yield history.acts(0, "compares", pick=0, more=more)


def play(machine: type[PythonHistory], story: Callable[[PythonHistory], Iterator[None]]) -> None:
    history = machine()
    try:
        for _ in story(history):
            history.everybody_sees_what_the_model_says()
    finally:
        history.teardown()


@pytest.mark.parametrize(
    ("story", "seen"),
    [
        (remembers, {"rollback", "reads_kept_frame", "kept frame without a table"}),
        (savepoints, {"savepoint kept", "savepoint undone", "fails", "commit"}),
        (stale, {"conflict", "rebased commit", "both_at_once"}),
        (branches, {"fast-forward", "rebased commit", "merged", "merge conflict", "looks_back", "compares"}),
    ],
)
def test_a_history_by_hand(
    machine: type[PythonHistory], story: Callable[[PythonHistory], Iterator[None]], seen: set[str]
) -> None:
    play(machine, story)
    assert seen <= set(machine.seen)


def cached_frames_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(statements, "refresh_cached", lambda spark: None)


def plans_are_kept(patch: pytest.MonkeyPatch) -> None:
    def as_it_was(self: Hook, target: str, method: str, arguments: str, retry: bool) -> Any:
        return self._send(f"c\n{target}\n{method}\n{arguments}", retry)

    patch.setattr(Hook, "_planned_anew", as_it_was)


def a_savepoint_is_only_released(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "rollback_to", lambda self, name: None)


def nothing_is_strict(patch: pytest.MonkeyPatch) -> None:
    mark = Lease.mark
    patch.setattr(Lease, "mark", lambda self, *, strict=False: mark(self))


@pytest.mark.parametrize(
    ("fault", "story", "found"),
    [
        (cached_frames_are_kept, remembers, "a kept frame of s.t: "),
        (plans_are_kept, remembers, "a kept frame of s.t: "),
        (a_savepoint_is_only_released, savepoints, "in its transaction: s.u has"),
        (nothing_is_strict, stale, "committed, though there are conflicts: {'t'}"),
    ],
)
def test_a_fault_of_the_sdk_is_found(
    machine: type[PythonHistory],
    fault: Callable[[pytest.MonkeyPatch], None],
    story: Callable[[PythonHistory], Iterator[None]],
    found: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError, match=found):
        play(machine, story)
