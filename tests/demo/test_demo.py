"""`tidelock demo`, as a newcomer runs it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from tidelock.cli import app


def until(found: Callable[[], Any], what: str, seconds: float = 180) -> Any:
    deadline = time.monotonic() + seconds
    while not (result := found()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.5)
    return result


@pytest.mark.timeout(600)
def test_the_demo_moves_and_tells_its_receiver_and_stops_on_ctrl_c(jars: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    data, said = tmp_path / "demo", tmp_path / "said"
    shutil.copytree(jars / "jars", data / "jars")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tidelock", "demo", "--fresh", "--data", str(data), "--port", str(port)]
    environ = {name: value for name, value in os.environ.items() if not name.endswith("DATABASE_URL")}
    with said.open("w") as output:
        process = subprocess.Popen(command, stderr=output, env=environ)
        try:
            until(lambda: "Numbers move" in said.read_text() or process.poll(), "numbers move")
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:

                def items(path: str, **given: str) -> list[dict[str, Any]]:
                    found: list[dict[str, Any]] = client.get(path, params=given).raise_for_status().json()["items"]
                    return found

                assert until(lambda: items("/v1/counters", where='{"metric": {"_eq": "api_calls"}}'), "calls count")
                assert until(lambda: items("/v1/tables/orders"), "orders are there")
                assert {row["tenant_id"] for row in items("/v1/counters")} > {"default"}
                delivered = until(
                    lambda: items("/v1/triggers/order_filled/deliveries", status="delivered"), "the receiver is told"
                )
                assert delivered
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(60)
    assert code == 0, said.read_text()
    assert "Stopped." in said.read_text()


def test_the_demo_does_not_write_into_another_ledger(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    ran = CliRunner().invoke(app, ["demo", "--fresh", "--data", str(tmp_path)])
    assert ran.exit_code == 2
    assert "is not a demo's" in ran.stderr
    assert (tmp_path / "postgres").exists(), "nothing was removed"
