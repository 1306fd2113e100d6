"""`tidelock demo` before it runs; how it runs is seen in the console's tests."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from typer.testing import CliRunner

from tests.client.scripted import says, scripted
from tidelock.cli.main import app
from tidelock.demo.feed import DemoFeed

_SAID = """
from tidelock.cli import terminal
from tidelock.cli.serve import _welcome
from tidelock.demo.feed import TO_TRY, LIVE
terminal.say_as_it_is(_welcome("http://127.0.0.1:8080", 1.5, '{"stream":"api_calls"}', keyless=True))
terminal.say_as_it_is(TO_TRY.format(url="http://127.0.0.1:8080", live=LIVE, seconds="20"))
"""


def test_the_demo_does_not_write_into_another_ledger(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    ran = CliRunner().invoke(app, ["demo", "--fresh", "--data", str(tmp_path)])
    assert ran.exit_code == 2
    assert "was not created by the demo" in ran.stderr
    assert (tmp_path / "postgres").exists(), "nothing was removed"


def test_commands_to_copy_are_whole_in_a_narrow_terminal() -> None:
    seen, shown = pty.openpty()
    environ = os.environ | {"COLUMNS": "80", "LINES": "40", "TERM": "dumb"}
    subprocess.run([sys.executable, "-c", _SAID], stderr=shown, env=environ, check=True)
    os.close(shown)
    lines = os.read(seen, 65_536).decode().splitlines()
    os.close(seen)
    assert [line for line in lines if line.startswith("curl -s 'http") and line.endswith("customerRef=cus_1'")]
    assert [line for line in lines if line.startswith('  -d \'{"query"') and line.endswith("}'")]
    assert [line for line in lines if line.strip().startswith('-d \'{"stream"') and line.endswith("}'")]
    words = [line for line in lines if "curl" not in line and "-d '" not in line]
    assert max(map(len, words)) <= 80, "the others fit"


async def test_a_feed_without_a_key_says_so_once_and_continues_when_none_is_needed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refused = says({"error": {"code": "unauthorized", "message": "this needs an API key", "field": None}}, 401)
    taken = says({"accepted": 1, "duplicates": 0, "conflicts": 0, "rejected": 0, "results": []})
    async with scripted([refused, refused, taken]) as (url, asked), aiohttp.ClientSession(url) as client:
        await DemoFeed(client, url, 0.0)._post([{"stream": "s"}])
    assert asked == [[{"stream": "s"}]] * 3, "it is sent until it is taken"
    assert capsys.readouterr().err.count("this needs an API key") == 1


def test_a_turn_that_is_not_a_duration_is_refused(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["demo", "--turn", "soon", "--data", str(tmp_path / "new")])
    assert ran.exit_code == 2
    assert "--turn soon: it must be a whole number with its unit" in ran.stderr
    assert not (tmp_path / "new").exists()
