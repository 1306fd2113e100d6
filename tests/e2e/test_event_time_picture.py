"""The picture of event time: it shows what a run gave, and the same run gives the same again.

DRAW=1 pytest tests/e2e/test_event_time_picture.py     records the run anew; then: make docs
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests.api.test_events import listed
from tests.e2e.clocked import Clocked, clocked
from tests.faults.servers import ROOT
from tests.serving import Start
from tidelock.definitions import parse_definitions
from tidelock.instants import SECOND, format_instant, parse_rfc3339
from tidelock.spark.runtime import Spark

Json = dict[str, Any]

PICTURES = ROOT / "docs" / "pictures"
RECORDED = PICTURES / "event-time.json"
START = parse_rfc3339("2026-02-02T09:00:00Z")
WINDOW, TOLERANCE = "rides_10s", "5s"
DEFINITIONS = parse_definitions(
    {
        "streams": {
            "rides": {
                "columns": {"at": "bigint"},
                "eventtime": {"column": "at", "type": "unixtimestamp_ns", "late_tolerance": TOLERANCE},
                "ordered": True,
            }
        },
        "windows": {
            WINDOW: {
                "stream": "rides",
                "window": {"tumbling": "10s"},
                "eventtime": {"enabled": True, "late_tolerance": TOLERANCE},
                "select": {"rides": "count(*)"},
            }
        },
    }
)
#: when requests arrive, and when what they bring happened, in seconds
REQUESTS: list[tuple[float, list[float]]] = [
    (1.5, [0.8]), (3.0, [1.6, 2.4]), (4.6, [3.9]), (6.2, [5.6, 3.4]), (7.4, [6.4, 4.4]), (8.6, [8.0]),
    (10.2, [9.7, 7.2]), (12.4, [11.1, 9.2]), (14.2, [13.6]), (15.6, [12.4, 14.8]), (17.0, [16.6]), (18.6, [18.0, 15.3]),
    (20.0, [17.8, 19.4]), (22.2, [21.6]),
    # Out of a tunnel.
    (24.0, [12.2, 14.6, 20.9]),
    (25.4, [24.9, 23.2]), (27.0, [26.3]), (29.0, [28.4, 26.8]), (30.6, [29.9]), (32.2, [31.4, 28.0]),
    # After a while of silence.
    (38.4, [37.7, 34.2, 30.8]), (40.0, [39.2]),
    # By a clock that is fast, and what that does to the others.
    (42.0, [48.6]), (43.4, [42.4, 41.0]),
    (45.0, [44.4]), (46.8, [46.0, 44.9]), (48.4, [47.9]), (50.0, [49.4, 47.0]), (52.0, [51.4]), (54.0, [53.2, 50.4]),
    (56.0, [55.6]), (57.6, [56.9, 54.1]),
]  # fmt: skip
DRAIN = 61.0
AFTERWARDS: list[tuple[float, list[float]]] = [(63.5, [56.4]), (66.5, [64.8])]


def at(seconds: float) -> int:
    return START + round(seconds * 1000) * (SECOND // 1000)


async def run(place: Clocked) -> None:
    for requests in (REQUESTS, AFTERWARDS):
        for arrived, times in requests:
            await place.send(at(arrived), [{"stream": "rides", "data": {"at": at(time)}} for time in times])
        if requests is REQUESTS:
            await place.drain(at(DRAIN))
    await place.folded()


async def recorded(place: Clocked) -> Json:
    """What the run gave, as readers see it."""
    told = await place.command("tail", "--ordered", "rides", "--after", 0)
    released = {line["row"]["ingress_sequence"]: line["sourceTimestamp"] for line in told if "row" in line}
    reasons, others = [
        {row["ingress_sequence"]: row["reason"] for row in await listed(place.client, "/v1/late", window=window)}
        for window in (WINDOW, "rides_ordered")
    ]
    # The ordered output waits as long as the window does, so one line is the watermark of both.
    assert reasons == others
    rows = [
        {
            "arrived": shown(event["sourceTimestamp"]),
            "happened": format_instant(event["data"]["at"]),
            "fate": reasons.get(sequence, "released" if sequence in released else "held"),
            "released": shown(released[sequence]) if sequence in released else None,
        }
        for event in await listed(place.client, stream="rides")
        for sequence in [event["ingressSequence"]]
    ]
    return {
        "lateTolerance": TOLERANCE,
        "rows": rows,
        "watermarks": [
            {"at": shown(line["sourceTimestamp"]), "watermark": line["watermark"]}
            for line in told
            if "watermark" in line
        ],
        "windows": [
            {
                "start": change["new"]["window_start"],
                "end": change["new"]["window_end"],
                "closed": shown(change["sourceTimestamp"]),
                "rides": change["new"]["rides"],
            }
            for change in await place.command("changes", WINDOW)
        ],
        "drains": [format_instant(at(DRAIN))],
    }


def shown(source_timestamp: str) -> str:
    return format_instant(int(source_timestamp))


async def test_the_picture_is_of_what_the_product_gives(start: Start, spark: Spark) -> None:
    async with clocked(start, spark, DEFINITIONS) as place:
        await run(place)
        found = await recorded(place)
    if os.environ.get("DRAW"):
        lines = ",\n".join(f'"{name}": {listing(value)}' for name, value in found.items())
        RECORDED.write_text(f"{{\n{lines}\n}}\n")
    assert found == json.loads(RECORDED.read_text())
    assert {row["fate"] for row in found["rows"]} == {"released", "late", "drained", "held"}


def listing(value: object) -> str:
    """JSON with one item a line, for people who compare."""
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(f" {json.dumps(item)}" for item in value) + "\n]"


def test_the_picture_is_drawn_from_what_was_recorded() -> None:
    drawn = subprocess.run(
        [sys.executable, PICTURES / "event_time.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert drawn == (PICTURES / "event-time.svg").read_text(), "draw it anew: make docs"
