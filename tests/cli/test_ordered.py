"""The ordered tail: released rows in the order of their time, each watermark after the rows that it released."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.changes.test_reader import write
from tests.cli.commandline import json_lines, process, run
from tests.fold import folded
from tidelock.changes.log import prune
from tidelock.changes.reader import Change
from tidelock.definitions import parse_definitions
from tidelock.instants import format_instant
from tidelock.postgres.database import Database
from tidelock.tables import WATERMARKS, Table, tables_of
from tidelock.views.rows import RowSelection, read_rows

TRADES = {
    "eventtime": {"column": "at", "type": "unixtimestamp_ms"}, "ordered": True,
    "columns": {"at": "bigint", "price": "decimal(9,2)", "note": "json", "day": "date"},
}  # fmt: skip
DEFINITIONS = parse_definitions(
    {"streams": {"trades": TRADES, "quiet": {**TRADES, "live": False}, "plain": {"key": "customer_ref"}}}
)
ORDERED, QUIET = (tables_of(DEFINITIONS)[f"{name}_ordered"] for name in ("trades", "quiet"))
#: collection -> times it releases (with sequences), and the watermark it raises
FIRST = (1000, [(5, 12), (5, 9), (3, 10)], 7)
SECOND = (2000, [(9, 11)], 9)
DRAIN = (3000, [(20, 100), (15, 20)], None)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Output:
    """Ordered output as the fold makes it: rows in the table, and changes of them and of the watermark."""

    def __init__(self, database: Database, table: Table = ORDERED, tenant: str = "default") -> None:
        self._database = database
        self._table = table
        self._tenant = tenant
        self._position = 0
        self._watermark: int | None = None

    def release(self, at: int, released: Sequence[tuple[int, int]], watermark: int | None, **options: Any) -> None:
        """One collection: (event time, sequence) of the rows, and the watermark if it was raised."""
        changes = []
        for event_time, sequence in sorted(released):
            self._position += 1
            row = {
                "ingress_sequence": sequence, "position": self._position, "event_time": event_time, "at": event_time,
                "price": None, "note": '{"a": [1]}', "day": None,
            }  # fmt: skip
            asyncio.run(self._put(sequence, at, row))
            changes.append(Change(self._table.name, at, self._tenant, str(sequence), old=None, new=row))
        with self._database.connect_sync() as connection, connection.transaction():
            write(connection, at, *changes, columns=self._table.columns, **options)
            if watermark is not None:
                old = None if self._watermark is None else {"window": self._table.name, "watermark": self._watermark}
                new = {"window": self._table.name, "watermark": watermark}
                raised = Change(WATERMARKS.name, at, self._tenant, self._table.name, old=old, new=new)
                write(connection, at, raised, columns=WATERMARKS.columns, **options)
                self._watermark = watermark
            connection.execute(f"NOTIFY tidelock_fold, '{at}'".encode())

    async def _put(self, sequence: int, at: int, row: dict[str, Any]) -> None:
        async with await self._database.connect() as connection:
            await folded.put(connection, self._table, self._tenant, str(sequence), row | {"source_timestamp": at})


def define_ordered(database: Database) -> None:
    """The tables, as the fold makes them."""

    async def work() -> None:
        async with await database.connect() as connection:
            tables = await folded.define(connection, DEFINITIONS)
            for name in (ORDERED.name, QUIET.name):
                await folded.create(connection, tables[name])

    asyncio.run(work())


@pytest.fixture
def made(database: Database) -> Database:
    define_ordered(database)
    return database


def lines(database: Database, *arguments: object, stream: str = "trades") -> list[Any]:
    """Sequences of rows, and texts of watermarks."""
    return [short(line) for line in json_lines(run(database, "tail", "--ordered", stream, "--json", *arguments))]


def short(line: dict[str, Any]) -> Any:
    return line["row"]["ingress_sequence"] if "row" in line else line["watermark"]


def instants(*times: int) -> list[str]:
    return [format_instant(time) for time in times]


def test_rows_come_in_the_order_of_their_time_and_then_the_watermark(made: Database) -> None:
    output = Output(made)
    for released in (FIRST, SECOND, DRAIN):
        output.release(*released)
    seven, nine = instants(7, 9)
    assert lines(made, "--after", 0) == [10, 9, 12, seven, 11, nine, 20, 100]
    assert lines(made, "--after", 1000) == [11, nine, 20, 100]
    assert lines(made, "--after", 3000) == []
    assert lines(made) == [10, 9, 12, seven, 11, nine, 20, 100], "ten are asked for, so many there are not"
    assert lines(made, "-n", 4) == [12, seven, 11, nine, 20, 100]
    assert lines(made, "-n", 3) == [11, nine, 20, 100]
    assert lines(made, "-n", 2) == [20, 100], "what was before them is not theirs"
    assert lines(made, "-n", 0) == []


def test_as_a_list_they_come_in_the_order_of_their_release(made: Database) -> None:
    Output(made).release(1000, [(time, 1005 - time) for time in range(12)], 7)
    Output(made, tenant="other").release(2000, [(1, 7)], 8)
    assert asyncio.run(positions(made)) == [*range(1, 13), 1]


async def positions(database: Database) -> list[object]:
    found: list[object] = []
    after = None
    async with await database.connect() as connection:
        while True:
            page = await read_rows(connection, RowSelection(ORDERED, after=after), rows_max=5, bytes_max=10**6)
            found += [item["position"] for item in page.items]
            if (after := page.last) is None:
                return found


def test_a_line_is_a_row_or_a_watermark(made: Database) -> None:
    output = Output(made)
    output.release(*SECOND)
    row, watermark = json_lines(run(made, "tail", "--ordered", "trades", "--json"))
    assert row == {
        "sourceTimestamp": "2000",
        "row": {
            "tenant_id": "default", "ingress_sequence": 11, "position": 1, "event_time": format_instant(9), "at": 9,
            "price": None, "note": {"a": [1]}, "day": None,
        },
    }  # fmt: skip
    assert watermark == {"sourceTimestamp": "2000", "tenantId": "default", "watermark": format_instant(9)}
    first, second = run(made, "tail", "--ordered", "trades").stdout.splitlines()
    assert first.split()[:2] == ["1", format_instant(9)]
    assert second.split() == ["watermark", format_instant(9)]


def test_tenants_are_distinguished(made: Database) -> None:
    ours, theirs = Output(made), Output(made, tenant="acme")
    ours.release(*FIRST)
    theirs.release(1500, [(1, 13)], 6)
    assert lines(made, "--tenant", "acme") == [13, *instants(6)]
    assert lines(made, "--tenant", "default", "-n", 1) == [12, *instants(7)]
    assert lines(made, "-n", 2) == [12, *instants(7), 13, *instants(6)]
    assert "acme" in run(made, "tail", "--ordered", "trades").stdout


def test_what_is_older_than_the_changes_comes_from_the_table(made: Database) -> None:
    output = Output(made)
    output.release(*FIRST, age="2d")
    output.release(*SECOND)
    with made.connect_sync() as connection:
        assert prune(connection, 86_400 * 10**9)
    nine = format_instant(9)
    assert lines(made, "--after", 0) == [10, 9, 12, 11, nine], "without the watermark, which is not kept any more"
    assert lines(made) == [10, 9, 12, 11, nine]
    assert lines(made, "-n", 2) == [12, 11, nine]
    row = json_lines(run(made, "tail", "--ordered", "trades", "--json"))[0]
    assert row["sourceTimestamp"] == "1000"
    assert row["row"]["note"] == {"a": [1]}


def test_where_no_changes_are_kept_the_table_tells_and_cannot_be_followed(made: Database) -> None:
    output = Output(made, QUIET)
    for released in (FIRST, DRAIN):
        output.release(*released)
    with made.connect_sync() as connection:
        connection.execute("DELETE FROM changes")
    assert lines(made, "--after", 0, stream="quiet") == [10, 9, 12, 20, 100]
    assert lines(made, "-n", 3, stream="quiet") == [12, 20, 100]
    refused = run(made, "tail", "-f", "--ordered", "quiet")
    assert refused.exit_code == 2
    assert "live = false" in refused.stderr


def test_before_the_fold_has_run_there_is_nothing(database: Database, tmp_path: Path) -> None:
    (tmp_path / "tidelock.toml").write_text(
        '[streams.trades]\neventtime = { column = "occurred_at" }\nordered = true\n'
    )
    assert lines(database) == []
    assert lines(database, "--after", 0) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ordered", "plain"], 'stream "plain" is not ordered; these are: trades, quiet'),
        (["--ordered", "trades", "--stream", "trades"], "can be combined with --tenant only"),
        (["--ordered", "trades", "--after", "-1"], "--after is a source timestamp"),
    ],
)
def test_wrong_use_is_reported(made: Database, arguments: list[str], said: str) -> None:
    result = run(made, "tail", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_another_definition_is_reported_and_not_taken_for_rows_released(made: Database) -> None:
    output = Output(made)
    output.release(*FIRST)
    with made.connect_sync() as connection:
        row = {
            "ingress_sequence": 10, "position": 1, "event_time": 3, "at": 3, "price": None, "note": None, "day": None
        }  # fmt: skip
        changed = Change(ORDERED.name, 1500, "default", "10", old=row, new={**row, "position": 2})
        write(connection, 1500, changed, columns=ORDERED.columns)
    output.release(*SECOND)
    result = run(made, "tail", "--ordered", "trades", "--json", "--after", 0)
    assert [short(line) for line in json_lines(result)] == [10, 9, 12, *instants(7), 11, *instants(9)]
    assert "definition changed at 1970-01-01T00:00:00.0000015Z" in result.stderr


def test_it_follows_until_it_is_interrupted_also_through_an_outage(made: Database, tmp_path: Path) -> None:
    output = Output(made)
    output.release(*FIRST)
    following = process(
        "tail", "-f", "-n", 1, "--ordered", "trades", "--json", "--database-url", made.url, cwd=tmp_path
    )
    assert following.stdout is not None

    def next_line() -> Any:
        assert following.stdout is not None
        return short(json.loads(following.stdout.readline()))

    assert [next_line(), next_line()] == [12, *instants(7)]
    output.release(*SECOND)
    assert [next_line(), next_line()] == [11, *instants(9)]
    with made.connect_sync() as connection:
        gone = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tidelock tail'"
        ).fetchall()
        assert gone
    output.release(*DRAIN)
    assert [next_line(), next_line()] == [20, 100]
    following.send_signal(signal.SIGINT)
    rest, said = following.communicate(timeout=30)
    assert (following.returncode, rest, said) == (130, "", "")
