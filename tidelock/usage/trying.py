"""Trying: which meters would count an event, for which period and with what, or why not. Nothing is recorded.

The event is admitted and decided by the ledger's own rules. The SQL that explains numbers then judges a row of it
instead of the ledger, so an answer needs no Spark. Of a meter that the tables do not follow, the counter's watermark is
computed from the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import msgspec
import psycopg

from tidelock.canonical import canonical_json
from tidelock.definitions import Definitions, Meter, Stream
from tidelock.durations import format_duration
from tidelock.errors import RequestError
from tidelock.fold.streams import sql_text
from tidelock.ingest.admit import Admission, Writer
from tidelock.ingest.body import JSON, decode
from tidelock.instants import format_instant
from tidelock.ledger.commit import Collection, decide
from tidelock.ledger.salts import read_salts
from tidelock.ledger.writer import known_identities
from tidelock.model import CORRECTIONS, Accepted, Conflict, Duplicate, Event, Head, Problem, Rejected
from tidelock.periods import period_end, period_start
from tidelock.postgres.queries import load
from tidelock.settings import Settings
from tidelock.usage.figures import Counted, usage_sql
from tidelock.usage.usage import Moment, Wanted, complete, frontier, moment, read_closes, usage_select
from tidelock.views.catalog import CatalogReader

QUERIES = load("tidelock.usage", "sql/trying.sql")

Verdict = Literal["accepted", "duplicate", "conflict", "rejected"]
#: `folded`: in value and total; `adjusted`: in the total only; `error`: an error row; `not_counted`: nothing
Outcome = Literal["folded", "adjusted", "error", "not_counted"]
#: why a meter does not count an event of its stream
_LEFT_OUT = {
    "filtered": "the meter's filter leaves it out",
    "deleted": "it removes a row, and meters count none of those",
}


class MeterTried(msgspec.Struct, frozen=True, rename="camel"):
    """What a meter would make of the event."""

    metric: str
    outcome: Outcome
    #: `late` or `closed` of an adjusted event; the code of an error; of others `other_stream`, `filtered`, `deleted`,
    #: `duplicate`, `conflict`, or the code of a rejection
    reason: str | None
    #: the same as a sentence
    why: str
    period_start: str | None = None
    period_end: str | None = None
    group: str | None = None
    #: what is aggregated
    quantity: str | None = None
    #: the latest event that the counter has folded
    watermark: str | None = None


class Tried(msgspec.Struct, frozen=True, rename="camel"):
    """What would happen to an event."""

    verdict: Verdict
    #: of the event that has the same key
    ingress_sequence: int | None
    #: why it would be rejected
    error: Problem | None
    #: the counters are complete through here
    through_sequence: int
    items: list[MeterTried]


@dataclass(frozen=True, slots=True)
class Trial:
    """An event as sent, and what to try it by."""

    body: bytes
    writer: Writer = field(default_factory=Writer)
    #: None: those that the tables follow
    definitions: Definitions | None = None
    streams_open: bool = True


class _Alone(Counted):
    """The event alone, of any customer or of none."""

    def slice_sql(self, *, beyond: bool = False) -> str:
        return "TRUE"


class _Decided(NamedTuple):
    """An event, and the verdict that it would get."""

    event: Event | Rejected
    verdict: Accepted | Duplicate | Conflict | Rejected
    #: the ledger's last with the event recorded, and the time of the decision
    sequence: int
    clock: int


async def try_event(
    connection: psycopg.AsyncConnection[Any], catalogs: CatalogReader, trial: Trial, settings: Settings
) -> Tried:
    """Raises RequestError for a body that is not one event."""
    async with moment(connection, settings.explain_timeout) as now:
        in_force = (await catalogs.read(connection)).definitions
        definitions = in_force if trial.definitions is None else trial.definitions
        through = await frontier(connection, None)
        event, verdict, sequence, clock = await _decide(connection, settings, definitions, trial)
        if not isinstance(verdict, Accepted):
            return _uncounted(verdict, definitions, through)
        assert isinstance(event, Event), "only events are accepted"
        trying = _Trying(connection, now, definitions, in_force, event=event, sequence=sequence, clock=clock)
        items = [await trying.by(meter) for meter in definitions.meters.values()]
        return Tried("accepted", None, None, through, items)


async def _decide(
    connection: psycopg.AsyncConnection[Any], settings: Settings, definitions: Definitions, trial: Trial
) -> _Decided:
    body = decode(trial.body, JSON, 1)
    if len(body.events) != 1:
        raise RequestError("give exactly one event", field="event")
    (wire,) = body.events
    row = await (await connection.execute(QUERIES["read_head"])).fetchone()
    assert row is not None, "ledger_head always has its one row"
    *head, clock = row
    admission = Admission(
        definitions, await read_salts(connection), trial.streams_open, settings.event_bytes_max,
        settings.data_depth_max, writer=trial.writer, escapes=body.escapes,
    )  # fmt: skip
    event = wire if isinstance(wire, Rejected) else admission.admit(wire)
    if isinstance(event, Event) and event.op in CORRECTIONS:
        raise RequestError("a correction cannot be tried; give the event itself", field="event")
    collection = Collection([event])
    known = await known_identities(connection, [collection])
    commit = decide([collection], Head(*head), clock, known, settings.future_tolerance)
    return _Decided(event, commit.verdicts[0][0], commit.head.ingress_sequence, clock)


def _uncounted(verdict: Duplicate | Conflict | Rejected, definitions: Definitions, through: int) -> Tried:
    """No meter counts what is not recorded."""

    def items(reason: str, why: str) -> list[MeterTried]:
        return [MeterTried(name, "not_counted", reason, why) for name in definitions.meters]

    if isinstance(verdict, Rejected):
        problem = verdict.error
        why = f"it would be rejected: {problem.message}"
        return Tried("rejected", None, problem, through, items(problem.code, why))
    kind: Literal["duplicate", "conflict"] = "duplicate" if isinstance(verdict, Duplicate) else "conflict"
    content = "" if kind == "duplicate" else ", with other content"
    why = f"its key is recorded already, as sequence {verdict.ingress_sequence:,}{content}"
    return Tried(kind, verdict.ingress_sequence, None, through, items(kind, why))


@dataclass(frozen=True, slots=True)
class _Trying:
    """An event that would be accepted, in one snapshot."""

    connection: psycopg.AsyncConnection[Any]
    now: Moment
    definitions: Definitions
    in_force: Definitions
    event: Event
    sequence: int
    clock: int

    @property
    def _occurred_at(self) -> int:
        return self.clock if self.event.occurred_at is None else self.event.occurred_at

    async def by(self, meter: Meter) -> MeterTried:
        """What a meter would make of it."""
        if meter.stream != self.event.stream:
            return MeterTried(meter.name, "not_counted", "other_stream", f"it counts stream {meter.stream}")
        aside, quantity, group, code, message = await self._judged(meter)
        if aside in _LEFT_OUT:
            return MeterTried(meter.name, "not_counted", aside, _LEFT_OUT[aside])
        if self.event.customer_ref is None and code in (None, "missing_quantity"):
            return MeterTried(meter.name, "error", "missing_customer", "customerRef is missing")
        if aside is not None:
            return MeterTried(meter.name, "error", code, message or "")
        start = period_start(meter.period, self._occurred_at)
        outcome, reason, why, watermark = await self._placed(meter, self.event.customer_ref or "", start)
        return MeterTried(
            meter.name,
            outcome,
            reason,
            why,
            period_start=format_instant(start),
            period_end=format_instant(period_end(meter.period, start)),
            group=group,
            quantity=quantity,
            watermark=None if watermark is None else format_instant(watermark),
        )

    async def _placed(self, meter: Meter, customer: str, start: int) -> tuple[Outcome, str | None, str, int | None]:
        """Folded or adjusted, why, and the watermark of the counter that decides it."""
        closes = await read_closes(self.connection, meter, self.event.tenant_id, self.sequence)
        watermark = await self._watermark(meter, customer, start)
        if any(bound > start for _, bound in closes):
            return "adjusted", "closed", "its period is closed: it changes the total, not the value", watermark
        if watermark is not None and self._occurred_at < watermark - meter.lateness_ns:
            why = (
                f"it occurred more than {format_duration(meter.lateness_ns)} before the counter's latest event: it "
                "changes the total, not the value"
            )
            return "adjusted", "late", why, watermark
        return "folded", None, "it changes value and total", watermark

    async def _judged(self, meter: Meter) -> tuple[str | None, ...]:
        """Why it is not counted, quantity, group, code and message of an error."""
        stream = self.definitions.streams.get(meter.stream) or Stream(meter.stream)
        row = sql_text(self._row())
        counted = _Alone(
            meter, stream, self.event.tenant_id, self.event.customer_ref or "", through=self.sequence,
            events=f"(SELECT * FROM json_populate_record(NULL::events, {row}::json)) AS candidate",
        )  # fmt: skip
        judged = counted.judged_sql()
        query = f"SELECT aside, trim_scale(quantity)::text, group_key, code, message FROM ({judged}) AS judged"
        found = await (await self.now.execute(query.encode())).fetchone()
        assert found is not None, "there is one event"
        return tuple(found)

    def _row(self) -> str:
        """The event as the ledger would have it, as JSON. Its data stays the text that was sent."""
        event = self.event
        row = {
            "ingress_sequence": self.sequence, "source_timestamp": self.clock, "tenant_id": event.tenant_id,
            "stream": event.stream, "customer_ref": event.customer_ref, "resource_id": event.resource_id,
            "row_key": event.row_key, "op": event.op, "occurred_at": self._occurred_at, "received_at": self.clock,
            "quantity": event.quantity, "causality_key": event.causality_key, "correlation_id": event.correlation_id,
            "causation_id": event.causation_id, "source": event.source,
            "idempotency_key": event.keys[0] if event.keys else None,
        }  # fmt: skip
        text = canonical_json(row)
        return text if event.data is None else f'{text[:-1]},"data":{event.data.decode()}}}'

    async def _watermark(self, meter: Meter, customer: str, start: int) -> int | None:
        """The counter's latest event; None: there is no counter, or it has folded nothing."""
        tenant_id, stream, known = self.event.tenant_id, meter.stream, self.in_force.meters.get(meter.name)
        same = known is not None and known.counting() == meter.counting()
        if same and self.in_force.streams.get(stream) == self.definitions.streams.get(stream):
            wanted = Wanted(tenant_id, meter.name, customer, since=start, until=start + 1)
            row = await (await self.now.execute(usage_select(meter, wanted, limit=1))).fetchone()
            return None if row is None else row[-1]
        counted = Counted.of(self.definitions, meter, tenant_id, customer, self.sequence)
        period = replace(counted, since=start, until=period_end(meter.period, start))
        counted = await complete(self.connection, self.now, period)
        row = await (await self.now.execute(usage_sql(counted, grouped=False, limit=1).encode())).fetchone()
        return None if row is None else row[-1]
