"""Operations: what a GraphQL request gives, as encoded payloads, whatever it came by and goes by."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence

from tidelock.errors import Failed, Overflowed, TidelockError
from tidelock.live.fields import Changes
from tidelock.live.hub import Hub
from tidelock.live.requests import Request
from tidelock.live.selections import Selection
from tidelock.live.views import Event
from tidelock.ops.access import Grant
from tidelock.ops.graphql import Answering, GraphQL, check_allowed

logger = logging.getLogger(__name__)

#: takes payloads to the client; waits while the client does not read
SendPayloads = Callable[[Sequence[bytes]], Awaitable[None]]
#: ends the client, whatever it waits for
End = Callable[[Exception], None]

# Bytes given to the client at a time, but for one payload that is larger: what waits for a slow one is little.
_BYTES = 64 * 1024


class Operations:
    """Executes requests of clients that stay."""

    def __init__(self, graphql: GraphQL, hub: Hub, answering: Callable[[Grant], Answering]) -> None:
        """`answering` gives what answers fields that are about no table, to who may ask them."""
        self._graphql = graphql
        self._hub = hub
        self._answering = answering

    async def run(
        self, request: Request, grant: Grant, send: SendPayloads, end: End, *, mutations: bool = True
    ) -> None:
        """Send everything that a request gives. A subscription ends by an error only: raises TidelockError.

        Whatever `send` raises of the client's going, an OSError, is raised too. `end` is called when too much waits for
        a client that does not read what it was sent.
        """
        try:
            operation = await self._graphql.prepare(request)
            check_allowed(operation, grant, mutations=mutations)
            tenant_id = grant.reads(None)
            if operation.kind == "subscription":
                (field,) = operation.fields
                assert isinstance(field, Changes), "a subscription has nothing else"
                await self._follow(field, tenant_id, send, end)
            else:
                await send([await self._graphql.execute(operation, tenant_id, self._answering(grant))])
        except (TidelockError, OSError):
            raise
        except Exception as error:
            logger.error("a GraphQL operation failed", exc_info=error)
            raise Failed from None

    async def _follow(self, field: Changes, tenant_id: str | None, send: SendPayloads, end: End) -> None:
        subscription = await self._hub.subscribe(field.table, field.where, tenant_id, field.after)

        def ended(why: asyncio.Task[TidelockError]) -> None:
            # Everything else is told by the next `take`; who is held up sending does not come to it.
            if not why.cancelled() and isinstance(error := why.result(), Overflowed):
                end(error)

        watching = asyncio.create_task(subscription.wait_ended())
        watching.add_done_callback(ended)
        try:
            while True:
                for payloads in _batches(field.selection, await subscription.take()):
                    await send(payloads)
        finally:
            watching.cancel()
            subscription.close()


def _batches(selection: Selection, events: Sequence[Event]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for event in events:
        payload = selection.encode(event)
        size += len(payload)
        if size > _BYTES and batch:
            yield batch
            batch, size = [], len(payload)
        batch.append(payload)
    yield batch
