"""Leases: one of each at a time on a ledger. A lease ends with the connection that holds it, however that ends."""

from __future__ import annotations

from typing import Any

import psycopg

from tidelock.postgres.queries import load

QUERIES = load("tidelock.postgres", "sql/leases.sql")

# Numbers of advisory locks, of the ledger's own database. They never change: another version may hold one.
#: the fold, while it writes the tables
FOLD = int.from_bytes(b"tidefold")
#: also held once the tables follow the fold's definitions, or newer ones
READY = int.from_bytes(b"tideread")
#: the evaluator of triggers
TRIGGERS = int.from_bytes(b"tidetrig")
#: the mirror, while it sends
MIRROR = int.from_bytes(b"tidemirr")
#: the loader of a store
LOADERS = {"lake": int.from_bytes(b"tidelake"), "clickhouse": int.from_bytes(b"tideclic")}
#: the repair of a store: its loader releases it
REPAIRS = {"lake": int.from_bytes(b"tidemend"), "clickhouse": int.from_bytes(b"tidefixc")}


def hold(connection: psycopg.Connection[Any], lease: int) -> bool:
    """Take the lease for as long as the connection lives. False: it is held by another."""
    row = connection.execute(QUERIES["take_lease"], {"lease": lease}).fetchone()
    return row is not None and bool(row[0])


def release(connection: psycopg.Connection[Any], lease: int) -> None:
    """Give it up while the connection still lives: Postgres ends a closed one a moment later, and the next process that
    asks would be refused.
    """
    connection.execute(QUERIES["release_lease"], {"lease": lease})


def held(connection: psycopg.Connection[Any], lease: int) -> bool:
    """Whether anybody has it."""
    row = connection.execute(QUERIES["lease_held"], {"lease": lease}).fetchone()
    return row is not None and bool(row[0])


async def is_held(connection: psycopg.AsyncConnection[Any], lease: int) -> bool:
    """`held`, on an event loop."""
    row = await (await connection.execute(QUERIES["lease_held"], {"lease": lease})).fetchone()
    return row is not None and bool(row[0])
