"""The folder: applies one range of the ledger to the tables, exactly once.

The steps are the same for small and large ranges; they differ in who reads the range and in how many partitions.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.definitions import Definitions
from tidelock.fold.arrow import column, typed
from tidelock.fold.calculations import compile_calculations
from tidelock.fold.counters import all_counters_sql, some_counters_sql, stored_counters_sql
from tidelock.fold.errorrows import FAULTY, FAULTY_COLUMNS, error_rows
from tidelock.fold.keys import bounded, joined, json_strings, number_strings, period_strings
from tidelock.fold.latest import LatestSteps
from tidelock.fold.meters import MeterSteps
from tidelock.fold.numbers import WIDE, Numbers, choose, narrowable
from tidelock.fold.ranges import Range
from tidelock.fold.readings import objection_sql, readings
from tidelock.fold.session import Spark
from tidelock.fold.slots import Slots, slots_of
from tidelock.fold.source import SMALL_EVENTS, Elsewhere, Source, single_partition
from tidelock.fold.sparkconf import SHUFFLE_PARTITIONS, grows_with_cluster
from tidelock.fold.store import Store
from tidelock.fold.tables import (
    ADJUSTMENTS,
    COUNTER_GROUPS,
    COUNTERS,
    ERROR_ROWS,
    KEY,
    Table,
    tables_of,
)
from tidelock.fold.timing import Timing
from tidelock.fold.versions import Outcome, appended, chained, first_versions, row_schema
from tidelock.fold.windows.carried import Carried
from tidelock.fold.windows.control import control_outcomes
from tidelock.fold.windows.due import waits_for_time, write_due_sql
from tidelock.fold.windows.outputs import outputs_of
from tidelock.fold.windows.steps import WindowSteps
from tidelock.ledger.database import Database

_ONE_PARTITION = "/*+ COALESCE(1) */"

#: what a rehearsal takes where Java has compiled the steps, and how long to wait for that at most
_QUICK_S = 0.25
_WARM_UP_S = 3.0

#: counters that are being read
Stored: TypeAlias = Future[pa.Table]


class Folder:
    """The fold of some definitions into the tables of one store."""

    def __init__(
        self,
        spark: Spark,
        store: Store,
        database: Database,
        definitions: Definitions,
        *,
        changes: bool = True,
        small_events: int = SMALL_EVENTS,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """`elsewhere`: where large ranges are looked for before the ledger is asked."""
        self._spark = spark
        self._store = store
        self._changes = changes
        slots = slots_of(definitions)
        calculated = {
            name: compile_calculations(spark.session, reading.stream, reading.typed)
            for name, reading in readings(slots).items()
            if reading.stream.calculated
        }
        self._meters = MeterSteps(definitions, slots)
        self._latest = LatestSteps(slots, calculated)
        self._timing = Timing(spark.session, slots)
        types = {name: {c: found.type for c, found in of.items()} for name, of in calculated.items()}
        outputs = outputs_of(definitions, types)
        self._carried = Carried(outputs, slots, calculated)
        self._windows = WindowSteps(spark, store, outputs, self._carried)
        self._prepared = self._preparation(slots)
        self._source = Source(spark, store, database, slots, small_events=small_events, elsewhere=elsewhere)
        #: every table that these definitions make
        self.tables: Mapping[str, Table] = tables_of(definitions, types)

    def fold(self, lo: int, hi: int) -> int:
        """Apply the events above `lo` through `hi`; says how many rows were stored. Raises CursorMoved."""
        try:
            outcomes = self._folded(lo, hi) if self._source.concerns(lo, hi) else list(self._windows.passed(lo, hi))
            self._store.apply(lo, hi, outcomes, changes=self._changes, afterwards=self._due())
        except BaseException:
            self._store.rollback()
            raise
        return sum(outcome.rows.num_rows + outcome.removed.num_rows for outcome in outcomes)

    def control(self, event: Range) -> None:
        """Apply a control event: it closes windows, and may drain them. Raises CursorMoved."""
        try:
            outcomes = list(self.controlled(event))
            self._store.apply(event.lo, event.hi, outcomes, changes=self._changes, afterwards=self._due())
        except BaseException:
            self._store.rollback()
            raise

    def controlled(self, event: Range, names: Collection[str] | None = None) -> Iterator[Outcome]:
        """What a control event does to these outputs, or to all."""
        outputs = [output for output in self._windows.outputs if names is None or output.name in names]
        return control_outcomes(self._store, outputs, event.source_timestamp, event.control or {})

    def _due(self) -> str | None:
        """The statement that stores when something is due: of the tables that are read, where anything may be."""
        outputs = self._windows.outputs
        read = self._changes and self._store.log is None
        return write_due_sql(self._store.schema, outputs) if read and waits_for_time(outputs) else None

    def warm_up(self) -> None:
        """Rehearse over nothing, as there may be no tables yet, until that is quick, or for some seconds.

        The first run of a step in a JVM takes long, and no event should wait for that.
        """
        began = started = time.monotonic()
        while True:
            self.rehearse(0, 0)
            ended = time.monotonic()
            if ended - started < _QUICK_S or ended - began > _WARM_UP_S:
                return
            started = ended

    def rehearse(self, lo: int, hi: int) -> None:
        """Run every step over a small range that was folded before, or over nothing, and forget what comes of it.

        Java compiles what runs often; where there is nothing to fold, this is how it comes to run often.
        """
        self._compile(False)
        with self._view(lo, hi, small=True) as (prepared, stored):
            for _ in self._outcomes(lo, hi, prepared, stored, _ONE_PARTITION):
                pass
        self._store.rollback()

    def _folded(self, lo: int, hi: int) -> list[Outcome]:
        small = self._source.small(lo, hi)
        self._compile(not small)
        with self._view(lo, hi, small) as (prepared, stored):
            return list(self._outcomes(lo, hi, prepared, stored, _ONE_PARTITION if small else ""))

    def _preparation(self, slots: Slots) -> str:
        """All that is to be known of single events, in one step: its expressions are many, the later steps' few."""
        meters = f"{self._meters.prepared()} AS entries" if self._meters.meters else "NULL AS entries"
        latest = self._latest.prepared() if self._latest.latest else []
        columns = ", ".join([meters, *self._timing.prepared(), *latest, *self._carried.prepared()])
        return f"""
            SELECT ingress_sequence, source_timestamp, tenant_id, stream, customer_ref, occurred_at,
                op = 'delete' AS deleted, {objection_sql(slots)} AS objection, {columns}
            FROM ({self._timing.source()})"""

    @contextmanager
    def _view(self, lo: int, hi: int, small: bool) -> Iterator[tuple[pa.Table | None, Stored]]:
        """The prepared range as a view. A large one stays where it was prepared, a small one is here, and sent on.

        While Spark prepares it, Postgres finds the stored counters that the range touches.
        """
        session = self._spark.session
        self._timing.parsed(self._source.read(lo, hi)).createOrReplaceTempView("events")
        prepared = session.sql(self._prepared)
        with ThreadPoolExecutor(1) as aside:
            stored = aside.submit(self._stored_counters, lo, hi, small)
            if small:
                rows = prepared.toArrow()
                single_partition(session, rows).createOrReplaceTempView("prepared")
                yield rows, stored
                return
            prepared.persist().createOrReplaceTempView("prepared")
            try:
                yield None, stored
            finally:
                prepared.unpersist()

    def _stored_counters(self, lo: int, hi: int, small: bool) -> pa.Table:
        """Of a large range all, where they are few: finding those that it touches means to read its events again."""
        meters, schema = self._meters.meters, self._store.schema
        if not meters:
            return row_schema(COUNTERS).empty_table()
        if not small and self._store.query(some_counters_sql(schema, lo, hi))["few"][0].as_py():
            return self._store.select(COUNTERS, all_counters_sql(schema, meters))
        return self._store.select(COUNTERS, stored_counters_sql(schema, meters, lo, hi))

    def _compile(self, wanted: bool) -> None:
        """Compiling a step costs more than it saves on few rows."""
        conf = self._spark.session.conf
        conf.set("spark.sql.codegen.wholeStage", str(wanted).lower())
        conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if wanted else "NO_CODEGEN")
        if wanted and grows_with_cluster(self._spark.settings):
            conf.set(SHUFFLE_PARTITIONS, str(self._spark.parallelism))

    def _outcomes(self, lo: int, hi: int, prepared: pa.Table | None, stored: Stored, hint: str) -> Iterator[Outcome]:
        meters = self._meters.meters
        faulty = self._run({}, FAULTY if meters else FAULTY_COLUMNS) if prepared is None else prepared
        yield appended(ERROR_ROWS, error_rows(faulty, meters, self._timing.fault, self._timing.objections()))
        if meters:
            yield from self._counted(self._awaited(stored), {"entries": self._meters.entries()}, hint)
        if self._latest.latest:
            yield from self._kept()
        if self._windows.outputs:
            yield from self._windows.outcomes(lo, hi, prepared)

    def _awaited(self, stored: Stored) -> pa.Table:
        return stored.result()

    def _counted(self, stored: pa.Table, views: dict[str, str], hint: str) -> Iterator[Outcome]:
        self._show("stored_counters", stored)
        numbers = self._numbers(views, stored) if not hint else WIDE
        views |= {"chained": self._meters.chained(hint, numbers), "decided": self._meters.decided()}
        found = self._named(numbers.read(self._run(views, self._meters.counter_versions(numbers))))
        yield self._watched(chained(COUNTERS, found.filter(found["closing"]), stored))
        yield self._watched(appended(ADJUSTMENTS, self._adjusted(found.filter(pc.is_valid(found["amount"])))))
        if self._meters.grouped:
            yield self._grouped(views, hint)

    def _numbers(self, views: dict[str, str], stored: pa.Table) -> Numbers:
        """What a large range is counted in: worth a look at its quantities, which have to be read first anyway."""
        return choose(self._run(views, self._meters.extent()), stored) if narrowable(self._meters.meters) else WIDE

    def _adjusted(self, late: pa.Table) -> pa.Table:
        """Adjustments, with keys of their own."""
        late = _keyed(late.drop_columns([KEY]), json_strings(column(late, "metric")), _sequences(late))
        return late.append_column("reason", pa.repeat("late", late.num_rows))

    def _grouped(self, views: dict[str, str], hint: str) -> Outcome:
        """Groups are as many as producers like, so only those that the range touches are read."""
        touched = self._named(self._run(views, self._meters.touched_groups()))
        stored = self._store.rows(COUNTER_GROUPS, touched)
        self._show("stored_groups", stored)
        views = views | {"grouped": self._meters.groups(hint)}
        found = self._named(self._run(views, self._meters.group_versions()))
        return self._watched(chained(COUNTER_GROUPS, found, stored))

    def _kept(self) -> Iterator[Outcome]:
        found = self._run({}, self._latest.versions())
        for stream, latest in self._latest.latest.items():
            versions = found.filter(pc.equal(found["stream"], stream))
            for number, (name, type_) in enumerate(latest.table.columns.items()):
                versions = versions.append_column(name, typed(versions[f"value_{number}"], type_))
            outcome = chained(latest.table, versions, self._store.rows(latest.table, first_versions(versions)))
            yield outcome if latest.stream.live else outcome.unwatched()

    def _run(self, views: Mapping[str, str], sql: str) -> pa.Table:
        """The answer of a step that is built on others."""
        steps = ", ".join(f"{name} AS ({text})" for name, text in views.items())
        return self._spark.session.sql(f"WITH {steps} {sql}" if steps else sql).toArrow()

    def _show(self, name: str, rows: pa.Table) -> None:
        """Stored rows as a view, with the numbers of their meters."""
        names = pa.array([meter.name for meter in self._meters.meters], pa.string())
        numbers = pc.index_in(rows["metric"], value_set=names)
        numbered = rows.drop_columns([KEY]).append_column("meter", numbers)
        single_partition(self._spark.session, numbered).createOrReplaceTempView(name)

    def _named(self, rows: pa.Table) -> pa.Table:
        """Rows of counters or groups with metric and key."""
        names = pa.array([meter.name for meter in self._meters.meters], pa.string())
        meters = column(rows, "meter")
        parts = [json_strings(names).take(meters), json_strings(column(rows, "customer_ref"))]
        parts.append(period_strings(column(rows, "period_start")))
        if "group_key" in rows.column_names:
            parts.append(json_strings(column(rows, "group_key")))
        keys = joined(*parts)
        keyed = rows.append_column(KEY, bounded(keys) if "group_key" in rows.column_names else keys)
        return keyed.append_column("metric", names.take(meters))

    def _watched(self, outcome: Outcome) -> Outcome:
        """Without the changes of meters that nobody may watch."""
        unwatched = [meter.name for meter in self._meters.meters if not meter.live]
        return outcome.without("metric", unwatched) if unwatched else outcome


def _keyed(rows: pa.Table, *parts: pa.Array) -> pa.Table:
    """Rows with a key of these parts, which are JSON texts."""
    return rows.append_column(KEY, joined(*parts))


def _sequences(rows: pa.Table) -> pa.Array:
    return number_strings(column(rows, "ingress_sequence"))
