"""Events: the ledger as it grows, filtered, paused, and paged in both directions."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from tidelock.console.beginning import nothing_recorded
from tidelock.console.eventlist import FILTERS, EventList
from tidelock.console.frame import Visit, page
from tidelock.console.pages import errors, event  # noqa: F401  (pages below this one)
from tidelock.console.parts.forms import button, field
from tidelock.console.parts.tables import Column, pager, rows_table
from tidelock.console.parts.texts import link, panel, row
from tidelock.console.parts.times import clock_time, milliseconds

_LIVE_S = 1.0
_LABELS = {"stream": "Stream", "customerRef": "Customer", "causalityKey": "Causality key", "tenantId": "Tenant"}
_COLUMNS = (
    Column("sequence", "Sequence", "number"),
    Column("received", "Received", "time"),
    Column("stream", "Stream", "mono"),
    Column("customer", "Customer"),
    Column("quantity", "Quantity", "number"),
    Column("late", "Occurred before", "number", wide=True),
    Column("causality", "Causality", "mono", wide=True),
    Column("key", "Key", "chip", wide=True),
    Column("tenant", "Tenant", wide=True),
)


@page("/events", title="Events", about="The ledger in its one order, as it grows")
async def events(visit: Visit) -> None:
    if await nothing_recorded(visit):
        return
    board = _Board(visit)
    await board.newest()
    board.timer = visit.every(_LIVE_S, board.turn)


class _Board:
    """The list with its filters."""

    timer: ui.timer

    def __init__(self, visit: Visit) -> None:
        names = [name for name in FILTERS if name != "tenantId" or visit.tenant is None]
        given = {name: visit.query.get(name) or None for name in names}
        self._list = EventList(visit.api, given, narrow=visit.tenant is not None)
        self._visit = visit
        with row("tl-tools"):
            self._fields = {
                name: field(_LABELS[name], self._list.filters[name] or "", act=self._filter) for name in names
            }
            ui.element("div").classes("tl-grow")
            with row("tl-tools"):
                link("Errors", "/events/errors")
                self._state = ui.label("live").classes("tl-live")
                self._button = button("Pause", self._toggle, icon="pause")
        with panel():
            columns = [column for column in _COLUMNS if column.name != "tenant" or visit.tenant is None]
            self._table = rows_table(columns, [], key="sequence", nothing="No event matches.")
            self._pager = pager(self._newer, self._older, ("Newer", "Older"))
        self._live = True

    async def turn(self) -> None:
        """What has come since."""
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
        looked = f"looked back to {self._list.looked_to:,}" if self._list.looked_to else ""
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
        "quantity": item["quantity"],
        "late": _span(late_s),
        "late_title": f"occurred at {item['occurredAt']}",
        "causality": item["causalityKey"],
        "key": item["keySource"],
        "key_title": item["idempotencyKey"],
        "key_tone": "calm" if item["keySource"] == "client" else "plain",
        "tenant": item["tenantId"],
    }


def _span(seconds: float) -> str:
    """How long before it was received it happened; negative: the producer's clock is ahead."""
    if abs(seconds) < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
