"""The shadow: tables of changed definitions, built from sequence 1 beside those that are read, until they take over.

It lives in a schema of its own with a cursor of its own, so it survives a crash, and any process may go on with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tidelock.canonical import canonical_hash
from tidelock.columns import STRING
from tidelock.definitions import Definitions
from tidelock.errors import TidelockError
from tidelock.fold import statements
from tidelock.fold.folder import Folder
from tidelock.fold.ranges import Range, next_range
from tidelock.fold.source import Elsewhere
from tidelock.fold.store import Log, Store
from tidelock.fold.tables import ALWAYS, SCHEMA, Table
from tidelock.ledger.database import Database
from tidelock.spark.runtime import Spark
from tidelock.where.sql import literal

#: number of the advisory lock under which shadows are made and given up
_MAKING = int.from_bytes(b"tideshad")


class ShadowGone(TidelockError):
    """Another change of definitions was begun and took the shadow's place, or this one has taken over already."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where tables are built beside those that are read."""

    schema: str
    #: how the names of its cursors begin; no reader of changes waits for cursors of `fold:`
    cursors: str

    def drop(self) -> list[str]:
        """Statements that leave nothing of it."""
        prefix = literal(STRING, self.cursors)
        return [
            f"DROP SCHEMA IF EXISTS {statements.quoted(self.schema)} CASCADE",
            f"DELETE FROM cursors WHERE starts_with(name, {prefix})",
        ]


SHADOW = Place("tidelock_shadow", "fold:shadow:")


@dataclass(frozen=True, slots=True)
class Plan:
    """A change of definitions."""

    definitions: Definitions
    #: paths of those whose rows are made anew or removed
    units: tuple[str, ...]
    #: those among them that somebody asked for, changed or not
    asked: tuple[str, ...] = ()
    #: what it changes, where somebody proposes it
    before: Definitions | None = None

    @property
    def name(self) -> str:
        """Names the shadow that is built for it."""
        return canonical_hash({"definitions": self.definitions.canonical(), "units": list(self.units)})[:16]

    def names(self, kind: str) -> list[str]:
        return [path.removeprefix(f"{kind}.") for path in self.units if path.startswith(f"{kind}.")]

    def subset(self) -> Definitions:
        """What has to be folded for it."""
        meters = {name: m for name in self.names("meters") if (m := self.definitions.meters.get(name)) is not None}
        windows = {name: w for name in self.names("windows") if (w := self.definitions.windows.get(name)) is not None}
        own = set(self.names("streams"))
        read = {meter.stream for meter in meters.values()} | {window.stream for window in windows.values()}
        streams = {
            # One that is only read needs no ordered output.
            name: stream if name in own else replace(stream, ordered=False)
            for name, stream in self.definitions.streams.items()
            if name in own | read
        }
        return Definitions(streams, meters, windows, timed=self.definitions.timed)


class Shadow:
    """The shadow of one plan. One that is there already is gone on with."""

    def __init__(
        self,
        spark: Spark,
        database: Database,
        plan: Plan,
        place: Place = SHADOW,
        elsewhere: Elsewhere | None = None,
        log: Log | None = None,
    ) -> None:
        """`log`: where changes are recorded; without one they are not."""
        self.plan = plan
        self.place = place
        self.store = Store(database, place.schema, f"{place.cursors}{plan.name}", log)
        try:
            self._folder = Folder(
                spark, self.store, database, plan.subset(), changes=log is not None, elsewhere=elsewhere
            )
            self.tables: Mapping[str, Table] = self._folder.tables
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
            self._folder.fold(found.lo, found.hi)
        else:
            self._folder.control(found)
        self.position = found.hi
        return found

    def pass_by(self, event: Range) -> None:
        """Fold the control event that it is to take over at: windows by arrival may end there. Raises CursorMoved."""
        if self.plan.units and self.position == event.lo:
            self._folder.control(event)
            self.position = event.hi

    def complete(self, through: int) -> bool:
        """Whether it has everything through a sequence, and nothing after it."""
        return self.position == through or not self.plan.units

    def look_again(self) -> None:
        """Where it is, after another process has worked on it. Raises ShadowGone."""
        found = self._cursor()
        self.store.rollback()
        if found is None:
            raise ShadowGone("another change of the definitions has taken the place of this one; start it again")
        self.position = found

    def begin_anew(self) -> None:
        """Give up what was built."""
        self.position = self._prepare(anew=True)

    def close(self) -> None:
        self.store.close()

    def _prepare(self, *, anew: bool = False) -> int:
        """Make the tables, unless a shadow of this very plan is there already; says how far they are."""
        self.store.execute(f"SELECT pg_advisory_xact_lock({_MAKING})")
        position = None if anew else self._cursor()
        if position is None:
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

    def _cursor(self) -> int | None:
        name = literal(STRING, self.store.cursor)
        found = self.store.query(f"SELECT sequence FROM cursors WHERE name = {name}")
        return int(found["sequence"][0].as_py()) if found.num_rows else None
