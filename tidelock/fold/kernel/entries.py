"""Entries: prepared events as meters count them, and the error rows of those that cannot be counted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.fold.arrow import column
from tidelock.fold.kernel.amounts import DECIMAL
from tidelock.fold.kernel.counters import Meters

#: the name of a column of a slot
SLOT = "{part}_{slot}"
_ENVELOPE = ("ingress_sequence", "source_timestamp", "tenant_id", "customer_ref", "occurred_at")
_PARTS = ("meter", "period_start", "quantity", "group_key")


def entries(events: pa.Table, meters: Meters) -> pa.Table:
    """One row for each event and meter that counts it."""
    valued = np.asarray([aggregation != "count" for aggregation in meters.aggregations])
    parts = []
    for own in _slots(events):
        kept = pc.and_(pc.is_valid(own["meter"]), pc.is_valid(own["customer_ref"]))
        if valued.any():
            kept = pc.and_(kept, pc.invert(_lacking(own, valued)))
        parts.append(own if pc.all(kept).as_py() else own.filter(kept))
    found = pa.concat_tables(parts)
    place = found.column_names.index("quantity")
    return found.set_column(place, "quantity", found["quantity"].cast(DECIMAL))


def uncounted(events: pa.Table, meters: Meters) -> pa.Table:
    """Events that a meter chooses and cannot count, with `source`, `code` and `message`.

    Choosing goes first: an event that a meter does not count is no error of it.
    """
    valued = np.asarray([aggregation != "count" for aggregation in meters.aggregations])
    parts = []
    for own in _slots(events, ("stream", "time_fault")):
        nobody = pc.is_null(own["customer_ref"])
        wrong = pc.and_(pc.is_valid(own["meter"]), pc.or_(nobody, _lacking(own, valued)))
        rows = own.filter(wrong)
        nobody = pc.is_null(rows["customer_ref"])
        numbers = column(rows, "meter")
        names = pa.array(meters.names, pa.string()).take(numbers)
        found = rows.select(["tenant_id", "ingress_sequence", "source_timestamp"])
        found = found.append_column("source", names)
        found = found.append_column("code", pc.if_else(nobody, "missing_customer", "missing_quantity"))
        missing = pa.array(meters.missing, pa.string()).take(numbers)
        found = found.append_column("message", pc.if_else(nobody, "customerRef is missing", missing))
        # A meter has the name of its stream, mostly, and then one row is both's: what the stream says goes first.
        told = pc.and_(pc.equal(names, rows["stream"]), pc.is_valid(rows["time_fault"]))
        parts.append(found.filter(pc.invert(told)))
    return pa.concat_tables(parts)


def _slots(events: pa.Table, others: tuple[str, ...] = ()) -> Iterator[pa.Table]:
    """The meters' columns, slot by slot, of events that nobody objects to and that are not deletes."""
    refused = pc.or_(pc.is_valid(events["objection"]), events["deleted"])
    taken = events.filter(pc.invert(refused)) if pc.any(refused).as_py() else events
    slot = 0
    while SLOT.format(part="meter", slot=slot) in taken.column_names:
        names = [SLOT.format(part=part, slot=slot) for part in _PARTS]
        yield taken.select([*_ENVELOPE, *others, *names]).rename_columns([*_ENVELOPE, *others, *_PARTS])
        slot += 1


def _lacking(own: pa.Table, valued: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.ChunkedArray:
    """Whether there is no quantity where the meter needs one."""
    needed = pa.array(valued, pa.bool_()).take(own["meter"])
    return pc.fill_null(pc.and_(needed, pc.is_null(own["quantity"])), False)
