"""Admission: what is taken, what is refused, and which field is named."""

from typing import Any

import msgspec
import pytest

from tidelock.definitions import parse_definitions
from tidelock.ingest.admit import Admission, Writer
from tidelock.ingest.body import JSON, decode
from tidelock.ingest.identity import Salts
from tidelock.instants import parse_rfc3339
from tidelock.model import Event, Problem, Rejected

DEFINITIONS = parse_definitions(
    {
        "streams": {
            "trades": {"key": "trade_id", "columns": {"trade_id": "bigint", "symbol": "string"}},
            "legs": {"key": ["trade_id", "leg"], "columns": {"trade_id": "bigint", "leg": "string"}},
        },
        "meters": {"api_calls": {"aggregation": "sum", "period": "month"}},
    }
)
SALTS = Salts(("salt",), 1)
ANYBODY = Writer()


def admit(sent: dict[str, Any], writer: Writer = ANYBODY, *, streams_open: bool = True) -> Event | Problem:
    body = decode(msgspec.json.encode([sent]), JSON, 10)
    wire = body.events[0]
    if isinstance(wire, Rejected):
        return wire.error
    admission = Admission(DEFINITIONS, SALTS, streams_open, event_bytes_max=1000, data_depth_max=8, writer=writer)
    judged = admission.admit(wire)
    return judged.error if isinstance(judged, Rejected) else judged


def taken(sent: dict[str, Any], writer: Writer = ANYBODY, *, streams_open: bool = True) -> Event:
    event = admit(sent, writer, streams_open=streams_open)
    assert isinstance(event, Event), event
    return event


def refused(sent: dict[str, Any], writer: Writer = ANYBODY, *, streams_open: bool = True) -> tuple[str, str | None]:
    problem = admit(sent, writer, streams_open=streams_open)
    assert isinstance(problem, Problem), problem
    assert problem.message
    return problem.code, problem.field


def test_only_the_stream_is_required() -> None:
    event = taken({"stream": "s"})
    assert (event.tenant_id, event.stream, event.op, event.keys, event.key_source) == (
        "default", "s", "upsert", (), "none",
    )  # fmt: skip


def test_aliases_say_the_same_as_the_main_names() -> None:
    aliases = {"metric": "s", "occurredAt": "2026-01-01T00:00:00Z", "meta": {"a": 1}}
    names = {"stream": "s", "ts": "2026-01-01T00:00:00Z", "data": {"a": 1}}
    assert taken(aliases) == taken(names) == taken(names | {"data": None, "payload": {"a": 1}})


@pytest.mark.parametrize(
    ("name", "alias"),
    [("stream", "metric"), ("ts", "occurredAt"), ("data", "meta"), ("data", "payload"), ("meta", "payload")],
)
def test_an_alias_beside_its_own_name_is_refused(name: str, alias: str) -> None:
    value = "2026-01-01T00:00:00Z"
    code, field = refused({"stream": "s", name: value, alias: value})
    assert code == "invalid_event"
    assert field == alias


def test_a_timestamp_is_a_string_or_integer_milliseconds() -> None:
    text, number = taken({"stream": "s", "ts": "2026-01-31T23:59:59.5Z"}), taken({"stream": "s", "ts": 1769903999500})
    assert text == number
    assert text.occurred_at == parse_rfc3339("2026-01-31T23:59:59.5Z")


@pytest.mark.parametrize("ts", ["yesterday", "", 1.5, True, [], "2262-01-01T00:00:00Z", 10**17, "2026-01-01T00:00:00"])
@pytest.mark.parametrize("field", ["ts", "occurredAt"])
def test_a_timestamp_that_is_none_is_named(field: str, ts: object) -> None:
    assert refused({"stream": "s", field: ts}) == ("invalid_timestamp", field)


@pytest.mark.parametrize(
    ("sent", "stored"), [("1.50", "1.5"), (1.5, "1.5"), (-3, "-3"), ("1e3", "1000"), (None, None), (0.1, "0.1")]
)
def test_quantities_are_exact_decimals(sent: object, stored: str | None) -> None:
    assert taken({"stream": "s", "quantity": sent}).quantity == stored


@pytest.mark.parametrize("quantity", ["", "NaN", True, [], {}, "1e18", "0.0000000001", "ten", "1\u0000"])
def test_a_quantity_that_is_none_is_named(quantity: object) -> None:
    assert refused({"stream": "s", "quantity": quantity}) == ("invalid_quantity", "quantity")


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({}, "stream"),
        ({"stream": ""}, "stream"),
        ({"stream": "_tidelock"}, "stream"),
        ({"stream": 5}, "stream"),
        ({"stream": "s", "tenantId": ""}, "tenantId"),
        ({"stream": "s", "tenantId": "*"}, "tenantId"),
        ({"stream": "s", "idempotencyKey": ""}, "idempotencyKey"),
        ({"stream": "s", "op": "insert"}, "op"),
        ({"stream": "s", "customerId": "x"}, "customerId"),
        ({"stream": "s", "customerRef": "x" * 256}, "customerRef"),
        ({"stream": "s", "idempotencyKey": "x" * 1025}, "idempotencyKey"),
        ({"stream": "s", "idempotencyKey": "客" * 400}, "idempotencyKey"),
        ({"stream": "𝕏" * 250, "tenantId": "𝕏" * 250, "customerRef": "𝕏" * 250}, "customerRef"),
        ({"stream": "s\u0000"}, "stream"),
        ({"stream": "s", "customerRef": "\u0000"}, "customerRef"),
        ({"stream": "s", "data": {"a": "\u0000"}}, "data"),
        ({"stream": "trades", "data": {}}, "trade_id"),
        ({"stream": "trades"}, "trade_id"),
        ({"stream": "legs", "data": {"trade_id": 1, "leg": None}}, "leg"),
        ({"stream": "s", "data": [[[[[[[[[0]]]]]]]]]}, "data"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_stored_is_an_invalid_event_that_names_the_field(sent: dict[str, Any], field: str) -> None:
    assert refused(sent) == ("invalid_event", field)


VOID = {"stream": "s", "op": "void", "target": "k"}
AMEND = {"stream": "s", "op": "amend", "target": "k"}


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"stream": "s", "op": "void"}, "target"),
        ({"stream": "s", "op": "amend", "target": ""}, "target"),
        ({"stream": "s", "op": "void", "target": None}, "target"),
        (VOID | {"target": "x" * 1025}, "target"),
        (VOID | {"target": "客" * 400}, "target"),
        (VOID | {"target": "\u0000"}, "target"),
        (VOID | {"target": 5}, "target"),
        (VOID | {"ts": 0}, "ts"),
        (AMEND | {"occurredAt": "2026-01-01T00:00:00Z"}, "occurredAt"),
        (VOID | {"customerRef": "cus_1"}, "customerRef"),
        (AMEND | {"resourceId": ""}, "resourceId"),
        (VOID | {"quantity": 0}, "quantity"),
        (VOID | {"data": {}}, "data"),
        (VOID | {"payload": 1}, "data"),
        ({"stream": "s", "target": "k"}, "target"),
        ({"stream": "s", "op": "upsert", "target": "k"}, "target"),
        ({"stream": "trades", "op": "delete", "target": "k", "data": {"trade_id": 1}}, "target"),
        ({"stream": "s", "reason": "x" * 256}, "reason"),
        ({"stream": "s", "batchId": "x" * 256}, "batchId"),
        ({"stream": "s", "batchId": "\u0000"}, "batchId"),
        ({"stream": "s", "batch_id": "b"}, "batch_id"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_correction_names_one_target_and_leaves_who_and_when_to_it(sent: dict[str, Any], field: str) -> None:
    assert refused(sent) == ("invalid_event", field)


def test_null_is_absent_in_a_correction_too() -> None:
    absent = {"ts": None, "customerRef": None, "resourceId": None, "quantity": None, "data": None}
    assert taken(VOID | absent) == taken(VOID)


def test_an_amendment_may_say_nothing() -> None:
    assert taken(AMEND).target == "k"


def test_any_event_may_have_a_reason_and_a_batch() -> None:
    event = taken({"stream": "s", "ts": 0, "reason": "r" * 255, "batchId": "b"})
    assert (event.reason, event.batch_id) == ("r" * 255, "b")
    plain = taken({"stream": "s", "ts": 0})
    assert (plain.keys, plain.content_hash) == (event.keys, event.content_hash)


def test_the_key_of_a_correction_derives_from_what_it_corrects_and_how() -> None:
    void, again = taken(VOID), taken(VOID | {"reason": "other", "batchId": "b", "source": "x"})
    assert (void.keys, void.key_source, void.content_hash) == (again.keys, "derived", again.content_hash)
    others = [AMEND, VOID | {"target": "l"}, VOID | {"stream": "t"}, VOID | {"tenantId": "acme"}]
    assert len({taken(sent).keys for sent in [VOID, *others]}) == 5
    assert taken(AMEND | {"quantity": 1}).keys == taken(AMEND | {"quantity": 2}).keys
    assert taken(VOID | {"idempotencyKey": "own"}).keys == ("own",)


def test_the_content_of_a_correction_covers_its_target() -> None:
    own = {"idempotencyKey": "own"}
    hashes = {taken(sent | own).content_hash for sent in (VOID, AMEND, VOID | {"target": "l"})}
    assert len(hashes) == 3


def test_a_correction_in_a_keyed_stream_needs_no_row_and_is_left_to_the_ledger() -> None:
    event = taken({"stream": "trades", "op": "void", "target": "k"})
    assert (event.row_key, event.in_keyed_stream) == (None, True)


def test_the_longest_names_are_taken() -> None:
    assert taken({"stream": "s" * 255, "customerRef": "客" * 255, "idempotencyKey": "k" * 1024})


def test_data_over_the_limit_is_too_large() -> None:
    assert refused({"stream": "s", "data": "x" * 2000}) == ("payload_too_large", "data")


def test_brackets_inside_strings_do_not_count_as_depth() -> None:
    assert taken({"stream": "s", "data": {"a": "[[[[[[[[[[[[", "b": [1], "c": [2]}})


def test_an_escaped_backslash_before_u0000_is_text_and_no_nul() -> None:
    assert taken({"stream": "s", "data": {"path": "C:\\u0000"}}).data == b'{"path":"C:\\\\u0000"}'


def test_data_is_kept_as_it_was_sent() -> None:
    text = b'[{"stream":"s","data": {"b" : 1.10,  "a":1e400}}]'
    wire = decode(text, JSON, 10).events[0]
    assert not isinstance(wire, Rejected)
    event = Admission(DEFINITIONS, SALTS, True, 1000, 8).admit(wire)
    assert isinstance(event, Event)
    assert event.data == b'{"b" : 1.10,  "a":1e400}'


def test_a_clients_key_is_honoured_and_otherwise_one_is_derived() -> None:
    sent = {"stream": "s", "ts": 0}
    assert taken(sent).key_source == "derived"
    assert len(taken(sent).keys[0]) == 43
    client = taken(sent | {"idempotencyKey": "k"})
    assert (client.keys, client.key_source) == (("k",), "client")


def test_absent_and_empty_resource_differ() -> None:
    assert taken({"stream": "s", "ts": 0}).keys != taken({"stream": "s", "ts": 0, "resourceId": ""}).keys


def test_two_rows_of_one_instant_in_a_keyed_stream_are_two_events() -> None:
    one, two = (taken({"stream": "trades", "ts": 0, "data": {"trade_id": number}}) for number in (1, 2))
    assert one.keys != two.keys
    assert (one.row_key, two.row_key) == ("1", "2")
    named = [taken({"stream": "trades", "ts": 0, "resourceId": "r", "data": {"trade_id": n}}) for n in (1, 2)]
    assert named[0].keys == named[1].keys


def test_the_row_key_stands_in_for_an_absent_resource() -> None:
    keyed = taken({"stream": "trades", "ts": 0, "data": {"trade_id": 1}})
    assert keyed.keys == taken({"stream": "trades", "ts": 0, "resourceId": "1", "data": {"trade_id": 1}}).keys
    assert keyed.resource_id is None


def test_several_key_columns_are_a_compact_array_of_their_texts() -> None:
    assert taken({"stream": "legs", "data": {"trade_id": "7", "leg": "né"}}).row_key == '["7","né"]'


def test_a_stream_is_known_when_declared_or_metered_or_when_streams_are_open() -> None:
    assert taken({"stream": "api_calls"}, streams_open=False)
    assert taken({"stream": "trades", "data": {"trade_id": 1}}, streams_open=False)
    assert refused({"stream": "s"}, streams_open=False) == ("unknown_stream", "stream")


def test_a_key_writes_its_own_tenant_and_streams_only() -> None:
    writer = Writer("acme", frozenset({"a"}))
    assert taken({"stream": "a"}, writer).tenant_id == "acme"
    assert refused({"stream": "a", "tenantId": "other"}, writer) == ("tenant_mismatch", "tenantId")
    assert refused({"stream": "b"}, writer) == ("key_not_allowed", "stream")
