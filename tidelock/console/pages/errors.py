"""Error rows: events that were recorded and did not fit their definitions."""

from __future__ import annotations

from typing import Any

from tidelock.console.frame import Visit, page
from tidelock.console.parts.tables import Column, pager, rows_table
from tidelock.console.parts.texts import panel

_ROWS = 50


@page("/events/errors", title="Errors", about="Events that are recorded and did not fit their definitions")
async def errors(visit: Visit) -> None:
    #: cursors of the pages before this one
    behind: list[str | None] = []
    here: str | None = None
    following: str | None = None

    async def show(cursor: str | None) -> None:
        nonlocal here, following
        found = await visit.api.get("/v1/errors", limit=_ROWS, cursor=cursor, tenantId=visit.tenant)
        here, following = cursor, found["next"]
        table.rows = [_row(item) for item in found["items"]]
        turning.set(f"page {len(behind) + 1}", back=bool(behind), on=following is not None)

    async def back() -> None:
        await visit.tried(lambda: show(behind.pop()))

    async def on() -> None:
        behind.append(here)
        await visit.tried(lambda: show(following))

    with panel():
        columns = [
            Column("sequence", "Event", "number"),
            Column("source", "Source", "mono"),
            Column("code", "Code", "chip"),
            Column("message", "What was wrong", "words"),
            Column("tenant", "Tenant", wide=True),
        ]
        table = rows_table(columns, [], key="id", nothing="Every event fitted.")
        turning = pager(back, on)
    await show(None)


def _row(item: dict[str, Any]) -> dict[str, Any]:
    sequence = item["ingress_sequence"]
    return {
        "id": f"{item['source']} {sequence}",
        "sequence": f"{sequence:,}",
        "_href": f"/events/{sequence}",
        "source": item["source"],
        "code": item["code"],
        "code_tone": "warn",
        "message": item["message"],
        "message_title": item["message"],
        "tenant": item["tenant_id"],
    }
