"""Clients of server-sent events that do not read what they are sent."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.graphql.served import Served, serving
from tests.graphql.sse import streamed
from tests.serving import Start

#: of a key of a kilobyte, so many times
WIDE = "subscription { others { data { " + " ".join(f"k{number}: k" for number in range(200)) + " } } }"


def row(number: int) -> dict[str, Any]:
    return {f"{number:0>1000}": number}


async def put_rows(served: Served, count: int) -> None:
    for number in range(count):
        await served.put(**row(number))


async def test_a_client_that_reads_nothing_is_cut_off(start: Start) -> None:
    async with (
        serving(start, live_keep_alive=1_000_000_000) as served,
        streamed(served.client, WIDE) as events,
        streamed(served.client, "subscription { others { data { n } } }") as neighbour,
    ):
        for number in range(20):
            await served.put(**row(number))
            assert await neighbour.data() == {"others": {"data": {"n": str(number)}}}
        await served.until("live_connections", 1)
        await served.put(**row(20))
        assert await neighbour.data() == {"others": {"data": {"n": "20"}}}
        assert not events.response.is_closed


async def test_one_for_whom_too_much_waits_is_reported(start: Start) -> None:
    async with serving(start, live_queue_rows_max=5) as served, streamed(served.client, WIDE) as events:
        await served.until("view_subscribers", 1)
        await put_rows(served, 30)
        await served.until("view_subscribers", 0)
        name, data = await events.next()
        count = 0
        while '"data"' in data[:20]:
            count += 1
            name, data = await events.next()
        assert 0 < count < 30
        assert name == "next"
        assert '"code":"slow_subscriber"' in data
        assert await events.ended()


async def test_a_client_that_reads_slowly_is_not_cut_off(start: Start) -> None:
    async with serving(start, live_keep_alive=1_000_000_000) as served, streamed(served.client, WIDE) as events:
        putting = asyncio.create_task(put_rows(served, 20))
        read = 0
        async for part in events.response.aiter_raw(50_000):
            read += len(part)
            if read > 20 * 200 * 900:
                assert await served.metric("live_connections") == 1
                break
            # In all longer than one who reads nothing may stay.
            await asyncio.sleep(0.03)
        await putting
