"""Trying meters on the command line and over HTTP: what each would make of an event, by Postgres alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commandline import events, json_lines, run
from tests.fold import folded
from tests.model.samples import at
from tests.recording import record, sequencing
from tidelock.definitions import parse_definitions
from tidelock.postgres.database import Database

METERS = {
    "calls": {"period": "month", "lateness": "1h", "group_by": "data.region"},
    "eu": {"stream": "calls", "aggregation": "count", "where": {"data.region": {"_eq": "eu"}}},
    "sizes": {"stream": "calls", "aggregation": "max", "value": "data.size"},
    "closed": {"stream": "calls", "period": "day"},
    "others": {"stream": "clicks"},
}
EVENT = {"stream": "calls", "customerRef": "c", "quantity": "2.50", "ts": "2026-03-10T12:00:00Z"}


@pytest.fixture
def ledger(database: Database) -> Database:
    """A ledger whose tables are made by these meters: a counter is far ahead, and a day is closed."""

    async def write() -> None:
        async with await database.connect() as connection:
            await folded.define(connection, parse_definitions({"meters": METERS}))
            await folded.counter(connection, "default", "calls", "c", "2026-03-01T00:00:00Z", value="5")
            await connection.execute("UPDATE tidelock_tables.counters SET watermark_ts = %s", [at("13:30:00")])
            await connection.execute(
                """INSERT INTO tidelock_tables."meters$closed" VALUES ('*', '["closed","0"]', 'closed', 0, %s, 1)""",
                [at("2026-03-11")],
            )
        async with sequencing(database) as sequencer:
            await record(sequencer, {**EVENT, "ts": "2026-03-01T00:00:00Z", "idempotencyKey": "taken"})

    asyncio.run(write())
    return database


def tried(database: Database, event: Any, *more: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is said of the event, and of it by each meter."""
    (found,) = json_lines(run(database, "meters", "try", "--event", json.dumps(event), "--json", *more))
    return found, {item["metric"]: item for item in found["items"]}


def test_each_meter_says_what_it_would_make_of_an_event(ledger: Database, tmp_path: Path) -> None:
    found, by_meter = tried(ledger, {**EVENT, "data": {"region": "us", "size": "big"}})
    assert (found["verdict"], found["error"]) == ("accepted", None)
    reasons = {name: (item["outcome"], item["reason"]) for name, item in by_meter.items()}
    assert reasons == {
        "calls": ("adjusted", "late"), "eu": ("not_counted", "filtered"), "sizes": ("error", "missing_quantity"),
        "closed": ("adjusted", "closed"), "others": ("not_counted", "other_stream"),
    }  # fmt: skip
    calls = by_meter["calls"]
    assert [calls[name] for name in ("periodStart", "periodEnd", "group", "quantity", "watermark")] == [
        "2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z", "us", "2.5", "2026-03-10T13:30:00Z",
    ]  # fmt: skip
    assert "data.size" in by_meter["sizes"]["why"]
    _, in_time = tried(ledger, {**EVENT, "ts": "2026-03-10T13:00:00Z", "data": {"region": "eu", "size": 1e3}})
    assert {item["outcome"] for name, item in in_time.items() if name in ("calls", "eu", "sizes")} == {"folded"}
    assert in_time["sizes"]["quantity"] == "1000"
    _, nobody = tried(ledger, {**EVENT, "customerRef": None})
    assert (nobody["calls"]["reason"], nobody["eu"]["reason"]) == ("missing_customer", "filtered")
    # By other definitions: how far the counter would be is in the ledger.
    file = tmp_path / "new.toml"
    file.write_text('[meters.calls]\nlateness = "0s"\nperiod = "day"\n[streams.calls]\ncolumns = { n = "int" }')
    _, other = tried(ledger, {**EVENT, "data": {"n": "x"}}, "--definitions", file)
    assert (list(other), other["calls"]["reason"]) == (["calls"], "invalid_column")
    _, other = tried(ledger, {**EVENT, "ts": "2026-03-01T00:00:00Z"}, "--definitions", file)
    assert (other["calls"]["outcome"], other["calls"]["watermark"]) == ("folded", "2026-03-01T00:00:00Z")
    assert len(events(ledger, "stream")) == 1, "nothing was recorded"


def test_an_event_that_would_not_be_recorded_is_counted_by_none(ledger: Database) -> None:
    for event, verdict, reason in (
        ({**EVENT, "quantity": "1.0000000001"}, "rejected", "invalid_quantity"),
        ({**EVENT, "ts": "2261-01-01T00:00:00Z"}, "rejected", "future_timestamp"),
        ({"customerRef": "c"}, "rejected", "invalid_event"),
        ({**EVENT, "ts": "2026-03-01T00:00:00Z", "idempotencyKey": "taken"}, "duplicate", "duplicate"),
        ({**EVENT, "idempotencyKey": "taken"}, "conflict", "conflict"),
    ):
        found, by_meter = tried(ledger, event)
        assert found["verdict"] == verdict
        assert {(item["outcome"], item["reason"]) for item in by_meter.values()} == {("not_counted", reason)}
        assert found["ingressSequence"] == (None if verdict == "rejected" else 1)
    shown = run(ledger, "meters", "try", "--event", json.dumps(EVENT))
    assert "accepted" in shown.stdout
    assert "adjustment" in shown.stdout
    wrong = run(ledger, "meters", "try", "--event", json.dumps({"op": "void", "stream": "calls", "target": "taken"}))
    assert wrong.exit_code == 2
    assert "a correction cannot be tried" in wrong.output
