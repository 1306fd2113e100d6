"""Retention: changes are kept for a while, and until every durable reader has read them."""

from __future__ import annotations

from typing import Any

import psycopg

from tidelock.postgres.queries import load

QUERIES = load("tidelock.changes", "sql/changes.sql")

# Segments removed by one statement: none holds its locks for long.
_BATCH = 1_000
_SEQUENCE_MAX = 2**63 - 2


def prune(connection: psycopg.Connection[Any], retention_ns: int, keep_after_sequence: int | None = None) -> int:
    """Remove segments older than the retention; returns how many.

    Never what a durable reader has not read, whose cursors are looked at here, nor ranges that end after
    `keep_after_sequence`.
    """
    keep_after = _SEQUENCE_MAX if keep_after_sequence is None else keep_after_sequence
    wanted = {"retention_us": retention_ns // 1_000, "keep_after": keep_after, "limit": _BATCH}
    removed = 0
    while True:
        row = connection.execute(QUERIES["prune"], wanted).fetchone()
        assert row is not None, "a count always has a row"
        if not row[0]:
            return removed
        removed += row[0]
