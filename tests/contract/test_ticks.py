"""Ticks on a real Postgres: time passes in the ledger exactly where something waits for it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from tests.recording import record, rows, sequencing
from tidelock.clock import Clock, database_clock
from tidelock.ledger.database import Database
from tidelock.ledger.due import Due
from tidelock.ledger.sequencer import Sequencer
from tidelock.ledger.ticks import Ticker
from tidelock.model import Accepted

SECOND = 1_000_000_000


async def store(database: Database, *, window: int | None = None, idle: int | None = None, tell: bool = True) -> None:
    """What the fold does when it waits for other moments than before."""
    async with await database.connect(autocommit=False) as connection:
        await connection.execute("UPDATE fold_due SET window_due = %s, idle_due = %s", (window, idle))
        if tell:
            await connection.execute("NOTIFY tidelock_due")


async def ticks(database: Database) -> list[int]:
    """The source timestamps of the ticks."""
    found = await rows(
        database,
        "SELECT source_timestamp FROM events WHERE tenant_id = '_tidelock' AND data ->> 'type' = 'tick' ORDER BY 1",
    )
    return [time for (time,) in found]


async def database_now(database: Database) -> int:
    ((now,),) = await rows(database, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000")
    return int(now)


@asynccontextmanager
async def ticking(database: Database, sequencer: Sequencer, clock: Clock = database_clock) -> AsyncIterator[None]:
    task = asyncio.create_task(Ticker(database, sequencer, clock).run())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until_ticked(database: Database, count: int = 1, seconds: float = 10) -> list[int]:
    deadline = time.monotonic() + seconds
    while len(found := await ticks(database)) < count:
        assert time.monotonic() < deadline, f"{len(found)} ticks after {seconds} s"
        await asyncio.sleep(0.02)
    return found


@pytest.mark.parametrize(
    ("due", "head", "moment"),
    [
        (Due(None, None, 0), 5, None),
        (Due(10, None, 0), 5, 10),
        (Due(10, None, 0), 10, None),  # a row at the window's end has closed it, or will
        (Due(10, None, 0), 11, None),
        (Due(None, 10, 0), 11, 10),  # rows do not tell that nothing came
        (Due(None, 10, 9), 11, 10),
        (Due(None, 10, 10), 11, None),
        (Due(10, 20, 0), 5, 10),
        (Due(10, 20, 0), 12, 20),
        (Due(20, 10, 0), 5, 10),
        (Due(20, 10, 12), 12, 20),
    ],
)
def test_the_next_tick_is_for_what_nothing_has_told_yet(due: Due, head: int, moment: int | None) -> None:
    assert due.next(head) == moment


def test_a_tick_is_wanted_from_its_moment_on_in_the_ledgers_time() -> None:
    due = Due(10, None, 0)
    assert [now for now in range(8, 12) if due.wants_tick(5, now)] == [10, 11]
    # The clock was set back: a tick would be recorded right behind the head all the same.
    assert Due(None, 10, 0).wants_tick(head=30, now=1)


async def test_no_tick_is_recorded_when_nothing_is_due(database: Database) -> None:
    async with sequencing(database, clock=lambda now: 1000) as sequencer:
        assert await sequencer.tick() is None
        await store(database, window=1001, idle=1001)
        assert await sequencer.tick() is None
    assert await rows(database, "SELECT count(*) FROM commits") == [(0,)]


async def test_a_due_window_ticks_once_and_a_row_after_its_end_makes_none(database: Database) -> None:
    clock = iter(range(1000, 9000, 1000))
    async with sequencing(database, clock=lambda now: next(clock)) as sequencer:
        await store(database, window=1000)
        tick = await sequencer.tick()
        assert isinstance(tick, Accepted)
        assert (tick.ingress_sequence, tick.source_timestamp) == (1, "1000")
        assert await sequencer.tick() is None, "the fold has not come to it yet"
        await store(database, window=3000)
        await record(sequencer, {})
        assert await sequencer.tick() is None, "the row at 3000 closes the window"
        await store(database, window=4500)
        assert await sequencer.tick() is not None
    assert await ticks(database) == [1000, 5000]


async def test_an_idle_timeout_needs_a_tick_even_if_rows_came(database: Database) -> None:
    clock = iter(range(1000, 9000, 1000))
    async with sequencing(database, clock=lambda now: next(clock)) as sequencer:
        await store(database, idle=1500)
        await record(sequencer, {})
        await record(sequencer, {})
        await sequencer.control({"type": "drain"})
        assert await sequencer.tick() is not None
        await record(sequencer, {})
        assert await sequencer.tick() is None, "a tick after the moment is there"
        await store(database, idle=6500)
        assert await sequencer.tick() is not None
    assert await ticks(database) == [4000, 7000]


async def test_of_many_processes_that_see_a_moment_pass_one_records_the_tick(database: Database) -> None:
    async with sequencing(database) as one, sequencing(database) as other:
        now = await database_now(database)
        await store(database, window=now, idle=now)
        found = await asyncio.gather(*(sequencer.tick() for _ in range(10) for sequencer in (one, other)))
        assert sum(tick is not None for tick in found) == 1
        async with ticking(database, one), ticking(database, other):
            for count in (2, 3):
                await store(database, window=await database_now(database) + SECOND // 5)
                await until_ticked(database, count)
                await asyncio.sleep(0.3)
    assert len(await ticks(database)) == 3


async def test_a_tick_follows_its_moment_closely_whether_or_not_the_ticker_was_told(database: Database) -> None:
    async with sequencing(database) as sequencer, ticking(database, sequencer):
        await asyncio.sleep(0.2)
        for count, tell in enumerate((True, False), start=1):
            due = await database_now(database) + SECOND // 4
            await store(database, window=due, tell=tell)
            tick = (await until_ticked(database, count))[-1]
            assert due <= tick <= due + (SECOND // 2 if tell else 2 * SECOND)
        assert await rows(database, "SELECT count(*) FROM events") == [(2,)], "and nothing else is recorded"


async def test_nothing_is_recorded_while_rows_come_anyway_or_nothing_waits(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelock.ledger.ticks._GRACE_NS", 10 * SECOND)
    async with sequencing(database) as sequencer, ticking(database, sequencer):
        await store(database, window=await database_now(database) + SECOND // 10)
        await asyncio.sleep(0.3)
        await record(sequencer, {})
        monkeypatch.setattr("tidelock.ledger.ticks._GRACE_NS", 0)
        await asyncio.sleep(0.3)
        await store(database)
        await asyncio.sleep(1.2)
    assert await ticks(database) == []


async def test_the_clock_is_the_sequencers(database: Database) -> None:
    moment = 1000

    def clock(_: int) -> int:
        return moment

    async with sequencing(database, clock=clock) as sequencer, ticking(database, sequencer, clock):
        await store(database, window=5000)
        await asyncio.sleep(0.3)
        assert await ticks(database) == []
        moment = SECOND
        assert await until_ticked(database) == [SECOND]


async def test_a_ticker_outlives_its_connection(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    async with sequencing(database) as sequencer, ticking(database, sequencer):
        await asyncio.sleep(0.2)
        found = await rows(
            database,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name IN ('tidelock ticks', 'tidelock sequencer')",
        )
        assert found
        await store(database, window=await database_now(database))
        await until_ticked(database)
    assert "ticks are held up" in caplog.text


async def test_a_head_that_is_held_delays_a_tick_and_loses_none(database: Database) -> None:
    async with sequencing(database) as sequencer, ticking(database, sequencer):
        async with await psycopg.AsyncConnection.connect(database.url) as holder:
            await holder.execute("SELECT FROM ledger_head FOR UPDATE")
            await store(database, idle=await database_now(database))
            await asyncio.sleep(0.5)
            await holder.rollback()
        await until_ticked(database)
        await asyncio.sleep(0.3)
    assert len(await ticks(database)) == 1
