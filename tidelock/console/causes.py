"""The graph of a run: its events in order, a lane for each stream, and an edge from each cause to what it caused."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

_STEP, _LANE, _LEFT, _TOP = 74, 58, 128, 30


def graph(events: Sequence[dict[str, Any]], here: int) -> str:
    """A drawing whose nodes lead to their events; the event `here` is marked."""
    lanes = {stream: at for at, stream in enumerate(dict.fromkeys(event["stream"] for event in events))}
    places = {
        event["ingressSequence"]: (_LEFT + _STEP * at, _TOP + _LANE * lanes[event["stream"]])
        for at, event in enumerate(events)
    }
    width = _LEFT + _STEP * len(events)
    height = _TOP * 2 + _LANE * (len(lanes) - 1) + 14
    parts = [f'<svg class="tl-graph" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">']
    for stream, at in lanes.items():
        y = _TOP + _LANE * at
        parts.append(f'<line class="tl-lane" x1="{_LEFT - 20}" x2="{width}" y1="{y}" y2="{y}"/>')
        shown = stream if len(stream) <= 16 else stream[:15] + "…"
        parts.append(f'<text class="tl-lane-name" x="4" y="{y + 4}">{escape(shown)}</text>')
    caused = [event for event in events if event["parent"] in places]
    parts += [_edge(places[event["parent"]], places[event["ingressSequence"]]) for event in caused]
    parts += [_node(event, places[event["ingressSequence"]], here) for event in events]
    return "".join([*parts, "</svg>"])


def _edge(cause: tuple[int, int], effect: tuple[int, int]) -> str:
    (x1, y1), (x2, y2) = cause, effect
    # An effect may be recorded before its cause: then the edge goes back.
    way = 1 if x2 > x1 else -1
    start, end, middle = x1 + 8 * way, x2 - 9 * way, (x1 + x2) / 2
    if y1 == y2:
        # Along its own lane it bows out, or it would run through those between.
        lift = 0 if abs(x2 - x1) <= _STEP else 22
        path = f"M{start} {y1} Q{middle} {y1 - lift} {end} {y2}"
    else:
        path = f"M{start} {y1} C{middle} {y1} {middle} {y2} {end} {y2}"
    tip = f"M{end - 5 * way} {y2 - 4} L{end} {y2} L{end - 5 * way} {y2 + 4}"
    return f'<path class="tl-edge" d="{path}"/><path class="tl-edge-end" d="{tip}"/>'


def _node(event: dict[str, Any], place: tuple[int, int], here: int) -> str:
    sequence, (x, y) = event["ingressSequence"], place
    marked = " tl-node-here" if sequence == here else ""
    title = escape(f"{event['stream']} {sequence:,}, {event['receivedAt']}")
    return (
        f'<a class="tl-node{marked}" href="/events/{sequence}" data-sequence="{sequence}"><title>{title}</title>'
        f'<circle class="tl-node-room" cx="{x}" cy="{y}" r="18"/><circle class="tl-node-dot" cx="{x}" cy="{y}" r="7"/>'
        f'<text x="{x}" y="{y + 23}">{sequence:,}</text></a>'
    )
