"""What commands do with triggers, beside whoever serves them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tidelock.errors import NotFound
from tidelock.instants import SECOND
from tidelock.ledger.connections import Connections
from tidelock.ledger.database import Database
from tidelock.ledger.queries import load
from tidelock.ledger.writer import Beside
from tidelock.model import Accepted
from tidelock.ops.control import opened_sequencer
from tidelock.ops.trigger_desk import TriggerDesk
from tidelock.settings import Settings
from tidelock.triggers import registry
from tidelock.triggers.deliveries import list_deliveries, read_attempts, redeliver
from tidelock.triggers.ids import event_id
from tidelock.triggers.outbox import Transition, append
from tidelock.triggers.outcomes import Result
from tidelock.triggers.pasts import one_moment
from tidelock.triggers.payloads import payload
from tidelock.triggers.replays import KeptPast, Replay, WholePast
from tidelock.triggers.sender import Sender
from tidelock.triggers.signatures import Signer

if TYPE_CHECKING:
    from tidelock.fold.redefine.refolding import Refolding

QUERIES = load("tidelock.triggers", "sql/evaluation.sql")

#: what a sample's `event_type` is: no trigger tells such a thing by itself
TEST = "TEST"


class Sample(NamedTuple):
    """A sample that was sent, and what came of it."""

    event_id: str
    webhook: str
    body: bytes
    result: Result


class _Recorder:
    """Records with a sequencer of its own for the time that takes: who only reads needs none."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database

    async def control(self, data: Mapping[str, Any], beside: Beside | None = None) -> Accepted:
        async with opened_sequencer(self._settings, self._database) as sequencer:
            return await sequencer.control(data, beside)


@asynccontextmanager
async def opened_desk(settings: Settings, database: Database) -> AsyncIterator[TriggerDesk]:
    reads = Connections(database, size_max=1, name="tidelock triggers")
    try:
        yield TriggerDesk(_Recorder(settings, database), database, reads, settings)
    finally:
        await reads.close()


async def send_sample(settings: Settings, database: Database, name: str) -> Sample:
    """Send the receiver of a trigger one event that is marked as a sample, signed as any other."""
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
    sender = Sender(
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
    """The row that it told of last."""
    for row in await list_deliveries(connection, name, status=None, limit=1):
        found = await read_attempts(connection, name, row.event_id)
        return None if found is None else found[0].encode()
    return None


def replay(
    database: Database, name: str, first: int, last: int, refold: Callable[[Refolding], bool]
) -> Generator[Transition]:
    """What a trigger has told over a range of sequences. Nothing is sent.

    Where the changes that it takes are not kept any more, `refold` is to fold the ledger anew, or to say that it was
    told to stop. Raises Unreachable where that would not give what was told.
    """
    with database.connect_sync(name="tidelock triggers") as connection, one_moment(connection):
        found = Replay(connection, name, first, last)
        if found.kept(connection):
            yield from found.transitions(connection, KeptPast(connection))
            return
    # Here, because whoever needs no Spark should not wait for its modules.
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
    """Queue transitions for delivery once more, with the ids they always had; gives how many."""
    if transitions and not transitions[0].trigger_id:
        raise NotFound(f"there is no trigger {name} any more, and so nobody to send to")
    queued = 0
    with database.connect_sync(name="tidelock triggers") as appending, appending.transaction():
        # What the outbox does not have any more.
        queued += append(appending, transitions)
    ids = [transition.event_id for transition in transitions]
    async with await database.connect(name="tidelock triggers") as connection:
        return queued + await redeliver(connection, name, ids)
