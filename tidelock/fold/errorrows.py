"""Error rows: events that a stream or a meter cannot take, kept and told, so that nothing is lost and nothing stops."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.definitions import Meter
from tidelock.fold.arrow import column
from tidelock.fold.keys import joined, json_strings, number_strings
from tidelock.fold.tables import KEY

#: the prepared events that may have any, as Spark SQL
FAULTY = """
    SELECT ingress_sequence, source_timestamp, tenant_id, stream, customer_ref, deleted, objection, entries
    FROM prepared
    WHERE objection IS NOT NULL OR exists(entries, entry ->
        entry.matches AND (entry.error IS NOT NULL OR customer_ref IS NULL))"""
#: the same where there are no meters
FAULTY_COLUMNS = FAULTY.partition(" OR ")[0]


def error_rows(prepared: pa.Table, meters: Sequence[Meter]) -> pa.Table:
    """The error rows among prepared events, faulty ones and others."""
    found = [_of_streams(prepared)]
    if meters:
        found.append(_of_meters(prepared, meters))
    rows = pa.concat_tables(found)
    sources, sequences = column(rows, "source"), column(rows, "ingress_sequence")
    return rows.append_column(KEY, joined(json_strings(sources), number_strings(sequences)))


def _of_streams(prepared: pa.Table) -> pa.Table:
    wrong = prepared.filter(pc.is_valid(prepared["objection"]))
    codes = pa.repeat("invalid_column", wrong.num_rows)
    return _rows(wrong, wrong["stream"], codes, wrong["objection"])


def _of_meters(prepared: pa.Table, meters: Sequence[Meter]) -> pa.Table:
    """Choosing goes first: an event that a meter does not count is no error of it."""
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
    return _rows(right.take(events), names, codes, messages)


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
