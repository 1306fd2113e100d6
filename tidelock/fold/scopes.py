"""Scopes: which rows of the tables are made by which definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidelock.columns import STRING
from tidelock.fold.shadow import Plan
from tidelock.fold.tables import ADJUSTMENTS, COUNTER_GROUPS, COUNTERS, ERROR_ROWS, Table
from tidelock.where.sql import literal

#: codes of the error rows that streams make; the others are made by meters
_STREAM_CODES = ("invalid_column", "invalid_event_time", "future_event_time")


def scopes(plan: Plan, tables: Mapping[str, Table]) -> list[tuple[Table, str]]:
    """The tables that have rows of a plan's units, each with the condition that these rows meet."""
    meters, streams = plan.names("meters"), plan.names("streams")
    codes = _either("code", _STREAM_CODES)
    of_meters = f"{_either('source', meters)} AND NOT {codes}"
    of_streams = f"{_either('source', streams)} AND {codes}"
    return [
        *((table, _either("metric", meters)) for table in (COUNTERS, COUNTER_GROUPS, ADJUSTMENTS)),
        (ERROR_ROWS, f"({of_meters} OR {of_streams})"),
        *((tables[name], "TRUE") for name in streams if name in tables),
    ]


def _either(column: str, names: Sequence[str]) -> str:
    return f"{column} IN ({', '.join(literal(STRING, name) for name in names)})" if names else "FALSE"
