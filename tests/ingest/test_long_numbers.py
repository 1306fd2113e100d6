"""Long numbers: found anywhere in a text, never in its strings, as a plain walk over the text finds them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.decimals import has_long_number
from tidelock.definitions import Definitions
from tidelock.ingest.admit import Admission
from tidelock.ingest.body import CLOUDEVENT, CLOUDEVENTS, JSON, NDJSON, decode
from tidelock.ingest.identity import Salts
from tidelock.ingest.wire import WireEvent
from tidelock.model import Event, Rejected

LONG = b"1" * 401
GOOD = b'{"stream":"good"}'
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[-+.0-9eE]+', re.DOTALL)


@pytest.mark.parametrize(
    "number",
    [LONG, b"-" + b"1" * 400, b"0." + b"1" * 399, b"1e" + b"1" * 399, b"1.5e+" + b"0" * 396, b"9" * 4301],
    ids=lambda number: f"{number[:5].decode()}, {len(number)}",
)
def test_a_number_of_more_than_400_characters_is_long_in_whatever_form(number: bytes) -> None:
    assert has_long_number(number)
    assert has_long_number(b'{"a":[null,{"b":' + number + b"}]}")
    assert not has_long_number(b'{"a":' + number[:400] + b"}")


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":"' + LONG * 3 + b'"}',
        b'{"a":"x\\"' + LONG + b'"}',
        b'{"a":"\\\\","b":"' + LONG + b'"}',
        b'{"' + LONG + b'":1}',
        b"[" + b",".join([b"1" * 400] * 9) + b"]",
        b'["' + LONG,
    ],
)
def test_digits_in_a_string_and_short_numbers_in_a_row_are_no_long_number(text: bytes) -> None:
    assert not has_long_number(text)


@given(
    st.lists(
        st.sampled_from([b'"', b"\\", b",", b"[", b"x", b'"1"']) | st.integers(390, 410).map(lambda n: b"7" * n),
        max_size=12,
    ).map(b"".join)
)
def test_it_finds_what_a_plain_walk_finds(text: bytes) -> None:
    text = b'["' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'",' + b"7" * (len(text) % 500) + b"]"
    walked = any(len(token) > 400 and not token.startswith(b'"') for token in _TOKENS.findall(text))
    assert has_long_number(text) == walked


def test_a_large_text_made_to_be_slow_is_judged_in_time() -> None:
    for text in (b'["' + b'\\"1' * 4_000_000 + LONG + b'"]', b"[" + b'"1",' * 4_000_000 + b'"' + LONG + b'"]'):
        assert not has_long_number(text)


def judged(body: bytes, media_type: str = JSON) -> list[Event | Rejected]:
    admission = Admission(Definitions(), Salts(("s",), 1), True, 1 << 20, 64)
    found = decode(body, media_type, 100).events
    return [admission.admit(event) if isinstance(event, WireEvent) else event for event in found]


def problem(event: Event | Rejected) -> tuple[str, str | None]:
    assert isinstance(event, Rejected)
    assert "longer than 400 characters" in event.error.message
    return event.error.code, event.error.field


@pytest.mark.parametrize("form", [b"[%s,%s,%s]", b'{"events":[%s,%s,%s]}', b"%s\n%s\n%s"])
@pytest.mark.parametrize(
    ("member", "field"),
    [
        (b'"data":{"n":%s}' % LONG, "data"),
        (b'"data":%s' % LONG, "data"),
        (b'"data":{"a":[{"b":[-%s]}]}' % LONG, "data"),
        (b'"payload":[%s]' % LONG, "payload"),
        (b'"quantity":1.%s' % (b"0" * 400), "quantity"),
        (b'"quantity":"1.%s"' % (b"0" * 400), "quantity"),
        (b'"ts":%s' % LONG, "ts"),
        (b'"unknown":%s' % LONG, "unknown"),
    ],
)
def test_a_long_number_anywhere_in_an_event_is_refused_and_its_neighbours_are_not(
    form: bytes, member: bytes, field: str
) -> None:
    bad = b'{"stream":"s",%s}' % member
    before, refused, after = judged(form % (GOOD, bad, GOOD), NDJSON if form.startswith(b"%s") else JSON)
    assert isinstance(before, Event)
    assert isinstance(after, Event)
    assert problem(refused) == ("invalid_event", field)


def test_an_event_by_itself_and_cloudevents_are_held_to_it_too() -> None:
    (alone,) = judged(b'{"stream":"s","data":%s}' % LONG)
    assert problem(alone) == ("invalid_event", "data")
    cloud = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":%s}'
    assert problem(judged(cloud % LONG, CLOUDEVENT)[0]) == ("invalid_event", "data")
    good, bad = judged(b"[%s,%s]" % (cloud % b"1", cloud % (b"[%s]" % LONG)), CLOUDEVENTS)
    assert isinstance(good, Event)
    assert problem(bad) == ("invalid_event", "data")


def test_400_characters_and_digits_in_strings_are_taken() -> None:
    body = b'[{"stream":"s","data":{"n":%s,"t":"%s"}},%s]' % (LONG[1:], LONG * 2, GOOD)
    assert [type(event) for event in judged(body)] == [Event, Event]
