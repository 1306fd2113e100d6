"""kill -9 of server, fold, its JVM and Postgres with windows of every kind, with groups, by event time and by arrival.

Only as a soak: the law's tests cut ledgers with such windows everywhere, and the kills of a fold are proven beside.
`SOAK_SEED` repeats a run's choices, `SOAK_KILLS` makes it longer or shorter.
"""

import asyncio
import time
import tomllib
from pathlib import Path

import pytest

from tests.faults.killing import Victims, kills_of_a_soak, started
from tests.faults.test_fold_kills import WEIGHTS, Customers, Folded, check, kill_at_work, one_for_every_table

CONFIG = """
[spark]
master = "local[2]"
driver_memory = "768MiB"

[meters.calls]
group_by = ["data.region"]
lateness = "6h"

[streams.calls]
eventtime = { column = "occurred_at" }
[windows.calls_hopping]
stream = "calls"
window = { hopping = ["6h", "2h"] }
eventtime = { enabled = true, late_tolerance = "20h" }
group_by = ["data.region"]
select = { calls = "count(*)", used = "sum(quantity)", first = "first(quantity)" }
[windows.calls_session]
stream = "calls"
window = { session = "5m" }
eventtime = { enabled = true, late_tolerance = "20h" }
group_by = ["data.region"]
select = { calls = "count(*)", used = "avg(quantity)" }
[windows.calls_count]
stream = "calls"
window = { count = 7 }
eventtime = { enabled = true, late_tolerance = "20h" }
group_by = ["data.region"]
select = { used = "max(quantity)", latest = "last(quantity)" }
[windows.calls_arrival]
stream = "calls"
window = { count = 10 }
group_by = ["data.region"]
select = { used = "sum(quantity)" }
"""
DEFINITIONS = {name: part for name, part in tomllib.loads(CONFIG).items() if name != "spark"}


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_kills_with_windows_of_every_kind_change_nothing(jars: Path, tmp_path: Path) -> None:
    victims, begun = Victims(WEIGHTS), time.monotonic()
    with started(Folded, jars, tmp_path, CONFIG) as server:
        await asyncio.to_thread(server.wait_until_ready, 300)
        await asyncio.to_thread(one_for_every_table, server)
        async with Customers(server, f"{victims.seed}") as customers:
            for victim in victims.draw(kills_of_a_soak(50)):
                await kill_at_work(server, customers, victims, victim)
            await customers.send(200)
        compared = await asyncio.to_thread(check, server, DEFINITIONS)
    print(f"{victims}: {compared}, {time.monotonic() - begun:.0f} s", flush=True)
