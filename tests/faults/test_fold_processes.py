"""The fold as a process: a second one takes over from one that was killed, and settings that cannot work end it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.commandline import process
from tests.faults.processes import kill, until
from tests.ledgers import write_ledger
from tests.model import Event
from tidelock.postgres.database import Database

SPARK = '[spark]\nmaster = "local[1]"\ndriver_memory = "512MiB"\n'


@pytest.fixture
def place(jars: Path, tmp_path: Path) -> Callable[[str, str], Path]:
    """Makes a data directory with a config in it."""

    def made(name: str, config: str) -> Path:
        shutil.copytree(jars / "jars", tmp_path / name / "jars")
        (tmp_path / name / "tidelock.toml").write_text(SPARK + config)
        return tmp_path / name

    return made


@pytest.fixture
def fold(database: Database, place: Callable[[str, str], Path]) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts folds of one ledger."""
    running: list[subprocess.Popen[str]] = []

    def begun(name: str) -> subprocess.Popen[str]:
        data = place(name, "[meters.calls]\n")
        given = ("--data", data, "--config", data / "tidelock.toml", "--database-url", database.url)
        running.append(process("fold", "--json", *given, cwd=data))
        return running[-1]

    yield begun
    for started in running:
        started.terminate()
        started.communicate(timeout=60)


def until_it_says(fold: subprocess.Popen[str], words: str) -> None:
    assert fold.stdout is not None
    said: list[str] = []
    for line in fold.stdout:
        said.append(line)
        if words in line:
            return
    raise AssertionError(f"it ended without saying {words!r}: {said}")


def folded(database: Database) -> int:
    with database.connect_sync() as connection:
        row = connection.execute("SELECT sequence FROM cursors WHERE name = 'fold'").fetchone()
    return row[0] if row else 0


@pytest.mark.soak
def test_a_fold_on_standby_takes_over_from_one_that_was_killed(
    database: Database, fold: Callable[[str], subprocess.Popen[str]]
) -> None:
    first = fold("first")
    until_it_says(first, "folding from sequence 0")
    second = fold("second")
    until_it_says(second, "standing by")
    write_ledger(database, [Event(1, 1, "calls", 1, customer_ref="c", quantity=None)])
    until(lambda: folded(database) == 1, "the first folds")
    kill(first.pid)
    until_it_says(second, "folding from sequence 1")
    write_ledger(database, [Event(2, 2, "calls", 2, customer_ref="c", quantity=None)], commit_id=2)
    until(lambda: folded(database) == 2, "the second folds")
    second.terminate()
    assert second.wait(60) == 0


def test_up_ends_and_names_the_definition_that_cannot_work(place: Callable[[str, str], Path]) -> None:
    data = place("data", '[streams.s]\ncolumns = { a = "string" }\nkey = "a"\ncalculated = { x = "nosuch(a)" }\n')
    server = process("up", "--data", data, "--config", data / "tidelock.toml", "--port", "0", cwd=data, fold=True)
    try:
        out, told = server.communicate(timeout=150)
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert server.returncode == 2, told
    assert "streams.s.calculated.x" in told
    assert "nosuch is not allowed" in told
    assert "Traceback" not in out + told
    assert "Fatal" not in told
    assert told.count("cannot run with these settings") == 1
