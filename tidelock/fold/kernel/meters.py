"""Meters as the kernel needs them, and the keys of their counters and groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.arrow import column, identities
from tidelock.fold.kernel.distinct import Owners
from tidelock.fold.kernel.outcomes import Stored
from tidelock.fold.kernel.runs import Flags, Places, order_of
from tidelock.fold.keys import bounded, joined, json_strings, period_strings
from tidelock.model import ALL_TENANTS
from tidelock.tables import COUNTER_GROUPS, COUNTERS, KEY, OPEN_COUNTERS, Table

#: columns that tell a meter's counters apart
COUNTER_KEY = ("tenant_id", "customer_ref", "period_start")
EARLIEST = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Meters:
    """The meters, by number."""

    names: tuple[str, ...]
    aggregations: tuple[str, ...]
    lateness_ns: tuple[int, ...]
    grouped: tuple[bool, ...]
    live: tuple[bool, ...]
    #: the message for an event that has nothing to aggregate
    missing: tuple[str, ...]
    #: what the texts are made from that are counted (`entries`); none: no meter counts distinct texts
    texts: tuple[str | None, ...] = ()
    #: meter and tenant, or all tenants -> periods that begin before are closed
    closed: Mapping[tuple[int, str], int] = field(default_factory=dict)
    #: whether an event was ever corrected
    corrected: bool = False

    @property
    def counters(self) -> Table:
        """The table of the counters, with the state that they need."""
        return COUNTERS if self.closed or self.corrected else OPEN_COUNTERS

    @property
    def distinct(self) -> Flags:
        """Which of them count distinct texts."""
        return np.asarray([aggregation == "unique_count" for aggregation in self.aggregations], np.bool_)


def key_codes(entries: pa.Table, names: Sequence[str] = COUNTER_KEY) -> Places:
    """The number of each entry's key, from 0 on: of its counter, or of its group."""
    codes: Places = column(entries, "meter").to_numpy().astype(np.int64)
    for name in names:
        values = column(entries, name)
        encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode("encode")
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        # Kept dense, so that no product overflows.
        codes = pa.array(codes).dictionary_encode().indices.to_numpy().astype(np.int64)
    return codes


class CounterKeys:
    """The distinct keys of entries, and the key of each entry.

    They are numbered in the order of tenants and keys: their stored rows are then looked up, and their new rows
    written, along the index and the pages of the table, which takes Postgres half the time.
    """

    def __init__(self, entries: pa.Table, meters: Meters, table: Table) -> None:
        self.table = table
        names = [*COUNTER_KEY, "group_key"] if table is COUNTER_GROUPS else list(COUNTER_KEY)
        customers = column(entries, "customer_ref").dictionary_encode()
        codes = key_codes(
            entries.set_column(entries.column_names.index("customer_ref"), "customer_ref", customers), names
        )
        self.count = int(codes.max()) + 1
        example = np.empty(self.count, np.int64)
        example[codes[::-1]] = np.arange(len(codes))[::-1]
        found = entries.select(["meter", *names]).take(pa.array(example))
        found = found.append_column("metric", pa.array(meters.names, pa.string()).take(column(found, "meter")))
        texts = bounded(joined(*_members(found))) if "group_key" in names else joined(*_members(found))
        self._one_tenant = len(pc.unique(found["tenant_id"])) == 1
        found = found.append_column(KEY, texts)
        order = self._order(found, "tenant_id", KEY)
        found = found.take(order)
        numbers = np.empty(self.count, np.int64)
        numbers[order] = np.arange(self.count)
        #: number of each entry's key
        self.of: Places = numbers[codes]
        self.meter: Places = column(found, "meter").to_numpy()
        self.columns = {name: column(found, name) for name in ("metric", *names) if name != "tenant_id"}
        self.tenants, self.texts = column(found, "tenant_id"), column(found, KEY)
        #: the texts that many keys share, for changes: encoding would have to look for equal ones
        self.coded = {
            "metric": pa.DictionaryArray.from_arrays(pa.array(self.meter), pa.array(meters.names, pa.string())),
            "customer_ref": pa.DictionaryArray.from_arrays(
                customers.indices.take(pa.array(example[order])), customers.dictionary
            ),
        }
        #: which of them count distinct texts; None: none does
        self.distinct: Flags | None = distinct if (distinct := meters.distinct[self.meter]).any() else None

    def stored(self, stored: Stored) -> pa.Table:
        """What is stored of them that counting goes on from; the rest of a row follows from that and its key."""
        wanted = ("agg_", "watermark") if self.distinct is None else ("agg_", "watermark", "value")
        kept = {name: type_ for name, type_ in self.table.columns.items() if name.startswith(wanted)}
        found = stored(replace(self.table, columns=kept), self._places())
        if self.distinct is None:
            return found
        # A counter of distinct texts has no sum: where others keep theirs, it goes on from its value.
        sums = pc.coalesce(found["agg_sum"], found["value"])
        return found.set_column(found.column_names.index("agg_sum"), "agg_sum", sums)

    def owners(self) -> Owners:
        """The counters or groups, as their texts are stored."""
        rows = pa.table(self.columns)
        members = pc.binary_join_element_wise(*_members(rows), ",")
        return Owners(self.tenants, self.columns["metric"], members)

    def closed(self, meters: Meters) -> Flags | None:
        """Which of them lie in a closed period; None: none does."""
        if not meters.closed:
            return None
        of_all = np.full(len(meters.names), EARLIEST)
        own: dict[str, int] = {}
        for (number, tenant), bound in meters.closed.items():
            if tenant == ALL_TENANTS:
                of_all[number] = bound
            else:
                own[f"{number} {tenant}"] = bound
        bounds = of_all[self.meter]
        if own:
            names = pc.binary_join_element_wise(pa.array(self.meter).cast(pa.string()), self.tenants, " ")
            found = pc.index_in(names, value_set=pa.array(own, pa.string()))
            others = pa.array(own.values(), pa.int64()).take(found)
            bounds = np.maximum(bounds, pc.fill_null(others, EARLIEST).to_numpy())
        closed: Flags = self.columns["period_start"].to_numpy() < bounds
        return closed if closed.any() else None

    def _places(self) -> pa.Table:
        return pa.table({"tenant_id": self.tenants, KEY: self.texts})

    def _order(self, keys: pa.Table, *names: str) -> Places:
        """Where keys are in the order of these columns. One column is sorted in half the time of two."""
        if self._one_tenant:
            found = pc.sort_indices(column(keys, KEY))
        else:
            found = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in names])
        order: Places = found.to_numpy().astype(np.int64)
        return order

    def numbers_of(self, rows: pa.Table) -> Places:
        """The numbers of stored rows' keys."""
        names = (KEY,) if self._one_tenant else ("tenant_id", KEY)
        found = pc.index_in(identities(rows, *names), value_set=identities(self._places(), *names))
        assert not found.null_count, "stored rows are those of keys that were asked for"
        numbers: Places = found.to_numpy().astype(np.int64)
        return numbers

    def in_log_order(self, numbers: Places) -> Places:
        """The positions of keys with these ascending numbers in the order of keys and then tenants, as for changes."""
        if self._one_tenant:
            return np.arange(len(numbers))
        ranks = np.empty(self.count, np.int64)
        ranks[self._order(self._places(), KEY, "tenant_id")] = np.arange(self.count)
        return order_of(ranks[numbers])


def _members(keys: pa.Table) -> list[pa.Array]:
    """The members of the keys of counters, or of groups, as JSON."""
    found = [json_strings(column(keys, name)) for name in ("metric", "customer_ref")]
    found.append(period_strings(column(keys, "period_start")))
    if "group_key" in keys.column_names:
        found.append(pc.fill_null(json_strings(column(keys, "group_key")), "null"))
    return found
