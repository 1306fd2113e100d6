"""`bench webhooks`, with numbers so small that its figures mean nothing: everything is there."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import commands as bench
from bench import webhook_latency
from tidelock.settings import Settings


def test_deliveries_are_measured_beside_a_bare_loop_and_beside_dead_endpoints(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    asked = ["webhooks", "--events", "50", "--rounds", "1", "--seconds", "1", "--dead", "2", "--rate", "0"]
    ran = CliRunner().invoke(bench.app, [*asked, "--data", str(tmp_path), "--json"])
    assert ran.exit_code == 0, ran.output
    figures = json.loads(ran.stdout.splitlines()[-1])
    assert set(bench._WEBHOOKS_ROWS) == set(figures)
    assert all(figure > 0 for figure in figures.values())
    assert not list(tmp_path.iterdir()), "nothing is left"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_way_from_acknowledgement_to_receiver_is_measured(jars: Path, tmp_path: Path) -> None:
    figures = webhook_latency.measure(Settings(data=jars), 5, 20, print, place=tmp_path)
    assert figures["latencyEvents"] == 100
    assert (
        0 < float(str(figures["acknowledgedToDeliveredP50Ms"])) <= float(str(figures["acknowledgedToDeliveredP99Ms"]))
    )
