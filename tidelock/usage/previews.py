"""Previews: what a revert of a batch would make of every counter, from the ledger and the fold's own decisions.

A meter's definition says which events it counts, as in `figures`. The adjustments that the fold has written say whether
an event was folded or adjusted, and whether a correction came in time. A void moves no watermark, so the order of the
voids does not matter, and each is judged by the counter as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import psycopg

from tidelock.definitions import Definitions, Meter, Stream
from tidelock.errors import RequestError, Unreachable
from tidelock.instants import format_instant
from tidelock.model import ALL_TENANTS
from tidelock.periods import period_end, period_start
from tidelock.postgres.queries import load
from tidelock.usage import casts
from tidelock.usage.batches import LEFT_LISTED_MAX, Left, WantedRevert, batch_events, batch_size
from tidelock.usage.casts import average
from tidelock.usage.figures import Counted
from tidelock.usage.usage import Moment, frontier, moment
from tidelock.views.catalog import CatalogReader

QUERIES = load("tidelock.usage", "sql/batches.sql")

_PAGE = 10_000
#: a void is subtracted, so the other events of the counter need not be read
_SUBTRACTED = ("sum", "count")


class CounterPreview(msgspec.Struct, frozen=True, rename="camel"):
    """A counter before and after a revert."""

    metric: str
    tenant_id: str
    customer_ref: str
    period_start: str
    period_end: str
    #: how many of its events would be void
    events: int
    value: str | None
    value_after: str | None
    total: str | None
    total_after: str | None


class RevertPreview(msgspec.Struct, frozen=True, rename="camel"):
    """What a revert would do."""

    batch_id: str
    events: int
    #: how many events would be voided, and how many are void already
    voids: int
    duplicates: int
    left_count: int
    left: list[Left]
    #: as of this sequence
    through_sequence: int
    counters: list[CounterPreview]


@dataclass(slots=True)
class _Taken:
    """The events that would be voided, and what else a revert would do."""

    #: of the batch
    events: int
    sequences: list[int] = field(default_factory=list)
    streams: set[str] = field(default_factory=set)
    duplicates: int = 0
    left_count: int = 0
    left: list[Left] = field(default_factory=list)


async def preview_revert(
    connection: psycopg.AsyncConnection[Any],
    catalog: CatalogReader,
    declared: Definitions,
    wanted: WantedRevert,
    *,
    counters_max: int | None,
    timeout_ns: int,
) -> RevertPreview:
    """All figures are of one moment. `declared`: the definitions by which the intake decides what may be voided.

    Raises NotFound without such a batch, Unreachable while the fold is not at the end of it, RequestError if there are
    too many counters.
    """
    async with moment(connection, timeout_ns) as now:
        # The planner has no statistics of the steps, and a wrong guess makes it join everything with everything by
        # nested loops. What is to be looked up in an index is a LATERAL, which is one in any case.
        await connection.execute(b"SET LOCAL enable_nestloop = off")
        definitions = (await catalog.read(connection)).definitions
        through = await frontier(connection, None)
        taken = await _taken(now, connection, declared, wanted, through)
        counters: list[CounterPreview] = []
        for meter in definitions.meters.values():
            if meter.stream not in taken.streams:
                continue
            sliced = _Sliced(meter, definitions.streams.get(meter.stream) or Stream(meter.stream), taken.sequences)
            counters += await sliced.preview(now, connection, through)
            if counters_max is not None and len(counters) > counters_max:
                raise RequestError(
                    f"this revert changes more than {counters_max:,} counters; `tidelock revert BATCH --preview` "
                    "shows all of them",
                    field="batchId",
                )
    return RevertPreview(
        batch_id=wanted.batch_id,
        events=taken.events,
        voids=len(taken.sequences),
        duplicates=taken.duplicates,
        left_count=taken.left_count,
        left=taken.left,
        through_sequence=through,
        counters=counters,
    )


async def _taken(
    now: Moment, connection: psycopg.AsyncConnection[Any], declared: Definitions, wanted: WantedRevert, through: int
) -> _Taken:
    size = await batch_size(connection, wanted)
    taken, after, needed = _Taken(size.events), 0, size.last_sequence
    while after < size.last_sequence:
        await now.hurry()
        page = await batch_events(connection, wanted, declared, after=after, through=size.last_sequence, limit=_PAGE)
        taken.sequences.extend(each.ingress_sequence for each in page.voidable)
        taken.streams.update(each.stream for each in page.voidable)
        taken.left.extend(page.left[: LEFT_LISTED_MAX - len(taken.left)])
        taken.left_count += len(page.left)
        taken.duplicates += page.void
        needed, after = max(needed, page.last_correction), page.last
    if needed > through:
        raise Unreachable(
            f"the fold is at sequence {through:,}, and this batch with its corrections ends at {needed:,}: wait until "
            "the fold is there (`tidelock status`), or run `tidelock fold --once`"
        )
    return taken


@dataclass(frozen=True, slots=True)
class _SlicedEvents(Counted):
    """Events that were selected already, of any customer."""

    def slice_sql(self, *, beyond: bool = False) -> str:
        return "TRUE"


@dataclass(frozen=True, slots=True)
class _Sliced:
    """The counters of one meter that a revert touches."""

    meter: Meter
    stream: Stream
    leaving: list[int]

    async def preview(
        self, now: Moment, connection: psycopg.AsyncConnection[Any], through: int
    ) -> list[CounterPreview]:
        given: dict[str, Any] = {"leaving": self.leaving, "metric": self.meter.name, "stream": self.meter.stream}
        rows = await _rows(now, connection, self._touched_sql(), given)
        if not rows:
            return []
        closed = await self._closed(connection)
        period = self.meter.period
        tenants, customers, starts, counts = map(list, zip(*rows, strict=True))
        given |= {
            "tenants": tenants,
            "customers": customers,
            "starts": starts,
            "ends": [period_end(period, start) for start in starts],
            "counts": counts,
            "closed": [self._is_closed(closed, tenant, start) for tenant, start in zip(tenants, starts, strict=True)],
            "through": through,
        }
        found = await _rows(now, connection, self._counters_sql(), given)
        return [
            CounterPreview(
                self.meter.name,
                tenant,
                customer,
                format_instant(start),
                format_instant(period_end(period, start)),
                *rest,
            )
            for tenant, customer, start, *rest in found
        ]

    async def _closed(self, connection: psycopg.AsyncConnection[Any]) -> Mapping[str, int]:
        """The end through which the meter is closed, by tenant or for all of them."""
        rows = await (await connection.execute(QUERIES["closed"], {"metric": self.meter.name})).fetchall()
        return dict(rows)

    def _is_closed(self, closed: Mapping[str, int], tenant_id: str, start: int) -> bool:
        ends = [closed[place] for place in (tenant_id, ALL_TENANTS) if place in closed]
        return bool(ends) and period_start(self.meter.period, max(ends)) > start

    def _judged_sql(self) -> str:
        """Every event of `sliced` that the meter counts."""
        judged = _SlicedEvents(self.meter, self.stream, "", "", events="sliced").judged_sql()
        start = casts.period_start(self.meter.period, "judged.occurred_at")
        # It becomes part of a query with parameters.
        judged, start = judged.replace("%", "%%"), start.replace("%", "%%")
        text = "judged.text" if self.meter.distinct else "NULL::text"
        return f"""
            SELECT judged.ingress_sequence, judged.occurred_at, judged.quantity, {text} AS value_text, sliced.tenant_id,
                sliced.customer_ref, {start} AS period_start
            FROM ({judged}) AS judged JOIN sliced USING (ingress_sequence) WHERE aside IS NULL"""

    def _touched_sql(self) -> str:
        return f"""
            WITH sliced AS MATERIALIZED ({_LEAVING})
            SELECT tenant_id, customer_ref, period_start, count(*) FROM ({self._judged_sql()}) AS judged
            GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""

    def _counters_sql(self) -> str:
        """Tenant, customer, period, events; value now and then; total now and then, as texts."""
        subtracted = self.meter.aggregation in _SUBTRACTED
        value_after, total_after = self._subtracted() if subtracted else self._aggregated()
        figures = ("counters.value", value_after, "counters.total", total_after)
        return f"""
            WITH touched AS (
                SELECT * FROM unnest(%(tenants)s::text[], %(customers)s::text[], %(starts)s::bigint[],
                    %(ends)s::bigint[], %(counts)s::bigint[], %(closed)s::boolean[])
                    AS of (tenant_id, customer_ref, period_start, period_end, events, closed)
            ), sliced AS MATERIALIZED ({_LEAVING if subtracted else _OF_COUNTERS}),
            adjusted AS MATERIALIZED (
                SELECT it.ingress_sequence FROM touched CROSS JOIN LATERAL (
                    SELECT ingress_sequence FROM tidelock_tables.adjustments AS late
                    WHERE late.tenant_id = touched.tenant_id AND late.metric = %(metric)s
                        AND late.customer_ref = touched.customer_ref AND late.period_start = touched.period_start
                    OFFSET 0
                ) AS it
            ), placed AS MATERIALIZED (
                SELECT counted.*, leaving.sequence IS NOT NULL AS leaves,
                    corrected.ingress_sequence IS NULL AS in_total,
                    apart.ingress_sequence IS NULL AS folded,
                    apart.ingress_sequence IS NULL
                        AND (corrected.ingress_sequence IS NULL OR too_late.ingress_sequence IS NOT NULL) AS in_value
                FROM ({self._judged_sql()}) AS counted
                LEFT JOIN unnest(%(leaving)s::bigint[]) AS leaving (sequence) ON sequence = counted.ingress_sequence
                LEFT JOIN adjusted AS apart ON apart.ingress_sequence = counted.ingress_sequence
                LEFT JOIN corrections AS corrected ON corrected.target_sequence = counted.ingress_sequence
                    AND corrected.ingress_sequence <= %(through)s
                LEFT JOIN adjusted AS too_late ON too_late.ingress_sequence = corrected.ingress_sequence
            ), left_out AS MATERIALIZED (
                SELECT placed.*, leaves AND folded AND NOT touched.closed
                    AND occurred_at >= watermark_ts - {self.meter.lateness_ns}::numeric AS in_time
                FROM placed JOIN touched USING (tenant_id, customer_ref, period_start)
                JOIN tidelock_tables.counters USING (tenant_id, customer_ref, period_start) WHERE metric = %(metric)s
            )
            SELECT tenant_id, customer_ref, period_start, max(touched.events),
                {", ".join(f"trim_scale({figure})::text" for figure in figures)}
            FROM touched JOIN tidelock_tables.counters USING (tenant_id, customer_ref, period_start)
            JOIN left_out USING (tenant_id, customer_ref, period_start)
            WHERE counters.metric = %(metric)s
            GROUP BY tenant_id, customer_ref, period_start, counters.value, counters.total
            ORDER BY tenant_id, customer_ref, period_start"""

    def _subtracted(self) -> Sequence[str]:
        what = "count(*)" if self.meter.aggregation == "count" else "sum(quantity)"
        return [
            f"counters.{figure} - coalesce({what} FILTER (WHERE {condition}), 0)"
            for figure, condition in (("value", "in_time"), ("total", "leaves"))
        ]

    def _aggregated(self) -> Sequence[str]:
        return [
            self._aggregate(condition)
            for condition in ("in_value AND NOT coalesce(in_time, FALSE)", "in_total AND NOT leaves")
        ]

    def _aggregate(self, condition: str) -> str:
        of = f"FILTER (WHERE {condition})"
        match self.meter.aggregation:
            case "avg":
                return average(f"coalesce(sum(quantity) {of}, 0)", f"(count(*) {of})")
            case "last":
                return f"(max(ARRAY[occurred_at, ingress_sequence, quantity]::numeric[]) {of})[3]"
            case "unique_count":
                return f"(count(DISTINCT value_text) {of})::numeric"
        return f"{self.meter.aggregation}(quantity) {of}"


#: the events that would be voided, and all of those counters that they are in
_LEAVING = """
    SELECT it.* FROM unnest(%(leaving)s::bigint[]) AS leaving (sequence)
    CROSS JOIN LATERAL (SELECT * FROM events WHERE ingress_sequence = sequence OFFSET 0) AS it
    WHERE stream = %(stream)s AND customer_ref IS NOT NULL"""
_OF_COUNTERS = """
    SELECT it.* FROM touched CROSS JOIN LATERAL (
        SELECT * FROM events WHERE events.tenant_id = touched.tenant_id AND stream = %(stream)s
            AND events.customer_ref = touched.customer_ref
            AND occurred_at >= touched.period_start AND occurred_at < touched.period_end
        OFFSET 0
    ) AS it
    WHERE op <> 'void' AND ingress_sequence <= %(through)s"""


async def _rows(
    now: Moment, connection: psycopg.AsyncConnection[Any], query: str, given: Mapping[str, Any]
) -> Sequence[Any]:
    await now.hurry()
    return await (await connection.execute(query.encode(), given, binary=True)).fetchall()
