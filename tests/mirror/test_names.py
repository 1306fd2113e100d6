"""Names of topics: allowed by Kafka, another for each stream, and told back."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from tidelock.mirror.cluster import LENGTH_MAX, topic_name, topic_name_apart

STREAMS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=255)
LIKELY = st.text("ab._x2E5F /ü", min_size=1, max_size=12)
PIECE = re.compile(r"_x([0-9A-F]{2})|(.)", re.DOTALL)


def stream_of(prefix: str, topic: str) -> str:
    """The stream that a topic is named for. One that was cut gives what was cut."""
    pieces = PIECE.findall(topic.removeprefix(prefix))
    return b"".join(bytes.fromhex(code) if code else text.encode() for code, text in pieces).decode()


def test_what_is_allowed_stays_as_it_is() -> None:
    assert topic_name("tidelock.", "api_calls") == "tidelock.api_calls"
    assert topic_name("tidelock.", "_tidelock") == "tidelock._tidelock"
    assert topic_name("tidelock.", "com.example.Order-placed") == "tidelock.com.example.Order-placed"


def test_what_is_not_allowed_is_reported_by_its_bytes() -> None:
    assert topic_name("tidelock.", "api calls/v2") == "tidelock.api_x20calls_x2Fv2"
    assert topic_name("t-", "ü") == "t-_xC3_xBC"


def test_what_looks_like_such_a_byte_is_no_such_byte() -> None:
    assert topic_name("t.", "a_x20b") == "t.a_x5Fx20b"
    assert topic_name("t.", "a_x2gb") == "t.a_x2gb"


@given(STREAMS | LIKELY)
@example("\U0010ffff" * 255)
def test_every_name_is_one_that_kafka_takes(stream: str) -> None:
    for name in (topic_name("tidelock.", stream), topic_name_apart("tidelock.", stream)):
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name)


@given(STREAMS | LIKELY)
def test_a_name_gives_its_stream(stream: str) -> None:
    for name in (topic_name("tidelock.", stream), topic_name_apart("tidelock.", stream)):
        assert len(name) == LENGTH_MAX or stream_of("tidelock.", name) == stream


@given(STREAMS | LIKELY, STREAMS | LIKELY)
@example("a" * 255, "a" * 254 + "b")
def test_two_streams_never_have_one_name(one: str, other: str) -> None:
    names = [{topic_name("t.", stream), topic_name_apart("t.", stream)} for stream in (one, other)]
    assert one == other or not names[0] & names[1]


@given(st.text("ab._", min_size=1, max_size=8), st.text("ab._", min_size=1, max_size=8))
def test_names_apart_are_not_one_to_kafkas_metrics_either(one: str, other: str) -> None:
    """Kafka refuses a topic that differs from another in `.` and `_` alone."""
    alike = [topic_name_apart("t.", stream).replace(".", "_") for stream in (one, other)]
    assert one == other or alike[0] != alike[1]
    assert topic_name("t.", one).replace(".", "_") != alike[1] or topic_name("t.", one) == topic_name_apart("t.", other)
