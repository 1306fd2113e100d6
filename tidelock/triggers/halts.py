"""Halts: a receiver that answers 410 is gone, and its trigger is disabled, by a control event as any other change.

Until that event has been evaluated, which may take a while, the halt itself keeps anything from being sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from tidelock.postgres.queries import load

QUERIES = load("tidelock.triggers", "sql/delivery.sql")

#: records that a trigger of this name is disabled; gives the control event's sequence
Disable = Callable[[str], Awaitable[int]]


async def record_halts(connection: psycopg.AsyncConnection[Any], disable: Disable) -> None:
    """Tell the ledger of halts that it does not know of; each once, or its repeat could undo what came after it."""
    halted = await (await connection.execute(QUERIES["halted"])).fetchall()
    for (name,) in halted:
        sequence = await disable(name)
        await connection.execute(QUERIES["record_halt"], {"name": name, "sequence": sequence})
