"""Subscriptions: from the rows of now to whatever becomes of them, shared, bounded, and gone when they are closed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.budgets import HANG_S
from tests.views.folding import TICK, Folding, folding, gone, hub_of, put, taken, until
from tests.views.histories import TABLE, expression_of
from tidelock.changes.log import prune
from tidelock.errors import Closed, Overflowed, ResumeExpired, SnapshotTooLarge
from tidelock.postgres.database import Database
from tidelock.views import snapshots
from tidelock.views.views import ViewEvent

pytestmark = pytest.mark.check

READING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = ANY(%s)"


@pytest.fixture
def fold(database: Database) -> Iterator[Folding]:
    with folding(database) as made:
        yield made


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by one with every snapshot that is read."""
    counted: list[object] = []
    read = snapshots._read_snapshot

    def counting(*arguments: Any, **wanted: Any) -> snapshots.Snapshot:
        counted.append(wanted["expression"])
        return read(*arguments, **wanted)

    monkeypatch.setattr(snapshots, "_read_snapshot", counting)
    return counted


def connections(database: Database, *names: str) -> int:
    """How many connections the hub has."""
    with database.connect_sync() as connection:
        row = connection.execute(READING, [list(names) or ["tidelock follower", "tidelock snapshots"]]).fetchone()
        assert row is not None
        return int(row[0])


def told(events: list[ViewEvent]) -> list[tuple[str, str, int | None]]:
    return [(event.operation, event.key, event.row["i"]) for event in events]


# Rows, then changes


async def test_first_come_the_current_rows_then_what_becomes_of_them(database: Database, fold: Folding) -> None:
    fold.fold([put("a", i=1), put("b", i=5)], [put("c", i=2), put("a", i=3)])
    async with hub_of(database) as hub:
        subscription = await hub.subscribe(TABLE, expression_of({"i": {"_gt": 1}}))
        first = await taken(subscription, fold.time)
        assert told(first) == [("INSERT", "b", 5), ("INSERT", "a", 3), ("INSERT", "c", 2)]
        assert [event.source_timestamp for event in first] == [fold.time - TICK, fold.time, fold.time]
        fold.fold([put("a", i=4), put("b", i=0), gone("c")])
        then = await taken(subscription, fold.time)
        assert told(then) == [("UPDATE", "a", 4), ("DELETE", "b", 5), ("DELETE", "c", 2)]
        assert [event.fields for event in then] == [("i",), ("k",), ("k",)]


async def test_a_tenant_sees_its_own_rows_only(database: Database, fold: Folding) -> None:
    fold.fold([put("a", "t", i=1), put("a", "u", i=2)])
    async with hub_of(database) as hub:
        subscription = await hub.subscribe(TABLE, tenant_id="u")
        assert told(await taken(subscription, fold.time)) == [("INSERT", "a", 2)]
        fold.fold([put("a", "t", i=3)], [put("a", "u", i=4)])
        assert told(await taken(subscription, fold.time)) == [("UPDATE", "a", 4)]


async def test_after_gives_everything_at_that_time_and_later(database: Database, fold: Folding) -> None:
    times = fold.fold([put("a", i=1)], [put("a", i=2), put("b", i=2)], [put("a", i=3)])
    async with hub_of(database) as hub:
        subscription = await hub.subscribe(TABLE, after=times[1])
        assert told(await taken(subscription, fold.time)) == [
            ("UPDATE", "a", 2), ("INSERT", "b", 2), ("UPDATE", "a", 3),
        ]  # fmt: skip
        fold.fold([gone("a")])
        assert told(await taken(subscription, fold.time)) == [("DELETE", "a", 3)]


async def test_a_client_that_resumes_at_a_time_that_is_still_to_come_waits_for_it(
    database: Database, fold: Folding
) -> None:
    """As one does who comes from another server, which was faster."""
    async with hub_of(database) as hub:
        subscription = await hub.subscribe(TABLE, after=fold.time + 2 * TICK)
        taking = asyncio.create_task(subscription.take())
        await until(lambda: hub.state.through is not None)
        fold.fold([put("a", i=1)])
        fold.fold([put("b", i=2)], [gone("b")])
        assert told(await taking) == [("INSERT", "b", 2), ("DELETE", "b", 2)]


async def test_a_client_that_resumes_after_pruned_changes_gets_an_error(database: Database, fold: Folding) -> None:
    (first,) = fold.fold([put("a", i=1)])
    (second,) = fold.fold([put("a", i=2)])
    with database.connect_sync() as connection:
        prune(connection, 0)
    (third,) = fold.fold([put("a", i=3)])
    async with hub_of(database) as hub:
        for after in (0, first, second):
            subscription = await hub.subscribe(TABLE, after=after)
            with pytest.raises(ResumeExpired) as expired:
                await subscription.take()
            assert expired.value.code == "resume_expired"
        assert hub.state.subscriptions == hub.state.views == 0
        assert told(await (await hub.subscribe(TABLE, after=second + 1)).take()) == [("UPDATE", "a", 3)]
        assert told(await (await hub.subscribe(TABLE, after=third)).take()) == [("UPDATE", "a", 3)]


async def test_more_rows_than_one_may_begin_with_are_refused(database: Database, fold: Folding) -> None:
    fold.fold([put(f"{n}", i=n) for n in range(9)])
    async with hub_of(database, live_snapshot_rows_max=8) as hub:
        with pytest.raises(SnapshotTooLarge, match="narrow the filter"):
            await (await hub.subscribe(TABLE)).take()
        assert len(await (await hub.subscribe(TABLE, expression_of({"i": {"_gt": 0}}))).take()) == 8


async def test_rows_that_take_too_long_to_read_are_refused(
    database: Database, fold: Folding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelock.views.threads._SESSION", "SET statement_timeout = '50ms'")
    with database.connect_sync(autocommit=False) as blocking:
        blocking.execute("LOCK TABLE tidelock_tables.things")
        async with hub_of(database) as hub:
            with pytest.raises(SnapshotTooLarge, match="too long"):
                await (await hub.subscribe(TABLE)).take()


# Shared


async def test_all_of_one_filter_share_a_view_a_snapshot_and_every_event(
    database: Database, fold: Folding, reads: list[object]
) -> None:
    fold.fold([put(f"{n}", i=n) for n in range(500)])
    written = ({"i": {"_gt": 9}}, {"_and": [{"i": {"_gt": 9}}]}, {"_not": {"i": {"_lte": 9}}})
    async with hub_of(database) as hub:
        subscriptions = [await hub.subscribe(TABLE, expression_of(written[n % 3])) for n in range(50)]
        everyone = await asyncio.gather(*(taken(each, fold.time, 490) for each in subscriptions))
        assert len(reads) == 1
        assert [len(events) for events in everyone] == [250] * 50
        rest = await asyncio.gather(*(each.take(490) for each in subscriptions))
        await until(lambda: hub.state.view_subscribers == 50)
        assert hub.state.views == 1
        assert len(reads) == 1
        fold.fold([put("100", i=1_000)])
        last = await asyncio.gather(*(each.take() for each in subscriptions))
        assert told(last[0]) == [("UPDATE", "100", 1_000)]
        for events in (*zip(*everyone, strict=True), *zip(*rest, strict=True), *zip(*last, strict=True)):
            assert len(set(map(id, events))) == 1


async def test_many_who_come_at_once_use_few_connections(database: Database, fold: Folding) -> None:
    fold.fold([put(f"{n}", i=n) for n in range(200)])
    seen = []

    async def watch() -> None:
        while True:
            seen.append(await asyncio.to_thread(connections, database, "tidelock snapshots"))

    async with hub_of(database, live_snapshots_max=2) as hub:
        watching = asyncio.create_task(watch())
        subscriptions = [
            await hub.subscribe(TABLE, expression_of({"i": {"_gte": n}}), after=None if n % 3 else 1)
            for n in range(200)
        ]
        first = await asyncio.gather(*(taken(each, fold.time) for each in subscriptions))
        watching.cancel()
    assert [len(events) for events in first] == [200 - n for n in range(200)]
    assert max(seen) == 2


async def test_nothing_is_read_while_nobody_subscribes(
    database: Database, fold: Folding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelock.views.follower._POLL_S", 0.02)
    async with hub_of(database) as hub:
        fold.fold([put("a", i=1)])
        await asyncio.sleep(0.1)
        assert connections(database) == 0
        assert hub.state.through is None
        subscription = await hub.subscribe(TABLE)
        await subscription.take()
        assert connections(database) == 3
        subscription.close()
        await until(lambda: connections(database) == 0)
        fold.fold([put("a", i=2)])
        assert hub.state.through is None
        assert told(await (await hub.subscribe(TABLE)).take()) == [("INSERT", "a", 2)]


# Slow


async def test_a_client_that_does_not_take_is_ended_and_nobody_else(database: Database, fold: Folding) -> None:
    fold.fold([put("a", i=0)])
    async with hub_of(database, live_queue_rows_max=10) as hub:
        slow, quick = await hub.subscribe(TABLE), await hub.subscribe(TABLE)
        for each in (slow, quick):
            await each.take()
        waiting = asyncio.create_task(slow.take())
        fold.fold([put("a", i=1)])
        assert told(await waiting) == told(await quick.take()) == [("UPDATE", "a", 1)]
        for n in range(3):
            fold.fold([put(f"{n}{m}", i=m) for m in range(5)])
            assert len(await taken(quick, fold.time)) == 5
            assert hub.state.queue_depth == slow.queued <= 10
        assert isinstance(await slow.wait_ended(), Overflowed)
        with pytest.raises(Overflowed) as overflowed:
            await slow.take()
        assert overflowed.value.code == "slow_subscriber"
        assert hub.state.view_subscribers == hub.state.subscriptions == 1


async def test_a_client_that_waits_when_more_comes_at_once_than_may_wait_is_ended_too(
    database: Database, fold: Folding, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the follower's turn may end amid the changes, and the one who waits takes some of them in time.
    monkeypatch.setattr("tidelock.views.follower._TURN_S", 60.0)
    fold.fold([put("a", i=0)])
    async with hub_of(database, live_queue_rows_max=10) as hub:
        subscription = await hub.subscribe(TABLE)
        await subscription.take()
        waiting = asyncio.create_task(subscription.take())
        await until(lambda: subscription.follows)
        fold.fold([put(f"{n}", i=n) for n in range(100)])
        with pytest.raises(Overflowed):
            await waiting
        assert hub.state.subscriptions == 0


async def test_a_client_that_needs_long_for_a_snapshot_reads_on_from_the_log(database: Database, fold: Folding) -> None:
    fold.fold([put(f"{n:03}", i=0) for n in range(100)])
    async with hub_of(database, live_queue_rows_max=5) as hub:
        subscription = await hub.subscribe(TABLE)
        events = await subscription.take(10)
        for n in range(8):
            fold.fold([put(f"{n}{m}", i=m) for m in range(10)])
        await until(lambda: hub.state.through == fold.time)
        while len(events) < 180:
            events += await subscription.take(10)
        assert [event.row["i"] for event in events] == [0] * 100 + [*range(10)] * 8
        assert [event.operation for event in events] == ["INSERT"] * 180
        waiting = asyncio.create_task(subscription.take())
        await until(lambda: subscription.follows)
        fold.fold([gone("000")])
        assert told(await waiting) == [("DELETE", "000", 0)]


async def test_a_client_that_never_catches_up_is_ended(database: Database, fold: Folding) -> None:
    fold.fold([put(f"{n:03}", i=0) for n in range(10)])
    async with hub_of(database, live_queue_rows_max=5) as hub:
        subscription = await hub.subscribe(TABLE)

        async def crawl() -> None:
            for n in range(100):
                # Less than there is to be taken each time, and more than may wait.
                await subscription.take(4)
                await subscription.take(4)
                fold.fold([put(f"{n}{m}", i=m) for m in range(10)])
                await until(lambda: hub.state.through in (None, fold.time))

        with pytest.raises(Overflowed):
            await crawl()
        assert hub.state.subscriptions == 0


async def test_a_client_that_stops_in_the_midst_of_a_snapshot_is_ended_after_a_while(
    database: Database, fold: Folding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelock.views.subscriptions._PATIENCE_S", 0.2)
    fold.fold([put(f"{n}", i=n) for n in range(10)])
    async with hub_of(database, live_queue_rows_max=2) as hub:
        subscription = await hub.subscribe(TABLE)
        await subscription.take(1)
        fold.fold([put(f"{n}", i=-n) for n in range(1, 9)])
        await until(lambda: hub.state.through == fold.time)
        for _ in range(4):
            await asyncio.sleep(0.1)
            await subscription.take(1)
        assert isinstance(await subscription.wait_ended(), Overflowed)


# The end


async def test_closing_ends_who_waits_and_frees_the_view(database: Database, fold: Folding) -> None:
    async with hub_of(database) as hub:
        subscription = await hub.subscribe(TABLE)
        taking = asyncio.create_task(subscription.take())
        await until(lambda: hub.state.views == 1)
        subscription.close()
        subscription.close()
        with pytest.raises(Closed):
            await taking
        assert isinstance(await subscription.wait_ended(), Closed)
        assert hub.state.views == hub.state.subscriptions == hub.state.view_subscribers == 0
        assert hub.sources == {}


async def test_closing_does_not_wait_for_a_snapshot_that_hangs(database: Database, fold: Folding) -> None:
    with database.connect_sync(autocommit=False) as blocking:
        blocking.execute("LOCK TABLE tidelock_tables.things")
        async with hub_of(database, live_snapshots_max=1) as hub:
            first, second = await hub.subscribe(TABLE), await hub.subscribe(TABLE, expression_of({"i": {"_gt": 1}}))
            taking = [asyncio.create_task(each.take()) for each in (first, second)]
            await until(lambda: connections(database, "tidelock snapshots") == 1)
            second.close()
            with pytest.raises(Closed):
                await taking[1]
            assert not taking[0].done()
            async with asyncio.timeout(HANG_S):
                await hub.close()
            with pytest.raises(Closed):
                await taking[0]


async def test_a_closed_hub_leaves_no_task_and_no_connection(database: Database, fold: Folding) -> None:
    before = asyncio.all_tasks()
    fold.fold([put("a", i=1)])
    async with hub_of(database) as hub:
        subscriptions = [await hub.subscribe(TABLE), await hub.subscribe(TABLE, after=1)]
        for each in subscriptions:
            await each.take()
        waiting = [asyncio.create_task(each.take()) for each in subscriptions]
        await until(lambda: hub.state.view_subscribers == 2)
    for task in waiting:
        with pytest.raises(Closed, match="server is stopping"):
            await task
    with pytest.raises(Closed):
        await hub.subscribe(TABLE)
    assert asyncio.all_tasks() == before
    assert connections(database) == 0
