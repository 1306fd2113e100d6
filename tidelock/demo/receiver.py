"""The demo's own receiver of webhooks: it verifies, fails now and then, and says what it was told."""

from __future__ import annotations

import logging
from collections import Counter
from random import Random

from aiohttp import web

from tidelock.triggers.signatures import InvalidSignature, verify

log = logging.getLogger(__name__)

#: share of webhooks that it refuses at first, as receivers do
_BUSY = 0.1
#: orders that its database chokes on, by how their ids begin, and how often before somebody mends it by hand: they
#: become dead letters, which can be delivered again
_CHOKED = ("order_filled", ("0", "1"))
_CHOKES = 3


class Receiver:
    """Knows the secrets of triggers by their names."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self.secrets: dict[str, list[str]] = {}
        self.told = 0
        self._seen: set[str] = set()
        self._choked: Counter[str] = Counter()

    async def start(self) -> tuple[web.AppRunner, str]:
        """Listens on a port of its own; what it gives must be cleaned up."""
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
