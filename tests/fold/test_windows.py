"""Windows and ordered output, by example: what they say of their rows, when they end, and what comes too late."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from tests.fold.folding import Folding, Toml
from tests.law.packs import Pack
from tests.ledgers import write_ledger
from tests.model import Event
from tests.model.samples import at
from tidelock.definitions import parse_definitions
from tidelock.errors import NotFound, SettingsError
from tidelock.fold.rangefold import RangeFold
from tidelock.fold.store import Store
from tidelock.model import CONTROL
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark
from tidelock.tables import SCHEMA, tables_of
from tidelock.views.catalog import TableCatalog

SECOND = 10**9
START = at("2026-03-10T12:00:00Z")
COLUMNS = {"ts": "bigint", "g": "string", "q": "int", "price": "decimal(38,9)", "x": "double"}
STREAM = {"columns": COLUMNS, "eventtime": {"column": "ts", "type": "unixtimestamp_ns"}}
EVENT_TIME = {"enabled": True}

#: seconds after the start, and what happens then: rows, or a control event
Happening = tuple[float, list[Mapping[str, Any]] | Mapping[str, Any]]


def window(select: Mapping[str, str] | None = None, **given: Any) -> dict[str, Any]:
    usual = {"stream": "rows", "window": {"tumbling": "10s"}, "eventtime": EVENT_TIME}
    return usual | {"select": select or {"rows": "count(*)"}} | given


def row(t: float, **data: Any) -> Mapping[str, Any]:
    return {"ts": START + int(t * SECOND)} | data


def recorded(*happenings: Happening) -> list[Event]:
    events: list[Event] = []
    for seconds, happening in happenings:
        now = START + int(seconds * SECOND)
        if isinstance(happening, Mapping):
            control = json.dumps(happening)
            events.append(Event(len(events) + 1, now, CONTROL, now, tenant_id=CONTROL, data=control))
            continue
        for data in happening:
            given = dict(data)
            stream, tenant, op = (given.pop(k, usual) for k, usual in
                                  (("stream", "rows"), ("tenant", "t"), ("op", "upsert")))  # fmt: skip
            events.append(
                Event(len(events) + 1, now, str(stream), now, tenant_id=str(tenant), op=str(op),
                      data=json.dumps(given, default=str), received_at=now)
            )  # fmt: skip
    return events


class Ledger:
    """What came of a ledger."""

    def __init__(self, spark: Spark, database: Database) -> None:
        self._spark = spark
        self._database = database

    def fold(self, toml: Toml, *happenings: Happening, joined: bool = False) -> None:
        events = recorded(*happenings)
        ends = write_ledger(self._database, events)
        with Folding(self._spark, self._database, {"streams": {"rows": STREAM}} | dict(toml)) as folding:
            self.picture = folding.fold(Pack(events, ends).cut(lambda: joined))

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self._database.connect_sync() as connection:
            return connection.execute(sql.replace("tables.", f"{SCHEMA}.").encode()).fetchall()

    def closed(self, name: str = "w") -> dict[str, int]:
        """Seconds after the start at which windows were closed, by key."""
        return {
            key: (time - START) // SECOND
            for (table, _, key), (time, _) in sorted(self.picture.rows.items())
            if table == name
        }


@pytest.fixture
def ledger(spark: Spark, database: Database) -> Ledger:
    return Ledger(spark, database)


def test_aggregates_are_exact_and_ignore_null(ledger: Ledger) -> None:
    select = {
        "rows": "count(*)", "qs": "count(q)", "total": "sum(price)", "mean": "avg(price)", "least": "min(g)",
        "most": "max(g)", "first": "first(q)", "last": "last(q)", "nothing": "sum(x)",
    }  # fmt: skip
    ledger.fold(
        {"windows": {"w": window(select, eventtime={"enabled": True, "late_tolerance": "5s"})}},
        (1, [row(3, q=3, price="9999999999999999999.999999999", g="\uffff"), row(3, q=4, price="0.000000001", g="")]),
        (2, [row(2, g="😀", price="1"), row(4, price=None)]),
        (3, [row(21)]),
    )
    (found,) = ledger.query("SELECT rows, qs, total, mean, least, most, first, last, nothing FROM tables.w")
    # By code point a face lies after the last character of the first plane, by UTF-16 it would lie before it.
    mean = Decimal("3333333333333333333.666666667")
    assert found == (4, 2, Decimal("10000000000000000001.000000000"), mean, "", "😀", 3, 4, None)


def test_a_value_that_a_sum_has_no_place_for_is_an_error_row_and_left_out(ledger: Ledger) -> None:
    columns = {**COLUMNS, "whole": "decimal(38,0)"}
    select = {"rows": "count(*)", "total": "sum(x)", "mean": "avg(whole)", "most": "max(x)"}
    ledger.fold(
        {
            "streams": {"rows": STREAM | {"columns": columns}},
            "windows": {"w": window(select), "v": window({"total": "sum(whole)"})},
        },
        (1, [row(1, x=1e22, whole="1"), row(2, x=2.5, whole="1" + "0" * 19), row(3, x=1.5, whole=-3)]),
        (2, [row(0, x=1e30), row(21)]),
    )
    assert ledger.query("SELECT rows, total, mean, most FROM tables.w") == [(3, Decimal(4), Decimal(-1), 1e22)]
    found = ledger.query("SELECT source, ingress_sequence, code, message FROM tables.error_rows ORDER BY 1, 2")
    assert [each[:3] for each in found if each[2] == "value_out_of_range"] == [
        ("v", 2, "value_out_of_range"),
        ("w", 1, "value_out_of_range"),
        ("w", 2, "value_out_of_range"),
    ]
    assert found[1][3] == 'column "x" has no number below 10^19 with at most nine decimals, so sum(x) leaves it out'


def test_an_event_has_one_error_row_of_a_name(ledger: Ledger) -> None:
    """Here a meter has the name of a window, and says something of every event: nobody is its customer."""
    meters = {"w": {"stream": "rows", "value": "x"}}
    ledger.fold({"meters": meters, "windows": {"w": window({"total": "sum(x)"})}}, (1, [row(1, x=1e22)]))
    assert ledger.query("SELECT source, code FROM tables.error_rows") == [("w", "missing_customer")]


def test_unique_values_and_percentiles(ledger: Ledger) -> None:
    select = {
        "gs": "unique_count(g)",
        "qs": "unique_count(q)",
        "ps": "unique_count(price)",
        "xs": "unique_count(x)",
        "none": "unique_count(day)",
    }
    select |= {name: f"{name}(price)" for name in ("p50", "p90", "p99")} | {"nothing": "p95(y)"}
    columns = {**COLUMNS, "day": "date", "y": "double"}
    xs = [1e16, 10**16, "1e16", -0.0, 0, 0.1, None]
    rows = [row(n / 1000, q=n % 7, g=["a", "a\x1fb", "\\", ""][n % 4], price=n, x=xs[n % 7]) for n in range(1, 101)]
    ledger.fold(
        {
            "streams": {"rows": STREAM | {"columns": columns}},
            "windows": {"w": window(select, eventtime=EVENT_TIME | {"late_tolerance": "5s"})},
        },
        (1, [*rows[:33], row(0.2)]),
        (2, rows[33:]),
        (3, [row(21)]),
    )
    (found,) = ledger.query(f"SELECT {', '.join(select)} FROM tables.w")
    assert found[:5] == (4, 7, 100, 3, 0)
    assert found[5:8] == pytest.approx((50, 90, 99), rel=0.004)
    assert found[8] is None


def test_at_a_path_numbers_are_unique_by_their_value_and_strings_by_their_characters(ledger: Ledger) -> None:
    select = {"ns": "unique_count(data.n)", "last": "last(data.n)", "deep": "unique_count(data.a.b)"}
    values = [1, 1.0, "1", "1.0", 1000, 1e3, None, [1.0]]
    rows: list[Mapping[str, Any]]
    rows = [{"stream": "free", "n": value, "a": {"b": "a\nb" if value == 1 else value}} for value in values]
    ledger.fold(
        {"windows": {"w": window(select, stream="free", eventtime={})}},
        (1, rows),
        (2, rows[:5]),
        (12, {"type": "tick"}),
    )
    assert ledger.query("SELECT ns, last, deep FROM tables.w") == [(4, "1000", 5)]


@pytest.mark.parametrize("kind", [{"tumbling": "10s"}, {"session": "10s"}, {"count": 3}])
def test_first_and_last_are_of_any_type(ledger: Ledger, kind: Mapping[str, object]) -> None:
    columns = {**COLUMNS, "ok": "boolean", "day": "date", "at": "timestamp", "more": "json"}
    values = {"g": "z", "q": 7, "price": "1.5", "x": 0.5, "ok": True, "day": "2026-03-01", "at": "2026-03-01T00:00:00Z",
              "more": {"a": 1}}  # fmt: skip
    select = {f"{end}_{name}": f"{end}({name})" for name in values for end in ("first", "last")}
    ledger.fold(
        {"streams": {"rows": STREAM | {"columns": columns}}, "windows": {"w": window(select, window=kind)}},
        (1, [row(2, **values), row(3), row(1)]),
        (2, [row(30)]),
    )
    day, instant = date(2026, 3, 1), at("2026-03-01T00:00:00Z")
    each = ("z", 7, Decimal("1.5"), 0.5, True, day, instant, {"a": 1})
    names = ", ".join(select)
    assert ledger.query(f"SELECT {names} FROM tables.w") == [tuple(value for value in each for _ in range(2))]


def test_a_row_without_a_group_is_a_group_of_its_own(ledger: Ledger) -> None:
    ledger.fold(
        {"windows": {"w": window(group_by=["g", "q"])}},
        (1, [row(1, g="a", q=1), row(2), row(3, g='"', q=-5), row(15)]),
    )
    assert list(ledger.closed()) == [
        '["\\"","-5","2026-03-10T12:00:00Z"]',
        '["a","1","2026-03-10T12:00:00Z"]',
        '[null,null,"2026-03-10T12:00:00Z"]',
    ]


def test_without_groups_a_windows_key_is_its_start(ledger: Ledger) -> None:
    ledger.fold({"windows": {"w": window(window={"tumbling": "500ms"})}}, (1, [row(0.7), row(1.1)]))
    assert ledger.closed() == {"2026-03-10T12:00:00.5Z": 1}


def test_deletes_errors_and_times_that_cannot_be_used_are_in_no_window(ledger: Ledger) -> None:
    windows = {"w": window(), "arrived": window(eventtime={})}
    ledger.fold(
        {"windows": windows},
        (1, [row(1), row(2, op="delete"), row(3, q="x"), {"ts": "never"}, row(4 * 3600)]),
        (2, [row(11)]),
        (12, {"type": "tick"}),
    )
    assert ledger.query("SELECT rows FROM tables.w") == [(1,)]
    # By arrival the event's own time does not matter.
    assert ledger.query("SELECT rows FROM tables.arrived") == [(3,)]


def test_by_arrival_anything_in_the_ledger_ends_a_window(ledger: Ledger) -> None:
    ledger.fold(
        {"windows": {"w": window(eventtime={}, window={"tumbling": "5s"}, group_by=["g"])}},
        (1, [row(99, g="a"), row(-99, g="b", tenant="u")]),
        (6, [{"stream": "unheard of", "tenant": "z"}]),
        (7, [row(0, g="a")]),
        (11, {"type": "trigger"}),
        joined=True,
    )
    assert ledger.closed() == {
        '["a","2026-03-10T12:00:00Z"]': 6,
        '["a","2026-03-10T12:00:05Z"]': 11,
        '["b","2026-03-10T12:00:00Z"]': 6,
    }
    assert ledger.query("SELECT count(*) FROM tables.late_rows") == [(0,)]


def test_a_drain_of_one_window_leaves_the_others(ledger: Ledger) -> None:
    windows = {"w": window(), "other": window()}
    ledger.fold({"windows": windows}, (1, [row(1)]), (2, {"type": "drain", "window": "w"}), (3, [row(2)]))
    assert ledger.closed() == {"2026-03-10T12:00:00Z": 2}
    assert ledger.closed("other") == {}
    late = ledger.query('SELECT "window", ingress_sequence, event_time - watermark, reason FROM tables.late_rows')
    assert late == [("w", 3, SECOND, "drained")]


def test_an_idle_tenant_is_drained_at_a_tick_and_only_there(ledger: Ledger) -> None:
    windows = {"w": window(eventtime={"enabled": True, "idle_timeout": "10s"}, group_by=["g"])}
    ledger.fold(
        {"windows": windows},
        (1, [row(1, g="a"), row(2, g="b", tenant="u")]),
        (5, [row(0, g="a")]),
        (10.5, {"type": "tick"}),
        (11, {"type": "tick"}),
        (14, {"type": "trigger"}),
        (15, {"type": "tick"}),
    )
    assert ledger.closed() == {'["a","2026-03-10T12:00:00Z"]': 15, '["b","2026-03-10T12:00:00Z"]': 11}


def test_the_fold_tells_when_something_is_due(ledger: Ledger) -> None:
    windows = {
        "w": window(eventtime={}, window={"session": "4s"}),
        "idle": window(eventtime={"enabled": True, "idle_timeout": "10s"}, window={"count": 2}),
    }
    ledger.fold({"windows": windows}, (1, [row(1)]), (2, [row(5), row(6, tenant="u")]))
    assert ledger.query("SELECT window_due, idle_due FROM fold_due") == [(START + 6 * SECOND, START + 12 * SECOND)]


def test_what_is_over_is_due_no_more(ledger: Ledger) -> None:
    windows = {
        "w": window(eventtime={}, window={"session": "4s"}),
        "idle": window(eventtime={"enabled": True, "idle_timeout": "9223372036854775807ns"}),
    }
    ledger.fold({"windows": windows}, (1, [row(1)]), (20, {"type": "drain"}))
    assert ledger.query("SELECT window_due, idle_due FROM fold_due") == [(None, None)]


def test_tables_that_are_not_live_have_no_changes(ledger: Ledger) -> None:
    streams = {"rows": STREAM | {"ordered": True, "live": False}}
    windows = {"w": window(live=False), "seen": window()}
    ledger.fold({"streams": streams, "windows": windows}, (1, [row(1)]), (2, [row(15), row(0)]))
    changed = {name for (name,) in ledger.query("SELECT DISTINCT table_name FROM changes")}
    assert changed == {"seen", "late_rows"}
    assert ledger.closed() == {"2026-03-10T12:00:00Z": 2}


def test_windows_are_made_of_calculated_columns_too(ledger: Ledger) -> None:
    stream = STREAM | {"key": "q", "calculated": {"double": "q * 2", "parity": "if(q % 2 = 0, 'even', 'odd')"}}
    windows = {"w": window({"total": "sum(double)", "last": "last(parity)"}, group_by=["parity"])}
    ledger.fold({"streams": {"rows": stream}, "windows": windows}, (1, [row(1, q=1), row(2, q=2), row(3, q=3)]),
                (2, [row(12, q=4)]))  # fmt: skip
    assert ledger.query("SELECT parity, total, last FROM tables.w ORDER BY 1") == [
        ("even", 4, "even"),
        ("odd", 8, "odd"),
    ]


def test_a_calculated_column_of_a_type_that_makes_no_sense_is_reported_at_startup(
    spark: Spark, database: Database
) -> None:
    calculated = {"label": "concat(g, '!')", "fine": "CAST(price AS DECIMAL(18,8)) * CAST(price AS DECIMAL(18,8))"}
    stream = STREAM | {"key": "q", "calculated": calculated}
    store = Store(database, SCHEMA, "fold")
    for column, type_ in [("label", "string"), ("fine", r"9 exact decimals.*decimal\(37,16\)")]:
        toml = {"streams": {"rows": stream}, "windows": {"w": window({"total": f"sum({column})"})}}
        with pytest.raises(SettingsError, match=rf"windows\.w\.select\.total.*{type_}"):
            RangeFold(spark, store, database, parse_definitions(toml))
    store.close()


def test_the_folds_own_tables_are_nobodys_to_read() -> None:
    toml = {"streams": {"rows": STREAM | {"ordered": True}}, "windows": {"w": window(window={"count": 2})}}
    definitions = parse_definitions(toml)
    shape = TableCatalog(1, definitions, tables_of(definitions))
    assert shape.table("w").name == "w"
    for name in ("w$open", "w$held", "rows_ordered$held", "watermarks"):
        assert name in shape.tables
        with pytest.raises(NotFound, match=r"error_rows, late_rows, rows_ordered, w\Z"):
            shape.table(name)


def test_a_row_may_lie_in_very_many_windows(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelock.fold.kernel.panes._PIECES_MAX", 10)
    ledger.fold(
        {"windows": {"w": window({"rows": "count(*)", "last": "last(q)"}, window={"hopping": ["10s", "100ms"]})}},
        (1, [row(1, q=1), row(1.05, q=2), row(3, q=3)]),
        (2, [row(30)]),
    )
    found = ledger.query("SELECT rows, last, count(*) FROM tables.w GROUP BY 1, 2 ORDER BY 1, 2")
    assert found == [(1, 3, 20), (2, 2, 20), (3, 3, 80)]


def test_a_fold_is_warmed_up_before_there_are_tables(spark: Spark, database: Database) -> None:
    windows = {"w": window(eventtime={}), "timed": window(), "counts": window(window={"count": 2})}
    definitions = parse_definitions({"streams": {"rows": STREAM | {"ordered": True}}, "windows": windows})
    store = Store(database, SCHEMA, "fold")
    RangeFold(spark, store, database, definitions).warm_up()
    store.close()


def test_a_range_without_rows_for_windows_folds_the_rest(ledger: Ledger) -> None:
    toml = {"meters": {"others": {"aggregation": "count"}}, "windows": {"w": window(eventtime={}), "timed": window()}}
    ledger.fold(toml, (1, [{"stream": "others"}]), (2, [row(1)]), (11, [{"stream": "others"}]))
    assert ledger.closed() == {"2026-03-10T12:00:00Z": 11}
