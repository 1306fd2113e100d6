"""HTTP clients: one synchronous, one for event loops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from random import Random
from types import TracebackType
from typing import Any

import httpx

from tidelock.client.errors import AGAIN, PAUSE_S_MAX, NoAnswer, Refused, asked_to_wait_s, decoded, pauses, settled
from tidelock.client.explained import Explanation, explain_query, read_explanation
from tidelock.client.following import Following, Update, messages, read_shape, shape_request
from tidelock.client.values import (
    NOTHING_REVERTED,
    CustomerUsage,
    Event,
    Reverted,
    Usage,
    Verdict,
    batch_body,
    body,
    correction,
    filter_text,
    instant,
    prepared,
    read_customers,
    read_usage,
    read_verdicts,
    reverted,
)

#: events of one request; each request is recorded as one collection
BATCH = 1_000
#: rows of one page of an export
PAGE = 1_000
TRIES = 8
_TIMEOUT_S = 30.0
# How long an abandoned subscription may take to end.
_LEAVING_S, _LEAVING_TURNS = 1.0, 100
_JSON = {"content-type": "application/json"}
_STREAM = {"accept": "text/event-stream"}


def _options(url: str, key: str | None, timeout_s: float) -> dict[str, Any]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return {"base_url": url, "headers": headers, "timeout": timeout_s}


def _usage_query(
    metric: str, customer_ref: str | None, start: datetime | str | None, end: datetime | str | None, *, groups: bool,
    tenant: str | None, window: str | None = None, as_of: int | None = None,
) -> dict[str, str]:  # fmt: skip
    given = {
        "metric": metric,
        "customerRef": customer_ref,
        "from": instant(start),
        "to": instant(end),
        "window": window,
        "groupBy": "true" if groups else None,
        "asOf": None if as_of is None else str(as_of),
        "tenantId": tenant,
    }
    return {name: value for name, value in given.items() if value is not None}


def _close_body(through: datetime | date | str, metric: str | None, tenant: str | None) -> dict[str, str]:
    text = through if isinstance(through, str) else through.isoformat()
    given = {"through": instant(through) if isinstance(through, datetime) else text, "metric": metric,
             "tenantId": tenant}  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}


def _statements_query(metric: str | None, period: str | None, tenant: str | None) -> dict[str, str]:
    given = {"metric": metric, "period": period, "tenantId": tenant, "limit": str(PAGE)}
    return {name: value for name, value in given.items() if value is not None}


def _batches(events: Iterable[Event], size: int) -> Iterator[list[dict[str, Any]]]:
    remaining = prepared(events)
    while batch := list(islice(remaining, size)):
        yield batch


class Client:
    """The synchronous client."""

    def __init__(
        self, url: str, key: str | None = None, *, timeout_s: float = _TIMEOUT_S, tries: int = TRIES,
        pause_max_s: float = PAUSE_S_MAX,
    ) -> None:  # fmt: skip
        self._http = httpx.Client(**_options(url, key, timeout_s))
        self._tries = tries
        self._pause_max_s = pause_max_s
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
        """Record events, in this order, each once; returns a verdict for each.

        If a response is lost, the events are sent again with the same keys, so nothing is recorded twice. Raises
        NoAnswer if the server cannot be reached, Refused if it refuses a whole request.
        """
        found: list[Verdict] = []
        for sent in _batches(events, batch):
            answer = self._asked("POST", "/v1/events", content=body(sent), headers=_JSON)
            found += read_verdicts(answer)
        return found

    def void(
        self, stream: str, target: str, *, reason: str | None = None, batch_id: str | None = None,
        key: str | None = None, tenant: str | None = None,
    ) -> Verdict:  # fmt: skip
        """Take back the event with the key `target`. A repeat is a duplicate."""
        sent = correction("void", stream, target, reason=reason, batch_id=batch_id, key=key, tenant=tenant)
        return self.send([sent])[0]

    def amend(
        self, stream: str, target: str, *, quantity: Decimal | int | str | None = None, data: Any = None,
        reason: str | None = None, batch_id: str | None = None, key: str | None = None, tenant: str | None = None,
    ) -> Verdict:  # fmt: skip
        """Give the event with the key `target` another quantity or other data; what is left out stays as it is.

        To amend it again, amend this amendment by the key in its verdict."""
        sent = correction(
            "amend", stream, target, quantity=quantity, data=data, reason=reason, batch_id=batch_id, key=key,
            tenant=tenant,
        )  # fmt: skip
        return self.send([sent])[0]

    def usage(
        self, metric: str, customer_ref: str, *, start: datetime | str | None = None, end: datetime | str | None = None,
        window: str | None = None, groups: bool = False, as_of: int | None = None, tenant: str | None = None,
    ) -> Usage:  # fmt: skip
        """Usage of a customer, from `start` until before `end`; `as_of`: as of that sequence.

        `window`: by `hour`, `day`, `week` or `month` instead of the meter's period."""
        query = _usage_query(metric, customer_ref, start, end, window=window, groups=groups, as_of=as_of, tenant=tenant)
        return read_usage(self._asked("GET", "/v1/usage", params=query))

    def usage_of_all(
        self, metric: str, *, start: datetime | str | None = None, end: datetime | str | None = None,
        groups: bool = False, tenant: str | None = None,
    ) -> Iterator[CustomerUsage]:  # fmt: skip
        """What every customer used, from `start` to before `end`, page by page: by customer, period and group."""
        query = _usage_query(metric, None, start, end, groups=groups, tenant=tenant) | {"limit": str(PAGE)}
        while True:
            page = self._asked("GET", "/v1/usage", params=query)
            yield from read_customers(page)
            if page["next"] is None:
                return
            query["cursor"] = page["next"]

    def close_periods(
        self, through: datetime | date | str, *, metric: str | None = None, tenant: str | None = None
    ) -> int | None:
        """Close every period that ends by then, for ever; the sequence of the close, or None: all of that was closed.

        Without a tenant of all of them, also of those that come later."""
        body = _close_body(through, metric, tenant)
        sequence: int | None = self._asked("POST", "/v1/periods/close", json=body)["ingressSequence"]
        return sequence

    def statements(
        self, *, metric: str | None = None, period: str | None = None, tenant: str | None = None
    ) -> Iterator[Mapping[str, Any]]:
        """What counters were when they were closed, and what has come since, page by page; `period` such as 2026-10."""
        query = _statements_query(metric, period, tenant)
        while True:
            page = self._asked("GET", "/v1/statements", params=query)
            yield from page["items"]
            if page["next"] is None:
                return
            query["cursor"] = page["next"]

    def batches(self, *, tenant: str | None = None) -> Iterator[Mapping[str, Any]]:
        """Batches, the latest first, page by page: events that were recorded under one `batchId`."""
        query = {} if tenant is None else {"tenantId": tenant}
        while True:
            page = self._asked("GET", "/v1/batches", params=query)
            yield from page["items"]
            if page["next"] is None:
                return
            query["cursor"] = page["next"]

    def preview_revert(self, batch_id: str, *, tenant: str | None = None) -> Mapping[str, Any]:
        """What reverting a batch would make of every counter; nothing is recorded."""
        found: Mapping[str, Any] = self._asked(
            "GET", "/v1/batches/preview", params=batch_body(batch_id, tenantId=tenant)
        )
        return found

    def revert(self, batch_id: str, *, reason: str | None = None, tenant: str | None = None) -> Reverted:
        """Void every event of a batch, each once: after a failure, ask again. Without a tenant those of all of them."""
        done, cursor = NOTHING_REVERTED, None
        while True:
            asked = batch_body(batch_id, reason=reason, tenantId=tenant, cursor=cursor)
            answer = self._asked("POST", "/v1/batches/revert", json=asked)
            done, cursor = reverted(done, answer), answer["next"]
            if cursor is None:
                return done

    def explain(
        self, metric: str, customer_ref: str, *, period: datetime | date | str | None = None, group: str | None = None,
        no_group: bool = False, as_of: int | None = None, tenant: str | None = None, limit: int | None = None,
        cursor: str | None = None,
    ) -> Explanation:  # fmt: skip
        """Why a customer's number is what it is, in the latest period or the one that contains `period`.

        Its events come in pages: `next` is the `cursor` of the next page.
        """
        query = explain_query(
            metric, customer_ref, period, group, no_group=no_group, as_of=as_of, tenant=tenant, limit=limit,
            cursor=cursor,
        )  # fmt: skip
        return read_explanation(self._asked("GET", "/v1/explain", params=query, numbers=Decimal))

    def rows(self, table: str, where: Mapping[str, Any] | None = None) -> Iterator[Mapping[str, Any]]:
        """The rows of a table, page by page."""
        query: dict[str, str] = {} if where is None else {"where": filter_text(where)}
        while True:
            page = self._asked("GET", f"/v1/tables/{table}", params=query)
            yield from page["items"]
            if page["next"] is None:
                return
            query["cursor"] = page["next"]

    def _asked(self, method: str, path: str, *, numbers: Callable[[str], Any] = float, **given: Any) -> Any:
        why = ""
        for pause_s in (*pauses(self._tries, self._chance, self._pause_max_s), None):
            asked_s = 0.0
            try:
                answer = self._http.request(method, path, **given)
                if settled(answer):
                    return decoded(answer, numbers)
                why, asked_s = f"it responded with {answer.status_code}", asked_to_wait_s(answer)
            except httpx.TransportError as error:
                why = str(error) or type(error).__name__
            if pause_s is not None:
                time.sleep(max(pause_s, asked_s))
        raise NoAnswer(f"no response from {self._http.base_url} after {self._tries} tries: {why}")


class AsyncClient:
    """The client for event loops, which can also follow tables."""

    def __init__(
        self, url: str, key: str | None = None, *, timeout_s: float = _TIMEOUT_S, tries: int = TRIES,
        pause_max_s: float = PAUSE_S_MAX,
    ) -> None:  # fmt: skip
        self._http = httpx.AsyncClient(**_options(url, key, timeout_s))
        self._tries = tries
        self._pause_max_s = pause_max_s
        self._chance = Random()
        #: subscriptions that hold a connection
        self._followed = 0

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        # An abandoned subscription is closed by the event loop, which must not end before that.
        for _ in range(_LEAVING_TURNS):
            if not self._followed:
                break
            await asyncio.sleep(_LEAVING_S / _LEAVING_TURNS)
        await self._http.aclose()

    async def send(self, events: Iterable[Event], *, batch: int = BATCH) -> list[Verdict]:
        """As `Client.send`."""
        found: list[Verdict] = []
        for sent in _batches(events, batch):
            answer = await self._asked("POST", "/v1/events", content=body(sent), headers=_JSON)
            found += read_verdicts(answer)
        return found

    async def void(
        self, stream: str, target: str, *, reason: str | None = None, batch_id: str | None = None,
        key: str | None = None, tenant: str | None = None,
    ) -> Verdict:  # fmt: skip
        """As `Client.void`."""
        sent = correction("void", stream, target, reason=reason, batch_id=batch_id, key=key, tenant=tenant)
        return (await self.send([sent]))[0]

    async def amend(
        self, stream: str, target: str, *, quantity: Decimal | int | str | None = None, data: Any = None,
        reason: str | None = None, batch_id: str | None = None, key: str | None = None, tenant: str | None = None,
    ) -> Verdict:  # fmt: skip
        """As `Client.amend`."""
        sent = correction(
            "amend", stream, target, quantity=quantity, data=data, reason=reason, batch_id=batch_id, key=key,
            tenant=tenant,
        )  # fmt: skip
        return (await self.send([sent]))[0]

    async def usage(
        self, metric: str, customer_ref: str, *, start: datetime | str | None = None, end: datetime | str | None = None,
        window: str | None = None, groups: bool = False, as_of: int | None = None, tenant: str | None = None,
    ) -> Usage:  # fmt: skip
        """As `Client.usage`."""
        query = _usage_query(metric, customer_ref, start, end, window=window, groups=groups, as_of=as_of, tenant=tenant)
        return read_usage(await self._asked("GET", "/v1/usage", params=query))

    async def usage_of_all(
        self, metric: str, *, start: datetime | str | None = None, end: datetime | str | None = None,
        groups: bool = False, tenant: str | None = None,
    ) -> AsyncGenerator[CustomerUsage, None]:  # fmt: skip
        """As `Client.usage_of_all`."""
        query = _usage_query(metric, None, start, end, groups=groups, tenant=tenant) | {"limit": str(PAGE)}
        while True:
            page = await self._asked("GET", "/v1/usage", params=query)
            for each in read_customers(page):
                yield each
            if page["next"] is None:
                return
            query["cursor"] = page["next"]

    async def close_periods(
        self, through: datetime | date | str, *, metric: str | None = None, tenant: str | None = None
    ) -> int | None:
        """As `Client.close_periods`."""
        body = _close_body(through, metric, tenant)
        sequence: int | None = (await self._asked("POST", "/v1/periods/close", json=body))["ingressSequence"]
        return sequence

    async def statements(
        self, *, metric: str | None = None, period: str | None = None, tenant: str | None = None
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """As `Client.statements`."""
        query = _statements_query(metric, period, tenant)
        while True:
            page = await self._asked("GET", "/v1/statements", params=query)
            for each in page["items"]:
                yield each
            if page["next"] is None:
                return
            query["cursor"] = page["next"]

    async def batches(self, *, tenant: str | None = None) -> AsyncGenerator[Mapping[str, Any], None]:
        """As `Client.batches`."""
        query = {} if tenant is None else {"tenantId": tenant}
        while True:
            page = await self._asked("GET", "/v1/batches", params=query)
            for each in page["items"]:
                yield each
            if page["next"] is None:
                return
            query["cursor"] = page["next"]

    async def preview_revert(self, batch_id: str, *, tenant: str | None = None) -> Mapping[str, Any]:
        """As `Client.preview_revert`."""
        found: Mapping[str, Any] = await self._asked(
            "GET", "/v1/batches/preview", params=batch_body(batch_id, tenantId=tenant)
        )
        return found

    async def revert(self, batch_id: str, *, reason: str | None = None, tenant: str | None = None) -> Reverted:
        """As `Client.revert`."""
        done, cursor = NOTHING_REVERTED, None
        while True:
            asked = batch_body(batch_id, reason=reason, tenantId=tenant, cursor=cursor)
            answer = await self._asked("POST", "/v1/batches/revert", json=asked)
            done, cursor = reverted(done, answer), answer["next"]
            if cursor is None:
                return done

    async def explain(
        self, metric: str, customer_ref: str, *, period: datetime | date | str | None = None, group: str | None = None,
        no_group: bool = False, as_of: int | None = None, tenant: str | None = None, limit: int | None = None,
        cursor: str | None = None,
    ) -> Explanation:  # fmt: skip
        """As `Client.explain`."""
        query = explain_query(
            metric, customer_ref, period, group, no_group=no_group, as_of=as_of, tenant=tenant, limit=limit,
            cursor=cursor,
        )  # fmt: skip
        return read_explanation(await self._asked("GET", "/v1/explain", params=query, numbers=Decimal))

    async def subscribe(
        self, table: str, *, where: Mapping[str, Any] | None = None, columns: Sequence[str] | None = None
    ) -> AsyncGenerator[Update, None]:
        """A table's rows, then every change, each once, for as long as it is iterated.

        If the connection breaks or a busy server ends it, it reconnects and resumes where it was. Raises Refused if the
        server refuses it, for example because of a filter on an unknown column, and NoAnswer if the server cannot be
        reached at first. Close it with `contextlib.aclosing` if you leave it early.
        """
        key, every = read_shape(await self._asked("POST", "/graphql", json=shape_request(table)), table)
        seen = Following(table, key, every if columns is None else columns, where)
        failures = 0
        while True:
            try:
                async with aclosing(self._stream(seen.request())) as stream:
                    async for said in stream:
                        # Repeats at the position of the resume are not progress.
                        if (update := seen.take(said)) is not None:
                            failures = 0
                            yield update
            except httpx.TransportError:
                pass
            except Refused as refused:
                if refused.code == "resume_expired":
                    seen.forget()
                    yield Update("RESET", {}, (), "0")
                elif refused.code not in AGAIN:
                    raise
            await asyncio.sleep(list(pauses(TRIES, self._chance, self._pause_max_s))[min(failures, TRIES - 2)])
            failures += 1

    async def _stream(self, request: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        self._followed += 1
        try:
            # Keep-alives arrive regularly: a longer silence means that the connection is dead.
            async with self._http.stream("POST", "/graphql", json=request, headers=_STREAM) as answer:
                if not answer.is_success:
                    await answer.aread()
                    if not settled(answer):
                        return
                async with aclosing(messages(answer)) as results:
                    async for said in results:
                        yield said
        finally:
            self._followed -= 1

    async def _asked(self, method: str, path: str, *, numbers: Callable[[str], Any] = float, **given: Any) -> Any:
        why = ""
        for pause_s in (*pauses(self._tries, self._chance, self._pause_max_s), None):
            asked_s = 0.0
            try:
                answer = await self._http.request(method, path, **given)
                if settled(answer):
                    return decoded(answer, numbers)
                why, asked_s = f"it responded with {answer.status_code}", asked_to_wait_s(answer)
            except httpx.TransportError as error:
                why = str(error) or type(error).__name__
            if pause_s is not None:
                await asyncio.sleep(max(pause_s, asked_s))
        raise NoAnswer(f"no response from {self._http.base_url} after {self._tries} tries: {why}")
