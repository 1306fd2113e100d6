"""Usage: what a customer used by a meter, by period, and through which event of the ledger it is complete.

Everything in an answer is read from one snapshot of the database. Past states, as of a sequence, are computed from the
ledger.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from tidelock.definitions import Definitions, Meter
from tidelock.definitions.meters import PERIODS
from tidelock.durations import format_duration
from tidelock.errors import NotFound, RequestError
from tidelock.instants import format_instant
from tidelock.model import ALL_TENANTS
from tidelock.periods import period_end, period_start
from tidelock.postgres.queries import load
from tidelock.sections import shown
from tidelock.tables import COUNTER_GROUPS, COUNTERS
from tidelock.usage.figures import Buckets, Counted, has_corrections_sql, usage_sql
from tidelock.views.catalog import CatalogReader
from tidelock.views.rows import RowSelection, conditions, table_name
from tidelock.where import TRUE, Expression

_SELECT = sql.SQL(
    "SELECT period_start, {}, trim_scale(value)::text, trim_scale(total - value)::text, trim_scale(total)::text, "
    "watermark_ts FROM {} WHERE {} ORDER BY period_start, 2 NULLS FIRST LIMIT {}"
)

QUERIES = load("tidelock.usage", "sql/usage.sql")

# Compiling these long expressions takes longer than reading most slices; doubles are printed with their shortest
# digits.
_SESSION = "SET LOCAL jit = off; SET LOCAL extra_float_digits = 1"


class UsageItem(msgspec.Struct, frozen=True, rename="camel"):
    """Usage of a period: `total` is `value` plus late events, the `adjustment`."""

    period_start: str
    period_end: str
    group: str | None
    value: str | None
    adjustment: str | None
    total: str | None
    watermark: str | None


class Usage(msgspec.Struct, frozen=True, rename="camel"):
    """Usage of a customer by a meter. Complete through a sequence of the ledger; 0 before the fold's first run."""

    metric: str
    customer_ref: str
    aggregation: str
    period: str
    #: length of an item's period: the meter's, or the requested one
    window: str
    items: list[UsageItem]
    through_sequence: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requested usage: periods that overlap the half-open range."""

    tenant_id: str
    metric: str
    customer_ref: str
    since: int | None = None
    until: int | None = None
    #: length of an item's period; None: the meter's
    window: str | None = None
    grouped: bool = False
    #: as of this sequence
    as_of: int | None = None


async def read_usage(
    connection: psycopg.AsyncConnection[Any],
    catalog: CatalogReader,
    wanted: Wanted,
    *,
    items_max: int,
    timeout_ns: int,
) -> Usage:
    """Definition, rows and frontier of one snapshot. Raises NotFound for an undefined metric."""
    async with moment(connection, timeout_ns) as now:
        definitions = (await catalog.read(connection)).definitions
        meter = check_wanted(definitions, wanted)
        through = await frontier(connection, wanted.as_of)
        query: sql.Composed | bytes = usage_select(meter, wanted, limit=items_max + 1)
        if wanted.as_of is not None or _buckets(meter, wanted) is not None:
            every = Counted.of(definitions, meter, wanted.tenant_id, wanted.customer_ref, through)
            counted = await complete(connection, now, _counted(every, wanted))
            buckets = _buckets(meter, wanted)
            query = usage_sql(counted, grouped=wanted.grouped, limit=items_max + 1, buckets=buckets).encode()
        rows = await (await now.execute(query)).fetchall()
    if len(rows) > items_max:
        raise RequestError(f"this has more than {items_max} items; narrow it with from and to", field="from")
    window = wanted.window or meter.period
    items = [_item(window, *row) for row in rows]
    return Usage(
        metric=meter.name,
        customer_ref=wanted.customer_ref,
        aggregation=meter.aggregation,
        period=meter.period,
        window=window,
        items=items,
        through_sequence=through,
    )


def check_for_all(meter: Meter, wanted: Wanted) -> None:
    """Raises RequestError for what only the ledger's slice of one customer says."""
    if _buckets(meter, wanted) is not None:
        raise RequestError(
            f"{meter.name} is counted by {meter.period}; a window of one {wanted.window} is answered for one customer, "
            "from the ledger: name the customer, or leave out window",
            field="window",
        )


def meter_of(definitions: Definitions, metric: str) -> Meter:
    """Raises NotFound for an undefined metric."""
    meter = definitions.meters.get(metric)
    if meter is None:
        known = ", ".join(definitions.meters)
        there_are = f"available: {known}" if known else "none is defined, see [meters.NAME] in tidelock.toml"
        raise NotFound(f"there is no metric {shown(metric)}; {there_are}", field="metric")
    return meter


def check_wanted(definitions: Definitions, wanted: Wanted) -> Meter:
    """The meter. Raises NotFound, and RequestError for windows or groups that there are not."""
    meter = meter_of(definitions, wanted.metric)
    if wanted.window not in (None, *PERIODS):
        raise RequestError(f"window must be one of {', '.join(PERIODS)}", field="window")
    if wanted.grouped and not meter.group_by:
        raise RequestError(f"{meter.name} has no groups: it is defined without group_by", field="groupBy")
    return meter


def usage_select(meter: Meter, wanted: Wanted, *, limit: int, where: Expression = TRUE) -> sql.Composed:
    """Start, group, value, adjustment, total and watermark of the fold's counters."""
    since = None if wanted.since is None else period_start(meter.period, wanted.since)
    selection = RowSelection(
        COUNTER_GROUPS if wanted.grouped else COUNTERS,
        wanted.tenant_id,
        equal={"metric": meter.name, "customer_ref": wanted.customer_ref},
        between={"period_start": (since, wanted.until)},
        where=where,
    )
    group = sql.SQL("group_key" if wanted.grouped else "NULL::text")
    return _SELECT.format(group, table_name(selection.table), conditions(selection), sql.Literal(limit))


def _counted(every: Counted, wanted: Wanted) -> Counted:
    """The events of the meter's periods that overlap the request: whole ones, since they decide together."""
    period = every.meter.period
    buckets = _buckets(every.meter, wanted)
    since, until = (wanted.since, wanted.until) if buckets is None else (buckets.since, buckets.until)
    return replace(every, since=_start(period, since), until=_end(period, until))


def _buckets(meter: Meter, wanted: Wanted) -> Buckets | None:
    """The windows that overlap the request, where they are not the meter's periods."""
    window = wanted.window
    if window is None or window == meter.period:
        return None
    return Buckets(window, _start(window, wanted.since), _end(window, wanted.until))


def _start(period: str, since: int | None) -> int | None:
    return None if since is None else period_start(period, since)


def _end(period: str, until: int | None) -> int | None:
    return None if until is None else period_end(period, period_start(period, until - 1))


def _item(
    period: str,
    start: int,
    group: str | None,
    value: str | None,
    adjustment: str | None,
    total: str | None,
    watermark: int | None,
) -> UsageItem:
    return UsageItem(
        period_start=format_instant(start),
        period_end=format_instant(period_end(period, start)),
        group=group,
        value=value,
        adjustment=adjustment,
        total=total,
        watermark=None if watermark is None else format_instant(watermark),
    )


async def complete(connection: psycopg.AsyncConnection[Any], now: Moment, counted: Counted) -> Counted:
    """With what else decides about its events: closes, and whether there are corrections."""
    closes = await read_closes(connection, counted.meter, counted.tenant_id, counted.through)
    row = await (await now.execute(has_corrections_sql(counted).encode())).fetchone()
    return replace(counted, closes=closes, corrected=bool(row and row[0]))


async def read_closes(
    connection: psycopg.AsyncConnection[Any], meter: Meter, tenant_id: str, through: int
) -> tuple[tuple[int, int], ...]:
    """Sequences of a meter's closes that hold for a tenant, up to one, each with where open periods begin from then on;
    only those that moved it."""
    wanted = (tenant_id, ALL_TENANTS, meter.name, through)
    found: list[tuple[int, int]] = []
    for sequence, end in await (await connection.execute(QUERIES["closes"], wanted)).fetchall():
        bound = period_start(meter.period, end)
        if not found or bound > found[-1][1]:
            found.append((sequence, bound))
    return tuple(found)


class Moment:
    """A snapshot of the database, and how long it may be read."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], timeout_ns: int) -> None:
        self._connection = connection
        self._ends = time.monotonic_ns() + timeout_ns

    async def execute(self, query: sql.Composed | bytes) -> psycopg.AsyncCursor[Any]:
        """Raises QueryCanceled if no time is left."""
        await self.hurry()
        return await self._connection.execute(query, binary=True)

    async def hurry(self) -> None:
        """Limit the next statement to the remaining time. Raises QueryCanceled."""
        left_ms = (self._ends - time.monotonic_ns()) // 10**6
        if left_ms <= 0:
            raise psycopg.errors.QueryCanceled
        await self._connection.execute(f"SET LOCAL statement_timeout = {left_ms}".encode())


@asynccontextmanager
async def moment(connection: psycopg.AsyncConnection[Any], timeout_ns: int) -> AsyncIterator[Moment]:
    """Every query inside sees the same snapshot. Raises RequestError if they take longer than that, together."""
    try:
        async with connection.transaction():
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            await connection.execute(_SESSION)
            found = Moment(connection, timeout_ns)
            await found.hurry()
            yield found
    except psycopg.errors.QueryCanceled:
        raise RequestError(
            f"there are more events than can be read within {format_duration(timeout_ns)} (setting "
            "explain_timeout): raise it, or narrow the time"
        ) from None


async def frontier(connection: psycopg.AsyncConnection[Any], as_of: int | None) -> int:
    """The sequence that numbers are complete through: where the fold is, or before it. Raises RequestError."""
    row = await (await connection.execute(QUERIES["read_cursor"], ("fold",))).fetchone()
    through = int(row[0]) if row else 0
    if as_of is not None and not 1 <= as_of <= through:
        raise RequestError(
            f"asOf must be a sequence from 1 to {through}, through which the fold is complete", field="asOf"
        )
    return through if as_of is None else as_of
