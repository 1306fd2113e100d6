"""Counting: what an event or a correction does to the counters of a meter, their groups and the adjustments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from tests.model import filters
from tests.model.closing import is_closed
from tests.model.events import Columns, Event, group_key, names_of
from tests.model.meters import Counter, Entry, duration, period_start, quantity_of
from tests.model.tables import Counted, Group, State
from tests.model.values import bounded, instant_text, key_text

Definitions = Mapping[str, Mapping[str, Any]]
#: tenant, metric, customer and start of the period
Place = tuple[str, str, str, str]


def meters_in(definitions: Definitions) -> dict[str, Mapping[str, Any]]:
    """By name. Beside them stands what holds for all."""
    return {name: meter for name, meter in definitions.get("meters", {}).items() if isinstance(meter, Mapping)}


def lateness(meter: Mapping[str, Any], definitions: Definitions) -> int:
    overall = definitions.get("meters", {}).get("lateness", "48h")
    return duration(str(meter.get("lateness", overall if isinstance(overall, str) else "48h")))


def matches(where: Mapping[str, Any] | str | None, columns: Columns) -> bool:
    if where is None:
        return True
    conditions = json.loads(where, parse_float=Decimal) if isinstance(where, str) else where
    return filters.truth(conditions, lambda name: (columns.type(name), columns.value(name))) is True


def measure(state: State, event: Event, columns: Columns | None, name: str, definitions: Definitions) -> None:
    """One event and one meter. Without columns the event itself counts for nothing, as a void does.

    What a correction corrects leaves, if the meter has counted it; what replaces it enters, if the meter counts that.
    An amendment of what it has not counted is an event of that time (Choice: of a delete too), a void of it nothing.
    """
    meter = definitions["meters"][name]
    if event.stream != meter.get("stream", name):
        return
    entered = None if columns is None else _entered(state, event, columns, name, meter)
    left = None
    if event.target_sequence is not None:
        left = state.counted.pop((event.tenant_id, name, event.target_sequence), None)
    if entered is None and left is None:
        return
    start = period_start(meter.get("period", "month"), event.occurred_at)
    # Both have the same customer and time, so one counter has both.
    place = (event.tenant_id, name, event.customer_ref or "", instant_text(start))
    counter = state.counters.setdefault(place, Counter())
    reason = None
    if is_closed(state, event.tenant_id, name, meter, start):
        reason = "closed"
    elif counter.is_late(event.occurred_at, lateness(meter, definitions)) or (left and not left.folded):
        reason = event.op if event.is_correction else "late"

    before = counter.together.value(_aggregation(meter))
    # A group inherits the counter's decision; one that has late events only has a row, for its total.
    if left is not None:
        for one in _with_group(state, place, left.group):
            one.take_out(left.entry, late=reason is not None)
    if entered is not None:
        for one in _with_group(state, place, entered.group):
            one.add(entered.entry, late=reason is not None)
        state.counted[event.tenant_id, name, event.ingress_sequence] = replace(entered, folded=reason is None)

    key = {"metric": name, "customer_ref": event.customer_ref, "period_start": start}
    _put(state, place, key, [each.group for each in (left, entered) if each is not None], meter)
    if reason is not None:
        # Choice: where there is no value, as in a counter that begins behind a close, it is 0 to an amount.
        amount = (counter.together.value(_aggregation(meter)) or Decimal(0)) - (before or 0)
        quantity = None if entered is None else entered.entry.quantity
        _adjust(state, event, key, quantity, amount=amount, reason=reason, live=meter.get("live", True))


def _entered(state: State, event: Event, columns: Columns, name: str, meter: Mapping[str, Any]) -> Counted | None:
    """The event as the meter counts it.

    Choice: the filter goes first, so an event that does not count is no error either; then the customer.
    """
    if not matches(meter.get("where"), columns):
        return None
    if event.customer_ref is None:
        state.error(event, name, "missing_customer", "customerRef is missing")
        return None
    aggregation, source = _aggregation(meter), meter.get("value", "quantity")
    quantity, text = None, None
    if aggregation == "unique_count":
        # Choice: it is counted by its text alone, so it has no quantity, be it a number or not.
        text = columns.distinct_text(source)
    else:
        quantity = quantity_of(columns.type(source), columns.value(source))
    if quantity is None and text is None and aggregation != "count":
        message = f'"{source}" is missing'
        if aggregation != "unique_count":
            message += ", or no number below 10^19 with at most nine decimals"
        state.error(event, name, "missing_quantity", message)
        return None
    names = names_of(meter.get("group_by", []))
    group = (group_key(columns, names),) if names else ()
    return Counted(Entry(event.ingress_sequence, event.occurred_at, quantity, text), group)


def _aggregation(meter: Mapping[str, Any]) -> str:
    return str(meter.get("aggregation", "sum"))


def _with_group(state: State, place: Place, group: Group) -> list[Counter]:
    """The counter, and of a meter with groups the one of this group."""
    return [state.counters[place], *(state.groups.setdefault((*place, key), Counter()) for key in group)]


def _put(state: State, place: Place, key: Mapping[str, Any], groups: Sequence[Group], meter: Mapping[str, Any]) -> None:
    """The rows of a counter and of some of its groups. Choice: one that everything has left keeps its row."""
    tenant, *texts = place
    aggregation, live = _aggregation(meter), meter.get("live", True)
    row = {**key, **state.counters[place].columns(aggregation)}
    state.put("counters", tenant, key_text(texts), row, live=live)
    for group in (each for found in groups for each in found):
        row = {**key, "group_key": group, **state.groups[*place, group].columns(aggregation)}
        state.put("counter_groups", tenant, bounded(key_text([*texts, group])), row, live=live)


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
