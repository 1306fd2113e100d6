"""`tidelock demo` before it runs; how it runs is seen in the console's tests."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from tidelock.cli import app


def test_the_demo_does_not_write_into_another_ledger(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    ran = CliRunner().invoke(app, ["demo", "--fresh", "--data", str(tmp_path)])
    assert ran.exit_code == 2
    assert "is not a demo's" in ran.stderr
    assert (tmp_path / "postgres").exists(), "nothing was removed"
