"""A state machine over branches, commits, transactions, savepoints, rollbacks and merges, at the REST level."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from property.history_machine import History

QUICK = settings(
    max_examples=80,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    report_multiple_bugs=False,
    # Making a failing history smaller takes many minutes: run it again with Phase.shrink added when there is one.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
LONG = settings(QUICK, max_examples=300, stateful_step_count=70)


def test_random_histories_are_what_the_model_says() -> None:
    run_state_machine_as_test(History, settings=QUICK)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_long_random_histories_are_what_the_model_says() -> None:
    run_state_machine_as_test(History, settings=LONG)
