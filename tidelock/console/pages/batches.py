"""Batches: what was recorded under one name, the latest first; and one of them, with what reverting it would change."""

from __future__ import annotations

import shlex
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from tidelock.console.api import ApiError
from tidelock.console.frame import Visit, page
from tidelock.console.pages.explain import explain_link
from tidelock.console.parts.forms import ask, button
from tidelock.console.parts.numbers import figure
from tidelock.console.parts.tables import Column, PageTurner, Row, rows_table
from tidelock.console.parts.texts import code_block, empty, facts, grid, link, panel, row, stat
from tidelock.console.parts.times import clock_time

Json = dict[str, Any]

_ROWS = 50
#: counters and events that are shown of a preview
_COUNTERS_MAX, _LEFT_MAX = 500, 50
# While the fold has yet to come to the end of the batch, the preview is asked for again.
_BEHIND, _AGAIN_S = 503, 2.0
_LEFT = {
    "no_key": "no key",
    "keyed_stream": "keyed stream",
    "amended": "amended by another batch",
    "correction": "a correction",
    "rejected": "rejected",
}


def batch_link(batch_id: str, tenant: str | None) -> str:
    """The page of a batch."""
    asked = {"batchId": batch_id, "tenantId": tenant}
    return f"/events/batch?{urlencode({name: value for name, value in asked.items() if value is not None})}"


@page("/events/batches", title="Batches", about="Events that were recorded together, such as those of an import")
async def batches(visit: Visit) -> None:
    await _BatchList(visit).show()


class _BatchList:
    """The list, a page of the API's at a time."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._turning = PageTurner(visit, self._read)

    async def show(self) -> None:
        with row("tl-tools"):
            link("All events", "/events").classes("tl-end")
        with panel():
            tenant = [Column("tenant", "Tenant", wide=True)] if self._visit.tenant is None else []
            columns = [
                Column("batch", "Batch"),
                Column("received", "Recorded", "time"),
                Column("events", "Events", "number"),
                Column("corrected", "Corrected", "number"),
                Column("streams", "Streams", "mono", wide=True),
                Column("sequences", "Sequences", "mono", wide=True),
                *tenant,
            ]
            nothing = "No event names a batch. tidelock import names one for each file."
            self._table = rows_table(columns, [], key="_key", nothing=nothing)
            self._turning.draw(("Newer", "Older"))
        await self._read()

    async def _read(self) -> None:
        found = await self._visit.api.get("/v1/batches", cursor=self._turning.cursor, limit=_ROWS)
        self._table.rows = [_batch_row(item) for item in found["items"]]
        self._turning.took(found)


def _batch_row(item: Json) -> Row:
    return {
        "_key": f"{item['batchId']} {item['tenantId']}",
        "_href": batch_link(item["batchId"], item["tenantId"]),
        "batch": item["batchId"],
        "received": clock_time(item["receivedAt"]),
        "received_title": item["receivedAt"],
        "events": f"{item['events']:,}",
        "corrected": f"{item['corrected']:,}",
        "streams": ", ".join(item["streams"]),
        "sequences": f"{item['firstSequence']:,} – {item['lastSequence']:,}",
        "tenant": item["tenantId"],
    }


@page("/events/batch", title="Batch", about="Its events, and what reverting it would change")
async def batch(visit: Visit) -> None:
    batch_id, tenant = visit.query.get("batchId", ""), visit.query.get("tenantId") or visit.tenant
    found = (await visit.api.get("/v1/batches", batchId=batch_id, tenantId=tenant))["items"]
    with ui.element("div").classes("tl-crumbs"):
        link("Batches", "/events/batches")
        ui.label("Batch")
    if not found:
        with panel():
            empty("search", "There is no such batch", "It may belong to another tenant.")
        return
    _BatchView(visit, batch_id, tenant).show(found)


class _BatchView:
    """A batch, its preview, and the way to revert it."""

    def __init__(self, visit: Visit, batch_id: str, tenant: str | None) -> None:
        self._visit = visit
        self._asked = {"batchId": batch_id, "tenantId": tenant}

    def show(self, found: list[Json]) -> None:
        batch_id, tenant = self._asked["batchId"], self._asked["tenantId"]
        with panel(batch_id):
            facts(
                [
                    ("Tenant", ", ".join(each["tenantId"] for each in found)),
                    ("Streams", ", ".join(sorted({stream for each in found for stream in each["streams"]}))),
                    ("Events", f"{sum(each['events'] for each in found):,}"),
                    ("Corrected", f"{sum(each['corrected'] for each in found):,}"),
                    ("Recorded", min(each["receivedAt"] for each in found)),
                    ("Occurred from", min(each["occurredFrom"] for each in found)),
                    ("to", max(each["occurredTo"] for each in found)),
                ]
            )
            asked = {name: value for name, value in self._asked.items() if value is not None}
            link("Its events", f"/events?{urlencode(asked)}")
        with panel("Revert", "void every event of it, each once; nothing is removed"):
            of_tenant = [] if tenant is None else ["--tenant", tenant]
            code_block(shlex.join(["tidelock", "revert", batch_id or "", *of_tenant, "--preview"]))
        self._place = ui.element("div").style("display: contents")
        self._visit.soon(self._preview)

    async def _preview(self) -> None:
        self._place.clear()
        with self._place:
            try:
                found = await self._visit.api.get("/v1/batches/preview", **self._asked)
            except ApiError as error:
                # The fold is behind, or there are too many counters: the message says what to do.
                ui.label(error.message).classes("tl-warn-text")
                if error.status == _BEHIND:
                    ui.timer(_AGAIN_S, self._preview, once=True)
                return
            self._show_preview(found)

    def _show_preview(self, found: Json) -> None:
        left = found["leftCount"]
        with grid():
            stat("Would be voided", f"{found['voids']:,}", f"as of sequence {found['throughSequence']:,}")
            stat("Void already", f"{found['duplicates']:,}")
            stat("Would stay", f"{left:,}", "see below" if left else "", "warn" if left else "plain")
        if found["voids"] and "admin" in self._visit.scopes:
            with row("tl-tools"):
                self._button = button("Revert this batch", self._revert, icon="again", danger=True)
                self._progress = ui.label("").classes("tl-faint")
        counters = found["counters"]
        about = f"the first {_COUNTERS_MAX} of {len(counters):,}" if len(counters) > _COUNTERS_MAX else None
        with panel("Counters that would change", about):
            rows = [_counter_row(at, each) for at, each in enumerate(counters[:_COUNTERS_MAX])]
            rows_table(_COUNTER_COLUMNS, rows, key="_key", nothing="No counter would change.")
        if left:
            about = f"the first {_LEFT_MAX} of {left:,}" if left > _LEFT_MAX else None
            with panel("Events that would stay", about):
                columns = [Column("sequence", "Event", "number"), Column("code", "Reason", "chip"),
                           Column("message", "What to do", "words")]  # fmt: skip
                rows_table(columns, [_left_row(each) for each in found["left"][:_LEFT_MAX]], key="sequence")

    async def _revert(self) -> None:
        text = (
            f"This voids every event of {self._asked['batchId']}, and the counters become what is shown here. A void "
            "cannot be undone; to count an event again, send it again under another key."
        )
        if await ask("Revert this batch?", text, "Revert", danger=True):
            self._button.set("Reverting ...", enabled=False)
            await self._visit.tried(self._void_all)
            ui.navigate.reload()

    async def _void_all(self) -> None:
        voided, cursor = 0, None
        while True:
            asked = {name: value for name, value in (self._asked | {"cursor": cursor}).items() if value is not None}
            answer = await self._visit.api.send("POST", "/v1/batches/revert", asked)
            voided, cursor = voided + answer["voided"], answer["next"]
            self._progress.set_text(f"{voided:,} voided")
            if cursor is None:
                return


_COUNTER_COLUMNS = (
    Column("metric", "Meter"),
    Column("customer", "Customer"),
    Column("period", "Period", "time"),
    Column("value", "Value", "number"),
    Column("value_after", "After", "number"),
    Column("total", "Total", "number", wide=True),
    Column("total_after", "After", "number", wide=True),
    Column("events", "Events", "number", wide=True),
)


def _counter_row(at: int, item: Json) -> Row:
    return {
        "_key": at,
        "_href": explain_link(item["metric"], item["customerRef"], item["tenantId"], item["periodStart"]),
        "metric": item["metric"],
        "customer": item["customerRef"],
        "period": clock_time(item["periodStart"]),
        "period_title": f"{item['periodStart']} to {item['periodEnd']}",
        "value": figure(item["value"]),
        "value_after": figure(item["valueAfter"]),
        "total": figure(item["total"]),
        "total_after": figure(item["totalAfter"]),
        "events": f"{item['events']:,}",
    }


def _left_row(item: Json) -> Row:
    return {
        "_href": f"/events/{item['ingressSequence']}",
        "sequence": f"{item['ingressSequence']:,}",
        "code": _LEFT.get(item["code"], item["code"]),
        "code_tone": "warn",
        "message": item["message"],
    }
