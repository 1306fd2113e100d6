"""Takings: what outputs take from prepared events, once it is known which of them are late.

It does not matter where the events are: for a small range the driver takes everything, for a large one each worker
takes from its slice, and takings are concatenated. So rows become panes where they were prepared, and only rows
released one by one travel as rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.arrow import arrow_type, column, typed
from tidelock.columns import AMOUNT, DOUBLE, STRING, ColumnType
from tidelock.definitions import Count
from tidelock.definitions.windows import PERCENTILES, Aggregate
from tidelock.fold.kernel.aggregates import bits_of, initial, texts_of
from tidelock.fold.kernel.outputs import Output
from tidelock.fold.kernel.panes import pieces_of, with_group
from tidelock.fold.kernel.watermarks import judged
from tidelock.fold.keys import joined, json_strings, number_strings
from tidelock.tables import KEY

#: what outputs use of an event besides its projection
ENVELOPE = ("ingress_sequence", "source_timestamp", "tenant_id", "stream", "event_time")
#: the code of an error row of a window: a value it cannot sum or represent
OUT_OF_RANGE = "value_out_of_range"

_COLLECTION = ["stream", "tenant_id", "source_timestamp"]
_LATE = ["tenant_id", "source_timestamp", "ingress_sequence", "event_time", "watermark", "reason"]
_ERRORS = pa.schema(
    {
        "tenant_id": pa.string(),
        "source": pa.string(),
        "ingress_sequence": pa.int64(),
        "code": pa.string(),
        "message": pa.string(),
        "source_timestamp": pa.int64(),
        KEY: pa.string(),
    }
)

#: the purpose of a column, and its name
Need = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns of a range that outputs need: stream -> need -> column."""

    places: Mapping[str, Mapping[Need, str]]
    #: every such column
    names: tuple[str, ...]

    def texts(self, output: Output, name: str, rows: pa.Table) -> pa.Array:
        """The texts of a column of the group."""
        return column(rows, self.places[output.stream]["group", name])

    def values(self, output: Output, aggregate: Aggregate, rows: pa.Table) -> pa.Array:
        """What an aggregate is over."""
        kind, name = need = operand(aggregate)
        own = output.types.get(name)
        wanted = {"amount": AMOUNT, "number": DOUBLE, "text": STRING}.get(kind) or own
        found = column(rows, self.places[output.stream][need])
        if kind == "text" and own in (DOUBLE, None):
            return bits_of(found) if own == DOUBLE else texts_of(found)
        return _typed(found, wanted)

    def cell(self, output: Output, name: str, type_: ColumnType, rows: pa.Table) -> pa.Array:
        """A column of ordered output."""
        return _typed(column(rows, self.places[output.stream]["row", name]), type_)

    def misfits(self, output: Output, aggregate: Aggregate, rows: pa.Table) -> pa.Array | None:
        """Where there is a value that the aggregate cannot accept; None: every value fits."""
        kind, name = operand(aggregate)
        place = self.places[output.stream].get((f"{kind} misfit", name))
        return None if place is None else column(rows, place)


def operand(aggregate: Aggregate) -> Need:
    """What an aggregate is over."""
    assert aggregate.column is not None, "count(*) is over rows"
    if aggregate.function in ("sum", "avg"):
        return "amount", aggregate.column
    if aggregate.function in PERCENTILES:
        return "number", aggregate.column
    return ("text" if aggregate.function == "unique_count" else "value"), aggregate.column


def misfit_message(aggregate: Aggregate) -> str:
    """The message for a value that an aggregate cannot accept."""
    room = "number that a double holds" if aggregate.function in PERCENTILES else (
        "number below 10^19 with at most nine decimals"
    )  # fmt: skip
    return f'column "{aggregate.column}" has no {room}, so {aggregate} leaves it out'


@dataclass(frozen=True, slots=True)
class Taking:
    """What an output takes from some events."""

    #: late rows, with the watermark that judged them
    late: pa.Table
    #: error rows, for values that an aggregate ignores
    errors: pa.Table
    #: pieces of windows of time; entries of count windows and ordered output
    rows: pa.Table


def outputs_take(events: pa.Table, projection: Projection) -> pa.Table:
    """The events of a prepared range that outputs take."""
    wanted = pc.and_(pc.is_null(events["objection"]), pc.invert(events["deleted"]))
    found = events.select([*ENVELOPE, *projection.names])
    return found if pc.all(wanted).as_py() else found.filter(wanted)


def collections_of(events: pa.Table) -> pa.Table:
    """Times of every collection, stream and tenant."""
    found = events.group_by(_COLLECTION, use_threads=False).aggregate([("event_time", "min"), ("event_time", "max")])
    return found.rename_columns([*_COLLECTION, "earliest", "latest"])


def together(collections: Sequence[pa.Table]) -> pa.Table:
    """Those of several slices, merged where a collection was cut."""
    found = pa.concat_tables(collections).group_by(_COLLECTION, use_threads=False)
    return found.aggregate([("earliest", "min"), ("latest", "max")]).rename_columns(
        [*_COLLECTION, "earliest", "latest"]
    )


def take(output: Output, events: pa.Table, judgements: pa.Table, projection: Projection) -> Taking:
    """What an output takes from events."""
    rows = events if _only(events, output.stream) else events.filter(pc.equal(events["stream"], output.stream))
    if not output.by_event_time:
        rows = rows.set_column(rows.column_names.index("event_time"), "event_time", rows["source_timestamp"])
    elif rows["event_time"].null_count:
        rows = rows.filter(pc.is_valid(rows["event_time"]))
    rows, late = judged(rows.combine_chunks(), judgements)
    found = _entries(output, rows, projection)
    found = found if output.singly else pieces_of(output, found)
    return Taking(late.select(_LATE), _errors(output, rows, projection), found)


def _only(events: pa.Table, stream: str) -> bool:
    return pc.all(pc.equal(events["stream"], stream)).as_py() is True


def _entries(output: Output, rows: pa.Table, projection: Projection) -> pa.Table:
    """Rows with their groups and states, or the columns of ordered output."""
    found = {name: column(rows, name) for name in ENVELOPE if name != "stream"}
    window = output.window
    if window is None:
        own = ("ingress_sequence", "position", "event_time")
        cells = {name: type_ for name, type_ in output.table.columns.items() if name not in own}
        return pa.table(found | {name: projection.cell(output, name, type_, rows) for name, type_ in cells.items()})
    for number, name in enumerate(window.group_by):
        found[f"group_{number}"] = projection.texts(output, name, rows)
    found |= initial(
        tuple(window.select.values()),
        lambda aggregate: projection.values(output, aggregate, rows),
        found["event_time"],
        found["ingress_sequence"],
    )
    entries = pa.table(found)
    # For panes, the group's string is built after aggregation.
    return with_group(output, entries) if isinstance(window.frame, Count) else entries


def _errors(output: Output, rows: pa.Table, projection: Projection) -> pa.Table:
    """One error row per event with a value that an aggregate ignores; it names the first such aggregate."""
    aggregates = [] if output.window is None else list(output.window.select.values())
    found = [
        (misfit_message(aggregate), pc.fill_null(misfits, False).to_numpy(False))
        for aggregate in aggregates
        if aggregate.column is not None and (misfits := projection.misfits(output, aggregate, rows)) is not None
    ]
    wrong = np.flatnonzero(np.logical_or.reduce([flags for _, flags in found])) if found else np.zeros(0, np.int64)
    if not len(wrong):
        return _ERRORS.empty_table()
    first = np.argmax([flags[wrong] for _, flags in found], axis=0)
    own = rows.select(["tenant_id", "ingress_sequence", "source_timestamp"]).take(pa.array(wrong))
    sources, codes = (pa.repeat(text, len(wrong)) for text in (output.name, OUT_OF_RANGE))
    keys = joined(json_strings(sources), number_strings(column(own, "ingress_sequence")))
    messages = pa.array([message for message, _ in found], pa.string()).take(pa.array(first))
    named = {"source": sources, "code": codes, "message": messages, KEY: keys}
    return pa.table({name: named.get(name, own[name] if name in own.column_names else None) for name in _ERRORS.names})


def late_rows(output: str, late: pa.Table) -> pa.Table:
    """Late rows in the form of their table."""
    names = pa.repeat(output, late.num_rows)
    keys = joined(json_strings(names), number_strings(column(late, "ingress_sequence")))
    return late.append_column("window", names).append_column(KEY, keys)


def _typed(values: pa.Array, wanted: ColumnType | None) -> pa.Array:
    """Values that travelled as strings, in their type; a path has none."""
    if wanted is None or not pa.types.is_string(values.type) or pa.types.is_string(arrow_type(wanted)):
        return values
    return typed(values, wanted)
