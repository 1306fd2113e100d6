"""The composition: opens the stages in the order events flow through them, closes them in reverse.

It is the one place that sees all of them, and it decides nothing.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import uvloop

from tidelock.api.comparison import Comparing
from tidelock.api.health import fold_probe, reader_probe, tail_probe, triggers_probe
from tidelock.api.server import Parts, make_app
from tidelock.api.verification import Verifying
from tidelock.changes.log import prune
from tidelock.children import keep_running
from tidelock.clock import Clock, database_clock
from tidelock.console.site import Site
from tidelock.errors import SettingsError
from tidelock.eventtimes import check_event_times, load_plugins
from tidelock.http.access import check_binding
from tidelock.http.listener import bind, listen, open_gate, url_of
from tidelock.ledger.anchor import Anchor
from tidelock.ledger.apikeys import KeyNews, keys_exist
from tidelock.ledger.feed import Feed
from tidelock.ledger.losttail import refuse_lost_tail
from tidelock.ledger.opening import (
    Ledger,
    found_ledger,
    migrate_ledger,
    open_database,
    open_ledger,
    record_control,
)
from tidelock.ledger.ticks import Ticker
from tidelock.ledger.writer import keep_partitions
from tidelock.postgres import leases
from tidelock.postgres.database import Database
from tidelock.postgres.pool import Connections
from tidelock.postgres.reconnect import Steady
from tidelock.settings import Settings
from tidelock.sinks.opening import check_stores, configured, lake_ranges
from tidelock.spark.java import check_java
from tidelock.triggers.delivery import TriggerWorkers
from tidelock.usage.closing import decide_due
from tidelock.views.hub import Hub

if TYPE_CHECKING:
    from tidelock.definitions import Definitions
    from tidelock.fold.redefine.comparison import Comparison
    from tidelock.fold.redefine.recomputation import Recomputation
    from tidelock.spark.runtime import Spark

logger = logging.getLogger(__name__)

#: a server by itself
NO_CHILDREN: Mapping[str, Sequence[str]] = {}

# Connections for short questions (keys, health), and for followers that catch up.
_SHORT_MAX = {"looks": 4, "pages": 4}


@dataclass(frozen=True, slots=True)
class Serving:
    """A server that accepts requests."""

    url: str
    #: API keys exist, so every request needs one; as it was at the start
    keys_needed: bool
    ledger: Ledger
    #: ends when the server does, which should not happen by itself
    task: asyncio.Task[None]


@asynccontextmanager
async def open_server(
    settings: Settings,
    *,
    streams_open: bool,
    fold_needed: bool = False,
    clock: Clock = database_clock,
    accept_lost_tail: bool = False,
) -> AsyncIterator[Serving]:
    """The ledger and everything that serves it, on a socket that accepts. Leaving it commits everything accepted.

    `fold_needed`: it is not ready before a fold runs.
    """
    async with AsyncExitStack() as stack:
        # First, so that a port in use does not cost the start of a database.
        listening = stack.enter_context(bind(settings.host, settings.port))
        ledger = await stack.enter_async_context(
            open_ledger(settings, streams_open=streams_open, clock=clock, accept_lost_tail=accept_lost_tail)
        )
        keys_needed = await _check_binding(ledger)
        # Separate pools: a long list must not delay keys, health or the live feed, and an explanation must not delay
        # lists.
        sizes = {"lists": settings.read_connections_max, "explain": settings.explain_connections_max, **_SHORT_MAX}
        reads, explains, short, pages = (
            Connections(ledger.database, size_max=size, name=f"tidelock {name}") for name, size in sizes.items()
        )
        for connections in (reads, explains, short, pages):
            stack.push_async_callback(connections.close)
        feed = Feed(
            ledger.database,
            pages,
            queue_events_max=settings.ws_queue_events_max,
            page_bytes_max=settings.page_bytes_max,
        )
        ledger.sequencer.on_commit.append(lambda committed: feed.wake(committed.head.ingress_sequence))
        await feed.start()
        stack.push_async_callback(feed.close)
        hub = Hub(ledger.database, short, settings)
        await hub.start()
        stack.push_async_callback(hub.close)
        anchor = Anchor(ledger.database, settings.anchor_path, settings.anchor_interval)
        stack.push_async_callback(anchor.close)
        # Before the anchor is written for the last time.
        stack.push_async_callback(ledger.sequencer.close)
        await stack.enter_async_context(_background(anchor.run()))
        await stack.enter_async_context(_background(keep_partitions(ledger.database, settings.partition_events)))
        await stack.enter_async_context(
            _background(Ticker(ledger.database, ledger.sequencer, clock, closing=decide_due).run())
        )
        workers = TriggerWorkers(settings, ledger.database, ledger.sequencer)
        await workers.start()
        stack.push_async_callback(workers.close)
        keys = KeyNews(ledger.database)
        kafka = ["kafka"] if settings.kafka.brokers else []
        others = map(reader_probe, [*kafka, *configured(settings)])
        tail = tail_probe(lambda: ledger.sequencer.last_commit)
        probes = [tail, fold_probe(needed=fold_needed), triggers_probe, *others]
        site, verifying = Site(settings), Verifying(ledger.database, settings.anchor_path)
        stack.push_async_callback(site.close)
        stack.push_async_callback(verifying.close)
        comparing = Comparing(ledger.database, settings)
        stack.push_async_callback(comparing.close)
        parts = Parts(
            settings=settings,
            intake=ledger.intake,
            sequencer=ledger.sequencer,
            feed=feed,
            hub=hub,
            keys=keys,
            reads=reads,
            explains=explains,
            short=short,
            database=ledger.database,
            triggers=workers,
            verifying=verifying,
            comparing=comparing,
            gate=open_gate(settings),
            probes=probes,
        )
        app = make_app(parts, site if settings.console else None)
        await stack.enter_async_context(_background(keys.run()))
        task = await stack.enter_async_context(listen(app, listening, settings, parts.gate))
        yield Serving(url_of(listening), keys_needed, ledger, task)


def serve(
    settings: Settings,
    *,
    streams_open: bool,
    announce: Callable[[str, bool], None],
    children: Mapping[str, Sequence[str]] = NO_CHILDREN,
    accept_lost_tail: bool = False,
) -> None:
    """Serve until a signal says stop; a second one ends at once. `announce` gets the URL, and whether API keys
    are needed, when it is open. `children` are commands to run beside it, by what they are."""
    if "fold" in children:
        _load_plugins(settings)
    if "load" in children:
        check_stores(settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        server = open_server(
            settings, streams_open=streams_open, fold_needed="fold" in children, accept_lost_tail=accept_lost_tail
        )
        runner.run(_serve(server, announce, children))


async def _serve(
    opening: AbstractAsyncContextManager[Serving],
    announce: Callable[[str, bool], None],
    children: Mapping[str, Sequence[str]],
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)

    def stopping() -> None:
        stop.set()
        for number in signals:
            loop.remove_signal_handler(number)

    for number in signals:
        loop.add_signal_handler(number, stopping)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(opening)
        stopped = await stack.enter_async_context(_background(stop.wait()))
        kept = [
            await stack.enter_async_context(_background(keep_running(name, command, server.url, vital=name != "load")))
            for name, command in children.items()
        ]
        _calm_collector()
        if not stop.is_set():
            announce(server.url, server.keys_needed)
        ended, _ = await asyncio.wait([server.task, stopped, *kept], return_when=asyncio.FIRST_COMPLETED)
        for child in kept:
            if child in ended and not stop.is_set():
                child.result()


def fold(settings: Settings, *, stop: threading.Event, rebuild: bool, once: bool, tell: Callable[[str], None]) -> None:
    """Fold the ledger until told to stop, or once through its present end."""
    # Imported here, because a server should not wait for Spark's modules, which it does not use.
    from tidelock.fold.ranges import ledger_end
    from tidelock.fold.redefine.proposals import check_definitions
    from tidelock.fold.runner import CURSOR, Runner
    from tidelock.fold.store import Store
    from tidelock.spark.configuration import check as check_spark
    from tidelock.spark.runtime import Spark
    from tidelock.tables import SCHEMA

    check_spark(settings.spark, settings.database_url)
    _load_plugins(settings)
    with open_database(settings) as database:
        migrate_ledger(database)
        asyncio.run(refuse_lost_tail(database, settings.anchor_path))
        with closing(Store(database, SCHEMA, CURSOR)) as store:
            database.patience.insist_sync(lambda: check_definitions(store, settings.definitions, rebuild=rebuild))
            end = database.patience.insist_sync(lambda: ledger_end(store))
        started = time.monotonic()
        tell("starting Spark (about 15 s, longer the first time); events are already recorded ...")
        with Spark(settings.spark, settings.data) as spark:
            tell(f"Spark started in {time.monotonic() - started:.1f} s")
            runner = Runner(
                spark,
                database,
                settings.definitions,
                **_ranges(settings),
                rebuild=rebuild,
                control=partial(_propose, settings, database),
                tidy=lambda connection: _prune(connection, settings),
                tell=tell,
            )
            runner.run(stop, through=end if once else None)


def replay(
    settings: Settings,
    names: Sequence[str],
    *,
    lake: bool,
    stop: threading.Event,
    tell: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> None:
    """Rebuild the tables of definitions, those named or those that changed, and swap them in. `lake`: read events from
    it.
    """
    from tidelock.fold.redefine.catalog import read_catalog
    from tidelock.fold.redefine.replay import await_fold, build, plan_replay
    from tidelock.fold.runner import CURSOR, Runner
    from tidelock.fold.store import Store
    from tidelock.spark.configuration import check as check_spark
    from tidelock.spark.runtime import Spark
    from tidelock.tables import SCHEMA

    check_spark(settings.spark, settings.database_url)
    _load_plugins(settings)
    with found_ledger(settings) as database, closing(Store(database, SCHEMA, CURSOR)) as store:
        asyncio.run(refuse_lost_tail(database, settings.anchor_path))
        catalog = database.patience.insist_sync(lambda: read_catalog(store))
        store.rollback()
        if catalog is None:
            raise SettingsError("nothing has been folded yet, so there is nothing to replay; run `tidelock fold` first")
        plan = plan_replay(catalog, settings.definitions, names)
        if not plan.units and plan.definitions.canonical() == catalog.definitions.canonical():
            tell("no definition has changed; name the definitions to rebuild anyway")
            return
        control = partial(_propose, settings, database)
        tell("starting Spark ...")
        with Spark(settings.spark, settings.data) as spark:
            sequence = build(
                spark, database, plan, **_ranges(settings), control=control, stop=stop, progress=progress,
                elsewhere=lake_ranges(spark, database, settings).read if lake else None,
            )  # fmt: skip
            if sequence is None:
                tell("stopped; progress is kept, and the same command continues from it")
                return
            with database.connect_sync(name="tidelock replay") as connection:
                alone = leases.hold(connection, leases.FOLD)
            if alone:
                Runner(
                    spark, database, plan.definitions, **_ranges(settings), rebuild=False, control=control,
                    tidy=lambda _: None, tell=tell,
                ).run(stop, through=sequence)  # fmt: skip
            else:
                tell(f"waiting for the running fold to swap the tables at sequence {sequence}")
                await_fold(store.position, sequence, stop)
        tell(f"{', '.join(plan.units) or 'the definitions'}: done, as of sequence {sequence}")


def recompute(
    settings: Settings,
    database: Database,
    names: Sequence[str],
    *,
    stop: threading.Event,
    tell: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> Recomputation | None:
    """Recompute tables, those named or all, and compare; None if told to stop."""
    from tidelock.fold.redefine import recomputation

    with started_spark(settings, tell) as spark:
        return recomputation.recompute(
            spark, database, names, range_events_max=settings.fold.range_events_max, stop=stop, progress=progress
        )


@contextmanager
def counters_as_of(
    settings: Settings,
    database: Database,
    metrics: Sequence[str],
    sequence: int,
    *,
    stop: threading.Event,
    tell: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> Iterator[str | None]:
    """The schema that has the counters of all customers as of a sequence, for the time of the block."""
    from tidelock.fold.redefine import past

    catalog = past.read_past(database, sequence)
    events_max = settings.fold.range_events_max
    with (
        started_spark(settings, tell) as spark,
        past.counters_as_of(
            spark, database, catalog, metrics, sequence, range_events_max=events_max, stop=stop, progress=progress
        ) as schema,
    ):
        yield schema


@contextmanager
def meters_compared(
    settings: Settings,
    database: Database,
    wanted: Definitions,
    *,
    metric: str | None = None,
    stop: threading.Event,
    tell: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> Iterator[Comparison | None]:
    """The counters by other definitions beside those that there are, to be read in the block; None if told to stop."""
    from tidelock.fold.redefine import comparison

    events_max = settings.fold.range_events_max
    with (
        started_spark(settings, tell) as spark,
        comparison.compared(
            spark, database, wanted, metric=metric, range_events_max=events_max, stop=stop, progress=progress
        ) as found,
    ):
        yield found


@contextmanager
def started_spark(settings: Settings, tell: Callable[[str], None]) -> Iterator[Spark]:
    """A Spark for work beside the fold."""
    from tidelock.spark.configuration import check as check_spark
    from tidelock.spark.runtime import Spark

    check_spark(settings.spark, settings.database_url)
    _load_plugins(settings)
    tell("starting Spark ...")
    with Spark(settings.spark, settings.data) as spark:
        yield spark


def _load_plugins(settings: Settings) -> None:
    """Report what the fold would refuse before anything is started: event-time types, a missing Java."""
    load_plugins(settings.plugins)
    check_event_times(settings.definitions)
    check_java(settings.spark.java)


def _ranges(settings: Settings) -> dict[str, int]:
    own = settings.fold
    return {"range_events_max": own.range_events_max, "range_events_start": own.range_events_start}


def _propose(settings: Settings, database: Database, data: Mapping[str, Any]) -> int:
    """Record a control event; gives its sequence."""
    return record_control(settings, database, data).ingress_sequence


def _prune(connection: psycopg.Connection[Any], settings: Settings) -> None:
    if removed := prune(connection, settings.changes_retention):
        logger.debug("removed %d expired segments of changes", removed)


def _calm_collector() -> None:
    """What is loaded at the start lives as long as the process: scanning it for garbage again and again finds none.

    And a batch keeps thousands of young objects until it is answered: a collection after every 700 takes a twentieth of
    ingest's processor time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


async def _check_binding(ledger: Ledger) -> bool:
    """Whether API keys exist; raises SettingsError where they must and do not."""
    async with Steady(ledger.database, "tidelock start", patience=ledger.database.patience) as start:
        exist = await start.run(keys_exist)
    check_binding(ledger.settings.host, exist)
    return exist


@asynccontextmanager
async def _background(work: Coroutine[Any, Any, Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """Work beside the block, ended with it."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
