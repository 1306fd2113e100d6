"""Fan-out: how many messages a core sends to many subscribers of a table, beside a bare loop and beside Strawberry."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, cast

import msgspec
import psycopg
import pyarrow as pa
import uvloop

from bench import memory, scratch
from bench.harness import Say
from tidelock.changes.reader import Row
from tidelock.changes.segments import change_schema, encode
from tidelock.errors import Difference, Unreachable
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load
from tidelock.tables import COUNTERS, Table

QUERIES = load("bench", "changelog.sql")

Figures = dict[str, object]

_HOST = "127.0.0.1"
_DOCUMENT = """subscription { counters { operation fields ts_timestamp
    data { metric customer_ref period_start agg_count value total } } }"""
METER = "[meters.bench_live]\n"
_ROUNDS = 3
#: changes of one range: what a fold does at a time when much comes
_RANGE_ROWS = 100
#: Strawberry takes so many times as long
_STRAWBERRY_SHARE = 10
_SECONDS_MAX = 300.0
_LOOK_S = 0.05
_HANDSHAKE_END = b"\r\n\r\n"
# What an operation sends; everything else is about the connection.
_NEXT = b'"next"'
_LOOKED_AT = 100
_CLOSE = 0x88


def measure(counts: Sequence[int], messages: int, say: Say, *, place: Path | None = None) -> Figures:
    """Figures of a server of its own, without a fold, for each number of subscribers and so many messages a round."""
    with scratch.directory(place) as data:
        config = data / "bench.toml"
        config.write_text(METER)
        # Without the fold: its changes are written for it, and it would take the processor time that is to be measured.
        with scratch.server(data, config, {"TIDELOCK_FOLD_ENABLED": "false"}) as served:
            database = Database.open(None, data, None, {})
            try:
                live = _Live(served, ChangeLog(database, COUNTERS, "default"))
                figures: Figures = {}
                for count in counts:
                    figures |= _figures(live, count, messages, say)
                return figures
            finally:
                database.close()


def _figures(live: _Live, count: int, messages: int, say: Say) -> Figures:
    events = max(1, messages // count)
    rounds: dict[str, list[float]] = {"live": [], "bare": [], "strawberry": []}
    for number in range(_ROUNDS):
        rounds["live"].append(live.messages_per_s(count, events))
        rounds["bare"].append(_peer("bare_sockets", count, [live.message.decode()] * events))
        if number == 0 and importlib.util.find_spec("strawberry") is not None:
            event = msgspec.json.encode(msgspec.json.decode(live.message)["payload"]["data"]["counters"]).decode()
            rounds["strawberry"].append(_peer("strawberry_sockets", count, [event] * (events // _STRAWBERRY_SHARE + 1)))
        told = ", ".join(f"{name} {found[-1]:,.0f}" for name, found in rounds.items() if found)
        say(f"  {count:,} subscribers, messages/s and core: {told}")
    found = {name: statistics.median(each) if each else None for name, each in rounds.items()}
    ratios = {
        name: round(found["live"] / other, 2) if (other := found[name]) and found["live"] else None
        for name in ("bare", "strawberry")
    }
    figures: Figures = {f"{name}MessagesPerCore{count}": each and round(each) for name, each in found.items()}
    return figures | {f"liveRatioTo{name.capitalize()}{count}": ratio for name, ratio in ratios.items()}


class _Live:
    """The server that is measured."""

    def __init__(self, served: scratch.Served, log: ChangeLog) -> None:
        self._served = served
        self._log = log
        self._rows = 0
        #: the last one that a subscriber got
        self.message = b""

    def messages_per_s(self, count: int, events: int) -> float:
        rows = list(self._next(events))

        async def write() -> None:
            await asyncio.to_thread(self._log.write, rows, range_rows=_RANGE_ROWS)

        per_s, self.message = uvloop.run(
            _measure(self._served.pid, self._served.port, count, events, write=write, settle=self._until_followed)
        )
        return per_s

    def _next(self, count: int) -> Iterator[Row]:
        """Counters that there were none of: what is not read in time would be told in one message otherwise."""
        first, self._rows = self._rows, self._rows + count
        for number in range(first, first + count):
            yield counter_row(number)

    async def _until_followed(self, count: int) -> None:
        """A subscriber that has connected may not follow yet."""
        deadline = time.monotonic() + 60
        while (found := await asyncio.to_thread(self._followers)) != count:
            if time.monotonic() > deadline:
                raise Difference(f"there are {found} subscribers, not {count}")
            await asyncio.sleep(_LOOK_S)

    def _followers(self) -> int:
        with urllib.request.urlopen(f"http://{_HOST}:{self._served.port}/metrics", timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                name, _, value = line.partition(" ")
                if name == "tidelock_view_subscribers":
                    return int(float(value))
        raise Difference("the server's metrics have no tidelock_view_subscribers")


def counter_row(number: int, amount: int = 1) -> Row:
    """A counter of a customer, in cents."""
    value = Decimal(amount).scaleb(-2)
    return dict.fromkeys(COUNTERS.columns) | {
        "metric": "bench_live",
        "customer_ref": f"cus_{number}",
        "period_start": 1_767_225_600 * 10**9,
        "agg_count": 1,
        "agg_sum": value,
        "value": value,
        "total": value,
    }


def _peer(module: str, count: int, texts: Sequence[str]) -> float:
    """Messages a second of another server, by its own processor time."""
    order = msgspec.json.encode({"texts": texts})
    with _child(module) as (pid, port):
        request = urllib.request.Request(f"http://{_HOST}:{port}/send", order, method="POST")

        async def write() -> None:
            with await asyncio.to_thread(urllib.request.urlopen, request, timeout=_SECONDS_MAX) as answer:
                answer.read()

        async def settle(_: int) -> None:
            await asyncio.sleep(1)

        return uvloop.run(_measure(pid, port, count, len(texts), write=write, settle=settle))[0]


async def _measure(
    pid: int,
    port: int,
    count: int,
    events: int,
    *,
    write: Callable[[], Coroutine[Any, Any, None]],
    settle: Callable[[int], Awaitable[None]],
) -> tuple[float, bytes]:
    tally = Tally()
    subscribers = await subscribe(tally, _HOST, port, count, _DOCUMENT)
    await settle(count)
    before = memory.processor_s(pid)
    writing = asyncio.create_task(write())
    await tally.until(messages=count * events, seconds=_SECONDS_MAX)
    await writing
    worked = memory.processor_s(pid) - before
    for subscriber in subscribers:
        subscriber.close()
    await settle(0)
    return count * events / worked, tally.message


@contextmanager
def _child(module: str) -> Iterator[tuple[int, int]]:
    """A server in a process of its own: its number and its port."""
    command = [sys.executable, "-m", f"bench.{module}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            port = process.stdout.readline()
            if not port:
                raise Unreachable(f"{module} did not start")
            yield process.pid, int(port)
        finally:
            process.stdin.close()


class ChangeLog:
    """A log of changes that nothing was folded for.

    Writes ranges as the fold does: each row takes the place of that with its key, in a collection of its own.
    """

    def __init__(self, database: Database, table: Table, tenant_id: str) -> None:
        self._database = database
        self._table = table
        self._tenant_id = tenant_id
        self._schema = change_schema(table.columns)
        self._rows: dict[str, Row] = {}

    def write(self, rows: Iterable[Row], *, range_rows: int) -> None:
        """Changes in ranges of so many, all of which are there at the same moment."""
        following = iter(rows)
        with self._database.connect_sync(autocommit=False) as connection:
            connection.execute(QUERIES["begin"])
            while changes := list(islice(following, range_rows)):
                self._write(connection, changes)
            connection.execute(QUERIES["tell"])

    def _write(self, connection: psycopg.Connection[Any], rows: Sequence[Row]) -> None:
        found = connection.execute(QUERIES["last"]).fetchone()
        assert found is not None, "there is always a row"
        sequence, latest = found
        first = max(latest + 1, time.time_ns())
        changes = [self._change(first + number, row) for number, row in enumerate(rows)]
        (segment,) = encode(pa.Table.from_pylist(changes, self._schema))
        connection.execute(
            QUERIES["write"],
            {
                "table": self._table.name,
                "first": sequence + 1,
                "last": sequence + len(rows),
                "first_time": segment.first_source_timestamp,
                "last_time": segment.last_source_timestamp,
                "rows": segment.rows,
                "segment": segment.data,
            },
        )

    def _change(self, source_timestamp: int, row: Row) -> dict[str, object]:
        key = msgspec.json.encode([str(row[name]) for name in self._table.key]).decode()
        old, self._rows[key] = self._rows.get(key), row
        return {
            "tenant_id": self._tenant_id,
            "key": key,
            "source_timestamp": source_timestamp,
            "old": old,
            "new": row,
        }


class Tally:
    """What all subscribers got together."""

    def __init__(self) -> None:
        self.open = self.messages = self.bytes = 0
        #: the last one
        self.message = b""
        self._changed = asyncio.Event()
        self._wrong: str | None = None

    async def until(self, *, opened: int = 0, messages: int = 0, seconds: float) -> None:
        """Raises Difference when it does not come to so much in time."""
        try:
            async with asyncio.timeout(seconds):
                while self.open < opened or self.messages < messages:
                    self._changed.clear()
                    await self._changed.wait()
                    if self._wrong is not None:
                        raise Difference(self._wrong)
        except TimeoutError:
            told = f"{self.open} of {opened} subscribers, {self.messages} of {messages} messages"
            raise Difference(f"after {seconds:.0f} s there are {told}") from None

    def changed(self) -> None:
        self._changed.set()

    def fail(self, message: str) -> None:
        self._wrong = message
        self._changed.set()


class Subscriber(asyncio.Protocol):
    """One connection with one subscription, by a bare socket.

    On a small machine a real client would take the processor time that is to be measured.
    """

    def __init__(self, tally: Tally, host: str, path: str, document: str) -> None:
        self._tally = tally
        self._head = "\r\n".join(
            [
                f"GET {path} HTTP/1.1",
                f"Host: {host}",
                "Upgrade: websocket",
                "Connection: Upgrade",
                f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
                "Sec-WebSocket-Version: 13",
                "Sec-WebSocket-Protocol: graphql-transport-ws",
                "",
                "",
            ]
        )
        self._said: list[dict[str, object]] = [
            {"type": "connection_init"},
            {"id": "8d4ab7a0-7f5f-4c19-a3ac-5e1d6e0e8f00", "type": "subscribe", "payload": {"query": document}},
        ]
        self._buffer = b""
        self._opened = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._head.encode())

    def connection_lost(self, exc: Exception | None) -> None:
        self._tally.open -= self._opened

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        tally = self._tally
        tally.bytes += len(data)
        buffer = self._buffer + data if self._buffer else data
        if not self._opened:
            head, end, buffer = buffer.partition(_HANDSHAKE_END)
            if not end:
                self._buffer = head
                return
            if b" 101 " not in head.partition(b"\r\n")[0]:
                tally.fail(f"the server did not let a subscriber in: {head[:300].decode(errors='replace')}")
            self._opened = True
            tally.open += 1
            # One after another, as the protocol has it, would only be slower.
            self._transport.write(b"".join(map(_masked, self._said)))
        self._buffer = self._count(buffer)
        tally.changed()

    def _count(self, buffer: bytes) -> bytes:
        """Count the whole frames, and give the rest."""
        position, length = 0, len(buffer)
        while length - position >= 2:
            size, start = buffer[position + 1], position + 2
            if size == 126:
                size, start = int.from_bytes(buffer[position + 2 : position + 4]), position + 4
            elif size == 127:
                size, start = int.from_bytes(buffer[position + 2 : position + 10]), position + 10
            if start + size > length:
                break
            if buffer[position] == _CLOSE:
                self._tally.fail(f"the server closed: {buffer[start : start + size]!r}")
            elif buffer.find(_NEXT, start, start + _LOOKED_AT) >= 0:
                self._tally.messages += 1
                self._tally.message = buffer[start : start + size]
            position = start + size
        return buffer[position:]


def _masked(message: dict[str, object]) -> bytes:
    """A frame as clients send it, with a mask that changes nothing."""
    text = msgspec.json.encode(message)
    return b"\x81" + bytes((0x80 | 126,)) + len(text).to_bytes(2) + bytes(4) + text


async def subscribe(
    tally: Tally, host: str, port: int, count: int, document: str, *, path: str = "/graphql"
) -> Sequence[Subscriber]:
    """So many subscribers, connected."""
    loop = asyncio.get_running_loop()
    made = []
    for _ in range(count):
        _, subscriber = await loop.create_connection(lambda: Subscriber(tally, host, path, document), host, port)
        made.append(subscriber)
    await tally.until(opened=count, seconds=60)
    return made
