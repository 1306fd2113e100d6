"""Fan-out: how many messages a core sends to many subscribers of a table, beside a bare loop and beside Strawberry."""

from __future__ import annotations

import asyncio
import importlib.util
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from tidelock.changes.reader import Row
from tidelock.errors import Difference, Unreachable
from tidelock.fold.tables import COUNTERS
from tidelock.ops.bench import memory, scratch
from tidelock.ops.bench.changelog import ChangeLog
from tidelock.ops.bench.subscribers import Tally, subscribe
from tidelock.postgres.database import Database

Say = Callable[[str], None]
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
            _measure(self._served.pid, self._served.port, count, events, write, self._until_followed)
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

        return uvloop.run(_measure(pid, port, count, len(texts), write, settle))[0]


async def _measure(
    pid: int,
    port: int,
    count: int,
    events: int,
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
    command = [sys.executable, "-m", f"tidelock.ops.bench.{module}"]
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
