"""Quantities: exact decimals, never rounded, never floats.

|q| < 10^18 with at most nine decimals after trailing zeros. Normal form: plain notation without trailing zeros.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from tidelock.decimals import plain_decimal

_WHOLE_DIGITS_MAX = 18
_DECIMALS_MAX = 9


@lru_cache(maxsize=65_536)
def normal_quantity(text: str) -> str:
    """The normal form of a decimal number's text. Raises ValueError with a message for people."""
    plain = plain_decimal(text, _WHOLE_DIGITS_MAX, _DECIMALS_MAX)
    if plain is None:
        shown = text if len(text) <= 40 else text[:40] + "..."
        raise ValueError(f"{shown!r} is not a decimal number below 10^18 with at most nine decimals")
    return plain


@lru_cache(maxsize=65_536)
def numeric_binary(text: str) -> bytes:
    """A normal quantity in the binary form of Postgres's numeric: base 10000, most significant digit first."""
    whole, _, fraction = text.lstrip("-").partition(".")
    whole = whole.zfill(-(-len(whole) // 4) * 4)
    padded = whole + fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int(padded[i : i + 4]) for i in range(0, len(padded), 4)]
    weight = len(whole) // 4 - 1
    while groups and groups[0] == 0:
        del groups[0]
        weight -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    sign = 0x4000 if text.startswith("-") else 0
    return struct.pack(f"!hhHH{len(groups)}h", len(groups), weight if groups else 0, sign, len(fraction), *groups)
