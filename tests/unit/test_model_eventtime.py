"""The reference model's event time and ordered output, by the worked cases of the contract and by example."""

import pytest

from tests.model import apply, fold
from tests.model.eventtime_cases import (
    ORDERED,
    ORDERED_CASES,
    Case,
    case_events,
    ordered_collections,
    ordered_definitions,
    ordered_held,
    ordered_steps,
)
from tests.model.tables import State


@pytest.mark.parametrize("case", ORDERED_CASES, ids=[case["name"] for case in ORDERED_CASES])
def test_a_case_of_the_contract(case: Case) -> None:
    events = case_events(ordered_collections(case))
    place = (ORDERED, "default")
    state = State()
    for (time, _), step in zip(ordered_collections(case), ordered_steps(case), strict=True):
        if collection := [event for event in events if event.source_timestamp == time]:
            apply(state, collection, ordered_definitions(case))
        changes = [change.new for change in state.changes if change.source_timestamp == time]
        rows = [row for row in changes if row is not None]
        released = sorted((row for row in rows if "position" in row), key=lambda row: row["position"])
        late = [row for row in rows if row.get("reason") == "late"]
        assert [(row["ingress_sequence"], row["event_time"]) for row in released] == step["released"]
        assert [(row["ingress_sequence"], row["event_time"]) for row in late] == step["late"]
        assert state.metrics[place].watermark == step["watermark"]
    assert state.held[place] == ordered_held(case)
    positions = [row["position"] for row in state.table(ORDERED).values()]
    assert positions == list(range(1, len(positions) + 1))
    assert state == fold(events, ordered_definitions(case))
