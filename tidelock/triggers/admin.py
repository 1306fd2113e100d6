"""Administration of triggers for HTTP, GraphQL and the command line: creating, changing, deliveries,
samples, replays.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tidelock.errors import NotFound, Unreachable
from tidelock.instants import SECOND
from tidelock.ledger.opening import opened_sequencer
from tidelock.ledger.writer import Beside
from tidelock.model import DEFAULT_TENANT, Accepted
from tidelock.postgres.database import Database
from tidelock.postgres.pool import Connections
from tidelock.postgres.queries import load
from tidelock.postgres.reconnect import database_errors
from tidelock.settings import Settings
from tidelock.triggers import registry
from tidelock.triggers.attempts import Result, WebhookSender
from tidelock.triggers.definition import EVENT_ID, event_id
from tidelock.triggers.drafts import Draft, Patch, changed_trigger, given_secrets, new_trigger
from tidelock.triggers.outbox import (
    Attempt,
    DeliveryRow,
    Status,
    Transition,
    append,
    list_deliveries,
    read_attempts,
    read_delivery,
    redeliver,
)
from tidelock.triggers.past import one_moment
from tidelock.triggers.payloads import payload
from tidelock.triggers.registry import ControlRecorder, Registered
from tidelock.triggers.replay import KeptPast, Replay, WholePast
from tidelock.triggers.signatures import Signer, generate_secret
from tidelock.views.catalog import CatalogReader, TableCatalog

if TYPE_CHECKING:
    from tidelock.fold.redefine.refolding import Refolding

_ATTEMPTS_MAX = 20

QUERIES = load("tidelock.triggers", "sql/evaluation.sql")

#: the `event_type` of a sample, which no trigger sends by itself
TEST = "TEST"


class TriggerAdmin:
    """Every call is for one tenant, or for all (None)."""

    def __init__(self, recorder: ControlRecorder, database: Database, reads: Connections, settings: Settings) -> None:
        self._recorder = recorder
        self._database = database
        self._reads = reads
        self._settings = settings
        self._catalogs = CatalogReader(settings.definitions)

    async def make(self, draft: Draft, tenant_id: str | None) -> dict[str, Any]:
        """Create a trigger; returns it, with the secret if one was generated."""
        given = given_secrets(draft)
        trigger = new_trigger(
            draft,
            DEFAULT_TENANT if tenant_id is None else tenant_id,
            await self._catalog(),
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
            raise NotFound("there is no trigger with this name: a name never contains a null character")
        async with self._reads.lend() as connection:
            return await registry.read(connection, name, tenant_id)

    async def change(self, name: str, patch: Patch, tenant_id: str | None) -> Registered:
        """The patched trigger. Secrets are changed without an event."""
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
        """A trigger's deliveries, newest first."""
        known = (await self.one(name, tenant_id)).trigger.name
        async with self._reads.lend() as connection:
            return await list_deliveries(connection, known, status=status, limit=limit, before=before)

    async def attempts(self, name: str, tenant_id: str | None, event_id: str) -> tuple[str, list[Attempt]]:
        """The row of one event, as JSON, and its latest attempts. Raises NotFound."""
        known = (await self.one(name, tenant_id)).trigger.name
        found = None
        if EVENT_ID.fullmatch(event_id):
            async with self._reads.lend() as connection:
                found = await read_attempts(connection, known, event_id)
        if found is None:
            raise NotFound(f"{known} has no event with this ID, or no longer has it")
        return found

    async def delivery(self, name: str, tenant_id: str | None, event_id: str) -> tuple[DeliveryRow, str, list[Attempt]]:
        """The delivery of one event, its row and its latest attempts. Raises NotFound."""
        data, attempts = await self.attempts(name, tenant_id, event_id)
        async with self._reads.lend() as connection:
            row = await read_delivery(connection, name, event_id)
        if row is None:
            raise NotFound(f"{name} no longer has an event with this ID")
        return row, data, attempts

    async def redeliver(self, name: str, tenant_id: str | None, event_ids: Sequence[str] | None) -> int:
        """Queue events again, those named or all dead ones; returns how many."""
        known = (await self.one(name, tenant_id)).trigger.name
        with database_errors("triggers"):
            async with await self._database.connect(name="tidelock triggers") as connection:
                return await redeliver(connection, known, event_ids)

    async def _changed(self, name: str, patch: Patch, tenant_id: str | None) -> Registered:
        allow_private = self._settings.webhook_allow_private
        for _ in range(_ATTEMPTS_MAX):
            known = await self.one(name, tenant_id)
            trigger = changed_trigger(known.trigger, patch, await self._catalog(), allow_private=allow_private)
            if trigger is known.trigger:
                return known
            changed = await registry.change(self._recorder, known, trigger)
            if changed is not None:
                return changed
        raise _contended()

    async def _catalog(self) -> TableCatalog:
        async with self._reads.lend() as connection:
            return await self._catalogs.read(connection)


def _contended() -> Unreachable:
    return Unreachable("the trigger is being changed concurrently; retry")


class Sample(NamedTuple):
    """A sample that was sent, and its outcome."""

    event_id: str
    webhook: str
    body: bytes
    result: Result


class _Recorder:
    """Records with a temporary sequencer, which readers do not need."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database

    async def control(self, data: Mapping[str, Any], beside: Beside | None = None) -> Accepted:
        async with opened_sequencer(self._settings, self._database) as sequencer:
            return await sequencer.control(data, beside)


@asynccontextmanager
async def opened_admin(settings: Settings, database: Database) -> AsyncIterator[TriggerAdmin]:
    reads = Connections(database, size_max=1, name="tidelock triggers")
    try:
        yield TriggerAdmin(_Recorder(settings, database), database, reads, settings)
    finally:
        await reads.close()


async def send_sample(settings: Settings, database: Database, name: str) -> Sample:
    """Send the receiver of a trigger one event marked as a sample, signed like any other."""
    async with await database.connect(name="tidelock triggers") as connection:
        trigger = (await registry.read(connection, name, None)).trigger
        secrets = await registry.read_secrets(connection, name)
        data = await _sample_data(connection, name)
    if data is None:
        data = msgspec.json.encode(dict.fromkeys(trigger.columns or ()))
    now = time.time_ns()
    sample_id = event_id(name, "test", now)
    body = payload(
        event_id=sample_id, event_type=TEST, trigger=name, source_timestamp=now, data=data, sent_at_ns=now
    )  # fmt: skip
    sender = WebhookSender(
        timeout_s=settings.webhook_timeout_s,
        response_bytes_max=settings.webhook_response_bytes_max,
        allow_private=settings.webhook_allow_private,
    )
    try:
        headers = Signer(secrets).headers(sample_id, now // SECOND, body)
        return Sample(sample_id, trigger.webhook, body, await sender.post(trigger.webhook, headers, body))
    finally:
        await sender.close()


async def _sample_data(connection: Any, name: str) -> bytes | None:
    """The row of its last event."""
    for row in await list_deliveries(connection, name, status=None, limit=1):
        found = await read_attempts(connection, name, row.event_id)
        return None if found is None else found[0].encode()
    return None


def replay(
    database: Database, name: str, first: int, last: int, refold: Callable[[Refolding], bool]
) -> Generator[Transition]:
    """The transitions of a trigger over a range of sequences. Nothing is sent.

    If the needed changes have expired, `refold` folds the ledger again, or reports that it was told to stop. Raises
    Unreachable if that would not give the same transitions.
    """
    with database.connect_sync(name="tidelock triggers") as connection, one_moment(connection):
        found = Replay(connection, name, first, last)
        if found.kept(connection):
            yield from found.transitions(connection, KeptPast(connection))
            return
    # Imported here, because without Spark nobody should wait for its modules.
    from tidelock.fold.redefine.refolding import read_refolded, refolding

    with refolding(database, found.since, last) as folding:
        if refold(folding):
            with database.connect_sync(name="tidelock triggers") as connection, one_moment(connection):
                read_refolded(connection)
                yield from found.transitions(connection, WholePast(connection))


def evaluated_through(database: Database) -> tuple[int, int]:
    """Through which sequences triggers are evaluated, and the tables folded."""
    with database.connect_sync(name="tidelock triggers") as connection:
        row = connection.execute(QUERIES["evaluated_through"]).fetchone()
    assert row is not None, "this query always has a row"
    return row[0], row[1]


async def send_again(database: Database, name: str, transitions: Sequence[Transition]) -> int:
    """Queue transitions for delivery again, with the same IDs; returns how many."""
    if transitions and not transitions[0].trigger_id:
        raise NotFound(f"trigger {name} no longer exists, so there is no URL to send to")
    queued = 0
    with database.connect_sync(name="tidelock triggers") as appending, appending.transaction():
        # Those no longer in the outbox.
        queued += append(appending, transitions)
    ids = [transition.event_id for transition in transitions]
    async with await database.connect(name="tidelock triggers") as connection:
        return queued + await redeliver(connection, name, ids)
