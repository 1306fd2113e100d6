"""The sequence database stopped, slow, returned and set back under eight writers, and two ledgers on one of them."""

import asyncio
import gc
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Databases
from tests.faults.killing import Victims, kills_of_a_soak
from tests.recording import LIMITS, record, rows
from tidelock.fold.ranges import extent, next_range
from tidelock.fold.store import Store
from tidelock.ledger.feed import Feed
from tidelock.ledger.routing import Filter
from tidelock.ledger.salts import open_salts
from tidelock.ledger.sequencedatabase import SEQUENCE_MAX, Breaker, SequenceDatabase
from tidelock.ledger.sequencer import Sequencer
from tidelock.ledger.verify import verify
from tidelock.ledger.writer import ensure_partitions
from tidelock.model import Accepted
from tidelock.postgres import postmaster
from tidelock.postgres.database import Database
from tidelock.postgres.embedded import EmbeddedPostgres
from tidelock.postgres.pool import Connections
from tidelock.tables import SCHEMA

WRITERS = 8
FAILURES_MAX, PAUSE_S = 3, 0.1
#: longer than any answer takes that comes
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A second Postgres, to be stopped and started."""
    data = tmp_path_factory.mktemp("sequence")
    made = EmbeddedPostgres(data, None, {"fsync": "off", "shared_buffers": "16MB"})
    made.ensure()
    yield made
    made.release()
    shutil.rmtree(data, ignore_errors=True)


@pytest.fixture(autouse=True)
def fresh(server: EmbeddedPostgres) -> None:
    server.ensure()
    remote(server, "DROP SEQUENCE IF EXISTS tidelock_sequence")


def remote(server: EmbeddedPostgres, statement: str) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(statement.encode())


@asynccontextmanager
async def numbered(
    database: Database,
    server: EmbeddedPostgres,
    timeout_s: float = TIMEOUT_S,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Sequencer]:
    async with await database.connect() as connection:
        salts = await open_salts(connection, "salt")
        await ensure_partitions(connection, 1_000_000)
    numbers = SequenceDatabase(Database(server.url, 2), timeout_s, Breaker(FAILURES_MAX, PAUSE_S, clock))
    sequencer = Sequencer(database, salts, LIMITS, numbers=numbers)
    await sequencer.start()
    try:
        yield sequencer
    finally:
        await sequencer.close()


class Load:
    """Writers that record one request after another, each as fast as it is answered."""

    def __init__(self, *sequencers: Sequencer) -> None:
        self.acknowledged: dict[str, int] = {}
        #: how long each request took
        self.latencies: list[float] = []
        self._stop = asyncio.Event()
        self._tasks = [asyncio.create_task(self._write(s, n)) for s in sequencers for n in range(WRITERS)]

    async def _write(self, sequencer: Sequencer, writer: int) -> None:
        number = 0
        while not self._stop.is_set():
            keys = [f"{id(sequencer)}/{writer}/{number}/{position}" for position in range(number % 3 + 1)]
            started = time.monotonic()
            verdicts = await record(sequencer, *({"idempotencyKey": key} for key in keys))
            self.latencies.append(time.monotonic() - started)
            for key, verdict in zip(keys, verdicts, strict=True):
                assert isinstance(verdict, Accepted), verdict
                self.acknowledged[key] = verdict.ingress_sequence
            number += 1

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def more(self, count: int) -> None:
        """Until so many more requests were answered."""
        wanted = len(self.latencies) + count
        await until(lambda: len(self.latencies) >= wanted)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110  # a test may poll
            await asyncio.sleep(0.005)


async def proven(database: Database, acknowledged: dict[str, int]) -> list[int]:
    """Everything acknowledged is there under its number, numbers increase, commits are dense; gives the numbers."""
    found = await rows(database, "SELECT idempotency_key, ingress_sequence FROM events ORDER BY source_timestamp, 2")
    assert dict(found) == acknowledged, "nothing lost, nothing that nobody was told of"
    numbers = [number for _, number in found]
    assert all(earlier < later for earlier, later in pairwise(numbers)), "none reissued, none decreasing"
    commits = await rows(database, "SELECT commit_id, first_sequence, last_sequence, skipped FROM commits ORDER BY 1")
    assert [commit[0] for commit in commits] == list(range(1, len(commits) + 1))
    for (_, _, last, skipped), (_, first, _, skipped_then) in pairwise(commits):
        assert first - last - 1 == skipped_then - skipped
    checked = await asyncio.to_thread(verify, database, Path("none"), lambda *_: None)
    assert checked.report.ok, checked.first
    return numbers


async def source(database: Database) -> str:
    ((name,),) = await rows(database, "SELECT sequence_source FROM ledger_head")
    return str(name)


async def until_numbered(database: Database, wanted: str) -> None:
    async with asyncio.timeout(60):
        while await source(database) != wanted:  # noqa: ASYNC110  # a test may poll
            await asyncio.sleep(0.02)


async def test_a_ledger_alone_on_a_sequence_database_has_no_gaps(database: Database, server: EmbeddedPostgres) -> None:
    async with numbered(database, server) as sequencer:
        load = Load(sequencer)
        await load.more(100)
        await load.stop()
    numbers = await proven(database, load.acknowledged)
    assert numbers == list(range(1, len(numbers) + 1))
    assert await source(database) == "remote"


async def test_stopped_and_returned_it_costs_no_number(database: Database, server: EmbeddedPostgres) -> None:
    async with numbered(database, server) as sequencer:
        load = Load(sequencer)
        await load.more(50)
        assert await source(database) == "remote"
        for _ in range(2):
            await asyncio.to_thread(server.release)
            await until_numbered(database, "local")
            await load.more(100)
            await asyncio.to_thread(server.ensure)
            sequencer.numbers._database._url = server.url  # type: ignore[union-attr]  # it may have another port
            await until_numbered(database, "remote")
        await load.stop()
    numbers = await proven(database, load.acknowledged)
    print(f"stopped twice under {len(load.latencies)} requests: slowest {max(load.latencies) * 1000:.0f} ms")
    assert len(numbers) == numbers[-1], "it was raised past the head before it was used again"


async def test_killed_under_load_it_costs_no_event(database: Database, server: EmbeddedPostgres) -> None:
    await prove_kills(database, server, kills=2)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_killed_fifty_times_under_load_it_costs_no_event(database: Database, server: EmbeddedPostgres) -> None:
    await prove_kills(database, server, kills=kills_of_a_soak(50))


async def prove_kills(database: Database, server: EmbeddedPostgres, *, kills: int) -> None:
    """kill -9, at any moment of a commit. Numbers may be left out, as after any crash of a sequence; none repeats."""
    victims = Victims({"sequence": 1})
    async with numbered(database, server) as sequencer:
        load = Load(sequencer)
        for _ in victims.draw(kills):
            await until_numbered(database, "remote")
            await load.more(victims.chance.randrange(1, 60))
            found = postmaster.find(server.data / "postgres")
            assert found is not None
            os.kill(found.pid, signal.SIGKILL)
            # Until then it would be taken for one that runs.
            assert await asyncio.to_thread(found.wait_gone, server.data / "postgres", 60)
            victims.count("sequence")
            await load.more(victims.chance.randrange(1, 60))
            await asyncio.to_thread(server.ensure)
            sequencer.numbers._database._url = server.url  # type: ignore[union-attr]  # it may have another port
        await until_numbered(database, "remote")
        await load.stop()
    numbers = await proven(database, load.acknowledged)
    left_out = numbers[-1] - len(numbers)
    print(f"{victims}: {len(numbers)} events in {len(load.latencies)} requests, {left_out} numbers left out, slowest "
          f"{max(load.latencies) * 1000:.0f} ms")  # fmt: skip


async def test_slow_it_costs_a_commit_its_timeout_and_only_until_the_breaker_opens(
    database: Database, server: EmbeddedPostgres
) -> None:
    now_s = 0.0
    async with numbered(database, server, timeout_s=0.05, clock=lambda: now_s) as sequencer:
        assert sequencer.numbers is not None
        counts = sequencer.numbers.reservations
        load = Load(sequencer)
        await load.more(50)
        async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as holder:
            before = counts.failed
            await holder.execute("SELECT pg_advisory_lock(7140331586207113002)")
            spared = counts.spared
            await until(lambda: counts.spared > spared + 50)
            # Fewer, if the machine itself was slow before.
            assert counts.failed <= before + FAILURES_MAX, "commits that waited"
            failed = counts.failed
            now_s += 2 * PAUSE_S
            await until(lambda: counts.failed > failed)
            spared = counts.spared
            await until(lambda: counts.spared > spared + 50)
            assert counts.failed == failed + 1, "after the pause one more tries it"
        now_s += 2 * PAUSE_S
        await until_numbered(database, "remote")
        await load.stop()
    await proven(database, load.acknowledged)
    print(f"slow: {counts.failed} commits waited, the longest {counts.seconds_max:.3f} s; {counts.spared} did not ask")


async def test_set_back_or_created_again_it_gives_no_number_twice(database: Database, server: EmbeddedPostgres) -> None:
    async with numbered(database, server) as sequencer:
        load = Load(sequencer)
        for statement in (
            "SELECT setval('tidelock_sequence', 1)",
            "ALTER SEQUENCE tidelock_sequence RESTART",
            "DROP SEQUENCE tidelock_sequence",
        ):
            await load.more(40)
            await asyncio.to_thread(remote, server, statement)
        await load.more(40)
        await until_numbered(database, "remote")
        await load.stop()
    await proven(database, load.acknowledged)


@pytest.mark.parametrize("value", [SEQUENCE_MAX, 2**63 - 1])
async def test_a_sequence_that_is_used_up_is_not_followed(
    database: Database, server: EmbeddedPostgres, value: int
) -> None:
    remote(server, "CREATE SEQUENCE tidelock_sequence")
    remote(server, f"SELECT setval('tidelock_sequence', {value})")
    async with numbered(database, server) as sequencer:
        (verdict,) = await record(sequencer, {})
        assert isinstance(verdict, Accepted)
        assert verdict.ingress_sequence == 1
    assert await source(database) == "local"


async def test_one_that_is_closed_while_it_connects_leaves_no_connection(server: EmbeddedPostgres) -> None:
    for turn in range(20):
        numbers = SequenceDatabase(Database(server.url, 2), TIMEOUT_S, Breaker(FAILURES_MAX, PAUSE_S))
        starting = asyncio.create_task(numbers.start())
        # Not a wait: the moments are spread over what connecting takes.
        await asyncio.sleep(turn / 1_000)
        await numbers.close()
        await asyncio.wait([starting])
    # What nobody closed complains when it is collected, which fails the test.
    gc.collect()


async def test_two_ledgers_on_one_sequence_database_never_have_the_same_number(
    databases: Databases, server: EmbeddedPostgres
) -> None:
    async with AsyncExitStack() as stack:
        ledgers = [stack.enter_context(databases()) for _ in range(2)]
        sequencers = [await stack.enter_async_context(numbered(ledger, server)) for ledger in ledgers]
        # A second process on the first ledger, too.
        other = await stack.enter_async_context(numbered(ledgers[0], server))
        loads = [Load(sequencers[0], other), Load(sequencers[1])]
        for load in loads:
            await load.more(100)
        for load in loads:
            await load.stop()
        one, two = [await proven(*pair) for pair in zip(ledgers, [load.acknowledged for load in loads], strict=True)]
        assert not set(one) & set(two)
        assert max(one) > len(one), "it has jumps"
        await read_as_readers_do(ledgers[0], one)


async def read_as_readers_do(database: Database, numbers: list[int]) -> None:
    """The fold's ranges count events, and a follower of the feed sees each, whatever was left out between."""
    store = Store(database, SCHEMA, "fold")
    try:
        position, seen = 0, 0
        while (found := await asyncio.to_thread(next_range, store, position, 100)) is not None:
            first, events = await asyncio.to_thread(extent, store, found.lo, found.hi)
            own = [number for number in numbers if found.lo < number <= found.hi]
            assert (first, events) == (own[0], len(own))
            assert events <= 100 or len(own) == events
            position, seen = found.hi, seen + events
        assert seen == len(numbers)
    finally:
        store.close()
    connections = Connections(database, size_max=2)
    feed = Feed(database, connections, queue_events_max=50)
    await feed.start()
    read: list[int] = []
    async with asyncio.timeout(60):
        async for frames in feed.follow(Filter(), 0):
            read += [frame.sequence for frame in frames]
            if len(read) >= len(numbers):
                break
    await feed.close()
    await connections.close()
    assert read == numbers


async def test_a_jump_of_any_size_holds_up_no_reader_and_lands_in_the_default_partition(
    database: Database, server: EmbeddedPostgres
) -> None:
    async with numbered(database, server) as sequencer:
        await record(sequencer, {"idempotencyKey": "a"})
        await asyncio.to_thread(remote, server, "SELECT setval('tidelock_sequence', 1000000000000)")
        await record(sequencer, {"idempotencyKey": "b"}, {"idempotencyKey": "c"})
    found = await rows(database, "SELECT tableoid::regclass::text, ingress_sequence FROM events ORDER BY 2")
    assert found == [
        ("events_0_1000000", 1),
        ("events_default", 1_000_000_000_001),
        ("events_default", 1_000_000_000_002),
    ]
    await read_as_readers_do(database, [1, 1_000_000_000_001, 1_000_000_000_002])
