"""The fold: one collection after another, one event after another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal, localcontext
from itertools import groupby
from typing import Any

from tests.model import filters
from tests.model.closing import close, is_closed
from tests.model.events import Columns, Event, group_key, names_of, row_key, stream_columns
from tests.model.meters import Counter, duration, period_start, quantity_of
from tests.model.progress import CONTROL, Entering, advance
from tests.model.tables import Row, State
from tests.model.times import Fault, event_time, misfit
from tests.model.values import EXACT, KEY_BYTES_MAX, bounded, instant_text, key_text

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
    # Choice: a value that does not fit stops deletes too. The first such column, as declared, is the one named.
    if (name := columns.misfit()) is not None:
        fault = misfit(name, stream, columns)
        _error(state, event, event.stream, fault.code, str(fault))
        return None
    row = stream_columns(columns, stream)
    computed = {name: calculated[event.stream, name](row) for name in stream.get("calculated", {})}
    if "key" in stream and not _keep_latest(state, event, stream, columns, row | computed):
        return None
    # Choice: deletes feed nothing else, in streams without a key too. So they need no event time.
    if event.op == "delete":
        return None
    time = _timed(state, event, definitions)
    for name, meter in definitions.get("meters", {}).items():
        if name != "lateness" or isinstance(meter, Mapping):
            _measure(state, event, columns, name, meter=meter, definitions=definitions)
    # Windows alone see calculated columns, which hide the envelope's too.
    return Entering(event, Columns(event, stream.get("columns", {}), computed), time)


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
        _error(state, event, event.stream, fault.code, str(fault))
        return None


def _keep_latest(state: State, event: Event, stream: Mapping[str, Any], columns: Columns, row: Row) -> bool:
    """Whether the event has a key, and so a place in the table."""
    names = names_of(stream["key"])
    key = row_key(columns, names)
    if key is None:
        # Ingest refuses such events; those recorded before the stream had this key are still in the ledger.
        missing = next(name for name in names if columns.text(name) is None)
        _error(state, event, event.stream, "invalid_column", f'key column "{missing}" is missing')
        return False
    if len(key.encode()) > KEY_BYTES_MAX:
        message = f"the row key is longer than {KEY_BYTES_MAX} bytes"
        _error(state, event, event.stream, "invalid_column", message)
        return False
    kept = None if event.op == "delete" else row
    state.put(event.stream, event.tenant_id, key, kept, live=stream.get("live", True))
    return True


def _measure(
    state: State, event: Event, columns: Columns, name: str, meter: Mapping[str, Any], definitions: Definitions
) -> None:
    """Choice: the filter goes first, so an event that does not count is no error either; then the customer."""
    if event.stream != meter.get("stream", name) or not _matches(meter.get("where"), columns):
        return
    if event.customer_ref is None:
        _error(state, event, name, "missing_customer", "customerRef is missing")
        return
    aggregation = meter.get("aggregation", "sum")
    source = meter.get("value", "quantity")
    quantity = quantity_of(columns.type(source), columns.value(source))
    if quantity is None and aggregation != "count":
        message = f'"{source}" is missing, or no number below 10^19 with at most nine decimals'
        _error(state, event, name, "missing_quantity", message)
        return
    _count(state, event, columns, quantity, name=name, meter=meter, lateness=duration(_lateness(meter, definitions)))


def _lateness(meter: Mapping[str, Any], definitions: Definitions) -> str:
    overall = definitions.get("meters", {}).get("lateness", "48h")
    return str(meter.get("lateness", overall if isinstance(overall, str) else "48h"))


def _count(
    state: State,
    event: Event,
    columns: Columns,
    quantity: Decimal | None,
    name: str,
    meter: Mapping[str, Any],
    lateness: int,
) -> None:
    assert event.customer_ref is not None
    aggregation = meter.get("aggregation", "sum")
    live = meter.get("live", True)
    start = period_start(meter.get("period", "month"), event.occurred_at)
    key = {"metric": name, "customer_ref": event.customer_ref, "period_start": start}
    key_texts = [name, event.customer_ref, instant_text(start)]

    counter = state.counters.setdefault((event.tenant_id, *key_texts), Counter())
    reason = None
    if is_closed(state, event.tenant_id, name, meter, start):
        reason = "closed"
    elif counter.is_late(event.occurred_at, lateness):
        reason = "late"
    late = reason is not None
    before = counter.together.value(aggregation)
    counter.take(quantity, event.occurred_at, event.ingress_sequence, late=late)
    row = key | counter.columns(aggregation)
    state.put("counters", event.tenant_id, key_text(key_texts), row, live=live)

    if reason is not None:
        # Choice: where there is no value without it, as in a counter that begins behind a close, the amount is all.
        after = counter.together.value(aggregation)
        assert after is not None
        _adjust(state, event, key, quantity, amount=after - (before or 0), reason=reason, live=live)

    if group_by := meter.get("group_by"):
        # A group inherits the counter's decision; one that has late events only has a row, for its total.
        group = group_key(columns, names_of(group_by))
        part = state.groups.setdefault((event.tenant_id, *key_texts, group), Counter())
        part.take(quantity, event.occurred_at, event.ingress_sequence, late=late)
        row = key | {"group_key": group} | part.columns(aggregation)
        state.put("counter_groups", event.tenant_id, bounded(key_text([*key_texts, group])), row, live=live)


def _adjust(
    state: State,
    event: Event,
    key: Mapping[str, Any],
    quantity: Decimal | None,
    *,
    amount: Decimal,
    reason: str,
    live: bool,
) -> None:
    row = {
        **key,
        "ingress_sequence": event.ingress_sequence,
        "quantity": quantity,
        "amount": amount,
        "reason": reason,
        "occurred_at": event.occurred_at,
    }
    identity = key_text([key["metric"], str(event.ingress_sequence)])
    state.put("adjustments", event.tenant_id, identity, row, live=live)


def _matches(where: Mapping[str, Any] | str | None, columns: Columns) -> bool:
    if where is None:
        return True
    conditions = json.loads(where, parse_float=Decimal) if isinstance(where, str) else where
    return filters.truth(conditions, lambda name: (columns.type(name), columns.value(name))) is True


def _error(state: State, event: Event, source: str, code: str, message: str) -> None:
    row = {"source": source, "ingress_sequence": event.ingress_sequence, "code": code, "message": message}
    key = key_text([source, str(event.ingress_sequence)])
    if (event.tenant_id, key) not in state.table("error_rows"):
        state.put("error_rows", event.tenant_id, key, row)
