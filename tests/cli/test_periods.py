"""Closing periods on the command line: what is recorded, what is shown, and what cannot be closed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.cli.commandline import events, json_lines, run
from tests.fold import folded
from tidelock.definitions import parse_definitions
from tidelock.postgres.database import Database

METERS = parse_definitions({"meters": {"calls": {"period": "month", "close": "72h"}, "daily": {"period": "day"}}})


@pytest.fixture
def ledger(database: Database) -> Database:
    """A ledger whose tables are made by these meters."""

    async def write() -> None:
        async with await database.connect() as connection:
            await folded.define(connection, METERS)
            await folded.counter(connection, "default", "calls", "c", "2026-03-01T00:00:00Z", value="5")

    asyncio.run(write())
    return database


def test_a_close_is_a_control_event_with_whole_definitions(ledger: Database) -> None:
    (told,) = json_lines(run(ledger, "close", "--period", "2026-10", "--json"))
    assert told == {"ingressSequence": 1}
    ((tenant, data),) = events(ledger, "tenant_id, data")
    assert (tenant, data["type"], data["tenantId"]) == ("_tidelock", "close", None)
    calls = data["meters"]["calls"]
    assert calls["through"] == "2026-11-01T00:00:00Z"
    assert calls["definition"] == METERS.meters["calls"].canonical()
    assert calls["definition"]["close"] == "3d"
    assert data["meters"]["daily"]["through"] == "2026-11-01T00:00:00Z"
    again = run(ledger, "close", "--through", "2026-11-01")
    assert (again.exit_code, again.stdout) == (0, "Nothing is left to close: these periods are already closed.\n")
    further = run(ledger, "close", "--through", "2026-11-03", "--metric", "daily")
    assert "Recorded as sequence 2." in further.stdout
    assert list(events(ledger, "data")[1][0]["meters"]) == ["daily"]


def test_periods_are_shown_with_what_is_open_of_them(ledger: Database) -> None:
    shown = run(ledger, "periods", "--metric", "calls")
    assert shown.exit_code == 0
    assert "never closed" in shown.stdout
    assert "2026-04-04T00:00:00Z" in shown.stdout
    (found,) = json_lines(run(ledger, "periods", "--metric", "calls", "--json"))
    assert found["open"] == [
        {
            "periodStart": "2026-03-01T00:00:00Z",
            "periodEnd": "2026-04-01T00:00:00Z",
            "counters": 1,
            "closesAt": "2026-04-04T00:00:00Z",
        }
    ]
    assert run(ledger, "close", "--period", "2026-03").exit_code == 0
    (closed,) = json_lines(run(ledger, "periods", "--metric", "calls", "--json"))
    assert (closed["closedThrough"], closed["open"]) == ("2026-04-01T00:00:00Z", [])


def test_a_dry_run_of_an_import_tells_events_of_closed_periods_from_late_ones(ledger: Database, tmp_path: Path) -> None:
    assert run(ledger, "close", "--period", "2026-02", "--metric", "calls").exit_code == 0
    first = _file(tmp_path / "a.csv", "other,c,2026-02-05")
    assert run(ledger, "import", first, *_with_meters(tmp_path)).exit_code == 0
    closed = ["--through", "2026-02-03", "--metric", "daily", "--tenant", "other"]
    assert run(ledger, "close", *closed).exit_code == 0
    # One meter is closed for every tenant, the other one for the tenant alone; the last row comes too late for a month.
    days = ["other,c,2026-02-01", "new,c,2026-02-28", "new,c,2026-03-31", "new,c,2026-03-01"]
    file = _file(tmp_path / "b.csv", *days)
    found = run(ledger, "import", file, "--dry-run", "--as-is", "--json", *_with_meters(tmp_path))
    assert json.loads(found.stdout)["adjustments"] == [
        {"metric": "calls", "reason": "late", "count": 1},
        {"metric": "calls", "reason": "closed", "count": 2},
        {"metric": "daily", "reason": "closed", "count": 1},
    ]
    shown = run(ledger, "import", file, "--dry-run", *_with_meters(tmp_path)).stdout
    assert "2 adjustments of calls: for closed periods" in shown
    assert "lateness" not in shown


def _file(path: Path, *rows: str) -> Path:
    """Tenant, customer and day of each row, for both meters."""
    lines = [f"{row}T00:00:00Z,{stream},1\n" for row in rows for stream in ("calls", "daily")]
    path.write_text("tenantId,customerRef,ts,stream,quantity\n" + "".join(lines))
    return path


def _with_meters(folder: Path) -> tuple[str, Path]:
    settings = folder / "tidelock.toml"
    settings.write_text('[meters.calls]\nperiod = "month"\nclose = "72h"\n[meters.daily]\nperiod = "day"\n')
    return "--config", settings


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ([], 2, "either --through or --period"),
        (["--through", "2026-01-01", "--period", "2026-01"], 2, "either --through or --period"),
        (["--period", "March"], 2, "a month as 2026-10"),
        (["--period", "2026-13"], 2, "a month as 2026-10"),
        (["--period", "2026-01-01T00:00:00Z"], 2, "for an instant use --through"),
        (["--through", "yesterday"], 2, "--through: "),
        (["--through", "2200-01-01"], 2, "periods that have not ended cannot be closed"),
        (["--through", "2026-01-01", "--metric", "cals"], 2, 'there is no metric "cals"; available: calls, daily'),
        (
            ["--through", "2026-01-01", "--tenant", "nobody"],
            2,
            'recorded for tenant "nobody"; name no tenant to close for all',
        ),
    ],
)
def test_what_cannot_be_closed_is_said(ledger: Database, given: list[str], code: int, said: str) -> None:
    result = run(ledger, "close", *given)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in " ".join(result.stderr.split())
    assert events(ledger) == []


def test_nothing_is_closed_before_a_fold_has_run(database: Database) -> None:
    result = run(database, "close", "--through", "2026-01-01")
    assert result.exit_code == 3
    assert "nothing has been folded yet" in " ".join(result.stderr.split())
    assert json.loads(json.dumps(events(database))) == []


@pytest.mark.parametrize(
    ("period", "through"),
    [
        ("2026-W53", "2027-01-04T00:00:00Z"),
        ("2026-12-31", "2027-01-01T00:00:00Z"),
        ("2024-02", "2024-03-01T00:00:00Z"),
        ("2026-10-31T13", "2026-10-31T14:00:00Z"),
    ],
)
def test_a_period_is_short_for_its_end(period: str, through: str) -> None:
    from tidelock.instants import format_instant
    from tidelock.usage.closing import read_period

    assert format_instant(read_period(period).end) == through
