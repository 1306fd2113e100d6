"""A Postgres whose connections drop on purpose: a proxy that closes one at a chosen moment, and sweeps over moments.

A moment is a message of the client that begins or ends something: a connection is made, a query is sent, a statement
is parsed or run, a COPY ends. At the n-th moment, counted over all connections, the proxy closes the connection, in
one of three ways: before the server has the message; after the server has acted on it, but before the client has the
answer; or before, but with the error that a server sends when an administrator ends the session.
"""

from __future__ import annotations

import asyncio
import random
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from tidelock.postgres.database import Database

#: before the server has the message; after it has acted on it; before, and the client is told why
Way = Literal["before", "after", "told"]
WAYS: tuple[Way, ...] = ("before", "after", "told")

_SSL_REQUEST, _GSS_REQUEST, _CANCEL_REQUEST = 80877103, 80877104, 80877102
_QUERY, _PARSE, _BIND, _SYNC, _COPY_DONE = b"Q", b"P", b"B", b"S", b"c"
_ANSWERED = (_QUERY, _SYNC, _COPY_DONE)
_FAREWELL = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
_LIMIT_S = 60.0
#: the share of the planned drops that a sweep must come to
_REACHED = 0.5


@dataclass(slots=True)
class Drop:
    """When to close a connection. `refusals`: so many connections after it are closed as soon as they are made."""

    at: int
    way: Way = "before"
    refusals: int = 0

    def __str__(self) -> str:
        return f"moment {self.at}, {self.way}" + (f", {self.refusals} refused" if self.refusals else "")


@dataclass(slots=True)
class Dropping:
    """The proxy, seen from a test."""

    url: str
    drop: Drop | None
    #: moments so far, and those of them that are followed by an answer
    moments: int = 0
    answered: int = 0
    #: what was under way at the moment of the last drop; None: there was none, or another one is to come
    dropped: str | None = None
    #: how many there were
    drops: int = 0
    #: what the moments were, for a test that fails
    seen: list[str] = field(default_factory=list)
    #: those of them that are followed by an answer
    answers: list[str] = field(default_factory=list)
    _refused: int = 0

    @property
    def database(self) -> Database:
        return Database(self.url)

    def due(self, what: str, answered: bool) -> bool:
        """Counts a moment; whether this is the one."""
        self.moments += 1
        self.answered += answered
        self.seen.append(what)
        if answered:
            self.answers.append(what)
        if self.drop is None or self.dropped is not None:
            return False
        if self.drop.at != (self.answered if self.drop.way == "after" else self.moments):
            return False
        if self.drop.way == "after" and not answered:
            return False
        self.dropped = what
        self.drops += 1
        return True

    def arm(self, chance: random.Random, within: int) -> None:
        """Drop once more, at one of the next so many moments: for what runs on over many drops."""
        way = chance.choice(WAYS)
        self.dropped, self._refused = None, 0
        self.drop = Drop((self.answered if way == "after" else self.moments) + chance.randint(1, within), way)

    def refuse(self) -> bool:
        if self.drop is None or self.dropped is None or self._refused >= self.drop.refusals:
            return False
        self._refused += 1
        return True


@contextmanager
def dropping(database: Database, drop: Drop | None) -> Iterator[Dropping]:
    """A way to the database on which one connection drops."""
    parts = urlsplit(database.url)
    assert parts.port is not None
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="dropping", daemon=True)
    thread.start()
    served: set[asyncio.Task[None]] = set()
    made = Dropping("", drop)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served.add(task)
        task.add_done_callback(served.discard)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            if made.refuse():
                writer.transport.abort()
            else:
                await _Line(made, reader, writer).serve(parts.hostname or "127.0.0.1", parts.port or 5432)

    async def end() -> None:
        server.close()
        for task in list(served):
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)

    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(serve, "127.0.0.1", 0), loop).result(_LIMIT_S)
    port = server.sockets[0].getsockname()[1]
    place = parts.netloc.rsplit("@", 1)[0] + f"@127.0.0.1:{port}"
    made.url = urlunsplit(parts._replace(netloc=place))
    try:
        yield made
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(_LIMIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_LIMIT_S)
        loop.close()


class _Line:
    """One connection, from the client to the server and back."""

    def __init__(self, made: Dropping, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._made = made
        self._reader, self._writer = reader, writer
        self._up_reader: asyncio.StreamReader
        self._up: asyncio.StreamWriter
        #: set when the answer to the last message must not arrive
        self._last = asyncio.Event()
        self._answered = asyncio.Event()

    async def serve(self, host: str, port: int) -> None:
        self._up_reader, self._up = await asyncio.open_connection(host, port)
        try:
            if await self._begin():
                answers = asyncio.create_task(self._answers())
                try:
                    await self._statements()
                finally:
                    answers.cancel()
                    await asyncio.gather(answers, return_exceptions=True)
        finally:
            self._writer.close()
            self._up.close()
            for each in (self._writer, self._up):
                with suppress(OSError, asyncio.CancelledError):
                    await each.wait_closed()

    async def _begin(self) -> bool:
        """Pass on the first message; False: that was all."""
        while True:
            head = await self._reader.readexactly(8)
            size, code = struct.unpack("!ii", head)
            body = await self._reader.readexactly(size - 8)
            if code in (_SSL_REQUEST, _GSS_REQUEST):
                self._writer.write(b"N")
                continue
            self._up.write(head + body)
            if code == _CANCEL_REQUEST:
                await self._up.drain()
                await self._up_reader.read()
                return False
            if self._made.due("connect", answered=True):
                if self._made.drop is not None and self._made.drop.way == "after":
                    # The server has a session for this client, which hears nothing of it.
                    await self._up_reader.read(1)
                return False
            return True

    async def _statements(self) -> None:
        parsed = ""
        while True:
            head = await self._reader.readexactly(5)
            kind, (size,) = head[:1], struct.unpack("!i", head[1:])
            body = await self._reader.readexactly(size - 4)
            if kind == _QUERY:
                what = _text(body)
            elif kind == _PARSE:
                what = parsed = _text(body.split(b"\0", 1)[1])
            elif kind == _BIND and not parsed:
                what = parsed = "(prepared)"
            elif kind == _SYNC:
                what, parsed = f"end of {parsed}" if parsed else "", ""
            elif kind == _COPY_DONE:
                what = "end of COPY"
            else:
                what = ""
            if kind == _BIND and what != "(prepared)":
                what = ""
            if what and self._made.due(what, answered=kind in _ANSWERED):
                await self._drop(head + body)
                return
            self._up.write(head + body)
            await self._up.drain()

    async def _drop(self, message: bytes) -> None:
        drop = self._made.drop
        assert drop is not None
        if drop.way == "after":
            self._last.set()
            self._up.write(message)
            await self._up.drain()
            await self._answered.wait()
        elif drop.way == "told":
            self._writer.write(b"E" + struct.pack("!i", len(_FAREWELL) + 4) + _FAREWELL)
            await self._writer.drain()

    async def _answers(self) -> None:
        with suppress(OSError):
            while data := await self._up_reader.read(1 << 16):
                if self._last.is_set():
                    break
                self._writer.write(data)
                await self._writer.drain()
        self._answered.set()
        if not self._last.is_set():
            # The server ended the session itself.
            self._writer.close()


def _text(raw: bytes) -> str:
    return " ".join(raw.split(b"\0", 1)[0].decode(errors="replace").split())[:100]


@dataclass(slots=True)
class Swept:
    """What a sweep tried."""

    #: moments of an undisturbed run, by way
    moments: dict[str, int] = field(default_factory=dict)
    #: how many runs were to be dropped; what an answer decides may end one before its moment
    planned: int = 0
    drops: int = 0
    failures: list[str] = field(default_factory=list)

    def check(self) -> None:
        assert not self.failures, f"{len(self.failures)} of {self.drops} drops:\n" + "\n".join(self.failures[:20])
        assert self.drops >= self.planned * _REACHED, f"only {self.drops} of {self.planned} moments were reached"


def sweep(
    run: Callable[[Drop | None], Dropping],
    *,
    sample: int | None = None,
    seed: int = 1,
    refusals: int = 0,
    ways: tuple[Way, ...] = WAYS,
) -> Swept:
    """Run something once for every moment at which a connection may drop, or for a `sample` of these moments.

    `run` runs it over a proxy with this drop, asserts that it ended right, and gives the proxy.
    """
    swept = Swept()
    drops: list[Drop] = []
    undisturbed = run(None)
    for way in ways:
        swept.moments[way] = _reached(undisturbed, way)
        drops += [Drop(at, way, refusals) for at in range(1, swept.moments[way] + 1)]
    if sample is not None and sample < len(drops):
        chosen = _telling(undisturbed, drops)[:sample]
        rest = [drop for drop in drops if drop not in chosen]
        drops = [*chosen, *random.Random(seed).sample(rest, sample - len(chosen))]
        drops.sort(key=lambda drop: (drop.way, drop.at))
    swept.planned = len(drops)
    chance = random.Random(seed)
    for drop in drops:
        try:
            made = run(drop)
            if made.dropped is None and sample is not None and (reached := _reached(made, drop.way)):
                # One that polls asks more often on a busy machine: this run was shorter than the undisturbed one.
                made = run(replace(drop, at=chance.randint(1, max(1, reached // 2))))
        except Exception as error:
            swept.failures.append(f"{drop}: {type(error).__name__}: {error}"[:600])
        else:
            swept.drops += made.dropped is not None
            continue
        swept.drops += 1
    print(f"sweep: moments {swept.moments}, {swept.drops} drops, {len(swept.failures)} failures, seed {seed}")
    return swept


def _reached(made: Dropping, way: Way) -> int:
    """How many moments a run had at which its connection could drop."""
    return made.answered if way == "after" else made.moments


def _telling(undisturbed: Dropping, drops: list[Drop]) -> list[Drop]:
    """Drops that every sample has: the first statement, a COMMIT that the server does and nobody hears of, the last."""
    commits = [at for at, what in enumerate(undisturbed.answers, 1) if "COMMIT" in what.upper()]
    wanted = [("before", 1), ("after", commits[-1]) if commits else None, ("told", undisturbed.moments)]
    return [drop for drop in drops if (drop.way, drop.at) in wanted]
