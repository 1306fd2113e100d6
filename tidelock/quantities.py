"""Quantities: exact decimals, never rounded, never floats.

|q| < 10^18 with at most nine decimals after trailing zeros. Normal form: plain notation without trailing zeros.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache

_NUMBER = re.compile(r"([+-]?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?", re.ASCII)
_WHOLE_DIGITS_MAX = 18
_DECIMALS_MAX = 9


@lru_cache(maxsize=65_536)
def normal_quantity(text: str) -> str:
    """The normal form of a decimal number's text. Raises ValueError with a message for people."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{_shown(text)} is not a decimal number")
    sign, whole, fraction, exponent = match.groups()
    fraction = fraction or ""
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return "0"
    # The number is 0.<digits> * 10^point, whatever way it was written; no arithmetic on long digit strings.
    point = len(digits) - len(fraction) + _bounded(exponent)
    digits = digits.rstrip("0")
    if point > _WHOLE_DIGITS_MAX:
        raise ValueError(f"{_shown(text)} is not below 10^18")
    if len(digits) - point > _DECIMALS_MAX:
        raise ValueError(f"{_shown(text)} has more than nine decimals")
    if point <= 0:
        whole, fraction = "0", "0" * -point + digits
    else:
        whole, fraction = digits[:point].ljust(point, "0"), digits[point:]
    return ("-" if sign == "-" else "") + whole + ("." + fraction if fraction else "")


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


def _bounded(exponent: str | None) -> int:
    """An exponent as a number; one too long to matter becomes one that is out of range all the same."""
    if exponent is None:
        return 0
    if len(exponent.lstrip("+-0")) > 6:
        return -(10**9) if exponent.startswith("-") else 10**9
    return int(exponent)


def _shown(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "..."
