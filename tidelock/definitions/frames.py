"""Frames: which rows make one window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidelock.durations import format_duration, parse_duration
from tidelock.sections import Section

#: every row belongs to size / step hopping windows; beyond this it is a mistake
HOPS_MAX = 10_000

_ALLOWED = 'one of { tumbling = "10s" }, { hopping = ["10s", "5s"] }, { session = "30s" }, { count = 100 }'
_COUNT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Equal stretches, one after the other, from the epoch on."""

    size_ns: int

    def canonical(self) -> dict[str, object]:
        return {"tumbling": format_duration(self.size_ns)}


@dataclass(frozen=True, slots=True)
class Hopping:
    """Equal stretches, a new one every step, from the epoch on."""

    size_ns: int
    step_ns: int

    def canonical(self) -> dict[str, object]:
        return {"hopping": [format_duration(self.size_ns), format_duration(self.step_ns)]}


@dataclass(frozen=True, slots=True)
class Session:
    """Rows less than the gap apart."""

    gap_ns: int

    def canonical(self) -> dict[str, object]:
        return {"session": format_duration(self.gap_ns)}


@dataclass(frozen=True, slots=True)
class Count:
    """So many rows, in the order of their release."""

    rows: int

    def canonical(self) -> dict[str, object]:
        return {"count": self.rows}


Frame = Tumbling | Hopping | Session | Count


def read_frame(section: Section) -> Frame:
    """The frame that `window = {...}` declares: exactly one of the four."""
    value = section.values.get("window")
    if value is None:
        raise section.fail("window", f"is missing: it must be {_ALLOWED}")
    if not isinstance(value, Mapping) or len(value) != 1:
        raise section.refuse("window", _ALLOWED)
    table = section.table("window")
    table.only(("tumbling", "hopping", "session", "count"))
    if "hopping" in value:
        return _read_hopping(table)
    if "count" in value:
        return _read_count(table)
    if (gap_ns := table.duration_ns("session", minimum=1)) is not None:
        return Session(gap_ns)
    return Tumbling(table.duration_ns("tumbling", minimum=1) or 0)


def _read_hopping(table: Section) -> Hopping:
    value = table.values["hopping"]
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(item, str) for item in value):
        raise table.refuse("hopping", 'size and step, such as ["10s", "5s"]')
    try:
        size_ns, step_ns = map(parse_duration, value)
    except ValueError as error:
        raise table.refuse("hopping", f"size and step, each {error}") from None
    if not 0 < step_ns <= size_ns:
        raise table.refuse("hopping", "size and step, with the step longer than 0 and at most the size")
    if size_ns > step_ns * HOPS_MAX:
        raise table.refuse("hopping", f"a size of at most {HOPS_MAX} steps: every row is in that many windows")
    return Hopping(size_ns, step_ns)


def _read_count(table: Section) -> Count:
    rows = table.values["count"]
    if not isinstance(rows, int) or isinstance(rows, bool) or not 1 <= rows <= _COUNT_MAX:
        raise table.refuse("count", f"a whole number of rows from 1 to {_COUNT_MAX}")
    return Count(rows)
