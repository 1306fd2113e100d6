"""The demo's feed: sends the producers' events to a running server and receives its webhooks.

Run beside the server (`python -m tidelock.demo.feed URL STARTED TURN`: when the demo was started, in seconds since
1970, and how many seconds a turn of the producers takes); it ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from random import Random
from typing import Any

import aiohttp
import uvloop
from aiohttp import web
from rich.markup import escape

from tidelock.cli import terminal
from tidelock.demo.scenes import Request, history, producers
from tidelock.sections import number_of
from tidelock.triggers.signatures import InvalidSignature, verify

#: how often producers send
TURN_S = 0.25
#: how often it reports totals
_TOLD_S = 60.0
_PAUSE_S = 0.5
_VERDICTS = ("accepted", "duplicates", "conflicts", "rejected")
#: share of webhooks that it rejects at first, as receivers do
_BUSY = 0.1
#: prefixes of order ids that its database fails on, and how often until it is repaired by hand: they
#: become dead letters, which can be delivered again
_CHOKED = ("order_filled", ("0", "1"))
_CHOKES = 3
TRIGGERS: dict[str, dict[str, Any]] = {
    "large_trade": {"table": "trades", "match": {"quantity": {"_gte": 1000}}},
    "order_filled": {"table": "orders", "match": {"status": {"_eq": "filled"}}},
    "heavy_user": {
        "table": "counters",
        "match": {"metric": {"_eq": "api_calls"}, "total": {"_gte": "500"}},
    },
}
LIVE = "subscription { trades(where: {quantity: {_gte: 1000}}) { operation data { symbol quantity price } } }"
TO_TRY = """[bold green]Numbers move[/] after {seconds} s: a trading desk and an API, with retries,
skewed clocks and late events. See them at [bold]{url}/[/]
and try these in another terminal:
[dim]# what a customer used[/]
curl -s '{url}/v1/usage?metric=api_calls&customerRef=cus_1'
[dim]# every large trade, live[/]
curl -sN {url}/graphql -H 'accept: text/event-stream' -H 'content-type: application/json' \\
  -d '{{"query":"{live}"}}'
[dim]# the webhooks sent for them[/]
curl -s {url}/v1/triggers/large_trade/deliveries"""


class DemoFeed:
    """Sends turn after turn and retries what failed; the ledger recognises repeats."""

    def __init__(self, client: aiohttp.ClientSession, url: str, started_s: float, turn_s: float = TURN_S) -> None:
        self._client = client
        self._url = url
        self._receiver = Receiver(Random())
        self._verdicts: Counter[str] = Counter()
        self._refused = False
        #: when the demo was, which waited for the server first
        self._started_s = started_s
        self._turn_s = turn_s

    async def run(self) -> None:
        runner, hooks = await self._receiver.start()
        try:
            await self._until_ready()
            await ensure_triggers(self._client, hooks, self._receiver)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send())
                tasks.create_task(self._tell())
        finally:
            await runner.cleanup()

    async def _until_ready(self) -> None:
        """Events are accepted at once; the fold needs its JVM. An earlier demo may have left keys."""
        while True:
            try:
                async with self._client.get("/v1/triggers", params={"limit": "1"}) as answer:
                    if answer.status == 200:
                        return
                    if answer.status < 429:
                        self._tell_refusal((await answer.json())["error"]["message"])
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(_PAUSE_S)

    async def _send(self) -> None:
        for request in history(time.time_ns() // 1_000_000):
            await self._post(request)
        sending = producers(Random().randrange(2**32), f"{int(time.time()):x}")
        while True:
            turn_ends = time.monotonic() + self._turn_s
            now_ms = time.time_ns() // 1_000_000
            for producer in sending:
                for request in producer.turn(now_ms):
                    await self._post(request)
            await asyncio.sleep(max(0.0, turn_ends - time.monotonic()))

    async def _post(self, request: Request) -> None:
        while True:
            try:
                async with self._client.post("/v1/events", json=request) as answer:
                    if answer.status == 200:
                        self._refused = False
                        said = await answer.json()
                        self._verdicts.update({name: said[name] for name in _VERDICTS})
                        return
                    if answer.status < 429:
                        self._tell_refusal((await answer.json())["error"]["message"])
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(_PAUSE_S)

    def _tell_refusal(self, why: str) -> None:
        """Said once; the feed keeps trying, since a key may be revoked."""
        if not self._refused:
            self._refused = True
            terminal.say(
                f"[yellow]the feed is refused: {escape(why)}. It has no API key; revoke all keys with "
                "[bold]tidelock keys revoke[/] to let it continue[/]"
            )

    async def _tell(self) -> None:
        await self._until_moving()
        took_s = time.time() - self._started_s
        terminal.say_as_it_is(TO_TRY.format(url=self._url, live=LIVE, seconds=f"{took_s:.0f}"))
        while True:
            await asyncio.sleep(_TOLD_S)
            verdicts = self._verdicts
            terminal.say(
                f"[dim]so far {number_of(verdicts['accepted'], 'event')} accepted, "
                f"{number_of(verdicts['duplicates'], 'duplicate')}, {number_of(verdicts['conflicts'], 'conflict')}, "
                f"{verdicts['rejected']:,} rejected; "
                f"{number_of(self._receiver.told, 'webhook')} received[/]"
            )

    async def _until_moving(self) -> None:
        """Wait until the fold has counted something of this demo: rows of an earlier one do not change."""
        begun: int | None = None
        while True:
            async with self._client.get("/admin/event-health") as answer:
                if answer.status == 200:
                    told = await answer.json()
                    begun = told["head"]["ingressSequence"] if begun is None else begun
                    if any(each["name"] == "fold" and each["ingressSequence"] > begun for each in told["readers"]):
                        return
            await asyncio.sleep(_PAUSE_S)


class Receiver:
    """The demo's own receiver of webhooks: it verifies, fails now and then, and counts what it received.

    It knows the triggers' secrets by name.
    """

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self.secrets: dict[str, list[str]] = {}
        self.told = 0
        self._seen: set[str] = set()
        self._choked: Counter[str] = Counter()

    async def start(self) -> tuple[web.AppRunner, str]:
        """Listen on a free port; the caller must clean up the runner."""
        app = web.Application()
        app.router.add_post("/hooks/{name}", self._receive)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        return runner, f"http://{host}:{port}/hooks"

    async def _receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        try:
            said = verify(body, request.headers, self.secrets.get(request.match_info["name"], []))
        except InvalidSignature as error:
            return web.Response(status=401, text=str(error))
        name, starts = _CHOKED
        if said["trigger_name"] == name and said["event_id"].startswith(starts):
            self._choked[said["event_id"]] += 1
            if self._choked[said["event_id"]] <= _CHOKES:
                return web.Response(status=500, text="duplicate key value violates unique constraint")
        if self._chance.random() < _BUSY:
            return web.Response(status=503, text="busy, try again")
        if said["event_id"] not in self._seen:
            self._seen.add(said["event_id"])
            self.told += 1
        return web.Response(status=204)


async def ensure_triggers(client: aiohttp.ClientSession, hooks: str, receiver: Receiver) -> None:
    """Create the triggers again at each start: the receiver then has another address and other secrets."""
    for name, said in TRIGGERS.items():
        async with client.delete(f"/v1/triggers/{name}") as gone:
            if gone.status not in (204, 404):
                gone.raise_for_status()
        async with client.post("/v1/triggers", json={"name": name, **said, "webhook": f"{hooks}/{name}"}) as made:
            made.raise_for_status()
            receiver.secrets[name] = (await made.json())["secrets"]


async def follow(url: str, started_s: float, turn_s: float) -> None:
    """Run until standard input ends, as it does with the server."""
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(url, timeout=timeout) as client:
        running = asyncio.create_task(DemoFeed(client, url, started_s, turn_s).run())
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        done, _ = await asyncio.wait([running, ended], return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        for task in done:
            task.result()


if __name__ == "__main__":
    uvloop.run(follow(sys.argv[1], *map(float, sys.argv[2:4])))
