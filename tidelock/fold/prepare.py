"""Prepare: a range of the ledger as flat, typed rows, by Spark SQL.

Everything about single events is computed in one step: which meters count them and how much, the key and row of keyed
streams, their time, what windows need, and their errors. A small range is fetched by the driver with a plan that is
built once and executed for every range; a large one stays where Spark holds it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, functions

from tidelock.fold.latest import LatestSteps
from tidelock.fold.meters import MeterSteps
from tidelock.fold.source import SMALL_EVENTS, Repeated, Source
from tidelock.fold.streams import Slots, objection_sql
from tidelock.fold.timing import Timing
from tidelock.fold.windows.projection import ProjectionSteps
from tidelock.spark.configuration import SHUFFLE_PARTITIONS, grows_with_cluster
from tidelock.spark.runtime import Spark

logger = logging.getLogger(__name__)

#: columns of an event that every step has
EVENT = ("ingress_sequence", "source_timestamp", "tenant_id", "stream", "customer_ref", "occurred_at", "deleted")
#: what is wrong with it
FAULTS = ("objection", "time_fault", "message_stream", "time_value")
#: what a reused plan must not contain: its result would be that of the first time
_REMEMBERED = ("Exchange", "Subquery", "InMemory", "AdaptiveSparkPlan")


class Preparation:
    """The prepared events of ranges, for one set of definitions."""

    def __init__(
        self,
        spark: Spark,
        source: Source,
        slots: Slots,
        meters: MeterSteps,
        latest: LatestSteps,
        timing: Timing,
        projection: ProjectionSteps,
    ) -> None:
        self._spark = spark
        self._source = source
        self._timing = timing
        self._streams = list(slots.streams)
        rows = latest.prepared() if latest.latest else []
        columns = [*meters.prepared(), *timing.prepared(), *rows, *projection.prepared()]
        self._columns = ", ".join([*EVENT, f"{objection_sql(slots)} AS objection", *columns])
        self._decoded = timing.source()
        #: the plan for events after the cursor; None: not built yet, or rebuilt for every range
        self._kept: DataFrame | None = None
        self._keeps = True
        #: plans for large ranges by name, and what they were made for
        self._repeated: dict[str, tuple[object, Repeated | None]] = {}

    def small(self, lo: int, hi: int) -> pa.Table:
        """The events of a range that the driver folds. The cursor must be at `lo`, and committed there."""
        self._compile(False)
        plan = self._plan() if self._source.small(lo, hi) else None
        if plan is None:
            return self._prepared(self._source.driver_read(lo, hi)).toArrow()
        found = plan.toArrow()
        # It includes later events too.
        return found.filter(pc.less_equal(found["ingress_sequence"], hi)) if found.num_rows else found

    def large(self, lo: int, hi: int) -> DataFrame:
        """The events of a range that executors fold."""
        self._compile(True)
        return self._prepared(self._source.read(lo, hi))

    def repeated(self, name: str, steps: Callable[[DataFrame], DataFrame], given: object = None) -> Repeated | None:
        """Steps over the events of large ranges, planned once for what is `given`; None: they are planned for each."""
        self._compile(True)
        known = self._spark.parallelism, given
        if name not in self._repeated or self._repeated[name][0] != known:
            self._repeated[name] = known, self._planned(steps)
        return self._repeated[name][1]

    def _planned(self, steps: Callable[[DataFrame], DataFrame]) -> Repeated | None:
        scan = self._source.scan()
        plan = None if scan is None else steps(self._prepared(scan.events))
        return None if scan is None or plan is None or not _repeatable(plan) else scan.repeated(plan)

    def slices(self, lo: int, wanted: str, events: int, columns: Sequence[str]) -> pa.Table:
        """Columns of events before a range, as `Source.slices` reads them."""
        self._compile(events > SMALL_EVENTS)
        found = self._prepared(self._source.slices(lo, wanted, events), "corrected_by")
        return found.select(*columns, "corrected_by").toArrow()

    def _plan(self) -> DataFrame | None:
        if self._kept is None and self._keeps:
            following = self._source.following()
            plan = None if following is None else self._prepared(following)
            self._kept = plan if plan is not None and _repeatable(plan) else None
            self._keeps = self._kept is not None
        return self._kept

    def _prepared(self, events: DataFrame, *more: str) -> DataFrame:
        if len(self._streams) == 1:
            # A constant is not read, and conditions on it are decided before any row arrives.
            events = events.withColumn("stream", functions.lit(self._streams[0]))
        self._timing.parsed(events).createOrReplaceTempView("events")
        return self._spark.session.sql(f"SELECT {', '.join([*more, self._columns])} FROM ({self._decoded})")

    def _compile(self, wanted: bool) -> None:
        """Compiling a step costs more than it saves on few rows."""
        conf = self._spark.session.conf
        conf.set("spark.sql.codegen.wholeStage", str(wanted).lower())
        conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if wanted else "NO_CODEGEN")
        if wanted and grows_with_cluster(self._spark.settings):
            conf.set(SHUFFLE_PARTITIONS, str(self._spark.parallelism))


def _repeatable(plan: DataFrame) -> bool:
    """Whether executing the plan again reads again."""
    executed = plan._jdf.queryExecution().executedPlan().toString()
    found = [name for name in _REMEMBERED if name in executed]
    if found:
        logger.info("cannot reuse the plan of a range: it contains %s", ", ".join(found))
    return not found
