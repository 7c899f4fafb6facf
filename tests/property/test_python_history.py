"""A hypothesis state machine at the Python level: ``icefield serve``, ``icefield.connect()`` and Spark, all real.

The same laws as ``test_history.py``, but through everything that a PySpark program goes through. Slower by far, so fewer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import icefield
from property.python_history import PythonHistory
from support.server import RunningServer

pytestmark = pytest.mark.spark

QUICK = settings(
    max_examples=6,
    stateful_step_count=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # a step takes half a second: the history as it was found is shown, not a shorter one
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=80, stateful_step_count=30, derandomize=False)


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
    print(dict(machine.seen))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_long_random_histories_are_what_the_model_says(machine: type[PythonHistory]) -> None:
    run_state_machine_as_test(machine, settings=LONG)
    print(dict(machine.seen))
