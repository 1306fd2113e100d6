"""Parts: what became of each event of a slice in a counter, as SQL for Postgres, decided as the fold decides it.

The fold's rules are read from the ledger again, so that an answer needs no row of the fold's tables, and holds for any
sequence. Steps are nested subqueries that end with OFFSET 0: each expression is computed once, and rows flow through.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tidelock.definitions import Definitions, Meter, Stream
from tidelock.fold.meters import missing_quantity
from tidelock.fold.readings import Reading, no_instant, sql_text
from tidelock.fold.slots import slots_of
from tidelock.periods import period_end
from tidelock.usage import casts
from tidelock.where.sql import POSTGRES, where_sql

#: why an event is an error here; one without a customer is in no customer's slice
CODES = ("invalid_column", "invalid_event_time", "missing_quantity")


@dataclass(frozen=True, slots=True)
class Counted:
    """The events that one customer's counters of a meter are made of, or would be."""

    meter: Meter
    #: as it was declared, or by its name only
    stream: Stream
    tenant_id: str
    customer_ref: str
    #: occurred_at, half-open
    since: int | None = None
    until: int | None = None
    #: last sequence
    through: int = 0

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
        """One row per event: `aside` is why it is not counted, null where it is; code and message tell of errors."""
        meter = self.meter
        streams = {self.stream.name: self.stream}
        # When an event happened decides windows; a meter only knows when it occurred.
        slots = replace(slots_of(Definitions(streams, {meter.name: meter})), timed={})
        reading = Reading(self.stream, slots, POSTGRES, casts)
        decoded = ", ".join(["*", *reading.decoded()])
        matches = "TRUE" if meter.where is None else where_sql(meter.where, POSTGRES, reading.as_type)
        group = f"{reading.joined(meter.group_by)}" if meter.group_by else "NULL::text"
        return f"""
            SELECT ingress_sequence, occurred_at, aside, CASE WHEN aside IS NULL THEN quantity END AS quantity,
                CASE WHEN objection IS NULL THEN group_key END AS group_key,
                CASE WHEN aside = 'error' THEN {self._code_sql()} END AS code,
                CASE WHEN aside = 'error' THEN coalesce(objection, {sql_text(missing_quantity(meter))}) END AS message
            FROM (
                SELECT *, CASE WHEN objection IS NOT NULL THEN 'error' WHEN deleted THEN 'deleted'
                    WHEN NOT matches THEN 'filtered' {self._missing_sql()} END AS aside
                FROM (
                    SELECT ingress_sequence, occurred_at, deleted, {reading.objection() or "NULL::text"} AS objection,
                        coalesce({matches}, FALSE) AS matches, {reading.quantity(meter.value)} AS quantity,
                        ({group}) COLLATE "C" AS group_key
                    FROM (
                        SELECT {decoded}
                        FROM ({slots.postgres_sql()} AND {self.slice_sql()} {order} OFFSET 0) AS slotted
                        OFFSET 0
                    ) AS decoded
                    OFFSET 0
                ) AS judged
                OFFSET 0
            ) AS explained"""

    def decided_sql(self) -> str:
        """The same with `part` and the start of the period. A late event never raises the maximum, as in the fold.

        Instants and lateness are subtracted as numerics: bigint ends near the last of them.
        """
        start, apart = casts.period_start(self.meter.period, "occurred_at"), "PARTITION BY period_start"
        if self.since is not None and self.until == period_end(self.meter.period, self.since):
            # One period needs no second sort for what is in sequence order already.
            start, apart = f"{self.since}::bigint", ""
        return f"""
            SELECT ingress_sequence, occurred_at, period_start, group_key, quantity, code, message,
                coalesce(aside, CASE WHEN occurred_at < max(occurred_at) FILTER (WHERE aside IS NULL) OVER before
                    - {self.meter.lateness_ns}::numeric THEN 'adjusted' ELSE 'folded' END) AS part
            FROM (SELECT *, {start} AS period_start FROM ({self.judged_sql()}) AS judged) AS placed
            WINDOW before AS ({apart} ORDER BY ingress_sequence
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"""

    def _missing_sql(self) -> str:
        return "" if self.meter.aggregation == "count" else "WHEN quantity IS NULL THEN 'error'"

    def _code_sql(self) -> str:
        """A column that has the event's time is objected to as that, as in the fold's error rows."""
        columns = "'invalid_column'"
        if (declared := self.stream.eventtime) is not None:
            columns = (
                f"CASE objection WHEN {sql_text(no_instant(declared))} THEN 'invalid_event_time' ELSE {columns} END"
            )
        return f"CASE WHEN objection IS NULL THEN 'missing_quantity' ELSE {columns} END"
