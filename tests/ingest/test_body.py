"""Bodies: every accepted form, and bad neighbours that harm nobody."""

import gzip
import json
from base64 import b64encode
from contextlib import suppress
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tidelock.errors import InvalidJson, PayloadTooLarge, RequestError, TidelockError, UnsupportedMedia
from tidelock.ingest.body import CLOUDEVENT, CLOUDEVENTS, JSON, MEDIA_TYPES, NDJSON, decode, decode_data, decompress
from tidelock.ingest.cloudevents import binary_attributes
from tidelock.ingest.wire import WireEvent
from tidelock.model import Rejected

GOOD = b'{"stream":"good"}'
CLOUD = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}


def streams(body: bytes, media_type: str = JSON) -> list[str | None]:
    return [event.stream if isinstance(event, WireEvent) else None for event in decode(body, media_type, 100).events]


@pytest.mark.parametrize("body", [b'{"events":[%s]}', b"[%s]", b"%s", b" \n[ %s ]\n", b"\xef\xbb\xbf[%s]"])
def test_an_event_comes_wrapped_in_an_array_or_alone(body: bytes) -> None:
    assert streams(body % GOOD) == ["good"]


def test_nothing_is_nothing() -> None:
    assert streams(b"[]") == streams(b'{"events":[]}') == streams(b"", NDJSON) == []


@pytest.mark.parametrize(
    "bad",
    [
        b"5", b"null", b"[]", b'"text"', b'{"unknown":1}', b'{"stream":5}', b'{"stream":"s","ts":1.5}',
        b'{"stream":"\\ud800"}', b'{"stream":"s","data":"\\udc00\\ud800"}',
        b'{"stream":"s","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"stream":"s","data":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    ],
    ids=lambda bad: bad[:30].decode(),
)  # fmt: skip
def test_a_bad_event_leaves_its_neighbours_readable(bad: bytes) -> None:
    for body in (b"[%s,%s,%s]" % (GOOD, bad, GOOD), b'{"events":[%s,%s,%s]}' % (GOOD, bad, GOOD)):
        found = streams(body)
        assert len(found) == 3
        assert found[0] == found[2] == "good"


@pytest.mark.parametrize(
    "bad", [b"{", b"}", b"5", b'{"stream":"\xff"}', b'{"stream":"s","data":"\xff"}', b"[]", b"nul"]
)
def test_a_bad_line_is_one_rejected_result(bad: bytes) -> None:
    assert streams(b"%s\n%s\r\n\n  \n%s" % (GOOD, bad, GOOD), NDJSON) == ["good", None, "good"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[", b'[{"stream":"s"},]', b'{"stream":"\xff"}', b"\x00", b"NaN", b"[1 2]"]
)
def test_a_body_that_is_not_json_is_refused_as_a_whole(body: bytes) -> None:
    with pytest.raises(InvalidJson):
        decode(body, JSON, 100)


@pytest.mark.parametrize("body", [b"5", b'"text"', b"null", b'{"events":null}', b'{"events":[],"more":1}'])
def test_json_of_another_shape_is_an_invalid_request(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        decode(body, JSON, 100)
    assert caught.value.code == "invalid_request"


def test_an_unknown_content_type_names_the_known_ones() -> None:
    with pytest.raises(UnsupportedMedia, match=NDJSON):
        decode(GOOD, "text/csv", 100)


def test_more_events_than_a_request_may_have_are_too_many() -> None:
    for body, kind in ((b"[" + b",".join([GOOD] * 101) + b"]", JSON), (b"\n".join([GOOD] * 101), NDJSON)):
        with pytest.raises(PayloadTooLarge, match="101"):
            decode(body, kind, 100)


def test_a_cloudevent_maps_onto_an_event() -> None:
    sent = CLOUD | {
        "subject": "cus", "time": "2026-01-01T00:00:00Z", "data": {"a": 1}, "tenantid": "acme", "quantity": "2",
        "resourceid": "r", "causalitykey": "k", "correlationid": "c", "causationid": "p", "somethingelse": "x",
    }  # fmt: skip
    (event,) = decode(json.dumps(sent).encode(), CLOUDEVENT, 10).events
    assert isinstance(event, WireEvent)
    assert (event.stream, event.customer_ref, event.ts, event.idempotency_key, event.source) == (
        "t", "cus", "2026-01-01T00:00:00Z", '["/s","1"]', "/s",
    )  # fmt: skip
    assert (event.tenant_id, event.resource_id, event.causality_key, event.correlation_id, event.causation_id) == (
        "acme", "r", "k", "c", "p",
    )  # fmt: skip
    assert (bytes(event.quantity), json.loads(bytes(event.data))) == (b'"2"', {"a": 1})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"specversion": "0.3"}, "specversion"), ({"id": ""}, "id"), ({"source": None}, "source"),
        ({"type": 5}, "type"),
        ({"data_base64": "eA="}, "data_base64"), ({"data_base64": "_-__"}, "data_base64"),
        ({"data_base64": 5}, "data_base64"), ({"data_base64": "eA==", "data": 1}, "data_base64"),
        ({"data_base64": "eA==", "datacontenttype": "application/json"}, "data_base64"),
        ({"data_base64": "/w==", "datacontenttype": "text/plain"}, "data_base64"),
        ({"op": "insert"}, "op"), ({"time": 5}, "time"), ({"subject": "x" * 256}, "subject"),
        ({"id": "x" * 1024}, "id"), ({"id": "ü" * 508}, "id"), ({"id": "a\0"}, "id"), ({"id": "\ud800"}, "id"),
        ({"causationid": "x" * 1025}, "causationid"), ({"causationid": "ü" * 513}, "causationid"),
        ({"source": "x" * 256}, "source"), ({"type": "x" * 256}, "type"),
    ],
    ids=str,
)  # fmt: skip
def test_a_broken_cloudevent_is_rejected_and_its_batch_continues(change: dict[str, Any], field: str) -> None:
    events = decode(json.dumps([CLOUD, CLOUD | change, CLOUD]).encode(), CLOUDEVENTS, 10).events
    assert [type(event) for event in events] == [WireEvent, Rejected, WireEvent]
    rejected = events[1]
    assert isinstance(rejected, Rejected)
    assert rejected.error.field == field


@pytest.mark.parametrize(
    ("content", "media_type", "data"),
    [
        (b' {"a": [1.0]} ', "application/json", b'{"a": [1.0]}'), (b"5", "application/vnd.acme+json", b"5"),
        (b"\xef\xbb\xbf[]", "text/json", b"[]"), (b"null", "application/json", b"null"), (b"", "text/plain", b"null"),
        ('a "ü"\n'.encode(), "text/plain", '"a \\"ü\\"\\n"'.encode()), (b"<a/>", "text/xml", b'"<a/>"'),
        (b"\0\xff\x80", "application/octet-stream", b'"AP+A"'), (b'{"a":1}', "application/x-ndjson", b'"eyJhIjoxfQ=="'),
    ],
    ids=str,
)  # fmt: skip
def test_bytes_of_a_cloudevent_are_the_same_data_in_the_body_or_in_base64(
    content: bytes, media_type: str, data: bytes
) -> None:
    attributes = {"specversion": b"1.0", "id": b"1", "source": b"/s", "type": b"t"}
    packed = {"data_base64": b64encode(content.strip(b"\xef\xbb\xbf")).decode(), "datacontenttype": media_type}
    for events in (
        decode_data(content, media_type, attributes).events,
        decode(json.dumps(CLOUD | packed).encode(), CLOUDEVENT, 10).events,
    ):
        (event,) = events
        assert isinstance(event, WireEvent), event
        assert bytes(event.data) == data


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (b"cus_1", "cus_1"), (b"Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"), (b'"a \\"b\\" %25"', 'a "b" %'),
        (b"100%", "100%"), ("ü".encode(), "ü"), ("ü".encode("latin-1"), "ü"),
    ],
    ids=str,
)  # fmt: skip
def test_headers_of_a_cloudevent_are_percent_decoded(sent: bytes, read: str) -> None:
    headers = [(b"ce-specversion", b"1.0"), (b"ce-id", b"1"), (b"ce-source", b"/s"), (b"ce-type", b"t")]
    found = binary_attributes([*headers, (b"ce-subject", sent), (b"accept", b"*/*")])
    (event,) = decode_data(b"", JSON, found).events
    assert isinstance(event, WireEvent)
    assert event.customer_ref == read
    with pytest.raises(RequestError, match="ce-id is given twice"):
        binary_attributes([*headers, (b"ce-id", b"2")])
    (event,) = decode_data(b"", JSON, found | {"subject": b"%FF"}).events
    assert isinstance(event, Rejected)
    assert event.error.field == "subject"


@pytest.mark.parametrize(("body", "media_type"), [(b"{", JSON), (b'"\xff"', JSON), (b" ", JSON), (b"\xff", "text/css")])
def test_a_body_that_is_not_what_it_says_is_refused(body: bytes, media_type: str) -> None:
    with pytest.raises(InvalidJson):
        decode_data(body, media_type, {"specversion": b"1.0", "id": b"1", "source": b"/s", "type": b"t"})


def test_the_keys_of_a_cloudevent_have_the_length_of_keys() -> None:
    sent = CLOUD | {"id": "x" * 1015, "causationid": "y" * 1024}
    (event,) = decode(json.dumps(sent).encode(), CLOUDEVENT, 10).events
    assert isinstance(event, WireEvent)
    assert event.idempotency_key is not None
    assert len(event.idempotency_key) == 1024
    assert event.causation_id == "y" * 1024


def test_compressed_bodies_are_the_same_bodies() -> None:
    text = GOOD * 1000
    assert decompress(gzip.compress(text), "gzip", 10**6) == text
    assert decompress(gzip.compress(text) + gzip.compress(b"more"), "gzip", 10**6) == text + b"more"
    assert decompress(zstandard.compress(text), "zstd", 10**6) == text
    assert decompress(text, "", 10**6) == text


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_small_body_that_unpacks_to_a_huge_one_is_stopped_at_the_limit(encoding: str) -> None:
    huge = bytes(50_000_000)
    packed = gzip.compress(huge) if encoding == "gzip" else zstandard.compress(huge)
    with pytest.raises(PayloadTooLarge):
        decompress(packed, encoding, 1_000_000)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_damaged_compressed_body_is_refused(encoding: str) -> None:
    packed = gzip.compress(GOOD) if encoding == "gzip" else zstandard.compress(GOOD)
    for damaged in (packed[:-4], packed[: len(packed) // 2], b"not packed", b"\x00" + packed):
        with pytest.raises(RequestError):
            decompress(damaged, encoding, 1000)


def test_an_unknown_encoding_names_the_known_ones() -> None:
    with pytest.raises(UnsupportedMedia, match="gzip or zstd"):
        decompress(GOOD, "br", 1000)


@given(st.binary(max_size=200), st.sampled_from(MEDIA_TYPES))
def test_any_bytes_give_events_or_an_error_for_people(body: bytes, media_type: str) -> None:
    with suppress(TidelockError):
        assert len(decode(body, media_type, 10).events) <= 10


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


@given(json_values, st.sampled_from([JSON, CLOUDEVENTS]))
def test_any_json_value_beside_good_events_leaves_them_good(value: object, media_type: str) -> None:
    good = GOOD.decode() if media_type == JSON else json.dumps(CLOUD)
    text = f"[{good},{json.dumps(value)},{good}]"
    try:
        found = decode(text.encode("utf-8", "surrogatepass"), media_type, 10).events
    except InvalidJson:
        assert "NaN" in text or "Infinity" in text or any("\ud800" <= character <= "\udfff" for character in text)
        return
    assert len(found) == 3
    assert isinstance(found[0], WireEvent)
    assert isinstance(found[2], WireEvent)


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (r"\ud83d\ude00", True),
        (r"\uD83D\uDE00", True),
        (r"\\ud800", True),
        (r"\\\ud800", False),
        (r"\ud800\ud800", False),
        (r"\ud83d\ude00\ude00", False),
        (r"\ud800x", False),
        (r"\udc00\ud800", False),
        (r"\ud83d\\ude00", False),
        (r"\u0041\\", True),
    ],
)
def test_whole_surrogate_pairs_are_text_and_halves_become_nul(text: str, taken: bool) -> None:
    good, event = decode(b'[{"stream":"good"},{"stream":"s","data":"%s"}]' % text.encode(), JSON, 10).events
    assert isinstance(good, WireEvent)
    assert isinstance(event, WireEvent)
    assert (b"\\u0000" not in bytes(event.data)) == taken


def test_a_body_full_of_backslashes_is_read_in_time() -> None:
    # What tries every beginning of it would take days.
    decode(b'["' + rb"\\" * 4_000_000 + rb'\u0041\ud800"]', JSON, 10)
