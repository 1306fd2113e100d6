"""Entries: the rows of a range as an output takes them, with their time and what it keeps of them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.fold.arrow import column
from tidelock.fold.windows.carried import Carried
from tidelock.fold.windows.groups import with_group
from tidelock.fold.windows.outputs import Output
from tidelock.fold.windows.states import initial

#: what outputs use of an event beside what is carried
ENVELOPE = ("ingress_sequence", "source_timestamp", "tenant_id", "stream", "event_time")
#: the events that outputs take, as Spark SQL
TAKEN = "objection IS NULL AND NOT deleted"


def taken(prepared: pa.Table, carried: Carried) -> pa.Table:
    """The events of a prepared range that outputs take."""
    wanted = pc.and_(pc.is_null(prepared["objection"]), pc.invert(prepared["deleted"]))
    return prepared.select([*ENVELOPE, *carried.names]).filter(wanted)


def rows_of(output: Output, events: pa.Table) -> pa.Table:
    """The events of an output's stream that have a time for it, which is their `event_time`."""
    rows = events.filter(pc.equal(events["stream"], output.stream))
    if output.by_event_time:
        return rows.filter(pc.is_valid(rows["event_time"]))
    return rows.set_column(rows.column_names.index("event_time"), "event_time", rows["source_timestamp"])


def entries(output: Output, rows: pa.Table, carried: Carried) -> pa.Table:
    """Rows with their groups and states, or the columns of ordered output."""
    found = {name: column(rows, name) for name in ENVELOPE if name != "stream"}
    window = output.window
    if window is None:
        cells = [name for name in output.table.columns if name not in ("ingress_sequence", "position", "event_time")]
        return pa.table(found | {name: column(rows, carried.cell(output, name)) for name in cells})
    for number, name in enumerate(window.group_by):
        found[f"group_{number}"] = column(rows, carried.group(output, name))
    found |= initial(
        tuple(window.select.values()),
        lambda aggregate: column(rows, carried.operand(output, aggregate)),
        found["event_time"],
        found["ingress_sequence"],
    )
    return with_group(output, pa.table(found))
