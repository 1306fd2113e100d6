"""Every command says what it is for and shows how, takes what all take, and completes in a shell."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.faults.servers import ROOT
from tidelock.cli.main import app
from tidelock.reference.commands import commands_page, examples, leaves

ROOT_COMMAND: Any = typer.main.get_command(app)
COMMANDS = [pytest.param(path, command, id=" ".join(path)) for path, command in leaves(ROOT_COMMAND)]


def typed(example: str) -> list[str]:
    """The words behind `tidelock`, without variables in front and what the output is piped into."""
    words = shlex.split(example.split(" | ")[0])
    return words[words.index("tidelock") + 1 :]


@pytest.mark.parametrize(("path", "command"), COMMANDS)
def test_a_command_says_in_a_line_what_it_is_for(path: tuple[str, ...], command: Any) -> None:
    purpose = command.help.splitlines()[0]
    assert purpose.endswith(".")
    assert len(purpose) <= 120
    assert all(each.help for each in command.params if not each.hidden), "so do its arguments and options"


@pytest.mark.parametrize(("path", "command"), COMMANDS)
def test_a_command_shows_an_example_that_it_understands(path: tuple[str, ...], command: Any) -> None:
    shown = examples(command)
    assert shown
    for example in shown:
        words = typed(example)
        assert tuple(words[: len(path)]) == path
        command.make_context(" ".join(path), words[len(path) :]).close()


@pytest.mark.parametrize(("path", "command"), COMMANDS)
def test_a_command_takes_settings_and_answers_programs(path: tuple[str, ...], command: Any) -> None:
    taken = {option for parameter in command.params for option in parameter.opts}
    assert {"--config", "--data", "--json"} <= taken


def test_the_page_of_commands_is_up_to_date() -> None:
    assert (ROOT / "docs" / "commands.md").read_text() == commands_page(ROOT_COMMAND), "run `make docs`"


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("tidelock tr", {"trace", "triggers"}),
        ("tidelock tail --cust", {"--customer"}),
    ],
)
def test_a_shell_completes_commands_and_options(words: str, completed: set[str], tmp_path: Path) -> None:
    asked = {"_TIDELOCK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    ran = subprocess.run(
        [Path(sys.executable).with_name("tidelock")], cwd=tmp_path, env=os.environ | asked, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert set(ran.stdout.split()) == completed, ran.stderr


def test_completion_is_installed_where_the_shell_looks(tmp_path: Path) -> None:
    ran = subprocess.run(
        [Path(sys.executable).with_name("tidelock"), "--install-completion", "bash"], cwd=tmp_path,
        # The shell that is named, not the one that this was started from.
        env=os.environ | {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file() and "_TIDELOCK_COMPLETE" in path.read_text()]
    assert written
    assert str(written[0]) in (tmp_path / ".bashrc").read_text()
