"""GraphQL, whatever it comes by: the schema of now, and queries answered over it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import psycopg

from tidelock.fold.tables import ALWAYS
from tidelock.live.documents import Documents, Operation
from tidelock.live.fields import Call, Typename
from tidelock.live.queries import Answer, asks_tables
from tidelock.live.refusals import VALIDATION_FAILED, refusal
from tidelock.live.requests import Request
from tidelock.live.schema import Further, make_schema, silent_tables
from tidelock.live.shapes import Shape, Shapes
from tidelock.ops.access import Grant
from tidelock.postgres.pool import Connections, SingleFlight
from tidelock.settings import Settings

#: scopes, of which one lets a client in
SCOPES = ("read", "triggers")
#: answers a field that is about no table, with JSON
Answering = Callable[[Call], Awaitable[bytes]]


def check_allowed(operation: Operation, grant: Grant, *, mutations: bool = True) -> None:
    """Raises Forbidden, or Refused of a mutation by a way that takes none.

    What is about no table needs a scope of its own, which whoever answers it knows.
    """
    if operation.kind == "mutation" and not mutations:
        raise refusal(VALIDATION_FAILED, "a mutation is sent by POST, or by WebSocket")
    if not all(isinstance(field, Call | Typename) for field in operation.fields):
        grant.need("read")


class GraphQL:
    """Reads requests and answers queries. Subscriptions are for those who can stay."""

    def __init__(
        self, reads: Connections, looks: Connections, settings: Settings, further: Further | None = None
    ) -> None:
        """`further` are fields beside those of tables."""
        self._reads = reads
        self._settings = settings
        self._further = further
        self._shapes = Shapes(settings.definitions)
        self._look = SingleFlight(lambda: looks.ask(self._shapes.read))
        self._documents: Documents | None = None
        self._shape: Shape | None = None
        self._making = asyncio.Lock()
        self._describing = asyncio.Lock()

    async def current(self) -> Documents:
        """The documents over the tables of now: another object when definitions have changed. Raises Unreachable."""
        shape = await self._look()
        async with self._making:
            if self._documents is None or self._shape is not shape:
                # Elsewhere, so that others go on: a schema of many tables takes a while.
                self._documents = await asyncio.to_thread(self._make, shape)
                self._shape = shape
            return self._documents

    async def prepare(self, request: Request) -> Operation:
        """The operation that a request asks for, over the tables of now. Raises Refused, or Unreachable."""
        return await (await self.current()).prepare(request)

    async def execute(self, operation: Operation, tenant_id: str | None, answering: Answering | None = None) -> bytes:
        """The payload `{"data":{...}}` of a query or mutation, with the rows of one tenant or of every one (None).

        `answering` answers what is about no table. Raises Refused, Unreachable, or what that raises.
        """
        called: dict[str, bytes] = {}
        for field in operation.fields:
            if isinstance(field, Call):
                if answering is None:
                    raise refusal(VALIDATION_FAILED, f"nobody here answers {field.asked}")
                # One after another, as mutations are; and once, however often tables are asked.
                called[field.name] = await answering(field)
        while True:
            fields = operation.fields
            answer = Answer(tenant_id, bytes_max=self._settings.page_bytes_max)
            await answer.read_schema(fields, self._describing)
            for name, value in called.items():
                answer.put(name, value)
            if not asks_tables(fields) or await self._read_tables(answer, operation):
                return answer.encode(fields)
            operation = await self.prepare(operation.request)

    async def _read_tables(self, answer: Answer, operation: Operation) -> bool:
        """Whether it could be done with the shapes that the operation is for."""
        async with self._reads.lend() as connection:
            try:
                # Before the fold has run, tables are declared but not there.
                await answer.read_tables(
                    connection, operation.fields, there=ALWAYS if operation.version is None else None
                )
            except psycopg.ProgrammingError:
                if (await self._shapes.read(connection)).version == operation.version:
                    raise
                # The fold has given a table another shape meanwhile.
                return False
        return True

    def _make(self, shape: Shape) -> Documents:
        schema = make_schema(shape.tables.values(), silent_tables(shape), self._further)
        bytes_max = self._settings.graphql_document_bytes_max
        return Documents(schema, document_bytes_max=bytes_max, version=shape.version)
