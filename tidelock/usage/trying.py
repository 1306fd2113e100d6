"""Trying: which meters would count an event, for which period and with what, or why not. Nothing is recorded.

The event is admitted and decided by the ledger's own rules. A row of it stands for the ledger in the SQL that explains
numbers, so an answer needs no Spark. Where a meter is not the one that the tables follow, how far its counter would be
is computed from the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

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
from tidelock.model import Accepted, Event, Head, Problem, Rejected
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
    """An event as sent, and by which definitions it is tried; None: those that the tables follow."""

    body: bytes
    writer: Writer = field(default_factory=Writer)
    definitions: Definitions | None = None
    streams_open: bool = True


class _Alone(Counted):
    """The event alone, of any customer or of none."""

    def slice_sql(self, *, beyond: bool = False) -> str:
        return "TRUE"


async def try_event(
    connection: psycopg.AsyncConnection[Any], catalogs: CatalogReader, trial: Trial, settings: Settings
) -> Tried:
    """Raises RequestError for a body that is not one event."""
    async with moment(connection, settings.explain_timeout) as now:
        in_force = (await catalogs.read(connection)).definitions
        definitions = in_force if trial.definitions is None else trial.definitions
        found = _Trying(connection, now, settings, definitions, in_force)
        return await found.run(trial)


class _Trying:
    """One event, in one snapshot."""

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        now: Moment,
        settings: Settings,
        definitions: Definitions,
        in_force: Definitions,
    ) -> None:
        self._connection = connection
        self._now = now
        self._settings = settings
        self._definitions = definitions
        self._in_force = in_force

    async def run(self, trial: Trial) -> Tried:
        through = await frontier(self._connection, None)
        event, verdict = await self._decided(trial)
        if isinstance(verdict, Accepted):
            assert isinstance(event, Event), "only events are accepted"
            items = [await self._tried(meter, event, verdict) for meter in self._definitions.meters.values()]
            return Tried("accepted", None, None, through, items)
        if isinstance(verdict, Rejected):
            code, why = verdict.error.code, verdict.error.message
            return Tried("rejected", None, verdict.error, through, self._none(code, f"it would be rejected: {why}"))
        kind: Verdict = "duplicate" if type(verdict).__name__ == "Duplicate" else "conflict"
        content = "" if kind == "duplicate" else ", with other content"
        why = f"its key is recorded already, as sequence {verdict.ingress_sequence:,}{content}"
        return Tried(kind, verdict.ingress_sequence, None, through, self._none(kind, why))

    def _none(self, reason: str, why: str) -> list[MeterTried]:
        return [MeterTried(name, "not_counted", reason, why) for name in self._definitions.meters]

    async def _decided(self, trial: Trial) -> tuple[Event | Rejected, Any]:
        """The event, and the verdict that it would get."""
        settings = self._settings
        body = decode(trial.body, JSON, 1)
        if len(body.events) != 1:
            raise RequestError("give exactly one event", field="event")
        (wire,) = body.events
        row = await (await self._connection.execute(QUERIES["read_stand"])).fetchone()
        assert row is not None, "ledger_head always has its one row"
        *head, clock = row
        admission = Admission(
            self._definitions, await read_salts(self._connection), trial.streams_open, settings.event_bytes_max,
            settings.data_depth_max, writer=trial.writer, escapes=body.escapes,
        )  # fmt: skip
        event = wire if isinstance(wire, Rejected) else admission.admit(wire)
        if isinstance(event, Event) and event.op not in ("upsert", "delete"):
            raise RequestError("a correction cannot be tried; give the event itself", field="event")
        collection = Collection([event])
        known = await known_identities(self._connection, [collection])
        commit = decide([collection], Head(*head), clock, known, settings.future_tolerance)
        self._sequence, self._clock = commit.head.ingress_sequence, clock
        return event, commit.verdicts[0][0]

    async def _tried(self, meter: Meter, event: Event, verdict: Accepted) -> MeterTried:
        if meter.stream != event.stream:
            why = f"it counts stream {meter.stream}"
            return MeterTried(meter.name, "not_counted", "other_stream", why)
        occurred_at = self._clock if event.occurred_at is None else event.occurred_at
        start = period_start(meter.period, occurred_at)
        aside, quantity, group, code, message = await self._judged(meter, event, occurred_at)
        found = MeterTried(
            meter.name,
            "error",
            code,
            message or "",
            period_start=format_instant(start),
            period_end=format_instant(period_end(meter.period, start)),
            group=group,
            quantity=quantity,
        )
        if aside == "filtered":
            return MeterTried(meter.name, "not_counted", "filtered", "the meter's filter leaves it out")
        if aside == "deleted":
            return MeterTried(meter.name, "not_counted", "deleted", "it removes a row, and meters count none of those")
        if aside is None or code == "missing_quantity":
            if event.customer_ref is None:
                return MeterTried(meter.name, "error", "missing_customer", "customerRef is missing")
            if aside is None:
                return await self._placed(found, meter, event, occurred_at, start)
        return msgspec.structs.replace(found, period_start=None, period_end=None, group=None)

    async def _placed(self, found: MeterTried, meter: Meter, event: Event, occurred_at: int, start: int) -> MeterTried:
        """Folded or adjusted, by the counter that it is for."""
        assert event.customer_ref is not None
        closes = await read_closes(self._connection, meter, event.tenant_id, self._sequence)
        watermark = await self._watermark(meter, event, start)
        found = msgspec.structs.replace(
            found, watermark=None if watermark is None else format_instant(watermark), outcome="adjusted"
        )
        if any(bound > start for _, bound in closes):
            why = "its period is closed: it changes the total, not the value"
            return msgspec.structs.replace(found, reason="closed", why=why)
        if watermark is not None and occurred_at < watermark - meter.lateness_ns:
            why = (
                f"it occurred more than {format_duration(meter.lateness_ns)} before the counter's latest event: it "
                "changes the total, not the value"
            )
            return msgspec.structs.replace(found, reason="late", why=why)
        return msgspec.structs.replace(found, outcome="folded", reason=None, why="it changes value and total")

    async def _judged(self, meter: Meter, event: Event, occurred_at: int) -> tuple[str | None, ...]:
        """Why it is not counted, quantity, group, code and message of an error."""
        stream = self._definitions.streams.get(meter.stream) or Stream(meter.stream)
        row = sql_text(self._row(event, occurred_at))
        counted = _Alone(
            meter, stream, event.tenant_id, event.customer_ref or "", through=self._sequence,
            events=f"(SELECT * FROM json_populate_record(NULL::events, {row}::json)) AS candidate",
        )  # fmt: skip
        judged = counted.judged_sql()
        query = f"SELECT aside, trim_scale(quantity)::text, group_key, code, message FROM ({judged}) AS judged"
        found = await (await self._now.execute(query.encode())).fetchone()
        assert found is not None, "there is one event"
        return tuple(found)

    def _row(self, event: Event, occurred_at: int) -> str:
        """The event as the ledger would have it, as JSON. Its data stays the text that was sent."""
        row = {
            "ingress_sequence": self._sequence, "source_timestamp": self._clock, "tenant_id": event.tenant_id,
            "stream": event.stream, "customer_ref": event.customer_ref, "resource_id": event.resource_id,
            "row_key": event.row_key, "op": event.op, "occurred_at": occurred_at, "received_at": self._clock,
            "quantity": event.quantity, "causality_key": event.causality_key, "correlation_id": event.correlation_id,
            "causation_id": event.causation_id, "source": event.source,
            "idempotency_key": event.keys[0] if event.keys else None,
        }  # fmt: skip
        text = canonical_json(row)
        return text if event.data is None else f'{text[:-1]},"data":{event.data.decode()}}}'

    async def _watermark(self, meter: Meter, event: Event, start: int) -> int | None:
        """How far the counter is; None: there is none, or it has folded nothing."""
        assert event.customer_ref is not None
        known, stream = self._in_force.meters.get(meter.name), meter.stream
        same = known is not None and known.counting() == meter.counting()
        if same and self._in_force.streams.get(stream) == self._definitions.streams.get(stream):
            wanted = Wanted(event.tenant_id, meter.name, event.customer_ref, since=start, until=start + 1)
            row = await (await self._now.execute(usage_select(meter, wanted, limit=1))).fetchone()
            return None if row is None else row[-1]
        counted = Counted.of(self._definitions, meter, event.tenant_id, event.customer_ref, self._sequence)
        period = replace(counted, since=start, until=period_end(meter.period, start))
        counted = await complete(self._connection, self._now, period)
        row = await (await self._now.execute(usage_sql(counted, grouped=False, limit=1).encode())).fetchone()
        return None if row is None else row[-1]
