"""Event times: where an event's own time is, and how long to wait for late events."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tidelock.columns import ColumnType, data_path
from tidelock.durations import format_duration
from tidelock.errors import SettingsError
from tidelock.sections import Section

#: types that need no plugin
EVENTTIME_TYPES = ("unixtimestamp_s", "unixtimestamp_ms", "unixtimestamp_us", "unixtimestamp_ns", "rfc3339")
#: other spellings
EVENTTIME_ALIASES = {"unixtimestamp": "unixtimestamp_s"}

#: the column that is an event time on every stream
_ENVELOPE_TIME = "occurred_at"
_STREAM_KEYS = ("column", "type", "late_tolerance", "lateTolerance", "idle_timeout")
_WINDOW_KEYS = ("enabled", "late_tolerance", "lateTolerance", "idle_timeout")


@dataclass(frozen=True, slots=True)
class EventTime:
    """Where a stream's events carry their own time, and how long its ordered output waits."""

    column: str
    #: None: the envelope's `occurred_at`, which is an instant already
    type: str | None
    #: how far behind the latest event an event may be; ordered output only
    late_tolerance_ns: int = 0
    #: held rows are released when nothing arrives for this long; ordered output only
    idle_timeout_ns: int | None = None

    def canonical(self) -> dict[str, object]:
        form: dict[str, object] = {"column": self.column}
        if self.type is not None:
            form["type"] = self.type
        return form | _canonical_waits(self.late_tolerance_ns, self.idle_timeout_ns)


@dataclass(frozen=True, slots=True)
class WindowTime:
    """Which time a window uses, and how long it waits."""

    #: true: the events' own time; false: the time they arrived, when nothing is late
    enabled: bool = False
    #: how far behind the latest event an event may be
    late_tolerance_ns: int = 0
    #: open windows close when nothing arrives for this long; None: never
    idle_timeout_ns: int | None = None

    def canonical(self) -> dict[str, object]:
        return {"enabled": self.enabled} | _canonical_waits(self.late_tolerance_ns, self.idle_timeout_ns)


def _canonical_waits(late_tolerance_ns: int, idle_timeout_ns: int | None) -> dict[str, object]:
    form: dict[str, object] = {}
    if late_tolerance_ns:
        form["late_tolerance"] = format_duration(late_tolerance_ns)
    if idle_timeout_ns is not None:
        form["idle_timeout"] = format_duration(idle_timeout_ns)
    return form


def read_event_time(
    stream: str, table: Section, columns: Mapping[str, ColumnType], types: Collection[str] | None
) -> EventTime:
    """The `eventtime` of a stream with these declared columns. Types of None: any name is accepted; plugins
    may add it.
    """
    table.only(_STREAM_KEYS)
    column = table.text("column")
    if not _is_time(column, columns):
        what = f'no column "{column}" for event time' if column else "no event-time column"
        raise table.fail("column", f'stream "{stream}" has {what}; available: {_available(columns)}')
    kind = _read_type(stream, table, types)
    if column == _ENVELOPE_TIME and column not in columns:
        kind = None  # an instant needs no parser
    elif kind is None:
        available = " ".join(types or EVENTTIME_TYPES)
        raise table.fail("type", f'stream "{stream}" must give the type of its event time; available: {available}')
    return EventTime(str(column), kind, *_read_waits(table))


def _is_time(column: str | None, columns: Mapping[str, ColumnType]) -> bool:
    if column is None:
        return False
    return column in columns or column == _ENVELOPE_TIME or (not columns and data_path(column) is not None)


def _available(columns: Mapping[str, ColumnType]) -> str:
    return ", ".join(dict.fromkeys([*(columns or ["a path such as data.a.b"]), _ENVELOPE_TIME]))


def _read_type(stream: str, table: Section, types: Collection[str] | None) -> str | None:
    given = table.text("type")
    kind = EVENTTIME_ALIASES.get(given, given) if given else None
    if given is not None and types is not None and kind not in types:
        raise unknown_type(stream, table, given, types)
    return kind


def unknown_type(stream: str, table: Section, given: str, types: Collection[str]) -> SettingsError:
    """The error for an unregistered type."""
    available = " ".join(dict.fromkeys([*types, *EVENTTIME_ALIASES]))
    return table.fail(
        "type",
        f'stream "{stream}" has no event-time type "{given}"; available: {available}. '
        "Further types come from the modules in the setting plugins",
    )


def read_window_time(
    stream: str, table: Section, columns: Mapping[str, ColumnType], declared: EventTime | None
) -> WindowTime:
    """The `eventtime` of a window over a stream with those columns and that event time."""
    table.only(_WINDOW_KEYS)
    enabled = table.flag("enabled", False)
    late_tolerance_ns, idle_timeout_ns = _read_waits(table)
    if not enabled:
        if idle_timeout_ns is not None:
            raise table.fail("idle_timeout", "applies to event time only; windows by arrival close as time passes")
        # By arrival nothing is late, so a tolerance does not change the definition.
        return WindowTime()
    if declared is None:
        how = f"declare its eventtime = {{ column, type }} with one of: {_available(columns)}"
        raise table.fail("enabled", f'stream "{stream}" has no eventtime; {how}')
    return WindowTime(True, late_tolerance_ns, idle_timeout_ns)


def _read_waits(table: Section) -> tuple[int, int | None]:
    """late_tolerance and idle_timeout, in nanoseconds."""
    if "lateTolerance" in table.values and "late_tolerance" in table.values:
        raise table.fail("lateTolerance", "is an alias of late_tolerance; give only one of them")
    spelling = "lateTolerance" if "lateTolerance" in table.values else "late_tolerance"
    return table.duration_ns(spelling) or 0, table.duration_ns("idle_timeout", minimum=1)
