"""Figures: what the parts of a counter come to, all together or event by event, as SQL for Postgres."""

from __future__ import annotations

from tidelock.fold.readings import sql_text
from tidelock.usage.casts import average
from tidelock.usage.parts import CODES, Counted

#: the figures of one part, in their order
OF_PART = ("count", "sum", "max", "min", "last", "watermark", "first", "final")
_FOLDED = "part = 'folded'"
_ADJUSTED = "part = 'adjusted'"
_COUNTED = "part IN ('folded', 'adjusted')"
# The last by (occurred_at, ingress_sequence): arrays are compared member by member.
_LAST = "ARRAY[occurred_at, ingress_sequence, quantity]::numeric[]"


def group_condition(group: str | None, *, chosen: bool) -> str:
    """Which events are asked for: all of the counter, or those of one group, which may be that of none."""
    if not chosen:
        return "TRUE"
    if group is not None:
        return f"group_key = {sql_text(group)}"
    # What does not fit its columns is in no group.
    return "group_key IS NULL AND (code IS NULL OR code = 'missing_quantity')"


def usage_sql(counted: Counted, *, grouped: bool, limit: int) -> str:
    """Start, group, value, adjustment, total, watermark of every counter there is, as texts where they are numbers."""
    group = "group_key" if grouped else "NULL::text"
    return f"""
        SELECT period_start, group_key, {_texts(counted)}, folded_watermark
        FROM (
            SELECT period_start, {group} AS group_key, {_sums()}
            FROM ({counted.decided_sql()}) AS decided WHERE {_COUNTED} GROUP BY 1, 2
        ) AS summed
        ORDER BY period_start, group_key NULLS FIRST LIMIT {limit}"""


def summary_sql(counted: Counted, condition: str) -> str:
    """One row: value, adjustment, total; figures of what was folded and of what was adjusted; how many are aside."""
    parts = ", ".join(
        f"{_text(f'{part}_{name}')}" if name in ("sum", "max", "min", "last") else f"{part}_{name}"
        for part in ("folded", "adjusted")
        for name in OF_PART
    )
    codes = ", ".join(f"count(*) FILTER (WHERE code = '{code}') AS {code}" for code in CODES)
    return f"""
        SELECT {_texts(counted)}, {parts}, filtered, deleted, {", ".join(CODES)}
        FROM (
            SELECT {_sums()}, count(*) FILTER (WHERE part = 'filtered') AS filtered,
                count(*) FILTER (WHERE part = 'deleted') AS deleted, {codes}
            FROM ({counted.decided_sql()}) AS decided WHERE {condition}
        ) AS summed"""


def page_sql(counted: Counted, condition: str, *, after: int, limit: int) -> str:
    """Events in sequence order: sequence, part, quantity, total after it, how it changed that, group, code, message."""
    aggregation = counted.meter.aggregation
    running = {
        "sum": "coalesce(sum(quantity) OVER running, 0)",
        "count": f"(count(*) FILTER (WHERE {_COUNTED}) OVER running)::numeric",
        "max": "max(quantity) OVER running",
        "min": "min(quantity) OVER running",
        "last": f"(max({_LAST}) FILTER (WHERE quantity IS NOT NULL) OVER running)[3]",
        "avg": average("coalesce(sum(quantity) OVER running, 0)", f"(count(*) FILTER (WHERE {_COUNTED}) OVER running)"),
    }[aggregation]
    before = "coalesce(lag(total) OVER every, 0)" if aggregation in ("sum", "count") else "lag(total) OVER every"
    counts = f"CASE WHEN {_COUNTED} THEN {{}} END"
    return f"""
        SELECT ingress_sequence, part, {_text("quantity")}, {counts.format(_text("total"))},
            {counts.format(_text("change"))}, group_key, code, message
        FROM (
            SELECT *, total - {before} AS change
            FROM (
                SELECT *, {running} AS total FROM ({counted.decided_sql()}) AS decided WHERE {condition}
                WINDOW running AS (ORDER BY ingress_sequence ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
            ) AS summed
            WINDOW every AS (ORDER BY ingress_sequence)
        ) AS told
        WHERE ingress_sequence > {after} ORDER BY ingress_sequence LIMIT {limit}"""


def latest_sql(counted: Counted, *, any_event: bool) -> str:
    """When the latest event occurred that is counted, or that there is. Read from the end of the index."""
    if any_event:
        return f"SELECT occurred_at FROM events WHERE {counted.slice_sql()} ORDER BY occurred_at DESC LIMIT 1"
    judged = counted.judged_sql(order="ORDER BY occurred_at DESC")
    return f"SELECT occurred_at FROM ({judged}) AS judged WHERE aside IS NULL ORDER BY occurred_at DESC LIMIT 1"


def pending_sql(counted: Counted) -> str:
    """How many events there are that are not counted yet."""
    return f"SELECT count(*) FROM events WHERE {counted.slice_sql(beyond=True)}"


def _sums() -> str:
    """The figures of both parts, and the last of all together."""
    return ", ".join(
        [
            *(_figures("folded", _FOLDED)),
            *(_figures("adjusted", _ADJUSTED)),
            f"(max({_LAST}) FILTER (WHERE {_COUNTED} AND quantity IS NOT NULL))[3] AS last_of_all",
        ]
    )


def _figures(part: str, condition: str) -> list[str]:
    figures = {
        "count": "count(*) FILTER (WHERE {})",
        "sum": "coalesce(sum(quantity) FILTER (WHERE {}), 0)",
        "max": "max(quantity) FILTER (WHERE {})",
        "min": "min(quantity) FILTER (WHERE {})",
        "last": f"(max({_LAST}) FILTER (WHERE {{}} AND quantity IS NOT NULL))[3]",
        "watermark": "max(occurred_at) FILTER (WHERE {})",
        "first": "min(ingress_sequence) FILTER (WHERE {})",
        "final": "max(ingress_sequence) FILTER (WHERE {})",
    }
    return [f"{figures[name].format(condition)} AS {part}_{name}" for name in OF_PART]


def _texts(counted: Counted) -> str:
    """Value, adjustment and total; null where there is no counter."""
    aggregation = counted.meter.aggregation
    value = {"count": "folded_count::numeric", "avg": average("folded_sum", "folded_count")}.get(
        aggregation, f"folded_{aggregation}"
    )
    together, count = "(folded_sum + adjusted_sum)", "(folded_count + adjusted_count)"
    total = {
        "sum": together,
        "count": f"{count}::numeric",
        "max": "greatest(folded_max, adjusted_max)",
        "min": "least(folded_min, adjusted_min)",
        "last": "last_of_all",
        "avg": average(together, count),
    }[aggregation]
    shown = (value, f"({total}) - ({value})", total)
    return ", ".join(f"CASE WHEN {count} > 0 THEN {_text(f'({each})')} END" for each in shown)


def _text(number: str) -> str:
    return f"trim_scale({number})::text"
