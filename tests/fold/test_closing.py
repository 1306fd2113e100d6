"""Closes by example: adjustments, statements and when the next period is due, each compared with the model too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.conftest import Databases
from tests.fold.folding import Folding, Picture, Toml, differences, expected, pictured
from tests.ledgers import write_ledger
from tests.model import Event, fold
from tests.model.billing_cases import CASES, CONTROL, case_events
from tests.model.samples import alone, at
from tests.model.test_closing import METER, check, closes, used
from tests.running import folding
from tidelock.definitions import parse_definitions
from tidelock.errors import Unreachable
from tidelock.fold.redefine.catalog import unit_hashes
from tidelock.fold.store import Store
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark
from tidelock.tables import ALWAYS

HOUR = 3600 * 10**9


def with_hashes(events: Sequence[Event], toml: Toml) -> list[Event]:
    """With closes that name the definitions there are, as the sequencer writes them."""
    hashes = unit_hashes(parse_definitions(toml))
    found = []
    for event in events:
        said = json.loads(event.data or "{}") if event.stream == CONTROL else {}
        for name, closed in said.get("meters", {}).items():
            closed["hash"] = hashes[f"meters.{name}"]
        found.append(replace(event, data=json.dumps(said)) if "meters" in said else event)
    return found


def test_the_cases_of_the_contract(spark: Spark, databases: Databases) -> None:
    """All in one ledger, each a meter of its own."""
    toml: dict[str, Any] = {"meters": {}}
    events: list[Event] = []
    after = []
    for number, case in enumerate(CASES):
        meter = {name: case[name] for name in ("aggregation", "period", "lateness")}
        toml["meters"][f"case_{number}"] = meter
        after.append(len(events))
        events += case_events(case, meter, f"case_{number}", after=len(events))
    events = with_hashes(events, toml)
    state = fold(events, toml)
    found = folded(spark, databases, events, toml)
    assert differences(found, expected(state)) == {}
    for number, case in enumerate(CASES):
        check(state, case, after[number], f"case_{number}")


def test_tables_statements_and_changes_are_the_models_however_they_are_folded(
    spark: Spark, databases: Databases
) -> None:
    meters = {
        "calls": METER | {"group_by": "data.region"},
        "most": METER | {"stream": "calls", "aggregation": "max", "period": "day"},
        "last": METER | {"stream": "calls", "aggregation": "last", "period": "week"},
        "quiet": METER | {"stream": "calls", "aggregation": "avg", "live": False, "statements": False},
    }
    toml: Toml = {"meters": meters}
    given = [
        used("2026-03-20", 5, data={"region": "eu"}),
        used("2026-03-30", 7, tenant_id="beta"),
        closes("2026-03-30T00:00:00Z", "beta", meters={"most": meters["most"], "last": meters["last"]}),
        used("2026-03-29", 3, tenant_id="beta"),
        used("2026-03-29", 4),
        closes("2026-04-01T00:00:00Z", meters=meters),
        used("2026-03-31", 9, tenant_id="gamma", data={"region": "us"}),
        used("2026-03-31", 2, customer_ref="d"),
        used("2026-03-28", 6),
        closes("2026-05-01T00:00:00Z", meters={"calls": meters["calls"]}),
        used("2026-04-30", 1),
        used("2026-03-31", -4, tenant_id="gamma"),
    ]
    events = with_hashes(alone(*given, stream="calls"), toml)
    wanted = expected(fold(events, toml))
    first = folded(spark, databases, events, toml)
    assert differences(first, wanted) == {}
    large = folded(spark, databases, events, toml, small_events=1)
    assert differences(large, wanted) == {}
    assert large.stored == first.stored


def test_what_is_due_is_the_first_period_with_an_open_counter(spark: Spark, database: Database) -> None:
    meters = {
        "calls": METER | {"close": "72h"},
        "daily": METER | {"stream": "calls", "period": "day", "close": "1h"},
        "open": METER | {"stream": "calls"},
    }
    toml: Toml = {"meters": meters}
    named = {name: meters[name] for name in ("calls", "daily")}
    given = [
        used("2026-03-20"),
        used("2026-03-19", customer_ref="d"),
        closes("2026-03-20T00:00:00Z", meters=named),
        used("2026-02-01", customer_ref="e"),
        closes("2026-04-01T00:00:00Z", meters=named),
        used("2026-03-02", customer_ref="f"),
        used("2026-04-02"),
    ]
    events = with_hashes(alone(*given, stream="calls"), toml)
    write_ledger(database, events)
    march, april = at("2026-04-01") + 72 * HOUR, at("2026-05-01") + 72 * HOUR
    wanted: list[dict[str, int | None]] = [
        {"calls": march, "daily": at("2026-03-21") + HOUR},
        {"calls": march, "daily": at("2026-03-20") + HOUR},
        {"calls": march, "daily": at("2026-03-21") + HOUR},
        {"daily": at("2026-03-21") + HOUR},
        # What begins behind a close is not open.
        {},
        {},
        {"calls": april, "daily": at("2026-04-03") + HOUR},
    ]
    # The close in March closes February of the monthly meter.
    wanted[3]["calls"] = march
    with Folding(spark, database, toml) as folding, database.connect_sync() as connection:
        for sequence, due in enumerate(wanted, start=1):
            folding.advance([(sequence - 1, sequence)])
            found = connection.execute("SELECT metric, close_due FROM fold_closings").fetchall()
            assert dict(found) == due, sequence


def test_many_statements_are_written_in_parts_and_told_in_order(
    spark: Spark, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelock.fold.closing._BLOCKS", 1)
    toml: Toml = {"meters": {"s": METER}}
    events = [used("2026-03-20", n, customer_ref=f"c{n}", tenant_id=f"t{n % 3}") for n in range(300)]
    ledger = with_hashes(alone(*events, closes("2026-04-01T00:00:00Z")), toml)
    picture = folded(spark, databases, ledger, toml)
    assert differences(picture, expected(fold(ledger, toml))) == {}


def folded(
    spark: Spark, databases: Databases, events: Sequence[Event], toml: Toml, *, small_events: int = 10**9
) -> Picture:
    with databases() as database:
        ends = write_ledger(database, events)
        with Folding(spark, database, toml, small_events=small_events) as folding:
            return folding.fold(_ranges(events, ends))


def _ranges(events: Sequence[Event], ends: Sequence[int]) -> list[tuple[int, int]]:
    """As large as they get: what is between control events."""
    control = {event.ingress_sequence for event in events if event.stream == CONTROL}
    bounds = sorted({0, *control, *(sequence - 1 for sequence in control), ends[-1]})
    return [(lo, hi) for lo, hi in pairwise(bounds) if hi > lo]


def test_a_close_by_definitions_that_came_later_is_stated_by_those_in_the_event(
    spark: Spark, database: Database
) -> None:
    """As where the tables are made again from the first event, by definitions that the close did not know."""
    before, now = {"meters": {"s": METER}}, {"meters": {"s": METER | {"aggregation": "count"}}}
    given = [used("2026-03-20", 5), used("2026-03-31", 7), closes("2026-04-01T00:00:00Z"), used("2026-03-30", 1)]
    events = with_hashes(alone(*given), before)
    write_ledger(database, events)
    with folding(spark, database, parse_definitions(now)) as fold:
        fold.wait(4)
    with database.connect_sync() as connection:
        stated = connection.execute("SELECT value, event_count, definition FROM tidelock_tables.statements").fetchall()
        counted = connection.execute("SELECT value, total FROM tidelock_tables.counters").fetchall()
        left = connection.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'tidelock_stated'").fetchone()
    assert stated == [(12, 2, unit_hashes(parse_definitions(before))["meters.s"])]
    assert counted == [(2, 3)]
    assert left == (0,)


@pytest.mark.parametrize("place", ["record_segments", "_ingest", "finish"])
def test_a_fold_that_is_lost_amid_a_close_states_everything_once(
    spark: Spark, database: Database, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Statements, ends and cursor are one transaction: whoever comes next does all of it."""
    monkeypatch.setattr("tidelock.fold.closing._BLOCKS", 1)
    toml: Toml = {"meters": {"s": METER | {"close": "72h"}}}
    events = [used("2026-03-20", n, customer_ref=f"c{n}") for n in range(200)]
    given = [*events, closes("2026-04-01T00:00:00Z", meters=toml["meters"]), used("2026-03-31", customer_ref="c1")]
    ledger = with_hashes(alone(*given), toml)
    write_ledger(database, ledger)
    failing = getattr(Store, place)
    lost: list[int] = []

    def fail(store: Store, *args: Any, **options: Any) -> Any:
        with database.connect_sync() as connection:
            row = connection.execute("SELECT sequence FROM cursors WHERE name = 'fold'").fetchone()
        # Some parts of the close are written by then.
        if row == (200,) and len(lost) < 3:
            lost.append(1)
            if len(lost) == 3:
                raise Unreachable("it is gone")
        return failing(store, *args, **options)

    monkeypatch.setattr(Store, place, fail)
    with folding(spark, database, parse_definitions(toml)) as running:
        running.wait(202)
    assert lost
    assert differences(pictured(database, ALWAYS), expected(fold(ledger, toml))) == {}
