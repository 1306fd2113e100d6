"""Clients that stay connected: how many there may be, whether they may still read, and how they are closed."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from starlette.types import Scope, Send

from tidelock.errors import Overflowed, Overloaded, TidelockError, Unauthorized, Unreachable
from tidelock.http.access import Access
from tidelock.http.problems import outages

logger = logging.getLogger(__name__)

CLOSE_INTERNAL = 1011
CLOSE_TRY_LATER = 1013
#: our own code, for clients that do not read; clients of graphql-transport-ws reconnect after it
CLOSE_SLOW = 4499

#: the extension of a WebSocket's scope that is told of admitted clients
TRUST = "tidelock.trust"

# How often a client's key is checked, whether or not a change was announced.
_RECHECK_S = 1.0
#: headers that determine what a client may do
_JUDGED = (b"authorization", b"host", b"origin")

#: checks of a client per keep-alive interval
LOOKS = 4


class ClientSlots:
    """A bounded number of places, of each kind if there are kinds."""

    def __init__(self, most: int, what: str) -> None:
        """`what` they are for, in the plural."""
        self._most = most
        self._what = what
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        return self._taken.total()

    @contextmanager
    def take(self, kind: str = "") -> Iterator[None]:
        """Raises Overloaded when all of a kind are taken."""
        taken = self._taken
        if taken[kind] >= self._most:
            raise Overloaded(f"the maximum of {taken[kind]} {self._what} is reached; try again later")
        taken[kind] += 1
        try:
            yield
        finally:
            taken[kind] -= 1
            if not taken[kind]:
                del taken[kind]


@dataclass(eq=False, slots=True)
class _Watched:
    asked_tenant_id: str | None
    tenant_id: str | None
    refuse: Callable[[Exception], None]


@dataclass(eq=False, slots=True)
class _KeyGroup:
    """Clients with the same key."""

    headers: Mapping[bytes, bytes]
    clients: set[_Watched] = field(default_factory=set)
    task: asyncio.Task[None] | None = None


class AccessWatch:
    """Checks the keys of clients as long as they stay. One check serves all clients with the same key."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._groups: dict[tuple[bytes | None, ...], _KeyGroup] = {}

    @contextmanager
    def over(
        self,
        headers: Mapping[bytes, bytes],
        tenant_id: str | None,
        refuse: Callable[[Exception], None],
        *,
        asked_tenant_id: str | None = None,
    ) -> Iterator[None]:
        """Calls `refuse` when the client may no longer read this tenant (None: all)."""
        shown = tuple(headers.get(name) for name in _JUDGED)
        group = self._groups.setdefault(shown, _KeyGroup({name: headers[name] for name in _JUDGED if name in headers}))
        client = _Watched(asked_tenant_id, tenant_id, refuse)
        group.clients.add(client)
        if group.task is None:
            group.task = asyncio.create_task(self._look(group))
        try:
            yield
        finally:
            group.clients.discard(client)
            if not group.clients:
                group.task.cancel()
                self._groups.pop(shown, None)

    async def _look(self, group: _KeyGroup) -> None:
        while True:
            await self._access.changed(_RECHECK_S)
            try:
                # What each may do was decided when it connected: the scopes of a key do not change.
                grant = await self._access.grant(group.headers, fresh=False)
            except Unreachable:
                continue  # nothing can be read meanwhile
            except Exception as error:
                for client in list(group.clients):
                    client.refuse(error)
                continue
            for client in list(group.clients):
                try:
                    tenant_id = grant.reads(client.asked_tenant_id)
                except Exception as error:
                    client.refuse(error)
                else:
                    if tenant_id != client.tenant_id:
                        client.refuse(Unauthorized("the API key's permissions have changed; connect again"))


def trust(scope: Scope) -> None:
    """The client of a WebSocket is admitted: before this it may send no more than it needs to authenticate."""
    tell = scope.get("extensions", {}).get(TRUST)
    if tell is not None:
        tell()


async def first_ended(ends: Sequence[asyncio.Future[None]]) -> set[asyncio.Future[None]]:
    """Wait until one ends and cancel the others; returns those that ended by themselves."""
    try:
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
    return done


async def say_goodbye(send: Send, code: int, reason: str) -> None:
    """Close a WebSocket, if the client is still connected."""
    with suppress(OSError):
        # A control frame has 125 bytes, two of them for the code.
        short = reason.encode()[:123].decode(errors="ignore")
        await send({"type": "websocket.close", "code": code, "reason": short})


def close_code(error: BaseException, refused: int, what: str) -> tuple[int, str]:
    """Code and reason of the close after an error; `refused` if it is the client's fault."""
    outages.note(error)
    if isinstance(error, Unreachable | Overloaded):
        return CLOSE_TRY_LATER, error.message
    if isinstance(error, TidelockError):
        return refused, error.message
    logger.error("%s failed", what, exc_info=error)
    return CLOSE_INTERNAL, "the server failed; see its log"


class OpenClient(ABC):
    """A client that is written to until it is ended."""

    #: what is written to keep it alive
    still_here: bytes

    def __init__(self) -> None:
        #: the error that ends it
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Retrieved here, where nobody awaits it any more; otherwise asyncio complains.
        self.ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._saying: asyncio.Task[None] | None = None
        #: writes that wait until the client has read
        self._waiting = 0
        #: checks since something was written, and since a write has been waiting
        self._silent = self._held = 0

    @abstractmethod
    async def give(self, parts: Sequence[bytes]) -> None:
        """Send; waits while the client does not read. Raises OSError when it is gone."""

    async def write(self, parts: Sequence[bytes]) -> None:
        self._waiting += 1
        try:
            await self.give(parts)
        finally:
            self._waiting -= 1
        self._silent = self._held = 0

    def end(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    def look(self) -> None:
        """Called LOOKS times per keep-alive interval."""
        if self._waiting:
            self._held += 1
            if self._held > 2 * LOOKS:
                self.end(Overflowed("the client did not read for too long; subscribe again"))
            return
        self._silent += 1
        if self._silent >= LOOKS:
            # Not awaited: a client that reads nothing must not delay the check of the next.
            self._saying = asyncio.create_task(self._say())

    async def _say(self) -> None:
        with suppress(OSError):
            await self.write([self.still_here])


class KeepAlive:
    """Checks all clients of a kind in turn: a timer for each would cost more than its purpose.

    An idle one gets a keep-alive now and then, and one that reads nothing is closed.
    """

    def __init__(self, period_s: float) -> None:
        self._pause_s = period_s / LOOKS
        self._clients: set[OpenClient] = set()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def over(self, client: OpenClient) -> Iterator[None]:
        self._clients.add(client)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._go())
        try:
            yield
        finally:
            self._clients.discard(client)

    async def _go(self) -> None:
        while self._clients:
            await asyncio.sleep(self._pause_s)
            for client in list(self._clients):
                client.look()
