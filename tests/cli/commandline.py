"""Short ways to run commands in tests: in this process for speed, as a process of their own for signals."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from tidelock.cli.main import app
from tidelock.postgres.database import Database


def run(database: Database | None, *arguments: object, env: dict[str, str] | None = None) -> Result:
    """A command in this process, on a test's own database."""
    words = [str(argument) for argument in arguments]
    if database is not None:
        words += ["--database-url", database.url]
    result = CliRunner().invoke(app, words, env={"NO_COLOR": "1", "TERM": "dumb", **(env or {})})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def json_lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def process(*arguments: object, cwd: Path, fold: bool = False, **options: Any) -> subprocess.Popen[str]:
    """A command as a process of its own, with nothing of the environment that names settings.

    `fold`: `up` runs one, as it does by default; most tests of `up` have no use for a Spark.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TIDELOCK_", "DATABASE_URL"))}
    return subprocess.Popen(
        [sys.executable, "-m", "tidelock", *map(str, arguments)],
        cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**clean, "NO_COLOR": "1", "TIDELOCK_FOLD_ENABLED": str(fold).lower()},
        **options,
    )  # fmt: skip


def recorded(database: Database) -> int:
    """How many events there are, cheaply enough to poll."""
    with database.connect_sync() as connection:
        return int(connection.execute(b"SELECT count(*) FROM events").fetchall()[0][0])


def events(database: Database, columns: str = "customer_ref") -> list[tuple[Any, ...]]:
    """Columns of every event in ledger order."""
    with database.connect_sync() as connection:
        return connection.execute(f"SELECT {columns} FROM events ORDER BY ingress_sequence".encode()).fetchall()
