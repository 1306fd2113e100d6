"""Stored counters: those that a range touches, found by Postgres from its events; all of them where they are few."""

from __future__ import annotations

from collections.abc import Sequence

from tidelock.columns import STRING
from tidelock.definitions import Meter
from tidelock.fold import statements
from tidelock.fold.tables import COUNTERS, KEY
from tidelock.where.sql import literal

#: of all counters, as many at most are read with a large range, however large it is
_ALL_MAX = 100_000
#: and no more than one for so many of its events: reading a counter costs more than to see that an event touches it
_EVENTS_PER_COUNTER = 4


def some_counters_sql(schema: str, lo: int, hi: int) -> str:
    """As many counters as there are, or one more than are worth reading all with the range."""
    most = min((hi - lo) // _EVENTS_PER_COUNTER, _ALL_MAX)
    place = statements.placed(schema, COUNTERS.name)
    return f"SELECT count(*) <= {most} AS few FROM (SELECT FROM {place} LIMIT {most + 1}) AS counted"


def all_counters_sql(schema: str, meters: Sequence[Meter]) -> str:
    """Every counter of these meters."""
    names = ", ".join(_text(meter.name) for meter in meters)
    place = statements.placed(schema, COUNTERS.name)
    return f"SELECT {statements.columns(COUNTERS, 'target.')} FROM {place} AS target WHERE target.metric IN ({names})"


def stored_counters_sql(schema: str, meters: Sequence[Meter], lo: int, hi: int) -> str:
    """The counters of every customer and period in the range: a few more than it counts into, never fewer.

    Whole seconds are found by integer arithmetic: an instant's nanoseconds do not fit a double.
    """
    # An instant's hour tells every period; its day, of which there are fewer, all but one.
    unit = 3600 if any(meter.period == "hour" for meter in meters) else 86400
    rows = ", ".join(f"({_text(m.name)}, {_text(m.stream)}, {_text(m.period)})" for m in meters)
    start = "to_char(date_trunc(period, to_timestamp(since) AT TIME ZONE 'UTC'), 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')"
    key = f"""'[' || to_json(metric)::text || ',' || to_json(customer_ref)::text || ',"' || {start} || '"]'"""
    same = f"it.tenant_id = touched.tenant_id AND it.{statements.quoted(KEY)} = touched.key"
    return f"""
        SELECT {statements.columns(COUNTERS, "target.")}
        FROM (
            SELECT DISTINCT tenant_id, {key} AS key
            FROM (
                SELECT DISTINCT tenant_id, stream, customer_ref,
                    (occurred_at - CASE WHEN occurred_at < 0 THEN {unit * 10**9 - 1} ELSE 0 END)
                        / {unit * 10**9} * {unit} AS since
                FROM events WHERE ingress_sequence > {lo} AND ingress_sequence <= {hi} AND customer_ref IS NOT NULL
            ) AS range
            JOIN (VALUES {rows}) AS meters (metric, stream, period) USING (stream)
        ) AS touched
        {statements.looked_up(schema, COUNTERS, same)}"""


def _text(text: str) -> str:
    return literal(STRING, text)
