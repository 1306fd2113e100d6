"""Usage of every customer: page by page for the API, and in one stream, as an export, in bounded memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg import sql

from tidelock.definitions import Definitions, Meter
from tidelock.instants import format_instant
from tidelock.periods import period_end, period_start
from tidelock.tables import COUNTER_GROUPS, COUNTERS, SCHEMA
from tidelock.usage.usage import Wanted, check_for_all, check_wanted, frontier, meter_of, moment
from tidelock.views.catalog import CatalogReader
from tidelock.views.rows import RowSelection, conditions

#: rows that the driver hands over at a time
_CHUNK_ROWS = 2_000
_ORDER = sql.SQL("customer_ref, period_start, {group} NULLS FIRST")


class UsageRow(msgspec.Struct, frozen=True, rename="camel"):
    """What a customer used in a period."""

    customer_ref: str
    period_start: str
    period_end: str
    group: str | None
    value: str | None
    adjustment: str | None
    total: str | None
    watermark: str | None


class UsagePage(msgspec.Struct, frozen=True, rename="camel"):
    """What all customers used by a meter, by customer, period and group."""

    metric: str
    aggregation: str
    period: str
    items: list[UsageRow]
    next: str | None
    through_sequence: int


class Position(NamedTuple):
    """The last item of a page: customer, start of the period, group."""

    customer_ref: str
    period_start: int
    group: str | None


@dataclass(frozen=True, slots=True)
class Exported:
    """An item of an export, and what it is of."""

    metric: str
    tenant_id: str
    item: UsageRow


async def read_all_usage(
    connection: psycopg.AsyncConnection[Any],
    catalog: CatalogReader,
    wanted: Wanted,
    *,
    limit: int,
    after: Position | None,
    timeout_ns: int,
) -> tuple[UsagePage, Position | None]:
    """A page, and the position of its last item where there are more. Raises NotFound."""
    async with moment(connection, timeout_ns) as now:
        definitions = (await catalog.read(connection)).definitions
        meter = check_wanted(definitions, wanted)
        check_for_all(meter, wanted)
        through = await frontier(connection, None)
        rows = await (await now.execute(_select(meter, wanted, after=after, limit=limit + 1))).fetchall()
    more = len(rows) > limit
    items = [_item(meter, row) for row in rows[:limit]]
    last = Position(rows[limit - 1][0], rows[limit - 1][1], rows[limit - 1][2]) if more else None
    page = UsagePage(
        metric=meter.name,
        aggregation=meter.aggregation,
        period=meter.period,
        items=items,
        next=None,
        through_sequence=through,
    )
    return page, last


async def export_usage(
    connection: psycopg.AsyncConnection[Any],
    definitions: Definitions,
    wanted: Wanted,
    metrics: Sequence[str],
    schema: str = SCHEMA,
) -> AsyncIterator[Exported]:
    """Everything that is wanted of some meters, in the order of pages; everything is of one moment.

    `schema`: where the counters are, if not where the fold keeps them."""
    async with connection.transaction():
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        for metric in metrics:
            meter = meter_of(definitions, metric)
            if wanted.grouped and not meter.group_by:
                continue
            query = _select(meter, replace(wanted, metric=metric), schema=schema)
            async with connection.cursor(f"usage_{metric[:20]}") as cursor:
                cursor.itersize = _CHUNK_ROWS
                await cursor.execute(query)
                async for row in cursor:
                    yield Exported(metric, wanted.tenant_id, _item(meter, row))


async def count_usage(connection: psycopg.AsyncConnection[Any], schema: str = SCHEMA) -> int:
    """About how many counters there are: what an export's progress is measured by."""
    table = sql.Literal(f"{schema}.counters")
    query = sql.SQL("SELECT greatest(reltuples, 1)::bigint FROM pg_class WHERE oid = {}::regclass").format(table)
    row = await (await connection.execute(query)).fetchone()
    return int(row[0]) if row is not None else 1


def _select(
    meter: Meter, wanted: Wanted, *, after: Position | None = None, limit: int | None = None, schema: str = SCHEMA
) -> sql.Composed:
    table = COUNTER_GROUPS if wanted.grouped else COUNTERS
    since = None if wanted.since is None else period_start(meter.period, wanted.since)
    selection = RowSelection(
        table, wanted.tenant_id, equal={"metric": meter.name}, between={"period_start": (since, wanted.until)}
    )
    group = sql.SQL("group_key" if wanted.grouped else "NULL::text")
    beginning: sql.Composable = sql.SQL("true")
    if after is not None:
        beginning = sql.SQL(
            "customer_ref >= {c} AND (customer_ref, period_start, {group} IS NOT NULL, coalesce({group}, '')) > "
            "({c}, {start}, {some}, {text})"
        ).format(
            group=group,
            c=sql.Literal(after.customer_ref),
            start=sql.Literal(after.period_start),
            some=sql.Literal(after.group is not None),
            text=sql.Literal(after.group or ""),
        )
    return sql.SQL(
        "SELECT customer_ref, period_start, {group}, trim_scale(value)::text, trim_scale(total - value)::text, "
        "trim_scale(total)::text, watermark_ts FROM {table} WHERE {conditions} AND {beginning} ORDER BY {order} {limit}"
    ).format(
        group=group,
        table=sql.Identifier(schema, table.name),
        conditions=conditions(selection),
        beginning=beginning,
        order=_ORDER.format(group=group),
        limit=sql.SQL("") if limit is None else sql.SQL("LIMIT {}").format(sql.Literal(limit)),
    )


def _item(meter: Meter, row: Sequence[Any]) -> UsageRow:
    customer_ref, start, group, value, adjustment, total, watermark = row
    return UsageRow(
        customer_ref=customer_ref,
        period_start=format_instant(start),
        period_end=format_instant(period_end(meter.period, start)),
        group=group,
        value=value,
        adjustment=adjustment,
        total=total,
        watermark=None if watermark is None else format_instant(watermark),
    )


#: the columns of an export
COLUMNS = ("metric", "tenantId", "customerRef", "periodStart", "periodEnd", "group", "value", "adjustment", "total")


def cells(exported: Exported) -> Iterator[str | None]:
    """An item of an export, column by column."""
    item = exported.item
    yield from (exported.metric, exported.tenant_id, item.customer_ref, item.period_start, item.period_end)
    yield from (item.group, item.value, item.adjustment, item.total)
