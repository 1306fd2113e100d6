"""Corrections in explanations: random slices full of them are what the model says, as of any sequence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal, localcontext
from random import Random
from typing import Any

import pytest

from tests.conftest import Databases
from tests.ledgers import write_ledger
from tests.model import Event, fold
from tests.model.billing_cases import closing
from tests.model.samples import at
from tests.model.values import EXACT, instant
from tests.usage.proving import Proof
from tidelock.model import ALL_TENANTS, CONTROL
from tidelock.postgres.database import Database

pytestmark = pytest.mark.check

TENANTS = 12
#: events of each, about half of them corrections
EVENTS = 24
DAY = 86_400 * 10**9

TOML: dict[str, Any] = {
    "streams": {"typed": {"columns": {"n": "int", "g": "string", "x": "double"}}},
    "meters": {
        "sums": {"stream": "calls", "period": "day", "lateness": "24h", "group_by": "data.g"},
        "counts": {"stream": "calls", "aggregation": "count", "period": "month", "lateness": "24h"},
        "greatest": {"stream": "calls", "aggregation": "max", "lateness": "24h", "group_by": ["data.g"]},
        "least": {"stream": "calls", "aggregation": "min", "period": "week", "lateness": "0s"},
        "latest": {"stream": "calls", "aggregation": "last", "period": "month", "lateness": "48h"},
        "means": {"stream": "calls", "aggregation": "avg", "period": "week", "lateness": "24h", "value": "data.n"},
        "some": {"stream": "calls", "aggregation": "count", "lateness": "1h", "where": {"data.n": {"_gt": 1}},
                 "group_by": "data.g"},
        "seen": {"stream": "calls", "aggregation": "unique_count", "value": "data.n", "group_by": "data.g",
                 "lateness": "24h"},
        "kinds": {"stream": "typed", "aggregation": "unique_count", "value": "g", "period": "day", "lateness": "24h"},
        "sizes": {"stream": "typed", "aggregation": "unique_count", "value": "quantity", "group_by": "n"},
        "doubles": {"stream": "typed", "aggregation": "unique_count", "value": "x", "lateness": "24h"},
        "fits": {"stream": "typed", "aggregation": "max", "value": "n", "lateness": "24h", "group_by": ["g", "n"]},
    },
}  # fmt: skip


@pytest.mark.timeout(120)
def test_slices_full_of_corrections_are_what_the_model_says(databases: Databases, number: int) -> None:
    chance = Random(number)
    with databases() as database, localcontext(EXACT):
        events = [*ledger(chance)]
        write_ledger(database, events)
        be_the_fold(database, events)

        async def proved() -> int:
            async with await database.connect() as connection:
                with localcontext(EXACT):
                    proof = Proof(connection, TOML, events, chance, lambda some: fold(some, TOML))
                    return await proof.run(looks=3, each=40, folded=False)

        assert asyncio.run(proved())


def ledger(chance: Random) -> Iterator[Event]:
    """Events of few times and values, corrections of any of them, chains of corrections, and a few closes."""
    correctable: dict[str, list[Event]] = {f"t{number}": [] for number in range(TENANTS)}
    for sequence in range(1, TENANTS * EVENTS + 1):
        tenant = chance.choice(list(correctable))
        own = correctable[tenant]
        event = Event(sequence, 100 * sequence, chance.choice(["calls", "calls", "typed"]), 0, tenant, "c")
        if chance.random() < 0.02:
            yield closed(event, chance, tenant)
        elif own and chance.random() < 0.5:
            target = own.pop(chance.randrange(len(own)))
            op = chance.choice(["void", "amend", "amend"])
            said = fields(chance, chance.choice([1, 2, 3])) if op == "amend" else {}
            correction = replace(event, stream=target.stream, op=op, **said).correcting(target)
            if op == "amend":
                own.append(correction)
            yield correction
        else:
            occurred_at = at("2026-03-02") + chance.randrange(8) * DAY // 2
            op = chance.choice(["upsert"] * 9 + ["delete"])
            own.append(replace(event, occurred_at=occurred_at, op=op, **fields(chance, 3)))
            yield own[-1]


def fields(chance: Random, which: int) -> dict[str, Any]:
    """Quantity, data, or both."""
    found: dict[str, Any] = {}
    if which & 1:
        found["quantity"] = chance.choice([None, *map(Decimal, ("1", "2", "2.5", "-1", "7"))])
    if which & 2:
        n, x = chance.choice([*"0123", "3.0", '"3"', "2e0", '"x"', "{}"]), chance.choice(["0.1", "1e22", "-0.0", "0"])
        g = chance.choice(['"eu"', '"us"', "null"])
        found["data"] = f'{{"n": {n}, "g": {g}, "x": {x}}}' if chance.random() < 0.9 else "{}"
    return found


def closed(event: Event, chance: Random, tenant: str) -> Event:
    meters = {name: TOML["meters"][name] for name in chance.sample(sorted(TOML["meters"]), 4)}
    through = chance.choice(["2026-03-04T00:00:00Z", "2026-03-09T00:00:00Z", "2026-04-01T00:00:00Z"])
    data = json.dumps(closing(meters, through, chance.choice([None, tenant])))
    return replace(event, stream=CONTROL, tenant_id=CONTROL, customer_ref=None, data=data)


def be_the_fold(database: Database, events: list[Event]) -> None:
    """Where it is, and what it knows of closes: explanations read no other row of it."""
    with database.connect_sync() as connection:
        connection.execute("INSERT INTO cursors VALUES ('fold', %s)", (events[-1].ingress_sequence,))
        for event in events:
            if event.stream != CONTROL:
                continue
            said: Mapping[str, Any] = json.loads(event.data or "{}")
            for name, meter in said["meters"].items():
                row = (said["tenantId"] or ALL_TENANTS, f"{name} {event.ingress_sequence}", name)
                connection.execute(
                    'INSERT INTO tidelock_tables."meters$closed" VALUES (%s, %s, %s, %s, %s, 1)',
                    (*row, event.ingress_sequence, instant(meter["through"])),
                )
