"""Plugins and event-time types: what is wrong with them is said at the start, before a database or Spark is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.commandline import process, run
from tidelock.eventtimes import eventtime_types
from tidelock.postgres.database import Database

STREAM = '[streams.clicks]\neventtime = { column = "data.t", type = "julian" }\n'
OTHER_TYPE = """
from tidelock.eventtimes import eventtime_types
eventtime_types.register("gregorian", lambda text: text)
"""
WINDOW = """
[windows.w]
stream = "clicks"
window = { count = 1 }
select = { n = "count(*)" }
eventtime = { enabled = true }
"""


@pytest.fixture
def _own_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """What plugins register in this process ends with the test."""
    monkeypatch.setattr(eventtime_types, "_parsers", dict(eventtime_types._parsers))
    monkeypatch.delitem(sys.modules, "shop_times", raising=False)


@pytest.mark.usefixtures("_own_types")
@pytest.mark.parametrize("command", [["up", "--port", "0"], ["fold", "--once"]])
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (STREAM, ['stream "clicks"', 'event-time type "julian"', "unixtimestamp_ms", "rfc3339"]),
        (f'plugins = ["absent_module"]\n{STREAM}', ["plugins", '"absent_module" cannot be imported', "no module"]),
        (f'plugins = ["shop_times"]\n{STREAM}', ['stream "clicks"', 'event-time type "julian"', "gregorian"]),
        ('[streams.clicks]\neventtime = { column = "t", type = "rfc3339" }\ncolumns = { at = "timestamp" }',
         ['stream "clicks"', 'no column "t"', "available: at, occurred_at"]),
        (WINDOW, ['stream "clicks" has no eventtime', "occurred_at"]),
    ],
    ids=["type", "module", "type of plugins", "column", "window"],
)  # fmt: skip
def test_what_is_wrong_with_event_time_is_said_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], settings: str, said: list[str]
) -> None:
    (tmp_path / "tidelock.toml").write_text(settings)
    (tmp_path / "shop_times.py").write_text(OTHER_TYPE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    result = run(None, *command)
    assert result.exit_code == 2
    for part in said:
        assert part in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert not (tmp_path / ".tidelock" / "postgres").exists()


def test_a_process_finds_plugins_in_its_directory_and_ends_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "tidelock.toml").write_text(f'plugins = ["shop_times"]\n{STREAM}')
    (tmp_path / "shop_times.py").write_text(OTHER_TYPE)
    started = process("up", "--port", "0", cwd=tmp_path, fold=True)
    _, told = started.communicate(timeout=60)
    assert started.returncode == 2
    assert "gregorian" in told
    assert "Traceback" not in told
    assert not (tmp_path / ".tidelock" / "postgres").exists()


def test_a_server_without_a_fold_leaves_types_to_the_fold(tmp_path: Path, database: Database) -> None:
    config = tmp_path / "tidelock.toml"
    config.write_text(f'plugins = ["absent_module"]\n{STREAM}')
    assert run(database, "status", "--config", config, "--data", tmp_path).exit_code == 0
