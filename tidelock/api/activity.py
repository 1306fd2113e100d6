"""Activity: how many events this process handled recently, by verdict and by the sending key's tenant."""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict

import msgspec

from tidelock.instants import SECOND, format_instant
from tidelock.model import ALL_TENANTS, Answer

STEP_S = 2
#: ten minutes
STEPS = 300
# How many tenants are kept; the one silent for longest makes room. Each takes ten kilobytes.
_TENANTS_MAX = 256
_VERDICTS = 4


class Step(msgspec.Struct, frozen=True):
    """What was answered in the two seconds from `at` on."""

    at: str
    accepted: int
    duplicates: int
    conflicts: int
    rejected: int


class Activity(msgspec.Struct, frozen=True, rename="camel"):
    """What one process answered recently, oldest first. The last step is not over yet."""

    step_seconds: int
    items: list[Step]


class _Ring:
    """Counts of the last steps, each at its number modulo how many there are."""

    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * STEPS * _VERDICTS))
        self._last = 0

    def add(self, step: int, answer: Answer) -> None:
        self._forget(step)
        at = step % STEPS * _VERDICTS
        self._counts[at] += answer.accepted
        self._counts[at + 1] += answer.duplicates
        self._counts[at + 2] += answer.conflicts
        self._counts[at + 3] += answer.rejected

    def steps(self, now: int) -> list[Step]:
        self._forget(now)
        numbers = range(now - STEPS + 1, now + 1)
        return [Step(format_instant(step * STEP_S * SECOND), *self._at(step)) for step in numbers]

    def _at(self, step: int) -> array[int]:
        at = step % STEPS * _VERDICTS
        return self._counts[at : at + _VERDICTS]

    def _forget(self, step: int) -> None:
        """Nothing happened between the last step and this one."""
        for silent in range(max(self._last + 1, step - STEPS + 1), step + 1):
            at = silent % STEPS * _VERDICTS
            self._counts[at : at + _VERDICTS] = array("Q", bytes(8 * _VERDICTS))
        self._last = max(self._last, step)


class ActivityLog:
    """Counts answers as they are given."""

    def __init__(self) -> None:
        self._all = _Ring()
        self._tenants: OrderedDict[str, _Ring] = OrderedDict()

    def answered(self, tenant_id: str, answer: Answer) -> None:
        """`tenant_id` is the key's; events sent with keys of all tenants count for none of them."""
        step = _step()
        self._all.add(step, answer)
        if tenant_id == ALL_TENANTS:
            return
        ring = self._tenants.get(tenant_id)
        if ring is None:
            ring = self._tenants[tenant_id] = _Ring()
            if len(self._tenants) > _TENANTS_MAX:
                self._tenants.popitem(last=False)
        else:
            self._tenants.move_to_end(tenant_id)
        ring.add(step, answer)

    def read(self, tenant_id: str | None) -> Activity:
        """None: all tenants."""
        ring = self._all if tenant_id is None else self._tenants.get(tenant_id) or _Ring()
        return Activity(STEP_S, ring.steps(_step()))


def _step() -> int:
    return int(time.time()) // STEP_S
