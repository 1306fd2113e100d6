"""What a subscriber gets before it follows: a snapshot of its rows, or the changes since a time.

Both are backlogs in Arrow, which is small. Concurrent requests for the same share it, and only a bounded number are
read at a time: a thousand clients that come back at once must not cost the database a thousand connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Hashable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar, cast

import psycopg
import pyarrow as pa

from tidelock.arrow import arrow_type
from tidelock.changes.log import Frontier, LogCursor, read_page, read_state
from tidelock.changes.reader import changes_of, decimals_of, slices
from tidelock.errors import DefinitionChanged, ResumeExpired, SnapshotTooLarge
from tidelock.fold.statements import placed, quoted
from tidelock.postgres.pool import Flight
from tidelock.tables import KEY, SCHEMA, Table
from tidelock.views.prefilter import fits, prefilter_of
from tidelock.views.threads import Connection, Readers
from tidelock.views.views import View, ViewEvent
from tidelock.where import POSTGRES, TRUE, Expression, where_sql

# Rows may be large, so the memory of a snapshot is bounded as well.
_BYTES_MAX = 256 * 2**20
# Rows fetched from the driver at a time (one may have a MiB), and rows converted to Arrow at a time.
_CHUNK_ROWS, _BATCH_ROWS = 64, 256

# Slices whose events are kept, for subscribers that keep pace.
_KEPT = 4

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The rows that match a filter, and the position at which they were read."""

    frontier: Frontier
    #: of the definitions; None before the fold has ever run
    version: int | None
    #: rows as INSERTs, by source timestamp, key and tenant
    rows: Backlog


class Snapshots:
    """Reads them."""

    def __init__(self, readers: Readers, *, rows_max: int) -> None:
        self._readers = readers
        self._rows_max = rows_max
        self._shared: Shared[Snapshot] = Shared()

    def join(self, key: Hashable, table: Table, expression: Expression) -> Share[Snapshot]:
        """The current rows, or those of a moment ago if they are already being read for the same key.

        Its result raises SnapshotTooLarge, and DefinitionChanged if the table no longer exists.
        """
        work = partial(_read_snapshot, table=table, expression=expression, rows_max=self._rows_max)
        return self._shared.join(key, lambda: self._readers.insist(work))

    async def close(self) -> None:
        await self._shared.close()


def _read_snapshot(connection: Connection, table: Table, expression: Expression, rows_max: int) -> Snapshot:
    try:
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            # Locked before anything is read: a table that changes shape meanwhile would seem empty.
            connection.execute(f"LOCK TABLE {placed(SCHEMA, table.name)} IN ACCESS SHARE MODE".encode())
            seen = read_state(connection)
            rows = _rows(connection, table, expression, rows_max)
    except psycopg.errors.UndefinedTable:
        return _unmade(connection, table)
    except psycopg.errors.QueryCanceled:
        raise _too_large("reading them takes too long") from None
    return Snapshot(seen.frontier, seen.version, Backlog(rows, partial(_inserts_of, table)))


def _unmade(connection: Connection, table: Table) -> Snapshot:
    """Declared, and created by the fold when it first runs; or gone."""
    seen = read_state(connection)
    if seen.version is not None:
        raise DefinitionChanged(f"table {table.name} no longer exists")
    return Snapshot(seen.frontier, None, Backlog([], partial(_inserts_of, table)))


def _rows(connection: Connection, table: Table, expression: Expression, rows_max: int) -> list[pa.Table]:
    """The rows in Arrow, as `_inserts_of` takes them. Converted a few at a time, so that others get a turn."""
    schema = _stored_schema(table)
    batches, count, size = [], 0, 0
    select = _select(table, expression, rows_max + 1).encode()
    stream = connection.cursor().stream(select, binary=True, size=_CHUNK_ROWS)
    # Closed at once when it is left early, and the query with it.
    with closing(cast("Generator[Any]", stream)):
        while rows := list(islice(stream, _BATCH_ROWS)):
            columns = zip(zip(*rows, strict=True), schema.types, strict=True)
            batches.append(pa.record_batch([pa.array(values, type_) for values, type_ in columns], schema))
            count, size = count + len(rows), size + batches[-1].nbytes
            if count > rows_max:
                raise _too_large(f"there are more than {rows_max} (setting live_snapshot_rows_max)")
            if size > _BYTES_MAX:
                raise _too_large(f"they have more than {_BYTES_MAX >> 20} MiB")
    return [pa.Table.from_batches(batches, schema)]


def _select(table: Table, expression: Expression, limit: int) -> str:
    # Arrow gets strings for these types, as for those stored by the fold.
    shown = [
        f"{quoted(name)}::text AS {quoted(name)}" if type_.name in ("decimal", "json") else quoted(name)
        for name, type_ in table.columns.items()
    ]
    where = "" if expression == TRUE else f" WHERE {where_sql(expression, POSTGRES)}"
    return (
        f"SELECT tenant_id, {quoted(KEY)}, source_timestamp, {', '.join(shown)} "
        f"FROM {placed(SCHEMA, table.name)}{where} "
        f"ORDER BY source_timestamp, {quoted(KEY)}, tenant_id LIMIT {limit}"
    )


def _stored_schema(table: Table) -> pa.Schema:
    """Stored rows in transit: decimals are strings."""
    meta = [("tenant_id", pa.string()), (KEY, pa.string()), ("source_timestamp", pa.int64())]
    types = {
        name: pa.string() if type_.name == "decimal" else arrow_type(type_) for name, type_ in table.columns.items()
    }
    return pa.schema([*meta, *types.items()])


def _inserts_of(table: Table, batch: pa.RecordBatch) -> list[ViewEvent]:
    """Stored rows, with `tenant_id`, key and source timestamp, as INSERTs for a new subscriber."""
    fields = tuple(table.columns)
    keys, times = (batch.column(name).to_pylist() for name in (KEY, "source_timestamp"))
    names = ("tenant_id", *fields)
    values = [batch.column("tenant_id").to_pylist()]
    for name, type_ in table.columns.items():
        found = batch.column(name).to_pylist()
        values.append(decimals_of(found) if type_.name == "decimal" else found)
    rows = [dict(zip(names, each, strict=True)) for each in zip(*values, strict=True)]
    return [
        ViewEvent(row["tenant_id"], key, "INSERT", fields, row, source_timestamp=time)
        for key, time, row in zip(keys, times, rows, strict=True)
    ]


def _too_large(why: str) -> SnapshotTooLarge:
    return SnapshotTooLarge(f"the snapshot is too large: {why}; narrow the filter", field="where")


@dataclass(frozen=True, slots=True)
class Caught:
    """Some past changes, as events of a view."""

    events: Backlog
    #: where the next ones begin; None: these were the last
    cursor: LogCursor | None


class Catchups:
    """Reads them page by page: no database resource is held while a client takes its time."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._shared: Shared[Caught] = Shared()

    def join(self, view: View, cursor: LogCursor, *, after: int, through: int) -> Share[Caught]:
        """Events of a view after a cursor in the log, above a source timestamp and through a sequence of the fold.

        Some before that time may be included. Its result raises ResumeExpired.
        """
        work = partial(_read_changes, view=view, cursor=cursor, after=after, through=through)
        return self._shared.join((view, cursor, after, through), lambda: self._readers.insist(work))

    async def close(self) -> None:
        await self._shared.close()


def _read_changes(connection: Connection, view: View, cursor: LogCursor, after: int, through: int) -> Caught:
    prefilter = prefilter_of(view.expression)

    def seen(_: str, changes: pa.Table) -> pa.Table:
        if not fits(changes, view.table):
            raise ResumeExpired(
                f"the definition of {view.table.name} was changed after {after}; take a new snapshot",
                field="after",
            )
        return prefilter.apply(changes)

    page = read_page(connection, [view.table.name], cursor, after=after, through=through, seen=seen)
    return Caught(Backlog([each.changes for each in page.changes], partial(_events, view)), page.cursor)


def _events(view: View, batch: pa.RecordBatch) -> list[ViewEvent]:
    events = map(view.event_of, changes_of(view.table.name, batch))
    return [event for event in events if event is not None]


class Backlog:
    """Rows or past changes in Arrow, as events in the order of their source timestamps.

    Events are created a few at a time as they are taken. Subscribers that share a backlog and keep pace also share the
    events and their encodings; for one that lags they are created again, so nothing is kept for it.
    """

    def __init__(self, rows: Iterable[pa.Table], make: Callable[[pa.RecordBatch], list[ViewEvent]]) -> None:
        self._slices = [part for table in rows for part in slices(table)]
        self._make = make
        self._made: dict[int, list[ViewEvent]] = {}

    def __len__(self) -> int:
        """How many slices it has."""
        return len(self._slices)

    def slice(self, number: int) -> list[ViewEvent]:
        """Its events, created in a few milliseconds; may be none."""
        if (events := self._made.get(number)) is None:
            events = self._made[number] = self._make(self._slices[number])
            if len(self._made) > _KEPT:
                del self._made[next(iter(self._made))]
        return events


class BacklogCursor:
    """The position of one subscriber in a backlog."""

    def __init__(self, backlog: Backlog, *, after: int) -> None:
        """Events up to a source timestamp are skipped: the subscriber has them."""
        self._backlog = backlog
        self._after = after
        self._slice = 0
        self._events: list[ViewEvent] = []

    def take(self, limit: int) -> list[ViewEvent] | None:
        """The next events, of one slice; None: all were taken."""
        if not self._events:
            if self._slice == len(self._backlog):
                return None
            made = self._backlog.slice(self._slice)
            self._slice += 1
            self._events = [event for event in made if event.source_timestamp > self._after]
        taken, self._events = self._events[:limit], self._events[limit:]
        return taken


class Share(Generic[V]):
    """A share in running work. Every holder leaves once; when the last one leaves, the work is cancelled."""

    def __init__(self, work: _Work[V]) -> None:
        self._work: _Work[V] | None = work
        work.shares += 1

    async def result(self) -> V:
        """Waits for the result. May be called again, even after a cancelled wait."""
        assert self._work is not None, "nothing is asked for after leaving"
        return await self._work.result()

    def leave(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.shares -= 1
            if not work.shares:
                work.task.cancel()


class _Work(Flight[V]):
    #: number of holders
    shares = 0


class Shared(Generic[V]):
    """Running work, by key."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, _Work[V]] = {}
        self._tasks: set[asyncio.Task[V]] = set()

    def join(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, V]]) -> Share[V]:
        """A share of the work with this key, which is started if it is not running."""
        work = self._under_way.get(key)
        if work is None or not work.shares:
            work = self._under_way[key] = _Work(begin())
            self._tasks.add(work.task)
            work.task.add_done_callback(lambda task: self._done(key, task))
        return Share(work)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, key: Hashable, task: asyncio.Task[V]) -> None:
        self._tasks.discard(task)
        if (work := self._under_way.get(key)) is not None and work.task is task:
            del self._under_way[key]
