"""The picture of a window follows the watermark as the fold does."""

from random import Random
from typing import Any

import pytest

from tidelock.console.eventtimes import closings, picture, time_of
from tidelock.instants import SECOND, format_instant

TYPED = {"column": "ts", "type": "unixtimestamp_ms"}
START = 1_794_780_600 * SECOND


def recorded(sequence: int, arrived: int, data: Any) -> dict[str, Any]:
    return {
        "ingressSequence": sequence,
        "sourceTimestamp": str(arrived),
        "occurredAt": "2026-01-31T23:59:59.5Z",
        "data": data,
    }


@pytest.mark.parametrize(
    ("data", "eventtime", "seconds"),
    [
        ({"ts": 1500}, TYPED, 1.5),
        ({"ts": "1500"}, TYPED, 1.5),
        ({"a": {"b": 2}}, {"column": "data.a.b", "type": "unixtimestamp_s"}, 2.0),
        ({"at": "1970-01-01T00:00:03Z"}, {"column": "at", "type": "rfc3339"}, 3.0),
        ({"ts": "n/a"}, TYPED, None),
        ({}, TYPED, None),
        (None, TYPED, None),
        ({"ts": 1}, {"column": "ts", "type": "of_a_plugin"}, None),
        ({}, {"column": "occurred_at"}, 1769903999.5),
    ],
)
def test_an_event_gives_its_time_where_its_stream_says(
    data: Any, eventtime: dict[str, str], seconds: float | None
) -> None:
    found = time_of(recorded(1, START, data), eventtime)
    assert (None if found is None else found / SECOND) == seconds


def test_the_watermark_is_the_latest_time_less_the_tolerance_also_without_the_beginning() -> None:
    chance = Random(7)
    tolerance = 5 * SECOND
    events, late, marks = [], {}, []
    mark = None
    for sequence in range(1, 401):
        arrived = START + sequence * SECOND
        moment = arrived - chance.choice([0, 1, 3, 90]) * SECOND
        if mark is not None and moment <= mark:
            late[sequence] = {"watermark": format_instant(mark), "reason": "late"}
        else:
            mark = max(mark or 0, moment - tolerance)
        marks.append((arrived, mark))
        events.append(recorded(sequence, arrived, {"ts": moment // 1_000_000}))
    whole = picture(events, TYPED, "5s", late, judged=400, warm=0)
    assert {each.sequence for each in whole.events if each.fate == "late"} == late.keys()
    assert [mark for _, mark in whole.steps] == sorted({mark for _, mark in marks})
    assert picture(events, TYPED, "5s", {}, judged=0, warm=0) == whole, "what is not judged yet is drawn as it will be"
    part = picture(events[200:], TYPED, "5s", late, judged=400, warm=50)
    assert set(part.steps[1:]) <= set(whole.steps), "what came before does not matter any more"
    assert part.events[0].sequence == 251


def test_a_drained_row_and_one_from_the_future_move_no_time() -> None:
    events = [
        recorded(1, START, {"ts": START // 1_000_000}),
        recorded(2, START + SECOND, {"ts": (START + 7200 * SECOND) // 1_000_000}),
        recorded(3, START + 2 * SECOND, {"ts": (START + 2 * SECOND) // 1_000_000}),
    ]
    drained = {3: {"watermark": format_instant(START), "reason": "drained"}}
    found = picture(events, TYPED, "0s", drained, judged=3, warm=0)
    assert [each.fate for each in found.events] == ["on time", "error", "drained"]
    assert found.steps == [(START, START)]


def test_events_of_one_request_are_judged_by_the_watermark_before_it() -> None:
    moments = (START, START + 9 * SECOND, START + SECOND)
    events = [
        recorded(sequence, START + max(0, sequence - 2), {"ts": moment // 1_000_000})
        for sequence, moment in enumerate(moments, 1)
    ]
    found = picture([events[0], events[1] | {"sourceTimestamp": events[2]["sourceTimestamp"]}, events[2]], TYPED, "0s",
                    {}, judged=0, warm=0)  # fmt: skip
    assert [each.fate for each in found.events] == ["on time"] * 3


def test_windows_close_where_the_watermark_reaches_their_end() -> None:
    steps = [(0, 5), (1, 9), (2, 21), (3, 22)]
    assert closings(steps, 10, most=10) == [(0, 10, 2), (10, 20, 2)]
    assert closings(steps, 10, most=1) == [(10, 20, 2)]
