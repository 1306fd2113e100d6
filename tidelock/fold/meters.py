"""Meters: which events count, for which counter, and what a counter is worth, as Spark SQL.

Meters are numbers here, in the order of the definitions: a number is cheaper to sort and carry than a name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidelock.definitions import Definitions, Meter
from tidelock.fold import casts
from tidelock.fold.numbers import EXTENT, WIDE, Numbers
from tidelock.fold.readings import Reading, by_stream, readings, sql_text
from tidelock.fold.slots import Slots
from tidelock.ledger.queries import load
from tidelock.where.sql import SPARK, where_sql

QUERIES = load("tidelock.fold", "sql/counters.sql")

_ENTRY = (
    "STRUCT<meter: INT, matches: BOOLEAN, period_start: BIGINT, quantity: DECIMAL(38,9), error: STRING, "
    "message: STRING, group_key: STRING, grouped: BOOLEAN>"
)


def _values(numbers: Numbers) -> dict[str, str]:
    return {
        "sum": "agg_sum",
        "count": numbers.count("agg_count"),
        "max": "agg_max",
        "min": "agg_min",
        "last": "agg_last",
        "avg": "CAST(agg_sum / NULLIF(agg_count, 0L) AS DECIMAL(38,9))",
    }


def _totals(numbers: Numbers) -> dict[str, str]:
    return {
        "sum": numbers.sum("agg_sum", "adj_sum"),
        "count": numbers.count("agg_count + adj_count"),
        "max": "greatest(agg_max, adj_max)",
        "min": "least(agg_min, adj_min)",
        # A late event lies behind the counter's latest, so it is never the last.
        "last": "agg_last",
        "avg": f"CAST({numbers.sum('agg_sum', 'adj_sum')} / (agg_count + adj_count) AS DECIMAL(38,9))",
    }


# Of a group it may be: the counter's latest can belong to another group.
_GROUP_LAST = "IF(last_at IS NULL OR adj_last_at >= last_at, adj_last, agg_last)"


class MeterSteps:
    """The steps of all meters together: their number does not depend on how many there are."""

    def __init__(self, definitions: Definitions, slots: Slots) -> None:
        self.meters: Sequence[Meter] = list(definitions.meters.values())
        self._slots = slots

    @property
    def grouped(self) -> bool:
        return any(meter.group_by for meter in self.meters)

    def prepared(self) -> str:
        """What the meters of an event's stream make of it, as an array."""
        arrays = {
            name: f"array({', '.join(structs)})"
            for name, reading in readings(self._slots).items()
            if (structs := [_entry(n, m, reading) for n, m in enumerate(self.meters) if m.stream == name])
        }
        return by_stream(arrays, f"ARRAY<{_ENTRY}>")

    def entries(self) -> str:
        """One row per event and meter that counts it, or would if the event were complete."""
        return """
            SELECT ingress_sequence, source_timestamp, tenant_id, customer_ref, occurred_at, entry.meter,
                entry.period_start, entry.quantity, IF(customer_ref IS NULL, 'missing_customer', entry.error) AS error,
                entry.group_key, entry.grouped
            FROM (SELECT *, explode(entries) AS entry FROM prepared WHERE objection IS NULL AND NOT deleted)
            WHERE entry.matches"""

    def chained(self, hint: str, numbers: Numbers) -> str:
        written = {f"stored_{name}": numbers.written(name) for name in ("agg_sum", "agg_max", "agg_min", "agg_last",
                   "adj_sum", "adj_max", "adj_min")}  # fmt: skip
        quantity = numbers.written("quantity")
        return QUERIES.text("chained").format(hint=hint, number=numbers.type, quantity=quantity, **written)

    def decided(self) -> str:
        lateness = self._by_meter(lambda meter: f"{meter.lateness_ns}L")
        return QUERIES.text("decided").format(lateness=lateness)

    def counter_versions(self, numbers: Numbers) -> str:
        return QUERIES.text("counter_versions").format(
            zero=numbers.zero,
            value=self._by_aggregation(_values(numbers)),
            total=self._by_aggregation(_totals(numbers)),
            amount=numbers.sum("total", "previous_total", "-"),
        )

    def touched_groups(self) -> str:
        return QUERIES.text("touched_groups")

    def groups(self, hint: str) -> str:
        return QUERIES.text("grouped").format(hint=hint)

    def group_versions(self) -> str:
        return QUERIES.text("group_versions").format(
            value=self._by_aggregation(_values(WIDE)),
            group_total=self._by_aggregation(_totals(WIDE) | {"last": _GROUP_LAST}),
        )

    def extent(self) -> str:
        """What decides in which numbers the range is counted."""
        return f"{EXTENT} FROM entries WHERE error IS NULL"

    def _by_aggregation(self, expressions: dict[str, str]) -> str:
        return self._by_meter(lambda meter: expressions[meter.aggregation])

    def _by_meter(self, expression: Callable[[Meter], str]) -> str:
        """What a meter's number stands for."""
        numbers: dict[str, list[str]] = {}
        for number, meter in enumerate(self.meters):
            numbers.setdefault(expression(meter), []).append(str(number))
        if len(numbers) == 1:
            return next(iter(numbers))
        cases = " ".join(f"WHEN meter IN ({', '.join(of)}) THEN {sql}" for sql, of in numbers.items())
        return f"CASE {cases} END"


def missing_quantity(meter: Meter) -> str:
    """What is wrong with an event that has nothing for the meter to aggregate."""
    return f'"{meter.value}" is missing, or no number below 10^19 with at most nine decimals'


def _entry(number: int, meter: Meter, reading: Reading) -> str:
    matches = "TRUE" if meter.where is None else f"COALESCE({where_sql(meter.where, SPARK, reading.as_type)}, FALSE)"
    quantity = reading.quantity(meter.value)
    error = message = "CAST(NULL AS STRING)"
    if meter.aggregation != "count":
        error = f"IF({quantity} IS NULL, 'missing_quantity', NULL)"
        message = sql_text(missing_quantity(meter))
    group = reading.joined(meter.group_by) if meter.group_by else "CAST(NULL AS STRING)"
    return (
        f"named_struct('meter', {number}, 'matches', {matches}, "
        f"'period_start', {casts.period_start(meter.period, 'occurred_at')}, 'quantity', {quantity}, "
        f"'error', {error}, 'message', {message}, 'group_key', {group}, 'grouped', {bool(meter.group_by)})"
    )
