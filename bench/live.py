"""`bench live`: what a change costs among many filters, what a core sends to many subscribers, how soon they know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bench import fanout, filters, live_latency
from tidelock.settings import Settings

Say = Callable[[str], None]
Figures = dict[str, object]


def measure(
    settings: Settings,
    subscribers: Sequence[int],
    messages: int,
    seconds: int,
    rate: int,
    say: Say,
    *,
    config: Path | None = None,
    place: Path | None = None,
) -> Figures:
    """All figures; those of latency are left out where no seconds are to be spent on it."""
    say("changes among many filters")
    figures: Figures = dict(filters.figures(filters.measure(say)))
    say("messages to many subscribers")
    figures |= fanout.measure(subscribers, messages, say, place=place)
    if seconds:
        figures |= live_latency.measure(settings, seconds, rate, say, config=config, place=place)
    return figures


def rows(subscribers: Sequence[int], seconds: int) -> dict[str, str]:
    """The names of the figures, and what they say."""
    found = {}
    for kind in filters.KINDS:
        for count in filters.COUNTS:
            found[f"{kind.name}{count}FiltersMicroseconds"] = f"a change among {count:,} filters, {kind.title}, µs"
        found[f"{kind.name}Growth"] = f"    at {filters.COUNTS[-1]:,} against {filters.COUNTS[0]:,}"
    for count in subscribers:
        found |= {
            f"bareMessagesPerCore{count}": f"a bare loop of frames to {count:,} subscribers, messages/s and core",
            f"strawberryMessagesPerCore{count}": "Strawberry's subscriptions, the same",
            f"liveMessagesPerCore{count}": "subscriptions of Tidelock, the same",
            f"liveRatioToBare{count}": "    against the bare loop",
            f"liveRatioToStrawberry{count}": "    against Strawberry",
        }
    if seconds:
        found |= {
            "liveP50Ms": "p50 from acknowledgement to subscriber, ms",
            "liveP95Ms": "    p95",
            "liveP99Ms": "    p99",
            "visibleP50Ms": "p50 from acknowledgement to visible counter meanwhile, ms",
        }
    return found
