"""Routing: which followers get which event."""

from __future__ import annotations

import random

import msgspec
import pytest

from tidelock.ledger.reader import Slice
from tidelock.ledger.routing import Filter, FollowerQueue, Router
from tidelock.model import Recorded


def event(sequence: int, names: Filter) -> Recorded:
    return Recorded(
        sequence, 1, "1", "", "", names.tenant_id or "t", names.stream or "s", names.customer_ref, None, None,
        msgspec.Raw(b'{"a":1}'), "upsert", names.causality_key, None, None, None, "none", None, None,
        None, None, None,
    )  # fmt: skip


def queue(only: Filter, *, events_max: int = 100, bytes_max: int = 10**6) -> FollowerQueue:
    return FollowerQueue(only, events_max=events_max, bytes_max=bytes_max)


def matches(only: Filter, of: Recorded) -> bool:
    """The plain meaning of a filter."""
    names = (of.tenant_id, of.stream, of.customer_ref, of.causality_key)
    return all(wanted is None or wanted == name for wanted, name in zip(only, names, strict=True))


async def test_everybody_gets_exactly_what_matches_in_order() -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)

    def names() -> Filter:
        return Filter(*(chance.choice(["x", "y", "z", None]) for _ in range(4)))

    router = Router()
    queues = [queue(names()) for _ in range(60)]
    for each in queues:
        router.add(each)
    events = [event(sequence, names()) for sequence in range(1, 40)]
    router.route(events)
    for each in queues:
        expected = [of.ingress_sequence for of in events if matches(each.only, of)]
        got = [frame.sequence for frame in await each.take()] if len(each) else []
        assert got == expected, f"seed {seed}, {each.only}"


async def test_an_event_without_a_customer_is_not_sent_twice_to_who_filters_nothing() -> None:
    router, everything = Router(), queue(Filter())
    router.add(everything)
    router.add(queue(Filter(customer_ref="x")))
    router.route([event(1, Filter())])
    assert [frame.sequence for frame in await everything.take()] == [1]


async def test_a_client_that_leaves_gets_nothing_more_and_leaves_nothing_behind() -> None:
    router, gone = Router(), queue(Filter("t"))
    router.add(gone)
    assert len(router) == 1
    router.remove(gone)
    router.remove(gone)
    router.route([event(1, Filter("t"))])
    assert len(gone) == 0
    assert len(router) == 0
    assert router.cover() is None


def test_the_cover_names_only_what_everybody_filters_by() -> None:
    router = Router()
    router.add(queue(Filter("t", "a")))
    router.add(queue(Filter("u", "a", "x")))
    cover = router.cover()
    assert cover is not None
    assert isinstance(cover.tenant_id, tuple)
    assert set(cover.tenant_id) == {"t", "u"}
    assert cover.stream == ("a",)
    assert cover.customer_ref is None
    router.add(queue(Filter()))
    assert router.cover() == Slice()


@pytest.mark.parametrize("limits", [{"events_max": 3}, {"bytes_max": 1000}])
async def test_a_full_queue_gives_what_it_has_and_then_ends(limits: dict[str, int]) -> None:
    router, slow = Router(), queue(Filter(), **limits)
    router.add(slow)
    for sequence in range(1, 20):
        router.route([event(sequence, Filter())])
    assert slow.overflowed
    got = [frame.sequence for frame in await slow.take()]
    assert got == list(range(1, len(got) + 1))
    assert 1 <= len(got) < 6
    assert await slow.take() == []


async def test_a_batch_larger_than_the_queue_gets_through_to_who_keeps_up() -> None:
    router, fast = Router(), queue(Filter(), events_max=2)
    router.add(fast)
    router.route([event(sequence, Filter()) for sequence in range(1, 6)])
    assert len(await fast.take()) == 5
    assert not fast.overflowed
