"""Identity: derived keys by the literal formula, digests, content."""

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.ingest import identity
from tidelock.ingest.identity import Salts, canonical, content_hash, identity_digest, same_content
from tidelock.instants import format_nine, parse_rfc3339
from tidelock.model import Event

CASES = json.loads((Path(__file__).parent.parent / "cases" / "identity.json").read_text())
names = st.text(st.characters(codec="utf-8"), max_size=20)


def event(data: str | None = None, **fields: Any) -> Event:
    encoded = None if data is None else data.encode()
    values: dict[str, Any] = {
        "tenant_id": "t", "stream": "s", "customer_ref": None, "resource_id": None, "row_key": None, "op": "upsert",
        "occurred_at": 1, "quantity": None, "data": encoded, "causality_key": None, "correlation_id": None,
        "causation_id": None, "source": None, "keys": ("k",), "digests": (), "key_source": "client",
    } | fields  # fmt: skip
    covered = ("tenant_id", "stream", "customer_ref", "resource_id", "occurred_at", "quantity", "op", "data")
    hashed = content_hash(**{name: values[name] for name in covered})
    return Event(**values, content_hash=hashed)


@pytest.mark.parametrize("case", CASES["idempotency_keys"], ids=lambda case: case["idempotencyKey"][:8])
def test_a_derived_key_is_the_one_of_the_worked_example(case: dict[str, Any]) -> None:
    text = canonical(
        case["tenantId"],
        case["stream"],
        case["customerRef"],
        case["resourceId"],
        format_nine(parse_rfc3339(case["ts"])),
    )
    assert json.loads(text) == case["canonical"]
    assert Salts((CASES["salt"],), 1).derive(text) == (case["idempotencyKey"],)


@pytest.mark.parametrize("case", CASES["event_ids"], ids=lambda case: case["event_id"][:8])
def test_the_worked_example_of_a_trigger_event_id_follows_the_formula(case: dict[str, Any]) -> None:
    key = case["primary_key"]
    text = json.dumps(key, ensure_ascii=False, separators=(",", ":")) if isinstance(key, list) else str(key)
    material = f"{case['trigger']}:{text}:{case['source_timestamp']}"
    assert hashlib.sha256(material.encode()).hexdigest()[:32] == case["event_id"]


@given(salt=st.text(st.characters(codec="utf-8"), min_size=1, max_size=200), message=st.binary())
def test_the_fast_derivation_is_hmac_sha256_in_unpadded_base64url(salt: str, message: bytes) -> None:
    expected = base64.urlsafe_b64encode(hmac.digest(salt.encode(), message, "sha256")).rstrip(b"=").decode()
    assert Salts((salt,), 1).derive(message) == (expected,)


@given(tenant=names, stream=names, customer=st.none() | names, resource=st.none() | names)
def test_the_canonical_form_is_compact_json_with_nothing_escaped_needlessly(
    tenant: str, stream: str, customer: str | None, resource: str | None
) -> None:
    expected = json.dumps(
        [tenant, stream, customer, resource, "1970-01-01T00:00:00.000000001Z"],
        ensure_ascii=False,
        separators=(",", ":"),
    )
    assert canonical(tenant, stream, customer, resource, format_nine(1)).decode() == expected


def test_every_salt_gives_a_key_and_the_first_salts_key_comes_first() -> None:
    assert Salts(("new", "old"), 2).derive(b"m") == Salts(("new",), 1).derive(b"m") + Salts(("old",), 1).derive(b"m")


def test_one_key_in_two_tenants_is_two_identities() -> None:
    assert identity_digest("a", "k") != identity_digest("b", "k")
    assert identity_digest("a", "k") == hashlib.sha256(b'["a","k"]').digest()[:16]


def test_tenant_and_key_cannot_be_confused_by_where_one_ends() -> None:
    assert identity_digest("a", "b:c") != identity_digest("a:b", "c")
    assert identity_digest('a","b', "c") != identity_digest("a", 'b","c')


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"b":2}', '{"b":2,"a":1}'),
        ('{"a": [1, 2]}', '{"a":[1,2]}'),
        ('{"a":1.50}', '{"a":1.5}'),
        ('{"a":"\\u00e9"}', '{"a":"é"}'),
        ('{"a":1e3}', '{"a":1000}'),
        ('{"a":1e99999999999999999999}', '{"a": 1E99999999999999999999}'),
        ('{"a":true,"b":[false,1]}', '{"b":[false,1],"a":true}'),
        ('{"a":-0}', '{"a":0.0}'),
    ],
)
def test_member_order_white_space_and_spelling_make_no_conflict(one: str, other: str) -> None:
    assert same_content(event(one), event(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1}', '{"a":2}'),
        ('{"a":true}', '{"a":1}'),
        ('{"a":null}', "{}"),
        ('{"a":[1,2]}', '{"a":[2,1]}'),
        ('{"a":0.1}', '{"a":0.10000000000000000001}'),
        ('{"a":"1"}', '{"a":1}'),
        ('{"a":"1.5"}', '{"a":1.5}'),
        ('{"a":["1.5"]}', '{"a":1.5}'),
        ('{"a":[[true]]}', '{"a":[[1]]}'),
        ("1" * 5000, "1" * 5000 + " "),
        ('{"a":1e99999999999999999999}', '{"a":1e99999999999999999998}'),
        ("{}", None),
    ],
)
def test_another_value_is_other_content(one: str, other: str | None) -> None:
    assert not same_content(event(one), event(other))


def test_a_large_original_is_parsed_once_however_many_sends_are_compared_with_it() -> None:
    identity._parsed.cache_clear()
    original = event("[1.5,1.5]")
    assert not any(same_content(original, event(f"[{number}]")) for number in range(100))
    assert identity._parsed.cache_info().misses == 101, "each of the hundred once, and the original once"


@pytest.mark.parametrize(
    "change",
    [
        {"stream": "x"}, {"customer_ref": ""}, {"resource_id": ""}, {"occurred_at": None}, {"quantity": "0"},
        {"op": "delete"},
    ],
    ids=str,
)  # fmt: skip
def test_every_hashed_field_is_part_of_the_content(change: dict[str, Any]) -> None:
    assert not same_content(event("{}"), event("{}", **change))


@pytest.mark.parametrize("field", ["source", "causality_key", "correlation_id", "causation_id"])
def test_where_an_event_came_from_is_not_part_of_its_content(field: str) -> None:
    assert event("{}").content_hash == event("{}", **{field: "x"}).content_hash
