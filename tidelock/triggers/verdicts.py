"""Verdicts: what the result of an attempt means for its row. Pure; the chance is given."""

from __future__ import annotations

import random

from tidelock.triggers.lanes import Row
from tidelock.triggers.outcomes import Result
from tidelock.triggers.pending import Settlement
from tidelock.triggers.retries import Schedule


def settlement_of(row: Row, result: Result, sent_at_ns: int, schedule: Schedule, chance: random.Random) -> Settlement:
    """Delivered, to be tried again, or dead."""
    if result.outcome == "delivered":
        return Settlement(row, result, sent_at_ns, "delivered", row.failures)
    if result.outcome == "gone":
        # The trigger is disabled, and this row is the first to be sent when somebody enables it again.
        return Settlement(row, result, sent_at_ns, "pending", row.failures)
    failures = row.failures + 1
    delay_s = None if result.outcome == "expired" else schedule.delay_s(failures, result.retry_after_s, chance)
    return Settlement(row, result, sent_at_ns, "dead" if delay_s is None else "pending", failures, delay_s)


def expiry() -> Result:
    """The result of a row that is not sent any more."""
    return Result("expired", None, "its endpoint has not answered for as long as retries go on; it was not sent", 0.0)
