"""Tables and their changes: what the fold leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.model.events import Event
from tests.model.meters import Counter, Entry
from tests.model.operators import Metrics, Operator
from tests.model.values import key_text

#: column -> value: str, int (instants too), Decimal, float, bool, date, JSON text, or None
Row = Mapping[str, Any]
#: tenant and key text
Key = tuple[str, str]


@dataclass(frozen=True)
class Change:
    """What one collection did to one key of a table."""

    table: str
    source_timestamp: int
    key: str
    tenant_id: str
    #: None: there was none, or there is none any more
    old: Row | None
    new: Row | None


#: nothing, or of a meter with groups the key of one, which may be null
Group = tuple[()] | tuple[str | None]


@dataclass(frozen=True)
class Counted:
    """An event as a meter has it, until it is corrected."""

    entry: Entry
    group: Group
    #: an adjusted one is in totals only
    folded: bool = True


@dataclass
class State:
    """Everything after a sequence."""

    tables: dict[str, dict[Key, Row]] = field(default_factory=dict)
    #: Choice: a row's source timestamp is that of the last collection that *changed* it, so it can be told from the
    #: changes. An upsert of the same values leaves it alone.
    source_timestamps: dict[str, dict[Key, int]] = field(default_factory=dict)
    #: by (source timestamp, table, key, tenant). Choice: keys are ordered as texts, by code point
    changes: list[Change] = field(default_factory=list)
    #: what the meters keep, adjusted events too
    counters: dict[tuple[str, ...], Counter] = field(default_factory=dict)
    groups: dict[tuple[str | None, ...], Counter] = field(default_factory=dict)
    #: by tenant, meter and sequence
    counted: dict[tuple[str, str, int], Counted] = field(default_factory=dict)
    #: meter and tenant, None being all of them -> the end through which it is closed
    closed: dict[tuple[str, str | None], int] = field(default_factory=dict)
    #: window or `<stream>_ordered`, and tenant
    operators: dict[tuple[str, str], Operator] = field(default_factory=dict)
    #: rows as they were before the collection that is being applied
    _before: dict[tuple[str, Key], Row | None] = field(default_factory=dict)
    #: those whose changes are recorded
    _live: set[tuple[str, Key]] = field(default_factory=set)

    def table(self, name: str) -> Mapping[Key, Row]:
        return self.tables.get(name, {})

    @property
    def metrics(self) -> Mapping[tuple[str, str], Metrics]:
        """By window and tenant, of those that any row has come to."""
        return {place: operator.metrics() for place, operator in self.operators.items()}

    @property
    def raises(self) -> Mapping[tuple[str, str], list[tuple[int, int]]]:
        """Source timestamp and watermark of every collection that raised it."""
        return {place: operator.time.raises for place, operator in self.operators.items()}

    @property
    def held(self) -> Mapping[tuple[str, str], list[int]]:
        """Sequences of the rows that are held back, in the order of their release."""
        return {place: operator.held() for place, operator in self.operators.items()}

    @property
    def open_windows(self) -> Mapping[tuple[str, str], Mapping[str, Row]]:
        """Key and row of every open window, as if it was closed now. Of count windows, the released rows."""
        return {place: operator.open_rows() for place, operator in self.operators.items()}

    def put(self, table: str, tenant: str, key: str, row: Row | None, *, live: bool = True) -> None:
        """Replace a row; None removes it."""
        rows = self.tables.setdefault(table, {})
        self._before.setdefault((table, (tenant, key)), rows.get((tenant, key)))
        if live:
            self._live.add((table, (tenant, key)))
        if row is None:
            rows.pop((tenant, key), None)
        else:
            rows[tenant, key] = row

    def error(self, event: Event, source: str, code: str, message: str) -> None:
        """An error row of an event; a source has one at most, its first."""
        row = {"source": source, "ingress_sequence": event.ingress_sequence, "code": code, "message": message}
        key = key_text([source, str(event.ingress_sequence)])
        if (event.tenant_id, key) not in self.table("error_rows"):
            self.put("error_rows", event.tenant_id, key, row)

    def close_collection(self, source_timestamp: int) -> None:
        """Compare old and new rows: a collection that leaves a row as it was did not change it."""
        for (table, key), old in sorted(self._before.items(), key=lambda item: (item[0][0], item[0][1][::-1])):
            new = self.table(table).get(key)
            if new == old:
                continue
            timestamps = self.source_timestamps.setdefault(table, {})
            timestamps.pop(key, None)
            if new is not None:
                timestamps[key] = source_timestamp
            if (table, key) in self._live:
                tenant, text = key
                self.changes.append(Change(table, source_timestamp, text, tenant, old=old, new=new))
        self._before.clear()
        self._live.clear()
