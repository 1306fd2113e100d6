"""Ticks on a real Postgres: time passes in the ledger exactly where something waits for it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from tests.budgets import HANG_S
from tests.recording import record, rows, sequencing, until_waited_for
from tidelock.clock import Clock, database_clock
from tidelock.ledger.sequencer import Sequencer
from tidelock.ledger.ticks import DueTimes, Ticker
from tidelock.model import Accepted
from tidelock.postgres.database import Database

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


class Looks:
    """How often a ticker has looked, which it does by asking for the time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = 0

    def __call__(self, now: int) -> int:
        self._count += 1
        return self._clock(now)

    async def more(self, count: int = 3) -> None:
        """Until it has looked some more times: what it did not do then, it does not do."""
        wanted = self._count + count
        async with asyncio.timeout(HANG_S):
            while self._count < wanted:  # noqa: ASYNC110  # a test may poll
                await asyncio.sleep(0.005)


@asynccontextmanager
async def ticking(
    database: Database, sequencer: Sequencer, clock: Clock = database_clock, *, poll_s: float = 0.02, grace_ns: int = 0
) -> AsyncIterator[Looks]:
    looks = Looks(clock)
    task = asyncio.create_task(Ticker(database, sequencer, looks, poll_s=poll_s, grace_ns=grace_ns).run())
    try:
        yield looks
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until_ticked(database: Database, count: int = 1, seconds: float = HANG_S) -> list[int]:
    deadline = time.monotonic() + seconds
    while len(found := await ticks(database)) < count:
        assert time.monotonic() < deadline, f"{len(found)} ticks after {seconds} s"
        await asyncio.sleep(0.01)
    return found


@pytest.mark.parametrize(
    ("due", "head", "moment"),
    [
        (DueTimes(None, None, 0), 5, None),
        (DueTimes(10, None, 0), 5, 10),
        (DueTimes(10, None, 0), 10, None),  # a row at the window's end has closed it, or will
        (DueTimes(10, None, 0), 11, None),
        (DueTimes(None, 10, 0), 11, 10),  # rows do not tell that nothing came
        (DueTimes(None, 10, 9), 11, 10),
        (DueTimes(None, 10, 10), 11, None),
        (DueTimes(10, 20, 0), 5, 10),
        (DueTimes(10, 20, 0), 12, 20),
        (DueTimes(20, 10, 0), 5, 10),
        (DueTimes(20, 10, 12), 12, 20),
    ],
)
def test_the_next_tick_is_for_what_nothing_has_told_yet(due: DueTimes, head: int, moment: int | None) -> None:
    assert due.next(head) == moment


def test_a_tick_is_wanted_from_its_moment_on_in_the_ledgers_time() -> None:
    due = DueTimes(10, None, 0)
    assert [now for now in range(8, 12) if due.wants_tick(5, now)] == [10, 11]
    # The clock was set back: a tick would be recorded right behind the head all the same.
    assert DueTimes(None, 10, 0).wants_tick(head=30, now=1)


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
        async with ticking(database, one) as looks, ticking(database, other) as others:
            for count in (2, 3):
                await store(database, window=await database_now(database) + SECOND // 20)
                await until_ticked(database, count)
                await looks.more()
                await others.more()
    assert len(await ticks(database)) == 3


@pytest.mark.parametrize("told", [True, False])
async def test_a_tick_follows_its_moment_whether_or_not_the_ticker_was_told(database: Database, told: bool) -> None:
    # One who is told does not look again by itself for longer than the test waits.
    poll_s = 600 if told else 0.02
    async with sequencing(database) as sequencer, ticking(database, sequencer, poll_s=poll_s) as looks:
        await looks.more(1)
        due = await database_now(database) + SECOND // 20
        await store(database, window=due, tell=told)
        (tick,) = await until_ticked(database)
        assert due <= tick
        assert await rows(database, "SELECT count(*) FROM events") == [(1,)], "and nothing else is recorded"


async def test_nothing_is_recorded_while_rows_come_anyway_or_nothing_waits(database: Database) -> None:
    async with sequencing(database) as sequencer:
        async with ticking(database, sequencer, grace_ns=600 * SECOND) as looks:
            await store(database, window=await database_now(database))
            await looks.more()
            await record(sequencer, {})
        async with ticking(database, sequencer) as looks:
            await looks.more()
            await store(database)
            await looks.more()
    assert await ticks(database) == []


async def test_the_clock_is_the_sequencers(database: Database) -> None:
    moment = 1000

    def clock(_: int) -> int:
        return moment

    async with sequencing(database, clock=clock) as sequencer, ticking(database, sequencer, clock) as looks:
        await store(database, window=5000)
        await looks.more()
        assert await ticks(database) == []
        moment = SECOND
        assert await until_ticked(database) == [SECOND]


async def test_a_ticker_outlives_its_connection(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    async with sequencing(database) as sequencer, ticking(database, sequencer) as looks:
        await looks.more(1)
        found = await rows(
            database,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name IN ('tidelock ticks', 'tidelock sequencer')",
        )
        assert found
        await store(database, window=await database_now(database))
        await until_ticked(database)
    assert "ticks are delayed" in caplog.text


async def test_a_head_that_is_held_delays_a_tick_and_loses_none(database: Database) -> None:
    async with sequencing(database) as sequencer, ticking(database, sequencer) as looks:
        async with await psycopg.AsyncConnection.connect(database.url) as holder:
            await holder.execute("SELECT FROM ledger_head FOR UPDATE")
            await store(database, idle=await database_now(database))
            await until_waited_for(database)
            await holder.rollback()
        await until_ticked(database)
        await looks.more()
    assert len(await ticks(database)) == 1
