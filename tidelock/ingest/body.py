"""The body of an ingest request: bytes in any accepted form to one wire event, or one rejection, per event.

The fast path decodes a whole body at once. Only if that fails is it split into events, so that one bad event does not
harm its neighbours.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import zstandard

from tidelock.decimals import has_long_run
from tidelock.errors import InvalidJson, PayloadTooLarge, RequestError, UnsupportedMedia
from tidelock.ingest.cloudevents import decode_binary, decode_cloudevent, is_json
from tidelock.ingest.nesting import cut_below
from tidelock.ingest.wire import WireEvent, decode_event, long_number
from tidelock.model import Problem, Rejected

JSON = "application/json"
NDJSON = "application/x-ndjson"
CLOUDEVENT = "application/cloudevents+json"
CLOUDEVENTS = "application/cloudevents-batch+json"
MEDIA_TYPES = (JSON, NDJSON, CLOUDEVENT, CLOUDEVENTS)
ENCODINGS = ("gzip", "zstd")
KEY_HEADER = "Idempotency-Key"


@dataclass(frozen=True, slots=True)
class Body:
    """What a request carried: `events[i]` answers to `results[i]`."""

    events: list[WireEvent | Rejected]
    #: the text had \\u escapes, so that NUL is possible in it
    escapes: bool


class _Wrapper(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    events: list[WireEvent]


_events = msgspec.json.Decoder(list[WireEvent])
_wrapper = msgspec.json.Decoder(_Wrapper)
_line = msgspec.json.Decoder(WireEvent)
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_raw = msgspec.json.Decoder(msgspec.Raw)

T = TypeVar("T")

_BOM = b"\xef\xbb\xbf"
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_LOW_SURROGATE = re.compile(rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_ESCAPE_LENGTH = 6
_BACKSLASH = 0x5C
# Deeper than any setting of data_depth_max allows, shallower than the decoder's own limit.
_DEPTH_KEPT = 500


def decompress(body: bytes, encoding: str, bytes_max: int) -> bytes:
    """The decompressed body. It never grows past the limit, whatever the compressed data claims."""
    if encoding in ("", "identity"):
        plain = body
    elif encoding == "gzip":
        plain = _gunzip(body, bytes_max)
    elif encoding == "zstd":
        plain = _unzstd(body, bytes_max)
    else:
        raise UnsupportedMedia(f"content encoding {encoding!r} is not supported; use {' or '.join(ENCODINGS)}")
    if len(plain) > bytes_max:
        raise PayloadTooLarge(f"the body is larger than {bytes_max} bytes; split it into smaller requests")
    return plain


def decode(body: bytes, media_type: str, events_max: int) -> Body:
    """One entry per event of the body. Raises RequestError when the body as a whole cannot be read."""
    body = body.removeprefix(_BOM)
    escapes = b"\\u" in body
    if escapes:
        body = _without_lone_surrogates(body)
    if media_type == NDJSON:
        events = _decode_lines(body, events_max)
    elif media_type in MEDIA_TYPES:
        events = _decode_json(_utf8(body), media_type)
    else:
        known = ", ".join(MEDIA_TYPES)
        raise UnsupportedMedia(f"content type {media_type!r} is not supported; send one of {known}")
    if len(events) > events_max:
        raise PayloadTooLarge(f"the request has {len(events)} events; at most {events_max} are accepted per request")
    # Base64 hides escapes inside it.
    return Body(events, escapes or (media_type in (CLOUDEVENT, CLOUDEVENTS) and b"data_base64" in body))


def decode_data(body: bytes, media_type: str, attributes: dict[str, bytes]) -> Body:
    """The one CloudEvent of a request in binary form, whose body is its data."""
    if is_json(media_type) and body:
        body = _without_lone_surrogates(_utf8(body.removeprefix(_BOM)))
        try:
            _parsed(_raw, body)
        except RecursionError:
            body = cut_below(body, _DEPTH_KEPT)
            _parsed(_raw, body)
    elif media_type.startswith("text/"):
        _utf8(body)
    return Body([decode_binary(attributes, body, media_type)], escapes=True)


def with_key(body: Body, key: str) -> Body:
    """The same with the request's key for its only event."""
    if not key:
        raise RequestError(f"{KEY_HEADER} is empty; leave it out, or send a key", field=KEY_HEADER)
    if len(body.events) > 1:
        message = f"{KEY_HEADER} is the key of one event, and here are {len(body.events)}; give each an idempotencyKey"
        raise RequestError(message, field=KEY_HEADER)
    for event in body.events:
        if isinstance(event, Rejected):
            continue
        if event.idempotency_key not in (None, key):
            raise RequestError(f"{KEY_HEADER} and the event's own key differ; send only one", field=KEY_HEADER)
        event.idempotency_key = key
    return body


def _decode_json(body: bytes, media_type: str) -> list[WireEvent | Rejected]:
    try:
        return _decode_shapes(body, media_type)
    except RecursionError:
        return _decode_shapes(cut_below(body, _DEPTH_KEPT), media_type)


def _decode_shapes(body: bytes, media_type: str) -> list[WireEvent | Rejected]:
    first = body.lstrip(b" \t\r\n")[:1]
    if media_type == CLOUDEVENTS:
        if first != b"[":
            raise RequestError(f"{CLOUDEVENTS} is a JSON array of CloudEvents")
        return [decode_cloudevent(raw) for raw in _parsed(_raws, body)]
    if media_type == CLOUDEVENT:
        if first != b"{":
            raise RequestError(f"{CLOUDEVENT} is one CloudEvent, a JSON object; for a list, use {CLOUDEVENTS}")
        _parsed(_members, body)
        return [decode_cloudevent(body)]
    if first == b"[":
        return _decode_array(body)
    if first == b"{":
        return _decode_object(body)
    _parsed(_raw, body)
    raise RequestError('the body is neither an event, an array of events nor {"events": [...]}')


def _decode_array(body: bytes) -> list[WireEvent | Rejected]:
    if has_long_run(body):
        return _decode_each(body)
    try:
        return _events.decode(body)  # type: ignore[return-value]  # a list of events is a list of either
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decode_each(body)


def _decode_each(array: bytes) -> list[WireEvent | Rejected]:
    """One by one, which is slow but finds the bad ones."""
    return [decode_event(raw) for raw in _parsed(_raws, array)]


def _decode_object(body: bytes) -> list[WireEvent | Rejected]:
    try:
        if not has_long_run(body):
            return _wrapper.decode(body).events  # type: ignore[return-value]
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    members = _parsed(_members, body)
    if "events" not in members:
        return [decode_event(body)]
    if unknown := sorted(members.keys() - {"events"}):
        raise RequestError(f"unknown field {unknown[0]!r} next to events", field=unknown[0])
    events = bytes(members["events"])
    if not events.startswith(b"["):
        raise RequestError("events must be an array", field="events")
    return _decode_each(events)


def _decode_lines(body: bytes, events_max: int) -> list[WireEvent | Rejected]:
    lines = [line for line in body.split(b"\n") if line and not line.isspace()]
    if len(lines) > events_max:
        raise PayloadTooLarge(f"the request has {len(lines)} events; at most {events_max} are accepted per request")
    if has_long_run(body):
        problems = map(long_number, lines)
        return [
            _decode_line(line) if problem is None else Rejected(problem)
            for line, problem in zip(lines, problems, strict=True)
        ]
    return [_decode_line(line) for line in lines]


def _decode_line(line: bytes) -> WireEvent | Rejected:
    try:
        line.decode()  # the decoder skips over data without looking at its encoding
    except UnicodeDecodeError as error:
        return Rejected(Problem("invalid_json", f"this line is not UTF-8: {error.reason} at byte {error.start}"))
    try:
        return _line.decode(line)
    except RecursionError:
        return decode_event(cut_below(line, _DEPTH_KEPT))
    except msgspec.DecodeError:
        return decode_event(line)


def _parsed(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidJson(f"the body is not JSON: {error}") from None


def _utf8(body: bytes) -> bytes:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise InvalidJson(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    return body


def _without_lone_surrogates(body: bytes) -> bytes:
    """Lone surrogates become NUL, which is refused event by event; the decoder would refuse the whole body."""
    parts: list[bytes] = []
    kept_from = paired_until = 0
    for found in _SURROGATE.finditer(body):
        start = found.start()
        if start < paired_until or _is_escaped(body, start):
            continue
        high = found[0][3:4] in b"89abAB"
        if high and _LOW_SURROGATE.match(body, start + _ESCAPE_LENGTH):
            paired_until = start + 2 * _ESCAPE_LENGTH
            continue
        parts += body[kept_from:start], b"\\u0000"
        kept_from = start + _ESCAPE_LENGTH
    return b"".join([*parts, body[kept_from:]]) if parts else body


def _is_escaped(body: bytes, position: int) -> bool:
    """Whether the backslash there is itself escaped, and so does not start an escape."""
    before = position
    while before and body[before - 1] == _BACKSLASH:
        before -= 1
    return (position - before) % 2 == 1


def _gunzip(body: bytes, bytes_max: int) -> bytes:
    plain = b""
    while body:
        inflate = zlib.decompressobj(wbits=31)
        try:
            plain += inflate.decompress(body, bytes_max + 1 - len(plain))
        except zlib.error as error:
            raise RequestError(f"the body is not valid gzip: {error}") from None
        if len(plain) > bytes_max:
            break
        if not inflate.eof:
            raise RequestError("the gzip body is truncated")
        body = inflate.unused_data.lstrip(b"\0")
    return plain


def _unzstd(body: bytes, bytes_max: int) -> bytes:
    unpack = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    try:
        # The stream reader can be stopped early, but it accepts a truncated frame as complete.
        with unpack.stream_reader(body, read_across_frames=True) as reader:
            plain = reader.read(bytes_max + 1)
        while len(plain) <= bytes_max and body:
            frame = unpack.decompressobj()
            frame.decompress(body)
            if not frame.eof:
                raise RequestError("the zstd body is truncated")
            body = frame.unused_data
    except zstandard.ZstdError as error:
        raise RequestError(f"the body is not valid zstd: {error}") from None
    return plain
