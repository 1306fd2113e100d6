"""Closing periods: what is closed, what is due, and what somebody asks to be closed.

A close is decided under the head's lock, by what the ledger says through its end: definitions and closes that the fold
has yet to come to count as much as those it has folded. So a process that asks twice, or from two processes at once,
closes once, and a close always names the definitions that hold at its sequence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import msgspec
import psycopg

from tidelock.definitions import Definitions, Meter, parse_definitions
from tidelock.durations import format_duration
from tidelock.errors import NotFound, RequestError, Unreachable
from tidelock.fold.closing import read_close
from tidelock.fold.redefine.catalog import unit_hashes
from tidelock.instants import SECOND, format_instant, parse_instant
from tidelock.ledger.sequencer import Decide
from tidelock.model import ALL_TENANTS, DEFAULT_TENANT, Accepted, Head
from tidelock.periods import period_end, period_start
from tidelock.postgres.queries import load
from tidelock.sections import shown
from tidelock.usage.usage import meter_of, moment

QUERIES = load("tidelock.usage", "sql/closing.sql")

_DAY = 86_400 * SECOND
#: closed periods that are listed of a meter
_CLOSED_MAX = 100
#: how a period is named, and the meters' period that it is
_NAMED = {
    "month": re.compile(r"([0-9]{4})-([0-9]{2})"),
    "week": re.compile(r"([0-9]{4})-W([0-9]{2})"),
    "day": re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})"),
    "hour": re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2})"),
}
PERIODS_ALLOWED = "a month as 2026-10, a week as 2026-W44, a day as 2026-10-31 or an hour as 2026-10-31T13"


class PeriodNotOver(RequestError):
    """What is yet to end cannot be closed."""

    code = "period_not_over"
    http_status = 422


class Records(Protocol):
    """What records control events: a sequencer."""

    async def decided(self, decide: Decide) -> Accepted | None: ...


class LastClose(NamedTuple):
    """Through where a meter is closed, and by which event."""

    through: int
    sequence: int


class TimeRange(NamedTuple):
    """A half-open range of time."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class WantedClose:
    """What somebody asks to be closed: every period that ends at or before an instant."""

    through: int
    #: None: all meters
    metric: str | None = None
    #: None: all tenants, also those that come later
    tenant_id: str | None = None


@dataclass(frozen=True, slots=True)
class PeriodStanding:
    """What is closed at the end of the ledger."""

    definitions: Definitions
    hashes: Mapping[str, str]
    #: by meter and tenant, or all tenants
    closed: Mapping[tuple[str, str], LastClose]
    #: by meter that closes by itself: start of the first period that is open, as far as the fold is
    open_since: Mapping[str, int]

    def closed_through(self, metric: str, tenant_id: str) -> LastClose | None:
        """For a tenant, or all of them."""
        found = (self.closed.get((metric, place)) for place in {tenant_id, ALL_TENANTS})
        return max((each for each in found if each is not None), default=None)

    def close(self, tenant_id: str, ends: Mapping[str, int]) -> dict[str, Any] | None:
        """The control event that closes meters through ends, but those that are closed so far; None: all are."""
        named = {}
        for name, end in ends.items():
            closed = self.closed_through(name, tenant_id)
            if closed is None or closed.through < end:
                named[name] = self._named(self.definitions.meters[name], end)
        if not named:
            return None
        return {"type": "close", "tenantId": None if tenant_id == ALL_TENANTS else tenant_id, "meters": named}

    def _named(self, meter: Meter, end: int) -> dict[str, Any]:
        """The meter with everything that decides what its counters are."""
        form = {
            "through": format_instant(end),
            "hash": self.hashes[f"meters.{meter.name}"],
            "definition": meter.canonical(),
        }
        stream = self.definitions.streams.get(meter.stream)
        return form if stream is None else form | {"stream": stream.canonical()}


async def read_standing(connection: psycopg.AsyncConnection[Any]) -> PeriodStanding | None:
    """Everything of one moment; None: nothing has been folded yet."""
    row = await (await connection.execute(QUERIES["standing"])).fetchone()
    if row is None:
        return None
    definitions, closed_rows, open_rows, pending = map(json.loads, row)
    closed = {(metric, tenant): LastClose(through, sequence) for metric, tenant, through, sequence in closed_rows}
    for sequence, data in pending:
        if data["type"] == "definition":
            definitions = data["definitions"]
        elif (close := read_close(data)) is not None:
            for name, said in close.meters.items():
                known = closed.get((name, close.tenant_id))
                if known is None or known.through < said.through:
                    closed[name, close.tenant_id] = LastClose(said.through, sequence)
    parsed = parse_definitions(definitions, eventtime_types=None)
    return PeriodStanding(parsed, unit_hashes(parsed), closed, dict(open_rows))


def due_close(standing: PeriodStanding, now: int) -> dict[str, Any] | None:
    """One close of all meters that have an open counter whose period ended as long ago as they say."""
    ends = {}
    for name, meter in standing.definitions.meters.items():
        start = standing.open_since.get(name)
        if meter.close_ns is None or start is None or period_end(meter.period, start) + meter.close_ns > now:
            continue
        ends[name] = period_start(meter.period, now - meter.close_ns)
    return standing.close(ALL_TENANTS, ends)


async def decide_due(connection: psycopg.AsyncConnection[Any], head: Head, now: int) -> Mapping[str, Any] | None:
    """What the passing of time closes."""
    standing = await read_standing(connection)
    return None if standing is None else due_close(standing, max(now, head.source_timestamp + 1))


def asked_close(standing: PeriodStanding, wanted: WantedClose, now: int) -> dict[str, Any] | None:
    """The close that somebody asks for. Raises NotFound for a metric that nothing defines, and PeriodNotOver."""
    if wanted.through > now:
        raise PeriodNotOver(
            f"through is {format_instant(wanted.through)}, and the ledger's clock is at {format_instant(now)}: "
            "periods that have not ended cannot be closed",
            field="through",
        )
    meters = standing.definitions.meters
    chosen = meters.values() if wanted.metric is None else [meter_of(standing.definitions, wanted.metric)]
    ends = {meter.name: period_start(meter.period, wanted.through) for meter in chosen}
    return standing.close(ALL_TENANTS if wanted.tenant_id is None else wanted.tenant_id, ends)


async def check_tenant(connection: psycopg.AsyncConnection[Any], tenant_id: str | None) -> None:
    """Raises NotFound for a tenant that nothing was recorded for: a close cannot be taken back."""
    if tenant_id is None:
        return
    row = await (await connection.execute(QUERIES["tenant_exists"], (tenant_id,))).fetchone()
    if row is None or not row[0]:
        raise NotFound(
            f"nothing was ever recorded for tenant {shown(tenant_id)}; name no tenant to close for all "
            "of them, including later ones",
            field="tenantId",
        )


async def close_periods(recorder: Records, wanted: WantedClose) -> int | None:
    """Record the close; gives its sequence, or None where nothing is left to close."""

    async def decide(connection: psycopg.AsyncConnection[Any], head: Head, now: int) -> Mapping[str, Any] | None:
        standing = await read_standing(connection)
        if standing is None:
            raise Unreachable("nothing has been folded yet, so nothing can be closed; run a fold first")
        await check_tenant(connection, wanted.tenant_id)
        return asked_close(standing, wanted, max(now, head.source_timestamp + 1))

    accepted = await recorder.decided(decide)
    return None if accepted is None else accepted.ingress_sequence


def read_through(text: str) -> int:
    """An instant, or a date, which is its midnight. Raises ValueError."""
    return parse_instant(f"{text}T00:00:00Z" if _NAMED["day"].fullmatch(text) else text)


def read_period(text: str) -> TimeRange:
    """What a period's name, or an instant in it, stands for. Raises ValueError."""
    for period, form in _NAMED.items():
        if (match := form.fullmatch(text)) is not None:
            start = _start(period, [int(number) for number in match.groups()])
            return TimeRange(start, period_end(period, start))
    try:
        instant = parse_instant(text)
    except ValueError:
        raise ValueError(f"{PERIODS_ALLOWED}, or an instant in it") from None
    return TimeRange(instant, instant + 1)


def _start(period: str, numbers: list[int]) -> int:
    try:
        if period == "week":
            moment_ = datetime.fromisocalendar(numbers[0], numbers[1], 1).replace(tzinfo=UTC)
        else:
            year, month, day, hour = [*numbers, *[1, 1, 1, 0][len(numbers) :]]
            moment_ = datetime(year, month, day, hour, tzinfo=UTC)
        return parse_instant(moment_.strftime("%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        raise ValueError(PERIODS_ALLOWED) from None


class OpenPeriod(msgspec.Struct, frozen=True, rename="camel"):
    """A period that is open."""

    period_start: str
    period_end: str
    #: counters that have a value
    counters: int
    #: when it closes by itself; null: it does not
    closes_at: str | None


class ClosedPeriod(msgspec.Struct, frozen=True, rename="camel"):
    """A period that is closed, and has counters."""

    period_start: str
    period_end: str
    #: also those that began after the close
    counters: int


class MeterPeriods(msgspec.Struct, frozen=True, rename="camel"):
    """The periods of a meter, for one tenant."""

    metric: str
    tenant_id: str
    period: str
    #: how long after its end a period closes by itself; null: it does not
    close: str | None
    #: no period that ends by then is open; null: none was ever closed
    closed_through: str | None
    closed_sequence: int | None
    open: list[OpenPeriod]
    #: the last 100 of them, newest first
    closed: list[ClosedPeriod]


async def read_periods(
    connection: psycopg.AsyncConnection[Any], tenant_id: str | None, metric: str | None, *, timeout_ns: int
) -> list[MeterPeriods]:
    """What is open of every meter, or of one, when it will close, and what is closed through. Raises NotFound."""
    tenant = DEFAULT_TENANT if tenant_id is None else tenant_id
    async with moment(connection, timeout_ns):
        standing = await read_standing(connection)
        if standing is None:
            return []
        meters: Iterable[Meter] = standing.definitions.meters.values()
        if metric is not None:
            meters = [meter_of(standing.definitions, metric)]
        rows = await (await connection.execute(QUERIES["open_periods"], (tenant, metric, metric))).fetchall()
    return [_periods(standing, meter, tenant, [row[1:] for row in rows if row[0] == meter.name]) for meter in meters]


def _periods(standing: PeriodStanding, meter: Meter, tenant: str, rows: list[Any]) -> MeterPeriods:
    closed = standing.closed_through(meter.name, tenant)
    through = closed.through if closed is not None else -(2**63)
    found = [(start, period_end(meter.period, start), valued, every) for start, valued, every in rows]
    ended = [each for each in reversed(found) if each[1] <= through][:_CLOSED_MAX]
    return MeterPeriods(
        metric=meter.name,
        tenant_id=tenant,
        period=meter.period,
        close=None if meter.close_ns is None else format_duration(meter.close_ns),
        closed_through=None if closed is None else format_instant(closed.through),
        closed_sequence=None if closed is None else closed.sequence,
        open=[
            OpenPeriod(
                format_instant(start),
                format_instant(end),
                valued,
                None if meter.close_ns is None else format_instant(end + meter.close_ns),
            )
            for start, end, valued, _ in found
            if end > through and valued
        ],
        closed=[ClosedPeriod(format_instant(start), format_instant(end), every) for start, end, _, every in ended],
    )
