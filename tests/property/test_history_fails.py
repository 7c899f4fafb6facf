"""The state machine can fail: a server with a known fault is found out within its budget."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from icefield.catalog import branches, places
from icefield.merge.trees import TreeMerge
from icefield.store.records import RangeRecord, RangeTopRecord
from icefield.transaction import landing, overlay, ranges, sessions, table_commits, transactions
from property.history_machine import History
from property.test_history import QUICK

Patch = pytest.MonkeyPatch
Fault = tuple[Callable[[Patch], None], str]
"""What is broken, and a pattern of what the machine says of it."""
BUDGET = settings(QUICK, max_examples=400, database=None, derandomize=True, phases=[Phase.generate])
"""The same histories every time: a fault that is found is found always, by the same symptom."""


def one_range_twice(patch: Patch) -> None:
    """Every ref's range begins right above the file's own counters."""

    def allocate(writer: Any, entry: str, kind: str, owner: str, free: int, *, before: Any) -> None:
        writer.put(RangeRecord(entry, kind, owner, free, free + ranges.WIDTH[kind]))
        writer.put(RangeTopRecord(entry, kind, free + ranges.WIDTH[kind]))

    patch.setattr(ranges, "_allocate", allocate)


def rollback_to_keeps_one_change(patch: Patch) -> None:
    true = transactions._find

    def find(opened: Any, name: str) -> Any:
        point = true(opened, name)
        return replace(point, position=min(point.position + 1, len(opened.staged)))

    patch.setattr(transactions, "_find", find)


def merge_takes_theirs(patch: Patch) -> None:
    def theirs_alone(ours: Any, theirs: Any, **_: Any) -> TreeMerge:
        return TreeMerge({key: now for key, (_, now) in theirs.items()})

    patch.setattr(branches, "merge_trees", theirs_alone)


def commit_takes_ours(patch: Patch) -> None:
    """Lost update: the overlay's table goes over what others committed since."""
    patch.setattr(transactions, "_is_table", lambda entry: False)
    true = transactions.merge_trees

    def ours_alone(theirs: Any, ours: Any, **names: Any) -> TreeMerge:
        merged = true(theirs, ours, **names)
        return TreeMerge({key: now for key, (_, now) in ours.items()}) if merged.conflicts else merged

    patch.setattr(transactions, "merge_trees", ours_alone)


def no_retry_law(patch: Patch) -> None:
    patch.setattr(table_commits, "_landed_already", lambda *_: False)


def late_writes_land(patch: Patch) -> None:
    patch.setattr(places.Place, "_check_statement", lambda self, *_: False)


def strict_writes_are_rebased(patch: Patch) -> None:
    true = places.Place._check_statement
    patch.setattr(places.Place, "_check_statement", lambda self, *args: bool(true(self, *args)) and False)


def previous_metadata_is_queued(patch: Patch) -> None:
    """History needs it."""
    true = landing.settle

    def settle(core: Any, writer: Any, ref_id: str, commit: Any, steps: Any, **more: Any) -> None:
        true(core, writer, ref_id, commit, steps, **more)
        for step in steps:
            for metadata in step.metadata.values():
                for old in (metadata.get("metadata-log") or ())[-1:]:
                    landing.enqueue(core, writer, [old["metadata-file"]], "replaced")

    patch.setattr(landing, "settle", settle)


def a_session_sees_the_head(patch: Patch) -> None:
    """Torn statements: the view of a marked session moves by itself."""
    true = sessions.Sessions.see

    def see(self: Any, session: Any) -> Any:
        seen = true(self, session)
        if seen.opened is not None:
            return seen
        with self._core.store.read() as reader:
            head = self._core.graph.resolve(reader, seen.session.repo, seen.session.ref).commit
        return replace(seen, commit=head, view=self._core.graph.tree(head))

    patch.setattr(sessions.Sessions, "see", see)


def dropped_in_the_overlay_is_still_there(patch: Patch) -> None:
    true = overlay.OverlayView.__init__

    def init(self: Any, base: Any, after: Any) -> None:
        true(self, base, {key: entry for key, entry in after.items() if entry is not None})

    patch.setattr(overlay.OverlayView, "__init__", init)


QUICKLY: tuple[Fault, ...] = (
    (one_range_twice, "row ids|ids-taken|stands for"),
    (merge_takes_theirs, "must not land|live files|snapshots|columns|partition|another table|tables in"),
    (no_retry_law, "is already in the table|landed|snapshots"),
    (late_writes_land, "must be refused|live files|snapshots|columns|partition fields|tables in|namespaces at"),
)
SLOWLY: tuple[Fault, ...] = (
    (rollback_to_keeps_one_change, "at lake@~|must be refused"),
    (commit_takes_ours, "queued|must not land|live files|snapshots|columns|partition fields"),
    (strict_writes_are_rebased, "strict|snapshots|live files"),
    (previous_metadata_is_queued, "queued for deletion"),
    (a_session_sees_the_head, "at lake@~"),
    (dropped_in_the_overlay_is_still_there, "at lake@~|must be refused"),
)


def _named(value: object) -> str:
    return getattr(value, "__name__", "")


def check(fault: Callable[[Patch], None], symptom: str, patch: Patch) -> None:
    fault(patch)
    with pytest.raises(AssertionError) as found:
        run_state_machine_as_test(History, settings=BUDGET)
    said = str(found.value).splitlines()[0]  # what follows tells the history, and has all sorts of words in it
    assert re.search(symptom, said), said


@pytest.mark.parametrize(("fault", "symptom"), QUICKLY, ids=_named)
def test_a_faulty_server_is_found_out(fault: Callable[[Patch], None], symptom: str, monkeypatch: Patch) -> None:
    check(fault, symptom, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "symptom"), SLOWLY, ids=_named)
def test_a_subtler_fault_is_found_out(fault: Callable[[Patch], None], symptom: str, monkeypatch: Patch) -> None:
    check(fault, symptom, monkeypatch)
