"""The fold: one collection after another, one event after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import localcontext
from itertools import groupby
from typing import Any

from tests.model.closing import close
from tests.model.counting import measure, meters_in
from tests.model.events import Columns, Event, names_of, row_key, stream_columns
from tests.model.progress import CONTROL, Entering, advance
from tests.model.tables import Row, State
from tests.model.times import Fault, event_time, misfit
from tests.model.values import EXACT, KEY_BYTES_MAX

#: stream and column -> what computes a calculated column from a row: Spark's SQL is not the model's to evaluate
Calculated = Mapping[tuple[str, str], Callable[[Row], object]]
Definitions = Mapping[str, Mapping[str, Any]]


def fold(events: Iterable[Event], definitions: Definitions, calculated: Calculated | None = None) -> State:
    """The state after events in ledger order."""
    state = State()
    for _, collection in groupby(events, key=lambda event: event.source_timestamp):
        apply(state, list(collection), definitions, calculated)
    return state


def apply(
    state: State, collection: list[Event], definitions: Definitions, calculated: Calculated | None = None
) -> None:
    """One step: the events that share a source timestamp."""
    at = collection[0].source_timestamp
    with localcontext(EXACT):
        # Control events are for event time, definitions and closes; no stream reads them.
        applied = [_apply_event(state, e, definitions, calculated or {}) for e in collection if e.stream != CONTROL]
        for event in collection:
            if event.stream == CONTROL:
                close(state, event, definitions)
        entering = [found for found in applied if found is not None]
        advance(state, at, collection, entering, definitions)
        state.close_collection(at)


def _apply_event(state: State, event: Event, definitions: Definitions, calculated: Calculated) -> Entering | None:
    """Latest row, errors and meters; what is for windows is given back, for they take a collection at once."""
    stream = definitions.get("streams", {}).get(event.stream, {})
    columns = Columns(event, stream.get("columns", {}))
    if event.is_correction:
        _correct(state, event, columns, stream, definitions)
        return None
    # Choice: a value that does not fit stops deletes too.
    if not _fits(state, event, columns, stream):
        return None
    row = stream_columns(columns, stream)
    computed = {name: calculated[event.stream, name](row) for name in stream.get("calculated", {})}
    if "key" in stream:
        if (key := _key(state, event, columns, stream)) is None:
            return None
        kept = None if event.op == "delete" else row | computed
        state.put(event.stream, event.tenant_id, key, kept, live=stream.get("live", True))
    # Choice: deletes feed nothing else, in streams without a key too. So they need no event time.
    if event.op == "delete":
        return None
    time = _timed(state, event, definitions)
    for name in meters_in(definitions):
        measure(state, event, columns, name, definitions)
    # Windows alone see calculated columns, which hide the envelope's too.
    return Entering(event, Columns(event, stream.get("columns", {}), computed), time)


def _correct(state: State, event: Event, columns: Columns, stream: Mapping[str, Any], definitions: Definitions) -> None:
    """A correction is for meters only: it is no row of a table, moves no time and has none of its own.

    Choice: its columns are those of its own row: an amendment's `op` is `amend`, its `received_at` and its
    `causality_key` are its own. Where its stream got a key later, an amendment without one is an error as any event.
    """
    # One that is an error takes the event out, as a void does.
    counts = event.op == "amend" and _fits(state, event, columns, stream)
    if counts and "key" in stream:
        counts = _key(state, event, columns, stream) is not None
    for name in meters_in(definitions):
        measure(state, event, columns if counts else None, name, definitions)
    windows = [name for name, window in definitions.get("windows", {}).items() if window["stream"] == event.stream]
    for name in [*windows, *([f"{event.stream}_ordered"] if stream.get("ordered", False) else [])]:
        # Choice: whatever else is wrong with the correction, and whether the event is in a window or not.
        message = f"the {event.op} of event {event.target_sequence} is ignored here: corrections change meters only"
        state.error(event, name, "correction_ignored", message)


def _fits(state: State, event: Event, columns: Columns, stream: Mapping[str, Any]) -> bool:
    """Whether all values fit their columns. Choice: the first that does not, as declared, is the one named.

    Choice: so it is with an amendment, and where that column has the event time, the code is the one of times.
    """
    if (name := columns.misfit()) is None:
        return True
    fault = misfit(name, stream, columns)
    state.error(event, event.stream, fault.code, str(fault))
    return False


def _timed(state: State, event: Event, definitions: Definitions) -> int | None:
    """The event time; None where the stream has none, or this event has none that can be used.

    Choice: without it an event is in no window by event time and in no ordered output. All else takes it still:
    latest rows, meters, windows by arrival.
    """
    streams = definitions.get("streams", {})
    if "eventtime" not in streams.get(event.stream, {}):
        return None
    try:
        return event_time(event, streams)
    except Fault as fault:
        state.error(event, event.stream, fault.code, str(fault))
        return None


def _key(state: State, event: Event, columns: Columns, stream: Mapping[str, Any]) -> str | None:
    """Its place in the table of a keyed stream; None, with an error row, where it has none."""
    names = names_of(stream["key"])
    key = row_key(columns, names)
    if key is None:
        # Ingest refuses such events; those recorded before the stream had this key are still in the ledger.
        missing = next(name for name in names if columns.text(name) is None)
        state.error(event, event.stream, "invalid_column", f'key column "{missing}" is missing')
        return None
    if len(key.encode()) > KEY_BYTES_MAX:
        message = f"the row key is longer than {KEY_BYTES_MAX} bytes"
        state.error(event, event.stream, "invalid_column", message)
        return None
    return key
