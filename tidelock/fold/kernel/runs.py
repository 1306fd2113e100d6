"""Runs: rows sorted by key and sequence, and running aggregates within each key.

A running sum is one cumulative sum minus its value where the key began; it may wrap around in between, and wraps back.
A running maximum doubles its reach: after n passes every row has the maximum of the 2^n rows up to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]


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

    def total(self, values: Array) -> Array:
        """The running sum."""
        if not len(values):
            return values
        summed: Array = np.cumsum(values, dtype=values.dtype)
        found: Array = summed - (summed[self.starts] - values[self.starts])[self.of]
        return found

    def greatest(self, values: Array) -> Array:
        """The running maximum."""
        return self._reached(values, np.maximum)

    def least(self, values: Array) -> Array:
        """The running minimum."""
        return self._reached(values, np.minimum)

    def _reached(self, values: Array, choose: np.ufunc) -> Array:
        found = values.copy()
        step, rows = 1, np.flatnonzero(self._before >= 1)
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
