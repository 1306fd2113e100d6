"""The reference model's windows, by the worked cases of the contract and by examples of what they leave out."""

import pytest

from tests.model import fold
from tests.model.eventtime_cases import (
    WINDOW,
    WINDOW_CASES,
    Case,
    case_events,
    closed_windows,
    late_reasons,
    window_collections,
    window_definitions,
)


@pytest.mark.parametrize("case", WINDOW_CASES, ids=[case["name"] for case in WINDOW_CASES])
def test_a_case_of_the_contract(case: Case) -> None:
    state = fold(case_events(window_collections(case)), window_definitions(case))
    table, times = state.table(WINDOW), state.source_timestamps.get(WINDOW, {})
    assert {key: (times[key], row) for key, row in table.items()} == closed_windows(case)
    late = {(tenant, row["ingress_sequence"]): row["reason"] for (tenant, _), row in state.table("late_rows").items()}
    assert late == late_reasons(case)
    assert not state.table("error_rows")
