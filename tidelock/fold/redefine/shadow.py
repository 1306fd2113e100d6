"""The shadow: tables of changed definitions, built from sequence 1 alongside the live ones, until they take over.

It has its own schema and cursor, so it survives a crash, and any process can continue it. The rows that belong to a
plan are known by the scopes of its definitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tidelock.canonical import canonical_hash
from tidelock.columns import STRING
from tidelock.definitions import Definitions
from tidelock.errors import TidelockError
from tidelock.fold import statements
from tidelock.fold.corrections import IGNORED
from tidelock.fold.kernel.outcomes import Outcome
from tidelock.fold.kernel.takings import OUT_OF_RANGE
from tidelock.fold.rangefold import RangeFold
from tidelock.fold.ranges import Range, next_range
from tidelock.fold.source import RangeReader
from tidelock.fold.store import Log, Store
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark
from tidelock.tables import (
    ADJUSTMENTS,
    ALWAYS,
    CLOSED_METERS,
    COUNTER_GROUPS,
    COUNTERS,
    DISTINCT,
    ERROR_ROWS,
    LATE_ROWS,
    SCHEMA,
    WATERMARKS,
    Table,
)
from tidelock.where.sql import literal

#: codes of error rows of streams and windows; the others come from meters
_STREAM_CODES = ("invalid_column", "invalid_event_time", "future_event_time")
_WINDOW_CODES = (OUT_OF_RANGE, IGNORED)

#: kinds of definitions that contribute to shared tables
_MAKERS = {
    COUNTERS.name: ("meters",),
    COUNTER_GROUPS.name: ("meters",),
    ADJUSTMENTS.name: ("meters",),
    ERROR_ROWS.name: ("meters", "streams", "windows"),
    LATE_ROWS.name: ("windows", "streams"),
}

#: tables that all meters share, with rows of each
_OF_METERS = (COUNTERS, COUNTER_GROUPS, ADJUSTMENTS, CLOSED_METERS, DISTINCT)

#: number of the advisory lock under which shadows are created and dropped
_MAKING = int.from_bytes(b"tideshad")


class ShadowGone(TidelockError):
    """Another change of definitions has replaced the shadow, or this one has already taken over."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where tables are built alongside the live ones."""

    schema: str
    #: prefix of its cursors; pruning of changes does not wait for cursors of `fold:`
    cursors: str

    def drop(self) -> list[str]:
        """Statements that remove all of it."""
        prefix = literal(STRING, self.cursors)
        return [
            f"DROP SCHEMA IF EXISTS {statements.quoted(self.schema)} CASCADE",
            f"DELETE FROM cursors WHERE starts_with(name, {prefix})",
        ]


SHADOW = Place("tidelock_shadow", "fold:shadow:")
#: counters by definitions that a close names and the tables are not made by
STATED = Place("tidelock_stated", "fold:stated:")


@dataclass(frozen=True, slots=True)
class Plan:
    """A change of definitions."""

    definitions: Definitions
    #: paths of those whose rows are rebuilt or removed, with others that share keys of error rows with them
    units: tuple[str, ...]
    #: those among them that were requested, changed or not
    asked: tuple[str, ...] = ()
    #: what it changes, if it is a proposal
    before: Definitions | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "units", _with_namesakes(self.units, self.definitions))

    @property
    def name(self) -> str:
        """The name of its shadow."""
        return canonical_hash({"definitions": self.definitions.canonical(), "units": list(self.units)})[:16]

    def names(self, kind: str) -> list[str]:
        return [path.removeprefix(f"{kind}.") for path in self.units if path.startswith(f"{kind}.")]

    def subset(self) -> Definitions:
        """The definitions to fold for it."""
        meters = {name: m for name in self.names("meters") if (m := self.definitions.meters.get(name)) is not None}
        windows = {name: w for name in self.names("windows") if (w := self.definitions.windows.get(name)) is not None}
        own = set(self.names("streams"))
        read = {meter.stream for meter in meters.values()} | {window.stream for window in windows.values()}
        streams = {
            # A stream that is only read needs no ordered output.
            name: stream if name in own else replace(stream, ordered=False)
            for name, stream in self.definitions.streams.items()
            if name in own | read
        }
        return Definitions(streams, meters, windows, timed=self.definitions.timed)


class Shadow:
    """The shadow of one plan. An existing one is continued."""

    def __init__(
        self,
        spark: Spark,
        database: Database,
        plan: Plan,
        place: Place = SHADOW,
        elsewhere: RangeReader | None = None,
        log: Log | None = None,
    ) -> None:
        """`log`: where changes are recorded; if None, they are not."""
        self.plan = plan
        self.place = place
        self.store = Store(database, place.schema, f"{place.cursors}{plan.name}", log)
        try:
            self._range_fold = RangeFold(
                spark, self.store, database, plan.subset(), changes=log is not None, elsewhere=elsewhere
            )
            self.tables: Mapping[str, Table] = self._range_fold.tables
            #: everything up to here is in its tables
            self.position = self._prepare()
        except BaseException:
            self.store.close()
            raise

    def step(self, events_max: int, through: int | None = None) -> Range | None:
        """Fold one more range; None: there is nothing left to fold. Raises CursorMoved."""
        found = next_range(self.store, self.position, events_max, through) if self.plan.units else None
        if found is None:
            self.store.rollback()
            return None
        if found.control is None:
            self._range_fold.apply(found.lo, found.hi)
        else:
            self._range_fold.control(found)
        self.position = found.hi
        return found

    def stated(self, event: Range) -> Iterator[Outcome]:
        """What a close states of its meters, for the statements that are read. It must have come to that event."""
        return self._range_fold.stated(event, SCHEMA)

    def step_within(self, sequence: int) -> None:
        """Fold what a commit has through a sequence, which may lie amid it. Nothing can follow."""
        if self.position < sequence:
            self._range_fold.apply(self.position, sequence)
            self.position = sequence

    def pass_by(self, event: Range) -> None:
        """Fold the control event at which it takes over: windows by arrival may end there. Raises CursorMoved."""
        if self.plan.units and self.position == event.lo:
            self._range_fold.control(event)
            self.position = event.hi

    def complete(self, through: int) -> bool:
        """Whether it has everything through a sequence, and nothing after it."""
        return self.position == through or not self.plan.units

    def look_again(self) -> None:
        """Its position, after another process has worked on it. Raises ShadowGone."""
        found = self._cursor()
        self.store.rollback()
        if found is None:
            raise ShadowGone("another change of definitions replaced this one; start it again")
        self.position = found

    def begin_anew(self) -> None:
        """Drop what was built."""
        self.position = self._prepare(anew=True)

    def close(self) -> None:
        self._range_fold.close()
        self.store.close()

    def _prepare(self, *, anew: bool = False) -> int:
        """Create the tables, unless a shadow of this plan exists; returns their position."""
        self.store.execute(f"SELECT pg_advisory_xact_lock({_MAKING})")
        position = None if anew else self._cursor()
        if position is None or not self._fits():
            position = None
            for statement in self.place.drop():
                self.store.execute(statement)
            self.store.execute(f"CREATE SCHEMA {statements.quoted(self.place.schema)}")
            for table in self.tables.values():
                self.store.execute(self._creation(table))
                for statement in statements.create_indexes(self.place.schema, table):
                    self.store.execute(statement)
            name = literal(STRING, self.store.cursor)
            self.store.execute(f"INSERT INTO cursors (name, sequence) VALUES ({name}, 0)")
        self.store.commit()
        return position or 0

    def _creation(self, table: Table) -> str:
        if table.name not in ALWAYS:
            return statements.create_table(self.place.schema, table)
        target, like = (statements.placed(schema, table.name) for schema in (self.place.schema, SCHEMA))
        return f"CREATE TABLE {target} (LIKE {like} INCLUDING ALL)"

    def _fits(self) -> bool:
        """Whether an existing shadow has the tables of this version: one that was begun before an upgrade may not."""
        main, own = literal(STRING, SCHEMA), literal(STRING, self.place.schema)
        names = ", ".join(literal(STRING, name) for name in ALWAYS)
        missing = self.store.query(
            f"""
            SELECT FROM information_schema.columns AS main
            WHERE main.table_schema = {main} AND main.table_name IN ({names}) AND NOT EXISTS (
                SELECT FROM information_schema.columns AS own
                WHERE own.table_schema = {own} AND own.table_name = main.table_name
                    AND own.column_name = main.column_name AND own.is_nullable = main.is_nullable
            )"""
        )
        return not missing.num_rows

    def _cursor(self) -> int | None:
        name = literal(STRING, self.store.cursor)
        found = self.store.query(f"SELECT sequence FROM cursors WHERE name = {name}")
        return int(found["sequence"][0].as_py()) if found.num_rows else None


def _with_namesakes(units: Sequence[str], definitions: Definitions) -> tuple[str, ...]:
    """Units, with those that have error rows by the same keys.

    An event has one error row of a name: a stream's goes before a meter's, and these before a window's. So where one of
    a name changes, another's row may have to appear or to give way, which only folding both again can tell.
    """
    found = set(units)
    for name, window in definitions.windows.items():
        # What a meter of that name counted before is not known here. A stream's columns are part of the hashes of its
        # windows; when its events' times are wrong is not, where a window goes by arrival.
        stream = window.stream == name and f"streams.{name}" in found
        if stream or f"meters.{name}" in found:
            found.add(f"windows.{name}")
    for name, meter in definitions.meters.items():
        namesake = definitions.windows.get(name)
        if f"windows.{name}" in found and namesake is not None and namesake.stream == meter.stream:
            found.add(f"meters.{name}")
    for path in (f"streams.{name}" for name, declared in definitions.streams.items() if declared.ordered):
        # Its ordered output has error rows of corrections.
        counting = f"meters.{path.partition('.')[2]}_ordered"
        if counting in found:
            found.add(path)
        elif path in found and counting.partition(".")[2] in definitions.meters:
            found.add(counting)
    return tuple(sorted(found))


def scopes(plan: Plan, tables: Mapping[str, Table]) -> list[tuple[Table, str]]:
    """The tables with rows of a plan's units, each with the condition that selects these rows."""
    meters, streams, windows = plan.names("meters"), plan.names("streams"), plan.names("windows")
    # A window may have the name of a stream's ordered output, if that stream has none.
    ordered = [name for stream in streams if _is_ordered(tables.get(name := f"{stream}_ordered"))]
    own = [table for name in (*windows, *ordered) for table in (name, f"{name}$open", f"{name}$held")]
    codes, of_windows = _either("code", _STREAM_CODES), _either("code", _WINDOW_CODES)
    of_meters = f"{_either('source', meters)} AND NOT {codes} AND NOT {of_windows}"
    of_windows = f"{_either('source', [*windows, *ordered])} AND {of_windows}"
    of_streams = f"{_either('source', streams)} AND {codes}"
    return [
        *((table, _either("metric", meters)) for table in _OF_METERS),
        (ERROR_ROWS, f"({of_meters} OR {of_streams} OR {of_windows})"),
        *((table, _either('"window"', [*windows, *ordered])) for table in (LATE_ROWS, WATERMARKS)),
        *((tables[name], "TRUE") for name in (*streams, *own) if name in tables),
    ]


def makes(path: str, table: str) -> bool:
    """Whether a definition has rows in a table, if it exists."""
    kind, _, name = path.partition(".")
    if table in _MAKERS:
        return kind in _MAKERS[table]
    return (kind == "windows" and table == name) or (kind == "streams" and table in (name, f"{name}_ordered"))


def _is_ordered(table: Table | None) -> bool:
    return table is not None and table.key == ("ingress_sequence",)


def _either(column: str, names: Sequence[str]) -> str:
    return f"{column} IN ({', '.join(literal(STRING, name) for name in names)})" if names else "FALSE"
