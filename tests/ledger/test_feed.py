"""The live feed: everybody gets every event they asked for, once and in order, however slow they are."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.budgets import HANG_S
from tests.recording import LIMITS
from tidelock.ingest.admit import Writer
from tidelock.ingest.intake import Intake
from tidelock.ingest.wire import WireEvent
from tidelock.ledger.feed import Feed
from tidelock.ledger.reader import Page, Slice, read_events, read_page
from tidelock.ledger.routing import Filter, Frame
from tidelock.ledger.salts import open_salts
from tidelock.ledger.sequencer import Sequencer
from tidelock.model import Recorded
from tidelock.postgres.database import Database
from tidelock.postgres.pool import Connections
from tidelock.settings import Settings

EVERYTHING = Filter()

STREAMS, CUSTOMERS = ("a", "b", "c"), ("x", "y", None)


class Ledger:
    """A sequencer, as one process has it, and what it takes to write through it."""

    def __init__(self, sequencer: Sequencer) -> None:
        self.sequencer = sequencer
        self._intake = Intake(sequencer, Settings().definitions, Settings(), streams_open=True)

    async def write(self, count: int, chance: random.Random | None = None, data: bytes = b"null") -> None:
        chance = chance or random.Random(0)
        events = [
            WireEvent(
                stream=chance.choice(STREAMS),
                customer_ref=chance.choice(CUSTOMERS),
                tenant_id=chance.choice("tu"),
                data=msgspec.Raw(data),
            )
            for _ in range(count)
        ]
        await self._intake.take(events, Writer(), escapes=False)


@asynccontextmanager
async def opened(database: Database) -> AsyncIterator[Ledger]:
    async with await database.connect() as connection:
        salts = await open_salts(connection, None)
    sequencer = Sequencer(database, salts, LIMITS)
    await sequencer.start()
    try:
        yield Ledger(sequencer)
    finally:
        await sequencer.close()


@pytest.fixture
async def ledger(database: Database) -> AsyncIterator[Ledger]:
    async with opened(database) as made:
        yield made


@asynccontextmanager
async def fed(database: Database, *, queue_events_max: int = 1000, **options: Any) -> AsyncIterator[Feed]:
    async with AsyncExitStack() as stack:
        connections = Connections(database, size_max=4)
        stack.push_async_callback(connections.close)
        feed = Feed(database, connections, queue_events_max=queue_events_max, **{"poll_s": 0.02, **options})
        await feed.start()
        stack.push_async_callback(feed.close)
        yield feed


async def recorded(database: Database, only: Filter = EVERYTHING, after: int = 0) -> list[Frame]:
    """What the ledger holds, read the plain way."""
    async with await database.connect() as connection:
        events = await read_events(connection, Slice(*only, after=after), limit=1_000_000)
    return [Frame(event.ingress_sequence, msgspec.json.encode(event).decode()) for event in events]


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(HANG_S):
        while not true():  # noqa: ASYNC110  # a test may poll
            await asyncio.sleep(0.005)


class Turns:
    """Of those who write. Who is slow lets one pass; after the last, nobody waits."""

    def __init__(self) -> None:
        self._turn = asyncio.Event()
        self._over = False

    def pass_on(self, *, last: bool = False) -> None:
        self._over = self._over or last
        self._turn.set()
        self._turn = asyncio.Event()

    async def next(self) -> None:
        if not self._over:
            await self._turn.wait()


class Follower:
    """Follows until it has seen a number of events or is told to stop; with `turns`, it is slow at random."""

    def __init__(self, feed: Feed, only: Filter, after: int, turns: Turns | None = None, seed: int = 1) -> None:
        self.only, self.after = only, after
        self.seen: list[Frame] = []
        self._turns = turns
        self._chance = random.Random(seed)
        self.task = asyncio.create_task(self._run(feed))

    async def _run(self, feed: Feed) -> None:
        async with aclosing(feed.follow(self.only, self.after)) as batches:
            async for frames in batches:
                self.seen += frames
                if self._turns is not None and self._chance.random() < 0.5:
                    await self._turns.next()

    async def until(self, count: int) -> None:
        await until(lambda: len(self.seen) >= count)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def joined(feed: Feed) -> None:
    """Until a follower is in the tail, and none waits to be let in."""
    await until(lambda: feed._router.cover() is not None and not feed._joining)


async def test_a_follower_gets_what_is_recorded_after_it_came(database: Database, ledger: Ledger) -> None:
    await ledger.write(3)
    async with fed(database) as feed:
        follower = Follower(feed, EVERYTHING, 3)
        await joined(feed)
        await ledger.write(2)
        await follower.until(2)
        await follower.stop()
    assert follower.seen == await recorded(database, after=3)


@pytest.mark.parametrize("queue_events_max", [1, 7, 1000])
async def test_nothing_is_missed_or_repeated_while_writers_write_and_followers_come_and_lag(
    database: Database, ledger: Ledger, queue_events_max: int
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    filters = [
        EVERYTHING,
        Filter(stream="a"),
        Filter("t"),
        Filter("t", "b"),
        Filter("u", None, "x"),
        Filter(None, "c", "y"),
    ]
    await ledger.write(400)
    turns = Turns()
    async with opened(database) as other, fed(database, queue_events_max=queue_events_max) as feed:
        # One process tells the feed of its commits itself, the other only through the database.
        ledger.sequencer.on_commit.append(lambda committed: feed.wake(committed.head.ingress_sequence))

        async def write(process: Ledger) -> None:
            for _ in range(20):
                await process.write(chance.choice([1, 3, 30]), chance)
                turns.pass_on()

        writing = asyncio.gather(write(ledger), write(other))
        followers = []
        for number in range(18):
            after = chance.choice([0, 390, chance.randrange(400)])
            slow = turns if number % 3 == 0 else None
            followers.append(Follower(feed, filters[number % 6], after, slow, seed + number))
            await turns.next()
        await writing
        turns.pass_on(last=True)
        for follower in followers:
            expected = await recorded(database, follower.only, follower.after)
            await follower.until(len(expected))
            assert follower.seen == expected, f"seed {seed}, {follower.only} after {follower.after}"
        for follower in followers:
            await follower.stop()
        assert feed.state.followers == 0


async def test_a_client_that_joins_during_a_read_that_was_not_for_them_misses_nothing(
    database: Database, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns()

    async def slowly(*arguments: Any, **options: Any) -> Page[Recorded]:
        page = await read_page(*arguments, **options)
        await turns.next()
        return page

    monkeypatch.setattr("tidelock.ledger.feed.read_page", slowly)
    async with fed(database) as feed:
        ledger.sequencer.on_commit.append(lambda committed: feed.wake(committed.head.ingress_sequence))
        followers = []
        for only in (Filter("t", "a", "x"), Filter("t", "b", "y"), Filter("u", "c", "x"), Filter("u", "a", "y")):
            followers.append(Follower(feed, only, 0))
            for _ in range(10):
                await ledger.write(20)
                turns.pass_on()
        turns.pass_on(last=True)
        for follower in followers:
            expected = await recorded(database, follower.only)
            await follower.until(len(expected))
            assert follower.seen == expected
            await follower.stop()


async def test_pages_are_bounded_by_their_bytes_too(database: Database, ledger: Ledger) -> None:
    large = b'"' + b"x" * 5000 + b'"'
    await ledger.write(20, data=large)
    async with fed(database, page_bytes_max=12_000) as feed, aclosing(feed.follow(EVERYTHING, 0)) as batches:
        seen = [await anext(batches) for _ in range(10)]
        assert [len(frames) for frames in seen] == [2] * 10
        follower = Follower(feed, EVERYTHING, 20)
        await joined(feed)
        await ledger.write(9, data=large)
        await follower.until(9)
        await follower.stop()
    assert [frame for frames in seen for frame in frames] + follower.seen == await recorded(database)


async def test_a_sequence_beyond_the_end_is_waited_for(database: Database, ledger: Ledger) -> None:
    await ledger.write(5)
    async with fed(database) as feed:
        follower = Follower(feed, EVERYTHING, 8)
        await joined(feed)
        await ledger.write(5)
        await follower.until(2)
        await follower.stop()
    assert [frame.sequence for frame in follower.seen] == [9, 10]


async def test_a_follower_outlives_the_loss_of_every_connection(database: Database, ledger: Ledger) -> None:
    async with fed(database) as feed:
        follower = Follower(feed, EVERYTHING, 0)
        for turn in range(3):
            await ledger.write(10)
            await follower.until(10 * turn + 5)
            async with await database.connect() as connection:
                await connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND application_name IN ('tidelock feed', 'tidelock reads')"
                )
        await ledger.write(10)
        await follower.until(40)
        await follower.stop()
    assert follower.seen == await recorded(database)


async def connections(database: Database) -> int:
    """How many listen."""
    async with await database.connect() as connection:
        cursor = await connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name = 'tidelock feed' AND query LIKE 'LISTEN%' AND state = 'idle'"
        )
        row = await cursor.fetchone()
        assert row is not None
        return int(row[0])


async def until_connections(database: Database, count: int) -> None:
    async with asyncio.timeout(HANG_S):
        while await connections(database) != count:  # noqa: ASYNC110  # a test may poll
            await asyncio.sleep(0.01)


async def test_nothing_is_read_and_no_connection_held_while_nobody_follows(database: Database, ledger: Ledger) -> None:
    async with fed(database) as feed:
        assert await connections(database) == 0
        follower = Follower(feed, EVERYTHING, 0)
        await ledger.write(1)
        await follower.until(1)
        await until_connections(database, 1)
        await follower.stop()
        await until_connections(database, 0)
        await ledger.write(5)
        assert feed.state.lag == 0


async def test_commits_are_heard_of_without_the_poll(database: Database, ledger: Ledger) -> None:
    async with fed(database, poll_s=600) as feed:
        follower = Follower(feed, EVERYTHING, 0)
        await joined(feed)
        await until_connections(database, 1)
        await ledger.write(1)
        await follower.until(1)
        await follower.stop()
