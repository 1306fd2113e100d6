"""Large ranges are read by one plan, and while one is written the next is read; neither shows in the tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa
import pytest

from tests.fold.folding import Folding, Picture, Range, Toml
from tests.ledgers import write_ledger
from tests.model import Event
from tests.model.samples import at, recorded
from tidelock.fold.source import Repeated
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark

SECOND = 10**9
TOML: Toml = {
    "streams": {
        "s": {"ordered": True, "eventtime": {"column": "occurred_at", "late_tolerance": "5s"}},
        "other": {},
    },
    "windows": {
        "w": {
            "stream": "s",
            "window": {"tumbling": "4s"},
            "eventtime": {"enabled": True, "late_tolerance": "2s"},
            "group_by": ["customer_ref"],
            "select": {"events": "count(*)"},
        }
    },
}
#: 24 events in commits of two; some wait for others, one is late
_BEHIND = [0, 3, 1, 7, 0, 2, 5, 0, 4, 1, 0, 6]


def ledger() -> list[Event]:
    def drafted(number: int) -> list[dict[str, object]]:
        then = at("12:00:00") + (2 * number - _BEHIND[number]) * SECOND
        first = {"occurred_at": then, "customer_ref": f"c{number % 3}", "tenant_id": "one"}
        return [first, {**first, "occurred_at": then + SECOND, "tenant_id": f"t{number % 2}"}]

    return recorded(*map(drafted, range(len(_BEHIND))))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Range]:
    """What was read by a plan that had been made before, in order."""
    found: list[Range] = []
    read = Repeated.read

    def noted(plan: Repeated, conditions: Sequence[str]) -> pa.Table:
        rows = read(plan, conditions)
        sequences = rows["ingress_sequence"].to_pylist()
        found.append((min(sequences) - 1, max(sequences)))
        assert sorted(sequences) == list(range(found[-1][0] + 1, found[-1][1] + 1)), "each event once"
        return rows

    monkeypatch.setattr(Repeated, "read", noted)
    return found


def folded(spark: Spark, database: Database, ranges: Sequence[Range]) -> Picture:
    with Folding(spark, database, TOML, small_events=0, part_events=4) as folding:
        return folding.fold(ranges)


def test_one_plan_reads_every_part_once_and_the_next_range_while_one_is_written(
    spark: Spark, database: Database, reads: list[Range]
) -> None:
    write_ledger(database, ledger())
    with Folding(spark, database, TOML) as folding:
        wanted = folding.fold([(0, 24)])
    assert not reads, "the driver read a small range"
    found = folded(spark, database, [(0, 8), (8, 16), (16, 24)])
    # The first part is smaller. What was read ahead is of the usual size.
    assert reads == [(0, 2), (2, 6), (6, 8), (8, 12), (12, 16), (16, 20), (20, 24)]
    assert found == wanted


@pytest.mark.parametrize(
    "ranges",
    [
        pytest.param([(0, 8), (8, 10), (10, 24)], id="the next range is smaller than what was read"),
        pytest.param([(0, 8), (8, 12), (12, 24)], id="the next range is what was read"),
    ],
)
def test_another_range_than_the_one_read_ahead_is_folded_as_it_is(
    spark: Spark, database: Database, reads: list[Range], ranges: Sequence[Range]
) -> None:
    write_ledger(database, ledger())
    with Folding(spark, database, TOML) as folding:
        wanted = folding.fold([(0, 24)])
    assert folded(spark, database, ranges) == wanted
    assert (8, 12) in reads


def test_what_another_process_has_folded_meanwhile_is_forgotten(
    spark: Spark, database: Database, reads: list[Range]
) -> None:
    write_ledger(database, ledger())
    with Folding(spark, database, TOML) as folding:
        wanted = folding.fold([(0, 24)])
    with Folding(spark, database, TOML, small_events=0, part_events=4) as folding:
        mine, other = folding.range_fold, folding.reader(0, part_events=6)
        for fold, (lo, hi) in zip([mine, other, mine], pairwise([0, 8, 14, 24]), strict=True):
            fold.apply(lo, hi)
        assert folding.picture() == wanted
    assert (8, 12) in reads


def test_events_recorded_after_the_end_was_read_are_in_the_next_range(
    spark: Spark, database: Database, reads: list[Range]
) -> None:
    events = ledger()
    write_ledger(database, events[:10])
    with Folding(spark, database, TOML, small_events=0, part_events=4) as folding:
        folding.advance([(0, 8)])
        write_ledger(database, events[10:], commit_id=6)
        folding.advance([(8, 24)])
        found = folding.picture()
    with Folding(spark, database, TOML) as folding:
        assert folding.fold([(0, 24)]) == found
    assert len(set(reads)) == len(reads)
