"""A dry run: what importing a file would do, with the ledger's own decisions, and nothing recorded.

Rows are admitted and decided as the sequencer would, a round at a time, and what would be recorded goes into temporary
tables: the identities, so that a repeat in the file is found however far apart; the round's events, for the meters to
judge as `explain` does; and how far each counter's watermark would be. The database keeps all that, not this process.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import psycopg
from psycopg import sql

from tidelock.definitions import Meter, Stream
from tidelock.ingest.admit import Admission
from tidelock.ledger import rows as ledger_rows
from tidelock.ledger.commit import Collection, Commit, Known, decide
from tidelock.ledger.corrections import Correctable, named_targets
from tidelock.ledger.rows import KEY_SOURCES
from tidelock.ledger.salts import read_salts
from tidelock.ledger.writer import correctable, known_identities, known_targets
from tidelock.model import ALL_TENANTS, Conflict, Duplicate, Event, Head, Rejected
from tidelock.periods import period_start
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load
from tidelock.postgres.reconnect import database_errors
from tidelock.settings import Settings
from tidelock.sources.files.chunks import Defaults, FileChunk, chunks
from tidelock.sources.files.importing import (
    PROBLEMS_SHOWN,
    FileRows,
    ImportFile,
    ImportProgress,
    RowProblem,
    digest_of,
)
from tidelock.sources.files.order import SortRoom
from tidelock.tables import COUNTERS
from tidelock.usage import casts
from tidelock.usage.closing import read_standing
from tidelock.usage.figures import Counted
from tidelock.views.rows import table_name

QUERIES = load("tidelock.sources", "sql/dryrun.sql")

# This many chunks are decided and judged at a time: each round queries every meter once.
_CHUNKS_PER_ROUND = 20


@dataclass(slots=True)
class DryRun:
    """What an import would do."""

    rows: int = 0
    accepted: int = 0
    #: recorded already, and repeated within the file
    recorded: int = 0
    repeated: int = 0
    conflicts: int = 0
    #: by code
    rejected: Counter[str] = field(default_factory=Counter)
    #: control events of an export
    skipped: int = 0
    #: by meter: events that would be adjustments because they come too late, and because their period is closed
    late: Counter[str] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    #: the file is in order of time already
    sorted_already: bool = True
    #: the first of them
    problems: list[RowProblem] = field(default_factory=list)


class _OfAll(Counted):
    """The events of a round, of all customers."""

    def slice_sql(self, *, beyond: bool = False) -> str:
        return "customer_ref IS NOT NULL"


async def dry_run(
    file: ImportFile, database: Database, settings: Settings, room: SortRoom, progress: ImportProgress
) -> DryRun:
    """Raises SettingsError for a file that cannot be read, and Unreachable."""
    digest = await asyncio.to_thread(digest_of, file.path)
    rows = FileRows(file, room)
    try:
        await asyncio.to_thread(rows.sort, progress, lambda: False)
        progress.begin("trying")
        with database_errors("import"):
            async with await database.connect(name="tidelock import") as connection:
                rehearsal = _Rehearsal(connection, settings)
                await rehearsal.prepare()
                result = rehearsal.result
                result.sorted_already = rows.order is None or rows.order.sorted_already
                defaults = Defaults(digest, file.stream, file.tenant_id)
                read = chunks(rows.behind(0), settings.import_chunk_events, defaults)
                while batch := await asyncio.to_thread(lambda: list(islice(read, _CHUNKS_PER_ROUND))):
                    await rehearsal.round(batch)
                    progress.told(result.rows, rows.fraction(batch[-1].last))
                return result
    finally:
        rows.close()


class _Rehearsal:
    """Rounds of rows, decided one after the other as they would be recorded."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], settings: Settings) -> None:
        self._connection = connection
        self._settings = settings
        self._definitions = settings.definitions
        self._has_counters = False
        self.result = DryRun()

    async def prepare(self) -> None:
        """Read the ledger's head, and create the temporary tables."""
        await self._connection.execute(QUERIES["make_tables"])
        row = await (
            await self._connection.execute(QUERIES["read_stand"], [table_name(COUNTERS).as_string()])
        ).fetchone()
        assert row is not None, "ledger_head always has its one row"
        *head, self._now, self._has_counters = row
        self._head, self._salts = Head(*head), await read_salts(self._connection)
        self._standing = await read_standing(self._connection)

    async def round(self, batch: list[FileChunk]) -> None:
        collections = [await asyncio.to_thread(self._admitted, chunk) for chunk in batch]
        known = await known_identities(self._connection, collections)
        recorded = set(known)
        known |= await self._known_from_file(collections)
        targets = await known_targets(self._connection, collections, self._settings.commit_bytes_max)
        if targets or any(collection.corrections for collection in collections):
            targets = await self._with_the_file(targets, collections)
        commit = decide(collections, self._head, self._now, known, self._settings.future_tolerance, targets=targets)
        self._count(batch, collections, commit, recorded)
        if commit.event_rows:
            self._head = commit.head
            await self._keep(commit)
            for meter in self._definitions.meters.values():
                await self._judge(meter)

    def _admitted(self, chunk: FileChunk) -> Collection:
        opened = self._settings.streams_open is not False
        limits = self._settings.event_bytes_max, self._settings.data_depth_max
        admission = Admission(self._definitions, self._salts, opened, *limits, escapes=chunk.escapes)
        return Collection([e if isinstance(e, Rejected) else admission.admit(e) for e in chunk.events])

    async def _known_from_file(self, collections: list[Collection]) -> dict[bytes, Known]:
        """Identities of earlier rounds. Of those only the hashes are kept: the same content in other words differs."""
        digests = b"".join([digest for collection in collections for digest in collection.digests])
        cursor = self._connection.cursor(binary=True)
        await cursor.execute(QUERIES["known_from_file"], {"digests": digests})
        return {
            digest: Known(sequence, content, KEY_SOURCES[source])
            for digest, sequence, content, source in await cursor.fetchall()
        }

    async def _with_the_file(
        self, recorded: dict[bytes, Correctable], collections: list[Collection]
    ) -> dict[bytes, Correctable]:
        """What corrections name, recorded or in an earlier round, with what earlier rounds correct."""
        named = named_targets(event for collection in collections for event in collection.corrections)
        cursor = self._connection.cursor(binary=True)
        await cursor.execute(QUERIES["targets_from_file"], {"digests": b"".join(named)})
        found = recorded | {row[0]: correctable(row) for row in await cursor.fetchall()}
        sequences = [target.sequence for target in found.values()]
        corrected = await self._connection.execute(QUERIES["corrected_by_file"], [sequences])
        by = dict(await corrected.fetchall())
        return {
            digest: target._replace(corrected_by=by.get(target.sequence, target.corrected_by))
            for digest, target in found.items()
        }

    def _count(
        self, batch: list[FileChunk], collections: list[Collection], commit: Commit, recorded: set[bytes]
    ) -> None:
        result = self.result
        for chunk, collection, verdicts in zip(batch, collections, commit.verdicts, strict=True):
            result.rows += len(chunk.rows) + chunk.skipped
            result.skipped += chunk.skipped
            for row, event, verdict in zip(chunk.rows, collection.events, verdicts, strict=True):
                if isinstance(verdict, Duplicate):
                    assert isinstance(event, Event), "only events have an identity"
                    if any(digest in recorded for digest in event.digests):
                        result.recorded += 1
                    else:
                        result.repeated += 1
                elif isinstance(verdict, Rejected | Conflict):
                    if isinstance(verdict, Rejected):
                        result.rejected[verdict.error.code] += 1
                    else:
                        result.conflicts += 1
                    if len(result.problems) < PROBLEMS_SHOWN:
                        result.problems.append(RowProblem(row, verdict))
                else:
                    result.accepted += 1

    async def _keep(self, commit: Commit) -> None:
        await self._connection.execute(QUERIES["forget_round"])
        tables = [("dry_identities", ledger_rows.IDENTITY_COLUMNS, commit.identity_rows)]
        tables.append(("dry_corrections", ledger_rows.CORRECTION_COLUMNS, commit.correction_rows))
        tables.append(("dry_events", ledger_rows.EVENT_COLUMNS, commit.event_rows))
        for table, columns, encoded in tables:
            statement = f"COPY pg_temp.{table} ({columns}) FROM STDIN (FORMAT BINARY)"
            async with self._connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
                await copy.write(b"".join((ledger_rows.COPY_START, *encoded, ledger_rows.COPY_END)))

    async def _judge(self, meter: Meter) -> None:
        """Count the round's events that would be adjustments of a meter."""
        stream = self._definitions.streams.get(meter.stream) or Stream(meter.stream)
        judged = _OfAll(meter, stream, "", "", events="pg_temp.dry_events").judged_sql()
        stored = table_name(COUNTERS) if self._has_counters else sql.SQL("pg_temp.dry_counters")
        tenants, opens = self._open_from(meter)
        query = sql.SQL(QUERIES["judge_round"].decode()).format(
            judged=sql.SQL(judged),
            start=sql.SQL(casts.period_start(meter.period, "judged.occurred_at")),
            metric=meter.name,
            counters=stored,
            lateness=meter.lateness_ns,
            tenants=tenants,
            opens=opens,
            all_tenants=ALL_TENANTS,
        )
        row = await (await self._connection.execute(query)).fetchone()
        assert row is not None, "an aggregate without groups has one row"
        self.result.late[meter.name] += row[0]
        self.result.closed[meter.name] += row[1]

    def _open_from(self, meter: Meter) -> tuple[list[str], list[int]]:
        """Tenants that a meter is closed for, or all of them, and where the first open period of each begins."""
        closed = {} if self._standing is None else self._standing.closed
        found = {tenant: close.through for (metric, tenant), close in closed.items() if metric == meter.name}
        return list(found), [period_start(meter.period, through) for through in found.values()]
