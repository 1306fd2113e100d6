"""Whatever happens to a view, to its history and to the connection: the ledger's latest rows are the view's."""

from __future__ import annotations

import asyncio
import itertools
import json
from contextlib import suppress
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.budgets import HANG_S, examples
from tests.recording import rows, sequencing
from tests.sources.connectors import STREAM, MaterializeSource
from tests.sources.materialize import standing_in
from tidelock.definitions import Definitions
from tidelock.errors import Unreachable
from tidelock.ledger.sequencer import Sequencer
from tidelock.postgres.database import Database
from tidelock.settings import Settings
from tidelock.settings.groups import ConnectSettings
from tidelock.sources.connect.connecting import Connecting
from tidelock.sources.connect.memory import Memory
from tidelock.sources.connect.memory import ViewFeed as Feed
from tidelock.sources.sender import Sender

pytestmark = pytest.mark.check

MILLISECOND = 10**6
_tenants = itertools.count(1)
_texts = itertools.count(1)

_keys = st.integers(0, 5)
_commit = st.tuples(st.sets(_keys, min_size=1, max_size=5), st.sets(_keys, max_size=4))


class Episode(NamedTuple):
    """Something happens to the connection, then to the view, and then perhaps all of it is recorded."""

    incident: str
    #: rows that the next subscription sends before it is cut; None: it is not
    cut_after: int | None
    #: keys that are upserted, and deleted
    commits: list[tuple[set[int], set[int]]]
    forgotten: bool
    settled: bool


_episode = st.builds(
    Episode,
    st.sampled_from(["none", "stop", "kill", "cut"]),
    st.none() | st.integers(0, 12),
    st.lists(_commit, min_size=1, max_size=3),
    st.booleans(),
    # Mostly: what was never recorded cannot be lost.
    st.sampled_from([True, True, False]),
)
# The first rows are recorded in any case, and many at a time are worth more than many examples.
_episodes = st.lists(_episode, min_size=3, max_size=8)


class Run:
    """A connector that is started anew whenever it was stopped or killed, as by a supervisor."""

    def __init__(self, sequencer: Sequencer, database: Database, source: MaterializeSource, part_rows_max: int) -> None:
        self.tenant = f"tenant-{next(_tenants)}"
        self._given = (sequencer, database, source, part_rows_max)
        self.start()

    def start(self) -> None:
        sequencer, database, source, part_rows_max = self._given
        wanted = Settings(
            definitions=Definitions(streams={STREAM.name: STREAM}), connect=ConnectSettings(pause_max=5 * MILLISECOND)
        )
        connector = source.connector(part_rows_max)
        feed = Feed.of(connector, STREAM, self.tenant)
        sender = Sender(sequencer, wanted, streams_open=True)
        self.connecting = Connecting(
            connector, feed, Memory(database, feed), sender, settings=wanted.connect, tell=lambda _: None
        )
        self._task = asyncio.create_task(self.connecting.run())

    async def stop(self) -> None:
        self.connecting.stop.set()
        with suppress(Unreachable):
            await self._task

    async def kill(self) -> None:
        """Without a chance to store anything."""
        self._task.cancel()
        with suppress(asyncio.CancelledError, Unreachable):
            await self._task

    async def settled(self, source: MaterializeSource, seconds: float = HANG_S) -> None:
        """Until all that there is has been recorded."""
        source.advance()
        async with asyncio.timeout(seconds):
            while int(self.connecting.result.position or 0) < source.server.now:
                if self._task.done():
                    # Cut before it had begun it ends, as a command does.
                    assert isinstance(self._task.exception(), Unreachable), self._task.exception()
                    self.start()
                await asyncio.sleep(0.002)


async def _happen(run: Run, source: MaterializeSource, episode: Episode) -> None:
    server = source.server
    if episode.cut_after is not None:
        server.cuts.append(episode.cut_after)
    match episode.incident:
        case "stop":
            await run.stop()
            run.start()
        case "kill":
            await run.kill()
            run.start()
        case "cut":
            source.cut()
    # Nothing is awaited from here on: a connector that was started anew comes too late for all of it.
    for upserts, deletes in episode.commits:
        there = {key[0] for key in server.views["things"].at(server.now)}
        # Every text is new: one that is recorded twice was doubled.
        source.commit({key: str(next(_texts)) for key in upserts}, sorted(deletes & there - upserts))
    if episode.forgotten:
        source.lose_history()
    if episode.settled:
        await run.settled(source)


async def _history(database: Database, episodes: list[Episode], part_rows_max: int, seed: int) -> None:
    with standing_in(seed=seed) as server:
        source = MaterializeSource(server)
        async with sequencing(database) as sequencer:
            run = Run(sequencer, database, source, part_rows_max)
            try:
                for episode in episodes:
                    await _happen(run, source, episode)
                server.cuts.clear()
                await run.settled(source)
            finally:
                await run.stop()
            await _check(database, run.tenant, source)


async def _check(database: Database, tenant: str, source: MaterializeSource) -> None:
    server = source.server
    found = await rows(
        database,
        f"SELECT op, data::text, occurred_at, source_timestamp FROM events WHERE tenant_id = '{tenant}' "
        "ORDER BY ingress_sequence",
    )
    latest: dict[int, str] = {}
    texts: set[str] = set()
    for op, data, _, _ in found:
        row = json.loads(data)
        if op == "delete":
            assert row["id"] in latest, "only what is there is deleted"
            del latest[row["id"]]
        else:
            assert row["v"] not in texts, "none is doubled"
            texts.add(row["v"])
            latest[row["id"]] = row["v"]
    assert latest == {key[0]: row["v"] for key, row in server.views["things"].at(server.now).items()}
    times = [row[2] for row in found]
    assert times == sorted(times), "moments are in the order of their time"
    assert len({row[3] for row in found}) == len(set(times)), "a moment is a collection"


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_episodes, st.sampled_from([1, 3, 100]), st.integers(0, 1000))
def test_the_latest_rows_are_the_views_whatever_happened(
    database: Database, episodes: list[Episode], part_rows_max: int, seed: int
) -> None:
    asyncio.run(_history(database, episodes, part_rows_max, seed))
