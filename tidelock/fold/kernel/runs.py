"""Runs: rows sorted by key and sequence, and running aggregates within each key.

A running sum is one cumulative sum minus its value where the key began; it may wrap around in between, and wraps back.
A running maximum is one pass over all rows, with each key's values lifted above those of the key before it. Where that
needs more than 64 bits it doubles its reach: after n passes every row has the maximum of the 2^n rows up to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]

#: stands for no value in columns of whole numbers
_NONE = np.iinfo(np.int64).min


class Runs:
    """Where the rows of each key begin and end, given the keys of rows in order."""

    def __init__(self, keys: Places) -> None:
        count = len(keys)
        self.first: Flags = np.ones(count, np.bool_)
        self.first[1:] = keys[1:] != keys[:-1]
        #: position of each key's first row
        self.starts: Places = np.flatnonzero(self.first)
        #: number of each row's run
        self.of: Places = np.cumsum(self.first) - 1
        #: position of each key's last row
        self.ends: Places = np.append(self.starts[1:], count) - 1 if count else self.starts
        #: rows of the same key before each row
        self._before: Places = np.arange(count) - self.starts[self.of] if count else self.starts
        self._longest = int(self._before.max()) if count else 0
        self._followers: Places = np.flatnonzero(~self.first)
        #: most rows have others of their key before them
        self._crowded = 2 * len(self._followers) > count

    def total(self, values: Array) -> Array:
        """The running sum."""
        if not len(values):
            return values
        summed: Array = np.cumsum(values, dtype=values.dtype)
        found: Array = summed - (summed[self.starts] - values[self.starts])[self.of]
        return found

    def greatest(self, values: Array) -> Array:
        """The running maximum."""
        lifted = self._lifted(values) if values.dtype == np.int64 and self._crowded else None
        return self._doubled(values, np.maximum) if lifted is None else lifted

    def least(self, values: Array) -> Array:
        """The running minimum."""
        # Turning all bits turns the order round, and what stands for no value with it.
        lifted = self._lifted(~values) if values.dtype == np.int64 and self._crowded else None
        return self._doubled(values, np.minimum) if lifted is None else ~lifted

    def _lifted(self, values: Places) -> Places | None:
        """The running maximum in one pass; None: keys and values together need more than 64 bits."""
        none = values == _NONE
        lowest = int(np.min(values, initial=np.iinfo(np.int64).max, where=~none)) - 1
        span = int(values.max()) - lowest + 1
        if span < 1 or span * len(self.starts) > np.iinfo(np.int64).max or lowest <= _NONE:
            return None
        floors = self.of * span
        lifted = np.where(none, 0, values - lowest) + floors
        np.maximum.accumulate(lifted, out=lifted)
        lifted -= floors
        lifted += lowest
        lifted[lifted == lowest] = _NONE
        return lifted

    def _doubled(self, values: Array, choose: np.ufunc) -> Array:
        found = values.copy()
        step, rows = 1, self._followers
        while step <= self._longest:
            found[rows] = choose(found[rows], found[rows - step])
            step *= 2
            rows = rows[self._before[rows] >= step]
        return found

    def previous(self, values: Array, none: object) -> Array:
        """The value of the previous row of the same key."""
        found = np.empty_like(values)
        found[1:] = values[:-1]
        found[self.starts] = none
        return found

    def latest(self, flags: Flags) -> Places:
        """Position of the last flagged row of the same key up to each row; -1 if there is none."""
        places = np.maximum.accumulate(np.where(flags, np.arange(len(flags)), -1))
        return np.where(places >= self.starts[self.of], places, -1)


def order_of(numbers: Places) -> Places:
    """Where the rows are, sorted by numbers from 0 on; equal ones stay as they are.

    Sixteen bits at a time: numpy sorts these by counting, which takes a fraction of the time of comparing.
    """
    order: Places = np.argsort(numbers.astype(np.uint16), kind="stable")
    shift = 16
    while len(numbers) and int(numbers.max()) >> shift:
        upper = (numbers[order] >> shift).astype(np.uint16)
        order = order[np.argsort(upper, kind="stable")]
        shift += 16
    return order
