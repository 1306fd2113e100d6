"""Distinct texts: what each counter and group of `unique_count` has seen.

A text that a counter or group has seen is a row of its own, found by its key: the members of the counter's key, and the
text. A row says whether the text is in `value` and whether it is in `total`. Only the rows of the texts in a range are
looked up, so memory is bounded by the range however many texts a counter has. Texts are kept, not digests of them: a
count is exact then, and what a customer's counters have seen can be found by the beginning of their keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.arrow import column, identities
from tidelock.fold.kernel.outcomes import Outcome, Stored, no_keys, row_schema
from tidelock.fold.kernel.runs import Array, Flags, Places
from tidelock.fold.keys import bounded, joined, json_strings
from tidelock.tables import DISTINCT, KEY


@dataclass(frozen=True, slots=True)
class Owners:
    """The counters or groups whose texts are counted, by number."""

    tenants: pa.Array
    metrics: pa.Array
    #: the members of their keys, as JSON, without brackets
    members: pa.Array


class Texts:
    """The texts of entries, which come in the order of owners and sequences, and what is stored of them."""

    def __init__(self, owners: Owners, of: Places, texts: pa.Array, stored: Stored) -> None:
        """`of`: the owner of each entry."""
        self._owners = owners
        encoded = texts.dictionary_encode()
        codes = of * len(encoded.dictionary) + encoded.indices.to_numpy()
        # Numbered as they come, so an entry is the first of its pair where the number is higher than all before.
        pairs = pa.array(codes).dictionary_encode().indices.to_numpy().astype(np.int64)
        count = int(pairs.max()) + 1
        example = _first(pairs, np.arange(len(pairs)), count)
        keys = text_keys(owners, of[example], texts.take(pa.array(example)))
        tenants = owners.tenants.take(pa.array(of[example]))
        places = pa.table({"tenant_id": tenants, KEY: keys})
        order = pc.sort_indices(places, sort_keys=[("tenant_id", "ascending"), (KEY, "ascending")]).to_numpy()
        numbers = np.empty(count, np.int64)
        numbers[order] = np.arange(count)
        #: the pair of owner and text of each entry; pairs are in the order of their keys
        self._of: Places = numbers[pairs]
        self._count = count
        self._owner = of[example][order]
        self._places = places.take(pa.array(order))
        self._known = stored(DISTINCT, self._places)

    def counted(self, folded: Flags, times: Places) -> tuple[Array, Array, Outcome]:
        """What each entry adds to value and total, each 0 or 1, and the rows to store. Every entry is in the total;
        those that are `folded` are in the value too."""
        there, in_value, in_total = self._flags()
        places = np.arange(len(self._of))
        first = _first(self._of, places, self._count)
        first_folded = _first(self._of[folded], places[folded], self._count)
        to_value, to_total = (first_folded >= 0) & ~in_value, ~in_total
        more_value, more_total = np.zeros(len(self._of), np.int64), np.zeros(len(self._of), np.int64)
        more_value[first_folded[to_value]] = 1
        more_total[first[to_total]] = 1
        changed = np.where(to_total, times[first], np.iinfo(np.int64).min)
        changed[to_value] = np.maximum(changed, times[first_folded])[to_value]
        rows = self._rows(in_value | to_value, np.ones(self._count, np.bool_), changed)
        return more_value, more_total, _outcome(rows, there, to_value | to_total)

    def settled(self, in_value: Flags, in_total: Flags, altered: Flags, times: Places) -> Outcome:
        """The rows to store where the texts are now in value and total as these flags of each entry say; what is in
        neither is removed. A row that was `altered`, be it there and back, gets the entry's source timestamp.

        Corrections fold a counter again from its slice of the ledger: each text that something happens to is an entry,
        once. So no other row of the counter needs to be looked for.
        """
        assert len(self._of) == self._count, "each text of an owner comes once"
        there, _, _ = self._flags()
        order = np.argsort(self._of)
        value, total = in_value[order], in_total[order]
        found = _outcome(self._rows(value, total, times[order]), there, altered[order] & (value | total))
        removed = self._places.filter(pa.array(there & ~value & ~total))
        return Outcome(DISTINCT, found.rows, found.fresh, removed if removed.num_rows else no_keys(), None)

    def _flags(self) -> tuple[Flags, Flags, Flags]:
        """Which pairs are stored, and where."""
        found = pc.index_in(
            identities(self._known, "tenant_id", KEY), value_set=identities(self._places, "tenant_id", KEY)
        )
        places = found.to_numpy(False).astype(np.int64)
        flags = []
        for values in (pa.repeat(True, len(places)), column(self._known, "in_value"), column(self._known, "in_total")):
            flag = np.zeros(self._count, np.bool_)
            flag[places] = values.to_numpy(False)
            flags.append(flag)
        return flags[0], flags[1], flags[2]

    def _rows(self, in_value: Flags, in_total: Flags, times: Places) -> pa.Table:
        rows = {
            "source_timestamp": pa.array(times),
            "metric": self._owners.metrics.take(pa.array(self._owner)),
            "in_value": pa.array(in_value),
            "in_total": pa.array(in_total),
        }
        found = self._places
        for name, values in rows.items():
            found = found.append_column(name, values)
        return found.select(row_schema(DISTINCT).names)


def text_keys(owners: Owners, of: Places, texts: pa.Array) -> pa.Array:
    """The keys of texts. A key that is too long is cut, and a digest in it keeps it unique."""
    return bounded(joined(owners.members.take(pa.array(of)), json_strings(texts)))


def _first(numbers: Places, places: Places, count: int) -> Places:
    """The first place of each number; -1 where there is none."""
    found = np.full(count, -1, np.int64)
    # Of several that are written to one place the last wins.
    found[numbers[::-1]] = places[::-1]
    return found


def _outcome(rows: pa.Table, there: Flags, altered: Flags) -> Outcome:
    known, fresh = rows.filter(pa.array(there & altered)), rows.filter(pa.array(~there & altered))
    return Outcome(DISTINCT, known, fresh, no_keys(), None)
