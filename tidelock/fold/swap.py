"""The swap: at a definition control event the tables become those of the new definitions, in one transaction.

Whoever reads sees the old rows until it is committed and the new ones after. Only what differs becomes a change.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelock.definitions import Definitions
from tidelock.fold.catalog import Catalog, unit_hashes, write_catalog_sql
from tidelock.fold.differences import differences
from tidelock.fold.folder import Folder
from tidelock.fold.kernel.outcomes import Outcome
from tidelock.fold.kernel.outputs import outputs_of
from tidelock.fold.ranges import Range
from tidelock.fold.shadow import Shadow
from tidelock.fold.shapes import drop, reshape
from tidelock.fold.store import Store
from tidelock.fold.tables import ADJUSTMENTS, COUNTER_GROUPS, COUNTERS, WATERMARKS, tables_of
from tidelock.fold.windows.due import write_due_sql

#: whoever asks for a table that the swap waits for waits behind it: it gives up, and is tried again
_LOCK_S = 2


def swap(store: Store, catalog: Catalog, shadow: Shadow, at: Range, folder: Folder) -> Catalog:
    """Give the tables what the shadow has, which must be complete through the control event. Raises CursorMoved.

    The folder by the definitions until now tells what the event does to windows that stay as they are.
    """
    definitions = shadow.plan.definitions
    built = shadow.tables
    # Tables that were not rebuilt keep the shape they have.
    kept = {name: catalog.tables[name] for name in tables_of(definitions) if name in catalog.tables}
    tables = {**kept, **built}
    assert shadow.complete(at.hi), "a shadow that is behind or ahead would lose events or count them twice"
    store.move(at.lo, at.hi)
    unchanged = set(catalog.definitions.windows) - set(shadow.plan.names("windows"))
    passed = list(folder.controlled(at, unchanged))
    found = differences(store, shadow, catalog.tables, at.source_timestamp)
    # From here on readers of the tables that get another shape wait: the long work is done.
    store.execute(f"SET LOCAL lock_timeout = '{_LOCK_S}s'")
    for statement in reshape(catalog.tables, tables):
        store.execute(statement)
    store.write(at.hi, [*_watched(found, catalog.definitions, definitions), *passed], changes=True)
    for statement in (*drop(catalog.tables, tables), *shadow.place.drop()):
        store.execute(statement)
    version = catalog.version + 1
    store.execute(write_catalog_sql(version, definitions, tables.values()))
    store.execute(write_due_sql(store.schema, outputs_of(definitions, {})))
    store.finish(at.hi)
    return Catalog(version, definitions, unit_hashes(definitions), tables)


def _watched(outcomes: Iterable[Outcome], before: Definitions, after: Definitions) -> list[Outcome]:
    """Without the changes of what nobody may watch; for what is removed, that is as it was."""
    meters = [name for name, meter in {**before.meters, **after.meters}.items() if not meter.live]
    streams = {**before.streams, **after.streams}
    unwatched = {table for stream in streams.values() if not stream.live for table in stream.tables}
    unwatched |= {name for name, window in {**before.windows, **after.windows}.items() if not window.live}
    followed = {f"{name}_ordered" for name, stream in streams.items() if stream.ordered and stream.live}
    counted = {table.name for table in (COUNTERS, COUNTER_GROUPS, ADJUSTMENTS)}
    watched = []
    for outcome in outcomes:
        if outcome.table == WATERMARKS:
            outcome = outcome.only("window", sorted(followed))
        elif outcome.table.name in unwatched or outcome.table.internal:
            outcome = outcome.unwatched()
        elif outcome.table.name in counted and meters:
            outcome = outcome.without("metric", meters)
        watched.append(outcome)
    return watched
