"""Signatures as Standard Webhooks has them: foreign libraries verify ours, `verify` takes theirs, and no tampering."""

import base64
import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import standardwebhooks
import svix.webhooks
from hypothesis import given
from hypothesis import strategies as st

from tidelock import client
from tidelock.errors import RequestError
from tidelock.triggers.signatures import InvalidSignature, Signer, check_secrets, generate_secret, read_secret, verify

pytestmark = pytest.mark.check

BODY = '{"event_id":"acf67a288f80147280c9d4b1e99378cd","data":{"name":"客户"}}'.encode()
ID = "acf67a288f80147280c9d4b1e99378cd"
Verifier = Callable[[bytes, dict[str, str], str], object]


def by_standardwebhooks(body: bytes, headers: dict[str, str], secret: str) -> object:
    return standardwebhooks.Webhook(secret).verify(body, headers)


def by_svix(body: bytes, headers: dict[str, str], secret: str) -> object:
    svix.webhooks.Webhook(secret).verify(body, headers)
    return json.loads(body)


def by_us(body: bytes, headers: dict[str, str], secret: str) -> object:
    return verify(body, headers, secret)


VERIFIERS = pytest.mark.parametrize("verifies", [by_standardwebhooks, by_svix, by_us])
REFUSALS = (standardwebhooks.WebhookVerificationError, InvalidSignature)


def signed(*secrets: str, at_s: float | None = None, body: bytes = BODY) -> dict[str, str]:
    return Signer(secrets).headers(ID, int(time.time() if at_s is None else at_s), body)


@VERIFIERS
def test_everybody_verifies_what_we_sign(verifies: Verifier) -> None:
    secret = generate_secret()
    assert verifies(BODY, signed(secret), secret) == json.loads(BODY)


@VERIFIERS
def test_while_secrets_rotate_receivers_hold_the_old_one_or_the_new(verifies: Verifier) -> None:
    new, old = generate_secret(), generate_secret()
    headers = signed(new, old)
    assert verifies(BODY, headers, new) == verifies(BODY, headers, old)
    with pytest.raises(REFUSALS):
        verifies(BODY, headers, generate_secret())


@VERIFIERS
@pytest.mark.parametrize(
    "tamper",
    [
        lambda body, headers: (body.replace(b"data", b"dada"), headers),
        lambda body, headers: (body + b" ", headers),
        lambda body, headers: (body, headers | {"webhook-id": "b" * 32}),
        lambda body, headers: (body, headers | {"webhook-timestamp": str(int(headers["webhook-timestamp"]) + 1)}),
        lambda body, headers: (body, headers | {"webhook-signature": "v1," + base64.b64encode(b"x" * 32).decode()}),
        lambda body, headers: (body, headers | {"webhook-signature": "v2," + headers["webhook-signature"][3:]}),
        lambda body, headers: (body, {name: text for name, text in headers.items() if name != "webhook-signature"}),
        lambda body, headers: (body, headers | {"webhook-timestamp": "soon"}),
    ],
)  # fmt: skip
def test_nobody_takes_what_was_tampered_with(
    verifies: Verifier, tamper: Callable[[bytes, dict[str, str]], tuple[bytes, dict[str, str]]]
) -> None:
    secret = generate_secret()
    with pytest.raises(REFUSALS):
        verifies(*tamper(BODY, signed(secret)), secret)


@VERIFIERS
@pytest.mark.parametrize("off_s", [-600, 600])
def test_what_was_signed_at_another_time_may_be_a_replay(verifies: Verifier, off_s: float) -> None:
    secret = generate_secret()
    with pytest.raises(REFUSALS):
        verifies(BODY, signed(secret, at_s=time.time() + off_s), secret)


def test_a_receiver_may_have_several_secrets_a_clock_and_a_tolerance() -> None:
    secret = generate_secret()
    headers = {name.title(): text for name, text in signed(secret, at_s=1_000).items()}
    assert verify(BODY.decode(), headers, [generate_secret(), secret], now_s=1_300) == json.loads(BODY)
    assert verify(BODY, headers, secret, now_s=5_000, tolerance_s=4_000)
    with pytest.raises(InvalidSignature, match="too long ago"):
        verify(BODY, headers, secret, now_s=1_301)


def test_we_verify_what_others_sign() -> None:
    secret, now = generate_secret(), datetime.now(UTC)
    theirs = standardwebhooks.Webhook(secret).sign(ID, now, BODY.decode())
    headers = {"webhook-id": ID, "webhook-timestamp": str(int(now.timestamp())), "webhook-signature": f"v1a,x {theirs}"}
    assert verify(BODY, headers, secret) == json.loads(BODY)


@given(st.dictionaries(st.sampled_from(["webhook-id", "webhook-timestamp", "webhook-signature"]), st.text()))
def test_whatever_headers_come_the_answer_is_no(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidSignature):
        verify(BODY, headers, "whsec_" + "A" * 32)


def test_a_secret_of_ours_is_32_random_bytes() -> None:
    assert generate_secret() != generate_secret()
    assert len(read_secret(generate_secret())) == 32


@pytest.mark.parametrize(
    "secret",
    ["", "whsec_", "whsec_AAAA", "A" * 32, "whsec_" + "A" * 31, "whsec_" + "é" * 32, "whsec_" + "A" * 88,
     "whsec_ " + "A" * 32],
)  # fmt: skip
def test_a_secret_that_cannot_be_one_is_refused_and_not_quoted(secret: str) -> None:
    with pytest.raises(RequestError) as refused:
        check_secrets([secret])
    assert refused.value.field == "secrets"
    assert len(secret) < 8 or secret not in refused.value.message


def test_a_trigger_has_a_few_secrets_and_none_twice() -> None:
    several: list[Any] = [generate_secret() for _ in range(5)]
    assert check_secrets(several[:4]) == tuple(several[:4])
    for wrong in ([], several, several[:1] * 2):
        with pytest.raises(RequestError):
            check_secrets(wrong)


def test_receivers_need_nothing_but_python_to_verify() -> None:
    script = "import sys, tidelock.client; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"pyspark", "psycopg", "aiohttp", "fastapi", "starlette", "uvicorn"} & set(done.stdout.split())


def test_the_client_verifies_webhooks() -> None:
    secret, now = generate_secret(), int(time.time())
    headers = Signer([secret]).headers(ID, now, BODY)
    assert client.verify_webhook(BODY, headers, secret) == json.loads(BODY)
    with pytest.raises(client.InvalidSignature):
        client.verify_webhook(BODY, headers, generate_secret())
