"""What can go wrong, and what is worth another try."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import httpx

#: the server cannot take it now; nothing was recorded, or a retry says `duplicate`
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
#: why the server ends a subscription that can go on where it was
AGAIN = frozenset({"closed", "internal_error", "overloaded", "slow_subscriber", "unavailable"})
_FIRST_S = 0.1
#: longest pause between two tries, where the server does not ask for a longer one
PAUSE_S_MAX = 10.0
_RETRY_AFTER_S_MAX = 60.0


class Refused(Exception):
    """The server understood and said no: trying again would not help."""

    def __init__(self, status: int, code: str, message: str, field: str | None = None) -> None:
        super().__init__(f"{message} ({code})")
        self.status = status
        self.code = code
        self.field = field


class NoAnswer(Exception):
    """No answer that settles it, after every try. What was sent may have been recorded: send it again as it was."""


def pauses(tries: int, chance: Random, pause_max_s: float) -> Iterator[float]:
    """Seconds before each further try: twice as long each time, and never all clients at once."""
    for number in range(tries - 1):
        yield min(pause_max_s, _FIRST_S * 2**number) * chance.uniform(0.5, 1.0)


def settled(answer: httpx.Response) -> bool:
    """Whether this is the server's last word. Raises Refused if it says no."""
    if answer.is_success:
        return True
    if answer.status_code in _LATER:
        return False
    raise refusal(answer)


def decoded(answer: httpx.Response, numbers: Callable[[str], Any] = float) -> Any:
    """What a settled answer says, numbers with a point as `numbers`. Raises Refused for no JSON, as a proxy's page."""
    try:
        return json.loads(answer.content, parse_float=numbers)
    except ValueError:
        raise refusal(answer) from None


def refusal(answer: httpx.Response) -> Refused:
    try:
        said = answer.json()["error"]
        return Refused(answer.status_code, said["code"], said["message"], said.get("field"))
    except (ValueError, KeyError, TypeError):
        return Refused(answer.status_code, "unknown", answer.text[:300] or answer.reason_phrase)


def asked_to_wait_s(answer: httpx.Response) -> float:
    """What `Retry-After` asks for, within reason."""
    try:
        return min(_RETRY_AFTER_S_MAX, max(0.0, float(answer.headers.get("retry-after", "0"))))
    except ValueError:
        return 0.0
