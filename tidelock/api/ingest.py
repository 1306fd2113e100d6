"""The ingest route: bytes of an HTTP request to verdicts. Plain ASGI, because the framework costs more than
the route.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tidelock.api.activity import ActivityLog
from tidelock.api.metrics import Metrics
from tidelock.decimals import has_long_run
from tidelock.errors import Overloaded, PayloadTooLarge, RequestError, TidelockError, UnsupportedMedia
from tidelock.http.access import Access
from tidelock.http.problems import problem_of, unexpected
from tidelock.ingest.body import (
    CLOUDEVENT,
    CLOUDEVENTS,
    JSON,
    KEY_HEADER,
    Body,
    decode,
    decode_data,
    decompress,
    with_key,
)
from tidelock.ingest.cloudevents import binary_attributes, in_attributes, is_json, unquoted
from tidelock.ingest.intake import Intake
from tidelock.settings import Settings

# Decompressing more than this takes milliseconds: in a thread, so that other requests continue.
_UNPACKED_INLINE_BYTES = 256 * 1024
# Above this size, scanning a body for escapes takes milliseconds.
_ESCAPED_INLINE_BYTES = 1024 * 1024
_KEY = KEY_HEADER.lower().encode()
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
        form = _Form.of(scope["headers"], headers)
        with self._budget.hold() as held:
            try:
                body = await self._plain_body(headers, receive, held)
            except ClientDisconnect:
                return
            sent = await self._decode(body, form)
            if form.key is not None:
                sent = with_key(sent, form.key)
            answer = await self._intake.take(sent.events, grant.writer(), escapes=sent.escapes)
        if form.attributes is not None or form.media_type in (CLOUDEVENT, CLOUDEVENTS):
            answer = in_attributes(answer)
        self._metrics.answered(answer)
        self._activity.answered(grant.tenant_id, answer)
        encoded = _encode(answer)
        length = str(len(encoded)).encode()
        start_headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": start_headers})
        await send({"type": "http.response.body", "body": encoded})

    async def _decode(self, body: bytes, form: _Form) -> Body:
        if len(body) > _ESCAPED_INLINE_BYTES and (b"\\u" in body or has_long_run(body)):
            # Escapes, and events next to a long number, are checked one by one: in a thread, so that others continue.
            return await asyncio.to_thread(form.decode, body, self._events_max)
        return form.decode(body, self._events_max)

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
        """The body as it arrives, and no chunk beyond the limit."""
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
        return PayloadTooLarge(f"the body is larger than {self._bytes_max} bytes; split it into smaller requests")


class IngestBypass:
    """Sends events straight to ingest, bypassing the framework, which costs more than the route.

    Everything else goes to the application. Both report errors alike.
    """

    path = "/v1/events"
    #: its name in the metrics, like those of the framework's routes
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
            # Nothing is sent before everything that can fail is done.
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
        """Raises Overloaded if there is no room. A single request always has room, or it could never be accepted."""
        budget = self._budget
        if budget.bytes + size > budget.bytes_max and budget.bytes > self.bytes:
            raise Overloaded(f"{budget.bytes} bytes of other requests are being processed; retry later")
        budget.bytes += size
        self.bytes += size


class BodyBudget:
    """The bytes that all requests may hold together, from the first chunk to the response."""

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


class _Form(NamedTuple):
    """What a request's headers say about its body."""

    media_type: str
    #: of a CloudEvent in binary form
    attributes: dict[str, bytes] | None
    #: the key of the request's only event
    key: str | None

    @classmethod
    def of(cls, sent: Sequence[tuple[bytes, bytes]], headers: Mapping[bytes, bytes]) -> _Form:
        media_type, charset = _media_type(headers.get(b"content-type", b""))
        binary = b"ce-specversion" in headers and not media_type.startswith("application/cloudevents")
        # Bytes of other types are kept as they are, whatever they mean.
        readable = not binary or is_json(media_type) or media_type.startswith("text/")
        if readable and charset not in _CHARSETS:
            raise UnsupportedMedia(f"charset {charset[:60]!r} is not supported; send UTF-8")
        return cls(media_type, binary_attributes(sent) if binary else None, _key(sent, headers))

    def decode(self, body: bytes, events_max: int) -> Body:
        if self.attributes is None:
            return decode(body, self.media_type, events_max)
        return decode_data(body, self.media_type, self.attributes)


def _media_type(content_type: bytes) -> tuple[str, str]:
    """The media type and the charset; the default is JSON."""
    if not content_type.strip():
        return JSON, "utf-8"
    media_type, *parameters = content_type.decode("latin-1").split(";")
    charset = "utf-8"
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            charset = value.strip().strip('"').lower()
    return media_type.strip().lower(), charset


def _key(sent: Sequence[tuple[bytes, bytes]], headers: Mapping[bytes, bytes]) -> str | None:
    """The value of `Idempotency-Key`, which some write as a quoted string."""
    if _KEY not in headers:
        return None
    if sum(name == _KEY for name, _ in sent) > 1:
        raise RequestError(f"{KEY_HEADER} is given twice", field=KEY_HEADER)
    try:
        key = unquoted(headers[_KEY]).decode()
    except UnicodeDecodeError:
        raise RequestError(f"{KEY_HEADER} is not UTF-8", field=KEY_HEADER) from None
    return key
