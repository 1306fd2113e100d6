"""What goes wrong around subscriptions: databases that go away, logs that are pruned, definitions that change."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.views.folding import OTHERS, STREAMS, Folding, folding, following, hub_of, put, taken, until
from tests.views.histories import TABLE, Client, comparable, visible
from tidelock.changes.log import prune
from tidelock.changes.reader import Change
from tidelock.definitions import Definitions, parse_definitions
from tidelock.errors import DefinitionChanged, NotFound, ResumeExpired
from tidelock.postgres.database import Database
from tidelock.postgres.embedded import EmbeddedPostgres
from tidelock.postgres.migrate import migrate
from tidelock.tables import COUNTERS, WATERMARKS, Table
from tidelock.views.hub import Hub
from tidelock.where import parse_where


@pytest.fixture
def fold(database: Database) -> Iterator[Folding]:
    with folding(database) as made:
        yield made


async def agree(hub: Hub, fold: Folding, client: Client) -> None:
    await until(lambda: (hub.state.through or 0) >= fold.time, 60)
    await until(lambda: comparable(client.rows) == comparable(visible(fold.rows(fold.time), {}, None)))


# Databases that go away


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Database]:
    """A server of this test's own, to be killed."""
    server = EmbeddedPostgres(tmp_path, None, {"fsync": "off"})
    server.ensure()
    with Database(server) as made:
        with made.connect_sync() as connection:
            migrate(connection)
        yield made


async def test_subscriptions_continue_after_the_database_was_killed(embedded: Database, tmp_path: Path) -> None:
    client = Client()
    with folding(embedded) as fold:
        fold.fold([put("a", i=1), put("b", i=1)])
        async with hub_of(embedded) as hub:
            subscription = await hub.subscribe(TABLE)
            async with following(subscription, client, random.Random(1)):
                await agree(hub, fold, client)
                for n in range(2):
                    os.kill(int((tmp_path / "postgres" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
                    fold.store.close()
                    # Whoever asks next brings it back.
                    await (await embedded.connect()).close()
                    fold.fold([put("a", i=2 + n)], [put("b", i=None), put("c", i=n)])
                    await agree(hub, fold, client)


async def test_a_client_that_missed_changes_that_are_gone_gets_an_error(
    database: Database, fold: Folding, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hub_of(database) as hub:
        subscription = await hub.subscribe(TABLE)
        waiting = asyncio.create_task(subscription.take())
        await until(lambda: hub.state.view_subscribers == 1)
        # Nothing is heard and nobody looks, until a change was made and removed.
        with database.connect_sync() as connection, monkeypatch.context() as patch:
            held = await asyncio.to_thread(_look, database)
            patch.setattr("tidelock.views.follower.read_state", lambda _: held)
            fold.fold([put("a", i=1)])
            prune(connection, 0)
            fold.fold([put("a", i=2)])
        with pytest.raises(ResumeExpired):
            await waiting
        assert hub.state.views == 0


def _look(database: Database) -> Any:
    from tidelock.changes.log import read_state

    with database.connect_sync() as connection:
        return read_state(connection)


# Definitions that change


def changed(**streams: Any) -> Definitions:
    return parse_definitions({"streams": {name: form for name, form in (STREAMS | streams).items() if form}})


MORE = {"key": "k", "columns": {**STREAMS["others"]["columns"], "more": "string"}}


async def test_a_changed_definition_ends_only_those_who_look_at_its_table(database: Database, fold: Folding) -> None:
    fold.fold([put("a", i=1), other("a", 1)])
    async with hub_of(database) as hub:
        things, others = await hub.subscribe(TABLE), await hub.subscribe(OTHERS)
        assert len(await things.take()) == len(await others.take()) == 1
        waiting = asyncio.create_task(others.take())
        fold.define(changed(others=MORE))
        with pytest.raises(DefinitionChanged) as ended:
            await waiting
        assert ended.value.code == "definition_changed"
        fold.fold([put("a", i=2), other("a", 2, fold.tables["others"], more="x")])
        assert [event.row["i"] for event in await things.take()] == [2]
        with pytest.raises(DefinitionChanged):
            await hub.subscribe(OTHERS)
        now = (await hub.catalog()).tables["others"]
        again = await hub.subscribe(now)
        assert [event.row for event in await again.take()] == [{"tenant_id": "t", "k": "a", "n": 2, "more": "x"}]
        fold.define(changed(others=None))
        with pytest.raises(DefinitionChanged):
            await again.take()
        fold.fold([put("a", i=3)])
        assert [event.row["i"] for event in await things.take()] == [3]


async def test_a_client_that_resumes_has_null_of_a_column_that_was_added(database: Database, fold: Folding) -> None:
    times = fold.fold([other("a", 1)])
    fold.define(changed(others=MORE))
    now = fold.tables["others"]
    fold.fold([other("a", 2, now, more="x")])
    async with hub_of(database) as hub:
        filtered = parse_where({"more": {"_is_null": True}}, now.columns)
        subscription = await hub.subscribe(now, filtered, after=times[0])
        events = await taken(subscription, fold.time)
        assert [(event.operation, event.row["more"]) for event in events] == [("INSERT", None), ("DELETE", None)]


async def test_a_client_that_resumes_from_before_a_column_had_another_type_is_sent_back(
    database: Database, fold: Folding
) -> None:
    times = fold.fold([other("a", 1)])
    fold.define(changed(others={"key": "k", "columns": {"k": "string", "n": "string"}}))
    now = fold.tables["others"]
    fold.fold([Change("others", 0, "t", "b", old=None, new={"k": "b", "n": "2"})])
    async with hub_of(database) as hub:
        with pytest.raises(ResumeExpired, match="definition"):
            await (await hub.subscribe(now, after=times[0])).take()
        assert len(await (await hub.subscribe(now, after=fold.time)).take()) == 1


async def test_before_the_fold_has_run_there_are_no_rows_and_then_there_are(database: Database) -> None:
    async with hub_of(database) as hub:
        subscription = await hub.subscribe((await hub.catalog()).tables["things"])
        waiting = asyncio.create_task(subscription.take())
        await until(lambda: hub.state.view_subscribers == 1)
        with folding(database) as fold:
            fold.fold([put("a", i=1)])
            assert [event.row["i"] for event in await waiting] == [1]


async def test_changes_that_are_not_recorded_cannot_be_had(database: Database, fold: Folding) -> None:
    async with hub_of(database) as hub:
        subscription = await hub.subscribe(OTHERS)
        waiting = asyncio.create_task(subscription.take())
        fold.define(changed(others=STREAMS["others"] | {"live": False}))
        with pytest.raises(DefinitionChanged):
            await waiting
        for table in (OTHERS, WATERMARKS):
            with pytest.raises(NotFound):
                await hub.subscribe(table)


async def test_counters_of_meters_that_are_not_recorded_are_not_shown(database: Database, fold: Folding) -> None:
    meters: dict[str, dict[str, Any]] = {
        "heard": {"aggregation": "count"},
        "silent": {"aggregation": "count", "live": False},
    }
    fold.define(parse_definitions({"streams": STREAMS, "meters": meters}))
    fold.fold([counter("heard", 1), counter("silent", 1)])
    async with hub_of(database) as hub:
        subscription = await hub.subscribe(COUNTERS)
        assert [event.row["metric"] for event in await taken(subscription, fold.time)] == ["heard"]
        meters["silent"]["live"] = True
        fold.define(parse_definitions({"streams": STREAMS, "meters": meters}))
        with pytest.raises(DefinitionChanged):
            await subscription.take()
        subscription = await hub.subscribe(COUNTERS)
        found = await taken(subscription, fold.time - 10)
        assert {event.row["metric"] for event in found} == {"heard", "silent"}


def other(key: str, n: int, table: Table = OTHERS, **values: Any) -> Change:
    return put(key, table=table, n=n, **values)


def counter(metric: str, count: int) -> Change:
    row = dict.fromkeys(COUNTERS.stored) | {
        "metric": metric, "customer_ref": "c", "period_start": 0, "agg_sum": 0, "agg_count": count, "watermark_ts": 0,
        "adj_sum": 0, "adj_count": 0,
    }  # fmt: skip
    return Change(COUNTERS.name, 0, "t", f'["{metric}"]', old=None, new=row)
