"""Holding: rows that wait until all before them must have come, and their order when they are released."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.fold.arrow import column
from tidelock.fold.kernel.outcomes import row_schema
from tidelock.fold.tables import KEY
from tidelock.fold.windows.counts import AT, places_within
from tidelock.fold.windows.outputs import Output
from tidelock.fold.windows.raises import reached


def released_and_held(accepted: pa.Table, due: pa.Table, raises: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Entries that are released, with the collection of that, and those that wait. `due` were waiting until now."""
    rows = pa.concat_tables([due.select(accepted.column_names), accepted]).combine_chunks()
    at = reached(raises, column(rows, "tenant_id"), column(rows, "event_time"))
    out = pc.is_valid(at)
    return rows.append_column(AT, at).filter(out), rows.filter(pc.invert(out))


def at_once(entries: pa.Table, at: int | None = None) -> pa.Table:
    """Entries that are released where they came, or all at one source timestamp."""
    own = entries["source_timestamp"]
    return entries.append_column(AT, own if at is None else pa.repeat(pa.scalar(at, pa.int64()), len(own)))


def held_rows(output: Output, entries: pa.Table) -> pa.Table:
    """Entries as they are stored while they wait."""
    assert output.held is not None
    keyed = entries.append_column(KEY, column(entries, "ingress_sequence").cast(pa.string()))
    return keyed.select(row_schema(output.held).names)


def ordered_rows(released: pa.Table, before: Mapping[str, int]) -> pa.Table:
    """Rows of ordered output: numbered from where their tenant's have come to."""
    rows = released.sort_by([(name, "ascending") for name in ("tenant_id", "event_time", "ingress_sequence")])
    tenants = column(rows, "tenant_id").dictionary_encode()
    counts = pa.array([before.get(name, 0) for name in tenants.dictionary.to_pylist()], pa.int64())
    places = pc.add(places_within(tenants.indices.cast(pa.int64())), counts.take(tenants.indices))
    at = rows[AT]
    rows = rows.append_column("position", pc.add(places, 1))
    rows = rows.append_column(KEY, column(rows, "ingress_sequence").cast(pa.string()))
    return rows.set_column(rows.column_names.index("source_timestamp"), "source_timestamp", at)


def count_by_tenant(rows: pa.Table) -> dict[str, int]:
    counts = column(rows, "tenant_id").value_counts()
    return {entry["values"]: entry["counts"] for entry in counts.to_pylist()}
