"""The source: a range of the ledger as a DataFrame, read through the driver if it is small, else by tasks of Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from tidelock.columns import STRING
from tidelock.fold.ranges import extent
from tidelock.fold.store import Store
from tidelock.fold.streams import QUANTITY_TEXT, Slots
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load
from tidelock.spark.configuration import jdbc_options
from tidelock.spark.runtime import Spark
from tidelock.where.sql import literal

_QUERIES = load("tidelock.fold", "sql/corrections.sql")

#: ranges up to this many events are read by the driver: a job that connects and partitions costs more than that
SMALL_EVENTS = 10_000
_FETCH_ROWS = 10_000
#: a range is read by this many tasks at most that each go through all of it
_SCANS_MAX = 4
_POSITIVE = 2**31 - 1
_QUANTITY = pa.decimal128(38, 9)
#: of a range that does not come from Postgres, as Spark SQL
_DERIVED = ("op = 'delete' AS deleted", f"CAST(quantity AS STRING) AS {QUANTITY_TEXT}")

#: reads a range with the columns that slots need from another place, such as a lake; None: that does not have it
RangeReader: TypeAlias = Callable[[Slots, int, int], DataFrame | None]


class Scan:
    """The ledger as tasks of Spark read it, a condition for each task: a plan made of it once reads any range.

    Spark may take longer to plan a step than to execute it, and Java compiles the planner for minutes. A scan keeps its
    conditions in an array that Spark looks at whenever the plan is executed, and that is where they are replaced.
    """

    def __init__(self, events: DataFrame) -> None:
        self.events = events
        self._conditions = events._jdf.queryExecution().analyzed().relation().parts()
        jvm = events.sparkSession._jvm
        assert jvm is not None
        self._sql = jvm.org.apache.spark.sql.execution.datasources.jdbc

    def repeated(self, steps: DataFrame) -> Repeated | None:
        """These steps over its events; None: what Spark would execute cannot be seen."""
        try:
            found = Repeated(self, steps)
            found.aim(["1 = 0"] * len(self._conditions))
        except (Py4JError, WrongAim):
            return None
        return found

    def aim(self, conditions: Sequence[str]) -> None:
        for number, condition in enumerate(conditions):
            self._conditions[number] = self._sql.JDBCPartition(condition, number)


class WrongAim(Exception):
    """Spark's plan does not look at what it was given: a bug, found before anything was read."""


class Repeated:
    """Steps over a scan that are planned once. Only one thread may use it at a time."""

    def __init__(self, scan: Scan, steps: DataFrame) -> None:
        self._scan = scan
        self._steps = steps
        self._executed = steps._jdf.queryExecution().executedPlan().execute()

    def aim(self, conditions: Sequence[str]) -> None:
        """Choose the events of the next execution, for each of its tasks. An older range is never read again."""
        self._scan.aim(conditions)
        aimed = [part.whereClause() for part in self._executed.partitions()]
        if aimed != list(conditions):
            raise WrongAim(f"Spark would read {aimed} instead of {conditions}")

    def read(self, conditions: Sequence[str]) -> pa.Table:
        self.aim(conditions)
        return self._steps.toArrow()


class Source:
    """Ranges of one ledger, for definitions that need these slots."""

    def __init__(
        self,
        spark: Spark,
        store: Store,
        database: Database,
        slots: Slots,
        *,
        small_events: int,
        elsewhere: RangeReader | None = None,
    ) -> None:
        self._spark = spark
        self._store = store
        self._slots = slots
        self._elsewhere = elsewhere
        self._select = slots.postgres_sql()
        self._small_events = small_events
        #: the last range that Postgres was asked about, and what it said
        self._known: tuple[tuple[int, int], tuple[int, int]] | None = None
        self._jdbc = jdbc_options(database.url) if spark.jdbc else None

    def small(self, lo: int, hi: int) -> bool:
        """Whether the driver reads the range. It then has one partition, and no step needs an exchange."""
        return self._jdbc is None or hi - lo <= self._small_events or self._extent(lo, hi)[1] <= self._small_events

    def scan(self) -> Scan | None:
        """The ledger for as many tasks as run at a time; None where Java cannot read it, it is read elsewhere, or this
        Spark keeps no conditions."""
        if self._jdbc is None or self._elsewhere is not None:
            return None
        options = dict(self._jdbc)
        reader = self._spark.session.read.options(fetchsize=str(_FETCH_ROWS))
        nothing = ["1 = 0"] * self._spark.parallelism
        url = options.pop("url")
        events = reader.jdbc(url, f"({self._select}) AS ledger", predicates=nothing, properties=options)
        try:
            return Scan(events)
        except Py4JError:
            return None

    def by_sequence(self, lo: int, hi: int) -> list[str]:
        """What a scan's tasks read of a range: each about as many sequences."""
        first, count = self._extent(lo, hi)[0] - 1, self._spark.parallelism
        ends = [first + (hi - first) * number // count for number in range(count + 1)]
        return [_between(*each) for each in pairwise(ends)]

    def by_customer(self, lo: int, hi: int, part: int = 0, parts: int = 1) -> list[str] | None:
        """What they read of a part of a range with all events of a customer in one task; None where that has to be
        Spark's work.

        Every task goes through the whole range in Postgres. With few of them that is cheaper than moving rows between
        tasks.
        """
        count = self._spark.parallelism
        if count > _SCANS_MAX:
            return None
        customer = f"coalesce((hashtextextended(customer_ref, 0) & {_POSITIVE}) % {count * parts}, 0)"
        return [f"{_between(lo, hi)} AND {customer} = {number}" for number in range(part * count, (part + 1) * count)]

    def read(self, lo: int, hi: int) -> DataFrame:
        if self.small(lo, hi):
            return self.driver_read(lo, hi)
        found = self._elsewhere(self._slots, lo, hi) if self._elsewhere is not None else None
        return self._executor_read(lo, hi) if found is None else found.selectExpr("*", *_DERIVED)

    def slices(self, lo: int, wanted: str, events: int) -> DataFrame:
        """The events through `lo` of some customers that may be counted, with `corrected_by`.

        `wanted`: their tenants, streams and customers, and from and until when, as rows of SQL; `events`: about how
        many there are."""
        ledger = _QUERIES.text("slices").format(lo=lo, wanted=wanted)
        sql = self._slots.postgres_sql(f"({ledger}) AS events", ("corrected_by",))
        if self._jdbc is None or events <= self._small_events:
            return self._query(f"{sql} ORDER BY ingress_sequence")
        return self._partitioned(sql, 0, lo, min(self._spark.parallelism, _SCANS_MAX))

    def slice_sizes(self, wanted: str) -> list[int]:
        """About how many events each of the slices has."""
        found = self._store.query(_QUERIES.text("slice_sizes").format(wanted=wanted))
        sizes: list[int] = found["events"].to_pylist()
        return sizes

    def following(self) -> DataFrame | None:
        """What comes after the cursor, as many events as a small range has at most, read again at every execution;
        None where Java cannot read the ledger."""
        if self._jdbc is None:
            return None
        cursor = f"(SELECT sequence FROM cursors WHERE name = {literal(STRING, self._store.cursor)})"
        found = f"{self._select} AND ingress_sequence > {cursor} ORDER BY ingress_sequence LIMIT {self._small_events}"
        reader = self._spark.session.read.format("jdbc").options(**self._jdbc)
        return reader.options(dbtable=f"({found}) AS following", fetchsize=str(_FETCH_ROWS)).load()

    def driver_read(self, lo: int, hi: int) -> DataFrame:
        return self._query(f"SELECT * FROM ({self._bounded(lo, hi)}) AS range ORDER BY ingress_sequence")

    def _query(self, sql: str) -> DataFrame:
        found = self._store.query(sql)
        numbers = pc.cast(found["quantity"].cast(pa.string()), _QUANTITY)
        found = found.set_column(found.column_names.index("quantity"), "quantity", numbers)
        return single_partition(self._spark.session, found)

    def _executor_read(self, lo: int, hi: int) -> DataFrame:
        # Numbers may be left out; before the first event they would only make a partition without any.
        first, events = self._extent(lo, hi)
        return self._partitioned(self._bounded(lo, hi), first, hi, max(1, min(self._spark.parallelism, events)))

    def _partitioned(self, sql: str, first: int, last: int, parts: int) -> DataFrame:
        """The result of a query, read by tasks of Spark, each some sequences."""
        assert self._jdbc is not None
        reader = self._spark.session.read.format("jdbc").options(**self._jdbc)
        return reader.options(
            dbtable=f"({sql}) AS range",
            partitionColumn="ingress_sequence",
            lowerBound=str(first),
            upperBound=str(last + 1),
            numPartitions=str(parts),
            fetchsize=str(_FETCH_ROWS),
        ).load()

    def _extent(self, lo: int, hi: int) -> tuple[int, int]:
        if self._known is None or self._known[0] != (lo, hi):
            self._known = (lo, hi), extent(self._store, lo, hi)
        return self._known[1]

    def _bounded(self, lo: int, hi: int) -> str:
        return f"{self._select} AND {_between(lo, hi)}"


def _between(lo: int, hi: int) -> str:
    return f"ingress_sequence > {lo} AND ingress_sequence <= {hi}"


def single_partition(session: SparkSession, rows: pa.Table) -> DataFrame:
    return session.createDataFrame(rows).coalesce(1)
