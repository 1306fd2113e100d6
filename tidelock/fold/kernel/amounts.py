"""Amounts: quantities and their sums as whole numbers, exactly.

A range is counted in 64-bit numbers of its smallest decimal place if every value and every sum fits, and in numbers of
any size otherwise. The data decides which, and both give the same rows.

Numbers of any size are Python's, in columns of objects, and an event then takes the kernel 5.0 µs instead of 1.0. Only
ranges pay for it in which a quantity or a sum does not fit into 62 bits at the range's decimal places: 10^18, or 10^9
with nine places. Running sums, extremes and averages in two 64-bit words would be a second, larger arithmetic for
ranges that hardly occur.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.fold.kernel.runs import Array, Flags

DECIMAL = pa.decimal128(38, 9)
#: decimal places of a quantity
PLACES = 9
#: decimal places that are tried, fewest first
_SCALES = (0, 3, 6, 9)
#: sums of a total and of a count stay below this, so that no step between overflows
_BOUND = 2**62
_WORD = 2**64


@dataclass(frozen=True, slots=True)
class Amounts:
    """The representation of the amounts of a range."""

    #: decimal places of the whole numbers
    scale: int
    #: int64, or object for numbers of any size
    type: np.dtype[Any]

    @property
    def narrow(self) -> bool:
        """Whether they are 64-bit numbers."""
        return self.type.kind == "i"

    @property
    def lowest(self) -> int:
        """Below every amount."""
        return -(2**63) if self.narrow else -(10**40)

    @property
    def highest(self) -> int:
        return 2**63 - 1 if self.narrow else 10**40

    def of_quantities(self, quantities: pa.Array) -> Array:
        """Amounts of the events' values, which `choose` has examined; 0 if there is none."""
        if not self.narrow:
            return self.of_decimals(quantities)
        units = _words(pc.fill_null(quantities, 0))[0].view(np.int64)
        return units // 10 ** (PLACES - self.scale) if self.scale < PLACES else units

    def of_decimals(self, values: pa.Array) -> Array:
        """Amounts of decimals; 0 for null."""
        whole = pc.fill_null(values, 0).cast(pa.decimal128(38, self.scale))
        low, high = _words(whole)
        if self.narrow:
            return low.view(np.int64)
        wide: Array = high.astype(object) * _WORD + low.astype(object)
        return wide

    def of_counts(self, counts: Array) -> Array:
        """A count as an amount."""
        amounts: Array = counts.astype(self.type) * 10**self.scale
        return amounts

    def averages(self, sums: Array, counts: Array) -> Array:
        """Sums divided, half away from zero at the last decimal place, which is the ninth."""
        assert self.scale == PLACES, "averages have nine decimals"
        divisors = np.maximum(counts, 1).astype(self.type)
        sizes = np.abs(sums)
        quotients = sizes // divisors
        quotients = quotients + (2 * (sizes - quotients * divisors) >= divisors)
        averages: Array = np.where(sums < 0, -quotients, quotients)
        return averages

    def decimals(self, amounts: Array, known: Flags | None = None) -> pa.Array:
        """Amounts as decimals; null where unknown."""
        factor = 10 ** (PLACES - self.scale)
        if self.narrow and len(amounts):
            bound = _BOUND // factor
            fitting = int(amounts.max()) < bound and int(amounts.min()) > -bound
        else:
            fitting = False
        words = np.empty((len(amounts), 2), np.int64)
        if fitting:
            words[:, 0] = amounts * factor
            words[:, 1] = words[:, 0] >> 63
        else:
            wide = amounts.astype(object) * factor
            # Unknown amounts may have any value, even too large for a decimal.
            wide = wide if known is None else np.where(known, wide, 0)
            words[:, 0] = (wide & (_WORD - 1)).astype(np.uint64).view(np.int64)
            words[:, 1] = (wide >> 64).astype(np.int64)
        validity = None if known is None or known.all() else pa.array(known).buffers()[1]
        return pa.Array.from_buffers(DECIMAL, len(amounts), [validity, pa.py_buffer(words)])


def choose(quantities: pa.Array, stored: Sequence[pa.Array], counts: int, *, averaged: bool) -> Amounts:
    """The smallest numbers that hold every quantity of a range, the stored values of its keys, and all their sums.

    `counts`: the greatest possible count. Averages are divided at the ninth decimal.
    """
    anything = Amounts(PLACES, np.dtype(object))
    low, high = _words(pc.fill_null(quantities, 0))
    units = low.view(np.int64)
    if (high != units >> 63).any():
        return anything
    largest = _largest(units)
    for scale in _SCALES[-1:] if averaged else _SCALES:
        place = 10 ** (PLACES - scale)
        if place > 1 and (units % place).any():
            continue
        known = [_fitted(values, scale) for values in stored]
        if any(value is None for value in known):
            continue
        kept = max((value for value in known if value is not None), default=0)
        fits = (largest // place) * len(units) + 2 * kept < _BOUND and 2 * counts * 10**scale < _BOUND
        return Amounts(scale, np.dtype(np.int64)) if fits else anything
    return anything


def average(sums: pa.Array, counts: pa.Array) -> pa.Array:
    """Sums divided by counts, half away from zero at the ninth decimal; null where there is no sum."""
    largest = _fitted(sums, PLACES)
    narrow = largest is not None and largest < _BOUND
    amounts = Amounts(PLACES, np.dtype(np.int64 if narrow else object))
    quotients = amounts.averages(amounts.of_decimals(sums), pc.fill_null(counts, 0).to_numpy())
    return amounts.decimals(quotients, sums.is_valid().to_numpy(False))


def _fitted(values: pa.Array, scale: int) -> int | None:
    """The greatest of decimals in 64 bits at a scale; None where one does not fit."""
    try:
        whole = pc.fill_null(values, 0).cast(pa.decimal128(38, scale))
    except pa.ArrowInvalid:
        return None
    low, high = _words(whole)
    signed = low.view(np.int64)
    if (high != signed >> 63).any():
        return None
    return _largest(signed)


def _largest(values: Array) -> int:
    return max(int(values.max(initial=0)), -int(values.min(initial=0)))


def _words(values: pa.Array) -> tuple[Array, Array]:
    """The lower 64 bits of decimals, and the upper ones."""
    words = np.frombuffer(values.buffers()[1], np.uint64)[2 * values.offset : 2 * (values.offset + len(values))]
    return words[0::2].copy(), words[1::2].view(np.int64).copy()
