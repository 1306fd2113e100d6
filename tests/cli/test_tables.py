"""The commands that read the fold's tables, for people and for programs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.changes.test_reader import write
from tests.cli.commandline import json_lines, run
from tests.cli.test_cli import fill
from tests.fold import folded
from tidelock.changes.reader import Change
from tidelock.columns import STRING
from tidelock.definitions import parse_definitions
from tidelock.postgres.database import Database

DEFINITIONS = parse_definitions(
    {
        "streams": {"trades": {"key": "id", "columns": {"id": "bigint", "price": "decimal(9,2)", "at": "timestamp"}}},
        "meters": {"calls": {"group_by": ["data.region"]}},
    }
)
MARCH = "2026-03-01T00:00:00Z"
COLUMNS = DEFINITIONS.streams["trades"].columns


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def prepare(database: Database, work: Callable[[folded.Connection], Awaitable[Any]]) -> None:
    async def working() -> None:
        async with await database.connect() as connection:
            await folded.define(connection, DEFINITIONS)
            await work(connection)

    asyncio.run(working())


@pytest.fixture
def used(database: Database) -> Database:
    async def work(connection: folded.Connection) -> None:
        await connection.execute("INSERT INTO cursors VALUES ('fold', 1234)")
        for tenant, value in (("default", "1.50"), ("acme", "7")):
            await folded.counter(connection, tenant, "calls", "c", MARCH, value=value, total="9")
        await folded.counter(connection, "default", "calls", "c", MARCH, value="1", group_key="eu")

    prepare(database, work)
    return database


def test_usage_is_a_table_for_people(used: Database) -> None:
    shown = run(used, "usage", "calls", "c").stdout
    assert "calls of c: sum by month, through sequence 1,234" in shown
    assert shown.splitlines()[1].split() == ["from", "to", "value", "adjustment", "total", "watermark"]
    assert shown.splitlines()[2].split() == [MARCH, "2026-04-01T00:00:00Z", "1.5", "7.5", "9", MARCH]
    assert "eu" in run(used, "usage", "calls", "c", "--groups").stdout
    nothing = run(used, "usage", "calls", "nobody")
    assert (nothing.exit_code, "No usage" in nothing.stderr) == (0, True)


def test_usage_is_the_answer_of_the_api_for_programs(used: Database) -> None:
    (found,) = json_lines(run(used, "usage", "calls", "c", "--tenant", "acme", "--json"))
    assert (found["metric"], found["throughSequence"], found["items"][0]["value"]) == ("calls", 1234, "7")
    (found,) = json_lines(run(used, "usage", "calls", "c", "--from", "2026-04-01T00:00:00Z", "--json"))
    assert found["items"] == []


def test_usage_of_a_metric_that_nothing_defines_exits_with_two(used: Database) -> None:
    failed = run(used, "usage", "nothing", "c")
    assert (failed.exit_code, "available: calls" in failed.stderr) == (2, True)
    assert run(used, "usage", "calls", "c", "--from", "soon").exit_code == 2
    assert run(used, "usage", "calls", "\udcff").exit_code == 2


@pytest.fixture
def explained(database: Database) -> Database:
    """A counter of three events, the last of them late."""
    days = (("10", "5"), ("20", "2.5"), ("11", "1"))
    fill(database, *({"stream": "calls", "customerRef": "c", "ts": f"2026-03-{d}T00:00:00Z", "quantity": q,
                      "data": {"region": "[eu]"}} for d, q in days))  # fmt: skip

    async def work(connection: folded.Connection) -> None:
        await connection.execute("INSERT INTO cursors VALUES ('fold', 3)")
        await folded.counter(connection, "default", "calls", "c", MARCH, value="7.5", total="8.5")
        await connection.execute("UPDATE tidelock_tables.counters SET watermark_ts = 1773964800000000000")

    prepare(database, work)
    return database


def test_explain_says_why_and_shows_the_events(explained: Database) -> None:
    found = run(explained, "explain", "calls", "c", "--period", "2026-03-31")
    assert found.exit_code == 0, found.stderr
    lines = found.stdout.splitlines()
    assert lines[0] == f"calls of c, {MARCH} to 2026-04-01T00:00:00Z, through sequence 3"
    assert lines[3] == "8.5 = 7.5 on time + 1 late"
    assert lines[4].startswith("8.5 comes from 2 events on time, which alone amount to 7.5, and from 1 event")
    assert lines[-1].split() == ["3", "2026-03-11T00:00:00Z", "adjusted", "1", "1", "8.5"]
    few = run(explained, "explain", "calls", "c", "--events", "1").stdout
    assert "There are more events" in few
    assert "adjusted        1" not in few
    assert "sequence  occurred" not in run(explained, "explain", "calls", "c", "--events", "0").stdout


def test_explain_tells_events_that_came_after_the_close_from_late_ones(explained: Database) -> None:
    with explained.connect_sync() as connection:
        values = "'default', 'a key', 'calls', 2, 1775001600000000000, 1"
        connection.execute(f'INSERT INTO tidelock_tables."meters$closed" VALUES ({values})'.encode())
    lines = run(explained, "explain", "calls", "c").stdout.splitlines()
    assert lines[3] == "8.5 = 7.5 on time + 1 adjusted"
    assert any(line.startswith("adjusted, too late or after the close  ") for line in lines)
    assert lines[-1].split() == ["3", "2026-03-11T00:00:00Z", "closed", "1", "1", "8.5"]


def test_explain_is_the_answer_of_the_api_for_programs(explained: Database) -> None:
    (found,) = json_lines(run(explained, "explain", "calls", "c", "--as-of", "2", "--group", "[eu]", "--json"))
    assert (found["total"], found["throughSequence"], found["pending"], len(found["items"])) == ("7.5", 2, 1, 2)
    (then,) = json_lines(run(explained, "usage", "calls", "c", "--as-of", "1", "--json"))
    assert (then["items"][0]["total"], then["throughSequence"]) == ("5", 1)


def test_explain_exits_with_one_where_the_counter_is_another(explained: Database) -> None:
    with explained.connect_sync() as connection:
        connection.execute("UPDATE tidelock_tables.counters SET value = 9")
    found = run(explained, "explain", "calls", "c")
    assert (found.exit_code, "tidelock recompute --check" in found.stderr) == (1, True)
    assert "8.5 = 7.5 on time" in found.stdout


def test_what_cannot_be_explained_exits_with_two(explained: Database) -> None:
    for flags in (["--as-of", "4"], ["--as-of", "0"], ["--period", "soon"], ["--group", "a", "--no-group"]):
        assert run(explained, "explain", "calls", "c", *flags).exit_code == 2, flags
    nobody = run(explained, "explain", "calls", "nobody")
    assert (nobody.exit_code, "has no event of stream" in nobody.stderr) == (2, True)
    assert run(explained, "usage", "calls", "c", "--as-of", "4").exit_code == 2


@pytest.fixture
def changed(database: Database) -> Database:
    def row(number: int, price: str) -> dict[str, Any]:
        return {"id": number, "price": Decimal(price), "at": 10**9}

    prepare(database, lambda connection: connection.execute("SELECT 1"))
    with database.connect_sync() as connection:
        write(connection, 1, Change("trades", 10, "default", "1", old=None, new=row(1, "1.50")), columns=COLUMNS)
        write(connection, 2, Change("trades", 20, "default", "1", old=row(1, "1.50"), new=row(1, "2.00")),
              Change("trades", 20, "acme", "2", old=None, new=row(2, "3.00")), columns=COLUMNS)  # fmt: skip
        write(connection, 3, Change("trades", 30, "default", "1", old=row(1, "2.00"), new=None), columns=COLUMNS)
    return database


def test_changes_are_lines_for_people(changed: Database) -> None:
    lines = [line.split("  ") for line in run(changed, "changes", "trades").stdout.splitlines()]
    assert [line[0] for line in lines] == ["10", "20", "20", "30"]
    assert lines[0][2:] == ["insert", "1", "id 1", "price 1.5", "at 1970-01-01T00:00:01Z"]
    assert lines[1][2:] == ["update", "1", "price 1.5 -> 2"]
    assert lines[2][2:5] == ["acme", "insert", "2"]
    assert lines[3][2:] == ["delete", "1"]


def test_changes_are_one_object_a_line_for_programs(changed: Database) -> None:
    found = json_lines(run(changed, "changes", "trades", "--json"))
    assert found[1] == {
        "sourceTimestamp": "20",
        "key": "1",
        "old": {"tenant_id": "default", "id": 1, "price": "1.5", "at": "1970-01-01T00:00:01Z"},
        "new": {"tenant_id": "default", "id": 1, "price": "2", "at": "1970-01-01T00:00:01Z"},
    }
    assert (found[0]["old"], found[3]["new"]) == (None, None)


@pytest.mark.parametrize(
    ("flags", "times"),
    [
        (["-n", "1"], ["30"]),
        (["-n", "2"], ["20", "30"]),
        (["--after", "10"], ["20", "20", "30"]),
        (["--after", "10", "-n", "2"], ["20", "30"]),
        (["--tenant", "acme"], ["20"]),
        (["--after", "30"], []),
    ],
)
def test_changes_are_chosen_by_number_time_and_tenant(changed: Database, flags: list[str], times: list[str]) -> None:
    found = json_lines(run(changed, "changes", "trades", "--json", *flags))
    assert [each["sourceTimestamp"] for each in found] == times


def test_all_changes_that_are_kept_are_printed_by_default(changed: Database) -> None:
    def row(price: int) -> dict[str, Any]:
        return {"id": 7, "price": Decimal(price), "at": None}

    with changed.connect_sync() as connection:
        for number in range(4, 40):
            found = Change("trades", 10 * number, "default", "7", old=row(number - 1), new=row(number))
            write(connection, number, found, columns=COLUMNS)
    assert len(json_lines(run(changed, "changes", "trades", "--json"))) == 4 + 36
    assert len(run(changed, "changes", "trades").stdout.splitlines()) == 4 + 36


def test_changes_from_before_a_column_had_another_type_are_shown_as_they_were(changed: Database) -> None:
    before = {"id": STRING, "price": STRING, "at": STRING}
    row = {"id": "a", "price": "b", "at": "c"}
    with changed.connect_sync() as connection:
        write(connection, 4, Change("trades", 40, "default", "9", old=None, new=row), columns=before)
    (found,) = json_lines(run(changed, "changes", "trades", "--json", "-n", "1"))
    assert found["new"] == {"tenant_id": "default", **row}


def test_changes_that_are_not_kept_any_more_are_reported(changed: Database) -> None:
    with psycopg.connect(changed.url, autocommit=True) as connection:
        connection.execute("UPDATE changes_pruned SET source_timestamp = 15")
    failed = run(changed, "changes", "trades", "--after", "10")
    assert (failed.exit_code, "have expired" in failed.stderr) == (2, True)
    assert len(json_lines(run(changed, "changes", "trades", "--json"))) == 3
    assert len(json_lines(run(changed, "changes", "trades", "--tenant", "acme", "--json"))) == 1


def test_a_table_that_there_is_not_is_named_with_those_there_are(changed: Database) -> None:
    failed = run(changed, "changes", "trade")
    assert failed.exit_code == 2
    assert (
        "available: counters, counter_groups, adjustments, statements, error_rows, late_rows, trades" in failed.stderr
    )
    assert run(changed, "changes", "trades", "--after", "-1").exit_code == 2
    assert json_lines(run(changed, "changes", "counters", "--json")) == []


def test_status_shows_how_far_the_fold_is(database: Database) -> None:
    fill(database, {}, {}, {})
    with database.connect_sync() as connection:
        connection.execute("INSERT INTO cursors VALUES ('fold', 1)")
    (found,) = json_lines(run(database, "status", "--json"))
    (reader,) = found["readers"]
    assert (reader["name"], reader["ingressSequence"], reader["lagSequences"]) == ("fold", 1, 2)
    assert "fold" in run(database, "status").stdout
