"""Ids and payloads of webhooks: functions of what happened, in the exact form that receivers rely on."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.columns import parse_column_type
from tidelock.errors import RequestError
from tidelock.triggers.definition import check_name, event_id
from tidelock.triggers.payloads import data_forms, payload

pytestmark = pytest.mark.check

CASES = Path(__file__).parent.parent / "cases"
IDS = json.loads((CASES / "identity.json").read_text())["event_ids"]
TRIGGERS = json.loads((CASES / "triggers.json").read_text())


def key_text(key: Any) -> str:
    return json.dumps(key, ensure_ascii=False, separators=(",", ":")) if isinstance(key, list) else str(key)


@pytest.mark.parametrize("case", IDS, ids=lambda case: case["event_id"])
def test_an_id_is_that_of_the_case(case: dict[str, Any]) -> None:
    made = event_id(case["trigger"], key_text(case["primary_key"]), int(case["source_timestamp"]))
    assert made == case["event_id"]


@pytest.mark.parametrize("case", TRIGGERS, ids=lambda case: case["name"])
def test_the_ids_of_transitions_are_those_of_the_case(case: dict[str, Any]) -> None:
    for sent in case["deliveries"]:
        made = event_id(case["trigger"]["name"], key_text(sent["key"]), int(sent["source_timestamp"]))
        assert made == sent["event_id"]


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "x" * 128])
def test_a_name_may_have_letters_digits_dots_dashes_and_underscores(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "x" * 129, "a:b", "a b", "é", "a\n", "a/b", "\0"])
def test_any_other_name_is_refused(name: str) -> None:
    with pytest.raises(RequestError) as refused:
        check_name(name)
    assert refused.value.field == "name"


@given(st.tuples(st.from_regex(r"[A-Za-z0-9_.-]{1,5}", fullmatch=True), st.text(max_size=5), st.integers(0, 9)))
def test_what_an_id_is_made_of_is_read_in_one_way_only(made_of: tuple[str, str, int]) -> None:
    trigger, key, time = made_of
    text = f"{trigger}:{key}:{time}"
    first, rest = text.split(":", 1)
    assert (first, *rest.rsplit(":", 1)) == (trigger, key, str(time))


def test_a_payload_has_these_fields_in_this_order() -> None:
    body = payload(
        event_id="acf67a288f80147280c9d4b1e99378cd",
        event_type="MATCH",
        trigger="large_trade_alert",
        source_timestamp=1_705_316_445_123_456_789,
        data=b'{"trade_id":123}',
        sent_at_ns=1_768_473_045_123_999_999,
    )
    assert body.decode() == (
        '{"event_id":"acf67a288f80147280c9d4b1e99378cd","event_type":"MATCH","trigger_name":"large_trade_alert",'
        '"timestamp":"2026-01-15T10:30:45.123Z","source_timestamp":"1705316445123456789","data":{"trade_id":123}}'
    )


def test_the_row_has_the_forms_of_rest_and_never_the_tenant() -> None:
    types = {"id": "bigint", "price": "decimal(18,4)", "at": "timestamp", "note": "string", "extra": "json"}
    encode = data_forms({name: parse_column_type(text) for name, text in types.items()})
    row = {
        "tenant_id": "acme",
        "id": 2**60,
        "price": Decimal("1.5000"),
        "at": 1_768_473_045_500_000_000,
        "note": 'é"',
        "extra": '{"a": [1.10]}',
    }
    assert encode(row).decode() == (
        '{"id":1152921504606846976,"price":"1.5","at":"2026-01-15T10:30:45.5Z","note":"é\\"","extra":{"a": [1.10]}}'
    )
    assert json.loads(encode(dict.fromkeys(types))) == dict.fromkeys(types)


def test_a_row_from_before_its_columns_changed_is_sent_as_it_was() -> None:
    encode = data_forms({"at": parse_column_type("timestamp"), "level": parse_column_type("string")})
    assert json.loads(encode({"at": "soon", "level": Decimal("2.50"), "old": 1})) == {
        "at": "soon",
        "level": "2.50",
        "old": 1,
    }
