"""`bench latency`: how soon after its acknowledgement an event is in its counter, and what idling costs."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench import load, memory, scratch
from tidelock.errors import Difference
from tidelock.ledger.opening import open_database
from tidelock.model import Accepted, Answer
from tidelock.postgres.database import Database
from tidelock.settings import Settings

Say = Callable[[str], None]
Figures = dict[str, object]

WARM_UP_S = 60
#: after a start, told apart from what is measured after the warm-up
_FIRST_S = 15
#: from the last event to where it counts as idle: Java goes on compiling what ran until then
_SETTLED_S = 30.0
_CONNECTIONS = 8
_CUSTOMERS = 100
#: how long the last events may take to become visible
_LAST_S = 30.0
_MEMORY_S = 1.0
#: longer than a notification takes; one that was lost costs no more
_LOOK_S = 0.25
#: a meter beside those that the settings have
METER = '\n[meters.bench_latency]\nstream = "api_calls"\n'
_COUNTED = """
    SELECT coalesce(sum(agg_count + adj_count), 0)::bigint FROM tidelock_tables.counters
    WHERE metric = 'bench_latency'"""

_answers = msgspec.json.Decoder(Answer)


class Acknowledged(NamedTuple):
    """An event that was."""

    #: which request it was
    turn: int
    verdict: Accepted
    at_s: float
    took_s: float


class Watcher:
    """Looks at the counters whenever the fold says that it has moved, and notes how many events they count."""

    def __init__(self, database: Database) -> None:
        """`database`: of a ledger whose definitions have `METER`."""
        #: when so many events were seen first; ascending
        self.seen: list[tuple[float, int]] = []
        self._database = database
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait(self, events: int) -> None:
        """Until so many were seen, or something is wrong."""
        deadline = time.perf_counter() + _LAST_S
        while self.seen[-1][1] < events and time.perf_counter() < deadline:
            time.sleep(_LOOK_S)

    def delays_s(self, sent: Sequence[Acknowledged]) -> list[float]:
        """From acknowledgement to visibility, of events in ledger order."""
        return _delays({each.verdict.ingress_sequence: each.at_s for each in sent}, self.seen)

    def _run(self) -> None:
        with self._database.connect_sync() as listening, self._database.connect_sync() as looking:
            listening.execute("LISTEN tidelock_fold")
            while not self._stop.is_set():
                row = looking.execute(_COUNTED).fetchone()
                assert row is not None
                if not self.seen or row[0] > self.seen[-1][1]:
                    self.seen.append((time.perf_counter(), row[0]))
                for _ in listening.notifies(timeout=_LOOK_S, stop_after=1):
                    pass


def measure(
    settings: Settings,
    seconds: int,
    rate: int,
    say: Say,
    *,
    idle: int = 0,
    config: Path | None = None,
    place: Path | None = None,
) -> Figures:
    """Figures of a server and a fold of their own in `place`, with the settings of a file; then of as many idle
    seconds."""
    with server_of_its_own(settings, METER, say, config=config, place=place) as (served, database):
        processes = _processes(served.pid)
        found = _measure(database, served, processes, seconds, rate=rate, say=say)
        if idle:
            say(f"idling for {idle} s")
        found["idlePercent"] = _idle_percent([processes["driver"], processes["jvm"]], idle) if idle else None
        return found


@contextmanager
def server_of_its_own(
    settings: Settings,
    definitions: str,
    say: Say,
    *,
    config: Path | None = None,
    place: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[scratch.Served, Database]]:
    """A server and its fold in `place`, with the settings of a file and these definitions; and their ledger."""
    with scratch.directory(place) as data:
        scratch.take_jars(settings.data, data)
        own = data / "bench.toml"
        own.write_text((config.read_text() if config is not None else "") + definitions)
        say("starting a server and its fold")
        with (
            scratch.server(data, own, environment or {}) as served,
            open_database(replace(settings, data=data, database_url=None)) as database,
        ):
            yield served, database


def _measure(
    database: Database, served: scratch.Served, processes: Mapping[str, int], seconds: int, rate: int, say: Say
) -> Figures:
    say(f"sending {rate} events a second for {WARM_UP_S} s and, measured, for {seconds} s")
    requests = [load.request(served.host, [event]) for event in events((WARM_UP_S + seconds) * rate)]
    with Watcher(database) as watcher, _memories(processes) as memories:
        sent = asyncio.run(send(served, requests, rate))
        watcher.wait(len(requests))
    delays = watcher.delays_s(sent)
    took = [each.took_s for each in sent[WARM_UP_S * rate :]]
    found: Figures = {
        "events": len(took),
        "eventsPerSecond": rate,
        "ackP50Ms": percentile_ms(took, 0.5),
        "ackP99Ms": percentile_ms(took, 0.99),
        **visible_figures("first", delays[: _FIRST_S * rate]),
        **visible_figures("visible", delays[WARM_UP_S * rate :]),
    }
    for name in ("server", "driver", "jvm"):
        found |= _memory_figures(name, memories.get(name, []))
    return found


def visible_figures(name: str, delays_s: Sequence[float]) -> Figures:
    return {f"{name}P{percent}Ms": percentile_ms(delays_s, percent / 100) for percent in (50, 95, 99)}


def _idle_percent(pids: Sequence[int], seconds: int) -> float:
    """How much of a core processes use while nothing happens."""
    time.sleep(_SETTLED_S)
    worked, began = sum(map(memory.processor_s, pids)), time.perf_counter()
    time.sleep(seconds)
    return round((sum(map(memory.processor_s, pids)) - worked) / (time.perf_counter() - began) * 100, 2)


def events(count: int) -> Iterator[dict[str, object]]:
    start = time.time_ns() - 3600 * 10**9
    for event in load.sample_events(0, count, start=start):
        yield {**event, "customerRef": f"cus_{int(str(event['customerRef'])[4:]) % _CUSTOMERS}"}


async def send(served: scratch.Served, requests: Sequence[bytes], rate: int) -> list[Acknowledged]:
    """Each at its time, over several connections: a slow answer holds up one of them, not the rate."""
    sent = []
    started = time.perf_counter()

    async def connection(number: int) -> None:
        reader, writer = await asyncio.open_connection(served.host, served.port)
        for turn in range(number, len(requests), _CONNECTIONS):
            await asyncio.sleep(max(0.0, started + turn / rate - time.perf_counter()))
            before = time.perf_counter()
            writer.write(requests[turn])
            status, body = await load.read_answer(reader)
            now = time.perf_counter()
            verdict = _answers.decode(body).results[0] if status == 200 else None
            if not isinstance(verdict, Accepted):
                raise Difference(f"the server answered {status}: {body[:300].decode(errors='replace')}")
            sent.append(Acknowledged(turn, verdict, now, now - before))
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(connection(number) for number in range(_CONNECTIONS)))
    return sent


def _delays(acknowledged_s: Mapping[int, float], seen: Sequence[tuple[float, int]]) -> list[float]:
    """Seconds from acknowledgement to visibility, in ledger order: the fold takes events in no other."""
    looks = iter(seen)
    at, counted = next(looks)
    delays = []
    for place, sequence in enumerate(sorted(acknowledged_s), start=1):
        while counted < place:
            look = next(looks, None)
            if look is None:
                raise Difference(f"only {counted} of {len(acknowledged_s)} events became visible")
            at, counted = look
        delays.append(max(0.0, at - acknowledged_s[sequence]))
    return delays


def percentile_ms(seconds: Sequence[float], fraction: float) -> float:
    ordered = sorted(seconds)
    return round(ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] * 1000, 1)


def _processes(pid: int) -> dict[str, int]:
    """The server, the fold and its JVM."""
    found = {"server": pid}
    for child, command in memory.descendants(pid):
        if " tidelock fold " in command:
            found["driver"] = child
        elif "java" in command.partition(" ")[0]:
            found["jvm"] = child
    return found


@contextmanager
def _memories(processes: Mapping[str, int]) -> Iterator[dict[str, list[int]]]:
    """The memory of processes, looked at every second."""
    found: dict[str, list[int]] = {name: [] for name in processes}
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(_MEMORY_S):
            for name, pid in processes.items():
                if (resident := memory.resident_mb(pid)) is not None:
                    found[name].append(resident)

    thread = threading.Thread(target=look, name="memory", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def _memory_figures(name: str, found: Sequence[int]) -> Figures:
    """The median of the first quarter after the warm-up, that of the last, the peak, and one a minute."""
    after = found[WARM_UP_S:] or found
    if not after:
        return {f"{name}Mb": None, f"{name}LastMb": None, f"{name}PeakMb": None, f"{name}MinutesMb": []}
    quarter = max(1, len(after) // 4)
    return {
        f"{name}Mb": round(statistics.median(after[:quarter])),
        f"{name}LastMb": round(statistics.median(after[-quarter:])),
        f"{name}PeakMb": max(after),
        f"{name}MinutesMb": after[::60],
    }
