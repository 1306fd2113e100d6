"""The ingest route: bytes of an HTTP request to verdicts. Plain ASGI, because nothing is faster than nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tidelock.api.activity import ActivityLog
from tidelock.api.metrics import Metrics
from tidelock.decimals import has_long_run
from tidelock.errors import Overloaded, PayloadTooLarge, TidelockError, UnsupportedMedia
from tidelock.http.access import Access
from tidelock.http.problems import problem_of, unexpected
from tidelock.ingest.body import CLOUDEVENT, CLOUDEVENTS, JSON, Body, decode, decompress
from tidelock.ingest.cloudevents import in_attributes
from tidelock.ingest.intake import Intake
from tidelock.settings import Settings

# Unpacking more than this takes milliseconds: elsewhere, so that other requests go on.
_UNPACKED_INLINE_BYTES = 256 * 1024
# Above this, looking through the escapes of a body takes milliseconds.
_ESCAPED_INLINE_BYTES = 1024 * 1024
_CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")

_encode = msgspec.json.Encoder().encode

logger = logging.getLogger(__name__)


class IngestRoute:
    """`POST /v1/events`."""

    def __init__(
        self, intake: Intake, access: Access, metrics: Metrics, activity: ActivityLog, settings: Settings
    ) -> None:
        self._intake = intake
        self._access = access
        self._metrics = metrics
        self._activity = activity
        self._bytes_max = settings.request_bytes_max
        self._events_max = settings.request_events_max
        self._budget = BodyBudget(settings.queue_bytes_max)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        grant = (await self._access.grant(headers, fresh=False)).need("ingest")
        media_type = _media_type(headers.get(b"content-type", b""))
        with self._budget.hold() as held:
            try:
                body = await self._plain_body(headers, receive, held)
            except ClientDisconnect:
                return
            sent = await self._decode(body, media_type)
            answer = await self._intake.take(sent.events, grant.writer(), escapes=sent.escapes)
        if media_type in (CLOUDEVENT, CLOUDEVENTS):
            answer = in_attributes(answer)
        self._metrics.answered(answer)
        self._activity.answered(grant.tenant_id, answer)
        encoded = _encode(answer)
        length = str(len(encoded)).encode()
        start_headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": start_headers})
        await send({"type": "http.response.body", "body": encoded})

    async def _decode(self, body: bytes, media_type: str) -> Body:
        if len(body) > _ESCAPED_INLINE_BYTES and (b"\\u" in body or has_long_run(body)):
            # Escapes, and events beside a long number, are looked at one by one: elsewhere, so that others go on.
            return await asyncio.to_thread(decode, body, media_type, self._events_max)
        return decode(body, media_type, self._events_max)

    async def _plain_body(self, headers: Mapping[bytes, bytes], receive: Receive, held: HeldBytes) -> bytes:
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > self._bytes_max:
            raise self._too_large()
        body = await self._body(receive, held)
        encoding = headers.get(b"content-encoding", b"").strip().lower().decode("latin-1")
        if encoding in ("", "identity"):
            return decompress(body, encoding, self._bytes_max)
        if len(body) <= _UNPACKED_INLINE_BYTES:
            plain = decompress(body, encoding, self._bytes_max)
        else:
            plain = await asyncio.to_thread(decompress, body, encoding, self._bytes_max)
        held.add(len(plain))
        return plain

    async def _body(self, receive: Receive, held: HeldBytes) -> bytes:
        """The body as it comes, and not a chunk more than is taken."""
        chunks: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > self._bytes_max:
                raise self._too_large()
            held.add(len(chunk))
            chunks.append(chunk)
            more = message.get("more_body", False)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"the body is larger than {self._bytes_max} bytes; send it in smaller requests")


class IngestBypass:
    """Sends events straight to ingest, past the framework, which costs more than the route does.

    Everything else goes to the application. Both answer errors alike.
    """

    path = "/v1/events"
    #: what the metrics call it, as they do the framework's routes
    path_format = path

    def __init__(self, app: ASGIApp, ingest: IngestRoute, retry_after_s: int) -> None:
        self._app = app
        self._ingest = ingest
        self._retry_after_s = retry_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self.path or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        scope["route"] = self
        try:
            # Nothing is sent before everything that may fail is done.
            await self._ingest(scope, receive, send)
        except Exception as error:
            await self._refusal(error)(scope, receive, send)

    def _refusal(self, error: Exception) -> Response:
        if isinstance(error, TidelockError):
            return problem_of(error, self._retry_after_s)
        logger.error("a request failed unexpectedly", exc_info=error)
        return unexpected()


class HeldBytes:
    """What one request holds of the budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.bytes = 0

    def add(self, size: int) -> None:
        """Raises Overloaded when there is no room. One request alone always has it, or it would never be taken."""
        budget = self._budget
        if budget.bytes + size > budget.bytes_max and budget.bytes > self.bytes:
            raise Overloaded(f"{budget.bytes} bytes of other requests are under way; send the request again later")
        budget.bytes += size
        self.bytes += size


class BodyBudget:
    """All the bytes that requests may hold together, from the first chunk to the answer."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0

    @contextmanager
    def hold(self) -> Iterator[HeldBytes]:
        held = HeldBytes(self)
        try:
            yield held
        finally:
            self.bytes -= held.bytes


def _media_type(content_type: bytes) -> str:
    """The media type without parameters; none given is JSON."""
    if not content_type.strip():
        return JSON
    media_type, *parameters = content_type.decode("latin-1").split(";")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        charset = value.strip().strip('"').lower()
        if name.strip().lower() == "charset" and charset not in _CHARSETS:
            raise UnsupportedMedia(f"charset {charset[:60]!r} is not taken; send UTF-8")
    return media_type.strip().lower()
