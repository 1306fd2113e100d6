"""The list of what a subscription said: what happened, when, and the row with what changed in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from nicegui import ui

from tidelock.console.listening import Message
from tidelock.console.parts.tables import NOTHING, Row, say_nothing
from tidelock.console.parts.texts import Tone
from tidelock.console.parts.times import clock_time, whole_time

_TONES: dict[str, Tone] = {"INSERT": "good", "UPDATE": "calm", "DELETE": "bad"}
_VALUE_CHARACTERS = 60
_NOT_BEGUN = "Nothing yet. Start, and every change that the filter lets through is shown here."
_NOTHING = "Nothing has changed yet that the filter lets through."

# Of an UPDATE what changed stands out; an INSERT is new as a whole, so that nothing needs to.
_BODY = r"""
<q-tr :props="props">
  <q-td><span class="tl-chip" :class="'tl-' + props.row.tone">{{ props.row.operation }}</span></q-td>
  <q-td class="tl-td-mono tl-td-time" :title="props.row.ts">{{ props.row.time }}</q-td>
  <q-td><div class="tl-cells"><span v-for="cell in props.row.cells" :key="cell[0]" class="tl-cell"
    :class="cell[2] && 'tl-changed'"><i>{{ cell[0] }}</i>{{ cell[1] }}</span></div></q-td>
</q-tr>
"""


class MessageList:
    """The newest first, never more than are kept."""

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
        """What is said while nothing has come."""
        say_nothing(self._table, _NOTHING if active else _NOT_BEGUN)

    def show(self, messages: Sequence[Message]) -> None:
        self._table.rows = [_row(message) for message in messages]


def _row(message: Message) -> Row:
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
