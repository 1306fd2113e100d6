"""Random definitions, and random ledgers for them. Values are few, so that keys, instants and rows meet again.

Hypothesis likes what stands first in a list: the common values, what is missing or odd after them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from tests.model.samples import at

#: an event without the numbers that the ledger gives it; `tenant_id` is the number of one of the ledger's tenants
Draft = Mapping[str, Any]
#: commits of collections of events
Ledger = list[list[list[Draft]]]
Toml = dict[str, dict[str, Any]]

COLUMNS = {
    "n": "bigint",
    "price": "decimal(18,4)",
    "x": "double",
    "region": "string",
    "ok": "boolean",
    "at": "timestamp",
    "d": "date",
    "j": "json",
    "i": "int",
    # Hides the column that every event has.
    "source": "string",
}
#: calculated columns of a stream that has both a key and those columns, and what the model makes of them
CALCULATED = {"twice": "n + n", "label": "concat(region, '!')"}
COMPUTED = {
    ("typed", "twice"): lambda row: _bigint(row["n"]),
    ("typed", "label"): lambda row: None if row["region"] is None else row["region"] + "!",
}
#: a level less than ingest takes
DEPTH = 63

_TEXTS = [
    '"eu"',
    '"us"',
    '""',
    '"a\\"\\\\\\n\\u0001"',
    '"\\u00e9\\ud83d\\ude00"',
    '"null"',
    "null",
    "7",
    '{"a" : [1, 2]}',
]
_FITTING = {
    "n": ["1", "2", '"2"', "2.0", "-0", "9223372036854775807", "-9223372036854775808", "2e0", "null"],
    "price": ["1.5", '"1.50"', "15e-1", "0", "-0.0", "99999999999999.9999", "-3", "null"],
    "x": ["0.1", "-0.0", "1e22", "2.5", "1e-10", "123456789.123456789", "null"],
    "region": _TEXTS,
    "ok": ["true", "false", '"true"', "null"],
    "at": ['"2026-03-01T00:00:00Z"', '"2026-03-01t01:00:00.000000001+01:00"', '"1969-12-31T23:59:59.5Z"', "null"],
    "d": ['"2026-03-01"', '"0001-01-01"', '"2024-02-29"', "null"],
    "j": ['{"b": 1, "a" : 2}', "[1,2]", "null", '"null"', "1.0", "[" * DEPTH + "]" * DEPTH],
    "i": ["1", "-2147483648", "3.0", "null"],
    "source": _TEXTS,
}
_POISON = [
    *['"NaN"', "1e999999", "-1e-999999", "1" * 400, '"Infinity"', '""', '" 1"', '"1\\n"', "[]", "{}", '"x"', "0.00001"],
    *["9223372036854775808", '"2026-02-30"', '"2026-03-01T24:00:00Z"', "10" * 30, '"1e"', "[" * DEPTH + "]" * DEPTH],
]
_NUMBERS = [
    "1",
    "2.5",
    '"0.000000001"',
    "-5",
    "5",
    "1e3",
    "0",
    "9999999999999999999.999999999",
    "1e19",
    "1e-10",
    *_POISON,
]
_ODD_DATA = ["{}", None, "null", "5", "[]", '"a"', ' { "n" : 1 , "n":2, "a":{"b":1,"b":{"b":3}} } ', '{"\\u006e": 4}']

_INSTANTS = [
    *["2026-03-04T12:00:00Z", "2026-03-01T01:00:00Z", "2026-03-03T00:00:00Z", "2026-03-01T00:30:00Z"],
    *["2026-03-04T12:00:00Z", "2026-03-04T11:59:59.999999999Z", "2026-03-04T11:00:00Z", "2026-03-02T12:00:00Z"],
    *["2026-03-01T00:00:00Z", "2026-02-28T23:59:59.999999999Z", "2026-03-01T00:59:59.999999999Z"],
    *["2026-03-01T01:00:00Z", "2026-03-01T23:00:00Z", "2026-03-02T00:00:00Z", "2026-03-03T00:00:00.000000001Z"],
    *["2026-03-04T12:00:00Z", "2026-03-08T23:59:59Z", "2026-03-31T23:59:59.999999999Z", "2026-04-01T00:00:00Z"],
    *["1969-12-31T23:59:59.999999999Z", "1678-01-01T00:00:00Z", "2261-12-31T23:59:59.999999999Z"],
]
_QUANTITIES = [
    *["0", "1", "1", "-1", "5", "-5", "2.5", "0.000000001", "-0.000000001", "0.1", "3.333333333"],
    *["999999999999999999.999999999", "-999999999999999999.999999999"],
]
_CUSTOMERS = ["c", "c", "c", "d", 'e"\\\n\x01', "é😀", "", None]

_ENVELOPES = [
    {"tenant_id": tenant, "op": op, "row_key": row_key, "received_at": received_at}
    for tenant in (0, 0, 0, 1)
    for op in ("upsert", "upsert", "upsert", "delete")
    for row_key in (None, "k")
    for received_at in (0, 1_000_000_001)
]

#: whether meters count distinct values, too
UNIQUE_COUNT = True
_AGGREGATIONS = ("sum", "count", "max", "min", "last", "avg", *(["unique_count"] if UNIQUE_COUNT else []))
_PERIODS = ("month", "week", "day", "hour")
_PATHS = ["data.n", "data.a.b", "data.region"]
_SHARED = ["quantity", "ingress_sequence"]
_WHERES = {
    "loose": [
        {"data.n": {"_gt": 1}},
        {"data.region": {"_in": ["eu", "us"]}},
        {"_or": [{"quantity": {"_is_null": True}}, {"_not": {"data.a.b": {"_eq": True}}}]},
        {"customer_ref": {"_neq": "d"}, "occurred_at": {"_gte": "2026-03-01T00:00:00Z"}},
        '{"data.n": {"_lte": 2.50}}',
    ],
    "typed": [
        {"n": {"_gte": 2}},
        {"_not": {"region": {"_eq": "eu"}}, "ok": {"_is_null": False}},
        {"price": {"_lt": "1.5001"}, "_or": [{"x": {"_gt": 0}}, {"d": {"_eq": "2026-03-01"}}]},
        {"at": {"_neq": "2026-03-01T00:00:00Z"}},
        {"source": {"_in": ["eu", "7"]}, "op": {"_eq": "upsert"}},
    ],
}
_GROUPS = {
    "loose": ["data.region", "data.a.b", "resource_id", "occurred_at", "quantity", "row_key"],
    "typed": ["region", "n", "price", "ok", "at", "d", "source", "customer_ref", "received_at"],
}
_KEYS: dict[str, list[Any]] = {
    "typed": [None, "n", "region", ["n", "region"], ["price", "at", "ok"], ["d", "i"], "source"],
    "things": ["resource_id", "data.id", ["customer_ref", "data.a.b"], ["data.n", "data.region", "resource_id"]],
}


@st.composite
def definitions(draw: st.DrawFn) -> Toml:
    """Two streams with tables, of declared columns and of none, and meters that have every aggregation and period."""
    typed: dict[str, Any] = {"columns": dict(draw(st.permutations(list(COLUMNS.items()))))}
    if (key := draw(st.sampled_from(_KEYS["typed"]))) is not None:
        typed |= {
            "key": key,
            "calculated": draw(st.sampled_from([{}, CALCULATED])),
            "live": draw(st.sampled_from([True, True, True, False])),
        }
    things = {"key": draw(st.sampled_from(_KEYS["things"])), "live": draw(st.sampled_from([True, True, True, False]))}
    aggregations, periods = draw(st.permutations(_AGGREGATIONS)), draw(st.permutations(_PERIODS))
    meters: dict[str, Any] = {"lateness": draw(st.sampled_from(["0s", "0s", "1h", "48h"]))}
    for number in range(draw(st.sampled_from([6, 5, 4, 6, 5, 4, 1, 0]))):
        aggregation = aggregations[number]
        meter = draw(_meters(draw(st.sampled_from(["calls", "calls", "typed", "things"])), aggregation))
        meter |= {"aggregation": aggregation, "period": periods[number % 4]}
        meters[draw(st.sampled_from(["m", 'a "b"\\', "é", "x y"])) + str(number)] = meter
    return {"streams": {"typed": typed, "things": things}, "meters": meters}


@st.composite
def _meters(draw: st.DrawFn, stream: str, aggregation: str) -> dict[str, Any]:
    kind = "typed" if stream == "typed" else "loose"
    meter: dict[str, Any] = {"stream": stream}
    if aggregation == "unique_count":
        # What groups are made of has a text.
        meter["value"] = draw(st.sampled_from([*_GROUPS[kind], *_SHARED]))
    elif draw(st.booleans()):
        meter["value"] = draw(
            st.sampled_from(["n", "price", "x", "i", *_SHARED] if kind == "typed" else _PATHS + _SHARED)
        )
    if draw(st.sampled_from([False, False, True])):
        meter["where"] = draw(st.sampled_from(_WHERES[kind]))
    if draw(st.booleans()):
        columns = st.lists(st.sampled_from(_GROUPS[kind]), min_size=1, max_size=3, unique=True)
        meter["group_by"] = draw(columns.map(lambda names: names[0] if len(names) == 1 else names))
    if draw(st.booleans()):
        meter["lateness"] = draw(st.sampled_from(["0s", "1ns", "1h", "24h", "720h"]))
    if draw(st.sampled_from([False] * 7 + [True])):
        meter["live"] = False
    return meter


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    """Events of a few payloads, customers and instants: they meet again, many an upsert changes nothing."""

    def few(values: st.SearchStrategy[Any], most: int) -> list[Any]:
        return draw(st.lists(values, min_size=1, max_size=most))

    loose, typed = few(_loose_data(), 4), few(_typed_data(), 4)
    payloads = [(stream, data) for stream in ("calls", "calls", "things", "unknown") for data in loose]
    payloads += [("typed", data) for data in typed] * 2
    customers = few(st.tuples(st.sampled_from(_CUSTOMERS), st.sampled_from([None, "r", "s", '"'])), 2)
    instants = few(st.sampled_from([at(text) for text in _INSTANTS]), 5)
    quantities = few(st.sampled_from([*map(Decimal, _QUANTITIES), None]), 4)
    # One choice for many columns: Hypothesis takes its time over each.
    choices = (payloads, customers, instants, quantities, _ENVELOPES)
    events = st.tuples(*map(st.sampled_from, choices)).map(lambda chosen: _draft(*chosen))
    collections = st.lists(events, min_size=1, max_size=5)
    return draw(st.lists(st.lists(collections, min_size=1, max_size=3), min_size=2, max_size=5))


def _draft(payload: Any, customer: Any, instant: int, quantity: Decimal | None, envelope: Mapping[str, Any]) -> Draft:
    (stream, data), (customer_ref, resource_id) = payload, customer
    named = {"stream": stream, "customer_ref": customer_ref, "resource_id": resource_id}
    return {**envelope, **named, "occurred_at": instant, "quantity": quantity, "data": data}


@st.composite
def _typed_data(draw: st.DrawFn) -> str | None:
    members = {name: draw(st.sampled_from(_FITTING[name])) for name in COLUMNS}
    match draw(st.sampled_from(["fits"] * 4 + ["poison", "gap", "odd"])):
        case "poison":
            members[draw(st.sampled_from(list(COLUMNS)))] = draw(st.sampled_from(_POISON))
        case "gap":
            del members[draw(st.sampled_from(list(COLUMNS)))]
        case "odd":
            return draw(st.sampled_from(_ODD_DATA))
    return _object(members)


@st.composite
def _loose_data(draw: st.DrawFn) -> str | None:
    if draw(st.sampled_from([False] * 5 + [True])):
        return draw(st.sampled_from(_ODD_DATA))
    number, text = st.sampled_from(_NUMBERS), st.sampled_from(_TEXTS)
    inner = draw(
        st.one_of(
            text, number, st.just("true"), number.map(lambda n: f'{{"b": {n}}}'), text.map(lambda t: f'{{"b":{t}}}')
        )
    )
    return _object({"n": draw(number), "region": draw(text), "id": draw(text), "a": inner})


def _bigint(n: int | None) -> int | None:
    return None if n is None or not -(2**63) <= n + n < 2**63 else n + n


def _object(members: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(name)}: {text}" for name, text in members.items()) + "}"
