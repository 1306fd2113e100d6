"""The worked cases of event time, through the fold: cut into ranges in several ways, by the driver and by Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.ledgers import write_ledger
from tests.model import Event, fold
from tests.model.eventtime_cases import (
    ORDERED,
    ORDERED_CASES,
    WINDOW,
    WINDOW_CASES,
    Case,
    case_events,
    closed_windows,
    late_reasons,
    ordered_collections,
    ordered_definitions,
    ordered_held,
    ordered_steps,
    window_collections,
    window_definitions,
)
from tests.spark.folding import Folding, Picture, differences, expected
from tests.spark.packs import Pack
from tidelock.fold.session import Spark
from tidelock.fold.source import SMALL_EVENTS
from tidelock.ledger.database import Database

#: whether two commits are one range, and how many events the driver reads
CUTS = [(False, SMALL_EVENTS), (True, SMALL_EVENTS), (True, 0)]


def pictures(
    spark: Spark, database: Database, events: Sequence[Event], toml: dict[str, Any], cuts: Any = CUTS
) -> list[Picture]:
    ends = write_ledger(database, events)
    found = []
    for joined, small_events in cuts:
        with Folding(spark, database, toml, small_events=small_events) as folding:
            found.append(folding.fold(Pack(events, ends).cut(lambda joined=joined: joined)))
    return found


@pytest.mark.parametrize("case", WINDOW_CASES, ids=lambda case: case["name"])
def test_windows_close_as_the_case_says(spark: Spark, database: Database, case: Case) -> None:
    events = case_events(window_collections(case))
    toml = window_definitions(case)
    for found in pictures(spark, database, events, toml):
        assert differences(found, expected(fold(events, toml))) == {}
        rows = {(tenant, key): time for (name, tenant, key), (time, _) in found.rows.items() if name == WINDOW}
        assert rows == {place: time for place, (time, _) in closed_windows(case).items()}
        late = {key for name, _, key in found.rows if name == "late_rows"}
        assert late == {f'["{WINDOW}","{sequence}"]' for _, sequence in late_reasons(case)}


@pytest.mark.parametrize("case", ORDERED_CASES, ids=lambda case: case["name"])
def test_rows_are_released_as_the_case_says(spark: Spark, database: Database, case: Case) -> None:
    events = case_events(ordered_collections(case))
    toml = ordered_definitions(case)
    for found in pictures(spark, database, events, toml):
        assert differences(found, expected(fold(events, toml))) == {}
        released = [sequence for step in ordered_steps(case) for sequence, _ in step["released"]]
        rows = {int(key): int(row["position"]) for (name, _, key), (_, row) in found.rows.items() if name == ORDERED}
        assert sorted(rows, key=rows.__getitem__) == released
        held = [text for text in found.stored if text.startswith(f"{ORDERED}$held ")]
        assert len(held) == len(ordered_held(case))
