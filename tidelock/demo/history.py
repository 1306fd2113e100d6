"""What the demo's customers used before it was started: half a year, so that there is something to look back at.

It is the same at every start on a day, to the last digit: what was told before is known for a repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random

from tidelock.demo.scenes import TENANTS, Event, Request

_MONTHS = 6
_DAYS = 30
_CALLS = 12
_REGIONS = ("eu", "us", "ap")


def history(now_ms: int) -> Iterator[Request]:
    """Requests about the months and days before this one, the oldest first."""
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
    """Calls that grow by the month, with some that were told when the month had moved on; and seats."""
    chance = Random(f"{tenant} {customer} {month:%Y-%m}")
    moments = sorted(chance.sample(range(28 * 24), _CALLS))
    # Two of them were offline, and come last.
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
