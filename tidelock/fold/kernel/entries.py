"""Entries: prepared events as meters count them; and the error rows of events that a stream or a meter cannot accept.

These are stored and reported, so that nothing is lost and nothing stops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.arrow import column
from tidelock.definitions.eventtimes import EventTime
from tidelock.fold.kernel.aggregates import bits_of, texts_of
from tidelock.fold.kernel.amounts import DECIMAL
from tidelock.fold.kernel.meters import Meters
from tidelock.fold.keys import joined, json_strings, number_strings
from tidelock.fold.streams import no_instant, with_value
from tidelock.tables import KEY

#: error codes of an event time
INVALID = "invalid_event_time"
FUTURE = "future_event_time"
#: the name of a column of a slot
SLOT = "{part}_{slot}"
_ENVELOPE = ("ingress_sequence", "source_timestamp", "tenant_id", "customer_ref", "occurred_at")
_PARTS = ("meter", "period_start", "quantity", "group_key")
#: of a meter that counts distinct texts: the value's text, the JSON at a path, or a double's digits
TEXT, JSON_TEXT, DOUBLE_TEXT = "text", "json", "double"


def entries(events: pa.Table, meters: Meters, others: tuple[str, ...] = ()) -> pa.Table:
    """One row per event and meter that counts it, with `others` of the event's columns."""
    parts = []
    for own in _slots(events, others):
        kept = pc.and_(pc.is_valid(own["meter"]), pc.is_valid(own["customer_ref"]))
        if set(meters.aggregations) != {"count"}:
            kept = pc.and_(kept, pc.invert(_lacking(own, meters)))
        parts.append(own if pc.all(kept).as_py() else own.filter(kept))
    # Spark may know that one slot's meter is never null, but not another's.
    found = pa.concat_tables(parts, promote_options="default")
    place = found.column_names.index("quantity")
    found = found.set_column(place, "quantity", found["quantity"].cast(DECIMAL))
    if "text" not in found.column_names:
        return found
    return found.set_column(found.column_names.index("text"), "text", _texts(found, meters))


def _texts(found: pa.Table, meters: Meters) -> pa.Array:
    """The texts that are counted: those of numbers are made one for each number."""
    texts, kinds = column(found, "text"), pa.array(meters.texts, pa.string()).take(column(found, "meter"))
    for kind, form in ((JSON_TEXT, texts_of), (DOUBLE_TEXT, bits_of)):
        if kind in meters.texts:
            own = pc.equal(kinds, kind)
            texts = pc.replace_with_mask(texts, own, form(texts.filter(own)))
    return texts


@dataclass(frozen=True, slots=True)
class TimeFaults:
    """Messages for events without a usable time."""

    #: what streams declare
    timed: Mapping[str, EventTime]
    #: messages for events whose time column does not fit its type
    objections: tuple[str, ...]

    def message(self, code: str, stream: str, message_stream: str | None, value: str | None) -> str:
        """What is wrong with the time of an event, or of a message in it."""
        declared = self.timed[message_stream or stream]
        where = "" if message_stream is None else f'in a message of stream "{message_stream}", '
        ahead = f'column "{declared.column}" is more than 1 h ahead of its arrival'
        return with_value(where + (ahead if code == FUTURE else no_instant(declared)), value)


def error_rows(prepared: pa.Table, meters: Meters | None, faults: TimeFaults) -> pa.Table:
    """The error rows among prepared events, faulty ones and others."""
    found = [_of_streams(prepared, faults.objections), _of_times(prepared, faults)]
    if meters is not None:
        found.append(_of_meters(prepared, meters).select(found[0].column_names))
    rows = pa.concat_tables(found, promote_options="default")
    sources, sequences = column(rows, "source"), column(rows, "ingress_sequence")
    return rows.append_column(KEY, joined(json_strings(sources), number_strings(sequences)))


def _of_streams(prepared: pa.Table, time_objections: Sequence[str]) -> pa.Table:
    """The objection to a column with the event's time is about the time, with the same text in every stream."""
    wrong = prepared.filter(pc.is_valid(prepared["objection"]))
    of_time = pc.is_in(wrong["objection"], pa.array(time_objections, pa.string()))
    codes = pc.if_else(of_time, INVALID, "invalid_column")
    values = map(with_value, wrong["objection"].to_pylist(), wrong["time_value"].to_pylist())
    messages = pc.if_else(of_time, pa.array(values, pa.string()), wrong["objection"])
    return _rows(wrong, wrong["stream"], codes, messages)


def _of_times(prepared: pa.Table, faults: TimeFaults) -> pa.Table:
    """An event has one error row of its stream: objections to its columns come first."""
    wrong = prepared.filter(pc.and_(pc.is_null(prepared["objection"]), pc.is_valid(prepared["time_fault"])))
    given = (wrong[name].to_pylist() for name in ("time_fault", "stream", "message_stream", "time_value"))
    messages = pa.array(map(faults.message, *given), pa.string())
    return _rows(wrong, wrong["stream"], wrong["time_fault"], messages)


def _rows(events: pa.Table, sources: pa.Array, codes: pa.Array, messages: pa.Array) -> pa.Table:
    return pa.table(
        {
            "tenant_id": events["tenant_id"],
            "source": sources,
            "ingress_sequence": events["ingress_sequence"],
            "code": codes,
            "message": messages,
            "source_timestamp": events["source_timestamp"],
        }
    )


def _of_meters(events: pa.Table, meters: Meters) -> pa.Table:
    """Events that a meter chooses and cannot count, with `source`, `code` and `message`.

    The filter comes first: an event that a meter does not count is not an error.
    """
    parts = []
    for own in _slots(events, ("stream", "time_fault")):
        nobody = pc.is_null(own["customer_ref"])
        wrong = pc.and_(pc.is_valid(own["meter"]), pc.or_(nobody, _lacking(own, meters)))
        rows = own.filter(wrong)
        nobody = pc.is_null(rows["customer_ref"])
        numbers = column(rows, "meter")
        names = pa.array(meters.names, pa.string()).take(numbers)
        found = rows.select(["tenant_id", "ingress_sequence", "source_timestamp"])
        found = found.append_column("source", names)
        found = found.append_column("code", pc.if_else(nobody, "missing_customer", "missing_quantity"))
        missing = pa.array(meters.missing, pa.string()).take(numbers)
        found = found.append_column("message", pc.if_else(nobody, "customerRef is missing", missing))
        # A meter usually has the name of its stream, and then they share one row: the stream's message comes first.
        told = pc.and_(pc.equal(names, rows["stream"]), pc.is_valid(rows["time_fault"]))
        parts.append(found.filter(pc.invert(told)))
    return pa.concat_tables(parts, promote_options="default")


def _slots(events: pa.Table, others: tuple[str, ...] = ()) -> Iterator[pa.Table]:
    """The meters' columns, slot by slot, of events without objections that are not deletes."""
    refused = pc.or_(pc.is_valid(events["objection"]), events["deleted"])
    taken = events.filter(pc.invert(refused)) if pc.any(refused).as_py() else events
    slot = 0
    parts = (*_PARTS, "text") if SLOT.format(part="text", slot=0) in taken.column_names else _PARTS
    while SLOT.format(part="meter", slot=slot) in taken.column_names:
        names = [SLOT.format(part=part, slot=slot) for part in parts]
        yield taken.select([*_ENVELOPE, *others, *names]).rename_columns([*_ENVELOPE, *others, *parts])
        slot += 1


def _lacking(own: pa.Table, meters: Meters) -> pa.ChunkedArray:
    """Whether there is no quantity, or no text, where the meter needs one."""
    distinct = meters.distinct
    valued = np.asarray([aggregation != "count" for aggregation in meters.aggregations]) & ~distinct
    lacking = pc.and_(pa.array(valued, pa.bool_()).take(own["meter"]), pc.is_null(own["quantity"]))
    if distinct.any():
        lacking = pc.or_(lacking, pc.and_(pa.array(distinct).take(own["meter"]), pc.is_null(own["text"])))
    return pc.fill_null(lacking, False)
