"""Corrections in a range: what has to be read for them, and how much of it at a time.

A range with corrections is small and folded at the driver. The counters that they touch are folded again from their
slices of the ledger: all earlier events of their customers, within the periods that the corrected events lie in. These
are prepared by the same SQL as a range is. Customers are taken in portions, so that memory is bounded by the largest
slice, not by their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.arrow import column, identities
from tidelock.columns import BIGINT, STRING
from tidelock.definitions import Definitions
from tidelock.fold import statements
from tidelock.fold.kernel.corrections import CorrectedSlice, correct
from tidelock.fold.kernel.counters import count
from tidelock.fold.kernel.entries import entries
from tidelock.fold.kernel.meters import Meters
from tidelock.fold.kernel.outcomes import Outcome, appended
from tidelock.fold.kernel.outputs import Output
from tidelock.fold.keys import joined, json_strings, number_strings
from tidelock.fold.meters import MeterSteps
from tidelock.fold.prepare import EVENT, Preparation
from tidelock.fold.source import Source
from tidelock.fold.store import Store
from tidelock.instants import SECOND
from tidelock.periods import period_end, period_start
from tidelock.postgres.queries import load
from tidelock.tables import ADJUSTMENTS, ERROR_ROWS, KEY
from tidelock.where.sql import literal

_QUERIES = load("tidelock.fold", "sql/corrections.sql")

#: the code of an error row of a window or ordered output, which corrections do not alter; and the end of its message
IGNORED = "correction_ignored"
_WHY = " is ignored here: corrections change meters only"
#: limits of a portion: events of the ledger, and stretches of customers' time
PORTION_EVENTS = 500_000
_PORTION_STRETCHES = 1_000
_HOUR = 3_600 * SECOND
_CUSTOMER = ("tenant_id", "customer_ref")


class _Stretch(NamedTuple):
    """A stretch of a customer's time, in a stream."""

    tenant_id: str
    customer_ref: str
    stream: str
    begins: int
    ends: int


class _Portion(NamedTuple):
    """Some customers, whose stretches are read and folded together."""

    stretches: Sequence[_Stretch]
    #: about how many they have
    events: int


@dataclass(frozen=True, slots=True)
class CorrectedRange:
    """A prepared range with corrections."""

    #: `ingress_sequence`, `target_sequence`, `voids` and whose event they correct, in order
    corrections: pa.Table
    #: everything else in the range
    events: pa.Table
    #: what meters may count or object to: those, and amendments
    counted: pa.Table


class CorrectionSteps:
    """The corrections of ranges, for one set of definitions."""

    def __init__(
        self,
        store: Store,
        source: Source,
        preparation: Preparation,
        definitions: Definitions,
        meters: MeterSteps,
        outputs: Sequence[Output],
        portion_events: int,
    ) -> None:
        self._store = store
        self._source = source
        self._preparation = preparation
        self._meters = meters
        self._periods = {
            stream: {m.period for m in definitions.meters.values() if m.stream == stream} for stream in meters.streams
        }
        self._of_stream = {
            stream: [m.name for m in definitions.meters.values() if m.stream == stream] for stream in meters.streams
        }
        self._outputs = outputs
        self._portion_events = portion_events
        #: the first correction of the ledger; None: there was none when it was last looked for
        self._ever: int | None = None

    def here(self, lo: int, hi: int) -> bool:
        """Whether a range has corrections."""
        found = self._store.query(_QUERIES.text("first_corrections").format(lo=lo, hi=hi)).to_pylist()[0]
        self._ever = found["ever"]
        return found["here"] is not None

    def ever(self) -> bool:
        """Whether the ledger had any through the end of the range that was asked for last."""
        return self._ever is not None

    def split(self, lo: int, hi: int, events: pa.Table) -> CorrectedRange:
        """The prepared events of a range, and its corrections apart."""
        corrections = self._store.query(_QUERIES.text("corrections").format(lo=lo, hi=hi))
        voids = column(corrections, "ingress_sequence").filter(column(corrections, "voids"))
        own = pc.is_in(events["ingress_sequence"], value_set=column(corrections, "ingress_sequence"))
        void = pc.is_in(events["ingress_sequence"], value_set=voids)
        amendments = events.filter(pc.and_(own, pc.invert(void)))
        timeless = pa.nulls(amendments.num_rows, pa.string())
        amendments = amendments.set_column(amendments.column_names.index("time_fault"), "time_fault", timeless)
        others = events.filter(pc.invert(own))
        return CorrectedRange(corrections, others, pa.concat_tables([others, amendments]))

    def ignored(self, corrected: CorrectedRange, errors: pa.Table) -> Outcome:
        """An error row for every window and ordered output over the stream. An event has at most one by each name: that
        of a stream or meter of the same name comes first."""
        parts = []
        for output in self._outputs:
            own = corrected.corrections.filter(pc.equal(corrected.corrections["stream"], output.stream))
            sources = pa.repeat(pa.scalar(output.name), own.num_rows)
            ops = pc.if_else(column(own, "voids"), "the void of event ", "the amend of event ")
            targets = column(own, "target_sequence").cast(pa.string())
            rows = {
                "tenant_id": own["tenant_id"],
                "source": sources,
                "ingress_sequence": own["ingress_sequence"],
                "code": pa.repeat(pa.scalar(IGNORED), own.num_rows),
                "message": pc.binary_join_element_wise(ops, targets, _WHY, ""),
                "source_timestamp": own["source_timestamp"],
                KEY: joined(json_strings(sources), number_strings(column(own, "ingress_sequence"))),
            }
            parts.append(pa.table(rows))
        if not parts:
            return appended(ERROR_ROWS, errors.slice(0, 0))
        found = pa.concat_tables(parts)
        # Sequences are the ledger's, so a key is of one tenant.
        known = pc.is_in(found[KEY], value_set=column(errors, KEY))
        return appended(ERROR_ROWS, found.filter(pc.invert(known)))

    def counted(self, lo: int, corrected: CorrectedRange, meters: Meters, *, changes: bool) -> Iterator[Outcome]:
        """What the range does to counters, portion by portion, and then to those that corrections do not touch."""
        own = entries(corrected.counted, meters)
        for portion in self._portions(corrected.corrections):
            customers = pa.array([f"{each.tenant_id}\0{each.customer_ref}" for each in portion.stretches], pa.string())
            chosen = pc.is_in(identities(own, *_CUSTOMER), value_set=customers)
            given = CorrectedSlice(
                lo,
                corrected.corrections.filter(
                    pc.is_in(identities(corrected.corrections, *_CUSTOMER), value_set=customers)
                ),
                own.filter(chosen),
                self._history(lo, portion, meters),
                self._adjusted(lo, portion),
            )
            outcomes, others = correct(given, meters, self._store.rows, changes=changes)
            own = pa.concat_tables([own.filter(pc.invert(chosen)), others])
            yield from outcomes
        yield from count(own, meters, self._store.rows, changes=changes)

    def _history(self, lo: int, portion: _Portion, meters: Meters) -> pa.Table:
        columns = [*EVENT, "objection", *self._meters.columns]
        found = self._preparation.slices(lo, _values(portion.stretches), portion.events, columns)
        return entries(found, meters, ("corrected_by",))

    def _adjusted(self, lo: int, portion: _Portion) -> pa.Table:
        named = [each._replace(stream=name) for each in portion.stretches for name in self._of_stream[each.stream]]
        table = statements.placed(self._store.schema, ADJUSTMENTS.name)
        sql = _QUERIES.text("adjusted").format(lo=lo, wanted=_values(named), adjustments=table)
        found = self._store.query(sql)
        names = pa.array([meter.name for meter in self._meters.meters], pa.string())
        return found.append_column("meter", pc.index_in(column(found, "metric"), value_set=names).cast(pa.int64()))

    def _portions(self, corrections: pa.Table) -> Iterator[_Portion]:
        """What corrections need of the ledger, whole customers at a time."""
        stretches: list[_Stretch] = []
        events = 0
        for _, group in groupby(self._sized(list(self._stretches(corrections))), key=lambda sized: sized[0][:2]):
            own = list(group)
            size = sum(each for _, each in own)
            if stretches and (events + size > self._portion_events or len(stretches) + len(own) > _PORTION_STRETCHES):
                yield _Portion(stretches, events)
                stretches, events = [], 0
            stretches += [stretch for stretch, _ in own]
            events += size
        if stretches:
            yield _Portion(stretches, events)

    def _sized(self, stretches: Sequence[_Stretch]) -> Iterator[tuple[_Stretch, int]]:
        """Stretches, and about how many events each has."""
        for start in range(0, len(stretches), _PORTION_STRETCHES):
            part = stretches[start : start + _PORTION_STRETCHES]
            yield from zip(part, self._source.slice_sizes(_values(part)), strict=True)

    def _stretches(self, corrections: pa.Table) -> Iterator[_Stretch]:
        """The stretches that corrections fall into, in order and without overlaps."""
        bounds: dict[tuple[str, int], tuple[int, int]] = {}
        found: list[_Stretch] = []
        for row in corrections.select([*_CUSTOMER, "stream", "occurred_at"]).to_pylist():
            periods = self._periods.get(row["stream"])
            if not periods or row["customer_ref"] is None:
                continue
            hour = row["stream"], row["occurred_at"] // _HOUR
            if hour not in bounds:
                starts = {period: period_start(period, row["occurred_at"]) for period in periods}
                bounds[hour] = min(starts.values()), max(period_end(*each) for each in starts.items())
            found.append(_Stretch(row["tenant_id"], row["customer_ref"], row["stream"], *bounds[hour]))
        for _, group in groupby(sorted(found), key=lambda stretch: stretch[:3]):
            yield from _merged(group)


def _merged(stretches: Iterable[_Stretch]) -> Iterator[_Stretch]:
    """Stretches of one customer and stream, in the order in which they begin, joined where they overlap."""
    last: _Stretch | None = None
    for stretch in stretches:
        if last is None or stretch.begins >= last.ends:
            if last is not None:
                yield last
            last = stretch
        else:
            last = last._replace(ends=max(last.ends, stretch.ends))
    if last is not None:
        yield last


def _values(stretches: Iterable[_Stretch]) -> str:
    """As rows of SQL, with their numbers."""
    rows = (
        f"({number}, {literal(STRING, stretch.tenant_id)}, {literal(STRING, stretch.stream)}, "
        f"{literal(STRING, stretch.customer_ref)}, {literal(BIGINT, stretch.begins)}, {literal(BIGINT, stretch.ends)})"
        for number, stretch in enumerate(stretches)
    )
    return ", ".join(rows)
