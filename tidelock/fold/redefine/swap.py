"""The swap: at a definition control event the tables become those of the new definitions, in one transaction.

Readers see the old rows until it is committed and the new ones after. Only what differs becomes a change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.arrow import arrow_type
from tidelock.definitions import Definitions
from tidelock.fold import statements
from tidelock.fold.closing import Closings
from tidelock.fold.kernel.outcomes import Outcome, chained, row_schema
from tidelock.fold.kernel.outputs import outputs_of
from tidelock.fold.rangefold import RangeFold
from tidelock.fold.ranges import Range
from tidelock.fold.redefine.catalog import Catalog, unit_hashes, write_catalog_sql
from tidelock.fold.redefine.shadow import Shadow, scopes
from tidelock.fold.statements import drop, reshape
from tidelock.fold.store import Store
from tidelock.fold.windows.due import write_due_sql
from tidelock.tables import ADJUSTMENTS, COUNTER_GROUPS, COUNTERS, DISTINCT, KEY, SCHEMA, WATERMARKS, Table, tables_of

#: readers of a table that the swap waits for queue up after it, so it gives up and retries
_LOCK_S = 2


def swap(store: Store, catalog: Catalog, shadow: Shadow, at: Range, range_fold: RangeFold) -> Catalog:
    """Give the tables the rows of the shadow, which must be complete through the control event. Raises CursorMoved.

    `range_fold` has the previous definitions: it computes the effect of the event on unchanged windows.
    """
    definitions = shadow.plan.definitions
    built = shadow.tables
    # Tables that were not rebuilt keep the shape they have.
    kept = {name: catalog.tables[name] for name in tables_of(definitions) if name in catalog.tables}
    tables = {**kept, **built}
    assert shadow.complete(at.hi), "a shadow that is behind or ahead would lose events or count them twice"
    store.move(at.lo, at.hi)
    unchanged = set(catalog.definitions.windows) - set(shadow.plan.names("windows"))
    passed = list(range_fold.controlled(at, unchanged))
    found = differences(store, shadow, catalog.tables, at.source_timestamp)
    # From here on readers of tables that change shape wait: the long work is done.
    store.execute(f"SET LOCAL lock_timeout = '{_LOCK_S}s'")
    for statement in reshape(catalog.tables, tables):
        store.execute(statement)
    store.write(at.hi, [*_watched(found, catalog.definitions, definitions), *passed], changes=True)
    for table, scope in _moved(shadow, catalog.tables):
        for statement in statements.replace_rows(SCHEMA, shadow.place.schema, table, scope):
            store.execute(statement)
    for statement in (*drop(catalog.tables, tables), *shadow.place.drop()):
        store.execute(statement)
    version = catalog.version + 1
    store.execute(write_catalog_sql(version, definitions, tables.values()))
    store.execute(write_due_sql(store.schema, outputs_of(definitions, {})))
    for statement in Closings(store, definitions, due=True).looked():
        store.execute(statement)
    store.finish(at.hi)
    return Catalog(version, definitions, unit_hashes(definitions), tables)


def _watched(outcomes: Iterable[Outcome], before: Definitions, after: Definitions) -> list[Outcome]:
    """Without changes that are not recorded; for removed definitions, as before."""
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


def differences(store: Store, shadow: Shadow, before: Mapping[str, Table], source_timestamp: int) -> list[Outcome]:
    """The outcomes for the tables, which still have the shape of `before`, all at one source timestamp. Of removed
    definitions, whose tables are not in the shadow, every row is removed.

    Internal tables are just dropped, and recreated when their shape changes.
    """
    tables = {**before, **shadow.tables}
    return [
        _difference(store, shadow, table, _present(table, before), scope=scope, source_timestamp=source_timestamp)
        for table, scope in scopes(shadow.plan, tables)
        if scope != "FALSE" and (table.name in shadow.tables or not table.internal) and table != DISTINCT
    ]


def _moved(shadow: Shadow, before: Mapping[str, Table]) -> list[tuple[Table, str]]:
    """Tables whose rows are replaced where they lie: they may have many more rows than all others, and nobody reads
    what differs."""
    found = scopes(shadow.plan, {**before, **shadow.tables})
    return [(table, scope) for table, scope in found if scope != "FALSE" and table == DISTINCT]


def _present(table: Table, before: Mapping[str, Table]) -> Table | None:
    """The table as it is; None: there is none whose rows could be kept."""
    known = before.get(table.name)
    return None if table.internal and known != table else known


def _difference(
    store: Store, shadow: Shadow, table: Table, before: Table | None, scope: str, source_timestamp: int
) -> Outcome:
    kept = table if before is None else _kept(table, before)
    built = table.name in shadow.tables
    main = _digests(SCHEMA, table, kept, scope) if before is not None else None
    other = _digests(shadow.place.schema, table, table, scope) if built else None
    keys = store.query(_differing(main, other))
    empty = row_schema(table).empty_table()
    stored = _padded(table, store.rows(kept, keys)) if main else empty
    new = store.rows(table, keys, shadow.place.schema) if built else empty
    return chained(table, _versions(keys, new, source_timestamp), stored)


def _kept(table: Table, before: Table) -> Table:
    """The table with only its existing columns."""
    shared = {name: type_ for name, type_ in table.columns.items() if before.columns.get(name) == type_}
    return replace(table, columns=shared)


def _digests(schema: str, table: Table, present: Table, scope: str) -> str:
    """Tenant, key and a digest of everything stored; columns that are not there yet count as null."""
    values = [
        "NULL" if name not in present.stored else statements.quoted(name) + ("::text" if type_.name == "json" else "")
        for name, type_ in table.stored.items()
    ]
    return (
        f"SELECT tenant_id, {statements.quoted(KEY)} AS key, md5(ROW({', '.join(values)})::text) AS digest "
        f"FROM {statements.placed(schema, table.name)} WHERE {scope}"
    )


def _differing(main: str | None, other: str | None) -> str:
    nothing = "SELECT NULL::text AS tenant_id, NULL::text AS key, NULL::text AS digest WHERE FALSE"
    return (
        f"SELECT coalesce(main.tenant_id, other.tenant_id) AS tenant_id, "
        f"coalesce(main.key, other.key) AS {statements.quoted(KEY)} "
        f"FROM ({main or nothing}) AS main FULL JOIN ({other or nothing}) AS other "
        "ON main.tenant_id = other.tenant_id AND main.key = other.key "
        "WHERE main.digest IS DISTINCT FROM other.digest"
    )


def _padded(table: Table, rows: pa.Table) -> pa.Table:
    """Stored rows with nulls for new columns."""
    for name, type_ in table.stored.items():
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, arrow_type(type_)))
    return rows


def _versions(keys: pa.Table, new: pa.Table, source_timestamp: int) -> pa.Table:
    """One version per key: the new row, or its removal."""
    found = keys.join(
        new.drop_columns(["source_timestamp"]).append_column("found", pa.repeat(True, new.num_rows)),
        keys=["tenant_id", KEY],
        join_type="left outer",
    )
    deleted = pc.invert(pc.fill_null(found["found"], False))
    times = pa.repeat(pa.scalar(source_timestamp, pa.int64()), found.num_rows)
    return found.append_column("deleted", deleted).append_column("source_timestamp", times)
