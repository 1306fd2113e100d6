"""An example of an event that fits the definitions: what a server suggests when it starts.

Separate from the command that prints it because it is pure, and admission is its test: no example is shown that
ingest would reject.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tidelock.columns import KEY_ENVELOPE, ColumnType, data_path
from tidelock.definitions import Definitions, Stream
from tidelock.definitions.eventtimes import EVENTTIME_ALIASES, EVENTTIME_TYPES
from tidelock.ingest.admit import Admission
from tidelock.ingest.identity import Salts
from tidelock.ingest.wire import WireEvent, decode_event
from tidelock.model import Event

_WHEN = "2026-01-31T23:59:59.5Z"
_TIMES = {
    "unixtimestamp_s": 1_769_903_999,
    "unixtimestamp_ms": 1_769_903_999_500,
    "unixtimestamp_us": 1_769_903_999_500_000,
    "unixtimestamp_ns": 1_769_903_999_500_000_000,
    "rfc3339": _WHEN,
}
_VALUES = {
    "string": "a",
    "int": 1,
    "bigint": 1,
    "double": 1.5,
    "decimal": "1",
    "boolean": True,
    "timestamp": _WHEN,
    "date": "2026-01-31",
    "json": {},
}
_EVENT = {"stream": "api_calls", "customerRef": "cus_1", "quantity": "1.5", "ts": _WHEN}
_BYTES_MAX, _DEPTH_MAX = 2**20, 64


def example(definitions: Definitions, *, streams_open: bool) -> str | None:
    """Its JSON text; None if no stream is declared and others are not accepted."""
    for event in _candidates(definitions, streams_open):
        text = msgspec.json.encode(event)
        wire = decode_event(text)
        rules = Admission(definitions, Salts(("example",), 0), streams_open, _BYTES_MAX, _DEPTH_MAX)
        # Admitted as ingest will, so that the example works.
        if isinstance(wire, WireEvent) and isinstance(rules.admit(wire), Event):
            return text.decode()
    return None


def _candidates(definitions: Definitions, streams_open: bool) -> Iterator[dict[str, Any]]:
    """Streams with meters first, then those with windows, then the other declared ones."""
    named = [meter.stream for meter in definitions.meters.values()]
    named += [window.stream for window in definitions.windows.values()]
    if streams_open and not named and not definitions.streams:
        yield _EVENT
    for name in dict.fromkeys([*named, *definitions.streams]):
        stream = definitions.streams.get(name) or Stream(name)
        time = stream.eventtime.type if stream.eventtime is not None else None
        if time is None or EVENTTIME_ALIASES.get(time, time) in EVENTTIME_TYPES:
            yield _of(stream)
    if streams_open:
        yield _EVENT


def _of(stream: Stream) -> dict[str, Any]:
    """An event with every declared column and all parts of its key."""
    event: dict[str, Any] = {**_EVENT, "stream": stream.name}
    data: dict[str, Any] = {name: _value(type_) for name, type_ in stream.columns.items()}
    for name in stream.key:
        if (path := data_path(name)) is not None and name not in stream.columns:
            _put(data, path, "a")
        elif name in KEY_ENVELOPE and name not in stream.columns:
            first, *rest = name.split("_")
            event.setdefault(first + "".join(word.capitalize() for word in rest), "a")
    if (declared := stream.eventtime) is not None and declared.type is not None:
        time = _TIMES[EVENTTIME_ALIASES.get(declared.type, declared.type)]
        if declared.column in stream.columns:
            data[declared.column] = _WHEN if stream.columns[declared.column].name == "timestamp" else time
        elif (path := data_path(declared.column)) is not None:
            _put(data, path, time)
    return event | ({"data": data} if data else {})


def _value(type_: ColumnType) -> Any:
    # A decimal may have no whole digits.
    return "0" if type_.name == "decimal" and type_.precision == type_.scale else _VALUES[type_.name]


def _put(data: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    *steps, last = path
    for step in steps:
        data = data.setdefault(step, {})
    data[last] = value
