"""The last events of a stream, asked for again and again by what is new alone."""

from __future__ import annotations

from typing import Any

from tidelock.console.api import Api

# Sequences that are looked through at first: of a stream that is silent there may be no event for long.
_LOOKED_AT = 1_000_000


class LastEvents:
    """What is known of them, the oldest first."""

    def __init__(self, api: Api, stream: str, tenant: str) -> None:
        self._api = api
        self._asked = {"stream": stream, "tenantId": tenant}
        self.items: list[dict[str, Any]] = []
        #: there are older ones
        self.more = False
        #: everything up to it is known, for so many events
        self._seen, self._count = 0, 0

    async def read(self, head: int, count: int) -> None:
        """The last so many of the events up to a sequence."""
        if count > self._count:
            self.items, self.more = await self._between(max(0, head - _LOOKED_AT), head, count)
        elif head > self._seen:
            new, more = await self._between(self._seen, head, count)
            self.items, self.more = (new, True) if more else ([*self.items, *new], self.more)
        if len(self.items) > count:
            self.items, self.more = self.items[-count:], True
        self._seen, self._count = head, count

    async def _between(self, after: int, head: int, count: int) -> tuple[list[dict[str, Any]], bool]:
        """The newest of them, and whether there are more."""
        page = await self._api.get(
            "/admin/events", **self._asked, after=after, before=head + 1, order="desc", limit=count
        )
        return page["items"][::-1], page["next"] is not None
