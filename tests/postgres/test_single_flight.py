"""A question that many ask at a time: asked once for all, and never answered by what was known before."""

from __future__ import annotations

import asyncio

import pytest

from tidelock.errors import Unreachable
from tidelock.postgres.pool import SingleFlight


class Asked:
    """What is asked: its answer is the number of the question."""

    def __init__(self) -> None:
        self.count = 0
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> int:
        self.count += 1
        number = self.count
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return number


async def ask(look: SingleFlight[int], count: int = 1) -> list[asyncio.Task[int]]:
    asking = [asyncio.create_task(look()) for _ in range(count)]
    await asyncio.sleep(0.01)
    return asking


async def test_all_who_ask_at_once_get_one_answer() -> None:
    asked = Asked()
    asking = await ask(SingleFlight(asked), 100)
    asked.go.set()
    assert await asyncio.gather(*asking) == [1] * 100


async def test_a_client_that_asks_while_it_is_looked_up_gets_the_next_answer() -> None:
    asked = Asked()
    look = SingleFlight(asked)
    first, *others = [*await ask(look), *await ask(look, 50), *await ask(look, 50)]
    assert asked.count == 1
    asked.go.set()
    assert await first == 1
    assert await asyncio.gather(*others) == [2] * 100
    assert await look() == 3


async def test_a_client_that_hangs_up_takes_nothing_from_the_others() -> None:
    asked = Asked()
    one, other = await ask(SingleFlight(asked), 2)
    one.cancel()
    await asyncio.sleep(0)
    asked.go.set()
    assert await other == 1


async def test_an_answer_that_cannot_be_had_is_not_waited_for_twice_and_asked_for_again() -> None:
    asked = Asked()
    asked.error = Unreachable("away")
    look = SingleFlight(asked)
    asking = [*await ask(look), *await ask(look, 2)]
    asked.go.set()
    for each in asking:
        with pytest.raises(Unreachable):
            await each
    assert asked.count == 1
    asked.error = None
    assert await look() == 2
