"""BodyBudget for bodies: bounded together, never refused alone."""

import pytest

from tidelock.api.ingest import BodyBudget
from tidelock.errors import Overloaded

pytestmark = pytest.mark.check


def test_requests_share_the_room_and_give_it_back() -> None:
    room = BodyBudget(100)
    with room.hold() as one:
        one.add(60)
        with room.hold() as other:
            other.add(40)
            with pytest.raises(Overloaded, match="100 bytes"):
                other.add(1)
        one.add(40)
    assert room.bytes == 0


def test_a_request_larger_than_the_room_is_taken_when_it_is_alone() -> None:
    room = BodyBudget(10)
    with room.hold() as alone:
        alone.add(8)
        alone.add(8)
        with room.hold() as other, pytest.raises(Overloaded):
            other.add(1)
