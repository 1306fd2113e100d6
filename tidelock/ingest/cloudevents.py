"""CloudEvents 1.0 in structured JSON form, mapped onto the wire event."""

from __future__ import annotations

import msgspec

from tidelock.ingest.wire import ABSENT, NAME_CHARACTERS_MAX, WireEvent
from tidelock.model import Problem, Rejected

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
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str | None)
_encode = msgspec.json.Encoder().encode


def decode_cloudevent(text: bytes | msgspec.Raw) -> WireEvent | Rejected:
    """The wire event of one CloudEvent, or why it is none. The text must be JSON."""
    try:
        members = _members.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Rejected(Problem("invalid_event", "a CloudEvent is a JSON object"))
    try:
        return _map(members)
    except _NotACloudEvent as error:
        code = "invalid_timestamp" if error.attribute == "time" else "invalid_event"
        return Rejected(Problem(code, str(error), error.attribute))


class _NotACloudEvent(Exception):
    def __init__(self, attribute: str, message: str) -> None:
        super().__init__(message)
        self.attribute = attribute


def _map(members: dict[str, msgspec.Raw]) -> WireEvent:
    version = _string(members, "specversion")
    if version != "1.0":
        raise _NotACloudEvent("specversion", f'specversion must be "1.0", not {version!r}')
    identity = [_required(members, "source"), _required(members, "id")]
    _required(members, "type")
    if "data_base64" in members:
        raise _NotACloudEvent("data_base64", "binary data is not taken; send JSON in data")
    wire = WireEvent(
        ts=_string(members, "time"),
        idempotency_key=_encode(identity).decode(),
        quantity=members.get("quantity", ABSENT),
        data=members.get("data", ABSENT),
    )
    for attribute, field in _TEXTS.items():
        setattr(wire, field, _string(members, attribute))
    return wire


def _string(members: dict[str, msgspec.Raw], attribute: str) -> str | None:
    try:
        value = _text.decode(members[attribute]) if attribute in members else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _NotACloudEvent(attribute, f"{attribute} must be a string") from None
    if value is not None and len(value) > NAME_CHARACTERS_MAX:
        raise _NotACloudEvent(attribute, f"{attribute} is longer than {NAME_CHARACTERS_MAX} characters")
    return value


def _required(members: dict[str, msgspec.Raw], attribute: str) -> str:
    value = _string(members, attribute)
    if not value:
        raise _NotACloudEvent(attribute, f"{attribute} is missing or empty; CloudEvents require it")
    return value
