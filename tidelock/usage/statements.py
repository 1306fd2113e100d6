"""Statements: what counters were when their period was closed, and what has come for them since.

Apart from the route that serves them, because a comparison with the counters of today is no matter of HTTP; and from
`closing`, which decides what is closed and never reads what a counter says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from tidelock.definitions import Definitions
from tidelock.instants import format_instant, parse_rfc3339
from tidelock.periods import period_end
from tidelock.postgres.queries import load
from tidelock.views.rows import RowSelection, SelectedRows, read_rows

QUERIES = load("tidelock.usage", "sql/statements.sql")

#: adjustments that are told with a statement; `/v1/adjustments` has them all
ADJUSTMENTS_TOLD = 100


async def read_statements(
    connection: psycopg.AsyncConnection[Any],
    definitions: Definitions,
    selection: RowSelection,
    *,
    rows_max: int,
    bytes_max: int,
) -> SelectedRows:
    """A page of statements, with what has come since: everything of one moment."""
    async with connection.transaction():
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        page = await read_rows(connection, selection, rows_max=rows_max, bytes_max=bytes_max)
        keys = [_key(item) for item in page.items]
        tenants = [item["tenant_id"] for item in page.items]
        since = await (await connection.execute(QUERIES["since"], (tenants, keys))).fetchall()
        asked = {
            "tenants": tenants,
            "metrics": [item["metric"] for item in page.items],
            "customers": [item["customer_ref"] for item in page.items],
            "starts": [parse_rfc3339(str(item["period_start"])) for item in page.items],
            "closed": [item["closed_sequence"] for item in page.items],
            "limit": ADJUSTMENTS_TOLD,
        }
        adjusted = await (await connection.execute(QUERIES["adjustments"], asked)).fetchall()
    moved = {number: row for number, *row in since}
    items = []
    for number, item in enumerate(page.items, start=1):
        # A counter of other periods may begin where the statement does; what came for that one is no part of this.
        same = _comparable(definitions, item)
        since_then = {**_moved(moved.get(number) if same else None), **_adjusted(adjusted if same else [], number)}
        items.append({**item, **since_then})
    return SelectedRows(items, page.last)


def _key(item: Mapping[str, object]) -> str:
    """The text of the key that the statement and its counter have."""
    parts = [item["metric"], item["customer_ref"], item["period_start"]]
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":"))


def _comparable(definitions: Definitions, item: Mapping[str, object]) -> bool:
    """Whether there is something to compare with: not if the meter is gone, or its periods are others."""
    meter = definitions.meters.get(str(item["metric"]))
    if meter is None:
        return False
    start, end = (parse_rfc3339(str(item[name])) for name in ("period_start", "period_end"))
    return period_end(meter.period, start) == end


def _moved(moved: Sequence[Any] | None) -> dict[str, object]:
    adjustment, restated = (None, None) if moved is None else moved
    return {"adjustmentSince": adjustment, "restated": restated}


def _adjusted(rows: Sequence[Sequence[Any]], number: int) -> dict[str, object]:
    own = [row[1:] for row in rows if row[0] == number]
    told = [
        {"ingress_sequence": sequence, "quantity": quantity, "amount": amount, "reason": reason,
         "occurred_at": format_instant(occurred_at)}
        for _, sequence, quantity, amount, reason, occurred_at in own
    ]  # fmt: skip
    return {"adjustmentCount": own[0][0] if own else 0, "adjustments": told}
