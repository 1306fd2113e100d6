"""Events: the ledger as it grows, filtered, paused, and paged in both directions."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from tidelock.console.api import Api
from tidelock.console.frame import Visit, nothing_recorded, page
from tidelock.console.parts.forms import button, field, instant_field, picker, whole_instant
from tidelock.console.parts.numbers import figure
from tidelock.console.parts.tables import Column, pager, rows_table
from tidelock.console.parts.texts import link, panel, row
from tidelock.console.parts.times import clock_time, milliseconds

_LIVE_S = 1.0
_LABELS = {
    "stream": "Stream",
    "customerRef": "Customer",
    "causalityKey": "Causality key",
    "batchId": "Batch",
    "tenantId": "Tenant",
    "from": "Occurred from (UTC)",
    "to": "and before (UTC)",
}
_COLUMNS = (
    Column("sequence", "Sequence", "number"),
    Column("received", "Received", "time"),
    Column("stream", "Stream", "mono"),
    Column("customer", "Customer"),
    Column("quantity", "Quantity", "number"),
    Column("late", "Occurred before", "number", wide=True),
    Column("causality", "Causality", "mono", wide=True),
    Column("op", "Op", "chip", wide=True),
    Column("key", "Key", "chip", wide=True),
    Column("tenant", "Tenant", wide=True),
)

FILTERS = ("stream", "customerRef", "causalityKey", "batchId", "tenantId", "from", "to")
_TIMES = ("from", "to")
ROWS = 50
# With a filter that matches hardly anything, filling a page would scan the whole ledger. So it is scanned in
# stretches, and after some of them the visitor decides whether to continue.
_STRETCH, _STRETCHES = 250_000, 4


@page("/events", title="Events", about="The ledger, in order, as it grows")
async def events(visit: Visit) -> None:
    if await nothing_recorded(visit):
        return
    told = await visit.api.get("/admin/definitions")
    named = [each["stream"] for kind in ("meters", "windows") for each in told[kind].values()]
    board = _EventsBoard(visit, sorted({*told["streams"], *named}))
    await board.newest()
    board.timer = visit.every(_LIVE_S, board.turn)


class _EventsBoard:
    """The list with its filters."""

    timer: ui.timer

    def __init__(self, visit: Visit, streams: list[str]) -> None:
        names = [name for name in FILTERS if name != "tenantId" or visit.tenant is None]
        given = {name: visit.query.get(name) or None for name in names}
        self._list = EventList(visit.api, given, narrow=visit.tenant is not None)
        self._visit = visit
        with row("tl-beside"):
            with row("tl-tools tl-grow"):
                self._fields = {name: self._field(name, streams) for name in names if name not in _TIMES}
                with ui.element("div").classes("tl-pair"):
                    self._fields |= {name: self._field(name, streams) for name in _TIMES}
            with row("tl-tools"):
                link("Batches", "/events/batches")
                link("Errors", "/events/errors")
                self._state = ui.label("live").classes("tl-live")
                self._button = button("Pause", self._toggle, icon="pause")
        with panel():
            columns = [column for column in _COLUMNS if column.name != "tenant" or visit.tenant is None]
            self._table = rows_table(columns, [], key="sequence", nothing="No event matches.")
            self._pager = pager(self._newer, self._older, ("Newer", "Older"))
        self._live = True

    def _field(self, name: str, streams: list[str]) -> ui.input | ui.select:
        given = self._list.filters[name] or ""
        if name == "stream":
            return picker(_LABELS[name], streams, given, act=self._filter)
        if name in _TIMES:
            return instant_field(_LABELS[name], given, act=self._filter)
        return field(_LABELS[name], given, act=self._filter)

    async def turn(self) -> None:
        """Show new events."""
        if self._live and await self._list.follow():
            self._show()

    async def newest(self) -> None:
        await self._list.newest()
        self._set_live(True)
        self._show()

    async def _older(self) -> None:
        self._set_live(False)
        await self._visit.tried(self._list.older)
        self._show()

    async def _newer(self) -> None:
        self._set_live(False)
        await self._visit.tried(self._list.newer)
        self._show()

    async def _toggle(self) -> None:
        if self._live:
            self._set_live(False)
        else:
            await self._visit.tried(self.newest)

    async def _filter(self) -> None:
        given = {name: (made.value or "").strip() or None for name, made in self._fields.items()}
        given |= {name: whole_instant(given[name]) for name in _TIMES}
        if given == self._list.filters:
            return
        self._list.filters = given
        query = urlencode({name: value for name, value in given.items() if value})
        ui.run_javascript(f"history.replaceState(null, '', '/events{'?' + query if query else ''}')")
        await self._visit.tried(self.newest)

    def _set_live(self, live: bool) -> None:
        self._live = live
        self._state.set_text("live" if live else "paused")
        self._state.classes(add="tl-on" if live else "", remove="" if live else "tl-on")
        self._button.set("Pause" if live else "Go live", "pause" if live else "play")

    def _show(self) -> None:
        items = self._list.items
        self._table.rows = [_row(item) for item in items]
        span = f"{items[-1]['ingressSequence']:,} – {items[0]['ingressSequence']:,}" if items else ""
        looked = f"searched back to {self._list.looked_to:,}" if self._list.looked_to else ""
        text = " · ".join(part for part in (span, looked) if part)
        self._pager.set(text, back=not self._live, on=self._list.more)


def _row(item: dict[str, Any]) -> dict[str, Any]:
    late_s = (milliseconds(item["receivedAt"]) - milliseconds(item["occurredAt"])) / 1000
    return {
        "sequence": f"{item['ingressSequence']:,}",
        "_href": f"/events/{item['ingressSequence']}",
        "received": clock_time(item["receivedAt"]),
        "received_title": item["receivedAt"],
        "stream": item["stream"],
        "customer": item["customerRef"],
        "quantity": figure(item["quantity"]),
        "late": _span(late_s),
        "late_title": f"occurred at {item['occurredAt']}",
        "causality": item["causalityKey"],
        "op": None if item["op"] == "upsert" else item["op"],
        "op_tone": "warn" if item["targetSequence"] else "plain",
        "key": item["keySource"],
        "key_title": item["idempotencyKey"],
        "key_tone": "calm" if item["keySource"] == "client" else "plain",
        "tenant": item["tenantId"],
    }


def _span(seconds: float) -> str:
    """Time from when it happened to when it was received; negative if the producer's clock is ahead."""
    if abs(seconds) < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


class EventList:
    """The events shown, newest first."""

    def __init__(self, api: Api, filters: dict[str, str | None], *, narrow: bool) -> None:
        """`narrow`: the API shows only a part of the ledger to this visitor."""
        self._api = api
        self._narrow = narrow
        self.filters = filters
        self.items: list[dict[str, Any]] = []
        #: whether there may be older events
        self.more = False
        #: how far back was searched, if that was not to the beginning and the page is not full
        self.looked_to: int | None = None
        #: all events up to it are known
        self._seen = 0

    async def newest(self) -> None:
        self._seen = await self._head()
        await self._back(self._seen + 1)

    async def follow(self) -> bool:
        """Add new events; returns whether there were any."""
        head = await self._head()
        if head <= self._seen:
            return False
        found = await self._read(after=self._seen, before=head + 1, order="desc")
        # Also if nothing matched: otherwise each refresh would scan more.
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
        """A page of older events."""
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
        """Whether matches may be rare; causality keys and batches have their own indexes."""
        if self.filters.get("causalityKey") or self.filters.get("batchId"):
            return False
        return self._narrow or any(self.filters.get(name) for name in FILTERS)

    async def _head(self) -> int:
        newest = await self._api.get("/admin/event-health", tenantId=self.filters.get("tenantId"))
        return int(newest["head"]["ingressSequence"])

    async def _read(self, *, limit: int = ROWS, **bounds: object) -> list[dict[str, Any]]:
        page = await self._api.get("/admin/events", limit=limit, **self.filters, **bounds)
        items: list[dict[str, Any]] = page["items"]
        return items


# The page of a single event is below this one.
from tidelock.console.pages import event  # noqa: E402, F401
