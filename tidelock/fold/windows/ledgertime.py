"""The ledger's time in a range: windows by arrival go by it, whatever the events are."""

from __future__ import annotations

from functools import cached_property

import pyarrow as pa

from tidelock.fold.store import Store
from tidelock.fold.windows.due import QUERIES


class LedgerTime:
    """Source timestamps, read when they are needed."""

    def __init__(self, store: Store, lo: int, hi: int) -> None:
        self._store = store
        self._bounds = {"lo": lo, "hi": hi}

    @cached_property
    def end(self) -> int:
        """The last; nothing lies before it that is not folded."""
        found = self._store.query(QUERIES.text("range_end").format(**self._bounds))["source_timestamp"][0].as_py()
        return 0 if found is None else int(found)

    @cached_property
    def times(self) -> pa.Array:
        """All of them, in order."""
        found = self._store.query(QUERIES.text("range_times").format(**self._bounds))
        return found["source_timestamp"].combine_chunks()
