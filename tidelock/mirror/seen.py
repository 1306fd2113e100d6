"""Seen: a set of sequences that takes a bit for each, for ledgers of any length."""

from __future__ import annotations

_BITS = 1 << 16


class Seen:
    """Sequences, in blocks that are there where there is something."""

    def __init__(self) -> None:
        self._blocks: dict[int, bytearray] = {}
        self._count = 0

    def add(self, sequence: int) -> None:
        block, bit = divmod(sequence, _BITS)
        bits = self._blocks.get(block)
        if bits is None:
            bits = self._blocks[block] = bytearray(_BITS >> 3)
        if not bits[bit >> 3] >> (bit & 7) & 1:
            bits[bit >> 3] |= 1 << (bit & 7)
            self._count += 1

    def __contains__(self, sequence: int) -> bool:
        block, bit = divmod(sequence, _BITS)
        bits = self._blocks.get(block)
        return bits is not None and bool(bits[bit >> 3] >> (bit & 7) & 1)

    def __len__(self) -> int:
        return self._count
