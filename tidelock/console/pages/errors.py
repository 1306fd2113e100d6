"""Errors: recorded events that do not fit their definitions, newest first."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

from tidelock.console.frame import Visit, page
from tidelock.console.parts.forms import choice
from tidelock.console.parts.numbers import figure
from tidelock.console.parts.rowlist import RowList
from tidelock.console.parts.tables import Column, Row
from tidelock.console.parts.texts import link, panel, row
from tidelock.console.parts.times import clock_time

Json = dict[str, Any]

_EVERY_S = 5.0
_READ = ("tenant_id", "ingress_sequence", "source", "code", "message")
_CODES = {
    "invalid_column": "a value that does not fit its column",
    "invalid_event_time": "an event time that cannot be read",
    "future_event_time": "an event time ahead of its arrival",
    "missing_quantity": "nothing to aggregate",
    "missing_customer": "no customer to count it for",
    "correction_ignored": "a correction that windows leave out",
    "value_out_of_range": "a value beyond what can be held",
}
# The time an event was received never changes, so it is cached; a few are requested at a time.
_TIMES_KEPT, _ASKED_AT_ONCE = 2_000, 8


@page("/events/errors", title="Errors", about="Recorded events that do not fit their definitions")
async def errors(visit: Visit) -> None:
    told = await visit.api.get("/admin/definitions")
    await _ErrorsBoard(visit, told).show()


class _ErrorsBoard:
    """The list with its filters."""

    def __init__(self, visit: Visit, told: Json) -> None:
        self._visit = visit
        self._sources = sorted({*told["streams"], *told["meters"], *told["windows"]})
        self._received: OrderedDict[int, str | None] = OrderedDict()
        self._list = RowList(visit, "error_rows", self._columns(), self._rows, sort=("ingress_sequence", True))

    async def show(self) -> None:
        query = self._visit.query
        with row("tl-tools"):
            sources = {"": "every source", **{name: name for name in self._sources}}
            wanted = query.get("source", "")
            self._source = choice("Source", sources, wanted if wanted in sources else "", act=self._choose)
            codes = {"": "every code", **{code: code for code in _CODES}}
            wanted = query.get("code", "")
            self._code = choice("Code", codes, wanted if wanted in codes else "", act=self._choose)
            link("All events", "/events").classes("tl-end")
        with panel():
            self._list.draw(_READ, nothing="", labels=("Newer", "Older"))
        await self._choose()
        self._visit.every(_EVERY_S, self._list.again)

    def _columns(self) -> list[Column]:
        tenant = [Column("tenant_id", "Tenant", wide=True, sorts=True)] if self._visit.tenant is None else []
        return [
            Column("ingress_sequence", "Event", "number", sorts=True),
            Column("received", "Received", "time"),
            Column("source", "Source", "mono", wide=True, sorts=True),
            Column("code", "Code", "chip", sorts=True),
            Column("message", "Problem", "words"),
            *tenant,
        ]

    async def _choose(self) -> None:
        asked = {"source": self._source.value, "code": self._code.value}
        self._list.where = {name: {"_eq": value} for name, value in asked.items() if value}
        self._list.say_nothing("No error matches." if self._list.where else "Every event fits.")
        await self._list.restart()

    async def _rows(self, items: list[Json]) -> list[Row]:
        await self._look_up([int(item["ingress_sequence"]) for item in items])
        return [self._row(item) for item in items]

    def _row(self, item: Json) -> Row:
        sequence = int(item["ingress_sequence"])
        received = self._received.get(sequence)
        return {
            "_href": f"/events/{sequence}",
            "ingress_sequence": figure(sequence),
            "received": clock_time(received),
            "received_title": received,
            "source": item["source"],
            "code": item["code"],
            "code_tone": "warn",
            "code_title": _CODES.get(item["code"]),
            "message": item["message"],
            "tenant_id": item["tenant_id"],
        }

    async def _look_up(self, sequences: list[int]) -> None:
        """When those events were received: an error row has its event's sequence but no time."""
        slots = asyncio.Semaphore(_ASKED_AT_ONCE)

        async def ask(sequence: int) -> None:
            async with slots:
                bounds = {"after": sequence - 1, "before": sequence + 1}
                found = (await self._visit.api.get("/admin/events", limit=1, **bounds))["items"]
            self._received[sequence] = found[0]["receivedAt"] if found else None

        await asyncio.gather(*(ask(sequence) for sequence in {*sequences} - self._received.keys()))
        while len(self._received) > _TIMES_KEPT:
            self._received.popitem(last=False)
