"""What does it cost to keep identities in a table of their own? Run: .venv/bin/python -m bench.second_table

Copies the same rows, 1,000 a transaction, in turns: into `events` and `identities` as they are; into `events` alone
(no duplicate is found: a floor); and into one table that has the digest as a column with a unique index, which could
not be partitioned by sequence.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path

import psycopg

from tidelock.ledger import rows
from tidelock.postgres.database import Database
from tidelock.postgres.migrate import migrate

BATCH = 1000
BATCHES = 50
ROUNDS = 5

ONE_TABLE = """
CREATE TABLE one_table (LIKE events INCLUDING DEFAULTS, digest bytea NOT NULL UNIQUE, PRIMARY KEY (ingress_sequence));
CREATE INDEX ON one_table (tenant_id, stream, customer_ref, occurred_at);
CREATE INDEX ON one_table (causality_key, ingress_sequence) WHERE causality_key IS NOT NULL;
"""


def field(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


def tail(number: int) -> bytes:
    null = b"\xff" * 4
    data = b'{"region":"eu","path":"/v1/things","status":200,"ms":%d}' % (number % 977)
    customer = b"cus_%d" % (number % 10_000)
    key = os.urandom(32).hex().encode()[:43]
    texts = [field(b"acme"), field(b"api_calls"), field(customer), null, null, field(b"upsert"), null, field(data)]
    since = [null] * 4
    return b"".join([*texts, null, null, null, field(b"sdk"), field(key), field(b"d"), field(os.urandom(32)), *since])


def row(number: int, commit_id: int) -> bytes:
    end = tail(number)
    digest = rows.tail_digest(end)
    return rows.event_row(number, commit_id, number, number, number * 1_000_000, tail=end, tail_digest=digest)[0]


def copy(connection: psycopg.Connection, statement: str, encoded: list[bytes]) -> None:
    with connection.cursor() as cursor, cursor.copy(f"COPY {statement} FROM STDIN (FORMAT BINARY)".encode()) as copying:
        copying.write(b"".join([rows.COPY_START, *encoded, rows.COPY_END]))


def run(connection: psycopg.Connection, way: str, first: int) -> float:
    batches = []
    for start in range(first, first + BATCH * BATCHES, BATCH):
        numbers = range(start, start + BATCH)
        events = [row(n, start) for n in numbers]
        digests = [os.urandom(16) for _ in numbers]
        identities = [rows.identity_row(d, n, bytes(32), "derived") for d, n in zip(digests, numbers, strict=True)]
        one = [(26).to_bytes(2, "big") + e[2:] + field(d) for e, d in zip(events, digests, strict=True)]
        batches.append((events, identities, one))
    started = time.perf_counter()
    for events, identities, one in batches:
        if way == "one table":
            copy(connection, f"one_table ({rows.EVENT_COLUMNS}, digest)", one)
        else:
            if way == "two tables":
                copy(connection, f"identities ({rows.IDENTITY_COLUMNS})", identities)
            copy(connection, f"events ({rows.EVENT_COLUMNS})", events)
        connection.commit()
    return (time.perf_counter() - started) / (BATCH * BATCHES) * 1e6


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o755)
        with Database.open(None, Path(scratch), None, {}) as database:
            with database.connect_sync() as connection:
                migrate(connection)
                connection.execute("SELECT ensure_events_partition(1, 10000000)")
                connection.execute(ONE_TABLE)
            taken: dict[str, list[float]] = {"two tables": [], "events alone": [], "one table": []}
            number = 1
            with database.connect_sync(autocommit=False) as connection:
                for _ in range(ROUNDS):
                    for way, figures in taken.items():
                        figures.append(run(connection, way, number))
                        number += BATCH * BATCHES
            for way, figures in taken.items():
                print(f"{way:14} {statistics.median(figures):5.1f} µs per event")


main()
