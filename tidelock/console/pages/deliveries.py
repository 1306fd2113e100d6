"""Deliveries of a trigger: what was sent, whether it arrived, and sending it again."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from nicegui import ui

from tidelock.console.frame import Visit
from tidelock.console.parts.forms import Segments, ask, button
from tidelock.console.parts.tables import Column, PageTurner, Row, rows_table
from tidelock.console.parts.texts import Tone, chip, json_block, panel, row
from tidelock.console.parts.times import clock_time, whole_time

Json = dict[str, Any]

_ROWS = 50
_EVERY_S = 2.0
_STATUSES = {"": "All", "pending": "Pending", "delivered": "Delivered", "dead": "Dead webhooks"}
_TONES: dict[str, Tone] = {"pending": "calm", "delivered": "good", "dead": "bad"}
_NOTHING = {
    "": "Nothing yet. A trigger fires for rows that start to match after it was created, and when they stop matching.",
    "pending": "Nothing is waiting to be sent.",
    "delivered": "Nothing has been delivered yet.",
    "dead": "No dead webhooks.",
}


class Deliveries:
    """The list below a trigger."""

    def __init__(self, visit: Visit, name: str) -> None:
        self._visit = visit
        self._name = name
        self._path = f"/v1/triggers/{quote(name, safe='')}"
        self._turning = PageTurner(visit, self._read)

    async def show(self) -> None:
        wanted = self._visit.query.get("status", "")
        with panel():
            with row("tl-tools"):
                self._status = Segments(
                    _STATUSES, wanted if wanted in _STATUSES else "", self._turning.restart, label="Status"
                )
                ui.element("div").classes("tl-grow")
                self._again = button("Redeliver all dead", self._redeliver, icon="again")
            columns = [
                Column("queued", "Told", "time"),
                Column("type", "Event", "chip"),
                Column("key", "Row", "mono"),
                Column("status", "Status", "chip"),
                Column("attempts", "Attempts", "number", wide=True),
                Column("answer", "Last answer", wide=True),
                Column("next", "Next attempt", "time", wide=True),
                Column("id", "Id", "mono", wide=True),
            ]
            self._table = rows_table(columns, [], key="id", nothing=" ")
            self._nothing = ui.label("").classes("tl-nothing")
            self._turning.draw(("Newer", "Older"))
        self._visit.every(_EVERY_S, self._read)

    async def _read(self) -> None:
        status = self._status.value
        found = await self._visit.api.get(
            f"{self._path}/deliveries", status=status or None, limit=_ROWS, cursor=self._turning.cursor
        )
        rows = [self._row(item) for item in found["items"]]
        if rows != self._table.rows:
            self._table.rows = rows
        self._nothing.set_text("" if rows else _NOTHING[status])
        self._nothing.set_visibility(not rows)
        self._turning.took(found)

    def _row(self, item: Json) -> Row:
        return {
            "_href": f"/triggers/{quote(self._name, safe='')}/{item['eventId']}",
            "id": item["eventId"],
            "queued": clock_time(item["queuedAt"]),
            "queued_title": item["queuedAt"],
            "type": item["eventType"],
            "type_tone": "good" if item["eventType"] == "MATCH" else "plain",
            "key": item["key"],
            "status": item["status"],
            "status_tone": _TONES[item["status"]],
            "attempts": item["attempts"],
            "answer": _answer(item),
            "answer_title": item["response"],
            "next": clock_time(item["nextAttemptAt"]) if item["status"] == "pending" else None,
            "next_title": item["nextAttemptAt"],
        }

    async def _redeliver(self) -> None:
        text = "Every dead webhook of this trigger is sent again, with the same ID."
        if not await ask("Redeliver all dead webhooks?", text, "Redeliver"):
            return

        async def send() -> None:
            queued = (await self._visit.api.send("POST", f"{self._path}/redeliver", {}))["queued"]
            ui.notify(f"{queued:,} queued to be sent again" if queued else "Nothing to send again")
            await self._read()

        await self._visit.tried(send)


async def delivery_page(visit: Visit, name: str, event_id: str) -> None:
    """One delivery: what is sent, and every attempt."""
    path = f"/v1/triggers/{quote(name, safe='')}"
    place = ui.element("div").classes("tl-page")
    shown: list[Json] = []

    async def read() -> None:
        found = await visit.api.get(f"{path}/deliveries/{quote(event_id, safe='')}")
        if shown != [found]:
            shown[:] = [found]
            place.clear()
            with place:
                _delivery(visit, path, name, found)

    await read()
    visit.every(_EVERY_S, read)


def _delivery(visit: Visit, path: str, name: str, found: Json) -> None:
    attempts = found["items"]

    async def again() -> None:
        async def send() -> None:
            await visit.api.send("POST", f"{path}/redeliver", {"eventIds": [found["eventId"]]})
            ui.notify("Queued to be sent again, with the same ID")

        await visit.tried(send)

    with panel(), row("tl-tools"):
        chip(found["eventType"], "good" if found["eventType"] == "MATCH" else "plain")
        chip(found["status"], _TONES[found["status"]])
        ui.label(f"row {found['key']}").classes("tl-mono")
        ui.label(f"at {whole_time(found['sourceTimestamp'])}").classes("tl-about")
        ui.element("div").classes("tl-grow")
        if found["status"] != "pending":
            button("Redeliver", again, icon="again", primary=found["status"] == "dead")
    with panel("Attempts", "Newest first"):
        columns = [
            Column("number", "#", "mono"),
            Column("sent", "Sent", "time"),
            Column("outcome", "Outcome", "chip"),
            Column("status", "HTTP", "number"),
            Column("took", "Took", "number", wide=True),
            Column("response", "Answer", "words"),
        ]
        rows_table(columns, [_attempt(each) for each in attempts], key="number", nothing="Not attempted yet.")
    with panel("Request body", "The body, signed with the trigger's secrets; `timestamp` is the time of the attempt"):
        json_block(payload(name, found))


def _attempt(attempt: Json) -> Row:
    status = attempt["httpStatus"]
    good = status is not None and 200 <= status < 300
    return {
        "number": attempt["number"],
        "sent": clock_time(attempt["sentAt"]),
        "sent_title": attempt["sentAt"],
        "outcome": attempt["outcome"],
        "outcome_tone": "good" if good else "bad",
        "status": status,
        "took": f"{attempt['seconds'] * 1000:,.0f} ms",
        "response": attempt["response"],
    }


def payload(name: str, found: Json) -> Json:
    """The body as last sent, or as it will be sent."""
    last = found["items"][0]["sentAt"] if found["items"] else None
    return {
        "event_id": found["eventId"],
        "event_type": found["eventType"],
        "trigger_name": name,
        "timestamp": last,
        "source_timestamp": found["sourceTimestamp"],
        "data": found["data"],
    }


def _answer(item: Json) -> str | None:
    told: str | None = item["outcome"]
    return told if item["httpStatus"] is None else str(item["httpStatus"])
