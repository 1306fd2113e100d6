"""Watermarks: how far time has advanced for an output and each tenant, which rows are late, and what closes where.

Everything is decided per collection, and rows need only their collection's decision: a row is late by the watermark
before it, and what closes at a given time closes at the first raise to or beyond it. So it takes a running maximum and
lookups in sorted columns, wherever the rows are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.arrow import column
from tidelock.fold.kernel.runs import Array, Flags, Places, Runs

#: before every instant; also means "no watermark", since every instant is after it
EARLIEST = -(2**63)
#: for collections with late rows, the greatest late time and the watermark
JUDGEMENTS = pa.schema(
    [("tenant_id", pa.string()), ("at", pa.int64()), ("threshold", pa.int64()), ("watermark", pa.int64())]
)
#: source timestamp and watermark of every raise
RAISES = pa.schema([("tenant_id", pa.string()), ("at", pa.int64()), ("mark", pa.int64())])


@dataclass(frozen=True, slots=True)
class Standing:
    """The stored progress of an output for a tenant."""

    #: None: no row has arrived, or it is by arrival
    watermark: int | None = None
    max_timestamp_seen: int | None = None
    #: greatest end closed by drains: rows before it are late
    closed_through: int | None = None
    #: source timestamp of the last row, late or not
    last_row_at: int = 0
    buffer_size: int = 0
    late_dropped_count: int = 0
    watermark_emitted_count: int = 0
    released: int = 0


@dataclass(slots=True)
class Progress:
    """The effect of a range or a control event on an output's progress."""

    #: by tenant; missing ones have none
    before: Mapping[str, Standing]
    #: of the tenants that have rows
    after: dict[str, Standing] = field(default_factory=dict)
    #: rows in the table of this form
    judgements: pa.Table = field(default_factory=JUDGEMENTS.empty_table)
    #: ascending by tenant, in the order of `after`
    raises: pa.Table = field(default_factory=RAISES.empty_table)

    @property
    def marks(self) -> dict[str, tuple[int | None, int]]:
        """The watermarks that were raised: from where, and to where."""
        last = dict(zip(self.raises["tenant_id"].to_pylist(), self.raises["mark"].to_pylist(), strict=True))
        return {tenant: (self.before.get(tenant, Standing()).watermark, mark) for tenant, mark in last.items()}

    def standing(self, tenant: str) -> Standing:
        return self.after.get(tenant) or self.before.get(tenant) or Standing()

    def count(self, name: str, counts: Mapping[str, int], sign: int = 1) -> None:
        """Add to a number of each tenant."""
        for tenant, count in counts.items():
            standing = self.standing(tenant)
            self.after[tenant] = replace(standing, **{name: getattr(standing, name) + sign * count})

    def drained(self, ends: Mapping[str, int]) -> None:
        """Record how far a drain has closed."""
        for tenant, end in ends.items():
            standing = self.standing(tenant)
            known = standing.closed_through
            self.after[tenant] = replace(standing, closed_through=end if known is None else max(known, end))


class _Collections:
    """The collections of one stream, by tenant and source timestamp, and where each tenant begins."""

    def __init__(self, collections: pa.Table, before: Mapping[str, Standing]) -> None:
        tenants = column(collections, "tenant_id").dictionary_encode()
        self.tenants: list[str] = tenants.dictionary.to_pylist()
        of, at = tenants.indices.to_numpy().astype(np.int64), column(collections, "source_timestamp").to_numpy()
        order = np.lexsort((at, of))
        self.of: Places = of[order]
        self.at: Places = at[order]
        self.runs = Runs(self.of)
        self.standings = [before.get(tenant, Standing()) for tenant in self.tenants]
        self._order, self._table = order, collections

    def values(self, name: str) -> Places:
        found: Places = column(self._table, name).to_numpy()[self._order]
        return found

    def known(self, name: str) -> Places:
        """The stored values of each tenant; missing ones are before every instant."""
        found = [getattr(standing, name) for standing in self.standings]
        return np.array([EARLIEST if value is None else value for value in found], np.int64)

    def named(self, rows: Places) -> pa.Array:
        return pa.array(self.tenants, pa.string()).take(pa.array(self.of[rows]))

    def after(self, raised: Flags, seen: Places, watermarks: Places | None) -> dict[str, Standing]:
        """The values of each tenant after its last collection."""
        ends = self.runs.ends
        counts = np.add.reduceat(raised.astype(np.int64), self.runs.starts) if len(ends) else ends
        marks = [None] * len(ends) if watermarks is None else _instants(watermarks[ends])
        columns = (_instants(seen[ends]), marks, self.at[ends].tolist(), counts.tolist())
        return {
            tenant: replace(
                standing,
                watermark=mark,
                max_timestamp_seen=latest,
                last_row_at=at,
                watermark_emitted_count=standing.watermark_emitted_count + count,
            )
            for tenant, standing, latest, mark, at, count in zip(
                self.tenants, self.standings, *columns, strict=True
            )
        }  # fmt: skip


def advanced(collections: pa.Table, before: Mapping[str, Standing], tolerance_ns: int | None) -> Progress:
    """The effect of collections of one stream, with `tenant_id`, `source_timestamp`, `earliest` and `latest`.

    Without a tolerance, time is by arrival: every row has the time of its collection, so that none is late.
    """
    if tolerance_ns is not None:
        collections = collections.filter(pc.is_valid(collections["latest"]))
    if not collections.num_rows:
        return Progress(before)
    if tolerance_ns is None:
        return _by_arrival(_Collections(collections, before), before)
    return _by_event_time(_Collections(collections, before), before, tolerance_ns)


def _by_arrival(found: _Collections, before: Mapping[str, Standing]) -> Progress:
    everything = np.arange(len(found.at))
    raises = _table(RAISES, found.named(everything), found.at, found.at)
    after = found.after(np.ones(len(found.at), np.bool_), found.at, None)
    return Progress(before, after, raises=raises)


def _by_event_time(found: _Collections, before: Mapping[str, Standing], tolerance_ns: int) -> Progress:
    """Rows are judged by the watermark before their collection, and then raise it together.

    Checking the latest row of a collection is enough: if it is late, or drained, so are the others.
    """
    closed, stored = found.known("closed_through")[found.of], found.known("max_timestamp_seen")[found.of]
    latest = found.values("latest")
    moving = np.where(latest < closed, EARLIEST, latest)
    seen = np.maximum(found.runs.greatest(moving), stored)
    seen_before = np.maximum(found.runs.previous(seen, EARLIEST), stored)
    marks, marks_before = (_behind(times, tolerance_ns) for times in (seen, seen_before))
    raised: Flags = (marks > marks_before) | ((seen_before == EARLIEST) & (seen > EARLIEST))
    # Before the first watermark, only rows before a drain are late.
    thresholds = np.maximum(marks_before, np.where(closed > EARLIEST, closed - 1, EARLIEST))
    late = np.flatnonzero((found.values("earliest") <= thresholds) & (thresholds > EARLIEST))
    unknown = (seen_before == EARLIEST)[late]
    watermarks = pa.array(marks_before[late], mask=unknown)
    judgements = _table(JUDGEMENTS, found.named(late), found.at[late], thresholds[late], watermarks)
    places = np.flatnonzero(raised)
    raises = _table(RAISES, found.named(places), found.at[places], marks[places])
    after = found.after(raised, seen, np.where(seen == EARLIEST, EARLIEST, marks))
    # The earliest possible watermark is still a watermark.
    clamped = {
        tenant: replace(standing, watermark=EARLIEST)
        for tenant, standing in after.items()
        if standing.watermark is None and standing.max_timestamp_seen is not None
    }
    return Progress(before, after | clamped, judgements, raises)


def _behind(times: Places, tolerance_ns: int) -> Places:
    """Watermarks of the latest times, clamped to 64 bits."""
    found: Places = np.where(times < EARLIEST + tolerance_ns, EARLIEST, times - tolerance_ns)
    return found


def _instants(times: Places) -> list[int | None]:
    return [None if time == EARLIEST else time for time in times.tolist()]


def _table(schema: pa.Schema, *columns: pa.Array | Array) -> pa.Table:
    arrays = [values if isinstance(values, pa.Array) else pa.array(values, pa.int64()) for values in columns]
    return pa.table(arrays, schema=schema)


def judged(rows: pa.Table, judgements: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Rows in time, and late rows with the watermark that judged them and the reason.

    Rows of collections without a judgement are in time.
    """
    suspects, places = _suspects(rows, judgements)
    late = np.zeros(rows.num_rows, np.bool_)
    limits = column(judgements, "threshold").to_numpy()[places]
    late[suspects] = column(rows, "event_time").to_numpy()[suspects] <= limits
    if not late.any():
        return rows, _told(rows.slice(0, 0), judgements.slice(0, 0))
    found = rows.filter(pa.array(late))
    return rows.filter(pa.array(~late)), _told(found, judgements.take(pa.array(places[late[suspects]])))


def _suspects(rows: pa.Table, judgements: pa.Table) -> tuple[Places, Places]:
    """The rows whose collection is judged, and the judgement of each."""
    known, at = np.unique(column(judgements, "at").to_numpy(), return_inverse=True)
    times = column(rows, "source_timestamp").to_numpy()
    if not len(known) or not len(times):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    own = np.minimum(np.searchsorted(known, times), len(known) - 1)
    suspects = np.flatnonzero(known[own] == times)
    tenants = column(judgements, "tenant_id").dictionary_encode()
    names = tenants.dictionary
    named = pc.index_in(column(rows, "tenant_id").take(pa.array(suspects)), value_set=names)
    numbers = pc.fill_null(named, len(names)).to_numpy()
    # A collection is judged once for each tenant.
    keys = at * (len(names) + 1) + tenants.indices.to_numpy()
    order = np.argsort(keys)
    wanted = own[suspects] * (len(names) + 1) + numbers
    places = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    there = keys[order][places] == wanted
    return suspects[there], order[places[there]]


def _told(late: pa.Table, judgements: pa.Table) -> pa.Table:
    watermarks = column(judgements, "watermark")
    behind = pc.fill_null(pc.less_equal(column(late, "event_time"), watermarks), False)
    found = late.append_column("watermark", watermarks)
    return found.append_column("reason", pc.if_else(behind, "late", "drained"))


def reached(raises: pa.Table, tenants: pa.Array, moments: pa.Array) -> pa.Array:
    """The source timestamps at which tenants' watermarks reached given times; null: not yet.

    Each pair of tenant and time is one number, so that one sorted column can be searched.
    """
    if not raises.num_rows or not len(moments):
        return pa.nulls(len(moments), pa.int64())
    names = column(raises, "tenant_id").dictionary_encode()
    marks, ranks = np.unique(column(raises, "mark").to_numpy(), return_inverse=True)
    keys = names.indices.to_numpy().astype(np.int64) * (len(marks) + 1) + ranks
    order = np.argsort(keys, kind="stable")
    keys, ats = keys[order], column(raises, "at").to_numpy()[order]
    own = _numbers_of(tenants, names.dictionary)
    wanted = own * (len(marks) + 1) + np.searchsorted(marks, moments.to_numpy())
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    there = (own >= 0) & (keys[places] >= wanted) & (keys[places] // (len(marks) + 1) == own)
    return pa.array(ats[places], mask=~there)


def _numbers_of(texts: pa.Array, names: pa.Array) -> Places:
    """The number of each string among names; -1: it is not among them."""
    encoded = texts.dictionary_encode()
    known = pc.fill_null(pc.index_in(encoded.dictionary, value_set=names), -1)
    found: Places = known.to_numpy().astype(np.int64)[encoded.indices.to_numpy()]
    return found


def arrived(times: pa.Array, moments: pa.Array) -> pa.Array:
    """The first of some ascending times at or after each given time; null: there is none."""
    places = pc.search_sorted(times, moments, side="left").cast(pa.int64())
    return times.take(pc.if_else(pc.less(places, len(times)), places, None))
