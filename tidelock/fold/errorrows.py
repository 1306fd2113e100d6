"""Error rows: events that a stream or a meter cannot take, kept and told, so that nothing is lost and nothing stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.definitions import Meter
from tidelock.fold.arrow import column
from tidelock.fold.keys import joined, json_strings, number_strings
from tidelock.fold.tables import KEY

#: the prepared events that a stream objects to, as Spark SQL
FAULTY_COLUMNS = """
    SELECT ingress_sequence, source_timestamp, tenant_id, stream, customer_ref, deleted, objection, time_fault,
        message_stream, entries
    FROM prepared
    WHERE objection IS NOT NULL OR time_fault IS NOT NULL"""
#: those that a stream or a meter may object to
FAULTY = f"""{FAULTY_COLUMNS} OR exists(entries, entry ->
        entry.matches AND (entry.error IS NOT NULL OR customer_ref IS NULL))"""

#: code, stream and stream of the message -> what is wrong with an event's time
TimeFault = Callable[[str, str, str | None], str]


def error_rows(
    prepared: pa.Table, meters: Sequence[Meter], time_fault: TimeFault, time_objections: Sequence[str]
) -> pa.Table:
    """The error rows among prepared events, faulty ones and others."""
    found = [_of_streams(prepared, time_objections), _of_times(prepared, time_fault)]
    if meters:
        found.append(_of_meters(prepared, meters))
    rows = pa.concat_tables(found)
    sources, sequences = column(rows, "source"), column(rows, "ingress_sequence")
    return rows.append_column(KEY, joined(json_strings(sources), number_strings(sequences)))


def _of_streams(prepared: pa.Table, time_objections: Sequence[str]) -> pa.Table:
    """A column that has the event's time is objected to as that, by the same text in every stream."""
    wrong = prepared.filter(pc.is_valid(prepared["objection"]))
    of_time = pc.is_in(wrong["objection"], pa.array(time_objections, pa.string()))
    codes = pc.if_else(of_time, "invalid_event_time", "invalid_column")
    return _rows(wrong, wrong["stream"], codes, wrong["objection"])


def _of_times(prepared: pa.Table, time_fault: TimeFault) -> pa.Table:
    """An event has one error row of its stream: what its columns are objected to for goes first."""
    wrong = prepared.filter(pc.and_(pc.is_null(prepared["objection"]), pc.is_valid(prepared["time_fault"])))
    given = (wrong[name].to_pylist() for name in ("time_fault", "stream", "message_stream"))
    messages = pa.array(map(time_fault, *given), pa.string())
    return _rows(wrong, wrong["stream"], wrong["time_fault"], messages)


def _of_meters(prepared: pa.Table, meters: Sequence[Meter]) -> pa.Table:
    """Choosing goes first: an event that a meter does not count is no error of it.

    A meter has the name of its stream, mostly, and then one row is both's: what the stream says goes first.
    """
    right = prepared.filter(pc.and_(pc.is_null(prepared["objection"]), pc.invert(prepared["deleted"])))
    lists = column(right, "entries")
    entries, events = lists.flatten(), pc.list_parent_indices(lists)
    nobody = pc.is_null(column(right, "customer_ref")).take(events)
    error = pc.struct_field(entries, "error")
    wrong = pc.and_(pc.struct_field(entries, "matches"), pc.or_(nobody, pc.is_valid(error)))
    entries, events, nobody, error = (part.filter(wrong) for part in (entries, events, nobody, error))
    names = pa.array([meter.name for meter in meters], pa.string()).take(pc.struct_field(entries, "meter"))
    codes = pc.if_else(nobody, "missing_customer", error)
    messages = pc.if_else(nobody, "customerRef is missing", pc.struct_field(entries, "message"))
    rows = right.take(events)
    told = pc.and_(pc.equal(names, rows["stream"]), pc.is_valid(rows["time_fault"]))
    return _rows(rows, names, codes, messages).filter(pc.invert(told))


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
