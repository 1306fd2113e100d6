"""Stored counters: those that a range touches, found by Postgres from the events themselves."""

from __future__ import annotations

from collections.abc import Sequence

from tidelock.columns import STRING
from tidelock.definitions import Meter
from tidelock.fold import statements
from tidelock.fold.tables import COUNTERS, KEY
from tidelock.where.sql import literal


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
