"""The loop of a reader on a real Postgres: whatever is lost, when, and to whom, each number is copied once, in order.

The faults of every service that uses it are tried here, on a reader that copies numbers from one table to another; the
services themselves show that they are wired to it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pytest

from tests.budgets import HANG_S
from tests.conftest import Databases
from tests.dropping import Drop, Dropping, dropping, sweep
from tidelock.errors import CursorMoved
from tidelock.postgres import leases
from tidelock.postgres.course import IDLE, MORE, Failure, Turn
from tidelock.postgres.database import Database
from tidelock.postgres.listener import LEDGER_CHANNEL
from tidelock.postgres.loop import AsyncReaderLoop, Reader, ReaderLoop

SEED = 20261119
#: drops tried in the normal suite; the soak tries all
SAMPLED = pytest.mark.parametrize(
    "sample", [8, pytest.param(None, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])], ids=["some", "all"]
)
NAME = "tidelock copying"
SCHEMA = """
CREATE TABLE source (n bigint PRIMARY KEY);
CREATE TABLE copied (n bigint PRIMARY KEY, who text NOT NULL, place bigint GENERATED ALWAYS AS IDENTITY);
INSERT INTO cursors (name, sequence) VALUES ('copying', 0);
"""
READ = "SELECT min(n) FROM source WHERE n > %s"
MOVE = "UPDATE cursors SET sequence = %s WHERE name = 'copying' AND sequence = %s"
COPY = "INSERT INTO copied (n, who) VALUES (%s, %s)"
POSITION = "SELECT sequence FROM cursors WHERE name = 'copying'"


class Copying(Reader):
    """Copies one number a turn, over a connection of its own, as the fold does, or over the one that listens."""

    def __init__(self, database: Database, who: str = "a", *, poll_s: float = 0.02, apart: bool = True) -> None:
        self.poll_s = poll_s
        self.pause_max_s = 0.05
        self.position = self.turns = self.refused = self.begun = 0
        #: called in the midst of each turn
        self.amid: Callable[[], object] = lambda: None
        self.failures: list[Failure] = []
        self._database = database
        self._who = who
        self._apart = apart
        self._own: psycopg.Connection[Any] | None = None

    def open(self, connection: psycopg.Connection[Any]) -> bool:
        if not leases.hold(connection, leases.FOLD):
            self.refused += 1
            return False
        self._own = self._database.connect_sync(name=f"{NAME} writes") if self._apart else connection
        self.position = value(self._own, POSITION)
        self.begun += 1
        return True

    def turn(self) -> Turn:
        assert self._own is not None
        self.turns += 1
        with self._own.transaction():
            following = value(self._own, READ, (self.position,))
            self.amid()
            if following is None:
                return IDLE
            if self._own.execute(MOVE, (following, self.position)).rowcount != 1:
                raise CursorMoved("another has copied it")
            self._own.execute(COPY, (following, self._who))
        self.position = following
        return MORE

    def leave(self) -> None:
        if self._apart and self._own is not None:
            self._own.close()
        self._own = None

    def failed(self, error: Exception) -> Failure:
        self.failures.append(super().failed(error))
        return self.failures[-1]


def value(connection: psycopg.Connection[Any], query: str, parameters: tuple[object, ...] = ()) -> Any:
    row = connection.execute(query.encode(), parameters).fetchone()
    return None if row is None else row[0]


def prepare(database: Database, count: int = 0) -> None:
    with database.connect_sync() as connection:
        connection.execute(SCHEMA)
    put(database, *range(1, count + 1))


def put(database: Database, *numbers: int, announce: bool = True) -> None:
    with database.connect_sync(autocommit=False) as connection:
        connection.cursor().executemany("INSERT INTO source VALUES (%s)", [(n,) for n in numbers])
        if announce:
            connection.execute("SELECT pg_notify(%s, '1')", (LEDGER_CHANNEL,))


def copies(database: Database) -> list[tuple[int, str]]:
    with database.connect_sync() as connection:
        return connection.execute("SELECT n, who FROM copied ORDER BY place").fetchall()


def end(database: Database, name: str = NAME) -> int:
    """End connections of a name, as an administrator would."""
    query = """SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = %s"""
    with database.connect_sync() as connection:
        return int(value(connection, query, (name,)))


def until(true: Callable[[], object], what: str = "") -> None:
    deadline = time.monotonic() + HANG_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


@contextmanager
def running(database: Database, reader: Copying, stop: threading.Event | None = None) -> Iterator[threading.Thread]:
    stop, errors = stop or threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            ReaderLoop(database, [reader], name=NAME, channels=[LEDGER_CHANNEL]).run(stop)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join(HANG_S)
    assert not thread.is_alive(), "it stops when it is told to"
    assert not errors, errors


@asynccontextmanager
async def copying_beside(database: Database, **options: Any) -> AsyncIterator[AsyncReaderLoop]:
    """The same reader on the event loop, over the connection that listens."""
    connections: list[psycopg.AsyncConnection[Any]] = []

    async def opened(connection: psycopg.AsyncConnection[Any]) -> None:
        connections[:] = [connection]

    async def turn() -> Turn:
        (connection,) = connections
        async with connection.transaction():
            (position,) = await (await connection.execute(POSITION)).fetchone() or (0,)
            (following,) = await (await connection.execute(READ, (position,))).fetchone() or (None,)
            if following is None:
                return IDLE
            if (await connection.execute(MOVE, (following, position))).rowcount != 1:
                raise CursorMoved("another has copied it")
            await connection.execute(COPY, (following, "async"))
        return MORE

    given = {"database": database, "name": NAME, "channels": [LEDGER_CHANNEL], "opened": opened}
    loop = AsyncReaderLoop(turn, what="copying", **{"poll_s": 0.02, "pause_max_s": 0.05, **given, **options})
    task = asyncio.create_task(loop.run())
    try:
        yield loop
        assert not task.done(), "nothing ends it"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until_copied(database: Database, count: int) -> None:
    async with asyncio.timeout(HANG_S), await database.connect() as connection:
        while True:
            (found,) = await (await connection.execute("SELECT count(*) FROM copied")).fetchone() or (0,)
            if found >= count:
                return
            await asyncio.sleep(0.002)


# Announcements


@pytest.mark.parametrize("beside", [False, True], ids=["thread", "event loop"])
async def test_an_announcement_wakes_it_long_before_the_poll(database: Database, beside: bool) -> None:
    prepare(database)
    if beside:
        async with copying_beside(database, poll_s=600):
            for number in range(1, 4):
                await asyncio.to_thread(put, database, number)
                await until_copied(database, number)
        return
    reader = Copying(database, poll_s=600)
    with running(database, reader):
        for number in range(1, 4):
            put(database, number)
            until(lambda number=number: reader.position == number)  # type: ignore[misc]


@pytest.mark.parametrize("beside", [False, True], ids=["thread", "event loop"])
async def test_what_nobody_announced_is_found_by_the_poll(database: Database, beside: bool) -> None:
    prepare(database)
    if beside:
        async with copying_beside(database):
            await asyncio.to_thread(put, database, 1, announce=False)
            await until_copied(database, 1)
        return
    reader = Copying(database)
    with running(database, reader):
        until(lambda: reader.turns)
        put(database, 1, announce=False)
        until(lambda: reader.position == 1)


def test_what_is_announced_while_it_works_is_heard_together(database: Database) -> None:
    prepare(database)
    reader = Copying(database, poll_s=600)
    go, busy = threading.Event(), threading.Event()

    def amid() -> None:
        busy.set()
        assert go.wait(HANG_S)

    reader.amid = amid
    with running(database, reader):
        assert busy.wait(HANG_S)
        for number in range(1, 31):
            put(database, number)
        go.set()
        until(lambda: reader.position == 30)
        until(lambda: reader.turns >= 32)
        before = reader.turns
        put(database, 31)
        until(lambda: reader.position == 31)
    assert before - 32 <= 3, "thirty announcements do not make thirty looks"


# Connections that drop


@SAMPLED
@pytest.mark.parametrize("apart", [True, False], ids=["own connection", "the one that listens"])
def test_a_connection_may_drop_at_every_step(databases: Databases, apart: bool, sample: int | None) -> None:
    def run(drop: Drop | None) -> Dropping:
        with databases() as database, dropping(database, drop) as made:
            prepare(database, 2)
            reader = Copying(made.database, apart=apart)
            with running(made.database, reader):
                until(lambda: reader.position >= 2, f"copied; {made.dropped}")
                put(database, 3)
                until(lambda: reader.position >= 3, f"copied; {made.dropped}")
            assert copies(database) == [(1, "a"), (2, "a"), (3, "a")]
            assert Failure.DEFECT not in reader.failures
        return made

    sweep(run, sample=sample, seed=SEED).check()


@SAMPLED
def test_a_connection_of_the_event_loop_may_drop_at_every_step(databases: Databases, sample: int | None) -> None:
    async def copied(database: Database, made: Dropping) -> None:
        async with copying_beside(made.database):
            await until_copied(database, 2)
            await asyncio.to_thread(put, database, 3)
            await until_copied(database, 3)

    def run(drop: Drop | None) -> Dropping:
        with databases() as database, dropping(database, drop) as made:
            prepare(database, 2)
            asyncio.run(copied(database, made))
            assert [number for number, _ in copies(database)] == [1, 2, 3]
        return made

    sweep(run, sample=sample, seed=SEED).check()


def test_a_connection_that_is_lost_while_nothing_happens_is_made_again(database: Database) -> None:
    prepare(database)
    reader = Copying(database, poll_s=600)
    with running(database, reader):
        for begun in range(1, 4):
            until(lambda begun=begun: reader.begun == begun)  # type: ignore[misc]
            assert end(database) == 1
        until(lambda: reader.begun == 4)
        put(database, 1)
        until(lambda: reader.position == 1)


def test_one_that_is_never_idle_notices_that_its_lease_is_lost(database: Database) -> None:
    class Busy(Copying):
        def turn(self) -> Turn:
            super().turn()
            return MORE

    prepare(database)
    reader = Busy(database)
    with running(database, reader):
        for begun in range(1, 4):
            until(lambda begun=begun: reader.begun == begun)  # type: ignore[misc]
            assert end(database) == 1
        until(lambda: reader.begun == 4)


async def test_one_on_the_event_loop_ends_when_it_is_cancelled_amid_a_statement_whose_connection_is_lost() -> None:
    begun = asyncio.Event()

    async def turn() -> Turn:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise psycopg.OperationalError("the connection is lost") from None
        return IDLE

    task = asyncio.create_task(AsyncReaderLoop(turn, what="copies", poll_s=0.01).run())
    await begun.wait()
    task.cancel()
    await asyncio.wait([task], timeout=HANG_S)
    assert task.cancelled()


async def test_one_on_the_event_loop_notices_a_lost_connection_while_it_waits(database: Database) -> None:
    prepare(database)
    async with copying_beside(database, poll_s=600):
        for number in range(1, 4):
            await asyncio.to_thread(put, database, number)
            await until_copied(database, number)
            assert await asyncio.to_thread(end, database) == 1


# Leases


def test_of_two_one_works_and_the_other_takes_over_when_it_ends(database: Database) -> None:
    prepare(database, 3)
    first, second = Copying(database, "a"), Copying(database, "b")
    with running(database, second, stop := threading.Event()) as working:
        until(lambda: second.position == 3)
        with running(database, first):
            until(lambda: first.refused >= 2)
            assert first.turns == 0
            stop.set()
            working.join(HANG_S)
            put(database, 4)
            until(lambda: first.position == 4)
    assert copies(database) == [(1, "b"), (2, "b"), (3, "b"), (4, "a")]


def test_one_that_loses_its_lease_while_it_works_does_nothing_twice_and_goes_on_standby(database: Database) -> None:
    prepare(database, 2)
    first, second = Copying(database, "a"), Copying(database, "b")
    lost, go = threading.Event(), threading.Event()

    def amid() -> None:
        if first.position == 1 and not lost.is_set():
            # Its lease is gone, and it cannot know: it is in the midst of its turn, over another connection.
            assert end(database) >= 1
            lost.set()
            assert go.wait(HANG_S)

    first.amid = amid
    with running(database, first):
        assert lost.wait(HANG_S)
        with running(database, second, stop := threading.Event()):
            until(lambda: second.position == 2)
            go.set()
            until(lambda: first.refused, "it has found out, and another has the lease")
            put(database, 3)
            until(lambda: second.position == 3)
            assert Failure.AGAIN in first.failures
            stop.set()
        put(database, 4)
        until(lambda: first.position == 4)
    assert copies(database) == [(1, "a"), (2, "b"), (3, "b"), (4, "a")]


def test_two_are_never_at_it_at_once_however_often_leases_are_lost(database: Database) -> None:
    prepare(database)
    readers, holders, most = [Copying(database, who, apart=False) for who in "ab"], set[int](), list[int]()

    def amid(number: int) -> None:
        holders.add(number)
        most.append(len(holders))
        time.sleep(0.0005)
        holders.discard(number)

    for number, reader in enumerate(readers):
        reader.amid = lambda number=number: amid(number)  # type: ignore[misc]
    with running(database, readers[0]), running(database, readers[1]):
        for number in range(1, 41):
            put(database, number)
            if number % 4 == 0:
                end(database)
        until(lambda: len(copies(database)) == 40)
    assert [number for number, _ in copies(database)] == list(range(1, 41))
    assert max(most) == 1


def test_one_that_is_asked_for_its_lease_gives_it_up_and_takes_it_again(database: Database) -> None:
    prepare(database, 1)
    asked = threading.Event()

    class Polite(Copying):
        def turn(self) -> Turn:
            if asked.is_set():
                raise _Asked
            return super().turn()

        def failed(self, error: Exception) -> Failure:
            return Failure.YIELDED if isinstance(error, _Asked) else super().failed(error)

        def open(self, connection: psycopg.Connection[Any]) -> bool:
            return not asked.is_set() and super().open(connection)

    reader = Polite(database)
    with running(database, reader), database.connect_sync() as other:
        until(lambda: reader.position == 1)
        asked.set()
        until(lambda: leases.hold(other, leases.FOLD))
        put(database, 2)
        asked.clear()
        until(lambda: reader.refused)
        assert reader.position == 1
        other.close()
        until(lambda: reader.position == 2)
    assert reader.failures == []


class _Asked(Exception):
    """Another process asks for the work."""


# Stopping


@pytest.mark.parametrize("at", ["connect", "open", "turn", "wait", "stand by", "pause"])
def test_it_stops_during_each_step_and_leaves_no_connection(database: Database, at: str) -> None:
    prepare(database, 3)
    stop, reached = threading.Event(), threading.Event()
    reader = Copying(database, poll_s=600)

    class Stopping(Database):
        def connect_sync(self, **options: Any) -> psycopg.Connection[Any]:
            if at == "connect":
                stop.set()
                reached.set()
            return super().connect_sync(**options)

    def amid() -> None:
        if at == "turn":
            stop.set()
        elif at == "pause":
            reached.set()
            raise TimeoutError
        elif reader.position < 3:
            return
        reached.set()

    def refuse() -> bool:
        stop.set()
        reached.set()
        return False

    reader.amid = amid
    if at == "open":
        reader.open = lambda connection: refuse()  # type: ignore[method-assign]
    with database.connect_sync() as other:
        if at == "stand by":
            assert leases.hold(other, leases.FOLD)
        with running(Stopping(database.url), reader, stop):
            until(lambda: reader.refused if at == "stand by" else reached.is_set())
        left = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'tidelock copying%%'"
        until(lambda: value(other, left + " AND datname = current_database() AND %s", (True,)) == 0)
    done = {"wait": 3, "turn": 1}.get(at, 0)
    assert [number for number, _ in copies(database)] == list(range(1, done + 1))


async def test_one_that_nobody_wants_holds_no_connection_and_works_again_when_it_is_wanted(database: Database) -> None:
    prepare(database, 1)
    wanted, rested = False, asyncio.Event()

    async def rest() -> None:
        rested.set()

    async with copying_beside(database, poll_s=600, wanted=lambda: wanted, rest=rest) as loop:
        for number in (1, 2):
            await rested.wait()
            rested.clear()
            assert await asyncio.to_thread(end, database) == 0, "there is none to end"
            wanted = True
            loop.wake()
            await until_copied(database, number)
            wanted = False
            loop.wake()
            await asyncio.to_thread(put, database, number + 1)
        await rested.wait()


async def test_one_without_a_connection_works_when_it_is_woken_and_takes_what_comes_close_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    turns: list[int] = []
    fails = [RuntimeError("a defect"), None, None]
    turned = asyncio.Event()

    async def turn() -> Turn:
        turns.append(1)
        turned.set()
        if error := fails.pop(0):
            raise error
        return IDLE

    loop = AsyncReaderLoop(turn, what="waking", poll_s=600, gather_s=0.01)
    task = asyncio.create_task(loop.run())
    async with asyncio.timeout(HANG_S):
        while len(turns) < 2:
            await turned.wait()
            turned.clear()
        await asyncio.sleep(0)
        for _ in range(5):
            loop.wake()
        await turned.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(turns) == 3
    assert [(record.message, record.exc_info is not None) for record in caplog.records] == [
        ("waking are delayed: a defect", True)
    ]
