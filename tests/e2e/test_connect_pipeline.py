"""From a foreign view to subscribers and webhooks, by `tidelock up` and `tidelock connect`, whatever is lost."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.commandline import process
from tests.graphql.sockets import Socket, connected
from tests.sources.materialize import StandIn, standing_in
from tests.stack import Stack
from tests.triggers.receiver import Receiver, receiving
from tidelock.instants import parse_rfc3339

pytestmark = pytest.mark.stack
TENANT = "pipeline"
QUERY = f"""subscription {{
    trades(where: {{tenant_id: {{_eq: "{TENANT}"}}}}) {{ operation data {{ trade_id qty }} ts_timestamp }} }}"""


def trade(number: int, quantity: int) -> dict[str, Any]:
    return {"trade_id": number, "qty": quantity, "price": "1.50"}


class Subscriber:
    """Rows as a client has them that applies what it is told."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self.rows: dict[int, int] = {}
        self.told: list[tuple[str, int, int, int]] = []

    async def until(self, rows: dict[int, int], seconds: float = 90) -> None:
        async with asyncio.timeout(seconds):
            while self.rows != rows:
                update = (await self._socket.next(seconds=seconds))["trades"]
                number, quantity = int(update["data"]["trade_id"]), update["data"]["qty"]
                self.told.append((update["operation"], number, quantity, int(update["ts_timestamp"])))
                if update["operation"] == "DELETE":
                    del self.rows[number]
                else:
                    self.rows[number] = quantity


class Connector:
    """`tidelock connect` as a process of its own, to be killed and started again."""

    def __init__(self, server: StandIn, tmp_path: Path, stack: Stack) -> None:
        given = ("--from", server.url(), "--view", "trades", "--tenant", TENANT, "--data", stack.data)
        self._start: Callable[[], subprocess.Popen[str]] = lambda: process(
            "connect", "materialize", *given, "--config", stack.config, cwd=tmp_path
        )
        self._process = self._start()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def start(self) -> None:
        self._process = self._start()

    def stop(self) -> str:
        """What it said."""
        self._process.terminate()
        _, said = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, said
        return said


def view(server: StandIn) -> dict[int, int]:
    return {key[0]: row["qty"] for key, row in server.views["trades"].at(server.now).items()}


@pytest.mark.timeout(600)
async def test_rows_of_a_view_reach_subscribers_and_webhooks_whatever_is_lost(stack: Stack, tmp_path: Path) -> None:
    with standing_in() as materialize:
        materialize.create("trades", {"trade_id": "bigint", "qty": "integer", "price": "numeric"}, "trade_id")
        async with (
            receiving() as receiver,
            httpx.AsyncClient(base_url=stack.url, timeout=60) as client,
            connected(stack.url) as socket,
        ):
            given = {"name": "connected", "table": "trades", "match": {"qty": {"_gt": 10}}, "webhook": receiver.url}
            made = await client.post("/v1/triggers", json={**given, "tenantId": TENANT})
            assert made.status_code == 201, made.text
            await socket.subscribe(QUERY)
            subscriber = Subscriber(socket)
            times = await _lose_everything(materialize, subscriber, Connector(materialize, tmp_path, stack))
            await receiver.until(lambda: len({request.id for request in receiver.accepted}) >= 8, 120)
            asked = {"stream": "trades", "tenantId": TENANT}
            events = (await client.get("/admin/events", params=asked)).json()["items"]
            assert (await client.delete("/v1/triggers/connected")).status_code == 204
    _check(events, subscriber, receiver, times)


async def _lose_everything(materialize: StandIn, subscriber: Subscriber, connector: Connector) -> list[int]:
    """Moments of the view, through a cut, a kill and a lost history; the times that the ledger must have."""
    times = [materialize.commit("trades", trade(1, 5), trade(2, 50), trade(3, 20))]
    materialize.advance()
    await subscriber.until(view(materialize))
    # The connection is cut, and the next one in the midst of a moment.
    materialize.cuts.append(2)
    materialize.cut()
    times.append(materialize.commit("trades", trade(1, 15), trade(2, 5)))
    materialize.advance()
    await subscriber.until(view(materialize))
    # The connector is killed; what happens meanwhile is in the history of the view.
    await asyncio.to_thread(connector.kill)
    times.append(materialize.commit("trades", trade(4, 40)))
    times.append(materialize.commit("trades", trade(2, 7), delete=[(3,)]))
    materialize.advance()
    connector.start()
    await subscriber.until(view(materialize))
    # Once more, and this time the history is gone.
    await asyncio.to_thread(connector.kill)
    materialize.commit("trades", trade(5, 1), trade(6, 60))
    materialize.commit("trades", trade(1, 2), delete=[(4,), (6,)])
    materialize.advance()
    materialize.compact("trades")
    times.append(materialize.now)
    connector.start()
    await subscriber.until(view(materialize))
    said = await asyncio.to_thread(connector.stop)
    assert "comparing the whole view with what is recorded" in said
    return times


def _check(events: list[dict[str, Any]], subscriber: Subscriber, receiver: Receiver, times: list[int]) -> None:
    moments = [parse_rfc3339(event["occurredAt"]) // 10**6 for event in events]
    # The first rows come as a change, or in a snapshot that was taken a moment later.
    assert sorted(set(moments))[1:] == times[1:]
    assert times[0] <= moments[0] <= times[0] + 1000
    assert moments == sorted(moments)
    assert all(event["idempotencyKey"].endswith(f'"{at}"]') for event, at in zip(events, moments, strict=True))
    assert {event["source"] for event in events} == {"materialize/trades"}
    # One event for one change of the view, and none that was only seen in between.
    assert len(events) == 3 + 2 + 1 + 2 + 3
    known = {int(event["sourceTimestamp"]) for event in events}
    told = [(operation, number) for operation, number, _, _ in subscriber.told]
    inserts, updates, deletes = (
        sorted(number for operation, number in told if operation == wanted) for wanted in ("INSERT", "UPDATE", "DELETE")
    )
    assert (inserts, updates, deletes) == ([1, 2, 3, 4, 5], [1, 1, 2, 2], [3, 4])
    assert {each[3] for each in subscriber.told} == known
    bodies = list({request.id: request.payload for request in receiver.accepted}.values())
    by_key: dict[int, list[str]] = {}
    for body in bodies:
        by_key.setdefault(body["data"]["trade_id"], []).append(body["event_type"])
        assert int(body["source_timestamp"]) in known
    assert by_key == {
        1: ["MATCH", "UNMATCH"],
        2: ["MATCH", "UNMATCH"],
        3: ["MATCH", "UNMATCH"],
        4: ["MATCH", "UNMATCH"],
    }
