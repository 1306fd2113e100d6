"""Latest rows: the effect of events of keyed streams on their tables, the last of each key and collection."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.arrow import column, typed
from tidelock.fold.kernel.outcomes import Outcome, Stored, chained, first_versions
from tidelock.fold.kernel.runs import Runs, order_of
from tidelock.tables import KEY, Table

#: names of the columns with values as strings, as many as the widest table has
VALUE = "value_{number}"


@dataclass(frozen=True, slots=True)
class LatestTable:
    """A keyed stream's table."""

    stream: str
    table: Table
    live: bool


def keep(events: pa.Table, latest: LatestTable, stored: Stored, *, changes: bool = True) -> Outcome:
    """The effect of prepared events on a stream's table. A row travels as strings and gets its types here."""
    versions = _versions(events, latest)
    recorded = changes and latest.live
    return chained(latest.table, versions, stored(latest.table, first_versions(versions)), changes=recorded)


def _versions(events: pa.Table, latest: LatestTable) -> pa.Table:
    """Rows after every collection that touched them, sorted by key and sequence."""
    kept = pc.and_(pc.is_null(events["objection"]), pc.is_valid(events[KEY]))
    rows = events.filter(pc.and_(kept, pc.equal(events["stream"], latest.stream))).combine_chunks()
    rows = rows.take(pc.sort_indices(rows["ingress_sequence"]))
    tenants, keys = (column(rows, name).dictionary_encode() for name in ("tenant_id", KEY))
    codes = tenants.indices.to_numpy().astype(np.int64) * len(keys.dictionary) + keys.indices.to_numpy()
    order = order_of(codes)
    times = column(rows, "source_timestamp").to_numpy()[order]
    last = np.ones(len(order), np.bool_)
    last[:-1] = (times[1:] != times[:-1]) | Runs(codes[order]).first[1:]
    rows = rows.take(pa.array(order[last]))
    found = {name: rows[name] for name in ("tenant_id", KEY, "source_timestamp", "deleted")}
    for number, (name, type_) in enumerate(latest.table.columns.items()):
        found[name] = typed(rows[VALUE.format(number=number)], type_)
    return pa.table(found)
