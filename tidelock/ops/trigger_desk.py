"""The desk where triggers are asked for, whoever asks: HTTP, GraphQL or the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelock.errors import NotFound, Unreachable
from tidelock.live.shapes import Shape, Shapes
from tidelock.model import DEFAULT_TENANT
from tidelock.postgres.database import Database
from tidelock.postgres.pool import Connections
from tidelock.postgres.reconnect import database_errors
from tidelock.settings import Settings
from tidelock.triggers import registry
from tidelock.triggers.definition import EVENT_ID
from tidelock.triggers.drafts import Draft, Patch, changed_trigger, given_secrets, new_trigger
from tidelock.triggers.outbox import (
    Attempt,
    DeliveryRow,
    Status,
    list_deliveries,
    read_attempts,
    read_delivery,
    redeliver,
)
from tidelock.triggers.registry import ControlRecorder, Registered
from tidelock.triggers.signatures import generate_secret

_ATTEMPTS_MAX = 20


class TriggerDesk:
    """Every question is of one tenant, or of all (None)."""

    def __init__(self, recorder: ControlRecorder, database: Database, reads: Connections, settings: Settings) -> None:
        self._recorder = recorder
        self._database = database
        self._reads = reads
        self._settings = settings
        self._shapes = Shapes(settings.definitions)

    async def make(self, draft: Draft, tenant_id: str | None) -> dict[str, Any]:
        """Make a trigger; gives its form, with the secret where one had to be made up."""
        given = given_secrets(draft)
        trigger = new_trigger(
            draft,
            DEFAULT_TENANT if tenant_id is None else tenant_id,
            await self._shape(),
            allow_private=self._settings.webhook_allow_private,
        )
        secrets = given or (generate_secret(),)
        made = await registry.create(self._recorder, trigger, secrets)
        return made.form() | ({} if given is not None else {"secrets": list(secrets)})

    async def page(self, tenant_id: str | None, limit: int, after: str = "") -> Sequence[Registered]:
        """Triggers by name, after one."""
        async with self._reads.lend() as connection:
            return await registry.read_all(connection, tenant_id, limit=limit, after=after)

    async def one(self, name: str, tenant_id: str | None) -> Registered:
        """Raises NotFound."""
        if "\0" in name:
            raise NotFound("there is no trigger of such a name")
        async with self._reads.lend() as connection:
            return await registry.read(connection, name, tenant_id)

    async def change(self, name: str, patch: Patch, tenant_id: str | None) -> Registered:
        """The trigger as the patch leaves it. Secrets are changed without an event."""
        secrets = given_secrets(patch)
        changed = await self._changed(name, patch, tenant_id)
        if secrets is not None:
            with database_errors("triggers"):
                async with await self._database.connect(name="tidelock triggers") as connection:
                    await registry.replace_secrets(connection, changed, secrets)
        return changed

    async def end(self, name: str, tenant_id: str | None) -> Registered:
        for _ in range(_ATTEMPTS_MAX):
            known = await self.one(name, tenant_id)
            if await registry.delete(self._recorder, known):
                return known
        raise _contended()

    async def deliveries(
        self, name: str, tenant_id: str | None, *, status: Status | None, limit: int, before: int | None = None
    ) -> list[DeliveryRow]:
        """What became of a trigger's webhooks, the newest first."""
        known = (await self.one(name, tenant_id)).trigger.name
        async with self._reads.lend() as connection:
            return await list_deliveries(connection, known, status=status, limit=limit, before=before)

    async def attempts(self, name: str, tenant_id: str | None, event_id: str) -> tuple[str, list[Attempt]]:
        """The row that one event tells of, as JSON, and its latest attempts. Raises NotFound."""
        known = (await self.one(name, tenant_id)).trigger.name
        found = None
        if EVENT_ID.fullmatch(event_id):
            async with self._reads.lend() as connection:
                found = await read_attempts(connection, known, event_id)
        if found is None:
            raise NotFound(f"{known} has no event of that id, or none any more")
        return found

    async def delivery(self, name: str, tenant_id: str | None, event_id: str) -> tuple[DeliveryRow, str, list[Attempt]]:
        """What became of one event, the row that it tells of and its latest attempts. Raises NotFound."""
        data, attempts = await self.attempts(name, tenant_id, event_id)
        async with self._reads.lend() as connection:
            row = await read_delivery(connection, name, event_id)
        if row is None:
            raise NotFound(f"{name} has no event of that id any more")
        return row, data, attempts

    async def redeliver(self, name: str, tenant_id: str | None, event_ids: Sequence[str] | None) -> int:
        """Queue events again, those named or all that are dead; gives how many."""
        known = (await self.one(name, tenant_id)).trigger.name
        with database_errors("triggers"):
            async with await self._database.connect(name="tidelock triggers") as connection:
                return await redeliver(connection, known, event_ids)

    async def _changed(self, name: str, patch: Patch, tenant_id: str | None) -> Registered:
        allow_private = self._settings.webhook_allow_private
        for _ in range(_ATTEMPTS_MAX):
            known = await self.one(name, tenant_id)
            trigger = changed_trigger(known.trigger, patch, await self._shape(), allow_private=allow_private)
            if trigger is known.trigger:
                return known
            changed = await registry.change(self._recorder, known, trigger)
            if changed is not None:
                return changed
        raise _contended()

    async def _shape(self) -> Shape:
        async with self._reads.lend() as connection:
            return await self._shapes.read(connection)


def _contended() -> Unreachable:
    return Unreachable("the trigger is being changed by others; ask again")
