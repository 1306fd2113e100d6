"""The demo's producers do what producers do, and the ledger's rules take what they send."""

from __future__ import annotations

from collections import Counter

from tidelock.demo.scenes import Event, history, producers

MINUTES = 3
START_MS = 1_800_000_000_000


def turns() -> list[list[Event]]:
    sending = producers(7, "6a")
    return [
        request
        for now_ms in range(START_MS, START_MS + MINUTES * 60_000, 250)
        for producer in sending
        for request in producer.turn(now_ms)
    ]


def test_producers_retry_come_late_disagree_about_the_time_and_fall_silent() -> None:
    requests = turns()
    events = [event for request in requests for event in request]
    assert len(events) > 500
    sent = Counter(str(request) for request in requests)
    assert max(sent.values()) > 1, "some requests are sent again as they were"
    calls = [event for event in events if event["stream"] == "api_calls" and "source" in event]
    first = {region: min(e["ts"] for e in calls if e["data"]["region"] == region) for region in ("eu", "us", "ap")}
    assert first["us"] < first["eu"], "a clock is behind"
    times = [event["ts"] for event in calls]
    assert times != sorted(times), "events are out of order"
    sizes = [len(request) for request in requests if "-gw-ap" in str(request)]
    assert max(sizes) > 5 * sorted(sizes)[len(sizes) // 2], "what was held back comes at once"
    said = {(event["resourceId"], event["ts"], event["quantity"]) for event in calls}
    assert len(said) > len({(resource, ts) for resource, ts, _ in said}), "one is sent again with another quantity"
    assert {event.get("tenantId", "default") for event in events} == {"default", "acme", "globex"}


def test_orders_and_what_they_caused_are_one_chain_across_streams() -> None:
    events = {
        event["idempotencyKey"]: event for request in turns() for event in request if event.get("source") == "desk"
    }
    done = [event for key, event in events.items() if key.startswith("done")]
    assert done
    for event in done:
        filled = events[event["causationId"]]
        placed = events[filled["causationId"]]
        assert [placed["stream"], filled["stream"], event["stream"]] == ["orders", "trades", "orders"]
        assert placed["causalityKey"] == filled["causalityKey"] == event["causalityKey"]


def test_the_same_seed_says_the_same() -> None:
    assert [str(request) for request in turns()] == [str(request) for request in turns()]


def test_what_was_before_the_demo_is_the_same_at_every_start_of_a_day() -> None:
    told = [event for request in history(START_MS) for event in request]
    again = [event for request in history(START_MS + 3_600_000) for event in request]
    assert told == again
    assert len({event["idempotencyKey"] for event in told}) == len(told)
    assert max(event["ts"] for event in told) < START_MS
    months = {event["ts"] // (31 * 86_400_000) for event in told if event["stream"] == "api_calls"}
    assert len(months) >= 5
