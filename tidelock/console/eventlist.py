"""A list of events that can be followed and paged, with queries that stay small whatever is filtered for."""

from __future__ import annotations

from typing import Any

from tidelock.console.api import Api

FILTERS = ("stream", "customerRef", "causalityKey", "tenantId")
ROWS = 50
# With a filter that hardly anything matches, a page would be looked for in the whole ledger. So it is looked for in
# stretches, and after some of them it is the reader who says whether to go on.
_STRETCH, _STRETCHES = 250_000, 4


class EventList:
    """What is shown, newest first."""

    def __init__(self, api: Api, filters: dict[str, str | None], *, narrow: bool) -> None:
        """`narrow`: the API shows a part of the ledger only, whatever is asked for."""
        self._api = api
        self._narrow = narrow
        self.filters = filters
        self.items: list[dict[str, Any]] = []
        #: there may be older ones
        self.more = False
        #: how far back was looked where that was not to the beginning, and what is shown does not fill a page
        self.looked_to: int | None = None
        #: everything up to it is known
        self._seen = 0

    async def newest(self) -> None:
        self._seen = await self._head()
        await self._back(self._seen + 1)

    async def follow(self) -> bool:
        """Add what came since; whether anything did."""
        head = await self._head()
        if head <= self._seen:
            return False
        found = await self._read(after=self._seen, before=head + 1, order="desc")
        # Also where nothing matched: else a filter for what does not come is looked for in ever more.
        self._seen = head
        if not found:
            return False
        self.more = self.more or len(self.items) + len(found) > ROWS
        self.items = [*found, *self.items][:ROWS]
        return True

    async def older(self) -> None:
        lowest = self.items[-1]["ingressSequence"] if self.items else self._seen + 1
        await self._back(min(lowest, self.looked_to or lowest))

    async def newer(self) -> None:
        if not self.items:
            await self.newest()
            return
        after = self.items[0]["ingressSequence"]
        found: list[dict[str, Any]] = []
        for _ in range(_STRETCHES):
            highest = after + _STRETCH if self._selective() else self._seen
            found += await self._read(after=after, before=highest + 1, order="asc", limit=ROWS - len(found))
            after = highest
            if len(found) >= ROWS or highest >= self._seen:
                break
        if len(found) < ROWS and after >= self._seen:
            await self.newest()
        elif found:
            self.items, self.more, self.looked_to = found[::-1], True, None

    async def _back(self, before: int) -> None:
        """A page of what lies below."""
        found: list[dict[str, Any]] = []
        for _ in range(_STRETCHES):
            lowest = max(0, before - _STRETCH) if self._selective() else 0
            rows = await self._read(after=lowest, before=before, order="desc", limit=ROWS - len(found))
            found += rows
            before = lowest + 1
            if len(found) >= ROWS or lowest == 0:
                break
        full = len(found) >= ROWS
        self.items = found
        self.looked_to = None if full or lowest == 0 else lowest + 1
        self.more = full or lowest > 0

    def _selective(self) -> bool:
        """Whether rows are looked for that may be rare; a causality key has an index of its own."""
        if self.filters.get("causalityKey"):
            return False
        return self._narrow or any(self.filters.get(name) for name in ("stream", "customerRef", "tenantId"))

    async def _head(self) -> int:
        newest = await self._api.get("/admin/event-health", tenantId=self.filters.get("tenantId"))
        return int(newest["head"]["ingressSequence"])

    async def _read(self, *, limit: int = ROWS, **bounds: object) -> list[dict[str, Any]]:
        page = await self._api.get("/admin/events", limit=limit, **self.filters, **bounds)
        items: list[dict[str, Any]] = page["items"]
        return items
