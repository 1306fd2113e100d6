"""Nesting: how deep a JSON text is, and the text without the parts that are too deep.

Decoders recurse and fail on deep nesting; this does not. It never walks a text byte by byte in Python: a body of
many megabytes of brackets must not delay everybody else.
"""

from __future__ import annotations

import re
from itertools import accumulate, count
from operator import sub

from tidelock.errors import RequestError

# From an opening bracket to before the next closing one, or from a closing one to before the next opening one.
_RUNS = re.compile(rb"\[[^\]]*|\][^\[]*")
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
# A body that is too deep and also beyond these limits is refused as a whole: each takes about a second.
_RUNS_MAX = 1_000_000
_QUOTES_MAX = 2_500_000

# Opening is 2, closing 0, so that after n brackets their sum is n more than the depth; everything else is omitted.
_STEPS = bytes(2 if byte in b"[{" else 0 for byte in range(256))
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
# Replaces a text whose brackets do not match: it is not JSON either.
_NO_JSON = b"]"


def depth(text: bytes) -> int:
    """How deep the text nests."""
    steps = _without_strings(text).translate(_STEPS, _NO_BRACKETS)
    return max(map(sub, accumulate(steps), count(1)), default=0)


def cut_below(text: bytes, kept: int) -> bytes:
    """The text with every value nested deeper than `kept` replaced by 0. Text that is not JSON stays so."""
    if text.count(b'"') > _QUOTES_MAX:
        raise _too_deep(kept)
    parts: list[bytes] = []
    level = kept_from = 0
    for number, found in enumerate(_RUNS.finditer(_without_strings(text).translate(_ONE_KIND))):
        run, start = found[0], found.start()
        if number == _RUNS_MAX:
            raise _too_deep(kept)
        after = level + run.count(b"[") - run.count(b"]")
        if after < 0:
            return _NO_JSON
        if level <= kept < after:
            cut = start + _opening(run, kept + 1 - level)
            parts.append(text[kept_from:cut] + b"0")
        elif after <= kept < level:
            kept_from = start + _closing_from_right(run, kept - after) + 1
        level = after
    return b"".join(parts) + (text[kept_from:] if level <= kept else b"")


def _too_deep(kept: int) -> RequestError:
    return RequestError(f"the body is nested deeper than {kept} levels")


def _opening(run: bytes, number: int) -> int:
    """Where the n-th opening bracket is, counted from 1."""
    position = -1
    for _ in range(number):
        position = run.index(b"[", position + 1)
    return position


def _closing_from_right(run: bytes, number: int) -> int:
    """Where the closing bracket is that has n others to its right."""
    position = len(run)
    for _ in range(number + 1):
        position = run.rindex(b"]", 0, position)
    return position


def _without_strings(text: bytes) -> bytes:
    """The text with the contents of its strings blanked, everything else unchanged."""
    parts = text.replace(b"\\\\", b"__").replace(b'\\"', b"__").split(b'"')
    parts[1::2] = [bytes(len(inside)) for inside in parts[1::2]]
    return b'"'.join(parts)
