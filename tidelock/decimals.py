"""Decimals as text: exact, plain, and safe for numbers of any size.

Only the digits as written are looked at. Nothing is computed with them, so `1e1000000` costs what its text costs.
"""

from __future__ import annotations

import re

_NUMBER = re.compile(r"([+-]?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?)0*([0-9]+))?")
# A longer exponent cannot be balanced by digits of any text that fits into memory.
_EXPONENT_DIGITS_MAX = 10


def plain_decimal(text: str, whole_digits_max: int, decimals_max: int) -> str | None:
    """A number in plain notation without trailing zeros; None when it is no number or does not fit unrounded."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, whole, fraction, exponent_sign, exponent = match.groups("")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return "0"
    if len(exponent) > _EXPONENT_DIGITS_MAX:
        return None
    shift = int(exponent or 0)
    # The number is 0.<digits> * 10^point, whatever way it was written.
    point = len(digits) - len(fraction) + (-shift if exponent_sign == "-" else shift)
    digits = digits.rstrip("0")
    if point > whole_digits_max or len(digits) - point > decimals_max:
        return None
    return ("-" if sign == "-" else "") + _placed(digits, point)


def _placed(digits: str, point: int) -> str:
    if point <= 0:
        return "0." + "0" * -point + digits
    whole, decimals = digits[:point].ljust(point, "0"), digits[point:]
    return f"{whole}.{decimals}" if decimals else whole
