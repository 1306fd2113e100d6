"""Numbers as text: exact, plain, and safe for numbers of any size.

Only the digits as written are looked at. Nothing is computed with them, so `1e1000000` costs what its text costs. A
JSON number of more than 400 characters is rejected: Python's own `json` refuses a whole document for one integer of
4,301 digits, Spark's parser for one of 1,001. Where one is already stored, its neighbours must not suffer.
"""

from __future__ import annotations

import re

import msgspec

_NUMBER = re.compile(r"([+-]?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?)0*([0-9]+))?")
# A longer exponent cannot be balanced by digits of any text that fits into memory.
_EXPONENT_DIGITS_MAX = 10

NUMBER_CHARACTERS_MAX = 400

# A longer run of such characters contains at least eight at multiples of fifty, so few texts need a full scan.
_STEP = 50
_NUMERIC = bytes(byte in b"+-.0123456789Ee" for byte in range(256))
_FEW = b"\1" * (NUMBER_CHARACTERS_MAX // _STEP)
_MANY = b"\1" * (NUMBER_CHARACTERS_MAX + 1)
_NULL = msgspec.Raw(b"null")


def plain_decimal(text: str, whole_digits_max: int, decimals_max: int) -> str | None:
    """A number in plain notation without trailing zeros; None if it is not a number or does not fit without
    rounding.
    """
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


def has_long_number(text: bytes) -> bool:
    """Whether a JSON text has a number of more than 400 characters. Digits in its strings are not numbers."""
    if not has_long_run(text):
        return False
    plain = text.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    numeric = plain.translate(_NUMERIC)
    at = counted = quotes = 0
    while (at := numeric.find(_MANY, at)) >= 0:
        quotes += plain.count(b'"', counted, at)
        if quotes % 2 == 0:
            return True
        # It is inside a string: continue after the string.
        counted, at = at, plain.find(b'"', at)
        if at < 0:
            return False
    return False


def has_long_run(text: bytes) -> bool:
    """Whether there is such a long run of characters of numbers, in a string or not: a fast no for nearly all texts."""
    return (
        len(text) > NUMBER_CHARACTERS_MAX
        and _FEW in text[::_STEP].translate(_NUMERIC)
        and _MANY in text.translate(_NUMERIC)
    )


def readable(text: bytes) -> msgspec.Raw:
    """The text as part of a response: null if a reader could fail on it."""
    return _NULL if has_long_number(text) else msgspec.Raw(text)
