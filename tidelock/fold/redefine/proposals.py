"""Proposals: definitions on their way into the ledger, and those in it that do not apply yet."""

from __future__ import annotations

from typing import Any

from tidelock.definitions import Definitions, parse_definitions
from tidelock.errors import SettingsError
from tidelock.fold.ranges import control_events, ledger_end
from tidelock.fold.redefine.catalog import (
    Catalog,
    changed_definitions,
    changed_units,
    check_columns,
    read_catalog,
    unit_hashes,
)
from tidelock.fold.redefine.shadow import Plan
from tidelock.fold.store import Store


def check_definitions(store: Store, wanted: Definitions, *, rebuild: bool) -> None:
    """Refuse definitions that cannot be folded, before waiting for Spark. The runner checks again."""
    catalog = read_catalog(store)
    settled = ledger_end(store) == 0 or pending_definitions(store, store.position())
    store.rollback()
    if catalog is None or settled:
        return
    units = changed_units(catalog.hashes, wanted)
    if catalog.definitions.canonical() == wanted.canonical() and not units:
        return
    check_columns(catalog.definitions, wanted)
    if not rebuild:
        raise refusal(", ".join(units) or "what makes no rows")


def refusal(names: str) -> SettingsError:
    """The error if definitions may not be proposed."""
    return SettingsError(
        f"{names} changed since the tables were built; rebuild them with `tidelock replay`, or restore the definitions"
    )


def pending_definitions(store: Store, position: int) -> list[Definitions]:
    """The definitions that events after this position will apply, one after another."""
    events = [data for data in control_events(store, position) if data.get("type") == "definition"]
    return [parse_definitions(data["definitions"], eventtime_types=None) for data in reversed(events)]


def definition_event(plan: Plan) -> dict[str, Any]:
    """The control event that applies a plan; the filters in it are strings, so its numbers are exact.

    Only the wanted definitions matter: what has changed is found by comparing when it is read. Its list of changes is
    for the first one of a ledger, because the definitions before that are in no event.
    """
    event = {"type": "definition", "definitions": plan.definitions.canonical(), "rebuild": list(plan.asked)}
    if plan.before is not None:
        event["changed"] = changed_definitions(plan.before, plan.definitions)
    return event


def read_definition_event(data: Any, catalog: Catalog) -> Plan:
    definitions = parse_definitions(data["definitions"], eventtime_types=None)
    known = unit_hashes(definitions).keys() | catalog.hashes.keys()
    asked = tuple(sorted(unit for unit in data.get("rebuild", ()) if unit in known))
    return Plan(definitions, tuple(sorted({*changed_units(catalog.hashes, definitions), *asked})), asked)
