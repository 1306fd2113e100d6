"""CloudEvents 1.0 in structured JSON form, mapped onto the wire event."""

from __future__ import annotations

import msgspec

from tidelock.ingest.wire import ABSENT, KEY_BYTES_MAX, NAME_CHARACTERS_MAX, WireEvent, long_number
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
}
#: these are keys of events, which are longer than names
_KEYS = ("id", "causationid")
_SENT_AS = dict(zip(WireEvent.__struct_fields__, WireEvent.__struct_encode_fields__, strict=True))
#: a field as admission names it -> the attribute that was sent
_ATTRIBUTES = {
    "idempotencyKey": "id",
    "ts": "time",
    **{_SENT_AS[field]: attribute for attribute, field in _TEXTS.items()},
}
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str | None)
_encode = msgspec.json.Encoder().encode


def decode_cloudevent(text: bytes | msgspec.Raw) -> WireEvent | Rejected:
    """The wire event of one CloudEvent, or why it is none. The text must be JSON."""
    try:
        members = _members.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Rejected(Problem("invalid_event", "a CloudEvent is a JSON object"))
    if (problem := long_number(text)) is not None:
        return Rejected(problem)
    try:
        return _map(members)
    except _NotACloudEvent as error:
        code = "invalid_timestamp" if error.attribute == "time" else "invalid_event"
        return Rejected(Problem(code, str(error), error.attribute))


def in_attributes(answer: Answer) -> Answer:
    """The answer to CloudEvents: admission speaks of an event's fields, the client of attributes."""
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


def _map(members: dict[str, msgspec.Raw]) -> WireEvent:
    version = _string(members, "specversion")
    if version != "1.0":
        raise _NotACloudEvent("specversion", f'specversion must be "1.0", not {version!r}')
    key = _key(_required(members, "source"), _required(members, "id"))
    _required(members, "type")
    if "data_base64" in members:
        raise _NotACloudEvent("data_base64", "binary data is not taken; send JSON in data")
    wire = WireEvent(
        ts=_string(members, "time"),
        idempotency_key=key,
        quantity=members.get("quantity", ABSENT),
        data=members.get("data", ABSENT),
    )
    for attribute, field in _TEXTS.items():
        setattr(wire, field, _string(members, attribute))
    return wire


def _key(source: str, own: str) -> str:
    if "\0" in own:
        # Escaped inside the key it would not be seen any more.
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
