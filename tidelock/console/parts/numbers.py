"""Numbers for people, the same on every page: with thousands separators and every recorded digit."""

from __future__ import annotations

import re
from decimal import Decimal, localcontext
from typing import Any

_NUMBER = re.compile(r"(-?)([0-9]+)((?:\.[0-9]+)?)")
_DIGITS = 80


def figure(value: Any) -> Any:
    """A number (exact ones are strings) with thousands separators; anything else unchanged."""
    if value is None or isinstance(value, bool):
        return value
    # A double's own text, which for one that was recorded has the digits it was sent with.
    text = repr(value) if isinstance(value, float) else str(value)
    found = _NUMBER.fullmatch(text)
    return text if found is None else f"{found[1]}{int(found[2]):,}{found[3]}"


def signed(value: str | None) -> str | None:
    """A difference with its sign; None for zero."""
    if value in (None, "0"):
        return None
    return f"{'' if str(value).startswith('-') else '+'}{figure(value)}"


def difference(value: str | None, total: str | None) -> str | None:
    """Total minus value, exactly."""
    if value is None or total is None:
        return None
    # The 28 digits that decimals have by default would round it.
    with localcontext(prec=_DIGITS):
        return f"{(Decimal(total) - Decimal(value)).normalize():f}"
