"""Clients that talk to a server: one that waits, one for event loops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from random import Random
from types import TracebackType
from typing import Any

import httpx

from tidelock.client.following import Following, Update, messages, read_shape
from tidelock.client.shapes import (
    Event,
    Usage,
    Verdict,
    body,
    filter_text,
    instant,
    prepared,
    read_usage,
    read_verdicts,
)
from tidelock.client.trouble import NoAnswer, Refused, asked_to_wait_s, pauses, settled

#: events of one request; each request is recorded at one moment of the ledger
BATCH = 1_000
TRIES = 8
_TIMEOUT_S = 30.0
_JSON = {"content-type": "application/json"}
_STREAM = {"accept": "text/event-stream"}


def _options(url: str, key: str | None, timeout_s: float) -> dict[str, Any]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return {"base_url": url, "headers": headers, "timeout": timeout_s}


def _usage_query(
    metric: str, customer_ref: str, start: datetime | str | None, end: datetime | str | None, *, groups: bool,
    tenant: str | None,
) -> dict[str, str]:  # fmt: skip
    given = {
        "metric": metric,
        "customerRef": customer_ref,
        "from": instant(start),
        "to": instant(end),
        "groupBy": "true" if groups else None,
        "tenantId": tenant,
    }
    return {name: value for name, value in given.items() if value is not None}


def _batches(events: Iterable[Event], size: int) -> Iterator[list[dict[str, Any]]]:
    remaining = prepared(events)
    while batch := list(islice(remaining, size)):
        yield batch


class Client:
    """Talks to a server and waits for its answers."""

    def __init__(self, url: str, key: str | None = None, *, timeout_s: float = _TIMEOUT_S, tries: int = TRIES) -> None:
        self._http = httpx.Client(**_options(url, key, timeout_s))
        self._tries = tries
        self._chance = Random()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def send(self, events: Iterable[Event], *, batch: int = BATCH) -> list[Verdict]:
        """Record events, in this order, each once; a verdict for each.

        A lost answer is asked for again with the same keys, so nothing is recorded twice. Raises NoAnswer when the
        server cannot be reached, Refused when it says no to a whole request.
        """
        found: list[Verdict] = []
        for sent in _batches(events, batch):
            answer = self._asked("POST", "/v1/events", content=body(sent), headers=_JSON)
            found += read_verdicts(answer)
        return found

    def usage(
        self, metric: str, customer_ref: str, *, start: datetime | str | None = None, end: datetime | str | None = None,
        groups: bool = False, tenant: str | None = None,
    ) -> Usage:  # fmt: skip
        """What a customer used, from `start` to before `end`."""
        query = _usage_query(metric, customer_ref, start, end, groups=groups, tenant=tenant)
        return read_usage(self._asked("GET", "/v1/usage", params=query))

    def rows(self, table: str, where: Mapping[str, Any] | None = None) -> Iterator[Mapping[str, Any]]:
        """The rows of a table, page by page."""
        query: dict[str, str] = {} if where is None else {"where": filter_text(where)}
        while True:
            page = self._asked("GET", f"/v1/tables/{table}", params=query)
            yield from page["items"]
            if page["next"] is None:
                return
            query["cursor"] = page["next"]

    def _asked(self, method: str, path: str, **given: Any) -> Any:
        why = ""
        for pause_s in (*pauses(self._tries, self._chance), None):
            asked_s = 0.0
            try:
                answer = self._http.request(method, path, **given)
                if settled(answer):
                    return answer.json()
                why, asked_s = f"it answered {answer.status_code}", asked_to_wait_s(answer)
            except httpx.TransportError as error:
                why = str(error) or type(error).__name__
            if pause_s is not None:
                time.sleep(max(pause_s, asked_s))
        raise NoAnswer(f"no answer from {self._http.base_url} after {self._tries} tries: {why}")


class AsyncClient:
    """The same for event loops, and following."""

    def __init__(self, url: str, key: str | None = None, *, timeout_s: float = _TIMEOUT_S, tries: int = TRIES) -> None:
        self._http = httpx.AsyncClient(**_options(url, key, timeout_s))
        self._tries = tries
        self._chance = Random()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def send(self, events: Iterable[Event], *, batch: int = BATCH) -> list[Verdict]:
        """As `Client.send`."""
        found: list[Verdict] = []
        for sent in _batches(events, batch):
            answer = await self._asked("POST", "/v1/events", content=body(sent), headers=_JSON)
            found += read_verdicts(answer)
        return found

    async def usage(
        self, metric: str, customer_ref: str, *, start: datetime | str | None = None, end: datetime | str | None = None,
        groups: bool = False, tenant: str | None = None,
    ) -> Usage:  # fmt: skip
        """As `Client.usage`."""
        query = _usage_query(metric, customer_ref, start, end, groups=groups, tenant=tenant)
        return read_usage(await self._asked("GET", "/v1/usage", params=query))

    async def subscribe(
        self, table: str, *, where: Mapping[str, Any] | None = None, columns: Sequence[str] | None = None
    ) -> AsyncIterator[Update]:
        """A table's rows, then every change, each once, for as long as it is iterated.

        A connection that breaks is made anew, and it goes on where it was. Raises Refused when the server says no to
        it, as to a filter on a column that is not there. Close it with `contextlib.aclosing` if you leave it early.
        """
        key, every = await self._shape(table)
        seen = Following(table, key, every if columns is None else columns, where)
        failures = 0
        while True:
            try:
                async for said in self._stream(seen.request()):
                    failures = 0
                    if (update := seen.take(said)) is not None:
                        yield update
            except httpx.TransportError:
                pass
            except Refused as refused:
                if refused.code != "resume_expired":
                    raise
                seen.forget()
                yield Update("RESET", {}, (), "0")
            await asyncio.sleep(list(pauses(TRIES, self._chance))[min(failures, TRIES - 2)])
            failures += 1

    async def _stream(self, request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        # Keep-alives come all the time: silence for longer means that the connection is dead.
        async with self._http.stream("POST", "/graphql", json=request, headers=_STREAM) as answer:
            if not answer.is_success:
                await answer.aread()
                if not settled(answer):
                    return
            async for said in messages(answer):
                yield said

    async def _shape(self, table: str) -> tuple[list[str], list[str]]:
        for pause_s in pauses(self._tries, self._chance):
            try:
                return await read_shape(self._http, table)
            except httpx.TransportError:
                await asyncio.sleep(pause_s)
        return await read_shape(self._http, table)

    async def _asked(self, method: str, path: str, **given: Any) -> Any:
        why = ""
        for pause_s in (*pauses(self._tries, self._chance), None):
            asked_s = 0.0
            try:
                answer = await self._http.request(method, path, **given)
                if settled(answer):
                    return answer.json()
                why, asked_s = f"it answered {answer.status_code}", asked_to_wait_s(answer)
            except httpx.TransportError as error:
                why = str(error) or type(error).__name__
            if pause_s is not None:
                await asyncio.sleep(max(pause_s, asked_s))
        raise NoAnswer(f"no answer from {self._http.base_url} after {self._tries} tries: {why}")
