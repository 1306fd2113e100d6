"""CloudEvents 1.0, in structured JSON form and in the binary form of HTTP, mapped onto the wire event."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable
from urllib.parse import unquote

import msgspec

from tidelock.decimals import has_long_number
from tidelock.errors import RequestError
from tidelock.ingest.wire import (
    ABSENT,
    KEY_BYTES_MAX,
    NAME_CHARACTERS_MAX,
    OP_MESSAGE,
    OPS,
    WireEvent,
    long_number,
    long_number_in,
)
from tidelock.model import Answer, Problem, Rejected, Verdict

#: attribute or extension -> wire field; other extensions are ignored
_TEXTS = {
    "type": "stream",
    "subject": "customer_ref",
    "source": "source",
    "tenantid": "tenant_id",
    "resourceid": "resource_id",
    "causalitykey": "causality_key",
    "correlationid": "correlation_id",
    "causationid": "causation_id",
    "op": "op",
    "target": "target",
    "reason": "reason",
    "batchid": "batch_id",
}
#: these become idempotency keys, which may be longer than names
_KEYS = ("id", "causationid", "target")
_SENT_AS = dict(zip(WireEvent.__struct_fields__, WireEvent.__struct_encode_fields__, strict=True))
#: a field as named by admission -> the attribute that was sent
_ATTRIBUTES = {
    "idempotencyKey": "id",
    "ts": "time",
    **{_SENT_AS[field]: attribute for attribute, field in _TEXTS.items()},
}
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str | None)
_any = msgspec.json.Decoder(msgspec.Raw)
_encode = msgspec.json.Encoder().encode
_HEADER = b"ce-"
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


def decode_cloudevent(text: bytes | msgspec.Raw) -> WireEvent | Rejected:
    """The wire event of one CloudEvent, or why it is not one. The text must be JSON."""
    try:
        members = _members.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Rejected(Problem("invalid_event", "a CloudEvent is a JSON object"))
    if (problem := long_number(text)) is not None:
        return Rejected(problem)
    try:
        return _map(members)
    except _NotACloudEvent as error:
        return error.rejected()


def binary_attributes(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, bytes]:
    """The attributes that the headers of a request in binary form carry, still encoded."""
    found: dict[str, bytes] = {}
    for name, value in headers:
        if not name.startswith(_HEADER):
            continue
        attribute = name.removeprefix(_HEADER).decode("latin-1")
        if attribute in found:
            raise RequestError(f"the header ce-{attribute} is given twice", field=f"ce-{attribute}")
        found[attribute] = value
    return found


def decode_binary(attributes: dict[str, bytes], content: bytes, media_type: str) -> WireEvent | Rejected:
    """The wire event of one CloudEvent whose attributes are headers and whose data is the body, or why it is not one.

    A body declared as JSON must be JSON.
    """
    try:
        members = {name: msgspec.Raw(_encode(_decoded(name, value))) for name, value in attributes.items()}
        # The body is the data; these are not attributes, even if sent as headers.
        members.pop("data_base64", None)
        members["data"] = _embedded(content, media_type)
        if is_json(media_type) and has_long_number(content):
            return Rejected(long_number_in("data", "data"))
        return _map(members)
    except _NotACloudEvent as error:
        return error.rejected()


def unquoted(value: bytes) -> bytes:
    """The value of a header that may be written as a quoted string."""
    value = value.strip()
    if len(value) > 1 and value.startswith(b'"') and value.endswith(b'"'):
        return _ESCAPED.sub(rb"\1", value[1:-1])
    return value


def is_json(media_type: str) -> bool:
    """Whether data of this type is JSON."""
    return media_type.endswith(("/json", "+json"))


def in_attributes(answer: Answer) -> Answer:
    """The result for CloudEvents: admission names fields of an event, the client knows attributes."""
    if not answer.rejected:
        return answer
    return msgspec.structs.replace(answer, results=[_in_attributes(verdict) for verdict in answer.results])


def _in_attributes(verdict: Verdict) -> Verdict:
    if not isinstance(verdict, Rejected) or verdict.error.field not in _ATTRIBUTES:
        return verdict
    code, message, field = verdict.error.code, verdict.error.message, verdict.error.field
    attribute = _ATTRIBUTES[field]
    if message.startswith(f"{field} "):
        message = attribute + message.removeprefix(field)
    return Rejected(Problem(code, message, attribute))


class _NotACloudEvent(Exception):
    def __init__(self, attribute: str, message: str) -> None:
        super().__init__(message)
        self.attribute = attribute

    def rejected(self) -> Rejected:
        code = "invalid_timestamp" if self.attribute == "time" else "invalid_event"
        return Rejected(Problem(code, str(self), self.attribute))


def _decoded(attribute: str, value: bytes) -> str:
    """The text of a header: in quotes or not, percent-encoded where it is not printable ASCII."""
    value = unquoted(value)
    try:
        # Not every client encodes: Node sends characters of Latin-1 as they are, others send UTF-8.
        text = value.decode()
    except UnicodeDecodeError:
        text = value.decode("latin-1")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise _NotACloudEvent(attribute, f"{attribute} is not UTF-8 in percent-encoding") from None


def _embedded(content: bytes, media_type: str) -> msgspec.Raw:
    """Bytes of a media type as JSON, the same for both forms."""
    if not content:
        return ABSENT
    if is_json(media_type):
        content.decode()  # the decoder skips over strings without looking at their encoding
        return _any.decode(content)
    if media_type.startswith("text/"):
        return msgspec.Raw(_encode(content.decode()))
    return msgspec.Raw(_encode(b64encode(content).decode()))


def _data(members: dict[str, msgspec.Raw]) -> msgspec.Raw:
    data = members.get("data", ABSENT)
    if bytes(members.get("data_base64", ABSENT)) == b"null":
        return data
    if bytes(data) != b"null":
        raise _NotACloudEvent("data_base64", "data_base64 and data are two forms of one thing; send one of them")
    try:
        content = b64decode(_text.decode(members["data_base64"]) or "", validate=True)
    except (msgspec.DecodeError, ValueError):
        raise _NotACloudEvent("data_base64", "data_base64 must be a string in base64, with padding") from None
    media_type = (_string(members, "datacontenttype") or "").partition(";")[0].strip().lower()
    try:
        embedded = _embedded(content, media_type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _NotACloudEvent("data_base64", f"data_base64 does not decode to valid {media_type} in UTF-8") from None
    if is_json(media_type) and has_long_number(content):
        problem = long_number_in("data_base64", "data_base64")
        raise _NotACloudEvent("data_base64", problem.message)
    return embedded


def _map(members: dict[str, msgspec.Raw]) -> WireEvent:
    version = _string(members, "specversion")
    if version != "1.0":
        raise _NotACloudEvent("specversion", f'specversion must be "1.0", not {version!r}')
    key = _key(_required(members, "source"), _required(members, "id"))
    _required(members, "type")
    wire = WireEvent(
        ts=_string(members, "time"),
        idempotency_key=key,
        quantity=members.get("quantity", ABSENT),
        data=_data(members),
    )
    for attribute, field in _TEXTS.items():
        setattr(wire, field, _string(members, attribute))
    if wire.op is not None and wire.op not in OPS:
        raise _NotACloudEvent("op", OP_MESSAGE)
    return wire


def _key(source: str, own: str) -> str:
    if "\0" in own:
        # Escaped inside the key, it would go unnoticed.
        raise _NotACloudEvent("id", "id contains NUL or a lone surrogate")
    key = _encode([source, own])
    if len(key) > KEY_BYTES_MAX:
        raise _NotACloudEvent("id", f"source and id together are longer than {KEY_BYTES_MAX} bytes")
    return key.decode()


def _string(members: dict[str, msgspec.Raw], attribute: str) -> str | None:
    try:
        value: str | None = _text.decode(members[attribute]) if attribute in members else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _NotACloudEvent(attribute, f"{attribute} must be a string") from None
    if value is None:
        return None
    if attribute in _KEYS:
        if len(value.encode()) > KEY_BYTES_MAX:
            raise _NotACloudEvent(attribute, f"{attribute} is longer than {KEY_BYTES_MAX} bytes")
    elif len(value) > NAME_CHARACTERS_MAX:
        raise _NotACloudEvent(attribute, f"{attribute} is longer than {NAME_CHARACTERS_MAX} characters")
    return value


def _required(members: dict[str, msgspec.Raw], attribute: str) -> str:
    value = _string(members, attribute)
    if not value:
        raise _NotACloudEvent(attribute, f"{attribute} is missing or empty; CloudEvents require it")
    return value
