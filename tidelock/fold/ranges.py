"""Ranges: how much of the ledger the fold takes at a time.

A range ends where a commit ends and never spans a control event, which is a range of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidelock.fold.store import Store
from tidelock.postgres.queries import load

_QUERIES = load("tidelock.fold", "sql/ranges.sql")


@dataclass(frozen=True, slots=True)
class Range:
    """Events above `lo` through `hi`."""

    lo: int
    hi: int
    #: of its last collection
    source_timestamp: int
    #: the data of the range's control event; None: ordinary events
    control: Mapping[str, Any] | None = None


#: most events of a range with corrections: it is folded at the driver
CORRECTED_EVENTS = 10_000
#: a range that takes longer is followed by a smaller one: waiting for an event means waiting for its range
_RANGE_S = 2.4


class Pace:
    """How many events a range takes: few after a start or a failure, twice as many after each success.

    A range is one transaction, so a fold that is killed starts it again. A fold killed every few seconds would never
    finish a large one. And the cursor moves once per range: this should happen every few seconds, however large the
    backlog and however slow the machine.
    """

    def __init__(self, events_start: int, events_max: int) -> None:
        self._start = min(events_start, events_max)
        self._max = events_max
        self.events = self._start

    def succeeded(self, events: int | None = None, seconds: float = 0.0) -> None:
        """`events` took this long; without events it does not matter."""
        self.events = min(2 * self.events, self._max)
        if events is not None and seconds > 0:
            self.events = max(self._start, min(self.events, int(events * _RANGE_S / seconds)))

    def failed(self) -> None:
        self.events = self._start


def next_range(store: Store, lo: int, events_max: int, through: int | None = None) -> Range | None:
    """The range after `lo`; None: nothing yet. A commit larger than the limit is taken whole.

    A range that would be large ends before the first commit with a correction; there a small one begins.
    """
    bound = 2**63 - 1 if through is None else through
    found = _next(store, lo, events_max, bound)
    if found is None or found.correction is None or events_max <= CORRECTED_EVENTS:
        return None if found is None else found.range
    small = _next(store, lo, CORRECTED_EVENTS, bound)
    assert small is not None
    if small.range.hi >= found.correction:
        return small.range
    before = _next(store, lo, events_max, found.correction - 1)
    return small.range if before is None else before.range


class _Next(NamedTuple):
    range: Range
    #: the first correction in it
    correction: int | None


def _next(store: Store, lo: int, events_max: int, through: int) -> _Next | None:
    sql = _QUERIES.text("next_range").format(lo=lo, events_max=events_max, through=through)
    rows = store.query(sql).to_pylist()
    if not rows:
        return None
    (row,) = rows
    last, time, correction = row["last_sequence"], row["last_source_timestamp"], row["correction"]
    if not row["control"]:
        return _Next(Range(lo, last, time), correction if correction is not None and correction <= last else None)
    data = store.query(_QUERIES.text("control_data").format(sequence=last))["data"][0].as_py()
    return _Next(Range(lo, last, time, json.loads(data)), None)


def cuts(store: Store, lo: int, hi: int, events_max: int, first: int | None = None) -> list[int]:
    """The ends of parts of a range without control events. Each is the end of a commit, the last is `hi`.

    `first`: how many events the first part has at most.
    """
    found = [lo]
    while found[-1] < hi:
        most = events_max if first is None or found[-1] > lo else first
        part = next_range(store, found[-1], most, hi)
        found.append(hi if part is None else part.hi)
    return found[1:]


def extent(store: Store, lo: int, hi: int) -> tuple[int, int]:
    """The first recorded sequence above `lo`, and the number of events through `hi`, the end of a commit."""
    rows = store.query(_QUERIES.text("events_between").format(lo=lo, hi=hi)).to_pylist()
    return (rows[0]["first_sequence"], max(0, rows[0]["events"])) if rows else (lo + 1, 0)


def ledger_end(store: Store) -> int:
    """The last recorded sequence."""
    return int(store.query(_QUERIES.text("ledger_end"))["ingress_sequence"][0].as_py())


def commit_end(store: Store, sequence: int) -> int:
    """The last sequence of an event's commit."""
    return int(store.query(_QUERIES.text("commit_end").format(sequence=sequence))["sequence"][0].as_py())


def definition_events(store: Store, through: int) -> list[tuple[int, Mapping[str, Any]]]:
    """The events through a sequence that changed the definitions, with their sequences, in order."""
    rows = store.query(_QUERIES.text("definition_events").format(through=through)).to_pylist()
    return [(row["sequence"], json.loads(row["data"])) for row in rows]


def control_events(store: Store, after: int) -> list[Mapping[str, Any]]:
    """The data of the control events after a sequence, last first."""
    found = store.query(_QUERIES.text("control_events").format(after=after))
    return [json.loads(data) for data in found["data"].to_pylist()]
