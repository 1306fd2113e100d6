"""Foreign clients that follow tables, each through whatever happens to the server, and what they know of the rows."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from gql import Client, gql
from gql.transport.exceptions import TransportError
from gql.transport.websockets import WebsocketsTransport

from tests.budgets import HANG_S
from tests.javascript import CLIENTS

PAUSE_S = 0.02


@dataclass(frozen=True)
class Followed:
    """A table that is followed."""

    name: str
    key: tuple[str, ...]
    #: beside the key
    columns: tuple[str, ...]
    tenant: str

    @property
    def selection(self) -> str:
        return " ".join(("tenant_id", *self.key, *self.columns))

    @property
    def where(self) -> str:
        return f'where: {{tenant_id: {{_eq: "{self.tenant}"}}}}'

    @property
    def subscription(self) -> str:
        return (
            f"subscription ($after: String) {{ {self.name}(after: $after, {self.where}) "
            f"{{ operation ts_timestamp data {{ {self.selection} }} }} }}"
        )


@dataclass
class Mirror:
    """What a client knows of a table."""

    table: Followed
    rows: dict[str, Any] = field(default_factory=dict)
    #: every event that was new, in the order it came
    events: list[Any] = field(default_factory=list)
    after: str | None = None
    times: dict[str, int] = field(default_factory=dict)

    def apply(self, event: Any) -> bool:
        """Whether it was new."""
        row, time = event["data"], int(event["ts_timestamp"])
        name = json.dumps([row["tenant_id"], *(row[column] for column in self.table.key)])
        if time <= self.times.get(name, 0):
            return False
        assert time >= int(self.after or 0), "times never go back"
        self.times[name], self.after = time, event["ts_timestamp"]
        self.events.append(event)
        if event["operation"] == "DELETE":
            self.rows.pop(name, None)
        else:
            self.rows[name] = row
        return True


Mirrors = dict[str, Mirror]


def mirrors(tables: Mapping[str, Followed]) -> Mirrors:
    return {name: Mirror(table) for name, table in tables.items()}


@asynccontextmanager
async def by_gql(url: str, tables: Mapping[str, Followed]) -> AsyncIterator[Mirrors]:
    """Python's gql, over one WebSocket for each table."""
    known = mirrors(tables)

    async def follow(mirror: Mirror) -> None:
        while True:
            transport = WebsocketsTransport(
                f"{url.replace('http', 'ws')}/graphql", subprotocols=["graphql-transport-ws"], close_timeout=1
            )
            request = gql(mirror.table.subscription)
            request.variable_values = {"after": mirror.after}
            with suppress(TransportError, OSError):
                async with Client(transport=transport) as session:
                    async for answer in session.subscribe(request):
                        mirror.apply(answer[mirror.table.name])
            await asyncio.sleep(PAUSE_S)

    tasks = [asyncio.create_task(follow(mirror)) for mirror in known.values()]
    try:
        yield known
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def by_events(url: str, tables: Mapping[str, Followed]) -> AsyncIterator[Mirrors]:
    """Server-sent events by nothing but the standard library, in a thread for each table."""
    known = mirrors(tables)
    stop = threading.Event()

    def follow(mirror: Mirror) -> None:
        while not stop.wait(PAUSE_S):
            body = json.dumps({"query": mirror.table.subscription, "variables": {"after": mirror.after}}).encode()
            headers = {"content-type": "application/json", "accept": "text/event-stream"}
            with (
                suppress(URLError, OSError),
                urlopen(Request(f"{url}/graphql", body, headers), timeout=HANG_S) as answer,
            ):
                for line in answer:
                    if stop.is_set():
                        return
                    if line.startswith(b"data: "):
                        mirror.apply(json.loads(line[6:])["data"][mirror.table.name])

    threads = [threading.Thread(target=follow, args=[mirror]) for mirror in known.values()]
    for thread in threads:
        thread.start()
    try:
        yield known
    finally:
        stop.set()
        for thread in threads:
            await asyncio.to_thread(thread.join)


def by_npm(way: str) -> Any:
    """npm's graphql-ws (ws) or graphql-sse (sse), all tables in one process."""

    @asynccontextmanager
    async def opened(url: str, tables: Mapping[str, Followed]) -> AsyncIterator[Mirrors]:
        known = mirrors(tables)
        asked = {name: {"query": table.subscription, "key": table.key} for name, table in tables.items()}
        process = await asyncio.create_subprocess_exec(
            "node", "follow.mjs", way, url, json.dumps(asked), cwd=CLIENTS,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, limit=2**24,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        output, problems = process.stdout, process.stderr

        async def follow() -> None:
            async for line in output:
                told = json.loads(line)
                assert known[told["table"]].apply(told["event"]), "it says what is new only"
            raise AssertionError((await problems.read()).decode())

        task = asyncio.create_task(follow())
        try:
            yield known
        finally:
            ended = task.done()
            task.cancel()
            if process.returncode is None:
                process.kill()
            await process.wait()
            # So that nothing is open when the loop is: asyncio closes pipes when they were read to their end.
            await asyncio.gather(task, output.read(), problems.read(), return_exceptions=True)
            if ended:
                task.result()

    return opened


Way = AbstractAsyncContextManager[Mirrors]
#: ways to follow, by their names
WAYS: Mapping[str, Any] = {
    "npm graphql-ws": by_npm("ws"),
    "Python gql": by_gql,
    "npm graphql-sse": by_npm("sse"),
    "plain server-sent events": by_events,
}
