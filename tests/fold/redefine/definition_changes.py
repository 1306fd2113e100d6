"""Short ways to change definitions under a ledger, and what the reference model says that comes of it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from decimal import Decimal
from itertools import groupby
from typing import Any

import pytest

from tests.fold.folding import Picture, expected, pictured
from tests.ledgers import read_ledger
from tests.model import Change, Event, State, apply
from tests.model.samples import at, recorded
from tests.model.triggers import Triggers, said_by
from tests.recording import record, sequencing
from tests.running import POLL_S
from tidelock.definitions import parse_definitions
from tidelock.fold.ranges import ledger_end
from tidelock.fold.redefine.catalog import Catalog, read_catalog
from tidelock.fold.runner import CURSOR, Control, Runner
from tidelock.fold.store import Store
from tidelock.model import CONTROL
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark
from tidelock.tables import SCHEMA, tables_of

Toml = Mapping[str, Mapping[str, Any]]
#: what calculated columns compute, by their texts: Spark's SQL is not the model's to evaluate
Formulas = Mapping[str, Callable[[Mapping[str, Any]], object]]

FORMULAS: Formulas = {"n * 2": lambda row: None if row["n"] is None else row["n"] * 2,
            "n + 1": lambda row: None if row["n"] is None else row["n"] + 1}  # fmt: skip
BASE: dict[str, dict[str, Any]] = {
    "streams": {
        "things": {"key": "resource_id"},
        "typed": {
            "key": "n",
            "columns": {"n": "bigint", "region": "string"},
            "calculated": {"twice": "n * 2"},
        },
    },
    "meters": {
        "calls": {"aggregation": "sum", "period": "day", "lateness": "1h", "group_by": "data.region"},
        "typed_max": {"stream": "typed", "aggregation": "max", "value": "n", "lateness": "0s"},
    },
}


def ledger() -> list[Event]:
    """Collections with late events, deletes, errors of streams and of meters, and two tenants."""

    def call(quantity: str | None, time: str, **more: Any) -> Mapping[str, Any]:
        number = None if quantity is None else Decimal(quantity)
        return {"stream": "calls", "quantity": number, "occurred_at": at(time), "data": {"region": "eu"}, **more}

    def typed(n: Any, region: str = "eu", **more: Any) -> Mapping[str, Any]:
        return {"stream": "typed", "data": {"n": n, "region": region, "price": f"{n}.5"}, **more}

    return recorded(
        [call("1", "10:00:00"), call("2.5", "12:00:00"), call("9", "09:00:00")],
        [call("4", "08:00:00", tenant_id="other"), typed(1), {"stream": "things", "resource_id": "r", "quantity": 1}],
        [typed(2, "us"), typed("x"), call(None, "13:00:00"), call("1", "13:00:00", customer_ref=None)],
        [typed(1, "us"), {"stream": "things", "resource_id": "s"}, call("1", "13:30:00", data={"region": "us"})],
        [{"stream": "things", "resource_id": "r", "op": "delete"}, typed(3, occurred_at=at("2026-03-09"))],
    )  # fmt: skip


def changed(before: dict[str, dict[str, Any]] = BASE, **paths: Any) -> dict[str, dict[str, Any]]:
    """The definitions with `kind__name` replaced; None: removed."""
    toml = deepcopy(before)
    for path, definition in paths.items():
        kind, name = path.split("__")
        if definition is None:
            del toml[kind][name]
        else:
            toml[kind][name] = {**toml[kind].get(name, {}), **definition}
    return toml


def control(database: Database) -> Control:
    async def written(data: Mapping[str, Any]) -> int:
        async with sequencing(database) as sequencer:
            return (await sequencer.control(data)).ingress_sequence

    return lambda data: asyncio.run(written(data))


def send(database: Database, *events: Mapping[str, Any]) -> None:
    """Record one request."""

    async def sent() -> None:
        async with sequencing(database) as sequencer:
            await record(sequencer, *events)

    asyncio.run(sent())


def runner(
    spark: Spark,
    database: Database,
    toml: Toml,
    *,
    rebuild: bool = True,
    control: Control | None = None,
    tell: Callable[[str], None] = print,
    range_events_max: int = 1_000_000,
) -> Runner:
    made = Runner(
        spark,
        database,
        parse_definitions(toml),
        range_events_max=range_events_max,
        rebuild=rebuild,
        control=control or globals()["control"](database),
        tidy=lambda _: None,
        tell=tell,
        poll_s=POLL_S,
    )
    # The session is warm after the first of them, and these ledgers are small.
    made._warm = True
    return made


def fold_all(spark: Spark, database: Database, toml: Toml, **options: Any) -> None:
    """Fold through the present end."""
    with closing(Store(database, SCHEMA, CURSOR)) as store:
        end = ledger_end(store)
    runner(spark, database, toml, **options).run(threading.Event(), through=end)


def change(
    spark: Spark, database: Database, toml: Toml, *, times: int = 1, told: list[str] | None = None, **options: Any
) -> list[str]:
    """Run a fold with these definitions until it has swapped tables; what it told, there as it is told."""
    told = [] if told is None else told
    stop = threading.Event()

    def tell(text: str) -> None:
        told.append(text)
        if sum("were swapped" in each for each in told) == times:
            stop.set()

    timer = threading.Timer(120, stop.set)
    timer.start()
    runner(spark, database, toml, tell=tell, **options).run(stop)
    timer.cancel()
    assert any("were swapped" in text for text in told), told
    return told


def lend(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands in this process have the session of the tests: another JVM would tell nothing more."""

    class Borrowed:
        def __init__(self, *_: object) -> None: ...

        def __enter__(self) -> Spark:
            return spark

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr("tidelock.spark.runtime.Spark", Borrowed)
    # Handlers of signals would stay.
    monkeypatch.setattr("tidelock.cli.meters.stop_on_signals", threading.Event)
    monkeypatch.setattr("tidelock.cli.fold.stop_on_signals", threading.Event)


def catalog(database: Database) -> Catalog:
    with closing(Store(database, SCHEMA, CURSOR)) as store:
        found = read_catalog(store)
    assert found is not None
    return found


def picture(database: Database) -> Picture:
    return pictured(database, catalog(database).tables)


def control_events(database: Database) -> list[Event]:
    return [event for event in read_ledger(database) if event.stream == CONTROL]


def leftovers(database: Database) -> list[str]:
    """Schemas and cursors that should not be there when nothing is under way."""
    with database.connect_sync() as connection:
        rows = connection.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'tidelock%' AND nspname <> 'tidelock_tables' "
            "UNION ALL SELECT name FROM cursors WHERE name <> 'fold'"
        )
        return [name for (name,) in rows]


def modelled(
    database: Database, first: Toml, formulas: Formulas | None = None, triggers: Triggers | None = None
) -> Picture:
    """What the ledger gives: by the first definitions, and from each definition event on by those it brings.

    `triggers` are shown all changes, and know in the end what they must have told.
    """
    toml, state, triggers = first, State(), triggers or Triggers()
    passed: list[list[Event]] = []
    for _, group in groupby(read_ledger(database), key=lambda event: event.source_timestamp):
        collection, known = list(group), len(state.changes)
        time = collection[0].source_timestamp
        if collection[0].stream == CONTROL:
            data = json.loads(collection[0].data or "{}")
            if data["type"] == "definition":
                after = _plain(data["definitions"])
                # The event is one of the ledger, too: windows by arrival may end there.
                everything = [*passed, collection]
                state = _changed(state, everything, toml, after, time=time, formulas=formulas or {})
                triggers.pass_by(time, state.changes[known:], None, state)
                toml, passed = after, everything
                continue
        apply(state, collection, toml, _calculated(toml, formulas or {}))
        triggers.pass_by(time, state.changes[known:], said_by(collection), state)
        passed.append(collection)
    return expected(state)


def _changed(
    old: State, passed: Sequence[list[Event]], before: Toml, after: Toml, time: int, formulas: Formulas
) -> State:
    """The state by the new definitions, with the difference as changes of this time."""
    new = State()
    for collection in passed:
        apply(new, collection, after, _calculated(after, formulas))
    # What was stated stays, whatever the new definitions would have stated.
    new.tables["statements"] = dict(old.table("statements"))
    new.source_timestamps["statements"] = dict(old.source_timestamps.get("statements", {}))
    changes: list[Change] = []
    for table in sorted({*old.tables, *new.tables} - {"statements"}):
        was, now = old.table(table), new.table(table)
        times = new.source_timestamps.setdefault(table, {})
        for key in sorted({*was, *now}, key=lambda key: key[::-1]):
            left = _shaped(table, was.get(key), before, after)
            if left == now.get(key):
                times[key] = old.source_timestamps[table][key]
                continue
            times.pop(key, None)
            if key in now:
                times[key] = time
            if _live(table, was.get(key) or now[key], before, after):
                changes.append(Change(table, time, key[1], key[0], old=left, new=now.get(key)))
    new.changes = [*old.changes, *changes]
    return new


def _shaped(table: str, row: Mapping[str, Any] | None, before: Toml, after: Toml) -> Mapping[str, Any] | None:
    """An old row as a table of the new shape has it. Columns that are new are null."""
    if row is not None and table in after.get("windows", {}) and table in before.get("windows", {}):
        old, new = (tables_of(parse_definitions(toml))[table].columns for toml in (before, after))
        return {name: row[name] if old.get(name) == type_ else None for name, type_ in new.items()}
    stream = after["streams"].get(table)
    if row is None or stream is None or not stream.get("columns"):
        return row
    return {name: row.get(name) for name in [*stream["columns"], *stream.get("calculated", {})]}


def _live(table: str, row: Mapping[str, Any], before: Toml, after: Toml) -> bool:
    kind, name = ("meters", row["metric"]) if "metric" in row else ("streams", table.removesuffix("_ordered"))
    if any(table in toml.get("windows", {}) for toml in (before, after)):
        kind, name = "windows", table
    definition = after[kind].get(name) or before[kind].get(name) or {}
    return bool(definition.get("live", True))


def _plain(canonical: Toml) -> Toml:
    """Definitions as one writes them: what is empty is left out."""
    return {
        kind: {name: {k: v for k, v in form.items() if v not in ([], {})} for name, form in forms.items()}
        for kind, forms in canonical.items()
    }


def _calculated(toml: Toml, formulas: Formulas) -> Mapping[tuple[str, str], Callable[[Mapping[str, Any]], object]]:
    return {
        (stream, column): formulas[text]
        for stream, form in toml.get("streams", {}).items()
        for column, text in form.get("calculated", {}).items()
    }
