"""Scopes: which rows of the tables are made by which definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidelock.columns import STRING
from tidelock.fold.kernel.takings import OUT_OF_RANGE
from tidelock.fold.shadow import Plan
from tidelock.fold.tables import ADJUSTMENTS, COUNTER_GROUPS, COUNTERS, ERROR_ROWS, LATE_ROWS, WATERMARKS, Table
from tidelock.where.sql import literal

#: codes of the error rows that streams and windows make; the others are made by meters
_STREAM_CODES = ("invalid_column", "invalid_event_time", "future_event_time")
_WINDOW_CODES = (OUT_OF_RANGE,)

#: kinds of definitions that make the tables that several share
_MAKERS = {
    COUNTERS.name: ("meters",),
    COUNTER_GROUPS.name: ("meters",),
    ADJUSTMENTS.name: ("meters",),
    ERROR_ROWS.name: ("meters", "streams", "windows"),
    LATE_ROWS.name: ("windows", "streams"),
}


def scopes(plan: Plan, tables: Mapping[str, Table]) -> list[tuple[Table, str]]:
    """The tables that have rows of a plan's units, each with the condition that these rows meet."""
    meters, streams, windows = plan.names("meters"), plan.names("streams"), plan.names("windows")
    # A window may be called like a stream's ordered output, where that stream has none.
    ordered = [name for stream in streams if _is_ordered(tables.get(name := f"{stream}_ordered"))]
    own = [table for name in (*windows, *ordered) for table in (name, f"{name}$open", f"{name}$held")]
    codes, of_windows = _either("code", _STREAM_CODES), _either("code", _WINDOW_CODES)
    of_meters = f"{_either('source', meters)} AND NOT {codes} AND NOT {of_windows}"
    of_streams = f"{_either('source', streams)} AND {codes}"
    of_windows = f"{_either('source', windows)} AND {of_windows}"
    return [
        *((table, _either("metric", meters)) for table in (COUNTERS, COUNTER_GROUPS, ADJUSTMENTS)),
        (ERROR_ROWS, f"({of_meters} OR {of_streams} OR {of_windows})"),
        *((table, _either('"window"', [*windows, *ordered])) for table in (LATE_ROWS, WATERMARKS)),
        *((tables[name], "TRUE") for name in (*streams, *own) if name in tables),
    ]


def makes(path: str, table: str) -> bool:
    """Whether a definition makes rows of a table, if there is such a definition; of some it is said that do not."""
    kind, _, name = path.partition(".")
    if table in _MAKERS:
        return kind in _MAKERS[table]
    return (kind == "windows" and table == name) or (kind == "streams" and table in (name, f"{name}_ordered"))


def _is_ordered(table: Table | None) -> bool:
    return table is not None and table.key == ("ingress_sequence",)


def _either(column: str, names: Sequence[str]) -> str:
    return f"{column} IN ({', '.join(literal(STRING, name) for name in names)})" if names else "FALSE"
