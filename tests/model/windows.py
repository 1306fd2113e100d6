"""Windows: which rows are one window, when it is closed, and what it says of its rows."""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

from tests.model.events import Columns
from tests.model.meters import average, duration, quantity_of
from tests.model.values import Misfit, exact, read
from tests.model.watermarks import Entry

#: of so many in a hundred values, the greatest
_PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}

#: the first instant of 64-bit nanoseconds
_FIRST = -(2**63)

#: texts of the group columns; null is a group of its own
Group = tuple[str | None, ...]

_CALL = re.compile(r"\s*([A-Za-z_0-9]+)\s*\(\s*(\S+)\s*\)\s*")


@dataclass(frozen=True)
class Window:
    """The rows of one window, open or closed."""

    group: Group
    start: int
    end: int
    entries: Sequence[Entry]
    #: count windows are numbered; their start and end are the first and the last row's time
    ordinal: int | None = None

    @property
    def limit(self) -> int:
        """What comes after it must not lie before this."""
        return self.end if self.ordinal is None else self.end + 1


class Frame(Protocol):
    """Which rows are one window."""

    def take(self, group: Group, entry: Entry) -> None:
        """A row that is not late."""

    def release(self, group: Group, entry: Entry) -> None:
        """The same row, once its turn has come."""

    def close(self, through: int | None) -> list[Window]:
        """The windows that end when time has come so far; all that are open when it is None."""

    def open(self) -> list[Window]:
        """Those that have rows and did not end yet."""


@dataclass
class Stretches:
    """Tumbling and hopping windows: equal stretches of time from 1970 on, in which their rows lie.

    Choice: of windows that begin before 64-bit time there is the last, which begins with it.
    """

    size: int
    step: int
    rows: defaultdict[tuple[Group, int, int], list[Entry]] = field(default_factory=lambda: defaultdict(list))

    def take(self, group: Group, entry: Entry) -> None:
        start = entry.time // self.step * self.step
        while start + self.size > entry.time:
            self.rows[group, max(start, _FIRST), start + self.size].append(entry)
            if start <= _FIRST:
                break
            start -= self.step

    def release(self, group: Group, entry: Entry) -> None:
        pass

    def close(self, through: int | None) -> list[Window]:
        closed = [window for window in self.open() if through is None or window.end <= through]
        for window in closed:
            del self.rows[window.group, window.start, window.end]
        return closed

    def open(self) -> list[Window]:
        return [Window(group, start, end, rows) for (group, start, end), rows in self.rows.items()]


@dataclass
class Sessions:
    """Rows less than a gap apart."""

    gap: int
    rows: defaultdict[Group, list[Entry]] = field(default_factory=lambda: defaultdict(list))

    def take(self, group: Group, entry: Entry) -> None:
        self.rows[group].append(entry)

    def release(self, group: Group, entry: Entry) -> None:
        pass

    def close(self, through: int | None) -> list[Window]:
        closed = [window for window in self.open() if through is None or window.end <= through]
        for window in closed:
            self.rows[window.group] = [row for row in self.rows[window.group] if row not in window.entries]
        return closed

    def open(self) -> list[Window]:
        return [
            Window(group, session[0].time, session[-1].time + self.gap, session)
            for group, rows in self.rows.items()
            for session in self._sessions(sorted(rows))
        ]

    def _sessions(self, rows: Sequence[Entry]) -> Iterator[list[Entry]]:
        session: list[Entry] = []
        for row in rows:
            if session and row.time - session[-1].time >= self.gap:
                yield session
                session = []
            session.append(row)
        if session:
            yield session


@dataclass
class Counts:
    """So many rows, in the order of their release."""

    size: int
    rows: defaultdict[Group, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    #: windows that a group has had, full ones that are yet to be closed too
    ordinals: defaultdict[Group, int] = field(default_factory=lambda: defaultdict(int))
    full: list[Window] = field(default_factory=list)

    def take(self, group: Group, entry: Entry) -> None:
        pass

    def release(self, group: Group, entry: Entry) -> None:
        self.rows[group].append(entry)
        if len(self.rows[group]) == self.size:
            self.full.append(self._window(group))
            self._next(group)

    def close(self, through: int | None) -> list[Window]:
        closed, self.full = self.full, []
        for window in self.open() if through is None else []:
            closed.append(window)
            self._next(window.group)
        return closed

    def open(self) -> list[Window]:
        return [self._window(group) for group, rows in self.rows.items() if rows]

    def _window(self, group: Group) -> Window:
        rows = self.rows[group]
        return Window(group, rows[0].time, rows[-1].time, rows, self.ordinals[group] + 1)

    def _next(self, group: Group) -> None:
        self.ordinals[group] += 1
        self.rows[group] = []


def frame(declared: Mapping[str, Any]) -> Frame:
    """The frame of `window = {...}`."""
    ((kind, size),) = declared.items()
    match kind:
        case "tumbling":
            return Stretches(duration(size), duration(size))
        case "hopping":
            return Stretches(duration(size[0]), duration(size[1]))
        case "session":
            return Sessions(duration(size))
    assert kind == "count"
    return Counts(size)


def selected(select: Mapping[str, str], entries: Sequence[Entry]) -> dict[str, Any]:
    """The columns of a window that its rows make."""
    return {name: _aggregated(call, sorted(entries)) for name, call in select.items()}


def _aggregated(call: str, entries: Sequence[Entry]) -> Any:
    """Choice: null is ignored by all but `count(*)`, as in SQL; so the first is the first that has a value.

    Choice: what is no quantity of a meter is null for sums and averages: a path that leads to no number, and a number
    beyond nineteen digits, of which there is an error row. Of nothing they are null, as in SQL.
    """
    function, column = _parts(call)
    if column == "*":
        return len(entries)
    if function == "unique_count":
        return len({text for entry in entries if (text := entry.columns.distinct_text(column)) is not None})
    if function in _PERCENTILES:
        numbers = [number for entry in entries if (number := _double(entry.columns, column)) is not None]
        return _percentile(numbers, _PERCENTILES[function])
    if function in ("sum", "avg"):
        return _summed(function, [_quantity(entry.columns, column) for entry in entries])
    values = [value for entry in entries if (value := entry.columns.value(column)) is not None]
    if function == "count":
        return len(values)
    if not values:
        return None
    match function:
        case "min":
            return min(values)
        case "max":
            return max(values)
    return values[0 if function == "first" else -1]


def _summed(function: str, quantities: Sequence[Decimal | None]) -> Decimal | None:
    found = [quantity for quantity in quantities if quantity is not None]
    if not found:
        return None
    total = sum(found, Decimal(0))
    return total if function == "sum" else average(total, len(found))


def _parts(call: str) -> tuple[str, str]:
    parts = _CALL.fullmatch(call)
    assert parts is not None, f"{call} is no aggregate"
    return parts[1].lower(), parts[2]


def misfit(select: Mapping[str, str], columns: Columns) -> str | None:
    """What is wrong with the first value that an aggregate has no place for, and leaves out.

    Choice: that is a number that is too large, or has too many digits. What is no number at all is null to it.
    """
    for call in select.values():
        function, column = _parts(call)
        percentile = function in _PERCENTILES
        if column == "*" or not (percentile or function in ("sum", "avg")):
            continue
        value = columns.value(column)
        if value is None or (columns.type(column) is None and not _is_number(value)):
            continue
        if (_double if percentile else _quantity)(columns, column) is None:
            room = "number that a double holds" if percentile else "number below 10^19 with at most nine decimals"
            return f'column "{column}" has no {room}, so {function}({column}) leaves it out'
    return None


def _is_number(text: str) -> bool:
    try:
        exact(text)
    except Misfit:
        return False
    return True


def _double(columns: Columns, name: str) -> float | None:
    """A value as a double; a path's text as a column of doubles would have it."""
    value = columns.value(name)
    if value is None or columns.type(name) is not None:
        return None if value is None else float(value)
    try:
        return float(read("double", value))
    except Misfit:
        return None


def _percentile(values: Sequence[float], percent: int) -> float | None:
    """The middle of the bucket that has the value of this rank. A bucket is sign, exponent and seven more bits."""
    if not values:
        return None
    rank = -(-percent * len(values) // 100)
    value = sorted(values)[rank - 1]
    if value == 0:
        return 0.0
    (bits,) = struct.unpack(">Q", struct.pack(">d", value))
    (middle,) = struct.unpack(">d", struct.pack(">Q", bits >> 45 << 45 | 1 << 44))
    return float(middle)


def _quantity(columns: Columns, name: str) -> Decimal | None:
    return quantity_of(columns.type(name), columns.value(name))
