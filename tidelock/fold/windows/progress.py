"""Stored progress: the state of outputs for their tenants, before and after a range."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.arrow import column
from tidelock.fold.kernel.outcomes import Outcome, chained, row_schema
from tidelock.fold.kernel.outputs import Output
from tidelock.fold.kernel.watermarks import Progress, Standing
from tidelock.tables import KEY, WATERMARKS

_STATE = [name for name in WATERMARKS.stored if name != "window"]


def read_standings(stored: pa.Table) -> dict[str, dict[str, Standing]]:
    """Standings by output and tenant."""
    found: dict[str, dict[str, Standing]] = defaultdict(dict)
    for row in stored.to_pylist():
        found[row["window"]][row["tenant_id"]] = Standing(**{name: row[name] for name in _STATE})
    return found


def standing_keys(tenants: Mapping[str, Iterable[str]]) -> pa.Table:
    """Keys of the watermarks of outputs and tenants."""
    pairs = [(tenant, output) for output, names in tenants.items() for tenant in names]
    names, outputs = ([pair[side] for pair in pairs] for side in (0, 1))
    return pa.table({"tenant_id": pa.array(names, pa.string()), KEY: pa.array(outputs, pa.string())})


def watermark_outcome(progresses: Mapping[str, tuple[Output, Progress]], stored: pa.Table) -> Outcome:
    """Watermarks to store. For ordered output every raise is a change, for its followers."""
    versions = [_versions(output, progress) for output, progress in progresses.values() if progress.after]
    unwatched = [output.name for output, _ in progresses.values() if not _followed(output)]
    everything = pa.concat_tables(versions) if versions else row_schema(WATERMARKS).empty_table()
    return chained(WATERMARKS, everything, stored).without("window", sorted(unwatched))


def _followed(output: Output) -> bool:
    return output.window is None and output.live


def _versions(output: Output, progress: Progress) -> pa.Table:
    """The state of each tenant after the range, preceded by its state after every raise, if followed."""
    tenants = list(progress.after)
    states = [asdict(standing) for standing in progress.after.values()]
    rows = pa.table({name: pa.array([state[name] for state in states], pa.int64()) for name in _STATE})
    raised = pc.index_in(column(progress.raises, "tenant_id"), value_set=pa.array(tenants, pa.string())).to_numpy()
    at = column(progress.raises, "at").to_numpy()
    marks = column(progress.raises, "mark")
    own = np.arange(len(tenants))
    if _followed(output):
        others = np.setdiff1d(own, raised)
        order = np.argsort(np.concatenate([raised, others]), kind="stable")
        own = np.concatenate([raised, others])[order]
        times = np.concatenate([at, np.zeros(len(others), np.int64)])[order]
        known = column(rows, "watermark").take(pa.array(others))
        rows = rows.take(pa.array(own))
        watermarks = pa.concat_arrays([marks, known]).take(pa.array(order))
        rows = rows.set_column(rows.column_names.index("watermark"), "watermark", watermarks)
    else:
        times = np.zeros(len(tenants), np.int64)
        # By arrival no watermark is stored: the row dates from its first collection.
        places = np.arange(len(raised)) if output.by_event_time else np.arange(len(raised))[::-1]
        times[raised[places]] = at[places]
    names = pa.array(tenants, pa.string()).take(pa.array(own))
    named = pa.repeat(output.name, len(own))
    found = {name: rows[name] for name in rows.column_names}
    found |= {"tenant_id": names, KEY: named, "window": named, "source_timestamp": pa.array(times)}
    schema = row_schema(WATERMARKS)
    return pa.table(found).select(schema.names).cast(schema)


def furthest(rows: pa.Table, name: str, beyond: int = 0) -> dict[str, int]:
    """The greatest time of each tenant."""
    found = rows.group_by("tenant_id").aggregate([(name, "max")])
    times = pc.add(found[f"{name}_max"], beyond)
    return dict(zip(found["tenant_id"].to_pylist(), times.to_pylist(), strict=True))


def tenants_of(rows: pa.Table) -> Sequence[str]:
    names: list[str] = column(rows, "tenant_id").unique().to_pylist()
    return names
