"""The demo's triggers, made when they are missing."""

from __future__ import annotations

from typing import Any

import aiohttp

from tidelock.demo.receiver import Receiver

TRIGGERS: dict[str, dict[str, Any]] = {
    "large_trade": {"table": "trades", "match": {"quantity": {"_gte": 1000}}},
    "order_filled": {"table": "orders", "match": {"status": {"_eq": "filled"}}},
    "heavy_user": {
        "table": "counters",
        "match": {"metric": {"_eq": "api_calls"}, "total": {"_gte": "500"}},
    },
}


async def ensure(client: aiohttp.ClientSession, hooks: str, receiver: Receiver) -> None:
    """The receiver is somewhere else at each start, and knows only secrets that it was given: made anew each time."""
    for name, said in TRIGGERS.items():
        async with client.delete(f"/v1/triggers/{name}") as gone:
            if gone.status not in (204, 404):
                gone.raise_for_status()
        async with client.post("/v1/triggers", json={"name": name, **said, "webhook": f"{hooks}/{name}"}) as made:
            made.raise_for_status()
            receiver.secrets[name] = (await made.json())["secrets"]
