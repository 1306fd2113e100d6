"""Queues: every step, or when they are too many one event for a row, in the order of time; in the end the same rows."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.budgets import HANG_S, examples
from tests.views.histories import TABLE, TENANTS, Client, comparable, expression_of, histories, states, visible
from tests.where.filters import Filter, where
from tidelock.changes.reader import Change
from tidelock.views.queues import SubscriberQueue
from tidelock.views.views import Operation, TableViews, ViewEvent

pytestmark = pytest.mark.check

ALL = ("k", "a", "b", "c")


def event(operation: Operation, time: int, key: str = "x", fields: tuple[str, ...] | None = None) -> ViewEvent:
    told = {"INSERT": ALL, "UPDATE": fields or ("a",), "DELETE": ("k",)}[operation]
    row = {"tenant_id": "t", "k": key, "a": time, "b": time, "c": time}
    return ViewEvent("t", key, operation, told, row, source_timestamp=time)


def waiting(*events: ViewEvent) -> list[ViewEvent]:
    """What they come to in a queue that has as many steps as may wait."""
    queue = SubscriberQueue(10)
    for _ in range(10):
        queue.put(event("UPDATE", 0, "filling"))
    for each in events:
        queue.put(each)
    assert queue.take(1)[0].key == "filling"
    return queue.take(10)


def told(events: list[ViewEvent]) -> list[tuple[str, tuple[str, ...], int]]:
    return [(each.operation, each.fields, each.source_timestamp) for each in events]


# Every step


def test_a_client_that_keeps_up_is_told_every_step() -> None:
    queue = SubscriberQueue(4)
    for time in range(0, 40, 4):
        steps = [event("INSERT", time), event("UPDATE", time + 1), event("DELETE", time + 2), event("INSERT", time + 3)]
        for each in steps:
            queue.put(each)
        assert queue.take(3) + queue.take(3) == steps


def test_one_step_too_many_makes_one_event_of_a_row_until_all_was_taken() -> None:
    queue = SubscriberQueue(2)
    for each in (event("INSERT", 1), event("UPDATE", 2), event("UPDATE", 3)):
        queue.put(each)
    queue.put(event("UPDATE", 4))
    assert told(queue.take(9)) == [("INSERT", ALL, 4)]
    queue.put(event("UPDATE", 5))
    queue.put(event("DELETE", 6))
    assert told(queue.take(9)) == [("UPDATE", ("a",), 5), ("DELETE", ("k",), 6)]


# One event for a row


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (event("INSERT", 1), event("UPDATE", 2), [("INSERT", ALL, 2)]),
        (event("INSERT", 1), event("DELETE", 2), []),
        (event("UPDATE", 1, fields=("c",)), event("UPDATE", 2, fields=("a",)), [("UPDATE", ("a", "c"), 2)]),
        (event("UPDATE", 1), event("DELETE", 2), [("DELETE", ("k",), 2)]),
        (event("DELETE", 1), event("INSERT", 2), [("UPDATE", ALL, 2)]),
    ],
)
def test_two_events_of_a_row_are_one(
    first: ViewEvent, second: ViewEvent, together: list[tuple[str, tuple[str, ...], int]]
) -> None:
    found = waiting(first, second)
    assert told(found) == together
    assert all(each.row == second.row for each in found)


def test_what_needs_no_other_words_is_the_shared_event_itself() -> None:
    update, more, last = event("UPDATE", 1), event("UPDATE", 2, fields=("a", "b")), event("DELETE", 3)
    assert waiting(update)[0] is update
    assert waiting(update, more)[0] is more
    assert waiting(update, more, last)[0] is last
    assert waiting(event("INSERT", 0), update)[0] is not update


def test_rows_of_two_tenants_are_two_rows() -> None:
    other = event("DELETE", 2)
    other.tenant_id = "u"
    assert told(waiting(event("INSERT", 1), other)) == [("INSERT", ALL, 1), ("DELETE", ("k",), 2)]


def test_a_row_that_changes_again_goes_to_the_end() -> None:
    queue = SubscriberQueue(3)
    for each in (event("INSERT", 1, "x"), event("INSERT", 2, "y"), event("UPDATE", 3, "x"), event("INSERT", 4, "z")):
        queue.put(each)
    assert len(queue) == 3
    assert [each.key for each in queue.take(2)] == ["y", "x"]
    assert [each.key for each in queue.take(2)] == ["z"]
    assert queue.take(2) == []


# The rows of a filter, whenever all was taken


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(histories(), where(), st.sampled_from([None, *TENANTS]), st.data())
def test_a_slow_client_has_the_rows_of_the_filter_whenever_it_has_taken_all(
    history: list[list[Change]], written: Filter, tenant: str | None, data: st.DataObject
) -> None:
    # There are eight rows at most.
    source, queue, client = TableViews(TABLE), SubscriberQueue(data.draw(st.sampled_from([8, 1_000]))), Client()
    source.subscribe(queue, expression_of(written), tenant)
    for state, changes in zip(states(history), history, strict=True):
        for change in changes:
            source.apply(change)
        assert not queue.overflowed
        for each in queue.take(data.draw(st.sampled_from([0, 0, 1, 2, 99]))):
            client.put(each)
        if not len(queue):
            assert comparable(client.rows) == comparable(visible(state, written, tenant))
    for each in queue.take(99):
        client.put(each)
    assert comparable(client.rows) == comparable(visible(states(history)[-1], written, tenant))


def test_what_is_dropped_stays_dropped() -> None:
    queue = SubscriberQueue(10)
    queue.put(event("INSERT", 1, "x"))
    queue.put(event("INSERT", 5, "y"))
    queue.drop_through(3)
    queue.put(event("INSERT", 3, "z"))
    assert [each.key for each in queue.take(9)] == ["y"]


# Bounds


def test_more_rows_than_allowed_overflow_and_nothing_is_kept() -> None:
    queue = SubscriberQueue(3)
    for time in range(100):
        queue.put(event("UPDATE", time, str(time % 3)))
    assert not queue.overflowed
    queue.put(event("UPDATE", 100, "new"))
    queue.put(event("UPDATE", 101, "newer"))
    assert (queue.overflowed, len(queue), queue.take(9)) == (True, 0, [])


def test_a_place_that_became_free_can_be_taken_again() -> None:
    queue = SubscriberQueue(2)
    for time in range(0, 100, 3):
        queue.put(event("INSERT", time, "x"))
        queue.put(event("INSERT", time + 1, str(time)))
        queue.put(event("DELETE", time + 2, "x"))
        queue.take(1)
    assert not queue.overflowed


# Waiting


async def test_a_client_that_waits_is_woken_by_the_first_event() -> None:
    queue = SubscriberQueue(10)
    waiter = asyncio.create_task(queue.wait())
    await asyncio.sleep(0)
    assert not waiter.done()
    queue.put(event("INSERT", 1))
    await asyncio.wait_for(waiter, HANG_S)
    assert len(queue.take(9)) == 1
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.wait(), 0.01)


async def test_a_client_that_left_some_need_not_wait() -> None:
    queue = SubscriberQueue(10)
    queue.put(event("INSERT", 1, "x"))
    queue.put(event("INSERT", 2, "y"))
    queue.take(1)
    await asyncio.wait_for(queue.wait(), HANG_S)


async def test_an_overflow_and_the_owner_wake_who_waits() -> None:
    full, woken = SubscriberQueue(0), SubscriberQueue(9)
    waiters = [asyncio.create_task(queue.wait()) for queue in (full, woken)]
    await asyncio.sleep(0)
    assert not any(waiter.done() for waiter in waiters)
    full.put(event("INSERT", 1))
    woken.wake()
    await asyncio.wait_for(asyncio.gather(*waiters), HANG_S)
    assert full.take(9) == []
    await asyncio.wait_for(full.wait(), HANG_S)
