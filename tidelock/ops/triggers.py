"""Triggers over HTTP: made, changed and ended, and what became of what they told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidelock.errors import NotFound, PayloadTooLarge, RequestError, Unreachable, UnsupportedMedia
from tidelock.instants import SECOND, format_instant
from tidelock.ledger.connections import Connections
from tidelock.ledger.database import Database
from tidelock.ledger.outage import outage
from tidelock.live.shapes import Shape, Shapes
from tidelock.model import DEFAULT_TENANT
from tidelock.ops.access import Access, Grant
from tidelock.ops.paging import key_cursor, read_key_cursor, read_limit
from tidelock.ops.parameters import Parameters
from tidelock.ops.problems import JSON
from tidelock.settings import Settings
from tidelock.triggers import registry
from tidelock.triggers.deliveries import STATUSES, DeliveryRow, list_deliveries, redeliver
from tidelock.triggers.drafts import Draft, Patch, Redelivery, changed_trigger, given_secrets, new_trigger, read_body
from tidelock.triggers.registry import Recorder, Registered
from tidelock.triggers.signatures import generate_secret

LIST = ("tenantId", "limit", "cursor")
DELIVERIES = ("status", "limit", "cursor")

#: filters are the largest part
_BODY_BYTES_MAX = 4 << 20
_ATTEMPTS_MAX = 20
_DIGITS_MAX = 18


class Triggers:
    """The handlers of triggers. All need the scope of that name."""

    def __init__(
        self, recorder: Recorder, database: Database, reads: Connections, access: Access, settings: Settings
    ) -> None:
        self._recorder = recorder
        self._database = database
        self._reads = reads
        self._access = access
        self._settings = settings
        self._shapes = Shapes(settings.definitions)

    async def create(self, request: Request) -> Response:
        grant = await self._grant(request)
        draft: Draft = read_body(await _body(request), Draft)
        made = await self.make(draft, grant)
        return _answer(made, 201)

    async def make(self, draft: Draft, grant: Grant) -> dict[str, Any]:
        """Make a trigger; its form, with the secrets that were made up for it."""
        tenant_id = grant.reads(draft.tenant_id) or DEFAULT_TENANT
        secrets = given_secrets(draft)
        shape = await self._shape()
        trigger = new_trigger(draft, tenant_id, shape, allow_private=self._settings.webhook_allow_private)
        made = await registry.create(self._recorder, trigger, generated := secrets or [generate_secret()])
        return made.form() | ({} if secrets is not None else {"secrets": list(generated)})

    async def all(self, request: Request) -> Response:
        grant = await self._grant(request)
        parameters = Parameters(request.scope["query_string"], LIST)
        limit, cursor = read_limit(parameters, self._settings), parameters.text("cursor")
        _, after = ("", "") if cursor is None else read_key_cursor(cursor, "triggers")
        tenant_id = grant.reads(parameters.name("tenantId"))
        found = await self.page(tenant_id, limit + 1, after)
        following = key_cursor("triggers", "", found[limit - 1].trigger.name) if len(found) > limit else None
        return _answer({"items": [each.form() for each in found[:limit]], "next": following})

    async def page(self, tenant_id: str | None, limit: int, after: str = "") -> Sequence[Registered]:
        async with self._reads.lend() as connection:
            return await registry.read_all(connection, tenant_id, limit=limit, after=after)

    async def one(self, request: Request) -> Response:
        grant = await self._grant(request)
        return _answer((await self._known(request.path_params["name"], grant)).form())

    async def change(self, request: Request) -> Response:
        grant = await self._grant(request)
        patch: Patch = read_body(await _body(request), Patch)
        secrets = given_secrets(patch)
        changed = await self._changed(request.path_params["name"], patch, grant)
        if secrets is not None:
            with outage("triggers"):
                async with await self._database.connect(name="tidelock triggers") as connection:
                    await registry.put_secrets(connection, changed.trigger.name, secrets)
        return _answer(changed.form())

    async def delete(self, request: Request) -> Response:
        grant = await self._grant(request)
        await self.end(request.path_params["name"], grant)
        return Response(status_code=204)

    async def end(self, name: str, grant: Grant) -> Registered:
        for _ in range(_ATTEMPTS_MAX):
            known = await self._known(name, grant)
            if await registry.delete(self._recorder, known):
                return known
        raise Unreachable("the trigger is being changed by others; ask again")

    async def deliveries(self, request: Request) -> Response:
        grant = await self._grant(request)
        parameters = Parameters(request.scope["query_string"], DELIVERIES)
        limit, cursor = read_limit(parameters, self._settings), parameters.text("cursor")
        before = None if cursor is None else _position(cursor)
        status = parameters.choice("status", STATUSES)
        name = (await self._known(request.path_params["name"], grant)).trigger.name
        async with self._reads.lend() as connection:
            found = await list_deliveries(connection, name, status=status, limit=limit + 1, before=before)  # type: ignore[arg-type]
        following = key_cursor("deliveries", name, str(found[limit - 1].position)) if len(found) > limit else None
        return _answer({"items": [delivery_form(row) for row in found[:limit]], "next": following})

    async def redeliver(self, request: Request) -> Response:
        grant = await self._grant(request)
        body = await _body(request)
        wanted: Redelivery = read_body(body, Redelivery) if body.strip() else Redelivery()
        name = (await self._known(request.path_params["name"], grant)).trigger.name
        with outage("triggers"):
            async with await self._database.connect(name="tidelock triggers") as connection:
                queued = await redeliver(connection, name, wanted.event_ids)
        return _answer({"queued": queued})

    async def _changed(self, name: str, patch: Patch, grant: Grant) -> Registered:
        for _ in range(_ATTEMPTS_MAX):
            known = await self._known(name, grant)
            shape = await self._shape()
            allow_private = self._settings.webhook_allow_private
            trigger = changed_trigger(known.trigger, patch, shape, allow_private=allow_private)
            if trigger is known.trigger:
                return known
            changed = await registry.change(self._recorder, known, trigger)
            if changed is not None:
                return changed
        raise Unreachable("the trigger is being changed by others; ask again")

    async def _known(self, name: str, grant: Grant) -> Registered:
        if "\0" in name:
            raise NotFound("there is no trigger of such a name")
        async with self._reads.lend() as connection:
            return await registry.read(connection, name, grant.reads(None))

    async def _shape(self) -> Shape:
        async with self._reads.lend() as connection:
            return await self._shapes.read(connection)

    async def _grant(self, request: Request) -> Grant:
        return (await self._access.grant(dict(request.scope["headers"]))).need("triggers")


def delivery_form(row: DeliveryRow) -> dict[str, Any]:
    """What is told of a delivery outside."""
    return {
        "eventId": row.event_id,
        "eventType": row.event_type,
        "key": row.key,
        "sourceTimestamp": str(row.source_timestamp),
        "status": row.status,
        "attempts": row.attempts,
        "nextAttemptAt": _instant(row.next_attempt_at),
        "queuedAt": _instant(row.queued_at),
        "settledAt": _instant(row.settled_at),
        "outcome": row.outcome,
        "httpStatus": row.http_status,
        "response": row.response,
    }


def _position(cursor: str) -> int:
    position = read_key_cursor(cursor, "deliveries")[1]
    if not position.isascii() or not position.isdigit() or len(position) > _DIGITS_MAX:
        raise RequestError("this cursor is not one of this list", field="cursor")
    return int(position)


def _instant(moment: Any) -> str | None:
    return None if moment is None else format_instant(round(moment.timestamp() * 1_000_000) * (SECOND // 1_000_000))


def _answer(form: dict[str, Any], status: int = 200) -> Response:
    return Response(msgspec.json.encode(form), status, media_type=JSON)


async def _body(request: Request) -> bytes:
    media_type = request.headers.get("content-type", JSON).split(";")[0].strip().lower()
    if media_type not in (JSON, ""):
        raise UnsupportedMedia(f"send {JSON}")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _BODY_BYTES_MAX:
            raise PayloadTooLarge(f"the body is larger than {_BODY_BYTES_MAX} bytes")
    return body
