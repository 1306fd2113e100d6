"""The events of the kept ledger, in requests, as producers sent them: always the same ones, by a fixed seed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

Event = dict[str, Any]
Request = list[Event]

NOON = datetime(2026, 11, 10, 12, tzinfo=UTC)
SYMBOLS = ["AB", "ÅÄÖ", "ZZ"]
#: keys of events that follow from each other
CAUSALITY = ["run-1", "run-ü"]
#: an empty customer is a customer, an absent one is none
CUSTOMERS = ["cus_1", "cus_2", "", "客户", None]
TENANTS = ["default", "default", "acme", "größe"]
QUANTITIES = [
    "1", "2.5", "-3", "0", "0.000000001", "99999999999999999.999999999", "-99999999999999999.999999999", "123456.789",
    None,
]  # fmt: skip
REGIONS = ["eu", "us", "ü", "", None, 'a"b\\c\n']
#: the same key with other content
CONFLICTS = [
    {"stream": "api_calls", "idempotencyKey": "conflict", "customerRef": "cus_1", "quantity": "1"},
    {"stream": "api_calls", "idempotencyKey": "conflict", "customerRef": "cus_1", "quantity": "2"},
]
#: identities that the first salt made
DERIVED = [
    {"stream": "api_calls", "customerRef": customer, "ts": "2026-11-09T08:00:00.123456789Z", "quantity": quantity,
     "resourceId": resource, "data": {"region": "eu"}}
    for customer, quantity, resource in [("cus_1", "4", None), ("cus_1", "5", ""), ("", "6", "r"), ("客户", "7", "r")]
]  # fmt: skip
IMPORTED = "customerRef,ts,quantity,region,idempotencyKey\n" + "".join(
    f"cus_{n % 4},2026-11-08T{n % 24:02}:00:00Z,{n}.{n:03},eu,imported-{n}\n" for n in range(60)
)
#: a table of events from before there was a ledger
OLDER_TABLE = [
    """
    CREATE TABLE older_events (
        id bigint PRIMARY KEY, type text NOT NULL, source text, occurred_at timestamptz,
        received_at timestamptz NOT NULL, payload jsonb, correlation_id uuid
    )
    """,
    """
    INSERT INTO older_events
    SELECT id, (ARRAY['started', 'step', 'clicks'])[1 + id % 3], 'engine',
        CASE WHEN id % 7 <> 0 THEN timestamptz '2026-01-01' + (id * 7919 % 13) * interval '1 hour' END,
        timestamptz '2026-01-02' + (id * 104729 % 7) * interval '1 minute', jsonb_build_object('n', id),
        md5(id::text)::uuid
    FROM generate_series(1, 40) AS id
    """,
]


def at(seconds: float) -> str:
    return (NOON + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def milliseconds(seconds: float) -> int:
    return round((NOON.timestamp() + seconds) * 1000)


class Source:
    """Draws events; the time that they tell of goes on with every request."""

    def __init__(self, seed: int, start: float) -> None:
        self.chance = Random(seed)
        self.now = start

    def requests(self, count: int, sizes: Sequence[int], kinds: Sequence[str]) -> list[Request]:
        found = []
        for _ in range(count):
            self.now += self.chance.choice([0, 1, 3, 7])
            found.append([self.event(self.chance.choice(kinds)) for _ in range(self.chance.choice(sizes))])
        return found

    def event(self, kind: str) -> Event:
        event: Event = getattr(self, kind)()
        return {"tenantId": self.chance.choice(TENANTS), "stream": kind, **event}

    def time(self) -> float:
        """Mostly near each other, some of them late."""
        late = self.chance.choice([0, 0, 0, 0, 2, 4, 9, 40])
        return self.now + self.chance.choice([0, 0.5, 1, 2]) - late

    def api_calls(self) -> Event:
        chance = self.chance
        days = chance.choice([0, 0, 0, 0, 0, 0.002, 0.05, 1.2, 2.5, 40])
        event: Event = {"customerRef": chance.choice(CUSTOMERS), "ts": at(self.now - days * 86_400)}
        event["resourceId"] = chance.choice([None, "r1", ""])
        event["quantity"] = chance.choice(QUANTITIES)
        event["data"] = {"region": chance.choice(REGIONS), "bytes": chance.choice([1024, "17.5", "many", None])}
        event["idempotencyKey"] = f"call-{chance.randrange(10**9)}"
        if chance.random() < 0.1:
            event |= {"causalityKey": chance.choice(CAUSALITY), "correlationId": "c-1", "source": "sdk/ü"}
        return event

    def trades(self) -> Event:
        chance = self.chance
        data: Event = {
            "trade_id": chance.randrange(40),
            "symbol": chance.choice(SYMBOLS),
            "quantity": chance.choice([1, 2, 5, 9, 12, None]),
            "price": chance.choice(["10.5", "49.9999", "75.25", "101", "99999999999999.9999"]),
            "ts": milliseconds(self.time()),
            "venue": chance.choice(["X", "Ñ", None]),
        }
        right: list[Event] = [{}]
        wrong: list[Event] = [{"price": "much"}, {"quantity": 1.5}, {"ts": "soon"}, {"ts": 4102444800000}]
        data |= chance.choice(right * 30 + wrong)
        op = chance.choice(["upsert"] * 9 + ["delete"])
        key = f"trade-{chance.randrange(10**9)}"
        return {"customerRef": "desk", "data": data, "op": op, "idempotencyKey": key, "ts": at(self.now)}

    def positions(self) -> Event:
        chance = self.chance
        data = {
            "account": chance.choice(["a", "b", 'ü,"', ""]),
            "symbol": chance.choice(SYMBOLS),
            "amount": chance.choice(["12345678901234567890.123456789", "-1", "0", 7, None]),
            "opened": chance.choice(["2026-02-28", None]),
        }
        return {"data": data, "op": chance.choice(["upsert"] * 5 + ["delete"])}

    def typed(self) -> Event:
        chance = self.chance
        data = {
            "n": chance.choice([1, 2, "9223372036854775807", -5]),
            "i": chance.choice([2**31 - 1, None, "7"]),
            "x": chance.choice([0.1, 1e22, -0.0, 2.5e-10, None]),
            "price": chance.choice(["99999999999999999.999999999", "-0.000000001", 5]),
            "ok": chance.choice([True, False, None]),
            "at": chance.choice(["2026-03-01T00:00:00.000000001Z", "1969-12-31T23:59:59.5+01:00", None]),
            "d": chance.choice(["2024-02-29", None]),
            "j": chance.choice([{"b": [1, 2.50], "a": None}, "text", [], None]),
            "region": chance.choice(REGIONS),
        }
        return {"data": data | chance.choice([{}] * 9 + [{"d": "2026-02-30"}]), "op": "upsert"}

    def things(self) -> Event:
        chance = self.chance
        thing = {"resourceId": chance.choice(["r1", "r2", "r3"]), "quantity": chance.choice(["1.50", None])}
        return {
            **thing,
            "customerRef": "",
            "data": {"b": 1, "a": 2.0},
            "op": chance.choice(["upsert", "upsert", "delete"]),
        }

    def notes(self) -> Event:
        return {"data": {"note": {"id": self.chance.choice(["n1", "n2", 3])}, "text": "ž"}}

    def readings(self) -> Event:
        chance = self.chance
        data: Event = {"at": at(self.time()), "sensor": chance.choice(["s1", "s2"]), "value": chance.randrange(100)}
        if chance.random() < 0.15:
            data["messages"] = [
                {"stream": "unknown", "data": {}},
                {"stream": "readings", "data": {"at": at(self.time())}},
            ]
        return {"data": data | chance.choice([{}] * 20 + [{"at": "yesterday"}, {"at": "2100-01-01T00:00:00Z"}])}

    def quotes(self) -> Event:
        seconds = f"{milliseconds(self.time()) / 1000:.3f}"
        return {"data": {"symbol": self.chance.choice(SYMBOLS), "bid": "1.25", "sec": seconds}}

    def pulses(self) -> Event:
        return {"quantity": "1.000000001", "data": {"us": milliseconds(self.time()) * 1000}}

    def beats(self) -> Event:
        return {"data": {"ns": str(milliseconds(self.time()) * 10**6 + 1)}}

    def clicks(self) -> Event:
        return {"customerRef": self.chance.choice(["cus_1", "cus_2"]), "ts": at(self.time())}

    def causes(self) -> Event:
        key = self.chance.randrange(10**9)
        return {"causalityKey": self.chance.choice(CAUSALITY), "causationId": "first", "idempotencyKey": f"cause-{key}"}


EVERY = [
    *["api_calls"] * 6, *["trades"] * 6, *["readings"] * 4, *["positions", "quotes", "pulses", "beats"] * 2,
    *["typed", "things", "notes", "clicks", "causes"],
]  # fmt: skip


def round_one() -> list[Request]:
    first = [{"stream": "causes", "idempotencyKey": "first", "causalityKey": key, "tenantId": tenant}
             for key, tenant in [("run-1", "default"), ("run-ü", "acme")]]  # fmt: skip
    return [DERIVED, first, *Source(17, 0).requests(45, [1, 5, 12, 20], EVERY)]


def crossings() -> list[Request]:
    """Prices that rise and fall: rows enter and leave conditions."""
    prices = ["120", "20", "130", "76", "30", "90", "10"]
    return [[crossing(trade, price, place) for trade in range(100, 104)] for place, price in enumerate(prices)]


def crossing(trade: int, price: str, place: int) -> Event:
    data = {"trade_id": trade, "symbol": SYMBOLS[trade % 3], "quantity": 9 + place % 2, "price": price,
            "ts": milliseconds(400 + 5 * place)}  # fmt: skip
    return {
        "stream": "trades",
        "customerRef": "desk",
        "data": data,
        "ts": at(400),
        "idempotencyKey": f"{trade}/{place}",
    }


def after_the_drain() -> list[Request]:
    """Some lie before what the drain closed: at the same times as what was last."""
    return [*Source(18, 395).requests(8, [3, 9], EVERY), *Source(19, 500).requests(12, [3, 9], EVERY)]


def round_two() -> list[Request]:
    return Source(20, 700).requests(40, [1, 5, 12, 20], EVERY)


def last_round() -> list[Request]:
    return Source(21, 1200).requests(6, [6, 9], EVERY)


def newly_derived(number: int) -> Request:
    """Identities that the newest salt makes."""
    return [{**event, "ts": f"2026-11-09T09:00:0{number}Z"} for event in DERIVED]
