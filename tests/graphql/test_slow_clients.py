"""Clients that do not read what they are sent: they cost little, are sent away, and nobody else notices."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import statistics
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosedError

from bench.fanout import METER, ChangeLog, counter_row
from bench.memory import resident_mb
from tests.faults.servers import Server, running
from tests.graphql.sockets import Socket, connected
from tidelock.postgres.database import Database
from tidelock.tables import COUNTERS

FOLLOW = """subscription { counters { operation fields ts_timestamp
    data { metric customer_ref period_start agg_count agg_sum value total } } }"""
ROWS_PER_S = 1_000
TURNS_PER_S = 20


class Load:
    """Rows at a steady rate, from a thread: of ever new keys, or of a few."""

    def __init__(self, log: ChangeLog, keys: int | None) -> None:
        self._log = log
        self._numbers = itertools.count() if keys is None else itertools.cycle(range(keys))
        self._amounts = itertools.count()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        #: rows written so far
        self.written = 0

    def _run(self) -> None:
        started = time.monotonic()
        for turn in itertools.count(1):
            if self._stop.wait(max(0.001, started + turn / TURNS_PER_S - time.monotonic())):
                return
            count = ROWS_PER_S // TURNS_PER_S
            rows = [counter_row(next(self._numbers), next(self._amounts)) for _ in range(count)]
            self._log.write(rows, range_rows=count)
            self.written += count

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Reader:
    """One that reads, and notes how old what it gets is."""

    def __init__(self) -> None:
        self.ages_s: list[float] = []

    async def run(self, connection: Socket) -> None:
        async for text in connection.connection:
            message = json.loads(text)
            if message["type"] == "next":
                then = int(message["payload"]["data"]["counters"]["ts_timestamp"])
                self.ages_s.append((time.time_ns() - then) / 1e9)


@contextmanager
def server_with(place: Path, settings: str) -> Iterator[tuple[Server, ChangeLog]]:
    """A server in a process of its own, whose memory can be told, over changes that the test writes."""
    config = place / "tidelock.toml"
    config.write_text(f"{settings}\n[fold]\nenabled = false\n{METER}")
    with running(place / "data", config) as server:
        database = Database.open(None, place / "data", None, {})
        try:
            yield server, ChangeLog(database, COUNTERS, "default")
        finally:
            database.close()


@asynccontextmanager
async def reading(server: Server) -> AsyncIterator[Reader]:
    reader = Reader()
    async with connected(server.url) as connection:
        await connection.subscribe(FOLLOW)
        task = asyncio.create_task(reader.run(connection))
        yield reader
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def deaf(server: Server, stack: AsyncExitStack) -> Socket:
    """A client that subscribes and then reads nothing, and has little room for what comes."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.connect(("127.0.0.1", server.port))
    plain.setblocking(False)
    connection = await stack.enter_async_context(connected(server.url, sock=plain, max_queue=1, close_timeout=0.1))
    await connection.subscribe(FOLLOW)
    return connection


async def read_all(connection: Socket) -> None:
    async with asyncio.timeout(60):
        async for _ in connection.connection:
            pass


async def connections(client: httpx.AsyncClient) -> int:
    text = (await client.get("/metrics")).text
    return int(float(next(line.split()[1] for line in text.splitlines() if line.startswith("tidelock_live_conn"))))


async def until_connections(client: httpx.AsyncClient, count: int) -> None:
    async with asyncio.timeout(60):
        while await connections(client) != count:  # noqa: ASYNC110  (it is the server who knows)
            await asyncio.sleep(0.02)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110  (a thread and another process know)
            await asyncio.sleep(0.01)


def p99(ages: list[float]) -> float:
    return sorted(ages)[int(0.99 * len(ages))]


async def test_a_client_that_reads_nothing_is_sent_away_and_nobody_else_notices(tmp_path: Path) -> None:
    found = await stop_reading(tmp_path, clients=20, before_s=0, seconds=0)
    assert found.sent_away >= 20, found
    assert found.peak_mb - found.memory_mb < 60, found
    assert found.during, found


@pytest.mark.soak
@pytest.mark.timeout(1_200)
async def test_a_client_that_reads_nothing_for_ten_minutes_costs_little(tmp_path: Path) -> None:
    seconds = 600
    found = await stop_reading(tmp_path, clients=20, before_s=60, seconds=seconds)
    print(found)
    assert found.sent_away >= 20, found
    assert len(found.during) > 0.7 * seconds * ROWS_PER_S, found
    assert found.peak_mb - found.memory_mb < 60, found
    assert statistics.median(found.during) < 3 * statistics.median(found.before) + 0.1, found


@dataclass
class Found:
    """What clients that read nothing cost."""

    memory_mb: float
    peak_mb: float
    #: ages in seconds of what a client that reads got, before and meanwhile
    before: list[float]
    during: list[float]
    sent_away: int = 0

    def __str__(self) -> str:
        return (
            f"{self.sent_away} clients sent away; memory before {self.memory_mb} MB, at most {self.peak_mb} MB; age of "
            f"what the reader got, p50 and p99: {statistics.median(self.before):.3f} {p99(self.before):.3f} s before, "
            f"{statistics.median(self.during):.3f} {p99(self.during):.3f} s meanwhile"
        )


async def stop_reading(place: Path, *, clients: int, before_s: float, seconds: float) -> Found:
    """Clients read nothing, and come again when they were sent away: for so long, and until as many have left."""
    # More than a machine that is busy with something else lets pile up for a client that reads.
    with server_with(place, 'live_queue_rows_max = 5000\nlive_keep_alive = "500ms"') as (server, log):
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client, reading(server) as reader:
            with Load(log, None):
                await asyncio.sleep(before_s)
                await until(lambda: reader.ages_s)
                memory = resident_mb(server.pid)
                assert memory is not None
                found = Found(memory, memory, reader.ages_s[:], [])
                async with AsyncExitStack() as stack:
                    ends = time.monotonic() + seconds
                    there = [await deaf(server, stack) for _ in range(clients)]
                    # The reader goes on meanwhile, so something comes to it, however busy the machine is.
                    while (
                        time.monotonic() < ends or found.sent_away < clients or len(reader.ages_s) == len(found.before)
                    ):
                        await asyncio.sleep(1 if seconds else 0.02)
                        found.peak_mb = max(found.peak_mb, resident_mb(server.pid) or 0)
                        missing = clients + 1 - await connections(client)
                        found.sent_away += missing
                        there += [await deaf(server, stack) for _ in range(missing)]
                    found.during = reader.ages_s[len(found.before) :]
            return found


async def hear_the_end(place: Path, settings: str, *, later_s: float = 0) -> int | None:
    """The code that a client hears which reads nothing until some time after it was closed, and then everything."""
    with server_with(place, settings) as (server, log):
        async with AsyncExitStack() as stack, httpx.AsyncClient(base_url=server.url) as client:
            connection = await deaf(server, stack)
            await until_connections(client, 1)
            with Load(log, None):
                await until_connections(client, 0)
            await asyncio.sleep(later_s)
            with pytest.raises(ConnectionClosedError):
                await read_all(connection)
            return connection.connection.close_code


@pytest.mark.parametrize("later_s", [0, pytest.param(4, marks=pytest.mark.soak)])
async def test_the_code_of_the_close_is_one_that_clients_come_back_after(tmp_path: Path, later_s: float) -> None:
    assert await hear_the_end(tmp_path, "live_queue_rows_max = 100", later_s=later_s) == 4499


async def test_so_is_that_of_one_who_did_not_answer_pings(tmp_path: Path) -> None:
    settings = 'live_queue_rows_max = 100000\nlive_keep_alive = "1h"\nws_ping_s = 0.5'
    assert await hear_the_end(tmp_path, settings) == 4499


async def test_a_client_that_is_slow_is_shown_what_became_of_each_row_and_stays(tmp_path: Path) -> None:
    """Few keys: however much becomes of them, little waits."""
    settings = 'live_queue_rows_max = 100\nlive_keep_alive = "1h"'
    with server_with(tmp_path, settings) as (server, log):
        async with AsyncExitStack() as stack, httpx.AsyncClient(base_url=server.url) as client:
            connection = await deaf(server, stack)
            with Load(log, 50) as load:
                # More than the buffers of a connection hold.
                await until(lambda: load.written > 5 * ROWS_PER_S)
            assert await connections(client) == 1
            log.write([counter_row(1, 10**6)], range_rows=1)
            last = {"customer_ref": "cus_1", "total": "10000"}
            times = []
            async with asyncio.timeout(60):
                while True:
                    message = await connection.hear()
                    event = message["payload"]["data"]["counters"]
                    times.append(int(event["ts_timestamp"]))
                    if event["data"].items() >= last.items():
                        break
            assert times == sorted(times)
            assert len(times) < load.written, "much was told in one"
