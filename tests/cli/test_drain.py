"""Draining on the command line: what is recorded, and what cannot be drained."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commandline import events, json_lines, run
from tests.cli.test_cli import fill, post, up
from tests.fold import folded
from tidelock.definitions import parse_definitions
from tidelock.postgres.database import Database

TABLES: dict[str, Any] = {
    "streams": {
        "trades": {"eventtime": {"column": "occurred_at"}, "ordered": True},
        "other": {"eventtime": {"column": "occurred_at"}},
    },
    "windows": {
        "volume": {
            "stream": "trades",
            "window": {"tumbling": "1m"},
            "eventtime": {"enabled": True},
            "select": {"n": "count(*)"},
        },
        "arrivals": {"stream": "trades", "window": {"tumbling": "1m"}, "select": {"n": "count(*)"}},
    },
}
TOML = """
[streams.trades]
eventtime = { column = "occurred_at" }
ordered = true

[windows.arrivals]
stream = "trades"
window = { tumbling = "1m" }
select = { n = "count(*)" }
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def define(database: Database, tables: Mapping[str, Any] = TABLES) -> None:
    """The tables are made by these definitions."""

    async def write() -> None:
        async with await database.connect() as connection:
            await folded.define(connection, parse_definitions(tables))

    asyncio.run(write())


@pytest.mark.parametrize(
    ("given", "recorded", "windows"),
    [
        ([], '{"type":"drain"}', ["volume", "trades_ordered"]),
        (["volume"], '{"type":"drain","window":"volume"}', ["volume"]),
        (["trades_ordered"], '{"type":"drain","window":"trades_ordered"}', ["trades_ordered"]),
    ],
)
def test_a_drain_is_a_control_event_of_the_ledger(
    database: Database, given: list[str], recorded: str, windows: list[str]
) -> None:
    define(database)
    fill(database, {})
    (told,) = json_lines(run(database, "drain", *given, "--json"))
    columns = "ingress_sequence, source_timestamp::text, tenant_id, stream, data::text"
    event = (2, told["sourceTimestamp"], "_tidelock", "_tidelock", recorded)
    assert events(database, columns)[1:] == [event]
    assert told == {
        "ingressSequence": 2,
        "sourceTimestamp": told["sourceTimestamp"],
        "window": given[0] if given else None,
        "windows": windows,
    }


def test_people_are_told_where_it_was_recorded_and_what_happens_next(database: Database) -> None:
    define(database)
    shown = run(database, "drain").stdout
    ((at,),) = events(database, "source_timestamp::text")
    assert "sequence 1 at 20" in shown
    assert f"source timestamp {at}." in shown
    assert "volume, trades_ordered" in shown
    assert "tidelock status" in shown


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("volme", 'there is no event-time window "volme"; available: volume, trades_ordered'),
        ("trades", "available: volume, trades_ordered"),
        ("other_ordered", "available: volume, trades_ordered"),
        ("", "available: volume, trades_ordered"),
        ("arrivals", "is a window by arrival: it holds no rows and closes automatically"),
    ],
)
def test_what_cannot_be_drained_is_told_and_nothing_is_recorded(database: Database, name: str, said: str) -> None:
    define(database)
    result = run(database, "drain", name)
    assert result.exit_code == 2
    assert said in result.stderr
    assert events(database) == []


def test_where_nothing_goes_by_event_time_there_is_nothing_to_drain(database: Database) -> None:
    for given in ([], ["volume"]):
        result = run(database, "drain", *given)
        assert result.exit_code == 2
        assert "nothing to drain: no window has eventtime.enabled" in result.stderr


def test_before_the_fold_has_run_the_settings_tell_what_there_is(database: Database, tmp_path: Path) -> None:
    (tmp_path / "tidelock.toml").write_text(TOML)
    assert json_lines(run(database, "drain", "--json"))[0]["windows"] == ["trades_ordered"]
    assert "by arrival" in run(database, "drain", "arrivals").stderr


def test_it_works_beside_a_server_and_alone(tmp_path: Path) -> None:
    (tmp_path / "tidelock.toml").write_text(TOML)
    with up(tmp_path, "--data", tmp_path / "data") as (_, url):
        assert post(url, {"stream": "trades"})["accepted"] == 1
        assert json_lines(run(None, "drain", "--json", "--data", tmp_path / "data"))[0]["ingressSequence"] == 2
        assert post(url, {"stream": "trades"})["results"][0]["ingressSequence"] == 3
    assert json_lines(run(None, "drain", "--json", "--data", tmp_path / "data"))[0]["ingressSequence"] == 4
