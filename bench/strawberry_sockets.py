"""Fan-out by Strawberry, a GraphQL library for Python with subscriptions of its own, over the same WebSockets.

Run by itself (`python -m bench.strawberry_sockets`). It prints its port.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec
import strawberry
from starlette.types import Receive, Scope, Send
from strawberry.asgi import GraphQL
from strawberry.schema.config import StrawberryConfig

from bench.bare_sockets import Order, answer_order, serve


@strawberry.type(name="counters")
class Counter:
    """A row."""

    metric: str
    customer_ref: str
    period_start: str
    agg_count: str
    value: str
    total: str


@strawberry.type(name="counters_update")
class Update:
    """What became of it."""

    operation: str
    fields: list[str]
    ts_timestamp: str
    data: Counter


_WAITING_MAX = 100
_queues: set[asyncio.Queue[Update]] = set()


@strawberry.type
class Query:
    """Without which there is no schema."""

    @strawberry.field
    def nothing(self) -> bool:
        return True


@strawberry.type
class Subscription:
    """What every subscriber follows."""

    @strawberry.subscription(name="counters")  # type: ignore[untyped-decorator]
    async def counters(self) -> AsyncGenerator[Update, None]:
        queue: asyncio.Queue[Update] = asyncio.Queue(_WAITING_MAX)
        _queues.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            _queues.discard(queue)


class StrawberrySockets:
    """Strawberry's application beside `POST /send`."""

    def __init__(self) -> None:
        schema = strawberry.Schema(
            query=Query, subscription=Subscription, config=StrawberryConfig(auto_camel_case=False)
        )
        self._graphql = GraphQL(schema, keep_alive=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await answer_order(receive, send, self._send)
        else:
            await self._graphql(scope, receive, send)

    async def _send(self, order: Order) -> None:
        for text in order.texts:
            update = msgspec.json.decode(text)
            event = Update(**{**update, "data": Counter(**update["data"])})
            for queue in list(_queues):
                await queue.put(event)


if __name__ == "__main__":
    serve(StrawberrySockets())
