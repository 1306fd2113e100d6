"""The worked cases of event time, through the fold: cut into ranges in several ways, by the driver and by Spark.

All of them are one ledger, so that one fold tries them all. Each case has tenants of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import pytest

from tests.conftest import Databases
from tests.fold.folding import Folding, Picture, differences, expected
from tests.law.packs import Pack
from tests.ledgers import write_ledger
from tests.model import Event, fold
from tests.model.eventtime_cases import (
    ORDERED_CASES,
    START,
    STREAM,
    WINDOW_CASES,
    Collection,
    closed_windows,
    late_reasons,
    ordered_collections,
    ordered_held,
    ordered_steps,
    shared_definitions,
    window_collections,
)
from tidelock.model import CONTROL
from tidelock.spark.runtime import Spark

SECOND = 10**9
DAY = 86_400 * SECOND
#: whether two commits are one range, and how it is read: by the driver, through Spark commit by commit, by executors
CUTS: list[tuple[bool, dict[str, Any]]] = [
    (False, {}),
    (True, {}),
    (True, {"small_events": 0, "part_events": 1}),
    (True, {"small_events": 0, "gathers": False}),
]
Toml = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Placed:
    """Where a case is in the ledger of all cases."""

    number: int
    stream: str
    window: str
    collections: Sequence[Collection]
    #: the sequences of its events, and its source timestamps by those of the case
    sequences: list[int] = field(default_factory=list)
    times: dict[int, int] = field(default_factory=dict)

    def tenant(self, name: str) -> str:
        return f"{self.window} {self.number} {name}"

    def owns(self, tenant: str) -> bool:
        return tenant.startswith(self.tenant(""))

    def draft(self, drafted: Mapping[str, Any]) -> dict[str, Any]:
        """An event of the case as the ledger of all has it; a drain is one of the case's window."""
        if drafted["stream"] != CONTROL:
            return {**drafted, "stream": self.stream, "tenant_id": self.tenant(drafted.get("tenant_id", "default"))}
        said = json.loads(drafted["data"])
        return {**drafted, "data": json.dumps(said | ({"window": self.window} if said["type"] == "drain" else {}))}


@dataclass(frozen=True)
class Found:
    """What the fold has made of the ledger, by some of the definitions, and what it should."""

    toml: Toml
    picture: Picture
    wanted: Picture


class Together:
    """Every case in one ledger, folded in every way."""

    def __init__(self) -> None:
        self.toml, windows, streams = shared_definitions()
        self.windows = [
            Placed(number, self.toml["windows"][windows[number]]["stream"], windows[number], window_collections(case))
            for number, case in enumerate(WINDOW_CASES)
        ]
        self.ordered = [
            Placed(number, streams[number], f"{streams[number]}_ordered", ordered_collections(case))
            for number, case in enumerate(ORDERED_CASES)
        ]
        self._events: list[Event] = []
        self._ends: list[int] = []
        (arriving,) = (p for p, case in zip(self.windows, WINDOW_CASES, strict=True) if case["time"] == "processing")
        # Whatever is recorded ends a window by arrival, so that case comes first, at its own times.
        for collection in arriving.collections:
            self._record(arriving, collection, collection[0])
            self._ends.append(self._events[-1].ingress_sequence)
        self._record_turns([placed for placed in [*self.windows, *self.ordered] if placed is not arriving])

    def fold(self, spark: Spark, databases: Databases) -> list[Found]:
        found = []
        with databases() as database:
            ends = write_ledger(database, self._events, self._ends)
            for joined, options in CUTS:
                toml = _one_of_each_kind(self.toml) if options else self.toml
                with Folding(spark, database, toml, **options) as folding:
                    picture = folding.fold(Pack(self._events, ends).cut(lambda joined=joined: joined))  # type: ignore[misc]
                found.append(Found(toml, picture, expected(fold(self._events, toml))))
        return found

    def _record_turns(self, cases: Sequence[Placed]) -> None:
        """The n-th collections of all are one commit. Only their order matters, so each has another time.

        Cases begin so that their control events meet, because every control event cuts the ledger.
        """
        before = [_before_control(placed) for placed in cases]
        begins = [max(before) - count if count else 0 for count in before]
        time = START + DAY
        turns = zip_longest(*([None] * begin + [*p.collections] for p, begin in zip(cases, begins, strict=True)))
        for turn in turns:
            given = [(placed, each) for placed, each in zip(cases, turn, strict=True) if each is not None and each[1]]
            given.sort(key=lambda pair: pair[1][1][0]["stream"] == CONTROL)
            for placed, collection in given:
                time += SECOND
                self._record(placed, collection, time)
            self._ends.append(self._events[-1].ingress_sequence)

    def _record(self, placed: Placed, collection: Collection, time: int) -> None:
        at, drafts = collection
        placed.times[at] = time
        for draft in drafts:
            sequence = len(self._events) + 1
            placed.sequences.append(sequence)
            self._events.append(Event(sequence, time, occurred_at=time, received_at=time, **placed.draft(draft)))


def _one_of_each_kind(toml: Toml) -> Toml:
    """Where Spark gathers the rows, every window costs it some queries a range. `test_law` tries more of them."""
    timed = {name: window for name, window in toml["windows"].items() if window["stream"] == STREAM}
    kinds = {next(iter(window["window"])): name for name, window in reversed(timed.items())}
    line = next(name for name, stream in toml["streams"].items() if stream.get("ordered"))
    return {
        "streams": {name: toml["streams"][name] for name in (STREAM, line)},
        "windows": {name: toml["windows"][name] for name in kinds.values()},
    }


def _before_control(placed: Placed) -> int:
    """How many collections there are before the first control event, or none where there is no such event."""
    kinds = [bool(drafts) and drafts[0]["stream"] == CONTROL for _, drafts in placed.collections]
    return kinds.index(True) if True in kinds else 0


@pytest.fixture(scope="module")
def together() -> Together:
    return Together()


@pytest.fixture(scope="module")
def folds(together: Together, spark: Spark, databases: Databases) -> list[Found]:
    return together.fold(spark, databases)


def pictures(folds: list[Found], placed: Placed) -> list[Picture]:
    """Those that have the case's window."""
    found = [
        each.picture
        for each in folds
        if placed.window in each.toml["windows"] or each.toml["streams"].get(placed.stream, {}).get("ordered")
    ]
    assert len(found) >= 2
    return found


def test_the_cases_are_folded_as_the_model_folds_them(folds: list[Found]) -> None:
    for found in folds:
        assert differences(found.picture, found.wanted) == {}


@pytest.mark.parametrize("number", range(len(WINDOW_CASES)), ids=[case["name"] for case in WINDOW_CASES])
def test_windows_close_as_the_case_says(together: Together, folds: list[Found], number: int) -> None:
    case, placed = WINDOW_CASES[number], together.windows[number]
    closed = {
        (placed.tenant(tenant), key): placed.times[time] for (tenant, key), (time, _) in closed_windows(case).items()
    }
    late = {(placed.tenant(tenant), placed.sequences[sequence - 1]) for tenant, sequence in late_reasons(case)}
    for found in pictures(folds, placed):
        rows = {
            (tenant, key): time
            for (name, tenant, key), (time, _) in found.rows.items()
            if name == placed.window and placed.owns(tenant)
        }
        assert rows == closed
        told = [[*json.loads(key), tenant] for name, tenant, key in found.rows if name == "late_rows"]
        assert {(t, int(n)) for name, n, t in told if name == placed.window and placed.owns(t)} == late


@pytest.mark.parametrize("number", range(len(ORDERED_CASES)), ids=[case["name"] for case in ORDERED_CASES])
def test_rows_are_released_as_the_case_says(together: Together, folds: list[Found], number: int) -> None:
    case, placed = ORDERED_CASES[number], together.ordered[number]
    released = [placed.sequences[sequence - 1] for step in ordered_steps(case) for sequence, _ in step["released"]]
    for found in pictures(folds, placed):
        rows = {
            int(key): int(row["position"])
            for (name, tenant, key), (_, row) in found.rows.items()
            if name == placed.window and placed.owns(tenant)
        }
        assert sorted(rows, key=rows.__getitem__) == released
        held = [text for text in found.stored if text.startswith(f"{placed.window}$held ")]
        assert len([text for text in held if placed.tenant("") in text]) == len(ordered_held(case))
