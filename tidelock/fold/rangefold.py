"""The fold of a range: applies one range of the ledger to the tables, exactly once.

The steps are the same for small and large ranges, which differ in who reads the range and in how many partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import chain, pairwise
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from tidelock.definitions import Definitions
from tidelock.fold import executors
from tidelock.fold.closing import Closings
from tidelock.fold.corrections import PORTION_EVENTS, CorrectionSteps
from tidelock.fold.executors import Task
from tidelock.fold.kernel.counters import count
from tidelock.fold.kernel.entries import entries, error_rows
from tidelock.fold.kernel.latest import keep
from tidelock.fold.kernel.meters import Meters
from tidelock.fold.kernel.outcomes import Outcome, appended
from tidelock.fold.kernel.outputs import outputs_of
from tidelock.fold.kernel.takings import ENVELOPE
from tidelock.fold.latest import LatestSteps, compile_calculations
from tidelock.fold.meters import MeterSteps
from tidelock.fold.prepare import EVENT, FAULTS, Preparation
from tidelock.fold.ranges import Range, cuts, next_range
from tidelock.fold.source import SMALL_EVENTS, RangeReader, Source
from tidelock.fold.store import Store
from tidelock.fold.streams import slots_of, sql_of_streams, sql_text
from tidelock.fold.timing import Timing
from tidelock.fold.windows.control import control_outcomes
from tidelock.fold.windows.due import waits_for_time, write_due_sql
from tidelock.fold.windows.projection import ProjectionSteps
from tidelock.fold.windows.slices import Gathered, Part, PartReader, Read, Slices
from tidelock.fold.windows.steps import Carried, HereRows, WindowSteps
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark
from tidelock.tables import ERROR_ROWS, KEY, Table, tables_of

#: ranges are counted in this many parts while they store at least this many rows, and until that is known
_MANY_ROWS = 100_000
_PARTS = 2
#: ordered output takes a range in parts of this many events, windows in larger ones: open state is stored between them
_ORDERED_EVENTS, _WINDOW_EVENTS = 150_000, 500_000
#: the first part has this share of a part's events: nothing else can be done until it is read
_FIRST = 3

#: creates a prepared range, once
Prepared: TypeAlias = Callable[[], DataFrame]


class RangeFold:
    """Folds ranges, and control events, by some definitions into the tables of one store."""

    def __init__(
        self,
        spark: Spark,
        store: Store,
        database: Database,
        definitions: Definitions,
        *,
        changes: bool = True,
        small_events: int = SMALL_EVENTS,
        part_events: int | None = None,
        gathers: bool | None = None,
        elsewhere: RangeReader | None = None,
        portion_events: int = PORTION_EVENTS,
    ) -> None:
        """`part_events`: how many events of a large range windows take at a time.

        `gathers`: whether large ranges come to the driver for windows; None: where executors are on its machine.
        `elsewhere`: where large ranges are looked for before the ledger is read.
        `portion_events`: how much of the ledger corrected counters are folded from at a time.
        """
        self._spark = spark
        self._store = store
        self._changes = changes
        slots = slots_of(definitions)
        calculated = {
            name: compile_calculations(spark.session, stream_sql.stream, stream_sql.typed)
            for name, stream_sql in sql_of_streams(slots).items()
            if stream_sql.stream.calculated
        }
        #: rows stored by the last range
        self._stored = _MANY_ROWS
        self._meters = MeterSteps(definitions, slots)
        self._closings = Closings(store, definitions, due=changes and store.log is None)
        self._latest = LatestSteps(slots, calculated)
        #: streams whose events are counted or kept, and objected to there; and the others
        self._told = {*self._meters.streams, *self._latest.latest}
        self._others = [stream for stream in slots.streams if stream not in self._told]
        self._timing = Timing(spark.session, slots)
        types = {name: {c: found.type for c, found in of.items()} for name, of in calculated.items()}
        outputs = outputs_of(definitions, types)
        projecting = ProjectionSteps(outputs, slots, calculated)
        self._projection = projecting.kernel()
        self._windows = WindowSteps(store, outputs)
        singly = any(output.singly for output in outputs)
        self._part_events = part_events or (_ORDERED_EVENTS if singly else _WINDOW_EVENTS)
        self._first_events = max(1, self._part_events // _FIRST) if singly else None
        #: rows that are taken one by one are needed here; others are for executors, where these are more machines
        self._gathers = singly or (spark.cores is not None if gathers is None else gathers)
        self._task = Task(database.url, store.schema, self._timing.faults(), changes=changes)
        self._reader = PartReader()
        self._source = Source(spark, store, database, slots, small_events=small_events, elsewhere=elsewhere)
        self._preparation = Preparation(
            spark,
            self._source,
            slots,
            meters=self._meters,
            latest=self._latest,
            timing=self._timing,
            projection=projecting,
        )
        self._corrections = CorrectionSteps(
            store,
            self._source,
            self._preparation,
            definitions,
            meters=self._meters,
            outputs=outputs,
            portion_events=portion_events,
        )
        #: every table of these definitions
        self.tables: Mapping[str, Table] = tables_of(definitions, types)

    def apply(self, lo: int, hi: int) -> int:
        """Apply the events above `lo` through `hi`; returns the number of stored rows. Raises CursorMoved."""
        try:
            corrected = self._corrections.here(lo, hi)
            small = corrected or self._source.small(lo, hi)
            if small:
                self._reader.forget()
            here = self._corrected if corrected else self._here
            with closing(self._spread(lo, hi)) if not small else nullcontext(here(lo, hi)) as found:
                outcomes = self._closings.watched(found)
                self._stored = self._store.apply(
                    lo, hi, outcomes, changes=self._changes, afterwards=self._due(), behind=not small
                )
        except BaseException:
            self._reader.forget()
            self._closings.forget()
            self._store.rollback()
            raise
        return self._stored

    def close(self) -> None:
        """Nothing more is read ahead."""
        self._reader.close()

    def foreign(self, event: Range) -> list[str]:
        """The meters that a control event states by definitions that are not those of these tables."""
        return self._closings.foreign(event)

    def stated(self, event: Range, schema: str) -> Iterator[Outcome]:
        """What a close states of these meters, for statements in another schema."""
        return self._closings.stated(event, schema)

    def control(self, event: Range, beside: Iterable[Outcome] = ()) -> None:
        """Apply a control event: it closes windows, and may drain them; or it closes periods, and what is `beside` is
        stated too. Raises CursorMoved."""
        try:
            # Statements are written as they are found; windows read their tables again on the way.
            outcomes = chain(list(self.controlled(event)), self._closings.outcomes(event), beside)
            due = self._due(event.control)
            self._store.apply(event.lo, event.hi, outcomes, changes=self._changes, afterwards=due)
        except BaseException:
            self._closings.forget()
            self._store.rollback()
            raise

    def controlled(self, event: Range, names: Collection[str] | None = None) -> Iterator[Outcome]:
        """The effect of a control event on these outputs, or on all."""
        outputs = [output for output in self._windows.outputs if names is None or output.name in names]
        return control_outcomes(self._store, outputs, event.source_timestamp, event.control or {})

    def warm_up(self) -> None:
        """Run every step over nothing, since there may be no tables yet: the first run in a JVM takes long, no event
        should wait for it, and it finds definitions that cannot work.
        """
        self._corrections.here(0, 0)
        self._here(0, 0)
        self._store.rollback()

    def _due(self, control: Mapping[str, Any] | None = None) -> Iterator[str]:
        """Statements that store when something is due: of the tables that are read, where anything may be."""
        outputs = self._windows.outputs
        read = self._changes and self._store.log is None
        if read and waits_for_time(outputs):
            yield write_due_sql(self._store.schema, outputs)
        yield from self._closings.due(control)

    def _here(self, lo: int, hi: int) -> list[Outcome]:
        """A small range: Spark prepares it, everything else happens here."""
        events = self._preparation.small(lo, hi)
        if not events.num_rows and hi > lo:
            return list(self._windows.passed(lo, hi))
        faults, kept, changes = self._timing.faults(), self._store.rows, self._changes
        meters = self._known_meters() if self._meters.meters else None
        outcomes = [appended(ERROR_ROWS, error_rows(events, meters, faults))]
        if meters is not None:
            outcomes += count(entries(events, meters), meters, kept, changes=changes)
        outcomes += [keep(events, latest, kept, changes=changes) for latest in self._latest.kernel()]
        if self._windows.outputs:
            outcomes += self._windows.outcomes(lo, hi, HereRows(events, self._projection), list(outcomes))
        return outcomes

    def _corrected(self, lo: int, hi: int) -> Iterator[Outcome]:
        """A range with corrections. They are for meters alone: everything else leaves them out."""
        given = self._corrections.split(lo, hi, self._preparation.small(lo, hi))
        faults, kept, changes = self._timing.faults(), self._store.rows, self._changes
        meters = self._known_meters() if self._meters.meters else None
        errors = appended(ERROR_ROWS, error_rows(given.counted, meters, faults))
        yield errors
        yield self._corrections.ignored(given, errors.fresh)
        if meters is not None:
            yield from self._corrections.counted(lo, given, meters, changes=changes)
        for latest in self._latest.kernel():
            yield keep(given.events, latest, kept, changes=changes)
        if self._windows.outputs:
            yield from self._windows.outcomes(lo, hi, HereRows(given.events, self._projection), [errors])

    def _spread(self, lo: int, hi: int) -> Generator[Outcome, None, None]:
        """A large range: it is prepared and folded where Spark has it, and written as it comes."""
        with self._view(lo, hi) as prepared:
            told = []
            for outcome in chain(self._counted(lo, hi, prepared), self._kept(prepared)):
                told += [outcome] if outcome.table == ERROR_ROWS else []
                yield outcome
            if self._windows.outputs:
                yield from self._gathered(lo, hi, prepared, told)
            else:
                yield from self._objected(prepared)

    def _gathered(self, lo: int, hi: int, prepared: Prepared, told: Sequence[Outcome]) -> Iterator[Outcome]:
        """What the range does to windows and ordered output, part by part: Spark reads one while another is written, at
        last one of the next range.

        A part goes on from what the one before has stored, as the next range would.
        """
        others = pa.array(self._others, pa.string())
        # Where nothing else goes over a range.
        alone = self._gathers and not self._told
        repeated = self._preparation.repeated("gathered", self._chosen) if alone else None
        ahead = self._reader.ahead(lo, hi)
        begun, first = ([lo], self._first_events) if ahead is None else ([*ahead], None)
        parts = list(pairwise([*begun, *cuts(self._store, begun[-1], hi, self._part_events, first)]))
        following = None if repeated is None else self._following(hi)
        # They are asked for now: later the store is busy writing.
        conditions = {part: self._source.by_sequence(*part) for part in (*parts, following) if repeated and part}
        carried, bounds = Carried(several=len(parts) > 1), iter(parts)

        def read(part: Part) -> Callable[[], Read]:
            if repeated is not None:
                return partial(Gathered, partial(repeated.read, conditions[part]), self._projection)
            events = self._chosen(self._part(prepared, (lo, hi), part))
            if self._gathers:
                return partial(Gathered, events.toArrow, self._projection)
            return partial(Slices, events, self._projection)

        def folded(found: Read) -> list[Outcome]:
            wrong = [each.filter(pc.is_in(each["stream"], others)) for each in found.wrong]
            outcomes = [appended(ERROR_ROWS, error_rows(each, None, self._timing.faults())) for each in wrong]
            return [*outcomes, *self._windows.part(*next(bounds), found, [*told, *outcomes], carried)]

        observe = self._store.observe
        found = self._reader.run(parts, read, folded, eager=self._gathers, following=following, observe=observe)
        with closing(found):
            for outcomes in found:
                yield from outcomes
        yield from self._windows.held(carried)

    def _chosen(self, events: DataFrame) -> DataFrame:
        """What windows and error rows need of prepared events."""
        streams = {*self._others, *(output.stream for output in self._windows.outputs)}
        columns = dict.fromkeys([*ENVELOPE, "deleted", *FAULTS, *self._projection.names])
        return events.where(_in(sorted(streams))).select(*columns)

    def _following(self, hi: int) -> Part | None:
        """What can be read of the next range already, if that will be a large one."""
        found = next_range(self._store, hi, self._part_events)
        if found is None or found.control is not None or self._source.small(hi, found.hi):
            return None
        return hi, found.hi

    def _counted(self, lo: int, hi: int, prepared: Prepared) -> Iterator[Outcome]:
        """All counters of a customer are counted by one worker. If there are many, one part of the range is written
        while the next is counted.
        """
        if not self._meters.meters:
            return
        task = replace(self._task, meters=self._known_meters())
        parts = _PARTS if self._stored >= _MANY_ROWS else 1
        jobs: list[Callable[[], pa.Table]] = []
        conditions = [self._source.by_customer(lo, hi, number, parts) for number in range(parts)]
        # The state of windows is already available.
        if conditions[0] and not self._windows.outputs:
            plan = self._preparation.repeated("counted", lambda it: executors.steps(self._countable(it), task), task)
            jobs = [partial(plan.read, each) for each in conditions if plan is not None and each is not None]
        if not jobs:
            events = self._countable(prepared()).repartition(self._spark.parallelism, "tenant_id", "customer_ref")
            jobs = [executors.steps(events, task).toArrow]
        yield from executors.run(jobs, self.tables, self._store.observe)

    def _countable(self, events: DataFrame) -> DataFrame:
        """What meters need of prepared events."""
        return events.where(_in(self._meters.streams)).select(*EVENT, *FAULTS, *self._meters.columns)

    def _known_meters(self) -> Meters:
        return self._meters.kernel(self._closings.bounds(), corrected=self._corrections.ever())

    def _kept(self, prepared: Prepared) -> Iterator[Outcome]:
        """All events of a key go to one worker. A stream that is also counted reports objections there."""
        for counted in (False, True):
            latest = [each for each in self._latest.kernel() if (each.stream in self._meters.streams) == counted]
            if latest:
                task = replace(self._task, latest=tuple(latest), errors=not counted)
                events = prepared().where(_in([each.stream for each in latest]))
                events = events.select(*EVENT, *FAULTS, f"`{KEY}`", *self._latest.columns)
                parted = events.repartition(self._spark.parallelism, "stream", "tenant_id", f"`{KEY}`")
                yield from executors.run([executors.steps(parted, task).toArrow], self.tables, self._store.observe)

    def _objected(self, prepared: Prepared) -> Iterator[Outcome]:
        """Objections of streams that are neither counted nor kept."""
        if self._others:
            wrong = prepared().where(_in(self._others)).where("objection IS NOT NULL OR time_fault IS NOT NULL")
            events = wrong.select(*EVENT, *FAULTS).toArrow()
            yield appended(ERROR_ROWS, error_rows(events, None, self._timing.faults()))

    def _part(self, prepared: Prepared, whole: tuple[int, int], part: tuple[int, int]) -> DataFrame:
        """A part of the prepared range; read by itself, where nothing else goes over the range."""
        if part == whole:
            return prepared()
        if not self._told:
            return self._preparation.large(*part)
        return prepared().where(f"ingress_sequence > {part[0]} AND ingress_sequence <= {part[1]}")

    @contextmanager
    def _view(self, lo: int, hi: int) -> Iterator[Prepared]:
        """The prepared range, created when a step needs it, and cached if several do."""
        prepared = cache(partial(self._preparation.large, lo, hi))
        if not (self._windows.outputs and self._told):
            yield prepared
            return
        prepared().persist()
        try:
            yield prepared
        finally:
            prepared().unpersist()


def _in(streams: Sequence[str]) -> str:
    return f"stream IN ({', '.join(map(sql_text, streams))})"
