"""The law of subscriptions: what was told, put together, is the filter's answer, however it was come by."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.budgets import examples
from tests.conftest import Databases
from tests.views.folding import Folding, folding, following, gone, hub_of, put, until
from tests.views.histories import TABLE, TENANTS, Client, State, comparable, expression_of, histories, visible
from tests.where.filters import Filter, where
from tidelock.changes import log, reader, segments
from tidelock.changes.reader import Change
from tidelock.errors import Closed
from tidelock.fold import store
from tidelock.postgres.database import Database
from tidelock.views.hub import Hub
from tidelock.views.subscriptions import Subscription
from tidelock.views.views import ViewEvent

History = list[list[Change]]
Wanted = tuple[Filter, str | None]
Place = tuple[Database, Folding]

WANTED = st.tuples(where(), st.sampled_from([None, *TENANTS]))
# Smaller examples would be found by many more databases: they are small enough.
LAW = settings(
    max_examples=examples(12),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments, pages and slices of a few changes, so that even short histories have several."""
    monkeypatch.setattr(store, "encode", partial(segments.encode, rows_max=2))
    monkeypatch.setattr(log, "_PAGE_ROWS", 3)
    monkeypatch.setattr(log, "_PAGE_PARTS", 2)
    monkeypatch.setattr(reader, "_ROWS", 2)


@pytest.fixture(scope="module")
def everywhere(databases: Databases) -> Iterator[Place]:
    """One database for all examples: making one takes longer than most of them."""
    with databases() as database, folding(database) as fold:
        yield database, fold


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """Hypothesis calls what is not asynchronous."""
    with asyncio.Runner() as made:
        yield made


class Forgiving(Client):
    """A client as the manual tells to write one: of each row it keeps the last time, and drops what it has."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[tuple[str, str], int] = {}

    def put(self, event: ViewEvent) -> None:
        place = event.tenant_id, event.key
        if event.source_timestamp > self.seen.get(place, -1):
            self.seen[place] = event.source_timestamp
            self.rows.pop(place, None)
            if event.operation != "DELETE":
                self.rows[place] = event.row


def cut(history: History, cuts: Sequence[int]) -> list[History]:
    """Ranges of as many collections."""
    rest, ranges = list(history), []
    for count in cuts:
        ranges.append(rest[:count])
        rest = rest[count:]
    return [each for each in [*ranges, *([one] for one in rest)] if each]


def answer(fold: Folding, wanted: Wanted, time: int) -> State:
    return comparable(visible(fold.rows(time), *wanted))


async def everything(subscription: Subscription, hub: Hub, fold: Folding) -> list[ViewEvent]:
    """All that a subscription tells up to now; then it is closed."""
    events: list[ViewEvent] = []
    telling = asyncio.create_task(collect(subscription, events))
    await caught_up(subscription, hub, fold)
    await closed(subscription, telling)
    return events


async def collect(subscription: Subscription, events: list[ViewEvent]) -> None:
    while True:
        events.extend(await subscription.take(3))


async def caught_up(subscription: Subscription, hub: Hub, fold: Folding) -> None:
    await until(lambda: hub.state.through == fold.time and subscription.follows and not subscription.queued)


async def closed(subscription: Subscription, telling: asyncio.Task[None]) -> None:
    subscription.close()
    with pytest.raises(Closed):
        await telling


async def agree(hub: Hub, fold: Folding, wanted: Wanted, client: Client) -> None:
    """Waits until a client has what the filter's answer is at the last time."""
    await until(lambda: (hub.state.through or 0) >= fold.time)
    await until(lambda: comparable(client.rows) == answer(fold, wanted, fold.time))


# From a snapshot on


@LAW
@given(histories(), st.lists(st.integers(1, 4)), st.integers(0, 6), st.lists(WANTED, min_size=1, max_size=3), st.data())
def test_what_a_subscription_told_is_the_filters_answer_whenever_all_was_taken(
    everywhere: Place, runner: asyncio.Runner, history: History, cuts: list[int], begin: int, wanted: list[Wanted],
    data: st.DataObject,
) -> None:  # fmt: skip
    chance = data.draw(st.randoms(use_true_random=False))
    ranges = cut(history, cuts)

    database, fold = everywhere

    async def check() -> None:
        async with AsyncExitStack() as stack:
            hub = await stack.enter_async_context(hub_of(database))
            for each in ranges[:begin]:
                fold.fold(*each)
            clients = []
            for one in wanted:
                clients.append((one, client := Client()))
                subscription = await hub.subscribe(TABLE, expression_of(one[0]), one[1])
                await stack.enter_async_context(following(subscription, client, chance))
            # With ranges of one collection, this is so at every source timestamp from the snapshot's on.
            for each in [[], *ranges[begin:]]:
                if each:
                    fold.fold(*each)
                for one, client in clients:
                    await agree(hub, fold, one, client)

    fold.clear()
    runner.run(check())


@LAW
@given(histories(), st.lists(st.integers(1, 4)), WANTED, st.data())
def test_rows_of_a_snapshot_come_in_the_order_of_their_times(
    everywhere: Place, runner: asyncio.Runner, history: History, cuts: list[int], wanted: Wanted, data: st.DataObject
) -> None:
    database, fold = everywhere

    async def check() -> None:
        for each in cut(history, cuts):
            fold.fold(*each)
        rows = visible(fold.rows(fold.time), *wanted)
        async with hub_of(database) as hub:
            subscription = await hub.subscribe(TABLE, expression_of(wanted[0]), wanted[1])
            events: list[ViewEvent] = []
            while len(events) < len(rows):
                events += await subscription.take(data.draw(st.integers(1, 5)))
        assert [event.operation for event in events] == ["INSERT"] * len(rows)
        assert comparable({(e.tenant_id, e.key): e.row for e in events}) == comparable(rows)
        places = [(event.source_timestamp, event.key, event.tenant_id) for event in events]
        assert places == sorted(places)
        assert [time for time, *_ in places] == [changed(fold, (tenant, key)) for _, key, tenant in places]

    fold.clear()
    runner.run(check())


def changed(fold: Folding, place: tuple[str, str]) -> int:
    """When a row last became another."""
    known = [comparable({place: fold.rows(time).get(place, {})}) for time in fold.times]
    return max(time for time, one, before in zip(fold.times[1:], known[1:], known, strict=False) if one != before)


# From the log


@LAW
@given(histories(), st.lists(st.integers(1, 4)), WANTED, st.data())
def test_what_is_read_from_the_log_is_the_filters_answer_at_every_time(
    everywhere: Place, runner: asyncio.Runner, history: History, cuts: list[int], wanted: Wanted, data: st.DataObject
) -> None:
    database, fold = everywhere

    async def check() -> None:
        for each in cut(history, cuts):
            fold.fold(*each)
        async with hub_of(database) as hub:
            subscription = await hub.subscribe(TABLE, expression_of(wanted[0]), wanted[1], after=fold.begun + 1)
            events = await everything(subscription, hub, fold)
        for time in fold.times:
            client = Client()
            for event in events:
                if event.source_timestamp <= time:
                    client.put(event)
            assert comparable(client.rows) == answer(fold, wanted, time)

    fold.clear()
    runner.run(check())


@LAW
@given(histories(), st.lists(st.integers(1, 4)), st.integers(0, 6), st.integers(0, 6), WANTED, st.booleans(), st.data())
def test_a_client_that_was_cut_off_at_any_message_and_resumes_has_the_filters_answer_again(
    everywhere: Place, runner: asyncio.Runner, history: History, cuts: list[int], begin: int, more: int,
    wanted: Wanted, joins: bool, data: st.DataObject,
) -> None:  # fmt: skip
    ranges = cut(history, cuts)
    filter_, tenant = expression_of(wanted[0]), wanted[1]

    database, fold = everywhere

    async def check() -> None:
        for each in ranges[:begin]:
            fold.fold(*each)
        async with hub_of(database) as hub:
            subscription = await hub.subscribe(TABLE, filter_, tenant)
            events: list[ViewEvent] = []
            telling = asyncio.create_task(collect(subscription, events))
            if joins:
                await until(lambda: hub.state.view_subscribers == 1)
            for each in ranges[begin : begin + more]:
                fold.fold(*each)
            await caught_up(subscription, hub, fold)
            await closed(subscription, telling)
            # Of what it was told at once it knows the last only, so before it may know less.
            known = fold.time
            got = events[: data.draw(st.integers(0, len(events)))]
            for each in ranges[begin + more :]:
                fold.fold(*each)
            after = got[-1].source_timestamp if got else fold.begun
            resumed = await hub.subscribe(TABLE, filter_, tenant, after=after)
            rest = await everything(resumed, hub, fold)
        assert all(event.source_timestamp >= after for event in rest)
        for time in [time for time in fold.times if time >= known]:
            client = Forgiving()
            for event in [*got, *(event for event in rest if event.source_timestamp <= time)]:
                client.put(event)
            assert comparable(client.rows) == answer(fold, wanted, time)

    fold.clear()
    runner.run(check())


# While others write


async def test_nothing_is_missed_or_told_twice_by_a_client_that_comes_while_the_fold_continues(
    database: Database,
) -> None:
    chance = random.Random(6)
    wanted: list[Wanted] = [({}, None), ({"i": {"_gt": 4}}, None), ({}, "t"), ({"s": {"_in": ["0", "1"]}}, "u")]

    def write(fold: Folding, ranges: int) -> None:
        for _ in range(ranges):
            fold.fold(*(some_changes(chance) for _ in range(chance.choice([1, 1, 3]))))

    async with AsyncExitStack() as stack:
        fold = stack.enter_context(folding(database))
        hub = await stack.enter_async_context(hub_of(database))
        clients: list[tuple[Wanted, Client]] = []
        writing = asyncio.create_task(asyncio.to_thread(write, fold, 150))
        while not writing.done() and len(clients) < 40:
            one = chance.choice(wanted)
            resumes = chance.random() < 0.3
            after = chance.choice([0, hub.state.through or 0]) if resumes else None
            client = Forgiving() if resumes else Client()
            if resumes and after:
                client.rows = dict(visible(fold.rows(after), *one))
            subscription = await hub.subscribe(TABLE, expression_of(one[0]), one[1], after)
            await stack.enter_async_context(following(subscription, client, chance))
            clients.append((one, client))
            await asyncio.sleep(chance.random() / 20)
        assert len(clients) > 10
        await writing
        for one, client in clients:
            await agree(hub, fold, one, client)


def some_changes(chance: random.Random) -> list[Change]:
    places = {(chance.choice(TENANTS), chance.choice("abcdefghij")) for _ in range(chance.randint(1, 4))}
    return [
        gone(key, tenant) if chance.random() < 0.3 else put(key, tenant, i=chance.randrange(9), s=chance.choice("0123"))
        for tenant, key in places
    ]
