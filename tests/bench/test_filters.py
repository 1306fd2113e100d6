"""The benchmark of filters: it runs, tells every kind, and every change finds its view."""

import pytest

from bench.filters import KINDS, figures, measure

pytestmark = pytest.mark.check


def test_costs_are_told_for_every_kind_and_count() -> None:
    told: list[str] = []
    costs = measure(told.append, counts=(3, 30))
    assert len(told) == len(KINDS)
    found = figures(costs)
    assert {f"{kind.name}{count}FiltersMicroseconds" for kind in KINDS for count in (3, 30)} < set(found)
    assert all(cost.us > 0 and cost.asked_us > 0 for cost in costs)
    assert {f"{kind.name}Growth" for kind in KINDS} < set(found)
