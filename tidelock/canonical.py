"""The canonical form of a definition: one JSON text however it was ordered or spelled, and its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from decimal import Decimal

from tidelock.decimals import plain_decimal

# Beyond this exponent a number keeps its spelling; writing it out could fill the memory.
_DIGITS_MAX = 1000


def canonical_json(value: object) -> str:
    """Compact JSON with sorted members. Decimals are written exactly, so 1.50, 1.5 and 15e-1 are one number."""
    match value:
        case Mapping():
            members = (f"{_text(str(name))}:{canonical_json(value[name])}" for name in sorted(value))
            return "{" + ",".join(members) + "}"
        case list() | tuple():
            return "[" + ",".join(map(canonical_json, value)) + "]"
        case Decimal():
            return plain_decimal(str(value), _DIGITS_MAX, _DIGITS_MAX) or str(value)
        case _:
            return _text(value)


def canonical_hash(value: object) -> str:
    """SHA-256 of the canonical JSON, as hex digits."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
