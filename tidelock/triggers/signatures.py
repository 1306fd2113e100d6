"""Signatures of webhooks by Standard Webhooks, for senders and receivers.

The headers are `webhook-id`, `webhook-timestamp` (seconds) and `webhook-signature`: a `v1,BASE64` for each secret, of
HMAC-SHA256 over `{id}.{timestamp}.{body}`. Receivers use `verify`, which needs nothing but Python itself.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets as random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidelock.errors import RequestError, TidelockError

PREFIX = "whsec_"
BYTES_MIN, BYTES_MAX = 24, 64
#: secrets of one trigger at a time: old and new, and one in reserve for each
SECRETS_MAX = 4
#: how far a timestamp may be from the receiver's clock before it counts as replayed
TOLERANCE_S = 300.0

_GENERATED_BYTES = 32
_VERSION = "v1"


class InvalidSignature(TidelockError):
    """A webhook that is not from the claimed sender, was altered, or was sent too long ago."""

    code = "invalid_signature"
    http_status = 401


def generate_secret() -> str:
    return PREFIX + base64.b64encode(random.token_bytes(_GENERATED_BYTES)).decode()


def check_secrets(secrets: Sequence[str]) -> tuple[str, ...]:
    """The secrets, newest first, if all are valid. Raises RequestError, which does not quote them."""
    if not 1 <= len(secrets) <= SECRETS_MAX:
        raise RequestError(f"a trigger has 1 to {SECRETS_MAX} secrets", field="secrets")
    if len(set(secrets)) < len(secrets):
        raise RequestError("a secret is given twice", field="secrets")
    for secret in secrets:
        read_secret(secret)
    return tuple(secrets)


def read_secret(secret: str) -> bytes:
    """The key in a secret. Raises RequestError."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not BYTES_MIN <= len(key) <= BYTES_MAX:
        raise RequestError(
            f"a secret is {PREFIX} plus the base64 encoding of {BYTES_MIN} to {BYTES_MAX} bytes", field="secrets"
        ) from None
    return key


class Signer:
    """Signs with every secret of a trigger, so that receivers may hold the old or the new one."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # Keyed once: copying the state costs less than keying again for every body.
        self._keyed = [hmac.new(read_secret(secret), digestmod="sha256") for secret in secrets]

    def headers(self, event_id: str, sent_at_s: int, body: bytes) -> dict[str, str]:
        signed = b"%b.%d.%b" % (event_id.encode(), sent_at_s, body)
        return {
            "webhook-id": event_id,
            "webhook-timestamp": str(sent_at_s),
            "webhook-signature": " ".join(self._signature(keyed, signed) for keyed in self._keyed),
        }

    @staticmethod
    def _signature(keyed: hmac.HMAC, signed: bytes) -> str:
        signing = keyed.copy()
        signing.update(signed)
        return f"{_VERSION},{base64.b64encode(signing.digest()).decode()}"


def verify(
    body: bytes | str,
    headers: Mapping[str, str],
    secrets: str | Iterable[str],
    *,
    tolerance_s: float = TOLERANCE_S,
    now_s: float | None = None,
) -> Any:
    """The payload of a webhook, if one of the secrets signed it recently. Raises InvalidSignature.

    `body` must be the raw body, before any parsing: a re-serialised body has other bytes. The payload may be a repeat:
    remember `event_id`.
    """
    body = body.encode() if isinstance(body, str) else body
    given = {name.lower(): value for name, value in headers.items()}
    try:
        event_id, sent_at, signatures = (given[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
        age_s = (time.time() if now_s is None else now_s) - int(sent_at)
    except KeyError as missing:
        raise InvalidSignature(f"the header {missing.args[0]} is missing") from None
    except ValueError:
        raise InvalidSignature("the header webhook-timestamp is not a number") from None
    if abs(age_s) > tolerance_s:
        raise InvalidSignature("the webhook was signed too long ago, or in the future")
    signed = b"%b.%b.%b" % (event_id.encode(), sent_at.encode(), body)
    keys = [read_secret(secret) for secret in ([secrets] if isinstance(secrets, str) else secrets)]
    expected = [base64.b64encode(hmac.digest(key, signed, "sha256")) for key in keys]
    for signature in signatures.split(" "):
        version, _, value = signature.partition(",")
        if version == _VERSION and any(hmac.compare_digest(known, value.encode()) for known in expected):
            return json.loads(body)
    raise InvalidSignature("no signature matches a known secret")
