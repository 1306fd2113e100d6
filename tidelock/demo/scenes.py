"""What the demo's producers send: a trading desk and an API, with all the faults of real producers, and half a year of
history.

Each producer gives, a turn at a time, the requests it sends: lists of events. Retries, conflicts, skewed clocks, late
and out-of-order events, bursts and dropouts are produced here. No I/O and no clock: each turn is given the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

Event = dict[str, Any]
Request = list[Event]

_SYMBOLS = {"ACME": 101.25, "GLOB": 47.5, "INIT": 212.0, "UMBR": 12.75, "HOOL": 388.4}
_TRADERS = ("ada", "grace", "linus", "margaret")
_REGIONS = ("eu", "us", "ap")
#: tenant -> its customers
TENANTS = {
    "default": [f"cus_{number}" for number in range(1, 9)],
    "acme": ["rocket", "anvil", "magnet"],
    "globex": ["dome", "laser"],
}
_MINUTE_MS = 60_000
#: of history
_MONTHS = 6
_DAYS = 30
_CALLS = 12


@dataclass
class Desk:
    """Orders, their fills and their settlement: chains across streams, each event caused by the one before."""

    chance: Random
    #: a prefix that no other run has
    run: str
    _orders: int = 0
    _trades: int = 0
    _open: list[Event] = field(default_factory=list)
    _prices: dict[str, float] = field(default_factory=lambda: dict(_SYMBOLS))

    def turn(self, now_ms: int) -> Iterator[Request]:
        request: Request = []
        if self.chance.random() < 0.5:
            request.append(self._order(now_ms))
        for order in list(self._open):
            if self.chance.random() < 0.3:
                request += self._fill(order, now_ms)
        # Within a request the exchange does not keep the order of events.
        self.chance.shuffle(request)
        if request:
            yield request
        if request and self.chance.random() < 0.06:
            # The response was lost: the same request is sent again.
            yield request

    def _order(self, now_ms: int) -> Event:
        self._orders += 1
        order_id = f"{self.run}-{self._orders}"
        symbol = self.chance.choice(list(_SYMBOLS))
        self._prices[symbol] *= 1 + self.chance.uniform(-0.002, 0.002)
        data = {
            "order_id": order_id,
            "symbol": symbol,
            "side": self.chance.choice(["buy", "sell"]),
            "quantity": self.chance.choice([100, 200, 300, 500, 1_000, 2_500]),
            "price": f"{self._prices[symbol]:.2f}",
            "status": "open",
            "trader": self.chance.choice(_TRADERS),
        }
        order = self._event(
            "orders", data, now_ms, causality=f"order {order_id}", key=f"placed {order_id}", caused_by=None
        )
        self._open.append(order)
        return order

    def _fill(self, order: Event, now_ms: int) -> Iterator[Event]:
        self._trades += 1
        self._open.remove(order)
        placed = order["data"]
        # The exchange sometimes reports late, and rarely very late.
        delay_ms = self.chance.choices([0, 800, 4_000, 90_000], [70, 20, 8, 2])[0]
        trade = {
            "trade_id": int(self.run, 16) % 10**6 * 10**6 + self._trades,
            "order_id": placed["order_id"],
            "symbol": placed["symbol"],
            "quantity": placed["quantity"],
            "price": placed["price"],
            "ts": now_ms - delay_ms,
        }
        # A gateway with old firmware writes the price in words.
        if self.chance.random() < 0.01:
            trade["price"] = "n/a"
        chain = order["causalityKey"]
        filled = f"filled {placed['order_id']}"
        yield self._event(
            "trades", trade, now_ms - delay_ms, causality=chain, key=filled, caused_by=order["idempotencyKey"]
        )
        done = placed | {"status": "filled"}
        yield self._event("orders", done, now_ms, causality=chain, key=f"done {placed['order_id']}", caused_by=filled)

    def _event(self, stream: str, data: Event, ts: int, *, causality: str, key: str, caused_by: str | None) -> Event:
        return {
            "stream": stream,
            "ts": ts,
            "data": data,
            "causalityKey": causality,
            "idempotencyKey": key,
            "causationId": caused_by,
            "source": "desk",
        }


@dataclass
class Gateway:
    """An API gateway that reports calls: with its own clock, in batches, with retries, sometimes after an outage."""

    name: str
    region: str
    chance: Random
    #: how far its clock is off
    skew_ms: int = 0
    #: for this many seconds at the start of each minute it is offline, and sends everything afterwards
    silent_s: int = 0
    _held: Request = field(default_factory=list)
    _calls: int = 0

    def turn(self, now_ms: int) -> Iterator[Request]:
        self._held += self._calls_of(now_ms)
        if now_ms % _MINUTE_MS < self.silent_s * 1_000:
            return
        request, self._held = self._held, []
        # Collected from many threads, so unordered.
        self.chance.shuffle(request)
        for start in range(0, len(request), 500):
            batch = request[start : start + 500]
            yield batch
            if self.chance.random() < 0.05:
                yield batch
            if self.chance.random() < 0.01:
                # Counted again before it was resent: the ledger keeps the first and reports a conflict.
                yield [batch[0] | {"quantity": "7"}]

    def _calls_of(self, now_ms: int) -> Iterator[Event]:
        busy = now_ms % _MINUTE_MS > 50_000
        for _ in range(self.chance.randint(0, 3) * (6 if busy else 1)):
            tenant = self.chance.choices(list(TENANTS), [6, 3, 2])[0]
            # A few come from devices that were offline: too late to be folded, so they become adjustments.
            late_ms = self.chance.choices([0, 3_000, 1_200_000], [96, 3, 1])[0]
            self._calls += 1
            yield {
                "tenantId": tenant,
                "stream": "api_calls",
                "customerRef": self.chance.choice(TENANTS[tenant]),
                "resourceId": f"{self.name}-{self._calls}",
                "ts": now_ms + self.skew_ms - late_ms - self.chance.randint(0, 400),
                "quantity": str(self.chance.choice([1, 1, 1, 2, 5, "0.5"])),
                "data": {"region": self.region, "path": self.chance.choice(["/v1/search", "/v1/render", "/v1/export"])},
                "source": self.name,
            }
        if self.chance.random() < 0.005:
            # A bug of the producer: rejected and not recorded.
            yield {"stream": "api_calls", "customerRef": "cus_1", "ts": now_ms, "quantity": "a few"}


@dataclass
class Billing:
    """Measurements rather than counts: storage and seats, reported again and again."""

    chance: Random
    _gb: dict[str, int] = field(default_factory=dict)

    def turn(self, now_ms: int) -> Iterator[Request]:
        if self.chance.random() > 0.15:
            return
        request: Request = []
        for tenant, customers in TENANTS.items():
            customer = self.chance.choice(customers)
            self._gb[customer] = max(1, self._gb.get(customer, 40) + self.chance.randint(-3, 4))
            said = {"tenantId": tenant, "customerRef": customer, "ts": now_ms, "source": "billing"}
            request.append(said | {"stream": "storage_gb", "quantity": str(self._gb[customer])})
            request.append(said | {"stream": "seats", "quantity": str(self.chance.randint(3, 60))})
        yield request


def producers(seed: int, run: str) -> list[Desk | Gateway | Billing]:
    """All producers."""
    return [
        Desk(Random(seed), run),
        Gateway(f"{run}-gw-eu", "eu", Random(seed + 1)),
        Gateway(f"{run}-gw-us", "us", Random(seed + 2), skew_ms=-40_000),
        # Its clock is fast, and its connection drops.
        Gateway(f"{run}-gw-ap", "ap", Random(seed + 3), skew_ms=45_000, silent_s=25),
        Billing(Random(seed + 4)),
    ]


def history(now_ms: int) -> Iterator[Request]:
    """Requests for the months and days before today, the oldest first.

    They are identical at every start on one day, so that they are recognised as duplicates.
    """
    today = datetime.fromtimestamp(now_ms / 1000, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    months = [today.replace(day=1)]
    while len(months) <= _MONTHS:
        months.append((months[-1] - timedelta(days=1)).replace(day=1))
    for before in range(_MONTHS, 0, -1):
        yield [event for place in _customers() for event in _month(*place, months[before], _MONTHS - before)]
    for days in range(_DAYS, 0, -1):
        yield [event for place in _customers() for event in _day(*place, today - timedelta(days=days))]


def _customers() -> Iterator[tuple[str, str]]:
    for tenant, customers in TENANTS.items():
        for customer in customers:
            yield tenant, customer


def _month(tenant: str, customer: str, month: datetime, since: int) -> Iterator[Event]:
    """Calls that grow by the month, some of them reported late, and seats."""
    chance = Random(f"{tenant} {customer} {month:%Y-%m}")
    moments = sorted(chance.sample(range(28 * 24), _CALLS))
    # Two of them were offline and arrive last.
    late = [moments.pop(chance.randrange(len(moments) // 2)) for _ in range(2)]
    for number, hour in enumerate([*moments, *late]):
        yield {
            "tenantId": tenant,
            "stream": "api_calls",
            "customerRef": customer,
            "ts": _ms(month + timedelta(hours=hour)),
            "quantity": str(chance.randint(40, 90) * (4 + since) // (8 if hour in late else 1)),
            "data": {"region": chance.choice(_REGIONS), "path": "/v1/batch"},
            "idempotencyKey": f"calls of {customer} in {month:%Y-%m} {number}",
            "source": "history",
        }
    yield {
        "tenantId": tenant,
        "stream": "seats",
        "customerRef": customer,
        "ts": _ms(month + timedelta(days=20)),
        "quantity": str(4 + since * 2 + chance.randint(0, 9)),
        "idempotencyKey": f"seats of {customer} in {month:%Y-%m}",
        "source": "history",
    }


def _day(tenant: str, customer: str, day: datetime) -> Iterator[Event]:
    chance = Random(f"{tenant} {customer} {day:%Y-%m-%d}")
    yield {
        "tenantId": tenant,
        "stream": "storage_gb",
        "customerRef": customer,
        "ts": _ms(day + timedelta(hours=chance.randint(0, 23))),
        "quantity": str(30 + day.day // 2 + chance.randint(0, 14)),
        "idempotencyKey": f"storage of {customer} on {day:%Y-%m-%d}",
        "source": "history",
    }


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
