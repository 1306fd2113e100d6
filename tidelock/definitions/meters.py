"""Meters: usage counters per customer and period."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from tidelock.canonical import canonical_hash
from tidelock.columns import ENVELOPE
from tidelock.definitions.streams import Stream
from tidelock.durations import format_duration
from tidelock.instants import format_instant, parse_rfc3339
from tidelock.sections import Section
from tidelock.where import Expression, InvalidFilter, parse_where

AGGREGATIONS = ("sum", "count", "max", "min", "last", "avg", "unique_count")
PERIODS = ("hour", "day", "week", "month")
#: the keys of `[meters.NAME]`
METER_KEYS = {
    "stream": "The stream to measure. Default: the meter's name.",
    "aggregation": f"How `value` is computed: {' '.join(AGGREGATIONS)}. Default `sum`.",
    "period": f"Length of a counter's period, in UTC: {' '.join(PERIODS)} (weeks are ISO weeks). Default `month`.",
    "lateness": "How much older than a counter's latest event an event may be and still count; an older one becomes an "
    "adjustment. Default: `meters.lateness`.",
    "value": "The column to aggregate. Default `quantity`. It must be numeric, but for `count` and `unique_count`; the "
    "latter is the number of its distinct texts.",
    "where": "Filter on columns, as a table or JSON text: only matching events count.",
    "group_by": "Columns to break counters down by, in `counter_groups`.",
    "close": "How long after its end a period is closed: from then on no event changes the `value` of its counters. "
    "Default: it stays open.",
    "statements": "State what each counter is when its period is closed, in `statements`. Default `true`.",
    "live": "Record changes, for subscriptions and triggers. Default `true`.",
}

_WHERE = 'a table such as { region = { _eq = "eu" } }, or the same as JSON text'


@dataclass(frozen=True, slots=True)
class Meter:
    """What is counted of a stream."""

    name: str
    stream: str
    #: one of `AGGREGATIONS`
    aggregation: str
    #: one of `PERIODS`
    period: str
    lateness_ns: int
    #: the column that is aggregated
    value: str = "quantity"
    #: None: every event
    where: Expression | None = None
    group_by: tuple[str, ...] = ()
    #: whether changes are recorded
    live: bool = True
    #: how long after its end a period is closed by itself; None: never
    close_ns: int | None = None
    #: whether a close states its counters
    statements: bool = True

    @property
    def distinct(self) -> bool:
        """Whether it counts distinct texts."""
        return self.aggregation == "unique_count"

    def counting(self) -> Meter:
        """All that decides what its counters are: not who may watch them, nor when they are closed."""
        return replace(self, live=True, close_ns=None, statements=True)

    def canonical(self) -> dict[str, object]:
        """Plain JSON, in the form of its table in tidelock.toml. The filter is a string: JSON numbers would become
        floats.
        """
        form: dict[str, object] = {
            "stream": self.stream,
            "aggregation": self.aggregation,
            "period": self.period,
            "lateness": format_duration(self.lateness_ns),
            "value": self.value,
            "group_by": list(self.group_by),
            "live": self.live,
        }
        if self.where is not None:
            form["where"] = self.where.text
        if self.close_ns is not None:
            form["close"] = format_duration(self.close_ns)
        return form if self.statements else form | {"statements": False}

    def hash(self) -> str:
        return canonical_hash({"meter": self.name, "definition": self.canonical()})


def read_meter(name: str, section: Section, lateness_ns: int, stream_named: Callable[[str], Stream]) -> Meter:
    """The meter a table declares, `lateness_ns` being the default."""
    section.only(METER_KEYS)
    stream = stream_named(section.text("stream") or name)
    own_lateness_ns = section.duration_ns("lateness")
    aggregation = section.choice("aggregation", AGGREGATIONS, "sum")
    return Meter(
        name=name,
        stream=stream.name,
        aggregation=aggregation,
        period=section.choice("period", PERIODS, "month"),
        lateness_ns=lateness_ns if own_lateness_ns is None else own_lateness_ns,
        value=_read_value(section, stream, aggregation),
        where=_read_where(section, stream),
        group_by=read_group_by(section, stream),
        live=section.flag("live", True),
        close_ns=section.duration_ns("close"),
        statements=section.flag("statements", True),
    )


def read_group_by(section: Section, stream: Stream) -> tuple[str, ...]:
    columns = section.names("group_by")
    for column in columns:
        check_column(section, "group_by", column, stream)
        check_group(section, column, stream)
    return columns


def check_group(section: Section, column: str, stream: Stream) -> None:
    """Whether a column's values can name groups."""
    if (kind := stream.type_of(column)) is not None and kind.name in ("json", "double"):
        raise section.fail("group_by", f'column "{column}" is {kind}; group columns need types with one text form')


def check_column(section: Section, key: str, column: str, stream: Stream) -> None:
    if not stream.has(column):
        raise section.fail(key, f'stream "{stream.name}" has no column "{column}"; available: {stream.available()}')


def _read_value(section: Section, stream: Stream, aggregation: str) -> str:
    column = section.text("value") or "quantity"
    check_column(section, "value", column, stream)
    kind = stream.type_of(column)
    if kind is not None and kind.name == "json" and aggregation == "unique_count":
        raise section.fail("value", f'column "{column}" is json; distinct values need a type with one text form')
    if kind is not None and not kind.numeric and aggregation not in ("count", "unique_count"):
        numeric = [name for name, declared in stream.columns.items() if declared.numeric]
        raise section.fail(
            "value",
            f'column "{column}" must be numeric, not {kind}; numeric columns: {", ".join(numeric) or "quantity"}',
        )
    return column


def _read_where(section: Section, stream: Stream) -> Expression | None:
    if "where" not in section.values:
        return None
    value = section.values["where"]
    if not isinstance(value, str | Mapping):
        raise section.refuse("where", _WHERE)
    try:
        given = value if isinstance(value, str) else _plain(value)
        return parse_where(given, {**ENVELOPE, **stream.columns}, paths=not stream.columns)
    except InvalidFilter as error:
        raise section.fail("where", error.message.removeprefix("the filter: ")) from None
    except (ValueError, ArithmeticError, RecursionError):
        raise section.refuse("where", _WHERE) from None


def _plain(value: Any) -> Any:
    """TOML values as JSON: dates become strings."""
    match value:
        case Mapping():
            return {str(name): _plain(member) for name, member in value.items()}
        case list():
            return [_plain(member) for member in value]
        case datetime():
            return format_instant(parse_rfc3339(value.isoformat()))
        case date():
            return value.isoformat()
        case Decimal() if not value.is_finite():
            raise ValueError(value)
        case str() | bool() | int() | Decimal() | None:
            return value
        case _:
            raise ValueError(value)
