"""The worked cases of the contract, `cases/meters.json`, as events and rows of the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.model.events import Event
from tests.model.samples import alone, at
from tests.model.values import decimal_text

CASES = json.loads((Path(__file__).parent.parent / "cases" / "meters.json").read_text())


def meter_of(case: Mapping[str, Any]) -> dict[str, Any]:
    return {name: case[name] for name in ("aggregation", "period", "lateness", "group_by") if name in case}


def shown(value: Any) -> Any:
    return decimal_text(value) if isinstance(value, Decimal) else value


def case_events(case: Mapping[str, Any]) -> list[Event]:
    return alone(
        *(
            {
                "customer_ref": given["customerRef"],
                "occurred_at": at(given["ts"]),
                "quantity": None if given["quantity"] is None else Decimal(given["quantity"]),
                "tenant_id": given.get("tenantId", "default"),
                "data": given.get("data"),
            }
            for given in case["events"]
        )
    )


def _expected(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a case with the names and values of a table's."""
    renamed = {"customerRef": "customer_ref", "group": "group_key"}
    found = {renamed.get(name, name): value for name, value in row.items() if name != "tenantId"}
    return {name: at(value) if name in ("period_start", "watermark_ts") else value for name, value in found.items()}


def check(rows: Mapping[tuple[str, str], Mapping[str, Any]], wanted: list[Mapping[str, Any]]) -> None:
    """Every wanted row is there, in what it says, and no other."""
    assert len(rows) == len(wanted)
    found = [({name: shown(value) for name, value in row.items()}, key[0]) for key, row in rows.items()]
    for row in wanted:
        names = _expected(row)
        told = [{name: row[name] for name in names} | {"tenantId": tenant} for row, tenant in found]
        assert names | {"tenantId": row.get("tenantId", "default")} in told
