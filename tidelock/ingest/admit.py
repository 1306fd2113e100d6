"""Admission: judge one event as sent, without I/O and without a clock.

Whether a timestamp is in the future is decided by the sequencer, which has the clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import msgspec

from tidelock.columns import KEY_ENVELOPE
from tidelock.decimals import NUMBER_CHARACTERS_MAX
from tidelock.definitions import Definitions, Stream
from tidelock.definitions.rowkeys import MissingKeyColumn, row_key
from tidelock.ingest.identity import Salts, canonical, canonical_correction, content_hash, identity_digest
from tidelock.ingest.nesting import depth
from tidelock.ingest.wire import ABSENT, ALIASES, KEY_BYTES_MAX, KEY_FIELDS, WireEvent, long_number_in
from tidelock.instants import format_nine, nine_digits, parse_epoch_ms, parse_rfc3339
from tidelock.model import ALL_TENANTS, CONTROL, CORRECTIONS, DEFAULT_TENANT, Event, KeySource, Op, Problem, Rejected
from tidelock.quantities import normal_quantity

# A B-tree entry of Postgres holds 2,704 bytes; the slice index has these three names in one.
SLICE_BYTES_MAX = 2600

_text = msgspec.json.Decoder(str)
_ESCAPES = re.compile(rb"\\(?:u0000|.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Writer:
    """The sender: the tenant it may write (`*`: any) and the streams (None: any)."""

    tenant_id: str = ALL_TENANTS
    streams: frozenset[str] | None = None


class _Refused(Exception):
    """Carries the problem from the place it was found to the verdict."""

    def __init__(self, code: str, message: str, field: str | None) -> None:
        self.problem = Problem(code, message, field)


class _Place(NamedTuple):
    """What holds for events of one tenant and stream; most events of a request share it."""

    tenant_id: str
    stream: str
    #: the stream's definition, if it has a key
    keyed: Stream | None
    #: a customerRef of at most this many characters fits into the slice index, whatever they are
    customer_characters: int


@dataclass(slots=True)
class Admission:
    """The rules by which the events of one request are admitted."""

    definitions: Definitions
    salts: Salts
    streams_open: bool
    event_bytes_max: int
    data_depth_max: int
    writer: Writer = field(default_factory=Writer)
    #: the request contained \\u escapes, so NUL is possible
    escapes: bool = True
    _places: dict[tuple[str | None, ...], _Place] = field(default_factory=dict)

    def admit(self, wire: WireEvent) -> Event | Rejected:
        """The event the ledger records, or why not."""
        try:
            return self._admit(wire)
        except _Refused as refused:
            return Rejected(refused.problem)

    def _admit(self, wire: WireEvent) -> Event:
        # Every event passes through here, so what is constant for a request is looked up and absent fields cost no
        # call.
        place = self._places.get((wire.tenant_id, wire.stream, wire.metric)) or self._place(wire)
        tenant_id, stream, keyed, customer_characters = place
        customer_ref, resource_id = wire.customer_ref, wire.resource_id
        if customer_ref is not None and len(customer_ref) > customer_characters:
            _check_slice(tenant_id, stream, customer_ref)
        if wire.idempotency_key is not None or wire.causation_id is not None or wire.target is not None:
            _check_keys(wire)
        data = self._data(wire)
        if self.escapes:
            _refuse_nul(wire, data)
        occurred_at = _instant(wire)
        quantity = None if wire.quantity is ABSENT else _quantity(wire.quantity)
        op, target, key_text = wire.op or "upsert", wire.target, None
        if op in CORRECTIONS:
            target = _target(wire, op, quantity, data)
        elif target is not None:
            raise _Refused("invalid_event", "target belongs to a void or an amendment; set op to one of them", "target")
        elif keyed is not None:
            key_text = _row_key(keyed, wire, data)
        keys, key_source = self._keys(wire, place, op, occurred_at, key_text)
        return Event(
            tenant_id,
            stream,
            customer_ref,
            resource_id,
            key_text,
            op,
            occurred_at,
            quantity,
            data,
            wire.causality_key,
            wire.correlation_id,
            wire.causation_id,
            wire.source,
            keys,
            tuple([identity_digest(tenant_id, key) for key in keys]),
            key_source,
            content_hash(
                tenant_id,
                stream,
                customer_ref,
                resource_id,
                occurred_at=occurred_at,
                quantity=quantity,
                op=op,
                data=data,
                target=target,
            ),
            None,
            target,
            None if target is None else identity_digest(tenant_id, target),
            keyed is not None,
            wire.reason,
            wire.batch_id,
        )

    def _place(self, wire: WireEvent) -> _Place:
        stream = self._stream(wire)
        tenant_id = _tenant(wire.tenant_id, self.writer)
        definition = self.definitions.stream(stream)
        keyed = definition if definition is not None and definition.key else None
        room = SLICE_BYTES_MAX // 4 - len(tenant_id) - len(stream)
        place = _Place(tenant_id, stream, keyed, room)
        self._places[wire.tenant_id, wire.stream, wire.metric] = place
        return place

    def _stream(self, wire: WireEvent) -> str:
        stream = wire.stream
        if wire.metric is not None:
            if stream is not None:
                raise _both("stream", "metric")
            stream = wire.metric
        if not stream:
            raise _Refused("invalid_event", "stream is missing or empty; name the kind of event", "stream")
        if stream == CONTROL:
            raise _Refused("invalid_event", f"stream {CONTROL} is reserved", "stream")
        if self.writer.streams is not None and stream not in self.writer.streams:
            raise _Refused("key_not_allowed", f"this API key may not write stream {_shown(stream)}", "stream")
        if not self.streams_open and not self.definitions.known_stream(stream):
            how = "declare it in tidelock.toml, or set streams_open = true"
            message = f"stream {_shown(stream)} is not declared; {how}"
            raise _Refused("unknown_stream", message, "stream")
        return stream

    def _data(self, wire: WireEvent) -> bytes | None:
        raw, given = wire.data, "data"
        if wire.meta is not ABSENT or wire.payload is not ABSENT:
            raw, given = _only_data(wire)
        if raw is ABSENT:
            return None
        data = bytes(raw)
        if data == b"null":
            return None
        if len(data) > self.event_bytes_max:
            message = f"{given} has {len(data)} bytes; at most {self.event_bytes_max} are accepted"
            raise _Refused("payload_too_large", message, given)
        # A level takes two brackets, so a short text cannot be deep; in a longer one they are counted, never too few.
        if (
            len(data) > 2 * self.data_depth_max
            and data.count(b"[") + data.count(b"{") > self.data_depth_max
            and depth(data) > self.data_depth_max
        ):
            raise _Refused("invalid_event", f"{given} is nested deeper than {self.data_depth_max} levels", given)
        return data

    def _keys(
        self, wire: WireEvent, place: _Place, op: Op, occurred_at: int | None, key_text: str | None
    ) -> tuple[tuple[str, ...], KeySource]:
        key = wire.idempotency_key
        if key is not None:
            if not key:
                message = "idempotencyKey is empty; omit it to have one derived"
                raise _Refused("invalid_event", message, "idempotencyKey")
            return (key,), "client"
        if wire.target is not None:
            return self.salts.derive(canonical_correction(place.tenant_id, place.stream, op, wire.target)), "derived"
        if occurred_at is None:
            return (), "none"
        # In a keyed stream two rows of one instant are two events, even if neither names a resource.
        resource_id = key_text if wire.resource_id is None else wire.resource_id
        sent = wire.ts if wire.occurred_at is None else wire.occurred_at
        nine = nine_digits(sent, occurred_at) if isinstance(sent, str) else format_nine(occurred_at)
        return self.salts.derive(
            canonical(place.tenant_id, place.stream, wire.customer_ref, resource_id, nine)
        ), "derived"


def _tenant(tenant_id: str | None, writer: Writer) -> str:
    if writer.tenant_id == ALL_TENANTS:
        if tenant_id is None:
            return DEFAULT_TENANT
        if tenant_id in ("", ALL_TENANTS, CONTROL):
            raise _Refused("invalid_event", f"{tenant_id!r} is not a valid tenant name", "tenantId")
        return tenant_id
    if tenant_id is not None and tenant_id != writer.tenant_id:
        raise _Refused("tenant_mismatch", f"this API key may only write tenant {_shown(writer.tenant_id)}", "tenantId")
    return writer.tenant_id


def _check_keys(wire: WireEvent) -> None:
    for name, value in zip(KEY_FIELDS, (wire.idempotency_key, wire.causation_id, wire.target), strict=True):
        if value is not None and len(value) > KEY_BYTES_MAX // 4 and len(value.encode()) > KEY_BYTES_MAX:
            raise _Refused("invalid_event", f"{name} is longer than {KEY_BYTES_MAX} bytes", name)


def _check_slice(tenant_id: str, stream: str, customer_ref: str) -> None:
    """Names that are short enough in characters may still be too long in bytes for an index entry."""
    if len(f"{tenant_id}{stream}{customer_ref}".encode()) > SLICE_BYTES_MAX:
        message = f"tenantId, stream and customerRef together are longer than {SLICE_BYTES_MAX} bytes"
        raise _Refused("invalid_event", message, "customerRef")


def _only_data(wire: WireEvent) -> tuple[msgspec.Raw, str]:
    sent = {"data": wire.data, "meta": wire.meta, "payload": wire.payload}
    given = [name for name, raw in sent.items() if bytes(raw) != b"null"] or ["data"]
    if len(given) > 1:
        raise _both(given[0], given[1])
    return sent[given[0]], given[0]


def _refuse_nul(wire: WireEvent, data: bytes | None) -> None:
    """NUL and lone surrogates cannot be stored as text; `body` has turned the latter into NUL."""
    for name, attribute in zip(WireEvent.__struct_encode_fields__, WireEvent.__struct_fields__, strict=True):
        value = getattr(wire, attribute)
        if isinstance(value, str) and "\0" in value:
            raise _Refused("invalid_event", f"{name} contains NUL or a lone surrogate", name)
    if data is not None and b"\\u0000" in data and b"\\u0000" in _ESCAPES.findall(data):
        raise _Refused("invalid_event", "data contains NUL or a lone surrogate", "data")


def _instant(wire: WireEvent) -> int | None:
    value, field = wire.ts, "ts"
    if wire.occurred_at is not None:
        if value is not None:
            raise _both("ts", "occurredAt")
        value, field = wire.occurred_at, "occurredAt"
    if value is None:
        return None
    try:
        return parse_rfc3339(value) if isinstance(value, str) else parse_epoch_ms(value)
    except ValueError as error:
        raise _Refused("invalid_timestamp", str(error), field) from None


def _quantity(raw: msgspec.Raw) -> str | None:
    try:
        return _normal(bytes(raw))
    except ValueError as error:
        raise _Refused("invalid_quantity", str(error), "quantity") from None


@lru_cache(maxsize=65_536)
def _normal(token: bytes) -> str | None:
    """The normal form of a quantity's JSON token, a number or a string."""
    if token == b"null":
        return None
    if len(token) > NUMBER_CHARACTERS_MAX + len('""'):
        problem = long_number_in("quantity", "quantity")
        raise _Refused(problem.code, problem.message, problem.field)
    return normal_quantity(_text.decode(token) if token.startswith(b'"') else token.decode())


def _row_key(definition: Stream, wire: WireEvent, data: bytes | None) -> str:
    envelope = {name: getattr(wire, name) for name in KEY_ENVELOPE}
    try:
        text = row_key(definition, envelope, data)
    except MissingKeyColumn as missing:
        raise _Refused("invalid_event", str(missing), missing.column) from None
    if len(text.encode()) > KEY_BYTES_MAX:
        raise _Refused("invalid_event", f"the row key is longer than {KEY_BYTES_MAX} bytes", definition.key[0])
    return text


def _target(wire: WireEvent, op: Op, quantity: str | None, data: bytes | None) -> str:
    """The target of a correction that says nothing it must not say: who and when stay the target's."""
    if not wire.target:
        message = f'target is missing or empty: the idempotencyKey of the event that this "{op}" corrects'
        raise _Refused("invalid_event", message, "target")
    sent = {"ts": wire.ts, "occurredAt": wire.occurred_at, "customerRef": wire.customer_ref,
            "resourceId": wire.resource_id}  # fmt: skip
    for name, value in sent.items():
        if value is not None:
            message = f'{name} stays what it is: to change it, send a "void" and another event'
            raise _Refused("invalid_event", message, name)
    if op == "void":
        for name, left in (("quantity", quantity), ("data", data)):
            if left is not None:
                message = f'a void has no {name}; to give the event another {name}, send an "amend"'
                raise _Refused("invalid_event", message, name)
    return wire.target


def _both(name: str, alias: str) -> _Refused:
    what = f"is an alias of {ALIASES[alias]}" if ALIASES[alias] == name else f"and {name} are the same field"
    return _Refused("invalid_event", f"{alias} {what}; send only one of them", alias)


def _shown(name: str) -> str:
    return repr(name if len(name) <= 60 else name[:60] + "...")
