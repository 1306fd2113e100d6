"""Event time: when an event happened, by its stream's `eventtime`, and what is wrong where it does not tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from tests.model.events import Columns, Event
from tests.model.values import EXACT, Misfit, exact, fits, instant, json_items, json_members, json_text

# The texts of the error rows: one per code, of the column that should have the time, and its type, no alias of it.
# Choice: an event has one error row per source, and the stream's goes before that of a meter of the same name.
INVALID = 'column "{column}" must be an instant as {type}'
FUTURE = 'column "{column}" is more than 1 h ahead of its arrival'
#: goes before either where a message has the time
IN_MESSAGE = 'in a message of stream "{stream}", '
# Both end with the value as it was sent (of the envelope, as its text in keys), or with as much as a line has room for.
VALUE = '; it is "{value}"'
MISSING = "; it is missing"
VALUE_CHARACTERS_MAX = 64

#: decimals that a unit's nanoseconds have room for
DECIMALS = {"unixtimestamp_s": 9, "unixtimestamp_ms": 6, "unixtimestamp_us": 3, "unixtimestamp_ns": 0}
ALIASES = {"unixtimestamp": "unixtimestamp_s"}
AHEAD_MAX = 3600 * 10**9
EARLIEST = instant("1678-01-01T00:00:00Z")
LATEST = instant("2261-12-31T23:59:59.999999999Z")
#: stands for every later one
BEYOND = LATEST + 1

Streams = Mapping[str, Mapping[str, Any]]


class Fault(ValueError):
    """An event without a time that can be used."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def event_time(event: Event, streams: Streams) -> int:
    """When an event of a stream with `eventtime` happened. Raises Fault."""
    told, where = _message(event, streams) or (event, "")
    stream = streams[told.stream]
    columns = Columns(told, stream.get("columns", {}))
    column, type_ = stream["eventtime"]["column"], stream["eventtime"].get("type", "rfc3339")
    # The envelope's own is an instant already, whatever type was named.
    type_ = "rfc3339" if columns.is_envelope(column) else ALIASES.get(type_, type_)
    try:
        found = parsed(type_, columns, column)
    except Misfit:
        raise Fault(
            "invalid_event_time", where + INVALID.format(column=column, type=type_) + value(columns, column)
        ) from None
    if found == BEYOND or found > event.received_at + AHEAD_MAX:
        raise Fault("future_event_time", where + FUTURE.format(column=column) + value(columns, column))
    return found


def value(columns: Columns, name: str) -> str:
    """The end of a message: the value that is no time, or none that can be used."""
    sent = columns.sent(name)
    if sent is None:
        return MISSING
    return VALUE.format(value=sent if len(sent) <= VALUE_CHARACTERS_MAX else sent[:VALUE_CHARACTERS_MAX] + "...")


def misfit(name: str, stream: Mapping[str, Any], columns: Columns) -> Fault:
    """What is wrong where a declared column does not fit its type. The one of the event time is no time then."""
    time = stream.get("eventtime", {})
    if time.get("column") == name:
        message = INVALID.format(column=name, type=ALIASES.get(time["type"], time["type"]))
        return Fault("invalid_event_time", message + value(columns, name))
    return Fault("invalid_column", f'column "{name}" must be {stream["columns"][name]}')


def parsed(type_: str, columns: Columns, name: str) -> int:
    """The instant that a column has. Raises Misfit.

    Choice: it is read from the text that the column's value has in keys, so that every column can be tried: one that
    never has an instant of that type makes error rows. A path has the text that was sent. Null is no instant.

    Choice: a number of whole nanoseconds is a time however large it is, BEYOND all instants if need be, and so in the
    future. A text of a year that is no instant is no time.
    """
    content = columns.text(name)
    if content is None:
        raise Misfit(name)
    if type_ == "rfc3339":
        return instant(content)
    number, unit = exact(content), 10 ** DECIMALS[type_]
    if not fits(number, None, DECIMALS[type_]) or number < Decimal(EARLIEST) / unit:
        raise Misfit(content)
    return BEYOND if number > Decimal(LATEST) / unit else int(number.scaleb(DECIMALS[type_], EXACT))


def _message(event: Event, streams: Streams) -> tuple[Event, str] | None:
    """The first message whose stream has event time, as the event it would be.

    Choice: what is no object, or has no text as its stream, is no message. Only `data` is the message's own; the
    envelope, `occurred_at` too, is the event's. If that first message has a bad time, nothing else is asked.
    """
    for raw in json_items(json_members(event.data).get("messages")):
        message = json_members(raw)
        name = json_text(message.get("stream")) if message.get("stream", "").startswith('"') else None
        if name is not None and "eventtime" in streams.get(name, {}):
            return replace(event, stream=name, data=message.get("data")), IN_MESSAGE.format(stream=name)
    return None
