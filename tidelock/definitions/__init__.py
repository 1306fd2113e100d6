"""Definitions: the streams, meters and windows of one installation, as values that have been checked together.

In come tables of tidelock.toml; out go frozen values with one canonical form each, whose hash decides whether a table
is rebuilt, or an error that names the key. Nothing here does I/O, and nothing knows how a definition is folded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from tidelock.columns import IDENTIFIER_LENGTH_MAX, is_identifier
from tidelock.definitions.eventtimes import EVENTTIME_TYPES, EventTime, WindowTime
from tidelock.definitions.graphqlnames import objection
from tidelock.definitions.meters import Meter, read_meter
from tidelock.definitions.streams import Stream, read_stream
from tidelock.definitions.windows import Count, Frame, Hopping, Session, Tumbling, Window, read_window
from tidelock.durations import parse_duration
from tidelock.model import CONTROL
from tidelock.sections import Section, shown

__all__ = [
    "LATENESS_NS",
    "NAME_LENGTH_MAX",
    "RESERVED_TABLES",
    "Count",
    "Definitions",
    "EventTime",
    "Frame",
    "Hopping",
    "Meter",
    "Session",
    "Stream",
    "Tumbling",
    "Window",
    "WindowTime",
    "parse_definitions",
]

#: built-in tables, and names that GraphQL reserves
RESERVED_TABLES = (
    "counters",
    "counter_groups",
    "adjustments",
    "statements",
    "late_rows",
    "error_rows",
    "watermarks",
    "triggers",
)
#: limit for names of tables that hold or aggregate rows: the fold keeps internal tables next to them, NAME$open
GATHERING_NAME_LENGTH_MAX = IDENTIFIER_LENGTH_MAX - 6
NAME_LENGTH_MAX = 255
#: a meter's name is in the key of every counter: with the longest tenant and customer it must still fit an index
METER_NAME_BYTES_MAX = 63
#: default of a meter's lateness
LATENESS_NS = parse_duration("48h")

_KINDS = ("streams", "meters", "windows")


@dataclass(frozen=True, slots=True)
class Definitions:
    """Everything that is declared, by name."""

    streams: Mapping[str, Stream] = field(default_factory=dict)
    meters: Mapping[str, Meter] = field(default_factory=dict)
    windows: Mapping[str, Window] = field(default_factory=dict)
    #: streams with event time, including those not folded here: a message may belong to any of them
    timed: Mapping[str, Stream] = field(default_factory=dict, repr=False, compare=False)
    #: names of the streams that events may have where streams are not open
    _known: frozenset[str] = field(init=False, repr=False, compare=False, default=frozenset())

    def __post_init__(self) -> None:
        measured = (meter.stream for meter in self.meters.values())
        windowed = (window.stream for window in self.windows.values())
        object.__setattr__(self, "_known", frozenset([*self.streams, *measured, *windowed]))
        own = {name: stream for name, stream in self.streams.items() if stream.eventtime is not None}
        object.__setattr__(self, "timed", {**self.timed, **own})

    def stream(self, name: str) -> Stream | None:
        """The stream declared under a name."""
        return self.streams.get(name)

    def known_stream(self, name: str) -> bool:
        """Whether a stream is declared, or named by a meter or window."""
        return name in self._known

    def canonical(self) -> dict[str, object]:
        """Plain JSON from which `parse_definitions` restores the same definitions."""
        return {
            "streams": {name: stream.canonical() for name, stream in self.streams.items()},
            "meters": {name: meter.canonical() for name, meter in self.meters.items()},
            "windows": {name: window.canonical() for name, window in self.windows.items()},
        }


def parse_definitions(
    tables: Mapping[str, object],
    *,
    lateness_ns: int | None = None,
    eventtime_types: Collection[str] | None = EVENTTIME_TYPES,
    file: str = "tidelock.toml",
) -> Definitions:
    """Definitions from the tables `streams`, `meters` and `windows`.

    `lateness_ns` takes precedence over the file's `meters.lateness`. `eventtime_types` None: any name is accepted,
    because plugins that may add it are not loaded yet.
    """
    top = Section("", {kind: tables.get(kind, {}) for kind in _KINDS}, file)
    if lateness_ns is None:
        lateness_ns = _global_lateness_ns(top.table("meters"))
    streams = {name: read_stream(name, table, eventtime_types) for name, table in _declared(top, "streams")}

    def stream_named(name: str) -> Stream:
        return streams.get(name) or Stream(name)

    meters = {name: read_meter(name, table, lateness_ns, stream_named) for name, table in _declared(top, "meters")}
    windows = {name: read_window(name, table, stream_named) for name, table in _declared(top, "windows")}
    definitions = Definitions(streams, meters, windows)
    _check_tables(definitions, top)
    return definitions


def _global_lateness_ns(meters: Section) -> int:
    """`lateness` beside the meters is their default, unless it is a meter of that name."""
    if isinstance(meters.values.get("lateness"), Mapping):
        return LATENESS_NS
    nanoseconds = meters.duration_ns("lateness")
    return LATENESS_NS if nanoseconds is None else nanoseconds


def _declared(top: Section, kind: str) -> Iterator[tuple[str, Section]]:
    """The tables of a kind, with names that are legal for streams."""
    section = top.table(kind)
    for name, value in section.values.items():
        if kind == "meters" and name == "lateness" and not isinstance(value, Mapping):
            continue
        table = section.table(name)
        _check_name(section, name, name)
        if kind == "meters" and len(name.encode()) > METER_NAME_BYTES_MAX:
            raise section.fail(
                name, f"a meter's name must have at most {METER_NAME_BYTES_MAX} bytes; `stream` may be longer"
            )
        if kind != "streams" and isinstance(stream := table.values.get("stream"), str):
            _check_name(table, "stream", stream)
        yield name, table


def _check_name(section: Section, key: str, name: str) -> None:
    if not 1 <= len(name) <= NAME_LENGTH_MAX or "\0" in name or name == CONTROL:
        raise section.fail(key, f"a name must have 1 to {NAME_LENGTH_MAX} characters, no NUL, and not be {CONTROL}")


def _check_tables(definitions: Definitions, top: Section) -> None:
    """Names that become tables have one form, and no two are the same."""
    owners = dict.fromkeys(RESERVED_TABLES, "a built-in table")
    for kind, name, table in _tables(definitions):
        section = top.table(kind)
        latest = kind == "streams" and table == name
        length_max = IDENTIFIER_LENGTH_MAX if latest else GATHERING_NAME_LENGTH_MAX
        if not is_identifier(table) or len(table) > length_max:
            form = f"[A-Za-z_][A-Za-z0-9_]* and at most {length_max} letters"
            raise section.fail(name, f"becomes a table, so {shown(table)} must have the form {form}")
        if table in owners:
            raise section.fail(
                name, f"becomes a table {table}, a name already used by {owners[table]}; choose another name"
            )
        owners[table] = section.key(name)
    for kind, name, table in _tables(definitions):
        if (why := objection(table, owners)) is not None:
            raise top.table(kind).fail(name, f"becomes a table, and {shown(table)} {why}; choose another name name")


def _tables(definitions: Definitions) -> Iterator[tuple[str, str, str]]:
    """Kind, name and table of every definition that has one."""
    for name, stream in definitions.streams.items():
        for table in stream.tables:
            yield "streams", name, table
    for name in definitions.windows:
        yield "windows", name, name
