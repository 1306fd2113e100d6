"""Replay: definitions are folded again from sequence 1, alongside the live tables, and take over at an event."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from tidelock.definitions import Definitions
from tidelock.errors import CursorMoved, SettingsError
from tidelock.fold.ranges import Pace, ledger_end
from tidelock.fold.redefine.catalog import Catalog, changed_units, check_columns, unit_hashes
from tidelock.fold.redefine.proposals import definition_event
from tidelock.fold.redefine.shadow import Plan, Shadow
from tidelock.fold.runner import RANGE_EVENTS_START, SHADOW_LAG_EVENTS, Control
from tidelock.fold.source import RangeReader
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark


def plan_replay(catalog: Catalog, wanted: Definitions, names: Iterable[str]) -> Plan:
    """What to rebuild: the named definitions, or all that changed if none is named."""
    check_columns(catalog.definitions, wanted)
    changed = changed_units(catalog.hashes, wanted)
    known = sorted({*catalog.hashes, *unit_hashes(wanted)})
    asked = paths(names, known)
    # The definitions change together: replaying one must not leave out another that changed.
    return Plan(wanted, tuple(sorted({*changed, *asked})), asked, before=catalog.definitions)


def build(
    spark: Spark,
    database: Database,
    plan: Plan,
    *,
    range_events_max: int,
    range_events_start: int = RANGE_EVENTS_START,
    control: Control,
    stop: threading.Event,
    progress: Callable[[int, int], None],
    elsewhere: RangeReader | None = None,
) -> int | None:
    """Build the shadow, then record the event at which it takes over; returns its sequence. None: told to stop.

    Raises ShadowGone if another change intervenes.
    """
    shadow = Shadow(spark, database, plan, elsewhere=elsewhere)
    pace = Pace(range_events_start, range_events_max)
    try:
        end = ledger_end(shadow.store)
        while not stop.is_set():
            try:
                done = shadow.step(pace.events) is None
                pace.succeeded()
            except CursorMoved:
                # A fold that was started with the same definitions builds the same shadow.
                shadow.look_again()
                continue
            end = max(end, ledger_end(shadow.store))
            shadow.store.rollback()
            progress(shadow.position, end)
            if done or end - shadow.position <= SHADOW_LAG_EVENTS:
                return control(definition_event(plan))
        return None
    finally:
        shadow.close()


def await_fold(position: Callable[[], int], sequence: int, stop: threading.Event, pause_s: float = 0.2) -> bool:
    """Wait until the running fold has passed a sequence; False: told to stop before."""
    while position() < sequence:
        if stop.wait(pause_s):
            return False
    return True


def paths(names: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """Paths of the named definitions, with or without their kind."""
    found: set[str] = set()
    for name in names:
        own = {path for path in known if path == name or path.partition(".")[2] == name}
        if not own:
            raise SettingsError(f'there is no definition "{name}"; available: {", ".join(known) or "none"}')
        found |= own
    return tuple(sorted(found))
