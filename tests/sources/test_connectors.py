"""The suite that every connector passes: what `Connector` says, and nothing about how it is done.

A new one adds its source to `tests.sources.connectors`, with a way to make it commit, forget and be cut.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.budgets import HANG_S
from tests.sources.connectors import SOURCES, STREAM, UNFIT, Source, sourcing
from tidelock.errors import SettingsError, Unreachable
from tidelock.sources.connect.connector import Connector, KeyViolation, MomentPart, PositionLost

pytestmark = pytest.mark.check

#: op and row of a change
Told = tuple[str, Any]


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    with sourcing(request.param) as made:
        yield made


class Listening:
    """The moments of one subscription, put together from their parts."""

    def __init__(self, connector: Connector, after: str | None, not_before_ms: int | None = None) -> None:
        self._parts = connector.parts(after, not_before_ms)
        self.position = after

    async def moment(self) -> tuple[int, list[Told], bool]:
        """The next that has changes, or is whole."""
        while True:
            parts = [await self._part()]
            while parts[-1].position is None:
                parts.append(await self._part())
            assert {(part.at_ms, part.whole) for part in parts} == {(parts[0].at_ms, parts[0].whole)}
            self.position = parts[-1].position
            changes = [(change.op, json.loads(change.data)) for part in parts for change in part.changes]
            if changes or parts[0].whole:
                return parts[0].at_ms, sorted(changes, key=lambda change: change[1]["id"]), parts[0].whole

    async def progress(self) -> None:
        """Until the position has moved, with nothing told."""
        before = self.position
        while self.position == before:
            part = await self._part()
            assert not part.changes
            self.position = part.position

    async def _part(self) -> MomentPart:
        async with asyncio.timeout(HANG_S):
            return await anext(self._parts)

    async def close(self) -> None:
        await self._parts.aclose()


@asynccontextmanager
async def opened(source: Source, part_rows_max: int = 100) -> AsyncIterator[Connector]:
    connector = source.connector(part_rows_max)
    await connector.open(STREAM)
    try:
        yield connector
    finally:
        await connector.close()


@asynccontextmanager
async def listening(
    connector: Connector, after: str | None, not_before_ms: int | None = None
) -> AsyncIterator[Listening]:
    heard = Listening(connector, after, not_before_ms)
    try:
        yield heard
    finally:
        await heard.close()


def upsert(number: int, text: str) -> Told:
    return "upsert", {"id": number, "v": text}


def delete(number: int) -> Told:
    return "delete", {"id": number}


async def test_without_a_position_the_first_moment_is_all_the_rows_there_are(source: Source) -> None:
    source.commit({1: "a", 2: "b"})
    last = source.commit({2: "c", 3: "d"}, deletes=[1])
    async with opened(source) as connector, listening(connector, None) as heard:
        at, changes, whole = await heard.moment()
    assert (changes, whole) == ([upsert(2, "c"), upsert(3, "d")], True)
    assert at >= last


async def test_a_view_without_rows_has_a_whole_moment_too(source: Source) -> None:
    async with opened(source) as connector, listening(connector, None) as heard:
        source.advance()
        assert (await heard.moment())[1:] == ([], True)


async def test_a_snapshot_is_not_before_the_time_it_is_wanted_from(source: Source) -> None:
    wanted = source.commit({1: "a"}) + 500
    async with opened(source) as connector, listening(connector, None, wanted) as heard:
        source.advance()
        source.advance()
        at, changes, whole = await heard.moment()
    assert at >= wanted
    assert (changes, whole) == ([upsert(1, "a")], True)


async def test_changes_come_moment_by_moment_with_their_time(source: Source) -> None:
    source.commit({1: "a"})
    async with opened(source) as connector, listening(connector, None) as heard:
        await heard.moment()
        first = source.commit({1: "b", 2: "c"})
        second = source.commit({3: "d"}, deletes=[1])
        source.advance()
        assert await heard.moment() == (first, [upsert(1, "b"), upsert(2, "c")], False)
        assert await heard.moment() == (second, [delete(1), upsert(3, "d")], False)


async def test_after_any_position_come_the_later_moments_and_no_others(source: Source) -> None:
    source.commit({1: "a"})
    async with opened(source) as connector:
        async with listening(connector, None) as heard:
            at, _, _ = await heard.moment()
            positions = [(at, heard.position)]
            for number in range(5):
                source.commit({1: str(number), number + 2: "x"})
            source.advance()
            moments = []
            for _ in range(5):
                moments.append(await heard.moment())
                positions.append((moments[-1][0], heard.position))
        for told, position in positions:
            later = [moment for moment in moments if moment[0] > told]
            async with listening(connector, position) as again:
                assert [await again.moment() for _ in later] == later


async def test_a_position_moves_while_nothing_happens(source: Source) -> None:
    source.commit({1: "a"})
    async with opened(source) as connector:
        async with listening(connector, None) as heard:
            await heard.moment()
            source.advance()
            await heard.progress()
        at = source.commit({1: "b"})
        source.advance()
        async with listening(connector, heard.position) as again:
            assert await again.moment() == (at, [upsert(1, "b")], False)


async def test_a_large_moment_comes_in_parts(source: Source) -> None:
    source.commit(dict.fromkeys(range(25), "a"))
    async with opened(source, part_rows_max=10) as connector, listening(connector, None) as heard:
        source.advance()
        assert (await heard.moment())[1] == [upsert(number, "a") for number in range(25)]
        source.commit(dict.fromkeys(range(25), "b"))
        source.advance()
        assert (await heard.moment())[1] == [upsert(number, "b") for number in range(25)]


async def test_a_position_whose_history_is_gone_is_lost_and_a_snapshot_tells(source: Source) -> None:
    source.commit({1: "a", 2: "b"})
    async with opened(source) as connector:
        async with listening(connector, None) as heard:
            at, _, _ = await heard.moment()
        source.commit({3: "c"}, deletes=[1])
        source.lose_history()
        with pytest.raises(PositionLost):
            async with listening(connector, heard.position) as again:
                await again.moment()
        async with listening(connector, None, at + 1) as again:
            source.advance()
            assert (await again.moment())[1:] == ([upsert(2, "b"), upsert(3, "c")], True)


async def test_a_cut_is_told_and_it_can_be_opened_again(source: Source) -> None:
    source.commit({1: "a"})
    async with opened(source) as connector:
        async with listening(connector, None) as heard:
            await heard.moment()
            source.cut()
            with pytest.raises(Unreachable):
                await heard.moment()
        at = source.commit({1: "b"})
        source.advance()
        await connector.open(STREAM)
        async with listening(connector, heard.position) as again:
            assert await again.moment() == (at, [upsert(1, "b")], False)


async def test_several_rows_of_a_key_are_told_after_what_came_before(source: Source) -> None:
    source.commit({1: "a"})
    async with opened(source) as connector, listening(connector, None) as heard:
        await heard.moment()
        at = source.commit({2: "b"})
        source.commit({3: "c"}, violations=[1])
        source.advance()
        assert await heard.moment() == (at, [upsert(2, "b")], False)
        with pytest.raises(KeyViolation):
            await heard.moment()


async def test_a_stream_that_the_view_does_not_fit_is_refused(source: Source) -> None:
    connector = source.connector()
    with pytest.raises(SettingsError, match="w"):
        await connector.open(UNFIT)
    await connector.close()
