"""An empty ledger: what to do about it, until there is something to look at."""

from __future__ import annotations

from nicegui import ui

from tidelock.console.frame import Visit
from tidelock.console.parts.texts import empty, panel

_LOOKED_S = 2.0
_FIRST = """curl -s {home}/v1/events {key}-H 'content-type: application/json' \\
  -d '{{"stream":"api_calls","customerRef":"cus_1","quantity":"1.5"}}'"""


async def nothing_recorded(visit: Visit) -> bool:
    """Whether the ledger has no event; then this is the page, until it has one."""
    if await _head(visit):
        return False
    first = _FIRST.format(home=visit.home, key="-H 'authorization: Bearer KEY' " if visit.keyed else "")
    with panel():
        empty("pulse", "The ledger is empty", "Send it an event, and this page begins to move.", first)

    async def look() -> None:
        if await _head(visit):
            ui.navigate.reload()

    visit.every(_LOOKED_S, look)
    return True


async def _head(visit: Visit) -> int:
    health = await visit.api.get("/admin/event-health", tenantId=visit.tenant)
    return int(health["head"]["ingressSequence"])
