"""Closing: what a close does to the tables, and when the next one is due.

A close names its meters, each with its definition and the end through which it is closed, for a tenant or for all. From
its sequence on the kernel adjusts whatever comes for a period before that end. What the counters are then is stated:
Postgres finds those that no earlier close has stated, and they are written and told in parts, so that a million of them
need no more memory than a few thousand.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.arrow import column, identities, typed
from tidelock.columns import AMOUNT, BIGINT, STRING
from tidelock.definitions import Definitions, Meter, parse_definitions
from tidelock.fold import statements
from tidelock.fold.kernel.outcomes import Outcome, appended, no_keys, row_schema
from tidelock.fold.keys import joined, json_strings, number_strings
from tidelock.fold.ranges import Range
from tidelock.fold.redefine.catalog import unit_hashes
from tidelock.fold.store import Store
from tidelock.instants import parse_rfc3339
from tidelock.model import ALL_TENANTS
from tidelock.periods import period_end, period_start
from tidelock.postgres.queries import load
from tidelock.tables import CLOSED_METERS, COUNTERS, KEY, STATEMENTS
from tidelock.where.sql import literal

_QUERIES = load("tidelock.fold", "sql/closing.sql")

#: pages of Postgres that are stated at a time: some 2,000 rows, which take a few milliseconds
_BLOCKS = 40
#: pause after each part while events are recorded, in times of what the part took, and at most
_PAUSES, _PAUSE_MAX_S = 2.0, 0.03
_NEVER, _LATEST = -(2**63) + 1, 2**63 - 1


class ClosedMeter(NamedTuple):
    """What a close says of a meter."""

    #: no earlier period is open behind it
    through: int
    #: of the definition that it holds for
    hash: str
    #: whether its counters are stated
    stated: bool


@dataclass(frozen=True, slots=True)
class Close:
    """A control event that closes meters."""

    #: ALL_TENANTS: those that come later too
    tenant_id: str
    meters: Mapping[str, ClosedMeter]


def read_close(data: Mapping[str, Any]) -> Close | None:
    """What a control event closes; None: it is another kind of event."""
    if data.get("type") != "close":
        return None
    meters = {
        name: ClosedMeter(parse_rfc3339(said["through"]), said["hash"], said["definition"].get("statements", True))
        for name, said in data["meters"].items()
    }
    tenant = data.get("tenantId")
    return Close(ALL_TENANTS if tenant is None else tenant, meters)


def closed_definitions(data: Mapping[str, Any], names: Iterable[str]) -> Definitions:
    """The meters that a close names, with the streams that they read, as it has them."""
    meters = {name: data["meters"][name] for name in names}
    streams = {said["definition"]["stream"]: said["stream"] for said in meters.values() if "stream" in said}
    form = {"streams": streams, "meters": {name: said["definition"] for name, said in meters.items()}}
    return parse_definitions(form, eventtime_types=None)


class Closings:
    """The closes of the meters that are folded into the tables of one store, and what is due of them."""

    def __init__(self, store: Store, definitions: Definitions, *, due: bool) -> None:
        """`due`: whether the sequencer is told when the next period is to be closed."""
        self._store = store
        self._meters: Mapping[str, Meter] = definitions.meters
        hashes = unit_hashes(definitions)
        self._hashes = {name: hashes[f"meters.{name}"] for name in definitions.meters}
        self._closing = [meter for meter in self._meters.values() if meter.close_ns is not None] if due else []
        #: meter and tenant -> end through which it is closed; None: it must be read
        self._through: dict[tuple[str, str], int] | None = None
        #: by meter that closes by itself: the first period with an open counter, as the sequencer was told
        self._open: dict[str, int | None] = {}
        #: the same, with the counters that a range has made
        self._opened: dict[str, int] = {}
        #: of the ledger, when a part of a close was last written
        self._head: int | None = None

    def forget(self) -> None:
        """What was read may not hold any more."""
        self._through = None
        self._opened = {}

    def bounds(self) -> Mapping[tuple[int, str], int]:
        """By number of the meter and tenant: periods that begin before are closed."""
        numbers = {name: number for number, name in enumerate(self._meters)}
        return {(numbers[name], tenant): self._bound(name, end) for (name, tenant), end in self._known().items()}

    def watched(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """The outcomes of a range; the periods that its new counters open are noted on the way."""
        if not self._closing:
            yield from outcomes
            return
        names = pa.array([meter.name for meter in self._closing], pa.string())
        for outcome in outcomes:
            if outcome.table.name == COUNTERS.name and outcome.fresh.num_rows:
                self._note(outcome.fresh, names)
            yield outcome

    def foreign(self, event: Range) -> list[str]:
        """The meters that a control event states and that these tables are not made by: a ledger that is folded for the
        first time again was closed by definitions that came later, or are gone."""
        close = read_close(event.control or {})
        named = close.meters.items() if close is not None else ()
        return [name for name, closed in named if closed.stated and closed.hash != self._hashes.get(name)]

    def stated(self, event: Range, schema: str) -> Iterator[Outcome]:
        """What a control event states of these meters, for statements that are in another schema."""
        close = read_close(event.control or {})
        assert close is not None, "only closes state"
        named = {name: closed for name, closed in close.meters.items() if name in self._meters}
        self._ends(close.tenant_id, named, event)
        yield from self._statements(close.tenant_id, named, event, schema)

    def outcomes(self, event: Range) -> Iterator[Outcome]:
        """What a control event closes and states."""
        close = read_close(event.control or {})
        if close is None:
            return
        named = {name: closed for name, closed in close.meters.items() if name in self._meters}
        if not named:
            return
        yield self._ends(close.tenant_id, named, event)
        stated = {name: closed for name, closed in named.items() if closed.stated and closed.hash == self._hashes[name]}
        if stated:
            yield from self._statements(close.tenant_id, stated, event, self._store.schema)

    def due(self, control: Mapping[str, Any] | None = None) -> Iterator[str]:
        """Statements that tell the sequencer what a range has altered, once its tables are written."""
        if not self._closing:
            return
        if control is not None:
            if control.get("type") == "close":
                yield from self.looked()
            return
        told = {
            name: start
            for name, start in self._opened.items()
            if (known := self._open.get(name)) is None or start < known
        }
        self._opened = {}
        if told:
            self._open |= told
            yield self._tell(told)

    def looked(self) -> Iterator[str]:
        """The same from the counters that are there: after a close, and where definitions have changed."""
        self.forget()
        yield "DELETE FROM fold_closings"
        if not self._closing:
            return
        names = [meter.name for meter in self._closing]
        query = _QUERIES.text("open_since").format(
            counters=statements.placed(self._store.schema, COUNTERS.name),
            bounds=self._bounds_sql(names),
            all_tenants=literal(STRING, ALL_TENANTS),
        )
        found = {row["metric"]: row["open_since"] for row in self._store.query(query).to_pylist()}
        self._open = {name: found.get(name) for name in names}
        open_since = {name: start for name, start in self._open.items() if start is not None}
        yield self._tell(open_since) if open_since else "SELECT pg_notify('tidelock_due', '')"

    def _tell(self, open_since: Mapping[str, int]) -> str:
        rows = ", ".join(
            f"({literal(STRING, name)}, {literal(BIGINT, start)}, {literal(BIGINT, self._due_at(name, start))})"
            for name, start in open_since.items()
        )
        return _QUERIES.text("write_open_since").format(rows=rows)

    def _due_at(self, name: str, start: int) -> int:
        meter = self._meters[name]
        assert meter.close_ns is not None
        return min(period_end(meter.period, start) + meter.close_ns, _LATEST)

    def _note(self, fresh: pa.Table, names: pa.Array) -> None:
        """A counter that begins behind a close has no watermark, and nothing of it is open."""
        chosen = pc.and_(pc.is_in(fresh["metric"], value_set=names), pc.is_valid(fresh["watermark_ts"]))
        rows = fresh.select(["metric", "period_start"]).filter(chosen)
        for row in rows.group_by("metric").aggregate([("period_start", "min")]).to_pylist():
            start = self._opened.get(row["metric"])
            own = row["period_start_min"]
            self._opened[row["metric"]] = own if start is None else min(start, own)

    def _known(self) -> dict[tuple[str, str], int]:
        """Meter and tenant -> end through which it is closed. Read once: only this fold alters it."""
        if self._through is None:
            table = statements.placed(self._store.schema, CLOSED_METERS.name)
            ends = f"SELECT tenant_id, metric, max(through) AS through FROM {table} GROUP BY tenant_id, metric"
            rows = self._store.query(ends).to_pylist()
            found = {(row["metric"], row["tenant_id"]): row["through"] for row in rows}
            self._through = {place: end for place, end in found.items() if place[0] in self._meters}
            if self._closing:
                told = self._store.query("SELECT metric, open_since FROM fold_closings").to_pylist()
                self._open = {row["metric"]: row["open_since"] for row in told}
        return self._through

    def _bound(self, name: str, through: int) -> int:
        """A period that reaches beyond the end stays open, as of a meter that had others when it was closed."""
        return period_start(self._meters[name].period, through)

    def _ends(self, tenant: str, named: Mapping[str, ClosedMeter], event: Range) -> Outcome:
        """The ends through which meters are closed from here on. None goes back."""
        known = self._known()
        further = {
            name: closed.through for name, closed in named.items() if closed.through > known.get((name, tenant), _NEVER)
        }
        known |= {(name, tenant): through for name, through in further.items()}
        metrics = pa.array(further, pa.string())
        count = len(metrics)
        sequences = pa.repeat(pa.scalar(event.hi, pa.int64()), count)
        rows = pa.table(
            {
                "tenant_id": pa.repeat(pa.scalar(tenant), count),
                KEY: joined(json_strings(metrics), number_strings(sequences)),
                "source_timestamp": pa.repeat(pa.scalar(event.source_timestamp, pa.int64()), count),
                "metric": metrics,
                "closed_sequence": sequences,
                "through": pa.array(further.values(), pa.int64()),
            }
        )
        return Outcome(CLOSED_METERS, row_schema(CLOSED_METERS).empty_table(), rows, no_keys(), None)

    def _statements(
        self, tenant: str, stated: Mapping[str, ClosedMeter], event: Range, schema: str
    ) -> Iterator[Outcome]:
        """What is in a closed period and was not stated yet in a schema, in the order that changes have."""
        create = _QUERIES.text("unstated").format(
            counters=statements.placed(self._store.schema, COUNTERS.name),
            statements=statements.placed(schema, STATEMENTS.name),
            bounds=self._bounds_sql(list(stated)),
            all_tenants=literal(STRING, ALL_TENANTS),
            tenant="TRUE" if tenant == ALL_TENANTS else f"it.tenant_id = {literal(STRING, tenant)}",
        )
        self._store.execute(_QUERIES.text("one_worker"))
        self._store.execute(create)
        blocks = self._store.query(_QUERIES.text("unstated_blocks"))["blocks"][0].as_py()
        for first in range(0, blocks, _BLOCKS):
            begun = time.monotonic()
            page = _QUERIES.text("unstated_page").format(first=first, end=first + _BLOCKS)
            outcome = appended(STATEMENTS, self._stated(self._store.query(page), stated, event))
            yield replace(outcome, follows=first > 0)
            self._give_way(time.monotonic() - begun)
        self._store.execute("DROP TABLE unstated")

    def _give_way(self, took_s: float) -> None:
        """Let ingest have the processors and the disk, if events were recorded meanwhile."""
        before, self._head = self._head, self._store.query(_QUERIES.text("head"))["ingress_sequence"][0].as_py()
        if before not in (None, self._head):
            time.sleep(min(_PAUSES * took_s, _PAUSE_MAX_S))

    def _stated(self, found: pa.Table, stated: Mapping[str, ClosedMeter], event: Range) -> pa.Table:
        metrics = column(found, "metric").dictionary_encode()
        names = metrics.dictionary.to_pylist()
        hashes = pa.array([stated[name].hash for name in names], pa.string()).take(metrics.indices)
        count = found.num_rows

        def everywhere(value: int) -> pa.Array:
            return pa.repeat(pa.scalar(value, pa.int64()), count)

        return pa.table(
            {
                **{name: found[name] for name in ("tenant_id", KEY, "metric", "customer_ref", "period_start")},
                "source_timestamp": everywhere(event.source_timestamp),
                "period_end": self._period_ends(found),
                "value": typed(found["value"], AMOUNT),
                "total": typed(found["total"], AMOUNT),
                "event_count": found["event_count"],
                "closed_sequence": everywhere(event.hi),
                "definition": hashes,
            }
        )

    def _period_ends(self, found: pa.Table) -> pa.Array:
        """There are few periods: each is looked up once."""
        texts = identities(found, "metric", "period_start")
        encoded = texts.dictionary_encode()
        first = found.select(["metric", "period_start"]).take(pc.index_in(encoded.dictionary, value_set=texts))
        ends = [period_end(self._meters[row["metric"]].period, row["period_start"]) for row in first.to_pylist()]
        return pa.array(ends, pa.int64()).take(encoded.indices)

    def _bounds_sql(self, names: Sequence[str]) -> str:
        """Meter, tenant, and where its open periods begin; of all tenants there is always a row."""
        bounds = {(name, ALL_TENANTS): _NEVER for name in names}
        bounds |= {place: self._bound(place[0], end) for place, end in self._known().items() if place[0] in names}
        return ", ".join(
            f"({literal(STRING, name)}, {literal(STRING, tenant)}, {literal(BIGINT, bound)})"
            for (name, tenant), bound in bounds.items()
        )
