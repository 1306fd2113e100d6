"""Counters: what the entries of a range do to counters, groups and adjustments.

An entry is one event as one meter counts it. Sorted by key and sequence, with a key's stored row before its first
entry, everything is a running aggregate: the maximum of `occurred_at` decides which entries are late, and sums, counts,
extremes and the last quantity follow, of folded and of adjusted entries apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.arrow import column
from tidelock.fold.kernel.amounts import Amounts, choose
from tidelock.fold.kernel.distinct import Texts
from tidelock.fold.kernel.meters import EARLIEST, CounterKeys, Meters
from tidelock.fold.kernel.outcomes import Changes, Outcome, Stored, appended, no_keys
from tidelock.fold.kernel.runs import Array, Flags, Places, Runs, order_of
from tidelock.fold.keys import joined, json_strings, number_strings
from tidelock.tables import ADJUSTMENTS, COUNTER_GROUPS, COUNTERS, KEY, OPEN_COUNTERS, Table

_NUMBERS = ("agg_sum", "agg_max", "agg_min", "agg_last", "adj_sum", "adj_max", "adj_min")

#: the last quantity of those that may be it though they were adjusted, and when it occurred
_ADJUSTED_LAST = {COUNTER_GROUPS.name: ("adj_last", "adj_last_at"), COUNTERS.name: ("closed_last", "closed_last_at")}
#: why entries are adjusted, by number
REASONS = ("late", "closed", "void", "amend")


def count(entries: pa.Table, meters: Meters, stored: Stored, *, changes: bool = True) -> Iterator[Outcome]:
    """The effects of entries, which are in any order. They have `ingress_sequence`, `source_timestamp`, `tenant_id`,
    `customer_ref`, `occurred_at`, `meter`, `period_start`, `quantity` and `group_key`; where a meter counts distinct
    texts, `text` too."""
    if not entries.num_rows:
        return
    entries = _in_sequence(entries)
    keys = CounterKeys(entries, meters, meters.counters)
    counted = CountedRows(entries, keys, stored, meters)
    yield counted.outcome(changes)
    yield from counted.texts
    yield counted.adjustments(changes)
    if any(meters.grouped):
        late = counted.adjusted_entries()
        grouped = np.asarray(meters.grouped)[column(entries, "meter").to_numpy()]
        rows = pa.array(np.flatnonzero(grouped))
        if len(rows):
            entries, late = entries.take(rows), late[grouped]
            keys = CounterKeys(entries, meters, COUNTER_GROUPS)
            groups = CountedRows(entries, keys, stored, meters, late)
            yield groups.outcome(changes)
            yield from groups.texts


def _in_sequence(entries: pa.Table) -> pa.Table:
    entries = entries.combine_chunks()
    sequences = column(entries, "ingress_sequence").to_numpy()
    if (sequences[1:] >= sequences[:-1]).all():
        return entries
    return entries.take(pa.array(np.argsort(sequences, kind="stable")))


class CountedRows:
    """Stored rows and entries in the order of keys and sequences, with their running aggregates."""

    def __init__(
        self, entries: pa.Table, keys: CounterKeys, stored: Stored, meters: Meters, late: Flags | None = None
    ) -> None:
        """`late`: which entries are adjusted; of groups their counters decide."""
        self._keys, self._meters = keys, meters
        self._entries, self._stored = entries, keys.stored(stored).combine_chunks()
        self._groups = keys.table is COUNTER_GROUPS
        #: the columns of the last that was adjusted; None: whatever was adjusted is never the last
        self._adjusted_last = None if keys.table is OPEN_COUNTERS else _ADJUSTED_LAST[keys.table.name]
        numbers = np.concatenate([keys.numbers_of(self._stored), keys.of])
        #: where the rows in order are among stored rows and entries
        self._order = order_of(numbers)
        self._key: Places = numbers[self._order]
        self._is_stored: Flags = self._order < self._stored.num_rows
        self._runs = Runs(self._key)
        #: rows of keys with a correction, whose totals are kept apart from their values; None: there are none
        self._parted = self._kept_apart()
        self._amounts = self._chosen()
        self._times: Places = self._joined("source_timestamp", "source_timestamp")
        #: number of each entry's collection: later ones have later source timestamps
        own = column(entries, "source_timestamp").to_numpy()
        following = np.concatenate([np.zeros(1, np.int64), np.cumsum(own[1:] != own[:-1])])
        self._collection: Places = self._ordered(np.zeros(self._stored.num_rows, np.int64), following)
        self._occurred = self._joined("watermark_ts", "occurred_at")
        #: the latest instant up to each row, late entries included
        self._reached: Places = self._runs.greatest(self._occurred)
        #: entries of closed periods; None: there are none
        self._closed = self._behind_close() if late is None else None
        #: entries that are adjusted: they are late, or come after a close
        self._late = self._decided() if late is None else self._placed(late)
        #: what the entries do to the distinct texts of their keys; none: no meter here counts texts
        self.texts: list[Outcome] = []
        self._aggregate(stored)

    def adjusted_entries(self) -> Flags:
        """Which entries are late or come after a close, in their own order."""
        found = np.zeros(len(self._order), np.bool_)
        found[self._order] = self._late
        return found[self._stored.num_rows :]

    def outcome(self, changes: bool) -> Outcome:
        """Final rows, and one change per key and collection that changed its row. Every key has an entry."""
        last = np.ones(len(self._key), np.bool_)
        last[:-1] = (self._times[1:] != self._times[:-1]) | self._runs.first[1:] | self._is_stored[:-1]
        versions = np.flatnonzero(last)
        runs = Runs(self._key[versions])
        changed = self._changed(versions, runs)
        # The last collection that changed the row, which may be the stored row's.
        since = runs.latest(changed | self._is_stored[versions])
        times = self._times[versions[np.maximum(since, 0)]]
        final = runs.ends
        rows = self._rows(versions[final], state=True)
        numbers = pa.array(self._key[versions[final]])
        rows |= {"tenant_id": self._keys.tenants.take(numbers), KEY: self._keys.texts.take(numbers)}
        rows["source_timestamp"] = pa.array(times[final])
        known = self._is_stored[versions[runs.starts]]
        table = pa.table(rows).select(_stored_names(self._keys.table))
        found = self._changes(versions, runs, changed) if changes and any(self._meters.live) else None
        return Outcome(
            self._keys.table,
            table.filter(pa.array(known)) if known.any() else table.slice(0, 0),
            table.filter(pa.array(~known)) if known.any() else table,
            no_keys(),
            found,
        )

    def adjustments(self, changes: bool) -> Outcome:
        """One row for each adjusted entry: how much it moves the total."""
        late = np.flatnonzero(self._late)
        amounts = self._total[late] - self._total_before(late)
        numbers, entries = pa.array(self._key[late]), pa.array(self._order[late] - self._stored.num_rows)
        sequences = column(self._entries, "ingress_sequence").take(entries)
        metrics = self._keys.columns["metric"].take(numbers)
        rows = pa.table(
            {
                "tenant_id": self._keys.tenants.take(numbers),
                KEY: joined(json_strings(metrics), number_strings(sequences)),
                "source_timestamp": pa.array(self._times[late]),
                "metric": metrics,
                "customer_ref": self._keys.columns["customer_ref"].take(numbers),
                "period_start": self._keys.columns["period_start"].take(numbers),
                "ingress_sequence": sequences,
                "quantity": self._amounts.decimals(self._quantity[late], self._has_quantity[late]),
                "amount": self._amounts.decimals(amounts),
                "reason": pa.array(REASONS).take(pa.array(self._reasons(late))),
                "occurred_at": pa.array(self._occurred[late]),
            }
        )
        live = np.asarray(self._meters.live)[self._keys.meter[self._key[late]]]
        return appended(ADJUSTMENTS, rows, live if changes else False)

    def _total_before(self, places: Places) -> Array:
        """What totals were before entries at some places; 0 where there was none, as in a counter that begins there."""
        known = ~self._runs.first[places]
        if self._has_total is not None:
            known &= self._has_total[places - 1]
        found: Array = np.where(known, self._total[places - 1], np.zeros(1, self._amounts.type)[0])
        return found.astype(self._amounts.type)

    def _reasons(self, places: Places) -> Array:
        if self._closed is None:
            return np.zeros(len(places), np.int8)
        return self._closed[places].astype(np.int8)

    def _chosen(self) -> Amounts:
        return self._fitting(column(self._entries, "quantity"))

    def _fitting(self, quantities: pa.Array) -> Amounts:
        """The numbers that hold these quantities and what is stored, and all their sums."""
        names = _NUMBERS if self._adjusted_last is None else (*_NUMBERS, self._adjusted_last[0])
        stored = [column(self._stored, name) for name in names] if self._stored.num_rows else []
        counts = [pc.max(self._stored[name]).as_py() or 0 for name in ("agg_count", "adj_count")]
        used = {self._meters.aggregations[number] for number in np.unique(self._keys.meter)}
        return choose(quantities, stored, len(quantities) + max(counts), averaged="avg" in used)

    def _decided(self) -> Flags:
        """An entry is late if it is further behind the latest one before it than its meter allows. A late entry never
        raises that maximum, so one running maximum decides everything. A difference that underflows is before all
        instants.
        """
        before = self._runs.previous(self._reached, EARLIEST)
        allowed = np.asarray(self._meters.lateness_ns, np.int64)[self._keys.meter[self._key]]
        bound = np.where(before < EARLIEST + allowed, EARLIEST, before - allowed)
        late: Flags = ~self._is_stored & (self._occurred < bound)
        return late if self._closed is None else late | self._closed

    def _kept_apart(self) -> Flags | None:
        if "parted" not in self._keys.table.state:
            return None
        flags = pc.fill_null(column(self._stored, "parted"), False).to_numpy(False)
        if not flags.any():
            return None
        parted = np.zeros(self._keys.count, np.bool_)
        parted[self._keys.numbers_of(self._stored)[flags]] = True
        found: Flags = parted[self._key]
        return found

    def _behind_close(self) -> Flags | None:
        closed = self._keys.closed(self._meters)
        return None if closed is None else ~self._is_stored & closed[self._key]

    def _aggregate(self, lookup: Stored) -> None:
        """All running aggregates, of folded and of late entries."""
        runs, amounts, stored = self._runs, self._amounts, self._is_stored
        quantities = column(self._entries, "quantity")
        quantity, valid = amounts.of_quantities(quantities), quantities.is_valid().to_numpy(False)
        self._quantity = self._ordered(np.zeros(self._stored.num_rows, amounts.type), quantity)
        self._has_quantity: Flags = self._ordered(np.zeros(self._stored.num_rows, np.bool_), valid)
        folded, late = ~self._late & ~stored & self._has_quantity, self._late & self._has_quantity
        self._agg = self._side("agg", folded, ~self._late & ~stored)
        # Where the total is kept apart, its extremes and its last are of all that it covers.
        beside = late if self._parted is None else late | self._parted & folded
        self._adj = self._side("adj", late, self._late, beside)
        if self._keys.distinct is not None:
            self._count_texts(lookup)
        self._watermark = self._reached
        if (self._groups or self._closed is not None) and self._late.any():
            # What comes after a close, or is late for its counter, may be the latest of its counter or group.
            self._watermark = runs.greatest(np.where(self._late, EARLIEST, self._occurred))
        last_at = np.where(folded, self._occurred, EARLIEST)
        last_at = np.where(stored, self._joined("last_at", None), last_at)
        # Mostly every entry has a quantity.
        same = ((last_at == self._occurred) | self._late).all()
        self._last_at = self._watermark if same else runs.greatest(last_at)
        taken = (last_at == self._last_at) & (folded | stored & (last_at > EARLIEST))
        self._agg["last"] = self._taken("agg_last", taken)
        if self._adjusted_last is not None:
            name, name_at = self._adjusted_last
            lasting = self._may_last(beside)
            at = np.full(len(late), EARLIEST) if lasting is None else np.where(lasting, self._occurred, EARLIEST)
            at = np.where(stored, self._joined(name_at, None), at)
            self._adj_last_at = runs.greatest(at)
            self._adj["last"] = self._taken(name, (at == self._adj_last_at) & (at > EARLIEST))
        self._value, self._has_value = self._by_aggregation(self._values())
        self._total, self._has_total = self._by_aggregation(self._totals())

    def _count_texts(self, lookup: Stored) -> None:
        """Where meters count distinct texts, these are their sums: each first text adds one."""
        texts = column(self._entries, "text")
        places = np.flatnonzero(self._placed(texts.is_valid().to_numpy(False)))
        if not len(places):
            return
        own = texts.take(pa.array(self._order[places] - self._stored.num_rows))
        seen = Texts(self._keys.owners(), self._key[places], own, lookup)
        to_value, to_total, outcome = seen.counted(~self._late[places], self._times[places])
        for side, more in ((self._agg, to_value), (self._adj, to_total - to_value)):
            added = np.zeros(len(self._key), self._amounts.type)
            added[places] = self._amounts.of_counts(more)
            side["sum"] = side["sum"] + self._runs.total(added)
        self.texts.append(outcome)

    def _may_last(self, beside: Flags) -> Flags | None:
        """Which entries may be the last of those beside the value; None: none."""
        if self._groups:
            return beside
        closed = None if self._closed is None else beside & self._closed
        if self._parted is None:
            return closed
        return beside & self._parted if closed is None else beside & self._parted | closed

    def _side(self, name: str, quantities: Flags, events: Flags, extremes: Flags | None = None) -> dict[str, Array]:
        """Sum, count, maximum and minimum of some entries and their stored values; `extremes`: the last two of these
        entries."""
        runs, amounts, stored = self._runs, self._amounts, self._is_stored
        extremes = quantities if extremes is None else extremes
        known = self._stored_valid(f"{name}_max")
        some = extremes | known
        zero = np.zeros(1, amounts.type)[0]
        found: dict[str, Array] = {"any": runs.total(some.astype(np.int64)) > 0}
        before = self._stored_amounts(f"{name}_sum")
        found["sum"] = runs.total(np.where(stored, before, np.where(quantities, self._quantity, zero)))
        counts = self._joined(f"{name}_count", None, 0)
        found["count"] = runs.total(np.where(stored, counts, events.astype(np.int64)))
        if not some.any():
            lowest, highest = np.asarray([amounts.lowest, amounts.highest], amounts.type)
            return found | {"max": np.full(len(some), lowest), "min": np.full(len(some), highest)}
        for end, none, reach in (("max", amounts.lowest, runs.greatest), ("min", amounts.highest, runs.least)):
            before = self._stored_amounts(f"{name}_{end}")
            values = np.where(extremes, self._quantity, np.where(known, before, none))
            found[end] = reach(values.astype(amounts.type))
        return found

    def _taken(self, name: str, flags: Flags) -> Array:
        """The quantity, or what is stored, of the last flagged row."""
        values = np.where(self._is_stored, self._stored_amounts(name), self._quantity)
        return values[np.maximum(self._runs.latest(flags), 0)]

    def _values(self) -> dict[str, Callable[[], tuple[Array, Flags | None]]]:
        agg, amounts = self._agg, self._amounts
        return {
            "sum": lambda: (agg["sum"], None),
            "count": lambda: (amounts.of_counts(agg["count"]), None),
            "max": lambda: (agg["max"], agg["any"]),
            "min": lambda: (agg["min"], agg["any"]),
            "last": lambda: (agg["last"], agg["any"]),
            "avg": lambda: (amounts.averages(agg["sum"], agg["count"]), agg["count"] > 0),
            "unique_count": lambda: (agg["sum"], None),
        }

    def _totals(self) -> dict[str, Callable[[], tuple[Array, Flags | None]]]:
        agg, adj, amounts = self._agg, self._adj, self._amounts
        return {
            "sum": lambda: (agg["sum"] + adj["sum"], None),
            "count": lambda: (amounts.of_counts(agg["count"] + adj["count"]), None),
            "max": lambda: self._extreme_total("max", np.maximum),
            "min": lambda: self._extreme_total("min", np.minimum),
            "last": self._last_total,
            "avg": lambda: (
                amounts.averages(agg["sum"] + adj["sum"], agg["count"] + adj["count"]), agg["count"] + adj["count"] > 0
            ),
            "unique_count": lambda: (agg["sum"] + adj["sum"], None),
        }  # fmt: skip

    def _extreme_total(self, name: str, choose: np.ufunc) -> tuple[Array, Flags]:
        agg, adj = self._agg, self._adj
        found, either = choose(agg[name], adj[name]), agg["any"] | adj["any"]
        if self._parted is None:
            return found, either
        return np.where(self._parted, adj[name], found), np.where(self._parted, adj["any"], either)

    def _last_total(self) -> tuple[Array, Flags]:
        """A late entry lies behind its counter's latest, so it is never the last. One after a close may be, and one of
        a group: the counter's latest can belong to another group."""
        agg, adj = self._agg, self._adj
        if self._adjusted_last is None:
            return agg["last"], agg["any"]
        adjusted = (self._last_at == EARLIEST) | (adj["any"] & (self._adj_last_at >= self._last_at))
        if self._parted is not None:
            adjusted |= self._parted
        return np.where(adjusted, adj["last"], agg["last"]), np.where(adjusted, adj["any"], agg["any"])

    def _by_aggregation(self, made: dict[str, Callable[[], tuple[Array, Flags | None]]]) -> tuple[Array, Flags | None]:
        """The value of each row by its meter; without flags, all rows have one."""
        numbers = np.unique(self._keys.meter)
        wanted = dict.fromkeys(self._meters.aggregations[number] for number in numbers)
        if len(wanted) == 1:
            return made[next(iter(wanted))]()
        of_meter = np.asarray([list(wanted).index(a) if a in wanted else -1 for a in self._meters.aggregations])
        which = of_meter[self._keys.meter[self._key]]
        values = np.zeros(len(which), self._amounts.type)
        known = np.ones(len(which), np.bool_)
        for number, aggregation in enumerate(wanted):
            found, flags = made[aggregation]()
            values = np.where(which == number, found, values)
            if flags is not None:
                known = np.where(which == number, flags, known)
        return values, known

    def _changed(self, versions: Places, runs: Runs) -> Flags:
        """Whether a version differs from the previous one. A folded entry raises the count; a late one alters only the
        total.
        """
        counts = self._agg["count"][versions]
        totals = self._total[versions]
        known = np.ones(len(versions), np.bool_) if self._has_total is None else self._has_total[versions]
        same = counts == runs.previous(counts, -1)
        same &= known == runs.previous(known, False)
        same &= ~known | (totals == runs.previous(totals, 0))
        changed: Flags = ~self._is_stored[versions] & (runs.first | ~same)
        return changed

    def _changes(self, versions: Places, runs: Runs, changed: Flags) -> Changes:
        keys = self._key[versions]
        live = np.asarray(self._meters.live)[self._keys.meter[keys]]
        stored = self._is_stored[versions]
        kept = np.flatnonzero((changed | stored) & live)
        # In the order of keys: the old row of a change is the row before it, if it has the same key.
        follows = ~Runs(keys[kept]).first
        places = np.flatnonzero(~stored[kept])
        chosen = kept[places]
        order = self._keys.in_log_order(keys[chosen])
        order = order[order_of(self._collection[versions[chosen[order]]])]
        place_of = np.full(len(kept), -1, np.int64)
        place_of[places[order]] = np.arange(len(order))
        explicit = np.cumsum(stored[kept]) - 1
        previous = places - 1
        before = np.where(
            follows[places],
            np.where(stored[kept[previous]], -2 - explicit[previous], place_of[previous]),
            -1,
        )
        numbers = pa.array(keys[chosen][order].astype(np.int32))
        old = kept[stored[kept]]
        return Changes(
            tenant_id=self._keys.tenants.take(numbers),
            key=pa.DictionaryArray.from_arrays(numbers, self._keys.texts),
            source_timestamp=pa.array(self._times[versions[chosen]][order]),
            rows=pa.table(self._rows(versions[chosen[order]], state=False)),
            exists=None,
            before=before[order],
            old_rows=pa.table(self._rows(versions[old], state=False)),
        )

    def _rows(self, places: Places, *, state: bool) -> dict[str, pa.Array]:
        """The columns of rows at some places."""
        decimals = self._amounts.decimals
        agg, adj, numbers = self._agg, self._adj, pa.array(self._key[places])
        columns = self._keys.columns if state else self._keys.columns | self._keys.coded
        found = {name: values.take(numbers) for name, values in columns.items()}
        some, adjusted = agg["any"][places], adj["any"][places]
        distinct = None if self._keys.distinct is None else self._keys.distinct[self._key[places]]
        found["agg_sum"] = decimals(agg["sum"][places], None if distinct is None else ~distinct)
        found["agg_count"] = pa.array(agg["count"][places])
        for name in ("max", "min", "last"):
            found[f"agg_{name}"] = decimals(agg[name][places], some)
        found["watermark_ts"] = _instants(self._watermark[places])
        same = self._value is agg["sum"] and distinct is None
        found["value"] = found["agg_sum"] if same else decimals(self._value[places], _some(self._has_value, places))
        found["total"] = decimals(self._total[places], _some(self._has_total, places))
        if state:
            found["last_at"] = _instants(self._last_at[places])
            found["adj_sum"] = decimals(adj["sum"][places])
            found["adj_count"] = pa.array(adj["count"][places])
            for name in ("max", "min"):
                found[f"adj_{name}"] = decimals(adj[name][places], adjusted)
            if self._adjusted_last is not None:
                name, name_at = self._adjusted_last
                last_at = self._adj_last_at[places]
                found[name] = decimals(adj["last"][places], last_at > EARLIEST)
                found[name_at] = _instants(last_at)
                parted = np.zeros(len(places), np.bool_) if self._parted is None else self._parted[places]
                found["parted"] = pa.array(parted, mask=~parted)
        return found

    def _joined(self, stored: str, entry: str | None, none: int = EARLIEST) -> Places:
        """A column of whole numbers of stored rows, and one of entries, in order."""
        before = pc.fill_null(column(self._stored, stored), none).to_numpy()
        own = np.full(self._entries.num_rows, none) if entry is None else column(self._entries, entry).to_numpy()
        found: Places = self._ordered(before, own)
        return found

    def _stored_amounts(self, name: str) -> Array:
        """Amounts of stored rows, in order; zeros where entries are."""
        amounts = self._amounts.of_decimals(column(self._stored, name))
        return self._ordered(amounts, np.zeros(self._entries.num_rows, self._amounts.type))

    def _stored_valid(self, name: str) -> Flags:
        valid = column(self._stored, name).is_valid().to_numpy(False)
        found: Flags = self._ordered(valid, np.zeros(self._entries.num_rows, np.bool_))
        return found

    def _placed(self, flags: Flags) -> Flags:
        found: Flags = self._ordered(np.zeros(self._stored.num_rows, np.bool_), flags)
        return found

    def _ordered(self, stored: Array, entries: Array) -> Array:
        return np.concatenate([stored, entries])[self._order]


def _stored_names(table: Table) -> list[str]:
    return ["tenant_id", KEY, "source_timestamp", *table.stored]


def _instants(values: Places) -> pa.Array:
    """Instants; null where there was none."""
    return pa.array(values, mask=values == EARLIEST)


def _some(flags: Flags | None, places: Places) -> Flags | None:
    return None if flags is None else flags[places]
