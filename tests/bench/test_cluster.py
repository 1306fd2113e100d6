"""What `bench cluster` says of workers: how much sooner it was, and how much sooner it could have been."""

import pytest

from bench.cluster import Folded, scaling
from bench.runs import Run

pytestmark = pytest.mark.check


def folded(workers: int, seconds: float, executors_s: float, master: str = "cluster") -> Folded:
    steps = {"executors": 5.0, "record": 1.0, "write": 0.5}
    worked = {"executors": executors_s - 0.5, "workers": 0.5, "jvm": 1.0, "python": 1.0, "postgres": 1.0}
    return Folded(
        master, workers, Run(seconds, steps, (0.1,), driver_mb=None, jvm_mb=None, worker_mb=None, processor_s=worked)
    )


def test_only_what_executors_do_can_be_shared_out() -> None:
    one, two = folded(1, 10.0, 8.0), folded(2, 8.0, 9.0)
    assert scaling(one, two) == {"speedup": 1.25, "speedupMost": 1.67}
    assert scaling(one, one) == {"speedup": 1.0, "speedupMost": 1.0}


def test_workers_that_have_half_a_core_need_twice_the_time() -> None:
    assert scaling(folded(1, 20.0, 8.0), folded(2, 12.0, 9.0), 0.5) == {"speedup": 1.67, "speedupMost": 1.67}


def test_the_phases_and_the_cores_are_reported() -> None:
    figures = folded(2, 8.0, 9.0).figures(1_000)
    assert (figures["sparkSeconds"], figures["driverSeconds"], figures["postgresSeconds"]) == (5.0, 1.0, 0.5)
    assert (figures["eventsPerSecond"], figures["coresBusy"]) == (125, 1.5)


def test_processor_time_outside_the_executors_is_told_where_they_are_apart_from_the_driver() -> None:
    figures = folded(2, 8.0, 9.0).figures(1_000_000)
    assert (figures["jvmMicrosecondsPerEvent"], figures["workersMicrosecondsPerEvent"]) == (1.0, 0.5)
    assert figures["outsideMicrosecondsPerEvent"] == 3.0
    assert folded(2, 8.0, 9.0, "local[2]").figures(1_000)["outsideMicrosecondsPerEvent"] is None
