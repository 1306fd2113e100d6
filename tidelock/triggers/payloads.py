"""Payloads: the body of a webhook, and the row in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tidelock.changes.forms import column_forms
from tidelock.columns import ColumnType
from tidelock.instants import MILLISECOND, format_instant


def data_forms(columns: Mapping[str, ColumnType]) -> Callable[[Mapping[str, Any]], bytes]:
    """What makes the JSON of a table's rows for webhooks: every column in its form outside, and never the tenant."""
    forms = column_forms(columns)

    def encoded(row: Mapping[str, Any]) -> bytes:
        shown = {name: value for name, value in row.items() if name != "tenant_id"}
        for name, form in forms.items():
            if shown.get(name) is not None:
                shown[name] = form(shown[name])
        return msgspec.json.encode(shown)

    return encoded


def payload(
    *, event_id: str, event_type: str, trigger: str, source_timestamp: int, data: bytes, sent_at_ns: int
) -> bytes:
    """The body of one attempt. Only `timestamp`, which is the attempt's, differs from one to the next.

    `data` is JSON already, and stands as it is; nothing else here needs to be escaped.
    """
    timestamp = format_instant(sent_at_ns - sent_at_ns % MILLISECOND)
    return (
        f'{{"event_id":"{event_id}","event_type":"{event_type}","trigger_name":"{trigger}",'
        f'"timestamp":"{timestamp}","source_timestamp":"{source_timestamp}","data":'
    ).encode() + b"%b}" % data
