"""Execution: the current schema, queries answered over it, and the payloads that any operation gives.

Only the transports know how a request arrived and how payloads are sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence

import psycopg

from tidelock.errors import Failed, Overflowed, TidelockError
from tidelock.graphql.documents import Documents, Operation
from tidelock.graphql.fields import CallField, ChangesField, TypenameField
from tidelock.graphql.queries import QueryAnswer, asks_tables
from tidelock.graphql.requests import VALIDATION_FAILED, Request, refusal
from tidelock.graphql.schema import Further, make_schema
from tidelock.graphql.selections import Selection
from tidelock.http.access import Grant
from tidelock.postgres.pool import Connections, SingleFlight
from tidelock.settings import Settings
from tidelock.tables import ALWAYS
from tidelock.views.catalog import CatalogReader, TableCatalog, silent_tables
from tidelock.views.hub import Hub
from tidelock.views.views import ViewEvent

#: scopes, of which one admits a client
SCOPES = ("read", "triggers")
#: answers a field that is not about a table, with JSON
Answering = Callable[[CallField], Awaitable[bytes]]

logger = logging.getLogger(__name__)

#: sends payloads to the client; waits while the client does not read
SendPayloads = Callable[[Sequence[bytes]], Awaitable[None]]
#: ends the client, whatever it waits for
End = Callable[[Exception], None]

# Bytes sent to the client at a time, unless one payload is larger: little waits for a slow client.
_BATCH_BYTES = 64 * 1024


def check_allowed(operation: Operation, grant: Grant, *, mutations: bool = True) -> None:
    """Raises Forbidden, or RequestRefused for a mutation on a transport that does not allow it.

    Fields that are not about a table need their own scope, checked by their handler.
    """
    if operation.kind == "mutation" and not mutations:
        raise refusal(VALIDATION_FAILED, "a mutation must be sent by POST or over WebSocket")
    if not all(isinstance(field, CallField | TypenameField) for field in operation.fields):
        grant.need("read")


class GraphQL:
    """Reads requests and answers queries. Subscriptions are for clients that stay connected."""

    def __init__(
        self, reads: Connections, short: Connections, settings: Settings, further: Further | None = None
    ) -> None:
        """`further` are fields besides those of tables."""
        self._reads = reads
        self._settings = settings
        self._further = further
        self._catalogs = CatalogReader(settings.definitions)
        self._look = SingleFlight(lambda: short.ask(self._catalogs.read))
        self._documents: Documents | None = None
        self._catalog: TableCatalog | None = None
        self._making = asyncio.Lock()
        self._describing = asyncio.Lock()

    async def current(self) -> Documents:
        """The documents over the current tables: a different object when definitions have changed. Raises
        Unreachable.
        """
        catalog = await self._look()
        async with self._making:
            if self._documents is None or self._catalog is not catalog:
                # In a thread, so that others continue: a schema of many tables takes a while.
                self._documents = await asyncio.to_thread(self._make, catalog)
                self._catalog = catalog
            return self._documents

    async def prepare(self, request: Request) -> Operation:
        """The operation of a request, over the current tables. Raises RequestRefused or Unreachable."""
        return await (await self.current()).prepare(request)

    async def execute(self, operation: Operation, tenant_id: str | None, answering: Answering | None = None) -> bytes:
        """The payload `{"data":{...}}` of a query or mutation, with the rows of one tenant or of all (None).

        `answering` answers fields that are not about a table. Raises RequestRefused, Unreachable, or what `answering`
        raises.
        """
        called: dict[str, bytes] = {}
        for field in operation.fields:
            if isinstance(field, CallField):
                if answering is None:
                    raise refusal(VALIDATION_FAILED, f"nothing here answers {field.asked}")
                # One after another, as for mutations; and only once, however often the tables are queried.
                called[field.name] = await answering(field)
        while True:
            fields = operation.fields
            answer = QueryAnswer(tenant_id, bytes_max=self._settings.page_bytes_max)
            await answer.read_schema(fields, self._describing)
            for name, value in called.items():
                answer.put(name, value)
            if not asks_tables(fields) or await self._read_tables(answer, operation):
                return answer.encode(fields)
            operation = await self.prepare(operation.request)

    async def _read_tables(self, answer: QueryAnswer, operation: Operation) -> bool:
        """Whether it could be executed with the operation's catalog."""
        async with self._reads.lend() as connection:
            try:
                # Before the fold has run, tables are declared but do not exist.
                await answer.read_tables(
                    connection, operation.fields, there=ALWAYS if operation.version is None else None
                )
            except psycopg.ProgrammingError:
                if (await self._catalogs.read(connection)).version == operation.version:
                    raise
                # The fold has changed a table's shape meanwhile.
                return False
        return True

    def _make(self, catalog: TableCatalog) -> Documents:
        schema = make_schema(catalog.tables.values(), silent_tables(catalog), self._further)
        bytes_max = self._settings.graphql_document_bytes_max
        return Documents(schema, document_bytes_max=bytes_max, version=catalog.version)


class Operations:
    """Executes requests of clients that stay."""

    def __init__(self, graphql: GraphQL, hub: Hub, answering: Callable[[Grant], Answering]) -> None:
        """`answering` returns the handler of fields that are not about a table, for clients with access."""
        self._graphql = graphql
        self._hub = hub
        self._answering = answering

    async def run(
        self, request: Request, grant: Grant, send: SendPayloads, end: End, *, mutations: bool = True
    ) -> None:
        """Send all payloads of a request. A subscription ends only by an error: raises TidelockError.

        An OSError from `send`, when the client is gone, is raised too. `end` is called if too much is queued for a
        client that does not read.
        """
        try:
            operation = await self._graphql.prepare(request)
            check_allowed(operation, grant, mutations=mutations)
            tenant_id = grant.reads(None)
            if operation.kind == "subscription":
                (field,) = operation.fields
                assert isinstance(field, ChangesField), "a subscription has nothing else"
                await self._follow(field, tenant_id, send, end)
            else:
                await send([await self._graphql.execute(operation, tenant_id, self._answering(grant))])
        except (TidelockError, OSError):
            raise
        except Exception as error:
            logger.error("a GraphQL operation failed", exc_info=error)
            raise Failed from None

    async def _follow(self, field: ChangesField, tenant_id: str | None, send: SendPayloads, end: End) -> None:
        subscription = await self._hub.subscribe(field.table, field.where, tenant_id, field.after)

        def ended(why: asyncio.Task[TidelockError]) -> None:
            # Everything else is reported by the next `take`, which a blocked sender does not reach.
            if not why.cancelled() and isinstance(error := why.result(), Overflowed):
                end(error)

        watching = asyncio.create_task(subscription.wait_ended())
        watching.add_done_callback(ended)
        try:
            while True:
                for payloads in _batches(field.selection, await subscription.take()):
                    await send(payloads)
        finally:
            watching.cancel()
            subscription.close()


def _batches(selection: Selection, events: Sequence[ViewEvent]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for event in events:
        payload = selection.encode(event)
        size += len(payload)
        if size > _BATCH_BYTES and batch:
            yield batch
            batch, size = [], len(payload)
        batch.append(payload)
    yield batch
