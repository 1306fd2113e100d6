"""Files of the lake by their names: whatever was loaded in whatever steps, an event is in exactly one of them."""

import random
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.sinks.files import Piece, Span, home, overlapping, pieces, span_of

pytestmark = pytest.mark.check


def following_in(sequences: list[int]) -> Callable[[int], int | None]:
    def following(lo: int) -> int | None:
        place = bisect_right(sequences, lo)
        return sequences[place] if place < len(sequences) else None

    return following


class Lake:
    """What the lake does with pieces, without files: a step replaces its range in each file that it touches."""

    def __init__(self, sequences: list[int]) -> None:
        self.sequences = sequences
        self.files: dict[Span, list[int]] = {}

    def cut(self, lo: int, hi: int, file_events: int) -> list[Piece]:
        return list(pieces(lo, hi, sorted(self.files), file_events, following_in(self.sequences)))

    def publish(self, piece: Piece) -> None:
        kept = [n for n in self.files.get(piece.span, []) if not piece.lo < n <= piece.hi]
        new = [n for n in self.sequences if piece.lo < n <= piece.hi]
        self.files[piece.span] = sorted(kept + new)

    def read(self) -> list[int]:
        """As a reader does who takes the files by name."""
        assert overlapping(sorted(self.files)) is None
        for span, held in self.files.items():
            assert all(span.first <= n <= span.last for n in held)
        return [n for _, held in sorted(self.files.items()) for n in held]


@given(st.lists(st.integers(1, 9) | st.just(10**12), min_size=1, max_size=40), st.integers(0, 2**32))
def test_steps_that_are_killed_anywhere_and_done_again_leave_every_event_in_one_file(
    gaps: list[int], seed: int
) -> None:
    chance, sequences = random.Random(seed), list(accumulate(gaps))
    lake, cursor = Lake(sequences), 0
    while cursor < sequences[-1]:
        hi = chance.choice([n for n in sequences if n > cursor])
        cut = lake.cut(cursor, hi, file_events=chance.choice([3, 5, 1000]))
        killed_after = chance.randint(0, len(cut))
        for piece in cut[:killed_after]:
            lake.publish(piece)
            assert [n for n in lake.read() if n <= cursor] == [n for n in sequences if n <= cursor]
        if killed_after == len(cut) and chance.random() < 0.7:
            cursor = hi
            assert [n for n in lake.read() if n <= cursor] == [n for n in sequences if n <= cursor]
    assert lake.read() == sequences


@given(st.integers(1, 10**12), st.lists(st.integers(1, 10**6), max_size=6, unique=True), st.integers(1, 1000))
def test_a_home_holds_its_sequence_and_touches_no_other(sequence: int, firsts: list[int], size: int) -> None:
    ordered = sorted(firsts)
    spans = [Span(first, min(first + 500, following - 1)) for first, following in pairwise([*ordered, 10**13])]
    found = home(sequence, spans, size)
    assert found.first <= sequence <= found.last
    assert found in spans or overlapping(sorted([*spans, found])) is None


def test_a_file_is_named_by_the_sequences_that_belong_in_it() -> None:
    span = Span(1, 250_000)
    assert span.file == "events-0000000000000000001-0000000000000250000.parquet"
    assert span_of(span.file) == span
    assert span_of(Span(1, 2**63 - 1).file) == Span(1, 2**63 - 1)


@pytest.mark.parametrize("name", ["copy.parquet", "events-1-2.parquet", "events-0000000000000000001.parquet"])
def test_other_files_are_none_of_ours(name: str) -> None:
    assert span_of(name) is None


def test_a_jump_of_a_million_files_costs_one_look() -> None:
    cut = list(pieces(10, 10**15, [], 1000, following_in([11, 10**15])))
    assert [piece.span for piece in cut] == [Span(1, 1000), Span(10**15 - 999, 10**15)]
