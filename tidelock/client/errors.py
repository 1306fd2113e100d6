"""What can fail, and what is worth retrying."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import httpx

#: the server cannot accept it now; nothing was recorded, or a retry gives `duplicate`
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
#: why the server ends a subscription that can be resumed
AGAIN = frozenset({"closed", "internal_error", "overloaded", "slow_subscriber", "unavailable"})
_FIRST_S = 0.1
#: longest pause between two tries, unless the server asks for a longer one
PAUSE_S_MAX = 10.0
_RETRY_AFTER_S_MAX = 60.0


class Refused(Exception):
    """The server understood and refused: retrying would not help."""

    def __init__(self, status: int, code: str, message: str, field: str | None = None) -> None:
        super().__init__(f"{message} ({code})")
        self.status = status
        self.code = code
        self.field = field


class NoAnswer(Exception):
    """No conclusive response after all tries. The events may have been recorded: send them again unchanged."""


def pauses(tries: int, chance: Random, pause_max_s: float) -> Iterator[float]:
    """Seconds before each retry: doubling each time, with jitter so that clients do not retry together."""
    for number in range(tries - 1):
        yield min(pause_max_s, _FIRST_S * 2**number) * chance.uniform(0.5, 1.0)


def settled(answer: httpx.Response) -> bool:
    """Whether this response is final. Raises Refused if it is a refusal."""
    if answer.is_success:
        return True
    if answer.status_code in _LATER:
        return False
    raise refusal(answer)


def decoded(answer: httpx.Response, numbers: Callable[[str], Any] = float) -> Any:
    """The body of a final response, decimals as `numbers`. Raises Refused if it is not JSON, such as a proxy's page."""
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
    """The value of `Retry-After`, within limits."""
    try:
        return min(_RETRY_AFTER_S_MAX, max(0.0, float(answer.headers.get("retry-after", "0"))))
    except ValueError:
        return 0.0
