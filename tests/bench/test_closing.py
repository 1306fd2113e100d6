"""`bench closing`, with numbers so small that its figures mean nothing: it closes, states and checks."""

from __future__ import annotations

import asyncio

import pytest

from bench.closing import METERS, _check, _fill, fold_close
from tests.recording import sequencing
from tidelock.errors import Difference
from tidelock.instants import parse_rfc3339
from tidelock.postgres.database import Database
from tidelock.usage.closing import WantedClose, close_periods

pytestmark = pytest.mark.check


def test_every_counter_is_stated_and_recorded_as_a_change(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    async def closed() -> int | None:
        async with sequencing(database) as sequencer:
            return await close_periods(sequencer, WantedClose(parse_rfc3339("2026-04-01T00:00:00Z")))

    _fill(database, 2_000)
    sequence = asyncio.run(closed())
    assert sequence == 1
    fold_close(database.url, sequence)
    seconds, peak = capsys.readouterr().out.split()
    assert float(seconds) > 0
    assert int(peak) > 0
    _check(database, 2_000)
    with pytest.raises(Difference, match="of 3000 counters"):
        _check(database, 3_000)
    assert list(METERS.meters) == ["calls"]
