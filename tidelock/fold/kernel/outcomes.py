"""Outcomes: what a range did to one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.fold.kernel.runs import Flags
from tidelock.fold.segments import Changes, Segment
from tidelock.fold.statements import Due
from tidelock.fold.tables import KEY, Table

__all__ = ["Changes", "Outcome", "appended_rows", "no_keys"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a range did to a table."""

    table: Table
    #: rows to store in place of those with their keys, if there are any; with `tenant_id`, key, source timestamp, state
    rows: pa.Table
    #: rows to store whose keys are not there yet
    fresh: pa.Table
    #: tenant and key of rows to remove
    removed: pa.Table
    #: in order, as they are or with old and new rows written out; None: nobody may watch
    changes: Changes | pa.Table | None
    #: changes that were encoded where they were made: segments, in order, by lane
    lanes: Sequence[Sequence[Segment]] = ()
    #: rows to remove before anything is stored, beside those in `removed`
    due: Due | None = None

    def unwatched(self) -> Outcome:
        """Without its changes."""
        return replace(self, changes=None, lanes=())

    def without(self, name: str, values: list[str]) -> Outcome:
        """Without the changes of rows that have one of these values in a column, which no change alters."""
        return replace(self, changes=self._written.filter(pc.invert(self._having(name, values))))

    def only(self, name: str, values: list[str]) -> Outcome:
        """With the changes of such rows only."""
        return replace(self, changes=self._written.filter(self._having(name, values)))

    @property
    def _written(self) -> pa.Table:
        assert isinstance(self.changes, pa.Table), "only changes whose rows are written out are chosen from"
        return self.changes

    def _having(self, name: str, values: list[str]) -> pa.Array:
        old, new = (pc.struct_field(self._written[side], name) for side in ("old", "new"))
        return pc.is_in(pc.coalesce(new, old), value_set=pa.array(values, pa.string()))


def no_keys() -> pa.Table:
    return pa.table({"tenant_id": pa.array([], pa.string()), KEY: pa.array([], pa.string())})


def appended_rows(table: Table, rows: pa.Table, live: Flags | None = None) -> Outcome:
    """The outcome for rows that were never there before; `live`: those whose changes are recorded, or all."""
    if live is not None and not live.any():
        return Outcome(table, rows.slice(0, 0), rows, no_keys(), None)
    seen = rows if live is None or live.all() else rows.filter(pa.array(live))
    by = [("source_timestamp", "ascending"), (KEY, "ascending"), ("tenant_id", "ascending")]
    seen = seen.take(pc.sort_indices(seen.select([name for name, _ in by]), sort_keys=by)).combine_chunks()
    columns = seen.select(list(table.columns))
    changes = Changes(
        tenant_id=_whole(seen, "tenant_id"),
        key=_whole(seen, KEY),
        source_timestamp=_whole(seen, "source_timestamp"),
        rows=columns,
        exists=None,
        before=np.full(seen.num_rows, -1),
        old_rows=columns.slice(0, 0),
    )
    return Outcome(table, rows.slice(0, 0), rows, no_keys(), changes)


def _whole(rows: pa.Table, name: str) -> pa.Array:
    found = rows[name]
    return found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()
