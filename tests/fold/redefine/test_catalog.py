"""The catalog and the shapes: which change of a definition makes rows anew, and what becomes of the columns."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tidelock.columns import STRING, parse_column_type
from tidelock.definitions import Definitions, parse_definitions
from tidelock.errors import SettingsError
from tidelock.fold.redefine.catalog import Catalog, changed_units, check_columns, unit_hashes
from tidelock.fold.redefine.proposals import definition_event, read_definition_event
from tidelock.fold.redefine.shadow import Plan, makes
from tidelock.fold.statements import drop, reshape
from tidelock.tables import ALWAYS, Table, read_tables, tables_of

pytestmark = pytest.mark.check

COLUMNS = {"n": "bigint", "region": "string"}


def definitions(stream: Any = None, meter: Any = None, **more: Any) -> Definitions:
    streams = {"typed": {"key": "n", "columns": COLUMNS, **(stream or {})}, "plain": {}}
    meters = {"m": {"stream": "typed", "value": "n", **(meter or {})}, "calls": {}, **more}
    return parse_definitions({"streams": streams, "meters": meters})


@pytest.mark.parametrize(
    ("after", "changed"),
    [
        (definitions(), []),
        (definitions({"columns": {"region": "string", "n": "bigint"}}), []),
        (definitions({"live": False}, {"live": False}), []),
        (definitions(meter={"period": "day"}), ["meters.m"]),
        (definitions(meter={"lateness": "1h"}), ["meters.m"]),
        (definitions(meter={"where": {"n": {"_gt": 1}}}), ["meters.m"]),
        (definitions(lateness="2h"), ["meters.calls", "meters.m"]),
        # A stream's columns and key decide which of its events a meter sees; calculated columns do not.
        (definitions({"columns": COLUMNS | {"more": "int"}}), ["meters.m", "streams.typed"]),
        (definitions({"key": "region"}), ["meters.m", "streams.typed"]),
        (definitions({"calculated": {"twice": "n * 2"}}), ["streams.typed"]),
        (definitions(new={"stream": "plain"}), ["meters.new"]),
    ],
)
def test_what_decides_rows_is_what_is_rebuilt(after: Definitions, changed: list[str]) -> None:
    before = definitions()
    assert changed_units(unit_hashes(before), after) == changed
    assert changed_units(unit_hashes(after), before) == changed


TIMED = {"column": "n", "type": "unixtimestamp_ms"}
OCCURRED = {"column": "occurred_at"}


@pytest.mark.parametrize(
    ("own", "other", "changed"),
    [
        (TIMED, None, []),
        (TIMED | {"type": "unixtimestamp_s"}, None, ["streams.typed"]),
        (OCCURRED, None, ["streams.typed"]),
        (None, None, ["streams.typed"]),
        # A message may be of any stream, so what another declares decides the time of this one's events.
        (TIMED, OCCURRED, ["meters.plain", "streams.plain", "streams.typed"]),
        # A meter of the stream's name has no error row where the stream has one of the event's time.
        (None, OCCURRED, ["meters.plain", "streams.plain", "streams.typed"]),
    ],
)
def test_what_decides_event_times_decides_error_rows(own: Any, other: Any, changed: list[str]) -> None:
    def timed(own: Any, other: Any) -> Definitions:
        streams = {"typed": {"columns": COLUMNS} | ({"eventtime": own} if own else {})}
        streams["plain"] = {"eventtime": other} if other else {}
        return parse_definitions({"streams": streams, "meters": {"m": {"stream": "typed"}, "plain": {}}})

    assert changed_units(unit_hashes(timed(TIMED, None)), timed(own, other)) == changed


def test_a_part_of_the_definitions_still_knows_the_messages_of_all_streams() -> None:
    streams = {"a": {"eventtime": OCCURRED}, "b": {"eventtime": OCCURRED}, "c": {}}
    part = Plan(parse_definitions({"streams": streams}), ("streams.a",)).subset()
    assert list(part.streams) == ["a"]
    assert list(part.timed) == ["a", "b"]


def test_filters_that_mean_the_same_are_the_same() -> None:
    one = definitions(meter={"where": {"n": {"_gt": 1}, "region": {"_eq": "eu"}}})
    other = definitions(meter={"where": '{"region": {"_eq": "eu"}, "n": {"_gt": 1}}'})
    assert unit_hashes(one) == unit_hashes(other)


def test_columns_may_be_added_and_streams_removed() -> None:
    check_columns(definitions(), definitions({"columns": COLUMNS | {"more": "int"}}))
    check_columns(definitions(), Definitions())
    for columns in ({"n": "bigint"}, COLUMNS | {"region": "json"}):
        with pytest.raises(SettingsError, match="columns can only be added") as raised:
            check_columns(definitions(), definitions({"columns": columns}))
        assert raised.value.field == "streams.typed.columns.region"


def test_a_plan_folds_what_its_units_need_and_no_more() -> None:
    wanted = definitions()
    plan = Plan(wanted, ("meters.gone", "meters.m", "streams.gone"))
    assert set(plan.subset().meters) == {"m"}
    assert set(plan.subset().streams) == {"typed"}
    assert plan.name == Plan(wanted, plan.units, ("meters.m",)).name
    assert plan.name != Plan(wanted, ("meters.m",)).name


@pytest.mark.parametrize(
    ("changed", "units"),
    [
        ("meters.calls", ["meters.calls", "windows.calls"]),
        ("windows.calls", ["meters.calls", "windows.calls"]),
        # What it counted before may have been the window's stream.
        ("meters.far", ["meters.far", "windows.far"]),
        ("windows.far", ["windows.far"]),
        ("streams.plain", ["streams.plain", "windows.plain"]),
        ("windows.plain", ["windows.plain"]),
        ("streams.typed", ["streams.typed"]),
        ("meters.gone", ["meters.gone"]),
    ],
)
def test_definitions_that_share_error_rows_are_rebuilt_together(changed: str, units: list[str]) -> None:
    window = {"window": {"tumbling": "10s"}, "select": {"total": "sum(quantity)"}}
    streams: dict[str, Any] = {"typed": {"columns": COLUMNS}, "plain": {}, "calls": {}}
    windows = {
        name: {"stream": stream, **window}
        for name, stream in [("calls", "calls"), ("far", "plain"), ("plain", "plain")]
    }
    wanted = {"streams": streams, "meters": {"calls": {}, "far": {"stream": "calls"}}, "windows": windows}
    assert list(Plan(parse_definitions(wanted), (changed,)).units) == units


def test_tables_come_back_as_they_were_written_down() -> None:
    tables = tables_of(
        definitions({"calculated": {"twice": "n * 2"}}), {"typed": {"twice": parse_column_type("bigint")}}
    )
    assert read_tables([table.canonical() for table in tables.values()]) == tables


def test_shapes_change_by_the_columns_that_differ() -> None:
    def table(**columns: str) -> dict[str, Table]:
        return {"t": Table("t", {name: parse_column_type(type_) for name, type_ in columns.items()}, ("a",))}

    before = ALWAYS | table(a="int", b="string", c="decimal(9,2)")
    after = ALWAYS | table(a="int", c="decimal(9,3)", d="json")
    assert list(reshape(before, after)) == [
        'ALTER TABLE "tidelock_tables"."t" DROP COLUMN "b"',
        'ALTER TABLE "tidelock_tables"."t" DROP COLUMN "c"',
        'ALTER TABLE "tidelock_tables"."t" ADD COLUMN "c" numeric(9,3)',
        'ALTER TABLE "tidelock_tables"."t" ADD COLUMN "d" json',
    ]
    assert list(reshape(before, before)) == []
    assert [statement.split(" (")[0] for statement in reshape(ALWAYS, after)] == ['CREATE TABLE "tidelock_tables"."t"']
    assert list(drop(before, ALWAYS)) == ['DROP TABLE "tidelock_tables"."t"']
    assert list(drop(ALWAYS, before)) == []


def test_an_event_shows_what_it_changes_also_of_what_makes_no_rows() -> None:
    before = definitions()
    wanted = definitions(meter={"live": False}, new={"stream": "plain"})
    event = definition_event(Plan(wanted, ("meters.new",), before=before))
    assert event["changed"] == ["meters.m", "meters.new"]
    assert "changed" not in definition_event(Plan(wanted, ("meters.new",)))


@pytest.mark.parametrize(
    ("table", "makers"),
    [
        ("counters", ["meters.m"]),
        ("error_rows", ["meters.m", "streams.a", "windows.w"]),
        ("late_rows", ["streams.a", "windows.w"]),
        ("a", ["streams.a"]),
        ("a_ordered", ["streams.a"]),
        ("w", ["windows.w"]),
        ("m", []),
    ],
)
def test_which_definitions_make_a_table(table: str, makers: list[str]) -> None:
    assert [path for path in ("meters.m", "streams.a", "windows.w") if makes(path, table)] == makers


def test_the_event_of_a_plan_says_the_same_plan() -> None:
    before = definitions()
    known = Catalog(1, before, unit_hashes(before), tables_of(before))
    wanted = definitions(meter={"where": {"n": {"_gt": 9007199254740993}}, "lateness": "90m"}, new={"stream": "plain"})
    plan = Plan(wanted, ("meters.calls", "meters.m", "meters.new"), ("meters.calls",))
    event = json.loads(msgspec.json.encode(definition_event(plan)))
    again = read_definition_event(event, known)
    assert (again.name, again.units, again.asked) == (plan.name, plan.units, plan.asked)
    # What it changes is changed once: read again it only makes anew what was asked for.
    after = Catalog(2, wanted, unit_hashes(wanted), tables_of(wanted))
    assert read_definition_event(event, after).units == ("meters.calls",)


WINDOW = {"stream": "typed", "window": {"tumbling": "10s"}, "select": {"rows": "count(*)", "twice": "sum(twice)"}}
EVENT_TIME = {"enabled": True}


@pytest.mark.parametrize(
    ("stream", "window", "changed"),
    [
        ({}, {"live": False}, []),
        ({}, {"select": {"rows": "count(*)"}}, ["windows.w"]),
        ({}, {"window": {"session": "10s"}}, ["windows.w"]),
        ({}, {"eventtime": {"enabled": True, "late_tolerance": "1s"}}, ["windows.w"]),
        ({"calculated": {"twice": "n + n"}}, {}, ["streams.typed", "windows.w"]),
        # What another calculated column is, or whether there are ordered rows too, is no matter of this window.
        ({"calculated": {"twice": "n * 2", "more": "n"}}, {}, ["streams.typed"]),
        ({"ordered": True}, {}, ["streams.typed"]),
        ({"eventtime": OCCURRED}, {}, ["streams.typed", "windows.w"]),
    ],
)
def test_what_decides_the_rows_of_a_window_is_what_rebuilds_it(stream: Any, window: Any, changed: list[str]) -> None:
    base = {"key": "n", "columns": COLUMNS, "calculated": {"twice": "n * 2"}, "eventtime": TIMED}

    def windowed(stream: Any, window: Any) -> Definitions:
        usual = {**WINDOW, "eventtime": EVENT_TIME}
        return parse_definitions({"streams": {"typed": base | stream}, "windows": {"w": usual | window}})

    assert changed_units(unit_hashes(windowed({}, {})), windowed(stream, window)) == changed


def test_ordered_output_is_rebuilt_when_it_waits_otherwise() -> None:
    def ordered(**waits: str) -> Definitions:
        return parse_definitions({"streams": {"s": {"ordered": True, "eventtime": OCCURRED | waits}}})

    assert changed_units(unit_hashes(ordered()), ordered(late_tolerance="1s")) == ["streams.s"]
    assert changed_units(unit_hashes(ordered()), ordered(idle_timeout="1s")) == ["streams.s"]


def test_tables_of_windows_are_read_as_they_were_written() -> None:
    stream = {"ordered": True, "eventtime": OCCURRED}
    frames = [{"tumbling": "1s"}, {"session": "1s"}, {"count": 3}]
    windows = {
        f"w{number}": {"stream": "s", "window": frame, "eventtime": EVENT_TIME, "select": {"last": "last(quantity)"}}
        for number, frame in enumerate(frames)
    }
    tables = tables_of(parse_definitions({"streams": {"s": stream}, "windows": windows}))
    own = {name for name in tables if "$" in name and name not in ALWAYS}
    assert own == {"w0$open", "w1$open", "w2$open", "w2$held", "s_ordered$held"}
    assert read_tables([table.canonical() for table in tables.values()]) == tables


def test_the_folds_own_tables_are_rebuilt_when_their_shape_changes() -> None:
    before, after = (
        ALWAYS | {"t$open": Table("t$open", {"a": STRING}, ("a",), internal=True, indexes=indexes)}
        for indexes in ((("a",),), (("tenant_id", "a"),))
    )
    assert list(reshape(before, before)) == []
    assert [statement.split(" ")[0] for statement in reshape(before, after)] == ["DROP", "CREATE", "CREATE"]
