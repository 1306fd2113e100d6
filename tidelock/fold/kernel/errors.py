"""Error rows: events that a stream or a meter cannot take, kept and told, so that nothing is lost and nothing stops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.definitions.eventtimes import EventTime
from tidelock.fold.arrow import column
from tidelock.fold.kernel.counters import Meters
from tidelock.fold.kernel.entries import uncounted
from tidelock.fold.keys import joined, json_strings, number_strings
from tidelock.fold.readings import no_instant
from tidelock.fold.tables import KEY

#: codes of what is wrong with an event time
INVALID = "invalid_event_time"
FUTURE = "future_event_time"


@dataclass(frozen=True, slots=True)
class TimeFaults:
    """What is said of events that have no time that can be used."""

    #: what streams declare
    timed: Mapping[str, EventTime]
    #: what is said of events whose column does not fit its type, where that column has their time
    objections: tuple[str, ...]

    def message(self, code: str, stream: str, message_stream: str | None) -> str:
        """What is wrong with the time of an event, or of a message in it."""
        declared = self.timed[message_stream or stream]
        where = "" if message_stream is None else f'in a message of stream "{message_stream}", '
        if code == FUTURE:
            return f'{where}column "{declared.column}" is more than 1 h ahead of its arrival'
        return where + no_instant(declared)


def error_rows(prepared: pa.Table, meters: Meters | None, faults: TimeFaults) -> pa.Table:
    """The error rows among prepared events, faulty ones and others."""
    found = [_of_streams(prepared, faults.objections), _of_times(prepared, faults)]
    if meters is not None:
        found.append(uncounted(prepared, meters).select(found[0].column_names))
    rows = pa.concat_tables(found)
    sources, sequences = column(rows, "source"), column(rows, "ingress_sequence")
    return rows.append_column(KEY, joined(json_strings(sources), number_strings(sequences)))


def _of_streams(prepared: pa.Table, time_objections: Sequence[str]) -> pa.Table:
    """A column that has the event's time is objected to as that, by the same text in every stream."""
    wrong = prepared.filter(pc.is_valid(prepared["objection"]))
    of_time = pc.is_in(wrong["objection"], pa.array(time_objections, pa.string()))
    codes = pc.if_else(of_time, INVALID, "invalid_column")
    return _rows(wrong, wrong["stream"], codes, wrong["objection"])


def _of_times(prepared: pa.Table, faults: TimeFaults) -> pa.Table:
    """An event has one error row of its stream: what its columns are objected to for goes first."""
    wrong = prepared.filter(pc.and_(pc.is_null(prepared["objection"]), pc.is_valid(prepared["time_fault"])))
    given = (wrong[name].to_pylist() for name in ("time_fault", "stream", "message_stream"))
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
