"""The worked cases of billing, `cases/billing.json`: events, closes and corrections, and what is charged for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.model.events import Event
from tests.model.samples import at

CONTROL = "_tidelock"

CASES: list[Mapping[str, Any]] = json.loads((Path(__file__).parent.parent / "cases" / "billing.json").read_text())


def closing(
    meters: Mapping[str, Mapping[str, Any]], through: str, tenant: str | None = None, hashed: str = "#"
) -> dict[str, Any]:
    """What a control event says that closes meters, which are given in the shape of tidelock.toml."""
    named = {name: {"through": through, "definition": dict(meter), "hash": hashed} for name, meter in meters.items()}
    return {"type": "close", "tenantId": tenant, "meters": named}


def case_events(case: Mapping[str, Any], meter: Mapping[str, Any], stream: str = "s", *, after: int = 0) -> list[Event]:
    """Each step a request of its own, the first sequence being the one behind `after`."""
    events: list[Event] = []
    for sequence, step in enumerate(case["steps"], start=after + 1):
        if "close" in step:
            data = json.dumps(closing({stream: meter}, step["close"], step["tenantId"]))
            given: dict[str, Any] = {"tenant_id": CONTROL, "data": data, "occurred_at": 0}
        elif "op" in step:
            target = next(event for event in events if event.idempotency_key == step["target"])
            said = {"quantity": Decimal(step["quantity"])} if "quantity" in step else {}
            given = {"op": step["op"], "idempotency_key": step["idempotencyKey"], "occurred_at": 0, **said}
            events.append(Event(sequence, 100 * sequence, stream, **given).correcting(target))
            continue
        else:
            given = {
                "tenant_id": step["tenantId"],
                "customer_ref": step["customerRef"],
                "idempotency_key": step["idempotencyKey"],
                "occurred_at": at(step["ts"]),
                "quantity": Decimal(step["quantity"]),
            }
        events.append(Event(sequence, 100 * sequence, CONTROL if "close" in step else stream, **given))
    return events


def wanted(case: Mapping[str, Any], table: str) -> list[dict[str, Any]]:
    """The rows of a case with the names and values of a table's."""
    return [
        {name: at(value) if name == "period_start" else value for name, value in row.items()} for row in case[table]
    ]
