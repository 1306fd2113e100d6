"""Corrections: what voids and amendments of a range do to the counters and groups that they touch.

A counter is two sets of entries, one for its value and one for its total. A correction takes its target out of both, or
only out of the total, and puts what replaces it where the target was. So an entry is in a set over an interval of the
counter's rows in the range. Sums and counts are running sums of what enters minus what leaves. A maximum cannot be
subtracted from: at every row it is that of the entries whose intervals cover the row, and these are found for all rows
of all counters at once. The adjustments say what an entry was before the range: one without an adjustment was folded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.arrow import column
from tidelock.fold.kernel.amounts import Amounts
from tidelock.fold.kernel.counters import REASONS, CountedRows
from tidelock.fold.kernel.distinct import Texts
from tidelock.fold.kernel.meters import COUNTER_KEY, EARLIEST, CounterKeys, Meters, key_codes
from tidelock.fold.kernel.outcomes import Outcome, Stored
from tidelock.fold.kernel.runs import Array, Flags, Places, Runs
from tidelock.tables import COUNTER_GROUPS, COUNTERS

_ENTRY = (
    "ingress_sequence",
    "source_timestamp",
    "tenant_id",
    "customer_ref",
    "occurred_at",
    "meter",
    "period_start",
    "quantity",
    "group_key",
)
#: the columns of a row that are the entering entry's, and null where none enters
_ENTERING = ("quantity", "text")


@dataclass(frozen=True, slots=True)
class CorrectedSlice:
    """Corrections of a range, and everything that is known of the customers that they touch."""

    #: the range begins after this sequence
    lo: int
    #: `ingress_sequence`, `source_timestamp`, `target_sequence` and `voids`, in the order of sequences
    corrections: pa.Table
    #: the entries of the range, with those that replace others
    entries: pa.Table
    #: the entries before it, with `corrected_by`: the sequence of what corrected each, if anything has
    history: pa.Table
    #: `meter` and `ingress_sequence` of the adjustments before it
    adjusted: pa.Table


def correct(
    given: CorrectedSlice, meters: Meters, stored: Stored, *, changes: bool = True
) -> tuple[list[Outcome], pa.Table]:
    """The effects on the counters that corrections touch; and the range's entries of all other counters."""
    pool = _Pool(given, len(meters.names))
    others = given.entries.filter(pa.array(~pool.touched))
    rows = pool.rows
    if not len(rows.sequence):
        return [], others
    table = pool.table(rows)
    counted = _CorrectedRows(table, CounterKeys(table, meters, COUNTERS), stored, meters, (pool, rows, pool.codes))
    outcomes = [counted.outcome(changes), *counted.texts, counted.adjustments(changes)]
    grouped = np.asarray(meters.grouped)[pool.meter[rows.example]]
    if grouped.any():
        late = counted.adjusted_entries()[grouped]
        outcomes += _groups(pool, rows.at(np.flatnonzero(grouped)), late, meters, stored, changes=changes)
    return outcomes, others


def _groups(
    pool: _Pool, rows: _CounterRows, late: Flags, meters: Meters, stored: Stored, *, changes: bool
) -> Iterator[Outcome]:
    """Each counter has decided for its groups. What a correction moves leaves one group and enters another."""
    codes = pool.group_codes()
    leaving, entering = np.flatnonzero(rows.left >= 0), np.flatnonzero(rows.own >= 0)
    of = np.concatenate([leaving, entering])
    left = np.arange(len(of)) < len(leaving)
    parts = rows.at(of)
    parts = replace(parts, own=np.where(left, -1, parts.own), left=np.where(left, parts.left, -1))
    group = codes[parts.example]
    touched = np.isin(group, group[left | (parts.reason > 0)])
    order = np.argsort(parts.sequence, kind="stable")
    for chosen in (order[touched[order]], order[~touched[order]]):
        if not len(chosen):
            continue
        part, decided = parts.at(chosen), late[of[chosen]]
        table = pool.table(part)
        keys = CounterKeys(table, meters, COUNTER_GROUPS)
        if touched[chosen[0]]:
            groups: CountedRows = _CorrectedRows(table, keys, stored, meters, (pool, part, codes), late=decided)
        else:
            groups = CountedRows(table, keys, stored, meters, decided)
        yield groups.outcome(changes)
        yield from groups.texts


@dataclass(frozen=True, slots=True)
class _CounterRows:
    """What happens to counters, in order: at each row an entry enters, or one leaves, or one replaces another."""

    sequence: Places
    source_timestamp: Places
    #: where the entry that enters is in the pool, and the one that leaves; -1: none does
    own: Places
    left: Places
    #: by number, why it is an adjustment if it is one and its period is open
    reason: Places

    @property
    def example(self) -> Places:
        """An entry of the same counter and, where only one enters or leaves, of the same group."""
        return np.where(self.own >= 0, self.own, self.left)

    def at(self, places: Places) -> _CounterRows:
        return _CounterRows(*(getattr(self, name)[places] for name in self.__slots__))


class _Pool:
    """All entries of the customers that corrections touch: first those before the range, then those of the range."""

    def __init__(self, given: CorrectedSlice, width: int) -> None:
        """`width`: the number of meters."""
        #: how many are from before the range
        self.past = given.history.num_rows
        names = [name for name in (*_ENTRY, "text") if name in given.entries.column_names]
        tables = [table.select(names) for table in (given.history, given.entries)]
        self.entries = pa.concat_tables(tables).combine_chunks()
        self.meter: Places = column(self.entries, "meter").to_numpy().astype(np.int64)
        self.sequence: Places = column(self.entries, "ingress_sequence").to_numpy()
        #: the counter of each
        self.codes: Places = key_codes(self.entries) if self.entries.num_rows else self.meter
        self._judge(given)
        self._match(given.corrections, width)

    def table(self, rows: _CounterRows) -> pa.Table:
        """Rows in the form of entries; without a quantity where none enters."""
        found = self.entries.take(pa.array(rows.example))
        none = pa.array(rows.own < 0)
        for name in (name for name in _ENTERING if name in found.column_names):
            place = found.column_names.index(name)
            found = found.set_column(place, name, pc.if_else(none, None, column(found, name)))
        for name, values in (("ingress_sequence", rows.sequence), ("source_timestamp", rows.source_timestamp)):
            found = found.set_column(found.column_names.index(name), name, pa.array(values))
        return found

    def group_codes(self) -> Places:
        """The group of each entry."""
        return key_codes(self.entries, (*COUNTER_KEY, "group_key"))

    def column(self, name: str, places: Places) -> pa.Array:
        """A column of entries at some places; null at -1."""
        return column(self.entries, name).take(pa.array(places, mask=places < 0))

    def _judge(self, given: CorrectedSlice) -> None:
        """What the entries before the range were by its beginning: in the value, and in the total."""
        by = pc.fill_null(column(given.history, "corrected_by"), 0).to_numpy()
        meter, sequence = self.meter[: self.past], self.sequence[: self.past]
        adjusted, number = (column(given.adjusted, name).to_numpy() for name in ("ingress_sequence", "meter"))
        #: which of them were folded
        self.folded: Flags = ~_among(meter, sequence, number, adjusted)
        gone = (by > 0) & (by <= given.lo)
        self.in_total: Flags = ~gone
        self.in_value: Flags = self.folded & ~(gone & ~_among(meter, by, number, adjusted))

    def _match(self, corrections: pa.Table, width: int) -> None:
        """Which entries leave in the range, and what replaces them."""
        numbers, targets, times = (
            column(corrections, name).to_numpy() for name in ("ingress_sequence", "target_sequence", "source_timestamp")
        )
        order = np.argsort(targets)
        found = np.minimum(np.searchsorted(targets[order], self.sequence), len(targets) - 1)
        #: entries that leave, and the correction of each
        leaving = np.flatnonzero(targets[order][found] == self.sequence)
        by = order[found[leaving]]
        #: of the range's entries, those that replace others, and the correction of each
        own = np.minimum(np.searchsorted(numbers, self.sequence[self.past :]), len(numbers) - 1)
        replacing = np.flatnonzero(numbers[own] == self.sequence[self.past :])
        slots = np.full(len(numbers) * width, -1)
        slots[own[replacing] * width + self.meter[self.past + replacing]] = self.past + replacing
        replaced = slots[by * width + self.meter[leaving]]
        counters = np.concatenate([self.codes[leaving], self.codes[self.past + replacing]])
        #: which of the range's entries are of counters that corrections touch
        self.touched: Flags = np.isin(self.codes[self.past :], counters)
        #: which entries leave
        self.leaves: Flags = np.zeros(len(self.codes), np.bool_)
        self.leaves[leaving] = True

        left = np.full(len(self.codes), -1)
        left[replaced[replaced >= 0]] = leaving[replaced >= 0]
        entering = self.past + np.flatnonzero(self.touched)
        bare = replaced < 0
        ops = np.where(column(corrections, "voids").to_numpy(False), REASONS.index("void"), REASONS.index("amend"))
        reason = np.zeros(len(self.codes), np.int64)
        reason[self.past + replacing] = ops[own[replacing]]
        entered = column(self.entries, "source_timestamp").to_numpy()[entering]
        rows = _CounterRows(
            sequence=np.concatenate([self.sequence[entering], numbers[by[bare]]]),
            source_timestamp=np.concatenate([entered, times[by[bare]]]),
            own=np.concatenate([entering, np.full(int(bare.sum()), -1)]),
            left=np.concatenate([left[entering], leaving[bare]]),
            reason=np.concatenate([reason[entering], ops[by[bare]]]),
        )
        #: what happens to the touched counters
        self.rows = rows.at(np.argsort(rows.sequence, kind="stable"))


@dataclass(frozen=True, slots=True)
class _Standing:
    """What stays in a set from the first row of a key to the last, by key: only what an extreme or a last needs."""

    key: Places
    max: pa.Array
    min: pa.Array
    last: pa.Array
    last_at: Places
    last_sequence: Places


@dataclass(frozen=True, slots=True)
class _Moving:
    """The entries that enter or leave a set, and where they are in it."""

    start: Places
    #: the first row without it
    end: Places
    quantity: pa.Array
    occurred_at: Places
    sequence: Places


class _CorrectedRows(CountedRows):
    """Counters or groups that corrections touch: their values and totals are those of sets that entries leave too."""

    def __init__(
        self,
        entries: pa.Table,
        keys: CounterKeys,
        stored: Stored,
        meters: Meters,
        pooled: tuple[_Pool, _CounterRows, Places],
        late: Flags | None = None,
    ) -> None:
        """`pooled`: the pool, its rows that `entries` are the form of, and the key of each entry in the pool."""
        self._pool, self._given, codes = pooled
        number_of = np.full(int(codes.max()) + 1, -1)
        number_of[codes[self._given.example]] = keys.of
        #: of all in the pool, the number of the key; -1: no correction touches it
        self._number: Places = number_of[codes]
        past, pool = slice(self._pool.past), self._pool
        stays = (self._number[past] >= 0) & ~pool.leaves[past]
        self._in_value, self._in_total = (self._stand(stays & flags) for flags in (pool.in_value, pool.in_total))
        moving = np.concatenate([self._given.left, self._given.own])
        #: entries that enter or leave, by where they are in the pool
        self._moving: Places = np.unique(moving[moving >= 0])
        super().__init__(entries, keys, stored, meters, late)

    def _kept_apart(self) -> Flags | None:
        return np.ones(len(self._key), np.bool_)

    def _chosen(self) -> Amounts:
        standing = [getattr(side, name) for side in (self._in_value, self._in_total) for name in ("max", "min", "last")]
        quantities = pa.concat_arrays([*standing, self._pool.column("quantity", self._moving)])
        return self._fitting(quantities)

    def _decided(self) -> Flags:
        """A correction is late also if what it takes out was not folded; that may be another's replacement."""
        late = super()._decided()
        given, past = self._given, self._pool.past
        at = self._rows_at()
        found = late[at]
        before = (given.left >= 0) & (given.left < past)
        found[before] |= ~self._pool.folded[given.left[before]]
        # The row by which an entry of the range came, whose decision is followed from row to row.
        row_of = np.full(len(self._number) - past, -1)
        entered = given.own >= 0
        row_of[given.own[entered] - past] = np.flatnonzero(entered)
        parent = np.where(given.left >= past, row_of[np.maximum(given.left - past, 0)], -1) if len(row_of) else None
        while parent is not None and (parent >= 0).any():
            follows = parent >= 0
            found[follows] |= found[parent[follows]]
            parent = np.where(follows, parent[np.maximum(parent, 0)], -1)
        late[at] = found
        return late

    def _reasons(self, places: Places) -> Array:
        of_entries = np.concatenate([np.zeros(self._stored.num_rows, np.int64), self._given.reason])
        found = of_entries[self._order[places]]
        return found if self._closed is None else np.where(self._closed[places], REASONS.index("closed"), found)

    def _aggregate(self, lookup: Stored) -> None:
        amounts, given = self._amounts, self._given
        entering = column(self._entries, "quantity")
        zeros = np.zeros(self._stored.num_rows, amounts.type)
        quantity = amounts.of_quantities(entering)
        self._quantity = self._ordered(zeros, quantity)
        self._has_quantity = self._placed(entering.is_valid().to_numpy(False))
        net = self._ordered(zeros, quantity - amounts.of_decimals(self._pool.column("quantity", given.left)))
        events = self._ordered(np.zeros(self._stored.num_rows, np.int64), (given.own >= 0) - 1 * (given.left >= 0))
        enters = self._placed(given.own >= 0)
        folded = np.where(enters & ~self._late | self._is_stored, self._occurred, EARLIEST)
        self._watermark = self._runs.greatest(folded)
        self._agg = self._sums("agg", net, events, ~self._late)
        self._adj = self._sums("adj", net, events, self._late)
        for side, standing, moving in (
            (self._agg, self._in_value, self._moved(total=False)),
            (self._adj, self._in_total, self._moved(total=True)),
        ):
            side |= self._extremes(standing, moving)
        if self._keys.distinct is not None:
            self._count_texts(lookup)
        self._last_at, self._adj_last_at = self._agg["last_at"], self._adj["last_at"]
        self._value, self._has_value = self._by_aggregation(self._values())
        total, self._has_total = self._by_aggregation(self._totals())
        self._total = total if self._has_total is None else np.where(self._has_total, total, np.zeros(1, amounts.type))

    def _sums(self, name: str, net: Array, events: Array, flags: Flags) -> dict[str, Array]:
        flags, zero = flags & ~self._is_stored, np.zeros(1, self._amounts.type)[0]
        sums = np.where(self._is_stored, self._stored_amounts(f"{name}_sum"), np.where(flags, net, zero))
        counts = np.where(self._is_stored, self._joined(f"{name}_count", None, 0), np.where(flags, events, 0))
        return {"sum": self._runs.total(sums), "count": self._runs.total(counts)}

    def _intervals(self, *, total: bool) -> tuple[Places, Places, Flags]:
        """From where to where what moves is in the value, or in the total, and whether it is there at all."""
        given, pool, moving = self._given, self._pool, self._moving
        at, key = self._rows_at(), self._number[moving]
        ends = self._runs.ends[key] + 1
        came, went = np.full(len(moving), -1), np.full(len(moving), -1)
        for places, of in ((came, given.own), (went, given.left)):
            places[np.searchsorted(moving, of[of >= 0])] = at[of >= 0]
        start = np.where(came >= 0, came, self._runs.starts[key])
        end = np.where(went >= 0, went, ends)
        if total:
            return start, end, np.ones(len(moving), np.bool_)
        # A late one enters the total only, and leaves only the total.
        before = np.zeros(len(moving), np.bool_)
        before[moving < pool.past] = pool.in_value[moving[moving < pool.past]]
        there = np.where(came >= 0, ~self._late[came], before)
        return start, np.where((went >= 0) & self._late[went], ends, end), there

    def _moved(self, *, total: bool) -> _Moving:
        """What has a quantity of that."""
        start, end, there = self._intervals(total=total)
        there = there & self._pool.column("quantity", self._moving).is_valid().to_numpy(False)
        moving = self._moving[there]
        return _Moving(
            start[there],
            end[there],
            self._pool.column("quantity", moving),
            self._pool.column("occurred_at", moving).to_numpy(),
            self._pool.sequence[moving],
        )

    def _count_texts(self, lookup: Stored) -> None:
        """A text is in a set from where its first entry enters it to where its last one leaves it."""
        texts = self._pool.column("text", self._moving)
        some = texts.is_valid().to_numpy(False)
        if not some.any():
            return
        encoded = texts.filter(pa.array(some)).dictionary_encode()
        keys, count = self._number[self._moving[some]], len(encoded.dictionary)
        codes, example, pairs = np.unique(
            keys * count + encoded.indices.to_numpy(), return_index=True, return_inverse=True
        )
        # What a collection does there and back has not happened.
        ends = self._collection_ends()
        flipped, present = np.full(len(codes), -1), []
        for total, in_set, side in ((True, self._pool.in_total, self._adj), (False, self._pool.in_value, self._agg)):
            start, end, there = (found[some] for found in self._intervals(total=total))
            leaves = there & (end <= self._runs.ends[keys])
            of = np.concatenate([pairs[there], pairs[leaves]])
            places = np.concatenate([start[there], end[leaves]])
            steps = np.repeat([1, -1], [int(there.sum()), int(leaves.sum())])
            standing = np.isin(codes, self._standing_texts(in_set, encoded.dictionary))
            _, place, change, _ = _flips(of, places, steps, standing)
            added = np.zeros(len(self._key), np.int64)
            np.add.at(added, place, np.where(self._is_stored[place], 0, change))
            more = self._runs.total(self._amounts.of_counts(added))
            side["sum"] = side["sum"] + more
            if not total:
                # Of the total there is what it has beside the value.
                self._adj["sum"] = self._adj["sum"] - more
            pair, place, change, final = _flips(of, ends[places], steps, standing)
            altered = (change != 0) & ~self._is_stored[place]
            np.maximum.at(flipped, pair[altered], place[altered])
            present.append(final)
        own = encoded.indices.take(pa.array(example))
        seen = Texts(self._keys.owners(), keys[example], encoded.dictionary.take(own), lookup)
        times = self._times[np.maximum(flipped, 0)]
        self.texts.append(seen.settled(present[1], present[0], flipped >= 0, times))

    def _standing_texts(self, in_set: Flags, texts: pa.Array) -> Places:
        """Which of these texts stay in a set over all rows: numbers of key and text."""
        past = self._pool.past
        kept = np.flatnonzero((self._number[:past] >= 0) & ~self._pool.leaves[:past] & in_set)
        found = pc.index_in(self._pool.column("text", kept), value_set=texts)
        some = found.is_valid().to_numpy(False)
        own = found.filter(pa.array(some)).to_numpy().astype(np.int64)
        codes: Places = self._number[kept[some]] * len(texts) + own
        return codes

    def _collection_ends(self) -> Places:
        """Of each row, the last one of its collection and key."""
        last = np.ones(len(self._key), np.bool_)
        last[:-1] = (self._times[1:] != self._times[:-1]) | self._runs.first[1:] | self._is_stored[:-1]
        places = np.flatnonzero(last)
        found: Places = places[np.searchsorted(places, np.arange(len(last)))]
        return found

    def _extremes(self, standing: _Standing, moving: _Moving) -> dict[str, Array]:
        """At each row, of the entries whose intervals cover it. Ranks stand for numbers of any size."""
        amounts, runs = self._amounts, self._runs
        starts = np.concatenate([runs.starts[standing.key], moving.start])
        ends = np.concatenate([runs.ends[standing.key] + 1, moving.end])

        def reached(values: Array, ranks: Places) -> tuple[Places, Array]:
            found = covering(starts, ends, ranks, len(self._key))
            value_of = np.zeros(len(ranks) + 1, values.dtype)
            value_of[ranks] = values
            return found, value_of[found]

        found: dict[str, Array] = {}
        for name, turned in (("max", 1), ("min", -1)):
            numbers = pa.concat_arrays([getattr(standing, name), moving.quantity])
            values = amounts.of_decimals(numbers)
            ranks = np.unique(turned * values, return_inverse=True)[1]
            covered, found[name] = reached(values, ranks)
        found["any"] = covered >= 0
        at = np.concatenate([standing.last_at, moving.occurred_at])
        ranks = np.empty(len(at), np.int64)
        ranks[np.lexsort((np.concatenate([standing.last_sequence, moving.sequence]), at))] = np.arange(len(at))
        numbers = pa.concat_arrays([standing.last, moving.quantity])
        found["last"] = reached(amounts.of_decimals(numbers), ranks)[1]
        found["last_at"] = np.where(found["any"], reached(at, ranks)[1], EARLIEST)
        return found

    def _stand(self, flags: Flags) -> _Standing:
        """What stays of some entries before the range, by key."""
        pool = self._pool
        kept = np.flatnonzero(flags & column(pool.entries, "quantity").slice(0, pool.past).is_valid().to_numpy(False))
        number, at = self._number[kept], pool.column("occurred_at", kept).to_numpy()
        latest = np.full(int(number.max(initial=-1)) + 1, EARLIEST)
        np.maximum.at(latest, number, at)
        candidates = np.flatnonzero(at == latest[number])
        order = candidates[np.lexsort((pool.sequence[kept[candidates]], number[candidates]))]
        last = order[np.append(number[order][1:] != number[order][:-1], True)] if len(order) else order
        values = pa.table({"key": number, "quantity": pool.column("quantity", kept)})
        found = values.group_by("key").aggregate([("quantity", "max"), ("quantity", "min")]).sort_by("key")
        return _Standing(
            key=number[last],
            max=column(found, "quantity_max"),
            min=column(found, "quantity_min"),
            last=pool.column("quantity", kept[last]),
            last_at=at[last],
            last_sequence=pool.sequence[kept[last]],
        )

    def _changed(self, versions: Places, runs: Runs) -> Flags:
        """Whether a version differs from the previous one, in any column."""
        same = ~runs.first
        for values, flags in self._shown():
            own = values[versions]
            equal = own == runs.previous(own, 0)
            if flags is not None:
                known = flags[versions]
                equal = np.where(known, equal, True) & (known == runs.previous(known, False))
            same &= equal
        changed: Flags = ~self._is_stored[versions] & ~same
        return changed

    def _shown(self) -> list[tuple[Array, Flags | None]]:
        """The columns that a row has, and where they are known."""
        agg = self._agg
        extremes = [(agg[name], agg["any"]) for name in ("max", "min", "last")]
        counted = [(agg[name], None) for name in ("sum", "count")]
        return [
            *counted,
            *extremes,
            (self._watermark, None),
            (self._value, self._has_value),
            (self._total, self._has_total),
        ]

    def _rows_at(self) -> Places:
        """Where the rows are among stored rows and rows, in order."""
        places = np.empty(len(self._order), np.int64)
        places[self._order] = np.arange(len(self._order))
        return places[self._stored.num_rows :]


def covering(starts: Places, ends: Places, ranks: Places, count: int) -> Places:
    """At each of `count` places the greatest rank of the intervals [start, end) that cover it; -1: none does.

    A sparse table, the other way round: an interval is two blocks of one power of two, and each block gives what it has
    to its halves. So it takes as many passes as the longest interval has binary digits.
    """
    some = ends > starts
    starts, ends, ranks = starts[some], ends[some], ranks[some]
    # Exact for lengths below 2^53.
    exponents = np.frexp((ends - starts).astype(np.float64))[1].astype(np.int64) - 1
    found: Places = np.full(count, -1)
    for exponent in range(int(exponents.max(initial=0)), -1, -1):
        own = exponents == exponent
        np.maximum.at(found, starts[own], ranks[own])
        np.maximum.at(found, ends[own] - (1 << exponent), ranks[own])
        if exponent:
            half = 1 << (exponent - 1)
            # A block may not reach beyond the last place.
            lower = found.copy()
            np.maximum(found[half:], lower[:-half], out=found[half:])
    return found


def _flips(pairs: Places, places: Places, steps: Places, standing: Flags) -> tuple[Places, Places, Places, Flags]:
    """Each pair has a count, which steps raise and lower at places; of `standing` pairs it is never 0.

    Returns pairs, places and changes: +1 where a count leaves 0, -1 where it comes back to it, otherwise 0; and which
    counts are above 0 at the end."""
    order = np.lexsort((places, pairs))
    pairs, places = pairs[order], places[order]
    last = np.ones(len(pairs), np.bool_)
    last[:-1] = (pairs[1:] != pairs[:-1]) | (places[1:] != places[:-1])
    present = (Runs(pairs).total(steps[order])[last] > 0) | standing[pairs[last]]
    pairs, places = pairs[last], places[last]
    runs = Runs(pairs)
    before = np.where(runs.first, standing[pairs], runs.previous(present, False))
    final = standing.copy()
    final[pairs[runs.ends]] = present[runs.ends]
    return pairs, places, present.astype(np.int64) - before, final


def _among(meters: Places, sequences: Places, of: Places, known: Places) -> Flags:
    """Which pairs of meter and sequence are among some others."""
    found = np.zeros(len(meters), np.bool_)
    for number in np.unique(of):
        own = meters == number
        found[own] = np.isin(sequences[own], known[of == number])
    return found
