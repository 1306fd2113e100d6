"""Ledgers of the reference model's events: written straight into Postgres, fast and in any shape, and read from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import groupby

from tests.model import Event
from tidelock.postgres.database import Database

_MODEL_COLUMNS = [field.name for field in fields(Event)]
_EVENT_COLUMNS = (
    "ingress_sequence, commit_id, source_timestamp, received_at, occurred_at, tenant_id, stream, customer_ref, "
    "resource_id, row_key, op, quantity, data, causality_key, correlation_id, causation_id, source, idempotency_key, "
    "target, target_sequence, reason, batch_id, content_hash"
)
_COMMIT_COLUMNS = "commit_id, first_sequence, last_sequence, last_source_timestamp, control, digest"


def write_ledger(
    database: Database, events: Sequence[Event], ends: Iterable[int] | None = None, *, commit_id: int = 1
) -> list[int]:
    """Record events; `ends` are the sequences that end commits, by default those that end collections.

    `commit_id` is that of the first, where the ledger is not empty.
    Gives the last sequences of the commits, control events being commits of their own.
    """
    by_sequence = {event.ingress_sequence: event for event in events}
    collections = [list(group) for _, group in groupby(events, key=lambda event: event.source_timestamp)]
    wanted = None if ends is None else set(ends)
    commits: list[list[Event]] = []
    open_commit: list[Event] = []
    for collection in collections:
        if collection[0].stream == "_tidelock" and open_commit:
            commits.append(open_commit)
            open_commit = []
        open_commit = [*open_commit, *collection]
        last = collection[-1].ingress_sequence
        if wanted is None or last in wanted or collection[0].stream == "_tidelock":
            commits.append(open_commit)
            open_commit = []
    if open_commit:
        commits.append(open_commit)
    with database.connect_sync(autocommit=False) as connection, connection.cursor() as cursor:
        with cursor.copy(f"COPY events ({_EVENT_COLUMNS}) FROM STDIN".encode()) as copy:
            for number, commit in enumerate(commits, start=commit_id):
                for e in commit:
                    copy.write_row(
                        (
                            e.ingress_sequence, number, e.source_timestamp, e.received_at, e.occurred_at, e.tenant_id,
                            e.stream, e.customer_ref, e.resource_id, e.row_key, e.op, e.quantity, e.data,
                            e.causality_key, e.correlation_id, e.causation_id, e.source, e.idempotency_key,
                            e.target, e.target_sequence, e.reason, e.batch_id, b"\0" * 32,
                        )
                    )  # fmt: skip
        with cursor.copy(b"COPY corrections (target_sequence, ingress_sequence) FROM STDIN") as copy:
            for event in events:
                if event.target_sequence is not None:
                    copy.write_row((event.target_sequence, event.ingress_sequence))
        with cursor.copy(f"COPY commits ({_COMMIT_COLUMNS}) FROM STDIN".encode()) as copy:
            for number, commit in enumerate(commits, start=commit_id):
                opening, closing = commit[0], commit[-1]
                control = opening.stream == "_tidelock"
                copy.write_row(
                    (
                        number,
                        opening.ingress_sequence,
                        closing.ingress_sequence,
                        closing.source_timestamp,
                        control,
                        b"\0" * 32,
                    )
                )
        newest = commits[-1][-1]
        cursor.execute(
            "UPDATE ledger_head SET ingress_sequence = %s, commit_id = %s, source_timestamp = %s",
            (newest.ingress_sequence, commit_id + len(commits) - 1, newest.source_timestamp),
        )
    assert len(by_sequence) == len(events)
    return [commit[-1].ingress_sequence for commit in commits]


def read_ledger(database: Database) -> list[Event]:
    """Everything that is recorded, whoever recorded it."""
    columns = ", ".join(f"{name}::text" if name == "data" else name for name in _MODEL_COLUMNS)
    with database.connect_sync() as connection:
        rows = connection.execute(f"SELECT {columns} FROM events ORDER BY ingress_sequence".encode())
        return [Event(**dict(zip(_MODEL_COLUMNS, row, strict=True))) for row in rows]
