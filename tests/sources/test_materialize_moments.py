"""Moments: a timestamp is complete when a later one is seen, and not before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.errors import Unreachable
from tidelock.sources.connect.connector import MomentPart, RowChange
from tidelock.sources.connect.materialize import Moments

pytestmark = pytest.mark.check


def change(number: int) -> RowChange:
    return RowChange("upsert", b"%d" % number)


def told(moments: Moments, *words: int | tuple[int, int]) -> list[MomentPart]:
    """What comes of progress (a number) and rows (time, number)."""
    parts: list[MomentPart] = []
    for word in words:
        if isinstance(word, int):
            parts += moments.progressed(word)
        else:
            parts += [*moments.reached(word[0]), *moments.row(change(word[1]))]
    return parts


def test_a_snapshot_is_complete_when_its_time_has_passed() -> None:
    moments = Moments(None, 100)
    assert told(moments, 10, (10, 1), (10, 2), 10) == []
    assert told(moments, 11) == [MomentPart(10, [change(1), change(2)], "10", whole=True)]


def test_a_snapshot_without_rows_is_one_too() -> None:
    assert told(Moments(None, 100), 10, 15) == [MomentPart(10, [], "14", whole=True)]


def test_a_later_row_completes_what_is_earlier_without_a_word_of_progress() -> None:
    moments = Moments(5, 100)
    assert told(moments, (7, 1), (8, 2)) == [MomentPart(7, [change(1)], "7")]
    assert told(moments, 9) == [MomentPart(8, [change(2)], "8")]


def test_progress_alone_moves_the_position() -> None:
    moments = Moments(5, 100)
    assert told(moments, 5, 6) == []
    assert told(moments, 9, 9) == [MomentPart(8, (), "8")]


def test_a_large_moment_comes_in_parts() -> None:
    moments = Moments(5, 2)
    parts = told(moments, (7, 1), (7, 2), (7, 3), 8)
    assert parts == [MomentPart(7, [change(1), change(2)], None), MomentPart(7, [change(3)], "7")]


def test_the_end_completes_what_is_open() -> None:
    moments = Moments(5, 2)
    assert told(moments, (7, 1)) == []
    assert list(moments.ended()) == [MomentPart(7, [change(1)], "7")]


def test_time_that_goes_back_is_a_subscription_not_to_rely_on() -> None:
    with pytest.raises(Unreachable):
        told(Moments(None, 2), 5, (5, 1), (4, 1))


_words = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=30)


@given(_words, st.integers(1, 4), st.none() | st.just(100))
def test_no_row_is_lost_and_positions_never_pass_a_row_that_was_not_told(
    words: list[tuple[int, int, bool]], part_rows_max: int, after: int | None
) -> None:
    moments, now = Moments(after, part_rows_max), 101
    sent: list[tuple[int, bytes]] = []
    got: list[tuple[int, bytes]] = []
    parts = told(moments, 100)
    for number, (pause, rows, progress) in enumerate(words):
        now += pause
        for row in range(rows):
            sent.append((now, b"%d" % (number * 10 + row)))
            parts += told(moments, (now, number * 10 + row))
        if progress:
            now += 1
            parts += told(moments, now)
    parts += moments.ended()
    position = -1
    for part in parts:
        got += [(part.at_ms, each.data) for each in part.changes]
        if part.position is not None:
            assert int(part.position) >= max([part.at_ms, position])
            position = int(part.position)
            assert all(row in got for row in sent if row[0] <= position)
    assert got == sent
