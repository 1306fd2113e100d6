"""The lease: one fold at a time on a ledger. It ends with the connection that holds it, however that ends."""

from __future__ import annotations

from typing import Any

import psycopg

from tidelock.ledger.queries import load

QUERIES = load("tidelock.fold", "sql/lease.sql")

#: number of the advisory lock, of the ledger's own database
LEASE = int.from_bytes(b"tidefold")
#: held as well once the tables are by the definitions that the fold was started with, or by newer ones
READY = int.from_bytes(b"tideread")


def hold(connection: psycopg.Connection[Any], lease: int = LEASE) -> bool:
    """Take the lease for as long as the connection lives. False: another has it."""
    row = connection.execute(QUERIES["take_lease"], {"lease": lease}).fetchone()
    return row is not None and bool(row[0])


def held(connection: psycopg.Connection[Any], lease: int) -> bool:
    """Whether anybody has it."""
    row = connection.execute(QUERIES["lease_held"], {"lease": lease}).fetchone()
    return row is not None and bool(row[0])


async def ready(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Whether a fold runs, and has nothing to make anew first."""
    row = await (await connection.execute(QUERIES["lease_held"], {"lease": READY})).fetchone()
    return row is not None and bool(row[0])
