"""Short ways to fold ledgers of the reference model's events, and to compare what the fold and the model have made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from tests.ledgers import write_ledger
from tests.model import Event, State
from tests.model.values import decimal_text
from tidelock.changes.segments import decode
from tidelock.definitions import parse_definitions
from tidelock.fold import statements
from tidelock.fold.rangefold import RangeFold
from tidelock.fold.ranges import ledger_end, next_range
from tidelock.fold.source import SMALL_EVENTS
from tidelock.fold.store import Store
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark
from tidelock.tables import ALWAYS, KEY, SCHEMA, WATERMARKS, Table

#: definitions in the shape of tidelock.toml
Toml = Mapping[str, Mapping[str, Any]]
#: above, through
Range = tuple[int, int]
_PROGRESS = (
    "watermark",
    "closed_through",
    "buffer_size",
    "late_dropped_count",
    "watermark_emitted_count",
    "max_timestamp_seen",
    "last_row_at",
    "released",
)
#: what a row is: table, tenant, key
Place = tuple[str, str, str]


@dataclass(frozen=True)
class Picture:
    """Tables, source timestamps and changes, every value as a text."""

    #: row -> source timestamp and columns
    rows: Mapping[Place, tuple[int, Mapping[str, str]]]
    #: source timestamp, row, old and new columns; in order
    changes: Sequence[tuple[int, Place, Mapping[str, str] | None, Mapping[str, str] | None]]
    #: (window, tenant) -> watermark and what is counted, and how the watermark of ordered output rose
    progress: Mapping[tuple[str, str], Sequence[object]] = field(default_factory=dict)
    #: everything that is stored, state too, as Postgres writes it; the model has none of it
    stored: Sequence[str] = ()


class Folding:
    """The tables of some definitions in one database, folded through `RangeFold`."""

    def __init__(
        self, spark: Spark, database: Database, toml: Toml, *, small_events: int = SMALL_EVENTS, **options: Any
    ) -> None:
        """`options`: how large ranges are folded, as `RangeFold` takes them."""
        self.database = database
        self.store = Store(database, SCHEMA, "fold")
        self._spark = spark
        self._definitions = parse_definitions(toml)
        self._folders: dict[tuple[object, ...], RangeFold] = {}
        self.range_fold = self.reader(small_events, **options)
        for table in self._own_tables():
            self.store.execute(f"DROP TABLE IF EXISTS {statements.placed(SCHEMA, table.name)}")
            for statement in (statements.create_table(SCHEMA, table), *statements.create_indexes(SCHEMA, table)):
                self.store.execute(statement)
        for name in ALWAYS:
            self.store.execute(f"TRUNCATE {statements.placed(SCHEMA, name)}")
        self.store.execute("TRUNCATE changes")
        self.store.execute("DELETE FROM cursors WHERE name = 'fold'")
        self.store.position()

    def __enter__(self) -> Folding:
        return self

    def __exit__(self, *_: object) -> None:
        for range_fold in self._folders.values():
            range_fold.close()
        self.store.close()

    def reader(self, small_events: int, **options: Any) -> RangeFold:
        """A fold of ranges that takes those of more events as large ones."""
        known = (small_events, *options.items())
        if known not in self._folders:
            self._folders[known] = RangeFold(
                self._spark, self.store, self.database, self._definitions, small_events=small_events, **options
            )
        return self._folders[known]

    def fold(self, ranges: Iterable[Range]) -> Picture:
        self.advance(ranges)
        return self.picture()

    def advance(self, ranges: Iterable[Range]) -> None:
        for lo, hi in ranges:
            found = next_range(self.store, lo, hi - lo, hi)
            if found is not None and found.control is not None:
                self.range_fold.control(found)
                # The others have read what is closed, and no fold has another beside it.
                self._folders = {known: fold for known, fold in self._folders.items() if fold is self.range_fold}
            else:
                self.range_fold.apply(lo, hi)

    def catch_up(self, events_max: int = SMALL_EVENTS) -> None:
        """Fold everything that is recorded, in ranges of at most so many events."""
        position, end = self.store.position(), ledger_end(self.store)
        while position < end:
            found = next_range(self.store, position, events_max)
            assert found is not None
            self.store.rollback()
            if found.control is None:
                self.range_fold.apply(found.lo, found.hi)
            else:
                self.range_fold.control(found)
            position = found.hi

    def picture(self) -> Picture:
        return pictured(self.database, self.range_fold.tables)

    def _own_tables(self) -> list[Table]:
        return [table for name, table in self.range_fold.tables.items() if name not in ALWAYS]


def folded(spark: Spark, database: Database, events: Sequence[Event], toml: Toml) -> Picture:
    """A small ledger, written and folded in two ranges: the second has to go on from what is stored."""
    ends = write_ledger(database, events)
    middle, last = ends[len(ends) // 2 - 1], ends[-1]
    with Folding(spark, database, toml) as folding:
        return folding.fold([(0, middle), (middle, last)] if len(ends) > 1 else [(0, last)])


def pictured(database: Database, tables: Mapping[str, Table]) -> Picture:
    """What lies in Postgres."""
    rows: dict[Place, tuple[int, Mapping[str, str]]] = {}
    stored: list[str] = []
    changes: list[Any] = []
    with database.connect_sync() as connection:
        for name, table in tables.items():
            shown = ", ".join(f'"{c}"' + ("::text" if t.name == "json" else "") for c, t in table.columns.items())
            place = statements.placed(SCHEMA, name)
            found = connection.execute(f'SELECT tenant_id, "{KEY}", source_timestamp, {shown} FROM {place}'.encode())
            for tenant, key, time, *values in found if not table.internal else ():
                rows[name, tenant, key] = (time, _texts(dict(zip(table.columns, values, strict=True))))
            everything = connection.execute(f'SELECT t::text FROM {place} AS t ORDER BY tenant_id, "{KEY}"'.encode())
            stored += [f"{name} {text}" for (text,) in everything]
        query = "SELECT table_name, segment FROM changes ORDER BY last_sequence, table_name, lane, part"
        raises: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for name, segment in connection.execute(query):
            part = [
                (row["source_timestamp"], (name, row["tenant_id"], row["key"]), _row(row["old"]), _row(row["new"]))
                for row in decode(segment).to_pylist()
            ]
            assert part == sorted(part, key=_order), "a segment is in order"
            if name == WATERMARKS.name:
                # How far ordered output has come is told beside it, to those who follow it.
                for row in decode(segment).to_pylist():
                    raised = raises.setdefault((row["new"]["window"], row["tenant_id"]), [])
                    raised.append((row["source_timestamp"], row["new"]["watermark"]))
            else:
                changes += part
        names = ", ".join(_PROGRESS)
        found = connection.execute(f'SELECT "window", tenant_id, {names} FROM {SCHEMA}.watermarks'.encode())
        progress = {(row[0], row[1]): (*row[2:], sorted(raises.get((row[0], row[1]), []))) for row in found}
    return Picture(rows, sorted(changes, key=_order), progress, stored)


def expected(state: State, toml: Toml | None = None) -> Picture:
    """What the model says; of how far time has come, where the definitions are given."""
    rows = {
        (name, tenant, key): (state.source_timestamps[name][tenant, key], _texts(row))
        for name, table in state.tables.items()
        for (tenant, key), row in table.items()
    }
    changes = [(c.source_timestamp, (c.table, c.tenant_id, c.key), _row(c.old), _row(c.new)) for c in state.changes]
    return Picture(rows, changes, {} if toml is None else _progress(state, toml))


def _progress(state: State, toml: Toml) -> dict[tuple[str, str], Sequence[object]]:
    """Windows by arrival have no watermark of their own, and only ordered output tells how its own rose."""
    by_arrival = {n for n, w in toml.get("windows", {}).items() if not w.get("eventtime", {}).get("enabled")}
    told = {f"{name}_ordered" for name, stream in toml.get("streams", {}).items() if stream.get("live", True)}
    return {
        place: (
            *(None if n == "watermark" and place[0] in by_arrival else getattr(metrics, n) for n in _PROGRESS),
            state.raises[place] if place[0] in told else [],
        )
        for place, metrics in state.metrics.items()
    }


def differences(found: Picture, wanted: Picture) -> dict[str, str]:
    """The first difference of every tenant that has one."""
    different: dict[str, str] = {}
    places = dict.fromkeys([*found.rows, *wanted.rows])
    pairs: list[tuple[Place, Any, Any]] = [(p, found.rows.get(p), wanted.rows.get(p)) for p in places]
    mine, theirs = ({(c[0], c[1]): c for c in picture.changes} for picture in (found, wanted))
    pairs += [(at[1], mine.get(at), theirs.get(at)) for at in dict.fromkeys([*mine, *theirs])]
    if wanted.progress:
        windows = dict.fromkeys([*found.progress, *wanted.progress])
        pairs += [
            (("progress of", tenant, name), found.progress.get((name, tenant)), wanted.progress.get((name, tenant)))
            for name, tenant in windows
        ]
    for place, own, other in pairs:
        if own != other:
            different.setdefault(place[1], f"{place}\n  found  {own}\n  wanted {other}")
    if not different:
        assert list(found.changes) == list(wanted.changes), "the same changes, in another order or doubled"
    return different


def _order(change: Any) -> tuple[int, str, str, str]:
    time, (table, tenant, key), *_ = change
    return time, table, key, tenant


def _row(row: Mapping[str, Any] | None) -> Mapping[str, str] | None:
    return None if row is None else _texts(row)


def _texts(row: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"{decimal_text(v)} decimal" if isinstance(v, Decimal) else repr(v) for name, v in row.items()}
