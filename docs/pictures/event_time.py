"""Draws event-time.svg from event-time.json, which a run of Tidelock gave. `make docs` writes it.

Time that passed for the producers goes up, time that passed for the ledger goes right. A test runs the same again and
compares the data, and the drawing with the committed one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

Json = dict[str, Any]
Point = tuple[float, float]

WIDTH, HEIGHT = 960, 690
LEFT, TOP, RIGHT, BOTTOM = 80, 112, 40, 62
START = datetime.fromisoformat("2026-02-02T09:00:00Z")
#: what is shown of each axis, in seconds from the start
ACROSS, UP = 70.0, 66.0
#: what happened, beside the rows it happened to
NOTES = [
    ("out of a tunnel", 24.0, 7.6, "middle"),
    ("silence", 35.3, 24.2, "middle"),
    ("by a clock that is fast", 41.2, 48.1, "end"),
]

ABOUT = (
    "Rows as dots below the diagonal, the watermark as steps behind them. Rows that arrive at or below the steps are "
    "late. A window closes where the steps reach its upper end."
)
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
.title { font-size: 17px; font-weight: 600 }
.faint { fill: #59636e }
.back { fill: #ffffff }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.now { stroke: #59636e; stroke-width: 1; stroke-dasharray: 2 4 }
.late { fill: #cf222e; fill-opacity: .07 }
.window { fill: #0969da; fill-opacity: .07; stroke: #0969da; stroke-opacity: .45 }
.closing { stroke: #0969da; stroke-width: 3 }
.wait { stroke: #0969da; stroke-width: 1.3; stroke-opacity: .45 }
.row { fill: #0969da }
.held { fill: #ffffff; stroke: #0969da; stroke-width: 2 }
.mark { fill: none; stroke: #1a7f37; stroke-width: 2.5; stroke-linejoin: round }
.marked { fill: #1a7f37 }
.cross { fill: none; stroke: #cf222e; stroke-width: 2.4; stroke-linecap: round }
.crossed { fill: #cf222e }
.drained { fill: none; stroke: #9a3ca8; stroke-width: 2.2 }
.drain { stroke: #9a3ca8; stroke-width: 1.6; stroke-dasharray: 7 4 }
.drains { fill: #9a3ca8 }
.halo { paint-order: stroke; stroke: #ffffff; stroke-width: 4px; stroke-linejoin: round }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.faint { fill: #9198a1 }
.back { fill: #0d1117 }
.grid { stroke: #30363d }
.now { stroke: #9198a1 }
.late { fill: #f85149; fill-opacity: .11 }
.window { fill: #4493f8; fill-opacity: .11; stroke: #4493f8 }
.closing, .wait { stroke: #4493f8 }
.row { fill: #4493f8 }
.held { fill: #0d1117; stroke: #4493f8 }
.mark { stroke: #3fb950 }
.marked { fill: #3fb950 }
.cross { stroke: #f85149 }
.crossed { fill: #f85149 }
.drained, .drain { stroke: #d38aea }
.drains { fill: #d38aea }
.halo { stroke: #0d1117 }
}"""


def seconds(instant: str) -> float:
    return (datetime.fromisoformat(instant) - START).total_seconds()


def x(instant: float) -> float:
    return round(LEFT + instant / ACROSS * (WIDTH - LEFT - RIGHT), 1)


def y(instant: float) -> float:
    return round(HEIGHT - BOTTOM - instant / UP * (HEIGHT - TOP - BOTTOM), 1)


def line(style: str, start: Point, end: Point) -> str:
    return f'<line class="{style}" x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}"/>'


def text(content: str, place: Point, style: str = "", anchor: str = "start") -> str:
    return f'<text class="{style}" x="{place[0]}" y="{place[1]}" text-anchor="{anchor}">{content}</text>'


def cross(place: Point) -> str:
    return f'<path class="cross" d="M{place[0] - 4.5} {place[1] - 4.5}l9 9m0 -9l-9 9"/>'


def diamond(place: Point) -> str:
    return f'<path class="drained" d="M{place[0]} {place[1] - 6}l6 6l-6 6l-6 -6z"/>'


def dot(place: Point, style: str = "row") -> str:
    return f'<circle class="{style}" cx="{place[0]}" cy="{place[1]}" r="4"/>'


def axes() -> Iterator[str]:
    for tick in range(0, int(UP) + 1, 10):
        yield line("grid", (x(0), y(tick)), (x(ACROSS), y(tick)))
        yield text(f"09:{tick // 60:02d}:{tick % 60:02d}", (LEFT - 8, y(tick) + 4), "faint", "end")
    for tick in range(0, int(ACROSS) + 1, 10):
        yield line("grid", (x(tick), y(0)), (x(tick), y(UP)))
        yield text(f"09:{tick // 60:02d}:{tick % 60:02d}", (x(tick), y(0) + 20), "faint", "middle")
    yield text("source timestamp: when it was recorded", (x(ACROSS), HEIGHT - 14), "", "end")
    yield text("event time: when it happened", (16, TOP - 14))
    yield line("now", (x(0), y(0)), (x(UP), y(UP)))
    yield f'<g transform="rotate(-35 {x(17)} {y(18.2)})">{text("no delay", (x(17), y(18.2)), "faint")}</g>'


def windows(run: Json) -> Iterator[str]:
    """Each from its first row to its closing; one that stays open has the right side of the picture for an end."""
    found, rows = run["windows"], run["rows"]
    latest = max(seconds(window["end"]) for window in found)
    for window in found:
        start, end, closed = (seconds(window[name]) for name in ("start", "end", "closed"))
        yield box(opened(rows, start, end), closed, start, end)
        yield line("closing", (x(closed), y(start)), (x(closed), y(end)))
        # Below the watermark; a drain closes what lies above it.
        reached = max(seconds(mark["watermark"]) for mark in run["watermarks"] if seconds(mark["at"]) <= closed)
        foot = start if reached >= end else reached
        yield text(f"{window['rides']} rides", (x(closed) + 7, y(foot) - 7), "halo")
    yield box(opened(rows, latest, UP), ACROSS, latest, UP)
    yield text("open", (x(ACROSS) - 8, y(latest) - 7), "", "end")


def opened(rows: Sequence[Json], start: float, end: float) -> float:
    return min(
        seconds(row["arrived"])
        for row in rows
        if start <= seconds(row["happened"]) < end and row["fate"] in ("released", "held")
    )


def box(left: float, right: float, low: float, high: float) -> str:
    width, height = x(right) - x(left), y(low) - y(high)
    return f'<rect class="window" x="{x(left)}" y="{y(high)}" width="{width:.1f}" height="{height:.1f}"/>'


def steps(marks: Sequence[Json]) -> list[Point]:
    """The watermark as it stood, from its first value to the end."""
    corners: list[Point] = []
    for mark in marks:
        at, height = seconds(mark["at"]), y(max(seconds(mark["watermark"]), 0))
        corners += [(x(at), corners[-1][1] if corners else height), (x(at), height)]
    return [*corners, (x(ACROSS), corners[-1][1])]


def watermark(marks: Sequence[Json]) -> tuple[str, str]:
    corners = " ".join(f"{across},{up}" for across, up in steps(marks))
    area = f'<polygon class="late" points="{steps(marks)[0][0]},{y(0)} {corners} {x(ACROSS)},{y(0)}"/>'
    return area, f'<polyline class="mark" points="{corners}"/>'


def placed(rows: Sequence[Json]) -> Iterator[str]:
    for row in rows:
        if row["released"] is not None:
            height = y(seconds(row["happened"]))
            yield line("wait", (x(seconds(row["arrived"])), height), (x(seconds(row["released"])), height))
    for row in rows:
        place = (x(seconds(row["arrived"])), y(seconds(row["happened"])))
        match row["fate"]:
            case "late":
                yield cross(place)
            case "drained":
                yield diamond(place)
            case "held":
                yield dot(place, "held")
            case _:
                yield dot(place)


def legend(tolerance: str) -> Iterator[str]:
    title = f"When rows happen and when they are recorded: late_tolerance = {tolerance}, windows of 10s"
    yield text(title, (16, 32), "title")
    entries = [
        (16, dot((4, 0)) + line("wait", (4, 0), (20, 0)), "on time, waits for the watermark"),
        (270, dot((14, 0), "held"), "still waits"),
        (388, cross((14, 0)), "late"),
        (470, diamond((14, 0)), "drained"),
        (576, line("mark", (0, 0), (20, 0)), "watermark"),
        (704, line("closing", (14, -8), (14, 8)), "a window closes"),
    ]
    for across, sign, words in entries:
        yield f'<g transform="translate({across} 58)">{sign}</g>'
        yield text(words, (across + 28, 62.5))


def draw(run: Json) -> str:
    area, mark = watermark(run["watermarks"])
    parts = [
        f'<rect class="back" width="{WIDTH}" height="{HEIGHT}" rx="8"/>', *axes(), area,
        *windows(run), *placed(run["rows"]), mark, *legend(run["lateTolerance"]),
    ]  # fmt: skip
    for drain in run["drains"]:
        at = x(seconds(drain))
        parts += [line("drain", (at, y(0)), (at, y(UP))), text("drain", (at - 6, y(2)), "drains halo", "end")]
    parts += [text(words, (x(across), y(up)), "faint halo", anchor) for words, across, up, anchor in NOTES]
    parts.append(text("what arrives here is late", (x(42), y(8)), "crossed"))
    drawn = "\n".join(parts)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="title about">
<title id="title">Event time against source timestamp</title>
<desc id="about">{ABOUT}</desc>
<style>{STYLE}</style>
{drawn}
</svg>
"""


if __name__ == "__main__":
    sys.stdout.write(draw(json.loads(Path(__file__).with_name("event-time.json").read_text())))
