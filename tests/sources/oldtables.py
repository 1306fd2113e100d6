"""Older tables of events, as teams have them before there is a ledger."""

import random
from typing import Any

from tidelock.postgres.database import Database

WORKFLOW_EVENTS = """
CREATE TABLE workflow_events (
    id             bigint      PRIMARY KEY,
    type           text        NOT NULL,
    source         text,
    occurred_at    timestamptz,
    received_at    timestamptz NOT NULL,
    payload        jsonb,
    correlation_id uuid,
    metadata       jsonb
)
"""
# Few distinct instants, so that ids decide often; ids in no order; some rows without a time of their own.
_FILL = """
INSERT INTO workflow_events
SELECT id, (ARRAY['started', 'step', 'finished'])[1 + id %% 3], 'engine',
    CASE WHEN id %% 17 = 0 THEN NULL
        ELSE timestamptz '2026-01-01' + (id::bigint * 7919 %% 13) * interval '1 hour' + interval '1 microsecond' END,
    timestamptz '2026-01-02' + (id::bigint * 104729 %% 7) * interval '1 minute',
    jsonb_build_object('n', id, 'text', 'a' || chr(10) || 'b'), gen_random_uuid(), '{"v": 1}'
FROM generate_series(1::bigint, %(rows)s) AS id ORDER BY md5(id::text || %(seed)s)
"""
#: what the ledger must hold, in order
_ORDER = """
SELECT 'workflow_events:' || id FROM workflow_events
ORDER BY received_at, coalesce(occurred_at, received_at), id
"""


def make(database: Database, rows: int, seed: int | None = None) -> None:
    with database.connect_sync() as connection:
        connection.execute(WORKFLOW_EVENTS)
        values = {"rows": rows, "seed": str(random.randrange(10**6) if seed is None else seed)}
        connection.execute(_FILL, values)


def order(database: Database) -> list[str]:
    """The keys of all rows in the order they must be recorded in."""
    with database.connect_sync() as connection:
        return [row[0] for row in connection.execute(_ORDER)]


def change(database: Database, *statements: str) -> None:
    with database.connect_sync() as connection:
        for statement in statements:
            connection.execute(statement.encode())


def count(database: Database) -> int:
    """How many rows came by a backfill."""
    with database.connect_sync() as connection:
        query = "SELECT count(*) FROM events WHERE idempotency_key LIKE 'workflow_events:%'"
        return int(connection.execute(query).fetchall()[0][0])


def recorded(database: Database) -> list[tuple[Any, ...]]:
    """Key, received_at and collection of every row that came by a backfill, in ledger order."""
    with database.connect_sync() as connection:
        return connection.execute(
            "SELECT idempotency_key, received_at, source_timestamp FROM events "
            "WHERE idempotency_key LIKE 'workflow_events:%' ORDER BY ingress_sequence"
        ).fetchall()
