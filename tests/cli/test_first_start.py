"""The first start: what a server says of itself, and offers to try, is true."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commandline import run
from tidelock.cli.example import example
from tidelock.cli.serve import _place, _welcome
from tidelock.definitions import parse_definitions
from tidelock.settings import load

pytestmark = pytest.mark.check

_COLUMNS = {
    "id": "bigint", "name": "string", "n": "int", "x": "double", "price": "decimal(2,2)", "on": "boolean",
    "at": "timestamp", "day": "date", "j": "json", "ts": "bigint",
}  # fmt: skip
_TIMED = {"column": "ts", "type": "unixtimestamp"}


@pytest.mark.parametrize(
    ("definitions", "streams_open", "stream", "data"),
    [
        ({}, True, "api_calls", None),
        ({}, False, None, None),
        ({"meters": {"calls": {}}}, False, "calls", None),
        ({"meters": {"m": {"stream": "calls"}}, "streams": {"a": {}}}, True, "calls", None),
        ({"streams": {"t": {"key": "id", "columns": _COLUMNS, "eventtime": _TIMED}}}, False, "t", set(_COLUMNS)),
        ({"streams": {"t": {"key": ["data.a.b", "resource_id"]}}}, False, "t", {"a"}),
        ({"streams": {"t": {"key": "source", "eventtime": {"column": "data.at", "type": "rfc3339"}}}}, False, "t",
         {"at"}),
    ],
)  # fmt: skip
def test_an_event_is_offered_that_the_definitions_take(
    definitions: Mapping[str, Any], streams_open: bool, stream: str | None, data: set[str] | None
) -> None:
    text = example(parse_definitions(definitions), streams_open=streams_open)
    if stream is None:
        assert text is None
        return
    assert text is not None
    event = json.loads(text)
    assert (event["stream"], set(event["data"]) if "data" in event else None) == (stream, data)


def test_the_database_is_called_by_what_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url, place = "postgresql://me:secret@db.example/ledger", "db.example:5432/ledger"
    assert _place(load(None, {}, {"database_url": url}), True) == f"the database of --database-url ({place})"
    monkeypatch.setenv("DATABASE_URL", url)
    assert _place(load(None, {"DATABASE_URL": url}, {}), False) == f"the database of DATABASE_URL ({place})"
    monkeypatch.delenv("DATABASE_URL")
    Path("tidelock.toml").write_text(f'database_url = "{url}"\n')
    assert _place(load(None, {}, {}), False) == f"the database of database_url in tidelock.toml ({place})"


def test_the_console_is_named_only_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "console" in _welcome("http://h", 1, None, keyless=True)
    monkeypatch.setattr("tidelock.cli.serve.find_spec", lambda _: None)
    said = _welcome("http://h", 1, None, keyless=True)
    assert "console" not in said
    assert "no stream is declared" in said


def test_load_with_nothing_set_names_both_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(None, "load")
    assert result.exit_code == 2
    assert "--lake-path" in result.stderr
    assert "--clickhouse-url" in result.stderr


def test_make_says_what_it_installs_before_it_does() -> None:
    lines = (Path(__file__).parents[2] / "Makefile").read_text().splitlines()
    for what in ("uv sync", "npm ci", "install $$(test"):
        at = next(number for number, line in enumerate(lines) if what in line)
        assert any("@echo" in line for line in lines[at - 4 : at]), what
