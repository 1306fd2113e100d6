"""The live tail over WebSocket: `/ws`, one event per text frame, from now or from a sequence on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import aclosing, suppress

from starlette.types import Receive, Scope, Send

from tidelock.errors import Overloaded, TidelockError, Unreachable
from tidelock.ledger.connections import Connections
from tidelock.ledger.feed import Feed
from tidelock.ledger.reader import read_head
from tidelock.ledger.routing import Filter
from tidelock.ops.access import Access
from tidelock.ops.parameters import Parameters
from tidelock.settings import Settings

logger = logging.getLogger(__name__)

PARAMETERS = ("after", "stream", "customerRef", "causalityKey", "tenantId")

# A client that takes fewer frames than this in two pings' time is gone, though its connection may look alive.
_FRAMES_PER_CHECK = 100
_CLOSE_INTERNAL = 1011
_CLOSE_UNAUTHORIZED = 4401


class TailRoute:
    """`/ws`. What is wrong before the handshake is told as an HTTP error."""

    def __init__(self, feed: Feed, connections: Connections, access: Access, settings: Settings) -> None:
        self._feed = feed
        self._connections = connections
        self._access = access
        self._clients = 0
        self._clients_max = settings.ws_connections_max
        self._stall_s = 2 * settings.ws_ping_s
        self._recheck_s = max(1.0, settings.key_cache_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        headers = dict(scope["headers"])
        only, after = await self._asked(scope["query_string"], headers)
        if self._clients >= self._clients_max:
            raise Overloaded(f"{self._clients} clients follow the ledger already, which is the most that are served")
        self._clients += 1
        try:
            await send({"type": "websocket.accept"})
            await self._serve(only, after, headers, receive, send)
        finally:
            self._clients -= 1

    async def _asked(self, query: bytes, headers: Mapping[bytes, bytes]) -> tuple[Filter, int]:
        grant = (await self._access.grant(headers)).need("read")
        parameters = Parameters(query, PARAMETERS)
        only = Filter(
            grant.reads(parameters.name("tenantId")),
            parameters.name("stream"),
            parameters.text("customerRef"),
            parameters.text("causalityKey"),
        )
        after = parameters.sequence("after")
        # Read in any case: a client is told now that the ledger is away, not after the handshake.
        head = await self._connections.ask(read_head)
        return only, head.ingress_sequence if after is None else after

    async def _serve(
        self, only: Filter, after: int, headers: Mapping[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """Send until the client goes, its key is revoked, or the server stops."""
        sending = asyncio.create_task(self._send(only, after, send))
        watching = asyncio.create_task(self._watch(headers, receive))
        tasks = (sending, watching)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            await _close_for(task.exception(), send)

    async def _send(self, only: Filter, after: int, send: Send) -> None:
        async with aclosing(self._feed.follow(only, after)) as batches:
            async for frames in batches:
                for start in range(0, len(frames), _FRAMES_PER_CHECK):
                    async with asyncio.timeout(self._stall_s):
                        for frame in frames[start : start + _FRAMES_PER_CHECK]:
                            await send({"type": "websocket.send", "text": frame.text})
                    # Sending to a client that keeps up never waits: let others have a turn.
                    await asyncio.sleep(0)

    async def _watch(self, headers: Mapping[bytes, bytes], receive: Receive) -> None:
        """Returns when the client is gone; raises when it may no longer read. What it says is ignored."""
        while True:
            try:
                async with asyncio.timeout(self._recheck_s):
                    if (await receive())["type"] == "websocket.disconnect":
                        return
            except TimeoutError:
                await self._recheck(headers)

    async def _recheck(self, headers: Mapping[bytes, bytes]) -> None:
        try:
            (await self._access.grant(headers)).need("read")
        except Unreachable:
            return  # nothing can be read meanwhile


async def _close_for(error: BaseException | None, send: Send) -> None:
    """Close for the reason one of the tasks ended with, if the client is still there to hear it."""
    if error is None or isinstance(error, OSError):
        return  # the client went; a stalled one (TimeoutError is an OSError) hears nothing
    if isinstance(error, TidelockError):
        code, reason = _CLOSE_UNAUTHORIZED, error.message
    else:
        logger.error("a client's live tail failed", exc_info=error)
        code, reason = _CLOSE_INTERNAL, "the server failed; its log says why"
    with suppress(OSError):
        await send({"type": "websocket.close", "code": code, "reason": reason})
