"""A stand-in for Materialize: views with a history, over the wire protocol of Postgres, as its documentation says.

It knows what the connector says and nothing else: SHOW COLUMNS, SHOW VIEWS, COPY (SUBSCRIBE ... ENVELOPE UPSERT ...).
It lives in a thread of its own, so that tests may block theirs. Real names and messages; no line of its code.
"""

from __future__ import annotations

import asyncio
import random
import re
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.budgets import HANG_S
from tests.sources.pgwire import Wire

T = TypeVar("T")
Row = Mapping[str, Any]
Key = tuple[Any, ...]

#: a row's state, of which there may be only one: several rows of the key
VIOLATION = "violation"

_SUBSCRIBE = re.compile(
    r"COPY \(SUBSCRIBE \(SELECT (?P<columns>.+?) FROM (?P<view>\S+)\) ENVELOPE UPSERT \(KEY \((?P<key>.+?)\)\) "
    r"WITH \((?P<options>[^)]*)\)(?: AS OF (?P<at_least>AT LEAST )?(?P<as_of>[0-9]+))?\) TO STDOUT"
)
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\b": "\\b", "\f": "\\f", "\v": "\\v"}


class Failure(Exception):
    """An error response."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class View:
    """A view: its columns with their types, its key, and what changed when."""

    columns: Mapping[str, str]
    key: tuple[str, ...]
    #: timestamp -> key -> row, None for a delete, VIOLATION
    history: dict[int, dict[Key, Any]] = field(default_factory=dict)
    #: what is older cannot be asked for
    since: int = 0

    def at(self, timestamp: int) -> dict[Key, Any]:
        """The rows at a time."""
        rows: dict[Key, Any] = {}
        for changes in (self.history[at] for at in sorted(self.history) if at <= timestamp):
            rows |= changes
        return {key: row for key, row in rows.items() if row is not None}


class StandIn:
    """The server. Its clock moves when it is told to."""

    def __init__(self, users: Mapping[str, str], seed: int = 0) -> None:
        self.users = users
        self.views: dict[str, View] = {}
        self.forbidden: set[str] = set()
        #: how many rows each of the next subscriptions sends before it is cut
        self.cuts: deque[int] = deque()
        self.subscriptions: list[str] = []
        #: the last complete time
        self.now = int(time.time() * 1000) - 1_000_000
        self.refusal = "Timestamp ({}) is not valid for all inputs: [Antichain {{ elements: [{}] }}]"
        self.port = 0
        self._chance = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="materialize")
        self._sessions: dict[int, _Session] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.changed = asyncio.Event()

    def url(self, user: str = "reader", password: str | None = None) -> str:
        secret = self.users.get(user, "") if password is None else password
        return f"postgresql://{user}:{secret}@127.0.0.1:{self.port}/materialize?sslmode=disable"

    def create(self, name: str, columns: Mapping[str, str], *key: str) -> View:
        return self._do(lambda: self.views.setdefault(name, View(columns, key)))

    def commit(self, name: str, *upserts: Row, delete: Sequence[Key] = (), violate: Sequence[Key] = ()) -> int:
        """Change a view at a new time, which this returns."""

        def change() -> int:
            view = self.views[name]
            self.now += self._chance.randint(1, 900)
            changes: dict[Key, Any] = dict.fromkeys(delete) | dict.fromkeys(violate, VIOLATION)
            changes |= {tuple(row[column] for column in view.key): row for row in upserts}
            view.history[self.now] = changes
            self._announce()
            return self.now

        return self._do(change)

    def advance(self, milliseconds: int = 1000) -> int:
        """Let time pass in which nothing happens."""

        def pass_() -> int:
            self.now += milliseconds
            self._announce()
            return self.now

        return self._do(pass_)

    def compact(self, name: str) -> None:
        """Forget the history of a view up to now."""

        self._do(lambda: setattr(self.views[name], "since", self.now))

    def cut(self) -> int:
        """Cut every connection; how many there were."""

        def close() -> int:
            sessions = list(self._sessions.values())
            for session in sessions:
                session.writer.transport.abort()
            return len(sessions)

        return self._do(close)

    def subscribed(self, count: int, seconds: float = HANG_S) -> None:
        """Wait for the n-th subscription."""
        deadline = time.monotonic() + seconds
        while len(self.subscriptions) < count:
            assert time.monotonic() < deadline, f"only {self.subscriptions}"
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop listening and cut everybody; `start` brings it back on the same port."""

        async def close() -> None:
            assert self._server is not None
            self._server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(30)

    def start(self) -> None:
        async def listen() -> None:
            self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

        if not self._thread.is_alive():
            self._thread.start()
        asyncio.run_coroutine_threadsafe(listen(), self._loop).result(30)

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def _do(self, what: Callable[[], T]) -> T:
        async def doing() -> T:
            return what()

        return asyncio.run_coroutine_threadsafe(doing(), self._loop).result(30)

    def _announce(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(_Session(self, reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, session: _Session) -> None:
        try:
            if await session.begin():
                self._sessions[session.number] = session
                await session.run()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._sessions.pop(session.number, None)
            session.writer.close()

    def cancel(self, number: int) -> None:
        if (session := self._sessions.get(number)) and session.copying is not None:
            session.canceled = True
            session.copying.cancel()

    def columns(self, name: str) -> list[tuple[str, ...]]:
        view = self._view(name)
        return [(column, "true", type_, "") for column, type_ in view.columns.items()]

    def _view(self, name: str) -> View:
        plain = name.replace('"', "").removeprefix("materialize.").removeprefix("public.")
        if plain in self.forbidden:
            raise Failure("42501", f'permission denied for VIEW "materialize.public.{plain}"')
        if plain not in self.views:
            raise Failure("XX000", f"unknown catalog item '{plain}'")
        return self.views[plain]

    def subscription(self, statement: str) -> tuple[View, list[str], bool, int | None, int | None]:
        """View, columns, whether with a snapshot, AS OF, AT LEAST."""
        found = _SUBSCRIBE.fullmatch(statement)
        if found is None:
            raise Failure("42601", f"Expected end of statement, found {statement[:80]}")
        view = self._view(found["view"])
        columns, key = _names(found["columns"]), _names(found["key"])
        for column in (*columns, *key):
            if column not in view.columns:
                raise Failure("42703", f'column "{column}" does not exist')
        assert "PROGRESS" in found["options"]
        assert columns[: len(key)] == key == list(view.key)
        as_of = int(found["as_of"]) if found["as_of"] else None
        if as_of is not None and not found["at_least"] and as_of < view.since:
            raise Failure("22000", self.refusal.format(as_of, view.since))
        self.subscriptions.append(statement)
        snapshot = "SNAPSHOT = false" not in found["options"]
        return view, columns, snapshot, *((None, as_of) if found["at_least"] else (as_of, None))

    def lines(self, view: View, columns: Sequence[str], changes: Mapping[Key, Any], at: int) -> list[str]:
        """The rows of one timestamp, in no order."""
        lines = []
        for key, row in changes.items():
            state = "key_violation" if row == VIOLATION else "delete" if row is None else "upsert"
            known = dict(zip(view.key, key, strict=True))
            values = known if state != "upsert" else row
            lines.append("\t".join([str(at), "f", state, *(_text(values.get(column)) for column in columns)]) + "\n")
        self._chance.shuffle(lines)
        return lines

    def blocks(self, text: str) -> Iterator[bytes]:
        """As messages, which need not end where rows do."""
        raw = text.encode()
        while raw:
            size = self._chance.choice([len(raw), self._chance.randint(1, len(raw))])
            yield raw[:size]
            raw = raw[size:]


class _Session(Wire):
    """One connection."""

    def __init__(self, server: StandIn, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer, server.users, server.cancel)
        self.server = server
        self.copying: asyncio.Task[None] | None = None
        self.canceled = False

    async def run(self) -> None:
        while True:
            kind, body = await self.receive()
            if kind == b"X":
                return
            if kind != b"Q":
                self.fail("0A000", f"the stand-in speaks the simple protocol only, not {kind!r}")
                self.ready()
                continue
            self.copying = asyncio.ensure_future(self.answer(body.rstrip(b"\0").decode()))
            try:
                await self.copying
            except Failure as failure:
                self.fail(failure.code, str(failure))
            except asyncio.CancelledError:
                # Awaiting it hands on a cancellation of the session itself.
                if not self.canceled:
                    raise
                self.canceled = False
                self.fail("57014", "canceling statement due to user request")
            finally:
                self.copying = None
            self.ready()
            await self.writer.drain()

    async def answer(self, statement: str) -> None:
        if found := re.fullmatch(r"SHOW COLUMNS FROM (\S+)", statement):
            self.rows(["name", "nullable", "type", "comment"], self.server.columns(found[1]))
        elif statement in ("SHOW VIEWS", "SHOW MATERIALIZED VIEWS"):
            self.rows(["name"], [(name,) for name in self.server.views if "MATERIALIZED" in statement])
        else:
            await self.subscribe(*self.server.subscription(statement))
            self.send(b"c")
            self.send(b"C", b"COPY 0\0")

    async def subscribe(
        self, view: View, columns: list[str], snapshot: bool, as_of: int | None, at_least: int | None
    ) -> None:
        server = self.server
        left = server.cuts.popleft() if server.cuts else None
        self.send(b"H", struct.pack("!bh", 0, len(columns) + 3) + b"\0\0" * (len(columns) + 3))
        start = as_of if as_of is not None else max(server.now, at_least or 0)
        lines = [_progress(start, columns)]
        while start > server.now:
            await server.changed.wait()
        if snapshot:
            lines += server.lines(view, columns, view.at(start), start)
        told = start
        while True:
            changed, now = server.changed, server.now
            for at in sorted(each for each in view.history if told < each <= now):
                lines += server.lines(view, columns, view.history[at], at)
                if at % 2:
                    lines.append(_progress(at + 1, columns))
            told = now
            lines.append(_progress(now + 1, columns))
            for line in lines:
                if left == 0:
                    await self.writer.drain()
                    self.writer.transport.abort()
                    raise ConnectionError
                left = None if left is None else left - 1
                for block in server.blocks(line):
                    self.send(b"d", block)
            lines = []
            await self.writer.drain()
            await changed.wait()


def _names(text: str) -> list[str]:
    return [name.strip().strip('"') for name in text.split(",")]


def _progress(at: int, columns: Sequence[str]) -> str:
    return "\t".join([str(at), "t", "\\N", *("\\N" for _ in columns)]) + "\n"


def _text(value: object) -> str:
    """A field of COPY's text format."""
    if value is None:
        return "\\N"
    if isinstance(value, bool):
        return "t" if value else "f"
    return "".join(_ESCAPES.get(character, character) for character in str(value))


@contextmanager
def standing_in(users: Mapping[str, str] | None = None, seed: int = 0) -> Iterator[StandIn]:
    """A stand-in that listens, for the time of the block."""
    server = StandIn({"reader": "secret"} if users is None else users, seed)
    server.start()
    try:
        yield server
    finally:
        with suppress(RuntimeError):
            server.close()
