"""Random ledgers for event time reach all that can happen: what they do not try, the law is not tried on."""

from collections import Counter
from random import Random

import pytest

from tests.law.ledgers import COMPUTED, Toml
from tests.law.packs import Pack, drawn, pack
from tests.law.timelines import controls, timed_definitions, timed_ledgers
from tests.model import State, fold
from tidelock.definitions import parse_definitions

pytestmark = pytest.mark.check

KINDS = ("tumbling", "hopping", "session", "count")
SEED = 7


def happenings(packed: Pack, toml: Toml, state: State) -> Counter[str]:
    """What was seen, and how often."""
    seen: Counter[str] = Counter()
    ticks = {event.source_timestamp for event in packed.events if event.data == '{"type": "tick"}'}
    drains = {event.source_timestamp for event in packed.events if event.stream == "_tidelock"} - ticks
    for name, window in toml["windows"].items():
        (kind,) = window["window"]
        time = "event time" if window.get("eventtime", {}).get("enabled") else "arrival"
        for at in state.source_timestamps.get(name, {}).values():
            what = "tick" if at in ticks else "drain" if at in drains else "rows"
            seen.update([f"{kind} by {time} closed by {what}", f"any by {time} closed by {what}"])
    for (name, _), rows in state.open_windows.items():
        seen["open" if name in toml["windows"] else "nothing"] += bool(rows)
    for (name, _), held in state.held.items():
        seen["held by windows" if name in toml["windows"] else "held by streams"] += bool(held)
    for row in state.table("late_rows").values():
        seen[f"{row['reason']} for {'a window' if row['window'] in toml['windows'] else 'a stream'}"] += 1
    for row in state.table("error_rows").values():
        seen[row["code"] + (" in a message" if row["message"].startswith("in a message") else "")] += 1
    seen["released"] += sum(len(state.table(f"{name}_ordered")) for name in toml["streams"])
    return seen


def test_random_ledgers_of_event_time_try_everything() -> None:
    tomls = drawn(timed_definitions(), 50, SEED)[9::10]
    many = drawn(timed_ledgers(), 60, SEED)
    seen: Counter[str] = Counter()
    for number, toml in enumerate(tomls):
        parse_definitions(toml)
        packed = pack(many, Random(number), controls=controls(toml), scattered=8)
        seen += happenings(packed, toml, fold(packed.events, toml, COMPUTED))
    wanted = {f"{kind} by event time closed by {what}" for kind in KINDS for what in ("rows", "tick", "drain")}
    wanted |= {f"{kind} by arrival closed by rows" for kind in KINDS}
    wanted |= {f"{reason} for {what}" for reason in ("late", "drained") for what in ("a window", "a stream")}
    wanted |= {"any by arrival closed by tick", "open", "held by windows", "held by streams", "released"}
    codes = ("invalid_event_time", "future_event_time")
    wanted |= {code + where for code in codes for where in ("", " in a message")} | {"invalid_column"}
    assert not {what for what in wanted if seen[what] < 3}, seen


def test_part_of_a_pack_is_where_it_was_with_all_control_events() -> None:
    toml = drawn(timed_definitions(), 10, SEED)[-1]
    packed = pack(drawn(timed_ledgers(), 10, SEED), Random(SEED), controls=controls(toml), scattered=8)
    part = packed.only(lambda event: event.tenant_id.startswith("3-"))
    assert {event.tenant_id.split("-")[0] for event in part.events} == {"3", "_tidelock"}
    assert set(part.events) <= set(packed.events)
    assert part.ends[-1] == part.events[-1].ingress_sequence
    assert part.ends == sorted(set(part.ends))
    # Event time is everyone's own, so it tells the same of those that are left.
    whole, alone = fold(packed.events, toml, COMPUTED), fold(part.events, toml, COMPUTED)
    own = {place: raises for place, raises in whole.raises.items() if place[1].startswith("3-")}
    assert alone.raises == own
