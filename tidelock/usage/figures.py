"""Figures of a counter, as SQL for Postgres: the part of each event, and their sums.

Each event of a slice has a part: counted on time, late, an error, filtered or a removal, decided as in the fold. The
fold's rules are applied to the ledger again, so that an answer needs no row of the fold's tables and works for any
sequence. Steps are nested subqueries that end with OFFSET 0: each expression is computed once, and rows flow through.
The figures sum the parts, all together or event by event.

Corrections need no recursion. Late or not is decided by a maximum that never goes back and closed or not by closes that
are never undone, so a correction in time has a target that was in time too, however often that one was amended: every
row is decided by itself, and one join tells each event its correction and each correction what it takes out. A slice
without corrections is read without that join.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tidelock.columns import DOUBLE
from tidelock.definitions import Definitions, Meter, Stream
from tidelock.fold.meters import missing_quantity
from tidelock.fold.streams import VALUE_CHARACTERS_MAX, StreamSql, no_instant, slots_of, sql_text
from tidelock.periods import period_end
from tidelock.usage import casts
from tidelock.usage.casts import average
from tidelock.where.sql import POSTGRES, where_sql

#: why an event is an error here; an event without a customer is in no slice
CODES = ("invalid_column", "invalid_event_time", "missing_quantity")

#: the figures of one part, in their order
OF_PART = ("count", "sum", "max", "min", "last", "first", "final")
#: what counts, in its order: in the value; in the total only; in the value only, because it was corrected too late
PARTS = ("folded", "adjusted", "withdrawn")
#: the rest of a summary, in its order, before the number of each error
OTHERS = ("counted", "watermark", "filtered", "deleted", "voids", "amendments", "overdue", "uncounted")

_AMOUNTS = ("sum", "max", "min", "last")
# Their total is a number before the first event too, and is summed event by event.
_FROM_ZERO = ("sum", "count", "unique_count")
_ADDED_UP = ("sum", "count", "avg")


@dataclass(frozen=True, slots=True)
class Group:
    """Which events are requested: all of the counter, or those of one group, which may be the one without a value."""

    text: str | None = None
    chosen: bool = False

    def sql(self, key: str = "group_key", code: str = "code") -> str:
        """The condition on an event's group and error."""
        if not self.chosen:
            return "TRUE"
        if self.text is not None:
            return f"{key} = {sql_text(self.text)}"
        # Events that do not fit their columns are in no group.
        return f"{key} IS NULL AND ({code} IS NULL OR {code} = 'missing_quantity')"


WHOLE = Group()


@dataclass(frozen=True, slots=True)
class Counted:
    """The events of one customer that are candidates for a meter's counters."""

    meter: Meter
    #: as declared, or only its name
    stream: Stream
    tenant_id: str
    customer_ref: str
    #: occurred_at, half-open
    since: int | None = None
    until: int | None = None
    #: last sequence
    through: int = 0
    #: the table to read
    events: str = "events"
    #: sequences of closes, and where open periods begin from then on, both rising
    closes: tuple[tuple[int, int], ...] = ()
    #: whether there are corrections among them
    corrected: bool = False

    @classmethod
    def of(cls, definitions: Definitions, meter: Meter, tenant_id: str, customer_ref: str, through: int) -> Counted:
        stream = definitions.streams.get(meter.stream) or Stream(meter.stream)
        return cls(meter, stream, tenant_id, customer_ref, through=through)

    def slice_sql(self, *, beyond: bool = False) -> str:
        """The condition on events, in the order of the index; `beyond`: those above the last sequence instead."""
        return " AND ".join(self._conditions(beyond))

    def _conditions(self, beyond: bool) -> Iterator[str]:
        yield f"tenant_id = {sql_text(self.tenant_id)}"
        yield f"stream = {sql_text(self.meter.stream)}"
        yield f"customer_ref = {sql_text(self.customer_ref)}"
        if self.since is not None:
            yield f"occurred_at >= {self.since}"
        if self.until is not None:
            yield f"occurred_at < {self.until}"
        yield f"ingress_sequence {'>' if beyond else '<='} {self.through}"

    def judged_sql(self, *, order: str = "") -> str:
        """One row per event: `aside` is why it is not counted, null if it is; code and message describe errors.

        An amendment is judged by the quantity and data it gives, a void not at all."""
        meter = self.meter
        streams = {self.stream.name: self.stream}
        # Event time decides windows; a meter only uses occurred_at.
        slots = replace(slots_of(Definitions(streams, {meter.name: meter})), timed={})
        slots = replace(slots, envelope=tuple(sorted({*slots.envelope, "op", "target_sequence"})))
        columns = StreamSql(self.stream, slots, POSTGRES, casts)
        decoded = ", ".join(["*", *columns.decoded()])
        matches = "TRUE" if meter.where is None else where_sql(meter.where, POSTGRES, columns.as_type)
        group = f"{columns.joined(meter.group_by)}" if meter.group_by else "NULL::text"
        if meter.distinct:
            quantity, text = "NULL::numeric", self._text_sql(columns)
        else:
            quantity, text = columns.quantity(meter.value), "NULL::text"
        return f"""
            SELECT ingress_sequence, occurred_at, op, target_sequence, aside,
                CASE WHEN aside IS NULL THEN quantity END AS quantity, CASE WHEN aside IS NULL THEN text END AS text,
                CASE WHEN objection IS NULL THEN group_key END AS group_key,
                CASE WHEN aside = 'error' THEN {self._code_sql()} END AS code,
                CASE WHEN aside = 'error'
                    THEN coalesce(objection{self._value_sql()}, {sql_text(missing_quantity(meter))}) END AS message
            FROM (
                SELECT *, CASE WHEN op = 'void' THEN 'void' WHEN objection IS NOT NULL THEN 'error'
                    WHEN deleted THEN 'deleted' WHEN NOT matches THEN 'filtered' {self._missing_sql()} END AS aside
                FROM (
                    SELECT ingress_sequence, occurred_at, op, target_sequence, deleted,
                        {columns.objection() or "NULL::text"} AS objection,
                        {columns.time_value() if self._times() else "NULL::text"} AS time_value,
                        coalesce({matches}, FALSE) AS matches, {quantity} AS quantity,
                        {text} AS text, ({group}) COLLATE "C" AS group_key
                    FROM (
                        SELECT {decoded}
                        FROM ({slots.postgres_sql(self.events)} AND {self.slice_sql()} {order} OFFSET 0) AS slotted
                        OFFSET 0
                    ) AS decoded
                    OFFSET 0
                ) AS judged
                OFFSET 0
            ) AS explained"""

    def decided_sql(self, group: Group = WHOLE) -> str:
        """The same of a group with `part`, the start of the period, and `reason`: why it is in the total only.

        With corrections also what a row puts in and takes out, and of an event how long it stays."""
        if self.corrected:
            return self._corrected_sql(group)
        part = "coalesce(aside, CASE WHEN overdue IS NULL THEN 'folded' ELSE 'adjusted' END)"
        return f"""
            SELECT *, CASE WHEN aside IS NULL THEN overdue END AS reason, {part} AS part
            FROM ({self._timed_sql()}) AS timed WHERE {group.sql()}"""

    def _timed_sql(self) -> str:
        """With `overdue`: late or closed, null if in time. A late event never raises the maximum, as in the fold.

        Instants and lateness are subtracted as numerics: bigint could overflow.
        """
        start, apart = casts.period_start(self.meter.period, "occurred_at"), "PARTITION BY period_start"
        if self.since is not None and self.until == period_end(self.meter.period, self.since):
            # One period needs no second sort, because it is already in sequence order.
            start, apart = f"{self.since}::bigint", ""
        return f"""
            SELECT *, {self._overdue_sql()} AS overdue
            FROM (
                SELECT *, occurred_at < max(occurred_at) FILTER (WHERE aside IS NULL) OVER before
                    - {self.meter.lateness_ns}::numeric AS late
                FROM (SELECT *, {start} AS period_start FROM ({self.judged_sql()}) AS judged) AS placed
                WINDOW before AS ({apart} ORDER BY ingress_sequence
                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
            ) AS watched"""

    def _corrected_sql(self, group: Group) -> str:
        """Each event beside its correction, and each correction beside its target.

        `enters`: it puts itself in; `leaves`: it takes its target out, which this meter counted. `kept`: it is in the
        value at the end, `stays`: in the total."""
        here, there = group.sql("timed.group_key", "timed.code"), group.sql("own.taken_group", "own.taken_code")
        return f"""
            SELECT *, enters AND overdue IS NULL AND NOT coalesce(corrected_in_time, FALSE) AS kept,
                enters AND corrected_by IS NULL AS stays, CASE WHEN enters OR leaves THEN late_as END AS reason
            FROM (
                SELECT *, aside IS NULL AND here AS enters, coalesce(taken AND there, FALSE) AS leaves,
                    CASE WHEN target_sequence IS NOT NULL THEN op WHEN aside IS NOT NULL THEN aside
                        WHEN overdue IS NULL THEN 'folded' ELSE 'adjusted' END AS part,
                    CASE WHEN target_sequence IS NULL OR overdue IS DISTINCT FROM 'late' THEN overdue ELSE op END
                        AS late_as
                FROM (
                    WITH timed AS MATERIALIZED ({self._timed_sql()}),
                    links AS MATERIALIZED (
                        SELECT it.target_sequence AS of_target, it.ingress_sequence AS by_correction,
                            it.overdue IS NULL AS in_time, target.aside IS NULL AS taken,
                            target.quantity AS taken_quantity, target.group_key AS taken_group,
                            target.code AS taken_code
                        FROM timed AS it JOIN timed AS target ON target.ingress_sequence = it.target_sequence
                        WHERE it.target_sequence IS NOT NULL
                    )
                    SELECT timed.*, correction.by_correction AS corrected_by,
                        correction.in_time AS corrected_in_time, own.taken, own.taken_quantity,
                        op <> 'void' AND coalesce({here}, FALSE) AS here,
                        own.by_correction IS NOT NULL AND coalesce({there}, FALSE) AS there
                    FROM timed LEFT JOIN links AS correction ON correction.of_target = timed.ingress_sequence
                    LEFT JOIN links AS own ON own.by_correction = timed.ingress_sequence
                ) AS joined
                WHERE here OR there
            ) AS decided"""

    @property
    def closed_sequence(self) -> int | None:
        """The close that ended the period, where it is one period and it is closed."""
        since = self.since
        return next((sequence for sequence, start in self.closes if since is not None and start > since), None)

    def _overdue_sql(self) -> str:
        """Why an event is not in time; null where it is. After a close no event is late any more."""
        late = "CASE WHEN late THEN 'late' END"
        closes = [close for close in self.closes if self.since is None or close[1] > self.since]
        if self.until is not None:
            # Whatever comes after the first that closes all of it closes nothing more.
            all_of_it = next((n for n, (_, start) in enumerate(closes) if start >= self.until), len(closes))
            closes = closes[: all_of_it + 1]
        if not closes:
            return late
        rows = ", ".join(f"({sequence}::bigint, {start}::bigint)" for sequence, start in closes)
        closed = f"(SELECT min(sequence) FROM (VALUES {rows}) AS close (sequence, start) WHERE start > period_start)"
        return f"CASE WHEN ingress_sequence > {closed} THEN 'closed' ELSE {late} END"

    def _missing_sql(self) -> str:
        if self.meter.aggregation == "count":
            return ""
        return f"WHEN {'text' if self.meter.distinct else 'quantity'} IS NULL THEN 'error'"

    def _text_sql(self, columns: StreamSql) -> str:
        """By which a value is told from others: a path's by what it is, a double by its shortest digits."""
        type_ = self.stream.type_of(self.meter.value)
        if type_ is None:
            return casts.json_distinct(columns.json(self.meter.value))
        return f"{columns.typed(self.meter.value)}::text" if type_ == DOUBLE else columns.text(self.meter.value)

    def _times(self) -> bool:
        """Whether an event can be objected to for its time: a declared column has it."""
        return self.stream.eventtime is not None and self.stream.eventtime.column in self.stream.columns

    def _value_sql(self) -> str:
        """What the fold's error rows add to an objection to an event's time: the value."""
        if not self._times() or self.stream.eventtime is None:
            return ""
        told = sql_text(no_instant(self.stream.eventtime))
        cut = f"left(time_value, {VALUE_CHARACTERS_MAX})"
        more = f"CASE WHEN length(time_value) > {VALUE_CHARACTERS_MAX} THEN '...' ELSE '' END"
        return f""" || CASE objection WHEN {told} THEN '; it is "' || {cut} || {more} || '"' ELSE '' END"""

    def _code_sql(self) -> str:
        """The error of a column with the event's time is about the time, as in the fold's error rows."""
        columns = "'invalid_column'"
        if (declared := self.stream.eventtime) is not None:
            columns = (
                f"CASE objection WHEN {sql_text(no_instant(declared))} THEN 'invalid_event_time' ELSE {columns} END"
            )
        return f"CASE WHEN objection IS NULL THEN 'missing_quantity' ELSE {columns} END"


@dataclass(frozen=True, slots=True)
class Buckets:
    """Periods of another length than the meter's, and which of them are requested."""

    length: str
    since: int | None = None
    until: int | None = None

    def start_sql(self) -> str:
        return casts.period_start(self.length, "occurred_at")

    def wanted_sql(self) -> str:
        since = [] if self.since is None else [f"occurred_at >= {self.since}"]
        until = [] if self.until is None else [f"occurred_at < {self.until}"]
        return " AND ".join(["TRUE", *since, *until])


def has_corrections_sql(counted: Counted) -> str:
    """Whether there are corrections among the events; most ledgers have none at all, and most slices."""
    return f"""
        SELECT EXISTS (SELECT FROM corrections)
            AND EXISTS (SELECT FROM events WHERE {counted.slice_sql()} AND target_sequence IS NOT NULL)"""


def usage_sql(counted: Counted, *, grouped: bool, limit: int, buckets: Buckets | None = None) -> str:
    """Start, group, value, adjustment, total and watermark of every counter; the numbers are texts.

    With buckets, those of every bucket: of its events, each decided by the counter it belongs to.
    """
    group = "group_key" if grouped else "NULL::text"
    start, within = "period_start", "TRUE"
    if buckets is not None:
        start, within = buckets.start_sql(), buckets.wanted_sql()
    return f"""
        SELECT start, group_key, {_texts(counted)}, watermark
        FROM (
            SELECT {start} AS start, {group} AS group_key, {_sums(counted)}
            FROM ({counted.decided_sql()}) AS decided WHERE aside IS NULL AND {within} GROUP BY 1, 2
        ) AS summed
        ORDER BY start, group_key NULLS FIRST LIMIT {limit}"""


def summary_sql(counted: Counted, group: Group) -> str:
    """One row: value, adjustment, total; the figures of each part; the others; the number of each error."""
    parts = ", ".join(
        f"{_text(f'{part}_{name}')}" if name in _AMOUNTS else f"{part}_{name}" for part in PARTS for name in OF_PART
    )
    mine = "here" if counted.corrected else "TRUE"
    codes = ", ".join(f"count(*) FILTER (WHERE code = '{code}' AND {mine}) AS {code}" for code in CODES)
    return f"""
        SELECT {_texts(counted)}, {parts}, {", ".join(OTHERS)}, {", ".join(CODES)}
        FROM (
            SELECT {_sums(counted)}, count(*) FILTER (WHERE part = 'filtered') AS filtered,
                count(*) FILTER (WHERE part = 'deleted') AS deleted, {_corrections(counted)}, {codes}
            FROM ({counted.decided_sql(group)}) AS decided
        ) AS summed"""


def _corrections(counted: Counted) -> str:
    """How many there were that changed something, by kind; how many of those too late; how many changed nothing."""
    names = OTHERS[-4:]
    if not counted.corrected:
        return ", ".join(f"0 AS {name}" for name in names)
    changed = "(enters OR leaves)"
    conditions = (
        f"part = 'void' AND {changed}",
        f"part = 'amend' AND {changed}",
        f"target_sequence IS NOT NULL AND {changed} AND reason IS NOT NULL",
        f"target_sequence IS NOT NULL AND NOT {changed}",
    )
    return ", ".join(
        f"count(*) FILTER (WHERE {condition}) AS {name}" for name, condition in zip(names, conditions, strict=True)
    )


def page_sql(counted: Counted, group: Group, *, after: int, limit: int) -> str:
    """Events in sequence order: sequence, part, reason, quantity, total after it, how it changed that, group, code,
    message, which event it corrects, which corrects it, and the text that is counted."""
    corrected, aggregation = counted.corrected, counted.meter.aggregation
    changes = "(enters OR leaves)" if corrected else "aside IS NULL"
    enters = "enters" if corrected else "aside IS NULL"
    links = "target_sequence, corrected_by" if corrected else "NULL::bigint, NULL::bigint"
    # What comes first after a close, and what is taken out, changes a total that is nothing on one side.
    whole = "reason IS NOT NULL" + (" OR leaves" if corrected else "")
    before = "coalesce(before, 0)" if aggregation in _FROM_ZERO else "before"
    change = f"CASE WHEN {whole} THEN coalesce(total, 0) - coalesce(before, 0) ELSE total - {before} END"
    running = _Running(aggregation, corrected)
    return f"""
        WITH decided AS {"MATERIALIZED" if corrected else "NOT MATERIALIZED"} (
            {running.marked_sql(counted.decided_sql(group))}
        ), paged AS {"MATERIALIZED" if corrected else "NOT MATERIALIZED"} (
            SELECT * FROM (
                SELECT *, lag(running) OVER every AS running_before
                FROM (
                    SELECT *, {running.sql()} AS running FROM decided
                    WINDOW running AS (ORDER BY ingress_sequence ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
                ) AS summed
                WINDOW every AS (ORDER BY ingress_sequence)
            ) AS told
            WHERE ingress_sequence > {after} ORDER BY ingress_sequence LIMIT {limit}
        ) {running.leaving_sql()}
        SELECT ingress_sequence, part, reason, CASE WHEN {enters} THEN {_text("quantity")} END,
            CASE WHEN {changes} THEN {_text("total")} END,
            CASE WHEN {changes} THEN {_text(f"({change})")} END, group_key, code, message, {links},
            CASE WHEN {enters} THEN text END
        FROM (SELECT *, {running.total_sql()} AS total, {running.before_sql()} AS before FROM paged) AS totalled
        ORDER BY ingress_sequence"""


@dataclass(frozen=True, slots=True)
class _Running:
    """The total after each event.

    What adds up is summed with what leaves taken away. A greatest or latest, or a number of distinct texts, cannot be
    taken away from: it is that of what never leaves, as it grows, and of what leaves later. Of that most is there
    during a whole page or not at all; only what comes or goes within the page is looked at for each of its rows.
    """

    aggregation: str
    corrected: bool

    @property
    def _looks(self) -> bool:
        return self.corrected and self.aggregation not in _ADDED_UP

    @property
    def _stays(self) -> str:
        return "stays" if self.corrected else "aside IS NULL"

    def marked_sql(self, decided: str) -> str:
        """For distinct texts with the first that has each and never leaves."""
        if self.aggregation != "unique_count":
            return decided
        first = f"min(ingress_sequence) FILTER (WHERE {self._stays}) OVER (PARTITION BY text)"
        return f"SELECT *, {first} AS first_of_text FROM ({decided}) AS unmarked"

    def sql(self) -> str:
        """Over the rows before and with this one."""
        total, count = "quantity", "(aside IS NULL)::int"
        if self.corrected:
            total = "CASE WHEN enters THEN coalesce(quantity, 0) ELSE 0 END"
            total += " - CASE WHEN leaves THEN coalesce(taken_quantity, 0) ELSE 0 END"
            count = "enters::int - leaves::int"
        total, count = f"coalesce(sum({total}) OVER running, 0)", f"(sum({count}) OVER running)"
        filtered = f"FILTER (WHERE {self._stays} AND quantity IS NOT NULL) OVER running"
        new = f"{self._stays} AND ingress_sequence = first_of_text"
        return {
            "sum": total,
            "count": f"{count}::numeric",
            "avg": average(total, count),
            "max": f"max(quantity) {filtered}",
            "min": f"min(quantity) {filtered}",
            "last": f"max({_last()}) {filtered}",
            "unique_count": f"(count(*) FILTER (WHERE {new}) OVER running)::numeric",
        }[self.aggregation]

    def leaving_sql(self) -> str:
        """What leaves at some time: what is there during the whole page, as a figure, and row by row the rest."""
        if not self._looks:
            return ""
        distinct = self.aggregation == "unique_count"
        first = "first_of_text" if distinct else "NULL::bigint"
        during = "entered < low AND left_at > high"
        if distinct:
            # A text that another event keeps from before or within the page on is not only theirs.
            during += " AND (first_of_text IS NULL OR first_of_text > high)"
        known = "AND NOT EXISTS (SELECT FROM staying WHERE staying.text = leaving.text)" if distinct else ""
        return f""", leaving AS MATERIALIZED (
            SELECT * FROM (
                SELECT ingress_sequence AS entered, corrected_by AS left_at, occurred_at, quantity, text,
                    {first} AS first_of_text
                FROM decided
                WHERE enters AND corrected_by IS NOT NULL AND {"text" if distinct else "quantity"} IS NOT NULL
            ) AS every, (SELECT min(ingress_sequence) AS low, max(ingress_sequence) AS high FROM paged) AS page
            WHERE entered <= high AND left_at >= low
        ), staying AS MATERIALIZED (
            SELECT {"DISTINCT text" if distinct else f"{self._figure} AS figure"} FROM leaving WHERE {during}
        ), passing AS MATERIALIZED (
            SELECT * FROM leaving WHERE NOT ({during}) {known}
        )"""

    @property
    def _figure(self) -> str:
        return {"max": "max(quantity)", "min": "min(quantity)", "last": f"max({_last('entered')})"}[self.aggregation]

    def total_sql(self) -> str:
        there = "entered <= ingress_sequence AND left_at > ingress_sequence"
        return self._with_leaving("running", there, "first_of_text > ingress_sequence")

    def before_sql(self) -> str:
        there = "entered < ingress_sequence AND left_at >= ingress_sequence"
        return self._with_leaving("running_before", there, "first_of_text >= ingress_sequence")

    def _with_leaving(self, running: str, there: str, alone: str) -> str:
        if self._looks and self.aggregation == "unique_count":
            return f"""coalesce({running}, 0) + (SELECT count(*) FROM staying) + (
                SELECT count(DISTINCT text) FROM passing WHERE {there.replace("ingress", "paged.ingress")}
                    AND (passing.first_of_text IS NULL OR passing.{alone.replace("ingress", "paged.ingress")}))"""
        if self._looks:
            function = "least" if self.aggregation == "min" else "greatest"
            passing = f"SELECT {self._figure} FROM passing WHERE {there}"
            running = f"{function}({running}, (SELECT figure FROM staying), ({passing}))"
        return f"({running})[3]" if self.aggregation == "last" else running


def latest_sql(counted: Counted, *, any_event: bool) -> str:
    """When the latest counted event, or any event, occurred. Read from the end of the index."""
    if any_event:
        return f"SELECT occurred_at FROM events WHERE {counted.slice_sql()} ORDER BY occurred_at DESC LIMIT 1"
    judged = counted.judged_sql(order="ORDER BY occurred_at DESC")
    return f"SELECT occurred_at FROM ({judged}) AS judged WHERE aside IS NULL ORDER BY occurred_at DESC LIMIT 1"


def pending_sql(counted: Counted) -> str:
    """The number of events not counted yet."""
    return f"SELECT count(*) FROM events WHERE {counted.slice_sql(beyond=True)}"


def _sums(counted: Counted) -> str:
    """The figures of each part, of all together, and the watermark."""
    distinct = "count(DISTINCT text) FILTER (WHERE {})::numeric AS {}_unique_count"
    if not counted.corrected:
        nothing = {"count": "0::bigint", "sum": "0::numeric", "first": "NULL::bigint", "final": "NULL::bigint"}
        figures = [
            *_figures("folded", "part = 'folded'"),
            *_figures("adjusted", "part = 'adjusted'"),
            *(f"{nothing.get(name, 'NULL::numeric')} AS withdrawn_{name}" for name in OF_PART),
            f"(max({_last()}) FILTER (WHERE aside IS NULL AND quantity IS NOT NULL))[3] AS every_last",
            "max(occurred_at) FILTER (WHERE part = 'folded') AS watermark",
            "count(*) FILTER (WHERE aside IS NULL) AS counted",
            *([distinct.format("part = 'folded'", "folded")] if counted.meter.distinct else []),
            *([distinct.format("aside IS NULL", "every")] if counted.meter.distinct else []),
        ]
        return ", ".join(figures)
    figures = [
        *_figures("folded", "kept"),
        *_figures("adjusted", "stays AND NOT kept"),
        *_figures("withdrawn", "kept AND NOT stays"),
        *_figures("every", "stays"),
        # It never goes back: what was voided since has raised it too.
        "max(occurred_at) FILTER (WHERE enters AND overdue IS NULL) AS watermark",
        "count(*) FILTER (WHERE enters) AS counted",
        *([distinct.format("kept", "folded"), distinct.format("stays", "every")] if counted.meter.distinct else []),
    ]
    return ", ".join(figures)


def _figures(part: str, condition: str) -> list[str]:
    figures = {
        "count": "count(*) FILTER (WHERE {})",
        "sum": "coalesce(sum(quantity) FILTER (WHERE {}), 0)",
        "max": "max(quantity) FILTER (WHERE {})",
        "min": "min(quantity) FILTER (WHERE {})",
        "last": f"(max({_last()}) FILTER (WHERE {{}} AND quantity IS NOT NULL))[3]",
        "first": "min(ingress_sequence) FILTER (WHERE {})",
        "final": "max(ingress_sequence) FILTER (WHERE {})",
    }
    return [f"{figures[name].format(condition)} AS {part}_{name}" for name in OF_PART]


def _last(sequence: str = "ingress_sequence") -> str:
    """The last is the greatest by (occurred_at, ingress_sequence): arrays are compared member by member."""
    return f"ARRAY[occurred_at, {sequence}, quantity]::numeric[]"


def _texts(counted: Counted) -> str:
    """Value, adjustment and total; null where there is no counter."""
    aggregation = counted.meter.aggregation
    value = _value(aggregation, "folded", "folded_sum", "folded_count")
    if counted.corrected:
        total = _value(aggregation, "every", "every_sum", "every_count")
    else:
        total = {
            "max": "greatest(folded_max, adjusted_max)",
            "min": "least(folded_min, adjusted_min)",
            "last": "every_last",
            "unique_count": "every_unique_count",
        }.get(aggregation) or _value(aggregation, "", "(folded_sum + adjusted_sum)", "(folded_count + adjusted_count)")
    shown = (value, f"({total}) - ({value})", total)
    return ", ".join(f"CASE WHEN counted > 0 THEN {_text(f'({each})')} END" for each in shown)


def _value(aggregation: str, part: str, total: str, count: str) -> str:
    return {"sum": total, "count": f"{count}::numeric", "avg": average(total, count)}.get(
        aggregation, f"{part}_{aggregation}"
    )


def _text(number: str) -> str:
    return f"trim_scale({number})::text"
