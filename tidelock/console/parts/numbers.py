"""Numbers as people read them, the same on every page: thousands apart, every digit that was recorded."""

from __future__ import annotations

import re
from decimal import Decimal, localcontext
from typing import Any

_NUMBER = re.compile(r"(-?)([0-9]+)((?:\.[0-9]+)?)")
_DIGITS = 80


def figure(value: Any) -> Any:
    """A number, exact ones being texts, with its thousands apart; anything else as it is."""
    if value is None or isinstance(value, bool):
        return value
    # A double's own text, which for one that was recorded has the digits it was sent with.
    text = repr(value) if isinstance(value, float) else str(value)
    found = _NUMBER.fullmatch(text)
    return text if found is None else f"{found[1]}{int(found[2]):,}{found[3]}"


def signed(value: str | None) -> str | None:
    """A difference: with its sign; none where there is none."""
    if value in (None, "0"):
        return None
    return f"{'' if str(value).startswith('-') else '+'}{figure(value)}"


def difference(value: str | None, total: str | None) -> str | None:
    """What the total has beyond the value; both are exact."""
    if value is None or total is None:
        return None
    # The 28 digits that decimals have by default would round it.
    with localcontext(prec=_DIGITS):
        return f"{(Decimal(total) - Decimal(value)).normalize():f}"
