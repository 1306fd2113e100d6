"""`bench ingest`: the HTTP path against raw COPY into the same tables, on a scratch ledger that is thrown away."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psycopg

from bench import load, scratch
from bench.harness import Say
from tidelock.definitions import Definitions
from tidelock.ingest.admit import Admission
from tidelock.ingest.body import JSON, decode
from tidelock.ingest.identity import Salts
from tidelock.instants import SECOND
from tidelock.ledger import rows
from tidelock.model import Event
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load as load_queries

QUERIES = load_queries("bench", "ingest.sql")

CONNECTIONS = 8
BATCH = 1000


@dataclass(slots=True)
class Figures:
    """What all rounds at one size of the ledger took."""

    ledger_events: int
    copy_events_per_s: list[float] = field(default_factory=list)
    batches: list[load.Measured] = field(default_factory=list)
    singles: list[load.Measured] = field(default_factory=list)

    def summary(self) -> dict[str, float | int]:
        copy = statistics.median(self.copy_events_per_s)
        batches = statistics.median(measured.events_per_s for measured in self.batches)
        singles = statistics.median(measured.events_per_s for measured in self.singles)
        return {
            "ledgerEvents": self.ledger_events,
            "copyEventsPerSecond": round(copy),
            "batchEventsPerSecond": round(batches),
            "batchRatioToCopy": round(batches / copy, 3),
            "batchP50Ms": round(statistics.median(m.percentile_ms(0.5) for m in self.batches), 2),
            "batchP99Ms": round(statistics.median(m.percentile_ms(0.99) for m in self.batches), 2),
            # The mean, for what a checkpoint costs afterwards must count: each page is logged whole once.
            "batchMicrosecondsPerEvent": round(self._mean_cost_us(), 2),
            "singleEventsPerSecond": round(singles),
            "singleP50Ms": round(statistics.median(m.percentile_ms(0.5) for m in self.singles), 2),
            "singleP99Ms": round(statistics.median(m.percentile_ms(0.99) for m in self.singles), 2),
        }

    def _mean_cost_us(self) -> float:
        return sum(m.seconds for m in self.batches) / sum(m.events for m in self.batches) * 1e6


def measure(
    sizes: Sequence[int],
    rounds: int,
    events_per_round: int,
    say: Say,
    *,
    config: Path | None = None,
    place: Path | None = None,
) -> list[dict[str, float | int]]:
    """Figures at each size of the ledger (0: as it is after start), which is made in `place`."""
    # Without the fold: it would fold on the processor time that is to be measured.
    alone = {"TIDELOCK_FOLD_ENABLED": "false"}
    with scratch.directory(place) as data, scratch.server(data, config, alone) as served:
        database = Database.open(None, data, None, {})
        try:
            bench = _Bench(database, served.host, served.port, say)
            bench.warm_up()
            return [bench.at_size(size, rounds, events_per_round) for size in sizes]
        finally:
            database.close()


class _Bench:
    def __init__(self, database: Database, host: str, port: int, say: Say) -> None:
        self._database = database
        self._host, self._port = host, port
        self._say = say
        self._sent = 0
        # A month back: no event of the run lies ahead of the ledger's clock.
        self._start = time.time_ns() - 30 * 24 * 3600 * SECOND

    def warm_up(self) -> None:
        """Caches, plans and the allocator."""
        self._copy(10 * BATCH)
        self._http(20, BATCH)
        self._http(200, 1)

    def at_size(self, size: int, rounds: int, events_per_round: int) -> dict[str, float | int]:
        self._grow(size)
        figures = Figures(self._head())
        for number in range(1, rounds + 1):
            copied = self._copy(events_per_round)
            batches = self._http(events_per_round // BATCH, BATCH)
            singles = self._http(max(events_per_round // 50, CONNECTIONS), 1)
            figures.copy_events_per_s.append(copied)
            figures.batches.append(batches)
            figures.singles.append(singles)
            self._say(
                f"  round {number}: COPY {copied:,.0f} ev/s, HTTP x{BATCH} {batches.events_per_s:,.0f} ev/s, "
                f"HTTP x1 {singles.events_per_s:,.0f} ev/s"
            )
        return figures.summary()

    def _http(self, requests: int, size: int) -> load.Measured:
        built = [load.request(self._host, self._next(size)) for _ in range(requests)]
        return asyncio.run(load.run(self._host, self._port, built, CONNECTIONS, size))

    def _next(self, count: int) -> list[dict[str, object]]:
        self._sent += count
        return load.sample_events(self._sent - count, count, start=self._start)

    def _copy(self, events: int) -> float:
        """The limit: the rows of such events, encoded beforehand, copied and committed a batch at a time."""
        with self._database.connect_sync(autocommit=False) as connection:
            head, commit_id = self._head(), self._commit_id()
            batches = [self._encoded(head + first, commit_id + 1 + first // BATCH) for first in range(0, events, BATCH)]
            connection.execute(QUERIES["lock_head"])
            connection.commit()
            started = time.perf_counter()
            for event_rows, identity_rows in batches:
                _copy(connection, f"COPY identities ({rows.IDENTITY_COLUMNS})", identity_rows)
                _copy(connection, f"COPY events ({rows.EVENT_COLUMNS})", event_rows)
                connection.commit()
            seconds = time.perf_counter() - started
            connection.execute(QUERIES["move_head"], [head + events, commit_id + events // BATCH])
        return events / seconds

    def _encoded(self, head: int, commit_id: int) -> tuple[bytes, bytes]:
        body = decode(msgspec.json.encode(self._next(BATCH)), JSON, BATCH)
        admission = Admission(Definitions(), Salts(("bench",), 1), True, 1 << 20, 64)
        event_rows, identity_rows = [], []
        for offset, wire in enumerate(body.events, start=1):
            event = admission.admit(wire)  # type: ignore[arg-type]  # all are events
            assert isinstance(event, Event)
            number, now = head + offset, time.time_ns()
            tail = rows.event_tail(event)
            digest = rows.tail_digest(tail)
            row, _ = rows.event_row(number, commit_id, now, now, event.occurred_at or 0, tail=tail, tail_digest=digest)
            event_rows.append(row)
            identity_rows.append(rows.identity_row(event.digests[0], number, event.content_hash, event.key_source))
        return (
            b"".join((rows.COPY_START, *event_rows, rows.COPY_END)),
            b"".join((rows.COPY_START, *identity_rows, rows.COPY_END)),
        )

    def _grow(self, size: int) -> None:
        """Fill the scratch ledger inside the database; such rows are for their weight only, the chain is not kept."""
        step = 500_000
        while (head := self._head()) < size:
            self._say(f"  growing the ledger: {head:,} of {size:,} events")
            with self._database.connect_sync(autocommit=False) as connection:
                last = min(head + step, size)
                connection.execute(QUERIES["grow_events"], {"first": head + 1, "last": last})
                connection.execute(QUERIES["grow_identities"], {"first": head + 1, "last": last})
                connection.execute(QUERIES["move_head"], [last, self._commit_id() + 1])
        with self._database.connect_sync() as connection:
            connection.execute("VACUUM ANALYZE identities")
            connection.execute("CHECKPOINT")

    def _head(self) -> int:
        return self._number("SELECT ingress_sequence FROM ledger_head")

    def _commit_id(self) -> int:
        return self._number("SELECT commit_id FROM ledger_head")

    def _number(self, query: str) -> int:
        with self._database.connect_sync() as connection:
            row = connection.execute(query.encode()).fetchone()
            assert row is not None
            return int(row[0])


def _copy(connection: psycopg.Connection[tuple[object, ...]], statement: str, encoded: bytes) -> None:
    with connection.cursor() as cursor, cursor.copy(f"{statement} FROM STDIN (FORMAT BINARY)".encode()) as copy:
        copy.write(encoded)
