"""`bench live`, with numbers so small that their figures mean nothing: everything is there, and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import fanout, filters, live, live_latency
from tidelock.settings import Settings


@pytest.mark.timeout(600)
def test_fan_out_is_measured_beside_a_bare_loop_and_strawberry(tmp_path: Path) -> None:
    said: list[str] = []
    figures = fanout.measure([5], 1_000, said.append, place=tmp_path)
    for name in ("live", "bare", "strawberry"):
        assert figures[f"{name}MessagesPerCore5"], name
    assert figures["liveRatioToBare5"]
    assert figures["liveRatioToStrawberry5"]
    assert len(said) == 3


def test_every_row_of_the_table_has_its_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    # Only the names count here.
    costs = [filters.Cost(kind, count, 1.0, 1.0) for kind in filters.KINDS for count in filters.COUNTS]
    monkeypatch.setattr(filters, "measure", lambda _: costs)
    measured = {
        f"{name}{count}": 1
        for count in (100, 1_000)
        for name in ("liveMessagesPerCore", "bareMessagesPerCore", "strawberryMessagesPerCore", "liveRatioToBare",
                     "liveRatioToStrawberry")
    }  # fmt: skip
    monkeypatch.setattr(fanout, "measure", lambda *_, **__: measured)
    figures = live.measure(Settings(), [100, 1_000], 1_000, seconds=0, rate=1, say=lambda _: None)
    assert set(live.rows([100, 1_000], 0)) <= set(figures)
    assert set(live.rows([], 60)) - set(live.rows([], 0)) == {"liveP50Ms", "liveP95Ms", "liveP99Ms", "visibleP50Ms"}


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_way_from_acknowledgement_to_subscriber_is_measured(jars: Path, tmp_path: Path) -> None:
    figures = live_latency.measure(Settings(data=jars), 5, 20, print, place=tmp_path)
    assert figures["latencyEvents"] == 100
    assert 0 < float(str(figures["liveP50Ms"])) <= float(str(figures["liveP99Ms"]))
