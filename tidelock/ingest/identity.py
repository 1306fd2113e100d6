"""Identity: whether two sends are the same event, and have the same content.

The formulas here are a contract: a stored key must come out the same for ever.
"""

from __future__ import annotations

from binascii import b2a_base64
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec

from tidelock.decimals import plain_decimal
from tidelock.model import Event

_encode = msgspec.json.Encoder().encode
_BLOCK = 64
# What Python converts between text and integer without a configured limit.
_PLAIN_DIGITS_MAX = 4000
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class Salts:
    """The recorded salts, with the deriving one first, and the version of the list."""

    def __init__(self, salts: tuple[str, ...], version: int) -> None:
        self.salts = salts
        self.version = version
        self._derivers = [_Deriver(salt) for salt in salts]

    def derive(self, canonical: bytes) -> tuple[str, ...]:
        """The key under each salt: the first is recorded, the others recognise keys derived earlier."""
        return tuple([derive(canonical) for derive in self._derivers])


class _Deriver:
    """HMAC-SHA256 of one salt. Two pre-keyed hashes, copied per event, cost a quarter of `hmac.digest`."""

    def __init__(self, salt: str) -> None:
        key = salt.encode()
        if len(key) > _BLOCK:
            key = sha256(key).digest()
        key = key.ljust(_BLOCK, b"\0")
        self._inner = sha256(bytes(byte ^ 0x36 for byte in key))
        self._outer = sha256(bytes(byte ^ 0x5C for byte in key))

    def __call__(self, message: bytes) -> str:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(message)
        outer.update(inner.digest())
        # 32 bytes are 43 characters of base64 and one of padding.
        return b2a_base64(outer.digest(), newline=False)[:43].translate(_URL_SAFE).decode()


def canonical(tenant_id: str, stream: str, customer_ref: str | None, resource_id: str | None, nine: str) -> bytes:
    """What a derived key covers, as compact JSON: nothing is joined with separators, absent is not empty.

    `nine`: the instant in UTC with nine fraction digits.
    """
    return _encode((tenant_id, stream, customer_ref, resource_id, nine))


def canonical_correction(tenant_id: str, stream: str, op: str, target: str) -> bytes:
    """What the derived key of a correction covers: there is one void and one amendment of an event."""
    return _encode((tenant_id, stream, op, target))


def identity_digest(tenant_id: str, key: str) -> bytes:
    """The identity of (tenant, key), wherever the key came from: a derived key sent back by a client is the same
    identity.
    """
    return sha256(_encode((tenant_id, key))).digest()[:16]


def content_hash(
    tenant_id: str,
    stream: str,
    customer_ref: str | None,
    resource_id: str | None,
    occurred_at: int | None,
    quantity: str | None,
    op: str,
    data: bytes | None,
    target: str | None = None,
) -> bytes:
    """What must not differ between two sends with one key; never source, causality, correlation, causation, reason or
    batch."""
    if target is None:
        fields = _encode((tenant_id, stream, customer_ref, resource_id, occurred_at, quantity, op))
    else:
        fields = _encode((tenant_id, stream, customer_ref, resource_id, occurred_at, quantity, op, target))
    return sha256(fields + data if data else fields).digest()


def same_content(one: Event, other: Event) -> bool:
    """Whether two sends with one key have the same content: if only the text of data differs, parsed values decide.

    May parse a megabyte, so not for the event loop, unless the hashes differ in few and small events.
    """
    if one.content_hash == other.content_hash:
        return True
    return _apart_from_data(one) == _apart_from_data(other) and _same_json(one.data, other.data)


def _apart_from_data(event: Event) -> tuple[object, ...]:
    return (
        event.stream,
        event.customer_ref,
        event.resource_id,
        event.occurred_at,
        event.quantity,
        event.op,
        event.target,
    )


def _same_json(one: bytes | None, other: bytes | None) -> bool:
    if one is None or other is None:
        return one is other
    try:
        return bool(_parsed(one) == _parsed(other))
    except msgspec.DecodeError:
        # An integer longer than Python converts. With the same spelling the hashes would be equal, so the content
        # differs.
        return False


# One original is often compared with many sends; only a few are cached, because each may be large.
@lru_cache(maxsize=16)
def _parsed(text: bytes) -> Any:
    """JSON as values that are equal exactly when the JSON is."""
    value = _exact.decode(text)
    return _typed(value) if b"true" in text or b"false" in text else value


def _exact_number(text: str) -> int | tuple[str]:
    """A number written with fraction or exponent: an integer where it is one, else its plain text, set apart from
    strings. No arithmetic on it, so that 1e99999999 costs what its text costs."""
    plain = plain_decimal(text, _PLAIN_DIGITS_MAX, _PLAIN_DIGITS_MAX)
    if plain is None:
        return (text.lower(),)
    return (plain,) if "." in plain else int(plain)


_exact = msgspec.json.Decoder(float_hook=_exact_number)


def _typed(value: Any) -> Any:
    """Parsed JSON with booleans set apart: in Python `True == 1`, in JSON it is not."""
    if isinstance(value, bool):
        return (value, "boolean")
    if isinstance(value, list):
        return [_typed(member) for member in value]
    if isinstance(value, dict):
        return {name: _typed(member) for name, member in value.items()}
    return value
