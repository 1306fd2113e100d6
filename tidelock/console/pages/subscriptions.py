"""Subscriptions: a playground. A table, a filter, the GraphQL for it, and the latest messages."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from nicegui import ui

from tidelock.console.api import Api, ApiError, Columns, columns_of, live_tables
from tidelock.console.filters import Json, Unfit, read_where, subscription
from tidelock.console.frame import Visit, page
from tidelock.console.parts.filterfield import WhereField
from tidelock.console.parts.forms import Segments, button, choice
from tidelock.console.parts.tables import NOTHING, Row, say_nothing
from tidelock.console.parts.texts import Tone, empty, panel, row
from tidelock.console.parts.times import clock_time, whole_time
from tidelock.sections import shown

#: how often the list is refreshed
_SHOWN_S = 0.4
_FROM = {"now": "From now on", "rows": "Snapshot first"}
#: tables most worth watching
_LIKELY = "trades"

#: messages kept; older ones are only counted
KEPT = 100

_TONES: dict[str, Tone] = {"INSERT": "good", "UPDATE": "calm", "DELETE": "bad"}
_VALUE_CHARACTERS = 60
_NOT_BEGUN = "Nothing yet. Start the subscription to see every change that passes the filter."
_NOTHING = "No change has passed the filter yet."

# Highlight what an UPDATE changed; an INSERT is new as a whole.
_BODY = r"""
<q-tr :props="props">
  <q-td><span class="tl-chip" :class="'tl-' + props.row.tone">{{ props.row.operation }}</span></q-td>
  <q-td class="tl-td-mono tl-td-time" :title="props.row.ts">{{ props.row.time }}</q-td>
  <q-td><div class="tl-cells"><span v-for="cell in props.row.cells" :key="cell[0]" class="tl-cell"
    :class="cell[2] && 'tl-changed'"><i>{{ cell[0] }}</i>{{ cell[1] }}</span></div></q-td>
</q-tr>
"""


@page("/subscriptions", title="Subscriptions", about="Pick a table, build a filter, and watch its rows change")
async def subscriptions(visit: Visit) -> None:
    tables = await live_tables(visit.api)
    if not tables:
        text = "Tables come from streams with a key, meters and windows. Define one in tidelock.toml and restart."
        empty("broadcast", "No table to subscribe to", text)
        return
    asked = visit.query.get("table")
    if asked is not None and asked not in tables:
        text = f"{shown(asked)} is not available; tables: {', '.join(tables)}."
        empty("broadcast", "No such table", text)
        return
    await Playground(visit, tables).show()


class Playground:
    """One visitor's subscription, started and stopped at will."""

    def __init__(self, visit: Visit, tables: list[str]) -> None:
        self._visit = visit
        self._tables = tables
        self._listening = SubscriptionTap(visit.api)
        self._columns = Columns({}, {})

    async def show(self) -> None:
        asked = self._visit.query.get("table", _LIKELY)
        table = asked if asked in self._tables else self._tables[0]
        self._columns = await columns_of(self._visit.api, table)
        with row("tl-explain"):
            with panel("Subscription", classes="tl-broad"):
                self._draw_form(table)
            with panel("In GraphQL", "At /graphql, over WebSocket or server-sent events"):
                self._text = ui.element("div").classes("tl-code tl-asked").props('data-is="graphql"')
                with self._text:
                    self._code = ui.html("", sanitize=True, tag="pre")
        with panel():
            self._draw_head()
            self._messages = MessageList()
        self._changed()
        ui.timer(_SHOWN_S, self._turn)
        # A visitor who closes the page has stopped listening.
        ui.context.client.on_delete(self._listening.stop)

    def _draw_form(self, table: str) -> None:
        with row("tl-tools"):
            self._table = choice("Table", self._tables, table, act=self._choose)
            self._from = Segments(_FROM, "now", lambda _: None, label="Begin")
        self._where = WhereField(
            self._columns, self._given(), self._changed, hint="Every row. Add a condition to see fewer."
        )
        with row("tl-tools"):
            self._button = button("Start", self._toggle, icon="play", primary=True)
            self._state = ui.label("not listening").classes("tl-live").props('data-is="listening"')

    def _draw_head(self) -> None:
        with row("tl-tools"):
            ui.label("Messages").classes("tl-h2")
            self._counts = ui.label("").classes("tl-about").props('data-is="counts"')
            ui.element("div").classes("tl-grow")
            button("Clear", self._clear)

    def _given(self) -> Json:
        try:
            return read_where(self._visit.query.get("where", ""))
        except Unfit:
            return {}

    async def _choose(self) -> None:
        self._listening.stop()
        self._columns = await columns_of(self._visit.api, self._table.value)
        self._where.use(self._columns)
        self._changed()

    def _changed(self) -> None:
        """The filter has changed: show the subscription, or what is wrong."""
        try:
            self._code.set_content(_escaped(self._document()))
            self._where.tell(None)
        except Unfit as unfit:
            self._where.tell(unfit)

    def _document(self, after: str | None = None) -> str:
        return subscription(self._table.value, list(self._columns.types), self._where.where(), after)

    async def _toggle(self) -> None:
        if self._listening.active:
            self._listening.stop()
            return
        await self._visit.tried(self._start)

    async def _start(self) -> None:
        try:
            # Changes after the current head: a table may have more rows than anybody would read.
            after = None if self._from.value == "rows" else await self._head()
            document = self._document(after)
        except Unfit as unfit:
            self._where.tell(unfit)
            return
        self._where.tell(None)
        self._listening.start(document, self._table.value)

    async def _head(self) -> str:
        health = await self._visit.api.get("/admin/event-health")
        return str(int(health["head"]["sourceTimestamp"] or 0) + 1)

    def _clear(self) -> None:
        self._listening.forget()
        self._show([])

    def _turn(self) -> None:
        """Show messages since the last time."""
        news = self._listening.news()
        if news is not None:
            self._show(news)
        active = self._listening.active
        self._button.set("Stop" if active else "Start", "stop" if active else "play")
        self._state.set_text("listening" if active else self._listening.trouble or "not listening")
        self._messages.listening(active)
        self._state.classes(add="tl-on") if active else self._state.classes(remove="tl-on")

    def _show(self, messages: list[RowMessage]) -> None:
        self._messages.show(messages)
        counted = self._listening.counts
        told = ", ".join(f"{count:,} {operation}" for operation, count in counted.items() if count)
        self._counts.set_text(f"{told}; showing the last {len(messages)}" if told else "")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@dataclass(frozen=True, slots=True)
class RowMessage:
    """What happened to a row."""

    number: int
    operation: str
    fields: frozenset[str]
    ts_timestamp: str
    data: dict[str, Any]


class SubscriptionTap:
    """One subscription at a time. Messages are consumed as they arrive, shown or not."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._task: asyncio.Task[None] | None = None
        self._messages: deque[RowMessage] = deque(maxlen=KEPT)
        self._looked = True
        #: why the server ended it
        self.trouble = ""
        self.counts: Counter[str] = Counter()

    @property
    def active(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self, document: str, table: str) -> None:
        self.stop()
        self.forget()
        self.trouble = ""
        self._task = asyncio.create_task(self._run(document, table))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def forget(self) -> None:
        self._messages.clear()
        self.counts.clear()
        self._looked = False

    def news(self) -> list[RowMessage] | None:
        """The latest messages, newest first; None if nothing has changed since the last call."""
        if self._looked:
            return None
        self._looked = True
        return list(reversed(self._messages))

    async def _run(self, document: str, table: str) -> None:
        try:
            async with aclosing(self._api.follow(document)) as payloads:
                async for payload in payloads:
                    self._take(payload[table])
        except ApiError as error:
            self.trouble = error.message
        else:
            self.trouble = "ended by the server"

    def _take(self, update: dict[str, Any]) -> None:
        operation = update["operation"]
        self.counts[operation] += 1
        fields = frozenset(update["fields"])
        number = self.counts.total()
        self._messages.append(RowMessage(number, operation, fields, update["ts_timestamp"], update["data"]))
        self._looked = False


class MessageList:
    """The messages, newest first, up to a limit."""

    def __init__(self) -> None:
        columns = [
            {"name": name, "label": label, "field": name, "align": "left"}
            for name, label in (("operation", "Operation"), ("time", "ts_timestamp"), ("row", "Row"))
        ]
        self._table = ui.table(rows=[], columns=columns, row_key="number", pagination=0)
        self._table.props("flat dense hide-pagination").classes("tl-table tl-messages")
        self._table.add_slot("body", _BODY)
        self._table.add_slot("no-data", NOTHING)
        self.listening(False)

    def listening(self, active: bool) -> None:
        """The text shown before the first message."""
        say_nothing(self._table, _NOTHING if active else _NOT_BEGUN)

    def show(self, messages: Sequence[RowMessage]) -> None:
        self._table.rows = [_row(message) for message in messages]


def _row(message: RowMessage) -> Row:
    instant = whole_time(message.ts_timestamp)
    updated = message.operation == "UPDATE"
    return {
        "number": message.number,
        "operation": message.operation,
        "tone": _TONES[message.operation],
        "time": clock_time(instant),
        "ts": f"{message.ts_timestamp} ({instant})",
        "cells": [
            [name, _text(value), updated and name in message.fields]
            for name, value in message.data.items()
            if value is not None
        ],
    }


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _VALUE_CHARACTERS else f"{text[: _VALUE_CHARACTERS - 1]}…"
