"""The ingest route: bytes of an HTTP request to verdicts. Plain ASGI, because nothing is faster than nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from tidelock.decimals import has_long_run
from tidelock.errors import PayloadTooLarge, UnsupportedMedia
from tidelock.ingest.body import CLOUDEVENT, CLOUDEVENTS, JSON, Body, decode, decompress
from tidelock.ingest.cloudevents import in_attributes
from tidelock.ingest.intake import Intake
from tidelock.ops.access import Access
from tidelock.ops.activity import ActivityLog
from tidelock.ops.metrics import Metrics
from tidelock.ops.room import Held, Room
from tidelock.settings import Settings

# Unpacking more than this takes milliseconds: elsewhere, so that other requests go on.
_UNPACKED_INLINE_BYTES = 256 * 1024
# Above this, looking through the escapes of a body takes milliseconds.
_ESCAPED_INLINE_BYTES = 1024 * 1024
_CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")

_encode = msgspec.json.Encoder().encode


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
        self._room = Room(settings.queue_bytes_max)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        grant = (await self._access.grant(headers, fresh=False)).need("ingest")
        media_type = _media_type(headers.get(b"content-type", b""))
        with self._room.hold() as held:
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

    async def _plain_body(self, headers: Mapping[bytes, bytes], receive: Receive, held: Held) -> bytes:
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

    async def _body(self, receive: Receive, held: Held) -> bytes:
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
