"""Figures of a counter, as SQL for Postgres: the part of each event, and their sums.

Each event of a slice has a part: counted on time, late, an error, filtered or a removal, decided as in the fold. The
fold's rules are applied to the ledger again, so that an answer needs no row of the fold's tables and works for any
sequence. Steps are nested subqueries that end with OFFSET 0: each expression is computed once, and rows flow through.
The figures sum the parts, all together or event by event.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tidelock.definitions import Definitions, Meter, Stream
from tidelock.fold.meters import missing_quantity
from tidelock.fold.streams import VALUE_CHARACTERS_MAX, StreamSql, no_instant, slots_of, sql_text
from tidelock.periods import period_end
from tidelock.usage import casts
from tidelock.usage.casts import average
from tidelock.where.sql import POSTGRES, where_sql

#: why an event is an error here; an event without a customer is in no slice
CODES = ("invalid_column", "invalid_event_time", "missing_quantity")

#: the figures of one part, in their order
OF_PART = ("count", "sum", "max", "min", "last", "watermark", "first", "final")
_FOLDED = "part = 'folded'"
_ADJUSTED = "part = 'adjusted'"
_COUNTED = "part IN ('folded', 'adjusted')"
# The last by (occurred_at, ingress_sequence): arrays are compared member by member.
_LAST = "ARRAY[occurred_at, ingress_sequence, quantity]::numeric[]"


@dataclass(frozen=True, slots=True)
class Counted:
    """The events of one customer that are candidates for a meter's counters."""

    meter: Meter
    #: as declared, or only its name
    stream: Stream
    tenant_id: str
    customer_ref: str
    #: occurred_at, half-open
    since: int | None = None
    until: int | None = None
    #: last sequence
    through: int = 0
    #: the table to read
    events: str = "events"
    #: sequences of closes, and where open periods begin from then on, both rising
    closes: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, definitions: Definitions, meter: Meter, tenant_id: str, customer_ref: str, through: int) -> Counted:
        stream = definitions.streams.get(meter.stream) or Stream(meter.stream)
        return cls(meter, stream, tenant_id, customer_ref, through=through)

    def slice_sql(self, *, beyond: bool = False) -> str:
        """The condition on events, in the order of the index; `beyond`: those above the last sequence instead."""
        return " AND ".join(self._conditions(beyond))

    def _conditions(self, beyond: bool) -> Iterator[str]:
        yield f"tenant_id = {sql_text(self.tenant_id)}"
        yield f"stream = {sql_text(self.meter.stream)}"
        yield f"customer_ref = {sql_text(self.customer_ref)}"
        if self.since is not None:
            yield f"occurred_at >= {self.since}"
        if self.until is not None:
            yield f"occurred_at < {self.until}"
        yield f"ingress_sequence {'>' if beyond else '<='} {self.through}"

    def judged_sql(self, *, order: str = "") -> str:
        """One row per event: `aside` is why it is not counted, null if it is; code and message describe errors."""
        meter = self.meter
        streams = {self.stream.name: self.stream}
        # Event time decides windows; a meter only uses occurred_at.
        slots = replace(slots_of(Definitions(streams, {meter.name: meter})), timed={})
        columns = StreamSql(self.stream, slots, POSTGRES, casts)
        decoded = ", ".join(["*", *columns.decoded()])
        matches = "TRUE" if meter.where is None else where_sql(meter.where, POSTGRES, columns.as_type)
        group = f"{columns.joined(meter.group_by)}" if meter.group_by else "NULL::text"
        return f"""
            SELECT ingress_sequence, occurred_at, aside, CASE WHEN aside IS NULL THEN quantity END AS quantity,
                CASE WHEN objection IS NULL THEN group_key END AS group_key,
                CASE WHEN aside = 'error' THEN {self._code_sql()} END AS code,
                CASE WHEN aside = 'error'
                    THEN coalesce(objection{self._value_sql()}, {sql_text(missing_quantity(meter))}) END AS message
            FROM (
                SELECT *, CASE WHEN objection IS NOT NULL THEN 'error' WHEN deleted THEN 'deleted'
                    WHEN NOT matches THEN 'filtered' {self._missing_sql()} END AS aside
                FROM (
                    SELECT ingress_sequence, occurred_at, deleted, {columns.objection() or "NULL::text"} AS objection,
                        {columns.time_value() if self._times() else "NULL::text"} AS time_value,
                        coalesce({matches}, FALSE) AS matches, {columns.quantity(meter.value)} AS quantity,
                        ({group}) COLLATE "C" AS group_key
                    FROM (
                        SELECT {decoded}
                        FROM ({slots.postgres_sql(self.events)} AND {self.slice_sql()} {order} OFFSET 0) AS slotted
                        OFFSET 0
                    ) AS decoded
                    OFFSET 0
                ) AS judged
                OFFSET 0
            ) AS explained"""

    def decided_sql(self) -> str:
        """The same with `part` and the start of the period. A late event never raises the maximum, as in the fold.

        Instants and lateness are subtracted as numerics: bigint could overflow.
        """
        start, apart = casts.period_start(self.meter.period, "occurred_at"), "PARTITION BY period_start"
        if self.since is not None and self.until == period_end(self.meter.period, self.since):
            # One period needs no second sort, because it is already in sequence order.
            start, apart = f"{self.since}::bigint", ""
        return f"""
            SELECT *, coalesce(aside, CASE WHEN reason IS NULL THEN 'folded' ELSE 'adjusted' END) AS part
            FROM (
                SELECT *, CASE WHEN aside IS NULL THEN {self._reason_sql()} END AS reason
                FROM (
                    SELECT ingress_sequence, occurred_at, period_start, group_key, quantity, code, message, aside,
                        occurred_at < max(occurred_at) FILTER (WHERE aside IS NULL) OVER before
                            - {self.meter.lateness_ns}::numeric AS late
                    FROM (SELECT *, {start} AS period_start FROM ({self.judged_sql()}) AS judged) AS placed
                    WINDOW before AS ({apart} ORDER BY ingress_sequence
                        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
                ) AS timed
            ) AS reasoned"""

    @property
    def closed_sequence(self) -> int | None:
        """The close that ended the period, where it is one period and it is closed."""
        since = self.since
        return next((sequence for sequence, start in self.closes if since is not None and start > since), None)

    def _reason_sql(self) -> str:
        """Why an event that counts is adjusted; null where it is folded. After a close no event is late any more."""
        late = "CASE WHEN late THEN 'late' END"
        closes = [close for close in self.closes if self.since is None or close[1] > self.since]
        if self.until is not None:
            # Whatever comes after the first that closes all of it closes nothing more.
            all_of_it = next((n for n, (_, start) in enumerate(closes) if start >= self.until), len(closes))
            closes = closes[: all_of_it + 1]
        if not closes:
            return late
        rows = ", ".join(f"({sequence}::bigint, {start}::bigint)" for sequence, start in closes)
        closed = f"(SELECT min(sequence) FROM (VALUES {rows}) AS close (sequence, start) WHERE start > period_start)"
        return f"CASE WHEN ingress_sequence > {closed} THEN 'closed' ELSE {late} END"

    def _missing_sql(self) -> str:
        return "" if self.meter.aggregation == "count" else "WHEN quantity IS NULL THEN 'error'"

    def _times(self) -> bool:
        """Whether an event can be objected to for its time: a declared column has it."""
        return self.stream.eventtime is not None and self.stream.eventtime.column in self.stream.columns

    def _value_sql(self) -> str:
        """What the fold's error rows add to an objection to an event's time: the value."""
        if not self._times() or self.stream.eventtime is None:
            return ""
        told = sql_text(no_instant(self.stream.eventtime))
        cut = f"left(time_value, {VALUE_CHARACTERS_MAX})"
        more = f"CASE WHEN length(time_value) > {VALUE_CHARACTERS_MAX} THEN '...' ELSE '' END"
        return f""" || CASE objection WHEN {told} THEN '; it is "' || {cut} || {more} || '"' ELSE '' END"""

    def _code_sql(self) -> str:
        """The error of a column with the event's time is about the time, as in the fold's error rows."""
        columns = "'invalid_column'"
        if (declared := self.stream.eventtime) is not None:
            columns = (
                f"CASE objection WHEN {sql_text(no_instant(declared))} THEN 'invalid_event_time' ELSE {columns} END"
            )
        return f"CASE WHEN objection IS NULL THEN 'missing_quantity' ELSE {columns} END"


def group_condition(group: str | None, *, chosen: bool) -> str:
    """Which events are requested: all of the counter, or those of one group, which may be the one without a value."""
    if not chosen:
        return "TRUE"
    if group is not None:
        return f"group_key = {sql_text(group)}"
    # Events that do not fit their columns are in no group.
    return "group_key IS NULL AND (code IS NULL OR code = 'missing_quantity')"


def usage_sql(counted: Counted, *, grouped: bool, limit: int) -> str:
    """Start, group, value, adjustment, total, watermark of every counter there is, as texts the table to
    read numbers.
    """
    group = "group_key" if grouped else "NULL::text"
    return f"""
        SELECT period_start, group_key, {_texts(counted)}, folded_watermark
        FROM (
            SELECT period_start, {group} AS group_key, {_sums()}
            FROM ({counted.decided_sql()}) AS decided WHERE {_COUNTED} GROUP BY 1, 2
        ) AS summed
        ORDER BY period_start, group_key NULLS FIRST LIMIT {limit}"""


def summary_sql(counted: Counted, condition: str) -> str:
    """One row: value, adjustment, total; figures of folded and of adjusted events; the number not counted."""
    parts = ", ".join(
        f"{_text(f'{part}_{name}')}" if name in ("sum", "max", "min", "last") else f"{part}_{name}"
        for part in ("folded", "adjusted")
        for name in OF_PART
    )
    codes = ", ".join(f"count(*) FILTER (WHERE code = '{code}') AS {code}" for code in CODES)
    return f"""
        SELECT {_texts(counted)}, {parts}, filtered, deleted, {", ".join(CODES)}
        FROM (
            SELECT {_sums()}, count(*) FILTER (WHERE part = 'filtered') AS filtered,
                count(*) FILTER (WHERE part = 'deleted') AS deleted, {codes}
            FROM ({counted.decided_sql()}) AS decided WHERE {condition}
        ) AS summed"""


def page_sql(counted: Counted, condition: str, *, after: int, limit: int) -> str:
    """Events in sequence order: sequence, part, reason, quantity, total after it, how it changed that, group, code,
    message."""
    aggregation = counted.meter.aggregation
    running = {
        "sum": "coalesce(sum(quantity) OVER running, 0)",
        "count": f"(count(*) FILTER (WHERE {_COUNTED}) OVER running)::numeric",
        "max": "max(quantity) OVER running",
        "min": "min(quantity) OVER running",
        "last": f"(max({_LAST}) FILTER (WHERE quantity IS NOT NULL) OVER running)[3]",
        "avg": average("coalesce(sum(quantity) OVER running, 0)", f"(count(*) FILTER (WHERE {_COUNTED}) OVER running)"),
    }[aggregation]
    # What comes first after a close changes a total that was nothing.
    before = "coalesce(lag(total) OVER every, 0)"
    if aggregation not in ("sum", "count"):
        before = f"CASE WHEN part = 'adjusted' THEN {before} ELSE lag(total) OVER every END"
    counts = f"CASE WHEN {_COUNTED} THEN {{}} END"
    return f"""
        SELECT ingress_sequence, part, reason, {_text("quantity")}, {counts.format(_text("total"))},
            {counts.format(_text("change"))}, group_key, code, message
        FROM (
            SELECT *, total - {before} AS change
            FROM (
                SELECT *, {running} AS total FROM ({counted.decided_sql()}) AS decided WHERE {condition}
                WINDOW running AS (ORDER BY ingress_sequence ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
            ) AS summed
            WINDOW every AS (ORDER BY ingress_sequence)
        ) AS told
        WHERE ingress_sequence > {after} ORDER BY ingress_sequence LIMIT {limit}"""


def latest_sql(counted: Counted, *, any_event: bool) -> str:
    """When the latest counted event, or any event, occurred. Read from the end of the index."""
    if any_event:
        return f"SELECT occurred_at FROM events WHERE {counted.slice_sql()} ORDER BY occurred_at DESC LIMIT 1"
    judged = counted.judged_sql(order="ORDER BY occurred_at DESC")
    return f"SELECT occurred_at FROM ({judged}) AS judged WHERE aside IS NULL ORDER BY occurred_at DESC LIMIT 1"


def pending_sql(counted: Counted) -> str:
    """The number of events not counted yet."""
    return f"SELECT count(*) FROM events WHERE {counted.slice_sql(beyond=True)}"


def _sums() -> str:
    """The figures of both parts, and the last of all together."""
    return ", ".join(
        [
            *(_figures("folded", _FOLDED)),
            *(_figures("adjusted", _ADJUSTED)),
            f"(max({_LAST}) FILTER (WHERE {_COUNTED} AND quantity IS NOT NULL))[3] AS last_of_all",
        ]
    )


def _figures(part: str, condition: str) -> list[str]:
    figures = {
        "count": "count(*) FILTER (WHERE {})",
        "sum": "coalesce(sum(quantity) FILTER (WHERE {}), 0)",
        "max": "max(quantity) FILTER (WHERE {})",
        "min": "min(quantity) FILTER (WHERE {})",
        "last": f"(max({_LAST}) FILTER (WHERE {{}} AND quantity IS NOT NULL))[3]",
        "watermark": "max(occurred_at) FILTER (WHERE {})",
        "first": "min(ingress_sequence) FILTER (WHERE {})",
        "final": "max(ingress_sequence) FILTER (WHERE {})",
    }
    return [f"{figures[name].format(condition)} AS {part}_{name}" for name in OF_PART]


def _texts(counted: Counted) -> str:
    """Value, adjustment and total; null where there is no counter."""
    aggregation = counted.meter.aggregation
    value = {"count": "folded_count::numeric", "avg": average("folded_sum", "folded_count")}.get(
        aggregation, f"folded_{aggregation}"
    )
    together, count = "(folded_sum + adjusted_sum)", "(folded_count + adjusted_count)"
    total = {
        "sum": together,
        "count": f"{count}::numeric",
        "max": "greatest(folded_max, adjusted_max)",
        "min": "least(folded_min, adjusted_min)",
        "last": "last_of_all",
        "avg": average(together, count),
    }[aggregation]
    shown = (value, f"({total}) - ({value})", total)
    return ", ".join(f"CASE WHEN {count} > 0 THEN {_text(f'({each})')} END" for each in shown)


def _text(number: str) -> str:
    return f"trim_scale({number})::text"
