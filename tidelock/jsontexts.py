"""JSON texts: numbers that are too long for readers, found without parsing.

Python's own `json` refuses a whole document for one integer of 4,301 digits, Spark's parser for one of 1,001. So a
number of more than 400 characters is not taken, and where one is stored already its neighbours must not suffer.
"""

from __future__ import annotations

import msgspec

NUMBER_CHARACTERS_MAX = 400

# A longer run of such characters has at least eight of every fiftieth: few texts need to be looked at as a whole.
_STEP = 50
_NUMERIC = bytes(byte in b"+-.0123456789Ee" for byte in range(256))
_FEW = b"\1" * (NUMBER_CHARACTERS_MAX // _STEP)
_MANY = b"\1" * (NUMBER_CHARACTERS_MAX + 1)
_NULL = msgspec.Raw(b"null")


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
        # It lies in a string: on behind that.
        counted, at = at, plain.find(b'"', at)
        if at < 0:
            return False
    return False


def has_long_run(text: bytes) -> bool:
    """Whether it has that many characters of numbers in a row, in a string or not: a fast no for nearly all texts."""
    return (
        len(text) > NUMBER_CHARACTERS_MAX
        and _FEW in text[::_STEP].translate(_NUMERIC)
        and _MANY in text.translate(_NUMERIC)
    )


def readable(text: bytes) -> msgspec.Raw:
    """The text as it goes into an answer with others: null where a reader could stumble over it."""
    return _NULL if has_long_number(text) else msgspec.Raw(text)
