"""What a connector tells, recorded: each change once and in order, whoever is cut, stopped or forgets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.budgets import HANG_S
from tests.recording import record, rows, sequencing
from tests.sources.connectors import STREAM, MaterializeSource, sourcing
from tidelock.columns import ColumnType
from tidelock.definitions import Definitions, Stream
from tidelock.errors import SettingsError, Unreachable
from tidelock.ledger.sequencer import Sequencer
from tidelock.postgres.database import Database
from tidelock.settings import Settings
from tidelock.settings.groups import ConnectSettings
from tidelock.sources.connect.connecting import Connected, Connecting
from tidelock.sources.connect.connector import KeyViolation, Unrecordable
from tidelock.sources.connect.memory import Memory
from tidelock.sources.connect.memory import ViewFeed as Feed
from tidelock.sources.sender import Sender

pytestmark = pytest.mark.check

SECOND = 10**9


@pytest.fixture
def source() -> Iterator[MaterializeSource]:
    with sourcing("materialize") as made:
        assert isinstance(made, MaterializeSource)
        yield made


def connecting(
    sequencer: Sequencer,
    database: Database,
    source: MaterializeSource,
    stream: Stream = STREAM,
    *,
    part_rows_max: int = 100,
    told: list[str] | None = None,
    hold_s: float = 30,
    **settings: Any,
) -> Connecting:
    """A connector that is not running yet."""
    definitions = Definitions(streams={stream.name: stream})
    given = Settings(definitions=definitions, connect=ConnectSettings(pause_max=SECOND // 10, **settings))
    connector = source.connector(part_rows_max)
    feed = Feed.of(connector, stream, "default")
    sender = Sender(sequencer, given, streams_open=True)
    tell = (told if told is not None else []).append
    return Connecting(connector, feed, Memory(database, feed, hold_s=hold_s), sender, settings=given.connect, tell=tell)


@asynccontextmanager
async def running(*given: Any, restart: bool = False, adopt: bool = False, **options: Any) -> AsyncIterator[Connecting]:
    """One that runs, and is stopped in the end."""
    made = connecting(*given, **options)
    task = asyncio.create_task(made.run(restart=restart, adopt=adopt))
    try:
        yield made
    finally:
        made.stop.set()
        async with asyncio.timeout(HANG_S):
            await task


async def until(true: Callable[[], object], seconds: float = HANG_S) -> None:
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110  (many things are waited for)
            await asyncio.sleep(0.005)


async def ended(made: Connecting, **options: bool) -> Connected:
    async with asyncio.timeout(HANG_S):
        return await made.run(**options)


async def latest(database: Database) -> dict[int, str]:
    """The rows that the ledger says there are."""
    found: dict[int, str] = {}
    for op, data in await rows(database, "SELECT op, data::text FROM events ORDER BY ingress_sequence"):
        row = json.loads(data)
        if op == "delete":
            assert set(row) == {"id"}
            found.pop(row["id"], None)
        else:
            found[row["id"]] = row["v"]
    return found


async def count(database: Database) -> int:
    return (await rows(database, "SELECT count(*) FROM events"))[0][0]


def view(source: MaterializeSource) -> dict[int, str]:
    made = source.server.views["things"]
    return {key[0]: row["v"] for key, row in made.at(source.server.now).items()}


def caught_up(made: Connecting, source: MaterializeSource) -> Callable[[], bool]:
    return lambda: made.result.position is not None and int(made.result.position) >= source.server.now


async def test_rows_are_events_with_the_views_time_and_an_identity_of_their_own(
    database: Database, source: MaterializeSource
) -> None:
    source.commit({1: "a", 2: "b"})
    snapshot = source.server.now
    async with sequencing(database) as sequencer, running(sequencer, database, source) as made:
        await until(caught_up(made, source))
        changed = source.commit({2: "c"}, deletes=[1])
        source.advance()
        await until(caught_up(made, source))
    columns = "row_key, op, data::text, occurred_at, idempotency_key, key_source::text, source, tenant_id, stream"
    found = await rows(database, f"SELECT {columns} FROM events ORDER BY ingress_sequence")
    assert [(row[:3], row[3] // 10**6) for row in found] == [
        (("1", "upsert", '{"id":1,"v":"a"}'), snapshot),
        (("2", "upsert", '{"id":2,"v":"b"}'), snapshot),
        (("1", "delete", '{"id":1}'), changed),
        (("2", "upsert", '{"id":2,"v":"c"}'), changed),
    ]
    assert found[2][4:] == (f'["things","1","{changed}"]', "c", "materialize/things", "default", "things")
    assert len({row[0] for row in await rows(database, "SELECT source_timestamp FROM events")}) == 2


async def test_a_large_moment_is_split_in_key_order_into_collections_of_a_thousand(
    database: Database, source: MaterializeSource
) -> None:
    texts = {str(number): number for number in range(2500)}
    async with sequencing(database) as sequencer:
        async with running(sequencer, database, source, part_rows_max=300) as made:
            await until(lambda: made.result.snapshots)
            source.commit(dict.fromkeys(range(2500), "x"))
            source.advance()
            await until(caught_up(made, source))
        assert made.result.accepted == 2500
    found = await rows(database, "SELECT row_key, source_timestamp, occurred_at FROM events ORDER BY ingress_sequence")
    assert [row[0] for row in found] == sorted(texts), "by code point"
    times = sorted({row[1] for row in found})
    assert [sum(row[1] == time for row in found) for time in times] == [1000, 1000, 500]
    assert len({row[2] for row in found}) == 1


async def test_a_cut_connection_is_made_again_and_continues(database: Database, source: MaterializeSource) -> None:
    source.commit(dict.fromkeys(range(20), "a"))
    told: list[str] = []
    async with sequencing(database) as sequencer, running(sequencer, database, source, told=told) as made:
        await until(lambda: made.result.snapshots)
        # In the midst of a moment.
        source.server.cuts.append(15)
        source.cut()
        source.commit(dict.fromkeys(range(20), "b"))
        source.advance()
        await until(caught_up(made, source))
        assert made.result.reconnects == 2
        assert (made.result.accepted, made.result.snapshots) == (40, 1)
    assert await latest(database) == view(source)
    assert await count(database) == 40, "none is doubled"
    assert any("trying again in" in line for line in told)


async def test_one_that_is_stopped_continues_where_it_was(database: Database, source: MaterializeSource) -> None:
    source.commit({1: "a"})
    async with sequencing(database) as sequencer:
        async with running(sequencer, database, source) as made:
            await until(caught_up(made, source))
        source.commit({1: "b", 2: "c"})
        source.commit({}, deletes=[2])
        source.advance()
        async with running(sequencer, database, source) as again:
            await until(caught_up(again, source))
        assert (again.result.accepted, again.result.duplicates, again.result.snapshots) == (3, 0, 0)
        async with running(sequencer, database, source, restart=True) as anew:
            await until(lambda: anew.result.snapshots)
        assert (anew.result.accepted, anew.result.duplicates) == (0, 0), "a snapshot that says the same is no news"
    assert await latest(database) == view(source) == {1: "b"}
    assert "AS OF" in source.server.subscriptions[1]
    assert "SNAPSHOT = false" in source.server.subscriptions[1]


async def test_a_lost_history_is_made_up_for_by_a_comparison_that_finds_deletes(
    database: Database, source: MaterializeSource
) -> None:
    source.commit({1: "a", 2: "b", 3: "c"})
    told: list[str] = []
    async with sequencing(database) as sequencer:
        async with running(sequencer, database, source) as made:
            await until(caught_up(made, source))
        source.commit({4: "d", 5: "e"}, deletes=[1])
        source.commit({2: "B"}, deletes=[5])
        source.lose_history()
        async with running(sequencer, database, source, told=told) as again:
            await until(lambda: again.result.snapshots)
        assert (again.result.accepted, again.result.deletes, again.result.duplicates) == (3, 1, 0)
    assert await latest(database) == view(source) == {2: "B", 3: "c", 4: "d"}
    assert any("no longer available" in line and "comparing the whole view" in line for line in told)


async def test_any_wording_of_a_refused_position_counts_as_its_loss(
    database: Database, source: MaterializeSource
) -> None:
    source.server.refusal = "could not find a valid timestamp for the query"
    source.commit({1: "a"})
    async with sequencing(database) as sequencer:
        async with running(sequencer, database, source) as made:
            await until(caught_up(made, source))
        source.commit({1: "b"})
        source.lose_history()
        async with running(sequencer, database, source) as again:
            await until(lambda: again.result.snapshots)
    assert await latest(database) == {1: "b"}


async def test_a_key_violation_ends_it_after_what_came_before_and_the_next_run_compares(
    database: Database, source: MaterializeSource
) -> None:
    source.commit({1: "a"})
    async with sequencing(database) as sequencer:
        made = connecting(sequencer, database, source)
        task = asyncio.create_task(ended(made))
        await until(lambda: made.result.snapshots)
        source.commit({2: "b"})
        source.commit({3: "c"}, violations=[1])
        source.advance()
        with pytest.raises(KeyViolation, match="several rows of the key id = 1") as caught:
            await task
        assert "make the key unique" in caught.value.message
        assert caught.value.exit_code == 2
        assert await latest(database) == {1: "a", 2: "b"}, "nothing of its moment"
        with pytest.raises(KeyViolation):
            await ended(connecting(sequencer, database, source))
        source.commit({1: "A"})
        source.advance()
        async with running(sequencer, database, source) as again:
            await until(lambda: again.result.snapshots)
    assert await latest(database) == view(source) == {1: "A", 2: "b", 3: "c"}


async def test_a_row_that_the_ledger_refuses_ends_it_with_its_key_and_is_made_up_for(
    database: Database, source: MaterializeSource
) -> None:
    source.commit({1: "a"})
    async with sequencing(database) as sequencer:
        made = connecting(sequencer, database, source)
        task = asyncio.create_task(ended(made))
        await until(lambda: made.result.snapshots)
        source.commit({2: "b" * (1 << 21)})
        source.advance()
        with pytest.raises(Unrecordable, match="rejects the row '2' of things"):
            await task
        source.commit({2: "b"})
        source.advance()
        async with running(sequencer, database, source) as again:
            await until(lambda: again.result.snapshots)
    assert await latest(database) == view(source)


async def test_a_column_that_is_added_sends_every_row_again(database: Database, source: MaterializeSource) -> None:
    source.server.create("things", {}, "id").columns = {"v": "text", "id": "bigint", "w": "boolean"}
    source.server.commit("things", {"id": 1, "v": "a", "w": True}, {"id": 2, "v": "b", "w": False})
    wider = replace(STREAM, columns={**STREAM.columns, "w": ColumnType("boolean")})
    async with sequencing(database) as sequencer:
        async with running(sequencer, database, source) as made:
            await until(caught_up(made, source))
        async with running(sequencer, database, source, wider) as again:
            source.advance()
            await until(lambda: again.result.snapshots)
    assert again.result.accepted == 2
    found = await rows(database, "SELECT data::text FROM events ORDER BY ingress_sequence DESC LIMIT 1")
    assert json.loads(found[0][0]) == {"id": 2, "v": "b", "w": False}


async def test_rows_of_others_are_not_deleted_unless_that_is_wanted(
    database: Database, source: MaterializeSource
) -> None:
    source.commit({1: "a"})
    definitions = Definitions(streams={STREAM.name: STREAM})
    async with sequencing(database) as sequencer:
        event = {"stream": "things", "data": {"id": 9, "v": "z"}, "idempotencyKey": "mine"}
        await record(sequencer, event, definitions=definitions)
        with pytest.raises(SettingsError, match=r"1 row that did not come from things.*--adopt"):
            await ended(connecting(sequencer, database, source))
        assert await latest(database) == {9: "z"}, "nothing was recorded"
        async with running(sequencer, database, source, adopt=True) as made:
            await until(lambda: made.result.snapshots)
    assert await latest(database) == {1: "a"}


async def test_a_stream_has_one_connector_at_a_time(database: Database, source: MaterializeSource) -> None:
    async with sequencing(database) as sequencer, running(sequencer, database, source) as made:
        await until(lambda: made.result.snapshots)
        with pytest.raises(SettingsError, match="another connector feeds"):
            await ended(connecting(sequencer, database, source, hold_s=0.1))


async def test_patience_ends(database: Database, source: MaterializeSource) -> None:
    async with sequencing(database) as sequencer:
        made = connecting(sequencer, database, source, patience=SECOND // 10)
        task = asyncio.create_task(ended(made))
        await until(lambda: made.result.snapshots)
        source.server.stop()
        with pytest.raises(Unreachable):
            await task


async def test_it_waits_for_one_that_comes_back(database: Database, source: MaterializeSource) -> None:
    source.commit({1: "a"})
    told: list[str] = []
    async with sequencing(database) as sequencer, running(sequencer, database, source, told=told) as made:
        await until(lambda: made.result.snapshots)
        source.server.stop()
        source.commit({1: "b"})
        await until(lambda: sum("trying again" in text for text in told) >= 3)
        source.server.start()
        source.advance()
        await until(caught_up(made, source))
    assert await latest(database) == {1: "b"}
