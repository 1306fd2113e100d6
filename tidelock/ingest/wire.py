"""The wire: one event as a producer writes it, decoded but not yet judged."""

from __future__ import annotations

import re
from typing import Annotated, get_args

import msgspec

from tidelock.decimals import NUMBER_CHARACTERS_MAX, has_long_number
from tidelock.model import Op, Problem, Rejected

ABSENT = msgspec.Raw(b"null")

#: Aliases of fields, and the fields they stand for.
ALIASES = {"metric": "stream", "occurredAt": "ts", "meta": "data", "payload": "data"}


NAME_CHARACTERS_MAX = 255
KEY_BYTES_MAX = 1024

# Lengths are checked while decoding: that costs nothing per event.
_Name = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)]
_Key = Annotated[str, msgspec.Meta(max_length=KEY_BYTES_MAX)]

OPS: tuple[str, ...] = get_args(Op)
OP_MESSAGE = "op is one of " + ", ".join(f'"{op}"' for op in OPS)


class WireEvent(msgspec.Struct, forbid_unknown_fields=True, rename="camel", gc=False):
    """Every field a producer may send; null means absent. Numbers and data stay text: they must not be rounded."""

    tenant_id: _Name | None = None
    stream: _Name | None = None
    metric: _Name | None = None
    customer_ref: _Name | None = None
    resource_id: _Name | None = None
    ts: str | int | None = None
    occurred_at: str | int | None = None
    quantity: msgspec.Raw = ABSENT
    data: msgspec.Raw = ABSENT
    meta: msgspec.Raw = ABSENT
    payload: msgspec.Raw = ABSENT
    op: Op | None = None
    causality_key: _Name | None = None
    correlation_id: _Name | None = None
    causation_id: _Key | None = None
    idempotency_key: _Key | None = None
    source: _Name | None = None
    target: _Key | None = None
    reason: _Name | None = None
    batch_id: _Name | None = None


FIELDS = WireEvent.__struct_encode_fields__

_event = msgspec.json.Decoder(WireEvent)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_UNKNOWN = re.compile(r"unknown field `(.*?)`", re.DOTALL)
#: these are keys, which may be longer than names
KEY_FIELDS = ("idempotencyKey", "causationId", "target")
_PATH = re.compile(r" - at `\$\.([A-Za-z]+)`$")


def decode_event(text: bytes | msgspec.Raw) -> WireEvent | Rejected:
    """One event from its JSON text, or why it is not one. The text must be JSON: see `body`."""
    if (problem := long_number(text)) is not None:
        return Rejected(problem)
    try:
        return _event.decode(text)
    except msgspec.ValidationError as error:
        return Rejected(_explain(str(error)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Rejected(Problem("invalid_json", f"this event is not JSON: {error}"))


def long_number(text: bytes | msgspec.Raw) -> Problem | None:
    """The problem of an event with a number too long for readers, in any member; None if it has none."""
    if not has_long_number(bytes(text)):
        return None
    try:
        members = _members.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # Other problems are reported by the decoder.
    name = next((name for name, raw in members.items() if has_long_number(bytes(raw))), None)
    return long_number_in(name or "the event", name)


def long_number_in(what: str, field: str | None) -> Problem:
    return Problem(
        "invalid_event",
        f"{what} contains a number longer than {NUMBER_CHARACTERS_MAX} characters; send it as a string",
        field,
    )


def _explain(message: str) -> Problem:
    """A problem for people from msgspec's message, which names type and path."""
    if unknown := _UNKNOWN.search(message):
        name = unknown[1]
        return Problem("invalid_event", f"unknown field {name!r}; known fields: {', '.join(FIELDS)}", name)
    path = _PATH.search(message)
    if path is None:
        return Problem("invalid_event", 'an event is a JSON object such as {"stream": "api_calls"}')
    field = path[1]
    what = message[: path.start()]
    if ALIASES.get(field, field) == "ts":
        return Problem("invalid_timestamp", "a timestamp is an RFC 3339 string or integer epoch milliseconds", field)
    if "of length <=" in what:
        limit = KEY_BYTES_MAX if field in KEY_FIELDS else NAME_CHARACTERS_MAX
        return Problem("invalid_event", f"{field} is longer than {limit} characters", field)
    if field == "op":
        return Problem("invalid_event", OP_MESSAGE, field)
    return Problem("invalid_event", f"{field}: {what[0].lower()}{what[1:]}", field)
