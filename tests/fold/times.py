"""What producers put where a time should be, in streams of every kind of column, and what the model says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.model import Event
from tests.model.events import Columns
from tests.model.times import Fault, event_time

Toml = Mapping[str, Mapping[str, Any]]

TYPES = ["unixtimestamp", "unixtimestamp_s", "unixtimestamp_ms", "unixtimestamp_us", "unixtimestamp_ns", "rfc3339"]
#: 2026-02-01
ARRIVAL = 1_769_904_000 * 10**9
#: values where a time should be, as JSON; `null` and a member that is missing are among the events too
BAD = [
    *["true", "false", "{}", "[]", '{"t": 1}', "[1769904000]", '""', '" "', '"x"', '"NaN"', '"Infinity"'],
    *['"-Infinity"', '"null"', '"true"', "1e400", "-1e400", '"1e400"', "1" + "0" * 40, "-" + "9" * 19],
    *["9223372036854775808", '"1_000"', '" 1769904000"', '"1769904000 "', '"0x10"', '"1769904000s"', '"１７６"'],
    *[
        '"1,5"',
        '"1."',
        '".5"',
        '"1e"',
        "1e-10",
        "0.0000000001",
        "1769904000.1234567891",
        "1e99999999999",
        "-1e99999999999",
    ],
    *["1e-99999999999", "12345678901234567890.12345678901", "1e30", '"-1e30"', "9999999999999999999", "0e99999999999"],
    *['"' + "9" * 5000 + '"', '"\\n1769904000"', '"2026-01-31"', '"2026-01-31T23:59:59"', '"2026-01-31T23:59:60Z"'],
    *['"2026-02-30T00:00:00Z"', '"23:59:59Z"', '"2026-01-31T24:00:00Z"', '"2026-01-31T23:59:59.1234567890Z"'],
    *['"2026-01-31T23:59:59+24:00"', '"now"', '"epoch"', '"56000-01-01T00:00:00Z"', '"+56000-01-01T00:00:00Z"'],
    *['"1677-12-31T23:59:59Z"', '"2262-01-01T00:00:00Z"', '"20260131T235959Z"', '"2026-01-31T23:59:59[UTC]"'],
    *['"2026-01-31T23:59:59 UTC"', '"\\ud83d\\ude00"', '"%s"'],
]
#: values that some type takes for a time, early and late ones, and those an instant beyond what is legal
TIMES = [
    *["0", "-0", "1", "-1", "1.5", "1e3", '"1e3"', "15e-1", '"+7"', '"007"', "-5", "1769904000", "1769904000.5"],
    *["1769904000000", '"1769904000000"', "1769904000000.000001", "1769904000000000", "1769904000000000000"],
    *["1.7699e9", "1769904000.123456789", '"1769904000.123456789000"', "1769904000123.456789"],
    *["1769904000123456.789", "1e-9", "1e-6"],
    # One hour ahead of the arrival, and a nanosecond more.
    *["1769907600", "1769907600.000000001", "1769907600000", "1769907600000.000001", "1769907600000000"],
    *["1769907600000000.001", "1769907600000000000", "1769907600000000001"],
    # The first and the last instant, and those beside them; the year 56000.
    *["-9214560000", "-9214560000.000000001", "9214646399.999999999", "9214646400", "-9214560000000000000"],
    *["-9214560000000000001", "9214646399999999999", "9214646400000000000", "1705073548800", "1705073548800000"],
    *['"2026-01-31T23:59:59Z"', '"2026-01-31T23:59:59.5z"', '"2026-01-31t23:59:59Z"', '"2026-01-31 23:59:59Z"'],
    *['"2026-02-01T02:00:00.000000000+01:00"', '"2026-02-01T01:00:00Z"', '"2026-02-01T01:00:00.000000001Z"'],
    *['"1969-12-31T23:59:59.999999999-00:00"', '"1678-01-01T00:00:00Z"', '"2261-12-31T23:59:59.999999999Z"'],
]
COLUMNS = [
    "string",
    "json",
    "int",
    "bigint",
    "double",
    "decimal(19,9)",
    "decimal(38,0)",
    "timestamp",
    "date",
    "boolean",
]


def stream(column: str | None, type_: str) -> dict[str, Any]:
    """A stream whose time is a path or, declared, a column."""
    if column is None:
        return {"eventtime": {"column": "data.at.t", "type": type_}}
    return {"columns": {"t": column}, "eventtime": {"column": "t", "type": type_}}


def streams(type_: str) -> dict[str, dict[str, Any]]:
    """Streams with a time of that type in every column there is, one by the envelope's time, and one without."""
    timed = {str(column): stream(column, type_) for column in [None, *COLUMNS]}
    return timed | {"occurred": {"eventtime": {"column": "occurred_at"}}, "timeless": {}}


def events(given: Sequence[tuple[str, str | None]], **more: Any) -> list[Event]:
    """A ledger of streams and data."""
    fields = {"occurred_at": ARRIVAL, "received_at": ARRIVAL, "customer_ref": "c", **more}
    return [
        Event(number, 10**18 + number // 50, name, data=data, **fields)
        for number, (name, data) in enumerate(given, start=1)
    ]


def values(type_: str) -> list[tuple[str, str | None]]:
    """Every value in every stream, as the event's own and as a message's, and each stream without a value."""
    found: list[tuple[str, str | None]] = [(name, data) for name in streams(type_) for data in (None, "{}", "5", "[]")]
    for name in streams(type_):
        for value in [*BAD, *TIMES, "null"]:
            data = f'{{"t": {value}, "at": {{"t": {value}}}}}'
            message = f'{{"stream": {json.dumps(name)}, "data": {data}}}'
            found += [(name, data), ("None", f'{{"at": {{"t": 0}}, "messages": [{message}]}}')]
    return found


def model_times(ledger: Sequence[Event], toml: Toml) -> dict[int, tuple[Event, int | str | None]]:
    """Event time, or what is wrong with it, by sequence. Where columns are objected to, that is all there is to say."""

    def judged(event: Event) -> int | str | None:
        if event.op == "delete" or "eventtime" not in toml["streams"][event.stream]:
            return None
        try:
            return event_time(event, toml["streams"])
        except Fault as fault:
            return f"{fault.code}: {fault}"

    legal = (e for e in ledger if Columns(e, toml["streams"][e.stream].get("columns", {})).misfit() is None)
    return {event.ingress_sequence: (event, judged(event)) for event in legal}
