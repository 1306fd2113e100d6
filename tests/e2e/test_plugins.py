"""Plugins and event-time types: what is wrong with them is said at the start, before a database or Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.commandline import process, run
from tidelock.ledger.database import Database

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
    tmp_path: Path, command: list[str], settings: str, said: list[str]
) -> None:
    (tmp_path / "tidelock.toml").write_text(settings)
    (tmp_path / "shop_times.py").write_text(OTHER_TYPE)
    started = process(*command, cwd=tmp_path, fold=True)
    _, told = started.communicate(timeout=60)
    assert started.returncode == 2
    for part in said:
        assert part in " ".join(told.split())
    assert "Traceback" not in told
    assert not (tmp_path / ".tidelock" / "postgres").exists()


def test_a_server_without_a_fold_leaves_types_to_the_fold(tmp_path: Path, database: Database) -> None:
    config = tmp_path / "tidelock.toml"
    config.write_text(f'plugins = ["absent_module"]\n{STREAM}')
    assert run(database, "status", "--config", config, "--data", tmp_path).exit_code == 0
