"""Vectors: columns of 64-bit integers in few bytes, predicted from the previous row or another column. A vector is
stored as its difference from the best predictor, chosen by a sample.

The remainder is divided by its common divisor (times in whole milliseconds, amounts in cents) and split into planes:
all lowest bytes, then all second ones. A plane of zeros costs nothing, and zstd compresses each of the others by its
own distribution.

Arithmetic wraps at 64 bits, so every difference is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

#: plain; as differences from the previous row; from the row it replaces
PLAIN, STEPS, REPLACED = range(3)

# The sample size of a decision, and the bits each value must save to make up for another divisor.
_SAMPLE = 128
_MARGIN = 2
# Fewer values are not worth a decision.
_FEW = 50


class Form(NamedTuple):
    """How a vector is restored from what is stored."""

    kind: int
    #: number of the vector to add; -1: none
    base: int
    least: int
    divisor: int
    #: bytes of a value
    width: int
    #: of differences from the previous row
    first: int


class Packing:
    """Vectors of one length, packed one after another."""

    def __init__(self, length: int, known: Iterable[Ints] = ()) -> None:
        """`known`: vectors that the reader has already."""
        self.forms: list[Form] = []
        self.planes: list[bytes] = []
        self._length = length
        self._sample = np.arange(0, length, max(1, length // _SAMPLE))
        self._known = list(known)
        self._bases = [np.zeros(len(self._sample), np.int64), *(vector[self._sample] for vector in self._known)]

    def put(self, vector: Ints, replaced: Ints | None = None) -> None:
        """Pack a vector; `replaced` has the values of the rows that its rows replace."""
        if not self._length:
            self.forms.append(Form(PLAIN, -1, least=0, divisor=1, width=0, first=0))
            return
        kind, base = self._best(vector, replaced)
        first = 0
        if kind == STEPS:
            first = int(vector[0])
            steps = np.zeros_like(vector)
            np.subtract(vector[1:], vector[:-1], out=steps[1:])
            vector = steps
        elif replaced is not None and kind == REPLACED:
            vector = vector - replaced
        if self._length >= _FEW:
            self._bases.append(vector[self._sample])
            self._known.append(vector)
        rest = vector if base < 0 else vector - self._known[base]
        least = rest.min()
        divisor, left = self._divided((rest - least).view(np.uint64))
        width = (int(left.max()).bit_length() + 7) // 8
        if width:
            self.planes.append(left.view(np.uint8).reshape(-1, 8)[:, :width].T.tobytes())
        self.forms.append(Form(kind, base, least=int(least), divisor=divisor, width=width, first=first))

    def _best(self, vector: Ints, replaced: Ints | None) -> tuple[int, int]:
        """The kind, and the known vector to subtract, that leave the fewest bits in the sample."""
        if self._length < _FEW:
            return (PLAIN if replaced is None else REPLACED), -1
        values = vector[self._sample]
        kinds = [values, values - vector[np.maximum(self._sample - 1, 0)]]
        if replaced is not None:
            kinds.append(values - replaced[self._sample])
        rests = np.array(kinds)[:, None] - np.array(self._bases)
        bits = _bits(rests).sum(axis=2)
        bits[:, 1:] += _MARGIN * len(values)
        # Plain vectors are the fastest to unpack.
        bits[1:] += 2
        kind, base = divmod(int(bits.argmin()), len(self._bases))
        return kind, base - 1

    def _divided(self, values: npt.NDArray[np.uint64]) -> tuple[int, npt.NDArray[np.uint64]]:
        divisor = np.gcd.reduce(values[self._sample]) if self._length >= _FEW else 1
        if divisor > 1:
            quotients = values // divisor
            if np.array_equal(quotients * divisor, values):
                return int(divisor), quotients
        return 1, values


def _bits(values: Ints) -> npt.NDArray[np.int32]:
    """Roughly the number of bits of a value: the exponent of a float."""
    exponents: npt.NDArray[np.int32] = np.abs(values).astype(np.float32).view(np.int32) >> 23
    return (exponents - 126).clip(0)


class Unpacking:
    """The same vectors again, in the same order."""

    def __init__(self, length: int, forms: Iterable[Form], planes: Planes, known: Iterable[Ints] = ()) -> None:
        self._length = length
        self._forms = iter(forms)
        self._planes = planes
        self._known = list(known)
        self._made: dict[tuple[int, int, int], Ints] = {}

    def take(self, replacing: Callable[[Ints], Ints] | None = None) -> Ints:
        """The next vector; `replacing` adds the values of the rows that its rows replace."""
        form = next(self._forms)
        vector = self._stored(form)
        self._known.append(vector)
        # A vector equal to another is built once.
        made = (form.kind, form.first, id(vector))
        if form.kind == STEPS:
            if made not in self._made:
                self._made[made] = np.cumsum(vector) + np.int64(form.first)
            return self._made[made]
        if form.kind == REPLACED:
            assert replacing is not None
            return replacing(vector)
        return vector

    def _stored(self, form: Form) -> Ints:
        if not (form.width or form.least) and form.base >= 0:
            return self._known[form.base]
        vector = self._planes.take(self._length, form.width)
        if form.divisor > 1:
            # As bits: a divisor may have all 64.
            vector *= np.array(form.divisor, np.uint64).view(np.int64)
        if form.least:
            vector += form.least
        if form.base >= 0:
            vector += self._known[form.base]
        return vector


class Planes:
    """The bytes of many vectors, one after another."""

    def __init__(self, data: Any) -> None:
        self._data = np.frombuffer(data, np.uint8)

    def part(self, length: int, forms: Iterable[Form]) -> Planes:
        """Those of the next vectors, of one length, which are consumed."""
        size = length * sum(form.width for form in forms)
        part, self._data = Planes(self._data[:size]), self._data[size:]
        return part

    def take(self, length: int, width: int) -> Ints:
        values = np.zeros(length, np.int64) if not width else self._plane(length)
        for number in range(1, width):
            values |= self._plane(length) << (8 * number)
        return values

    def _plane(self, length: int) -> Ints:
        plane, self._data = self._data[:length], self._data[length:]
        return plane.astype(np.int64)
