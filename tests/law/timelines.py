"""Random definitions and ledgers for event time: those of `ledgers`, with clocks, windows and ordered output.

    toml = ...timed_definitions()
    packed = pack(many timed_ledgers(), chance, controls=controls(toml), scattered=8)

Every event has its time in several forms, so that any definition may go by any of them. Times are few and near each
other, move on from collection to collection, and are wrong now and then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from random import Random
from typing import Any

from hypothesis import strategies as st

from tests.law.ledgers import CALCULATED, Draft, Ledger, Toml, definitions, ledgers
from tests.model.samples import at
from tests.model.values import EXACT, decimal_text, instant_text

#: when all that is not wrong happens, more or less, and arrives
NOON = at("2026-03-04T12:00:00Z")
SECOND = 10**9
HOUR = 3600 * SECOND

#: the forms of a time that declared columns may have: the first suits best
_DECLARED = {
    "ms": ["bigint", "string", "decimal(30,9)", "double"],
    "sec": ["decimal(20,9)", "string", "double"],
    "iso": ["string", "timestamp"],
}
_TYPED_TIMES = [
    {"column": "ms", "type": "unixtimestamp_ms"},
    {"column": "iso", "type": "rfc3339"},
    {"column": "sec", "type": "unixtimestamp_s"},
    {"column": "at", "type": "rfc3339"},
    {"column": "occurred_at"},
]
_LOOSE_TIMES = [
    {"column": "data.ms", "type": "unixtimestamp_ms"},
    {"column": "data.iso", "type": "rfc3339"},
    {"column": "data.sec", "type": "unixtimestamp"},
    {"column": "data.t.ns", "type": "unixtimestamp_ns"},
    {"column": "data.t.us", "type": "unixtimestamp_us"},
    {"column": "occurred_at"},
]
_TOLERANCES = ["2s", "0s", "5s", "20s", "1ms", "48h", "200d"]
_IDLE = ["1s", None, "20s", None, "1m"]

_FRAMES: dict[str, list[Any]] = {
    "tumbling": ["10s", "3s", "1m"],
    "hopping": [["10s", "5s"], ["10s", "3s"], ["1m", "20s"]],
    "session": ["5s", "2s", "1m"],
    "count": [2, 3, 1],
}
_GROUPS = {
    "loose": ["data.region", "data.a.b", "resource_id", "quantity", "row_key", "occurred_at"],
    "typed": ["region", "n", "price", "ok", "at", "d", "source", "customer_ref", "i"],
}
_NUMBERS = {
    "loose": ["quantity", "ingress_sequence", "data.n", "data.a.b"],
    "typed": ["n", "price", "x", "i", "quantity", "ingress_sequence"],
}
_VALUES = {
    "loose": ["quantity", "data.n", "data.region", "customer_ref", "occurred_at", "data.a.b"],
    "typed": ["n", "price", "x", "region", "ok", "at", "d", "i", "source", "customer_ref"],
}

_BAD = [
    *["null", '"x"', '""', "true", "[]", "{}", '"NaN"', "1e999999", "-1e-999999", '" 1"', "1e-10", "1e30"],
    *["9223372036854775808", "9999999999999999999", '"2026-02-30T00:00:00Z"', '"1500-01-01T00:00:00Z"', '"1e"'],
    *['"2026-03-04T12:00:00"', '"56000-01-01T00:00:00Z"', "1705276800000000000000", '"٣"'],
]


@st.composite
def timed_definitions(draw: st.DrawFn) -> Toml:
    """The definitions there are, with event time, ordered output, and windows of every kind."""
    toml = draw(definitions())
    streams = toml["streams"]
    declared = {name: draw(st.sampled_from(types)) for name, types in _DECLARED.items()}
    streams["typed"]["columns"] |= declared
    streams["calls"] = {}
    for name, stream in streams.items():
        if draw(st.sampled_from([True] * 7 + [False])):
            times = _TYPED_TIMES if name == "typed" else _LOOSE_TIMES
            stream["eventtime"] = dict(draw(st.sampled_from(times)))
            if draw(st.sampled_from([True, True, False])):
                stream["ordered"] = True
                stream["eventtime"] |= draw(_patience())
    toml["windows"] = {}
    for kind in _FRAMES:
        for number in range(draw(st.sampled_from([2, 1]))):
            # One of each kind at least goes by event time where it can.
            toml["windows"][f"{kind}{number}"] = draw(_windows(kind, streams, [True, False][number]))
    return toml


@st.composite
def _windows(draw: st.DrawFn, kind: str, streams: Mapping[str, Any], by_event_time: bool) -> dict[str, Any]:
    timed = [name for name in ("calls", "calls", "typed", "things") if "eventtime" in streams[name]]
    name = draw(st.sampled_from(timed if by_event_time and timed else ["calls", "typed", "calls", "things"]))
    window: dict[str, Any] = {
        "stream": name,
        "window": {kind: draw(st.sampled_from(_FRAMES[kind]))},
        "select": draw(_selects(name, streams[name])),
    }
    calculated = ["label", "twice"] if streams[name].get("calculated") else []
    groups = st.sampled_from(_GROUPS["typed" if name == "typed" else "loose"] + calculated)
    if group_by := draw(st.lists(groups, max_size=2, unique=True)):
        window["group_by"] = group_by
    if by_event_time and timed:
        window["eventtime"] = {"enabled": True, **draw(_patience())}
    if draw(st.sampled_from([False] * 7 + [True])):
        window["live"] = False
    return window


@st.composite
def _selects(draw: st.DrawFn, name: str, stream: Mapping[str, Any]) -> dict[str, str]:
    kind = "typed" if name == "typed" else "loose"
    calculated = list(CALCULATED) if stream.get("calculated") else []
    numbers = st.tuples(st.sampled_from(["sum", "avg"]), st.sampled_from(_NUMBERS[kind] + calculated[:1]))
    values = st.tuples(
        st.sampled_from(["last", "first", "min", "max", "count"]), st.sampled_from(_VALUES[kind] + calculated)
    )
    parts = st.tuples(st.sampled_from(["p50", "p90", "p95", "p99"]), st.sampled_from(_NUMBERS[kind] + calculated[:1]))
    uniques = st.tuples(st.just("unique_count"), st.sampled_from(_VALUES[kind] + calculated))
    drawn = st.one_of(numbers, values, st.just(("count", "*")), parts, uniques)
    calls = draw(st.lists(drawn, min_size=1, max_size=5))
    return {f"a{number}": f"{function}({column})" for number, (function, column) in enumerate(calls)}


@st.composite
def _patience(draw: st.DrawFn) -> dict[str, str]:
    spelling = draw(st.sampled_from(["late_tolerance", "late_tolerance", "lateTolerance"]))
    idle = draw(st.sampled_from(_IDLE))
    return {spelling: draw(st.sampled_from(_TOLERANCES))} | ({} if idle is None else {"idle_timeout": idle})


def controls(toml: Toml) -> list[Mapping[str, Any]]:
    """Control events to choose from: ticks, drains of everything, and of one thing."""
    ordered = [f"{name}_ordered" for name, stream in toml["streams"].items() if stream.get("ordered")]
    named = [{"type": "drain", "window": name} for name in [*toml.get("windows", {}), *ordered, "unknown"]]
    # Too many drains, and no watermark would ever close a window.
    every: list[Mapping[str, Any]] = [{"type": "tick"}, {"type": "tick"}, {"type": "drain"}]
    return every * len(named) + named


@st.composite
def timed_ledgers(draw: st.DrawFn) -> Ledger:
    """The ledgers there are, with times."""
    ledger = draw(ledgers())
    # One draw decides all times: Hypothesis takes its while over each, and nobody shrinks them.
    chance = Random(draw(st.integers(0, 2**32)))
    stride = chance.choice([0, 2, 5, 10]) * SECOND
    offsets = chance.choices([0, 1, 2, 3, 5, 8, 10, 12, 15, 20, 30, 61], k=chance.choice([2, 3, 5]))
    start = NOON
    timed: Ledger = []
    for commit in ledger:
        timed.append([])
        for collection in commit:
            start += stride
            timed[-1].append([_timed(draft, start, offsets, chance) for draft in collection])
    return timed


def _timed(draft: Draft, start: int, offsets: Sequence[int], chance: Random) -> Draft:
    received_at = NOON + chance.choice([0, 0, SECOND + 1])
    jitter = chance.choice([0] * 16 + [1_000_000, -1_000_000, 1, -1])
    time = start + chance.choice(offsets) * SECOND + jitter
    texts = None
    match chance.choice(["right"] * 30 + ["bad"] * 2 + ["missing", "ahead", "future", "future", "old"]):
        case "bad":
            texts = dict.fromkeys(_forms(time), chance.choice(_BAD))
        case "missing":
            texts = {}
        case "ahead":
            time = received_at + HOUR
        case "future":
            time = received_at + HOUR + chance.choice([1, 1_000_000, SECOND, 10**18])
        case "old":
            time = chance.choice([at("1678-01-01"), -1, 0])
    members = _forms(time) if texts is None else texts
    if chance.random() < 0.15:
        members = {**members, "messages": _messages(time + chance.choice(offsets) * SECOND, chance)}
    changed = {"received_at": received_at, "data": _with(draft["data"], members)}
    return {**draft, **changed} | ({"occurred_at": time} if chance.random() < 0.5 else {})


def _forms(time: int) -> dict[str, str]:
    """JSON texts of one time, by member."""
    fractions = {name: decimal_text(Decimal(time).scaleb(-digits, EXACT)) for name, digits in (("ms", 6), ("sec", 9))}
    return {
        **fractions,
        "iso": json.dumps(instant_text(time)),
        "t": json.dumps({"ns": str(time), "us": decimal_text(Decimal(time).scaleb(-3, EXACT))}),
    }


def _messages(time: int, chance: Random) -> str:
    bad = dict.fromkeys(_forms(time), chance.choice(_BAD))
    members = chance.choice([_forms(time), _forms(time), _forms(time + 2 * HOUR), {}, bad])
    stream = chance.choice(["calls", "typed", "things", "unknown", "calls"])
    message = f'{{"stream": {json.dumps(stream)}, "data": {_with("{}", members)}}}'
    return chance.choice([f"[{message}]", f'[1, {{"stream": 5}}, {{"stream":"none"}} , {message}]', "[]", message])


def _with(data: str | None, members: Mapping[str, str]) -> str | None:
    """An object with more members; what is no object is left alone."""
    if data is None or not data.strip().startswith("{") or not members:
        return data
    rest = data.strip()[1:]
    added = ", ".join(f"{json.dumps(name)}: {text}" for name, text in members.items())
    return "{" + added + (rest if rest.strip() == "}" else f", {rest}")
