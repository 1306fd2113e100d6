"""Outcomes: how an attempt ended, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

#: delivered: 2xx; redirected: 3xx, which is not followed; refused: 4xx; gone: 410; throttled: 429; failed: 5xx;
#: timeout and unreachable: no answer; forbidden: an address that webhooks must not go to; expired: given up without
#: being sent, because the endpoint had not answered for as long as retries go on
Outcome = Literal[
    "delivered",
    "redirected",
    "refused",
    "gone",
    "throttled",
    "failed",
    "timeout",
    "unreachable",
    "forbidden",
    "expired",
]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one attempt."""

    outcome: Outcome
    #: None: there was no answer
    status: int | None
    #: the beginning of the answer's body, or why there was none
    response: str
    seconds: float
    #: what the receiver asked for
    retry_after_s: float | None = None

    @property
    def healthy(self) -> bool:
        """Whether the endpoint works. One that refuses an event for what it is works, and need not be spared."""
        return self.outcome in ("delivered", "refused", "gone")


def outcome_of(status: int) -> Outcome:
    match status:
        case _ if 200 <= status < 300:
            return "delivered"
        case _ if 300 <= status < 400:
            return "redirected"
        case 410:
            return "gone"
        case 429:
            return "throttled"
        # Too slow, or too early: it says something about the endpoint, not about the event.
        case 408 | 425:
            return "failed"
        case _ if 400 <= status < 500:
            return "refused"
    return "failed"
