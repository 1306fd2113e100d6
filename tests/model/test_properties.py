"""What holds for event time in the reference model whatever is recorded, by Hypothesis."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.budgets import examples
from tests.model import Change, Event, State, apply, fold
from tests.model.samples import DRAIN, TICK, recorded, timed

TENANTS = ("default", "default", "other")
WINDOWS: dict[str, dict[str, Any]] = {
    "tumbling": {"tumbling": "10ns"},
    "hopping": {"hopping": ["12ns", "5ns"]},
    "session": {"session": "4ns"},
    "counted": {"count": 3},
}

_TIMES = st.one_of(st.integers(0, 40), st.integers(-5, 100), st.sampled_from([None, "x", 10**16]))
_ROWS = st.builds(
    lambda time, tenant, group: timed(time, tenant, g=group),
    _TIMES,
    st.sampled_from(TENANTS),
    st.sampled_from(["a", "b", None]),
)
_CONTROLS = st.sampled_from([TICK, DRAIN, DRAIN | {"data": {"type": "drain", "window": "session"}}])
_COLLECTIONS = st.one_of(*[st.lists(_ROWS, min_size=1, max_size=5)] * 3, _CONTROLS.map(lambda control: [control]))
LEDGERS = st.lists(_COLLECTIONS, min_size=1, max_size=12).map(lambda collections: recorded(*collections))


@st.composite
def definitions(draw: st.DrawFn, *, enabled: bool = True) -> dict[str, Any]:
    """Ordered output and a window of every kind over one stream, each with a patience of its own."""

    def patience() -> dict[str, str]:
        idle = draw(st.sampled_from([None, "100ns", "300ns"]))
        found = {"late_tolerance": draw(st.sampled_from(["0s", "1ns", "5ns", "30ns"]))}
        return found if idle is None else found | {"idle_timeout": idle}

    columns = {"ts": "string", "g": "string"}
    time = {"column": "ts", "type": "unixtimestamp_ns"}
    windows = {
        name: {
            "stream": "s",
            "window": window,
            "group_by": ["g"],
            "eventtime": {"enabled": True, **patience()} if enabled else {},
            "select": {"n": "count(*)", "last": "last(ts)", "low": "min(ts)"},
        }
        for name, window in WINDOWS.items()
    }
    return {"streams": {"s": {"columns": columns, "ordered": True, "eventtime": time | patience()}}, "windows": windows}


def counted(state: State, name: str) -> int:
    """Rows in all windows, closed and open."""
    opened = [row for (window, _), rows in state.open_windows.items() if window == name for row in rows.values()]
    return sum(row["n"] for row in [*state.table(name).values(), *opened])


@given(LEDGERS, definitions())
def test_watermarks_never_decrease(events: list[Event], toml: dict[str, Any]) -> None:
    state = fold(events, toml)
    for place, raises in state.raises.items():
        marks = [mark for _, mark in raises]
        assert marks == sorted(set(marks))
        assert state.metrics[place].watermark == marks[-1]
        assert state.metrics[place].watermark_emitted_count == len(marks)


@given(LEDGERS, definitions())
def test_nothing_is_released_at_or_below_a_watermark_that_was_emitted_before(
    events: list[Event], toml: dict[str, Any]
) -> None:
    state = fold(events, toml)
    for (tenant, key), row in state.table("s_ordered").items():
        time = state.source_timestamps["s_ordered"][tenant, key]
        emitted = [mark for raised, mark in state.raises["s_ordered", tenant] if raised < time]
        assert row["event_time"] > max(emitted, default=row["event_time"] - 1)


@given(LEDGERS, definitions())
def test_released_times_never_decrease(events: list[Event], toml: dict[str, Any]) -> None:
    state = fold(events, toml)
    for tenant in set(TENANTS):
        rows = [row for (owner, _), row in state.table("s_ordered").items() if owner == tenant]
        rows.sort(key=lambda row: row["position"])
        assert [row["position"] for row in rows] == list(range(1, len(rows) + 1))
        times = [row["event_time"] for row in rows]
        assert times == sorted(times)


@given(LEDGERS, definitions())
def test_every_row_is_exactly_one_of_released_held_late_and_error(events: list[Event], toml: dict[str, Any]) -> None:
    state = fold(events, toml)
    rows = sorted(event.ingress_sequence for event in events if event.stream == "s")
    wrong = [row["ingress_sequence"] for row in state.table("error_rows").values()]
    for name in ("s_ordered", "counted"):
        held = [sequence for (window, _), held in state.held.items() if window == name for sequence in held]
        late = [row["ingress_sequence"] for row in state.table("late_rows").values() if row["window"] == name]
        if name == "s_ordered":
            released = [row["ingress_sequence"] for row in state.table(name).values()]
            assert sorted([*released, *held, *late, *wrong]) == rows
        counts = [found.released for (window, _), found in state.metrics.items() if window == name]
        assert sum(counts) + len(held) + len(late) + len(wrong) == len(rows)


@given(LEDGERS, definitions())
def test_every_row_of_a_window_of_time_is_counted_once_or_late_or_error(
    events: list[Event], toml: dict[str, Any]
) -> None:
    state = fold(events, toml)
    wrong, rows = len(state.table("error_rows")), sum(event.stream == "s" for event in events)
    for name in ("tumbling", "session", "counted"):
        metrics = [found for (window, _), found in state.metrics.items() if window == name]
        late = sum(found.late_dropped_count for found in metrics)
        assert counted(state, name) + sum(found.buffer_size for found in metrics) + late + wrong == rows
        assert late == sum(row["window"] == name for row in state.table("late_rows").values())


@given(LEDGERS, definitions())
def test_a_drain_closes_everything_and_remembers_how_far_it_reached(events: list[Event], toml: dict[str, Any]) -> None:
    last = events[-1]
    drain = Event(last.ingress_sequence + 1, last.source_timestamp + 1, "_tidelock", 0, data='{"type": "drain"}')
    before, state = fold(events, toml), fold([*events, drain], toml)
    assert not any(state.held.values())
    assert not any(state.open_windows.values())
    assert state.raises == before.raises
    for place, metrics in state.metrics.items():
        reached = [
            limit(change)
            for change in state.changes[len(before.changes) :]
            if place == (change.table, change.tenant_id)
        ]
        old = before.metrics[place].closed_through
        assert metrics.closed_through == max([*reached, *([] if old is None else [old])], default=None)


def limit(change: Change) -> int:
    """What comes next must not lie before it. What is counted ends with its last row, and goes on after that."""
    assert change.new is not None
    if change.table == "s_ordered":
        return int(change.new["event_time"]) + 1
    return int(change.new["window_end"]) + (change.table == "counted")


@given(LEDGERS, definitions())
def test_closed_windows_are_never_touched_again(events: list[Event], toml: dict[str, Any]) -> None:
    state = fold(events, toml)
    for change in state.changes:
        assert change.table not in {*WINDOWS, "s_ordered", "late_rows"} or change.old is None


@given(LEDGERS, definitions())
def test_a_window_of_time_closes_at_the_first_collection_whose_watermark_reaches_its_end_or_by_a_drain(
    events: list[Event], toml: dict[str, Any]
) -> None:
    state = fold(events, toml)
    controls = {event.source_timestamp for event in events if event.stream == "_tidelock"}
    for name in ("tumbling", "hopping", "session"):
        for (tenant, key), row in state.table(name).items():
            time = state.source_timestamps[name][tenant, key]
            reached = [raised for raised, mark in state.raises[name, tenant] if mark >= row["window_end"]]
            assert time in controls or time == reached[0]
            assert all(time <= raised for raised in reached)


@given(LEDGERS, definitions())
def test_rows_of_a_closed_window_have_been_released_by_then(events: list[Event], toml: dict[str, Any]) -> None:
    """So aggregating at arrival gives what aggregating at release would."""
    state = State()
    for time in dict.fromkeys(event.source_timestamp for event in events):
        apply(state, [event for event in events if event.source_timestamp == time], toml)
        for (name, _), operator in state.operators.items():
            held = {entry.sequence for entry in operator.time.held}
            still_open = {entry.sequence for window in operator.frame.open() for entry in window.entries}
            assert name in ("s_ordered", "counted") or held <= still_open


@given(LEDGERS, definitions(enabled=False))
def test_by_arrival_nothing_is_late_or_held_whatever_the_events_say(events: list[Event], toml: dict[str, Any]) -> None:
    state = fold(events, toml)
    assert {row["window"] for row in state.table("late_rows").values()} <= {"s_ordered"}
    last = max(event.source_timestamp for event in events)
    rows = sum(event.stream == "s" for event in events)
    for name in WINDOWS:
        found = {tenant: metrics for (window, tenant), metrics in state.metrics.items() if window == name}
        assert all(
            (each.watermark, each.buffer_size, each.late_dropped_count) == (last, 0, 0) for each in found.values()
        )
        if name != "hopping":
            assert counted(state, name) == rows
        for (tenant, key), row in state.table(name).items():
            closing = [time for time in dict.fromkeys(e.source_timestamp for e in events) if time >= row["window_end"]]
            assert state.source_timestamps[name][tenant, key] == closing[0]


@settings(max_examples=examples(50))
@given(LEDGERS, definitions())
def test_one_tenants_clock_is_nobody_elses(events: list[Event], toml: dict[str, Any]) -> None:
    """Without the other tenants the rows of one are judged the same: ticks and drains are for all."""
    state = fold(events, toml)
    for tenant in set(TENANTS):
        alone = fold([event for event in events if event.tenant_id in (tenant, "_tidelock")], toml)
        for name in ("late_rows", "s_ordered", *WINDOWS):
            mine = {key: row for key, row in state.table(name).items() if key[0] == tenant}
            assert mine == alone.table(name)
        assert {place: found for place, found in state.metrics.items() if place[1] == tenant} == alone.metrics
