"""Events as the kernel gets them, prepared by the reference model's rules instead of Spark's, and a store in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tests.model.counting import lateness, matches, meters_in
from tests.model.events import Columns, Event, group_key, names_of, row_key
from tests.model.meters import period_start, quantity_of
from tests.model.progress import CONTROL
from tests.model.values import KEY_BYTES_MAX
from tidelock.changes.segments import decode, encode
from tidelock.fold.kernel.amounts import DECIMAL
from tidelock.fold.kernel.meters import Meters
from tidelock.fold.kernel.outcomes import Outcome, row_schema
from tidelock.tables import KEY, Table

Toml = Mapping[str, Mapping[str, Any]]

ENTRIES = pa.schema(
    {
        "ingress_sequence": pa.int64(),
        "source_timestamp": pa.int64(),
        "tenant_id": pa.string(),
        "customer_ref": pa.string(),
        "occurred_at": pa.int64(),
        "meter": pa.int32(),
        "period_start": pa.int64(),
        "quantity": DECIMAL,
        "group_key": pa.string(),
        "text": pa.string(),
    }
)


def kernel_meters(toml: Toml) -> Meters:
    found = meters_in(toml)
    return Meters(
        names=tuple(found),
        aggregations=tuple(meter.get("aggregation", "sum") for meter in found.values()),
        lateness_ns=tuple(lateness(meter, toml) for meter in found.values()),
        grouped=tuple(bool(meter.get("group_by")) for meter in found.values()),
        live=tuple(meter.get("live", True) for meter in found.values()),
        missing=tuple("" for _ in found),
    )


def entries_of(events: Iterable[Event], toml: Toml) -> pa.Table:
    """One row for every event and meter that counts it."""
    rows = [row for event in events if event.stream != CONTROL for row in _entries(event, toml)]
    return pa.Table.from_pylist(rows, ENTRIES)


def _entries(event: Event, toml: Toml) -> Iterator[dict[str, Any]]:
    stream = toml.get("streams", {}).get(event.stream, {})
    columns = Columns(event, stream.get("columns", {}))
    if columns.misfit() is not None:
        return
    if "key" in stream:
        key = row_key(columns, names_of(stream["key"]))
        if key is None or len(key.encode()) > KEY_BYTES_MAX:
            return
    if event.op in ("delete", "void") or event.customer_ref is None:
        return
    for number, (name, meter) in enumerate(meters_in(toml).items()):
        if event.stream != meter.get("stream", name) or not matches(meter.get("where"), columns):
            continue
        source, aggregation = meter.get("value", "quantity"), meter.get("aggregation", "sum")
        distinct = aggregation == "unique_count"
        text = columns.distinct_text(source) if distinct else None
        quantity = None if distinct else quantity_of(columns.type(source), columns.value(source))
        if quantity is None and text is None and aggregation != "count":
            continue
        yield {
            "ingress_sequence": event.ingress_sequence,
            "source_timestamp": event.source_timestamp,
            "tenant_id": event.tenant_id,
            "customer_ref": event.customer_ref,
            "occurred_at": event.occurred_at,
            "meter": number,
            "period_start": period_start(meter.get("period", "month"), event.occurred_at),
            "quantity": None if quantity is None else quantity.quantize(Decimal("1e-9")),
            "group_key": group_key(columns, names_of(meter["group_by"])) if meter.get("group_by") else None,
            "text": text,
        }


class Memory:
    """Tables as the fold keeps them: rows by tenant and key, and every change."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
        #: table, and the five columns of each change, in order of ranges
        self.changes: list[tuple[str, dict[str, Any]]] = []

    def stored(self, table: Table, keys: pa.Table) -> pa.Table:
        known = self._rows.get(table.name, {})
        places = zip(keys["tenant_id"].to_pylist(), keys[KEY].to_pylist(), strict=True)
        return pa.Table.from_pylist([known[place] for place in places if place in known], row_schema(table))

    def apply(self, outcome: Outcome) -> None:
        schema = row_schema(outcome.table)
        assert outcome.rows.schema.names == schema.names
        rows = self._rows.setdefault(outcome.table.name, {})
        for row in outcome.removed.to_pylist():
            del rows[row["tenant_id"], row[KEY]]
        for row in outcome.fresh.cast(schema).to_pylist():
            assert (row["tenant_id"], row[KEY]) not in rows, "a fresh row has a key of its own"
            rows[row["tenant_id"], row[KEY]] = row
        for row in outcome.rows.cast(schema).to_pylist():
            rows[row["tenant_id"], row[KEY]] = row
        if outcome.changes is not None:
            found = [row for segment in encode(outcome.changes) for row in decode(segment.data).to_pylist()]
            order = [(row["source_timestamp"], row["key"], row["tenant_id"]) for row in found]
            assert order == sorted(order), "changes are in order"
            self.changes += [(outcome.table.name, row) for row in found]

    def rows(self, table: Table) -> dict[tuple[str, str], tuple[int, dict[str, Any]]]:
        """Source timestamp and columns by tenant and key."""
        return {
            place: (row["source_timestamp"], {name: row[name] for name in table.columns})
            for place, row in self._rows.get(table.name, {}).items()
        }

    def state(self, table: Table) -> dict[tuple[str, str], dict[str, Any]]:
        return dict(self._rows.get(table.name, {}))


def parted(entries: pa.Table, parts: int) -> list[pa.Table]:
    """Entries apart by customer, as executors get them, each part in an order of its own."""
    customers = entries["customer_ref"].combine_chunks().dictionary_encode().indices.to_numpy()
    return [_mixed(entries.filter(pa.array(customers % parts == part)), part) for part in range(parts)]


def _mixed(entries: pa.Table, seed: int) -> pa.Table:
    order = np.random.default_rng(seed).permutation(entries.num_rows)
    return entries.take(pa.array(order))
