"""`tidelock doctor` tells a machine that will do from one that will not, and what to do about it."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tidelock.cli.main import app
from tidelock.postgres.ports import free_port


def ask(*flags: str) -> tuple[int, dict[str, dict[str, Any]]]:
    ran = CliRunner().invoke(app, ["doctor", "--json", *flags])
    findings = [json.loads(line) for line in ran.stdout.splitlines()]
    return ran.exit_code, {finding["name"]: finding for finding in findings}


@pytest.fixture
def port() -> str:
    return str(free_port())


def test_a_machine_that_can_run_the_tests_will_do(port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    code, findings = ask("--data", str(tmp_path / "none"), "--port", port)
    assert code == 0, findings
    assert {"python", "java", "spark", "workers", "postgres", "port", "disk", "memory"} <= set(findings)
    assert findings["port"]["detail"] == f"127.0.0.1:{port} is free"
    assert not list(tmp_path.iterdir()), "nothing was made"


def test_a_port_that_is_taken_and_a_database_that_is_not_there_are_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        url = f"postgresql://nobody@127.0.0.1:{port + 1 if port < 65535 else port - 1}/none?connect_timeout=1"
        code, findings = ask("--data", str(tmp_path), "--port", str(port), "--database-url", url)
    assert code == 1
    assert not findings["port"]["ok"]
    assert "--port" in findings["port"]["advice"]
    assert not findings["postgres"]["ok"]
    assert "DATABASE_URL" in findings["postgres"]["advice"]


def test_a_java_that_does_not_fit_is_named(port: str, tmp_path: Path) -> None:
    config = tmp_path / "tidelock.toml"
    config.write_text(f'[spark]\njava = "{tmp_path}"\n')
    code, findings = ask("--config", str(config), "--data", str(tmp_path), "--port", port)
    assert code == 1
    assert not findings["java"]["ok"]
    assert "spark.java" in findings["java"]["advice"]


def test_a_python_that_cannot_run_workers_is_named_with_what_it_lacks(
    port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pandas.py").write_text("__version__ = '3.0.1'")
    (tmp_path / "numpy.py").write_text("raise OSError('a library is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code, findings = ask("--data", str(tmp_path / "none"), "--port", port)
    assert code == 1
    assert findings["workers"]["detail"].endswith(" lacks numpy, pandas<3, pyarrow")
    assert "pip install 'tidelock[server]==" in findings["workers"]["advice"]
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "python"))
    code, findings = ask("--data", str(tmp_path / "none"), "--port", port)
    assert code == 1
    assert "PYSPARK_PYTHON" in findings["workers"]["advice"]


def test_a_cluster_that_cannot_work_is_named(port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    config = tmp_path / "tidelock.toml"
    config.write_text('[spark]\nmaster = "spark://127.0.0.1:9"\n')
    code, findings = ask("--config", str(config), "--data", str(tmp_path), "--port", port)
    assert code == 1
    assert "workers" not in findings
    assert "DATABASE_URL" in findings["executors"]["detail"]
