"""Windows under changed definitions: made anew from the first event, with the same drains, ticks and late rows."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Databases
from tests.fold.folding import differences
from tests.fold.redefine.definition_changes import (
    catalog,
    change,
    changed,
    control,
    fold_all,
    leftovers,
    modelled,
    picture,
    runner,
    send,
)
from tests.ledgers import write_ledger
from tests.model import Event
from tests.model.samples import at
from tidelock.definitions import parse_definitions
from tidelock.fold.redefine.recomputation import recompute
from tidelock.model import CONTROL
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark

SECOND = 10**9
START = at("2026-03-10T12:00:00Z")
EVENT_TIME = {"enabled": True, "late_tolerance": "2s"}
WINDOW = {
    "stream": "rows",
    "window": {"tumbling": "10s"},
    "eventtime": EVENT_TIME,
    "group_by": ["g"],
    "select": {"rows": "count(*)", "total": "sum(q)"},
}
BASE: dict[str, dict[str, Any]] = {
    "streams": {
        "rows": {
            "columns": {"g": "string", "q": "int", "ts": "bigint"},
            "eventtime": {"column": "ts", "type": "unixtimestamp_ns", "late_tolerance": "3s"},
            "ordered": True,
        },
        "things": {},
    },
    "meters": {"things": {"aggregation": "count"}},
    "windows": {
        "stretches": WINDOW,
        "sessions": WINDOW | {"window": {"session": "4s"}},
        "counts": WINDOW | {"window": {"count": 2}},
        "arrivals": WINDOW | {"eventtime": {}, "window": {"tumbling": "5s"}},
        "third": WINDOW | {"eventtime": {}, "window": {"count": 3}, "select": {"sum": "sum(q)"}},
    },
}


def ledger() -> list[Event]:
    """Rows of two groups and tenants, some late, with a drain and a tick between, a second apart."""
    times: list[Any] = [[1, 8], [11, 3], "tick", [14, 9], [31, 12], "drain", [33, 39], [41], [47, 20]]
    events: list[Event] = []
    for number, collection in enumerate(times):
        now = START + number * SECOND
        if isinstance(collection, str):
            data = json.dumps({"type": collection})
            events.append(Event(len(events) + 1, now, CONTROL, now, tenant_id=CONTROL, data=data))
            continue
        for place, time in enumerate(collection):
            data = json.dumps({"g": "ab"[place], "q": time, "ts": START + time * SECOND})
            tenant = "default" if time % 2 else "other"
            events.append(Event(len(events) + 1, now, "rows", now, tenant_id=tenant, data=data, received_at=now))
    return events


@pytest.fixture(scope="module")
def folded_once(spark: Spark, databases: Databases) -> Iterator[Database]:
    with databases() as database:
        write_ledger(database, ledger())
        fold_all(spark, database, BASE)
        yield database


def check(database: Database) -> None:
    found = differences(picture(database), modelled(database, BASE))
    assert found == {}, "\n".join(found.values())
    assert leftovers(database) == []


def check_recomputed(spark: Spark, database: Database, *, range_events_max: int = 1000) -> None:
    """It folds the whole ledger again, through every change of definitions in it."""
    check(database)
    result = recompute(
        spark, database, range_events_max=range_events_max, stop=threading.Event(), progress=lambda done, end: None
    )
    assert result is not None
    assert result.ok, result.differences


def test_changed_windows_are_those_that_always_were_so(spark: Spark, folded: Database) -> None:
    check_recomputed(spark, folded, range_events_max=4)
    toml = BASE
    steps: list[dict[str, Any]] = [
        {
            "windows__stretches": {"eventtime": {"enabled": True, "late_tolerance": "20s"}},
            "windows__sessions": {"window": {"session": "15s"}, "select": {"rows": "last(q)", "total": "sum(q)"}},
        },
        {"windows__counts": None, "windows__arrivals": {"window": {"hopping": ["4s", "2s"]}}},
        {"windows__counts": WINDOW | {"window": {"count": 3}, "live": False}, "windows__third": {"group_by": []}},
        {"windows__stretches": {"window": {"count": 2}}, "streams__rows": {"ordered": False, "eventtime": {
            "column": "ts", "type": "unixtimestamp_ns"}}},
        {"windows__stretches": WINDOW, "streams__rows": BASE["streams"]["rows"]},
    ]  # fmt: skip
    for number, paths in enumerate(steps, start=1):
        send(folded, {"stream": "rows", "data": {"g": "a", "q": number, "ts": START + (50 + 2 * number) * SECOND}})
        toml = changed(toml, **paths)
        change(spark, folded, toml)
        check(folded)
    check_recomputed(spark, folded)
    assert catalog(folded).version == 1 + len(steps)


def test_a_meter_and_a_window_of_one_name_keep_their_own_error_rows(spark: Spark, folded: Database) -> None:
    """An event has one row of a name, the meter's goes first, and either definition may change by itself."""
    data = {"g": "a", "q": 1, "ts": START + 50 * SECOND, "x": 1e22}
    for customer in ("c", None):
        send(folded, {"stream": "rows", "customerRef": customer, "data": data})
    columns = BASE["streams"]["rows"]["columns"] | {"x": "double"}
    stream = {"columns": columns, "eventtime": {"column": "ts", "type": "unixtimestamp_ns"}}
    own: dict[str, Any] = {"streams": {"rows": stream}, "meters": {}, "windows": {}}
    window = WINDOW | {"select": {"total": "sum(x)"}}
    steps: list[tuple[dict[str, Any], list[str]]] = [
        (
            {"windows__shared": window, "meters__shared": {"stream": "rows", "aggregation": "count"}},
            ["window", "meter"],
        ),
        ({"windows__shared": {"eventtime": {"enabled": True, "late_tolerance": "4s"}}}, ["window", "meter"]),
        ({"meters__shared": {"where": {"x": {"_is_null": True}}}}, ["window", "window"]),
        ({"meters__shared": None}, ["window", "window"]),
    ]
    codes = {"value_out_of_range": "window", "missing_customer": "meter"}
    for paths, said in steps:
        own = changed(own, **paths)
        change(spark, folded, own)
        check(folded)
        with folded.connect_sync() as connection:
            rows = connection.execute(
                "SELECT code FROM tidelock_tables.error_rows WHERE source = 'shared' "
                "ORDER BY ingress_sequence DESC LIMIT 2"
            ).fetchall()
        assert [codes[code] for (code,) in reversed(rows)] == said
    check_recomputed(spark, folded)


def test_what_stays_as_it_is_still_ends_at_the_event_that_changes_the_rest(spark: Spark, folded: Database) -> None:
    """The sequencer's clock is long past the open windows by arrival, and no other event is recorded."""
    before = due(folded)
    assert before is not None
    change(spark, folded, changed(BASE, windows__counts=None))
    check_recomputed(spark, folded)
    assert due(folded) is None


def test_a_crash_before_the_swap_changes_nothing_in_the_end(
    spark: Spark, folded: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = changed(BASE, windows__arrivals={"window": {"tumbling": "3s"}})

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tidelock.fold.runner.swap", crash)
        with pytest.raises(KeyboardInterrupt):
            runner(spark, folded, toml, control=control(folded)).run(threading.Event())
    change(spark, folded, toml)
    check_recomputed(spark, folded)


def test_windows_that_an_earlier_version_only_wrote_down_are_made(spark: Spark, database: Database) -> None:
    """It took such definitions and folded what it knew of them."""
    write_ledger(database, ledger())
    known = {"columns": BASE["streams"]["rows"]["columns"]}
    fold_all(spark, database, {**BASE, "streams": {**BASE["streams"], "rows": known}, "windows": {}})
    with database.connect_sync() as connection:
        declared = json.dumps(parse_definitions(BASE).canonical())
        connection.execute("UPDATE fold_definitions SET definitions = %s", [declared])
    change(spark, database, BASE)
    assert catalog(database).definitions == parse_definitions(BASE)
    result = recompute(spark, database, range_events_max=4, stop=threading.Event(), progress=lambda done, end: None)
    assert result is not None
    assert result.ok, result.differences
    with database.connect_sync() as connection:
        row = connection.execute("SELECT count(*) FROM tidelock_tables.stretches").fetchone()
    assert row is not None
    assert row[0] > 0


def due(database: Database) -> int | None:
    with database.connect_sync() as connection:
        row = connection.execute("SELECT window_due FROM fold_due").fetchone()
        assert row is not None
        return row[0]
