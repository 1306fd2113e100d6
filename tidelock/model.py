"""The words of Tidelock as types: what a producer sent, what was recorded, what the answer was.

Instants are integers: nanoseconds since 1970 UTC. Quantities are exact decimal strings. Nothing here does I/O.
"""

from __future__ import annotations

from typing import Literal

import msgspec

KeySource = Literal["client", "derived", "none"]
Op = Literal["upsert", "delete", "void", "amend"]

#: What corrects an earlier event instead of reporting a new one.
CORRECTIONS: tuple[Op, ...] = ("void", "amend")
#: Tenant and stream of control events; producers cannot use it.
CONTROL = "_tidelock"
DEFAULT_TENANT = "default"
#: The tenant of keys that see all tenants.
ALL_TENANTS = "*"


class Event(msgspec.Struct, frozen=True, gc=False):
    """What a producer sent, admitted and normalised. It has no sequence: that makes it `Recorded`."""

    tenant_id: str
    stream: str
    customer_ref: str | None
    resource_id: str | None
    #: text of the key columns in a keyed stream
    row_key: str | None
    op: Op
    #: the producer's clock; None: the time of receipt is used
    occurred_at: int | None
    #: plain decimal text without trailing zeros
    quantity: str | None
    #: JSON text as sent
    data: bytes | None
    causality_key: str | None
    correlation_id: str | None
    causation_id: str | None
    source: str | None
    #: every key that identifies this event: the one it is recorded under comes first, then those of older salts
    keys: tuple[str, ...]
    #: their identities, 16 bytes each
    digests: tuple[bytes, ...]
    key_source: KeySource
    #: 32-byte hash of what must not differ between two events with the same key
    content_hash: bytes
    #: when an earlier system received it; None: it is received now
    received_at: int | None = None
    #: key of the event that it corrects: a void or an amendment has one, nothing else
    target: str | None = None
    #: the target's identity
    target_digest: bytes | None = None
    #: its stream has a key by the current definition: such a stream is corrected by its next upsert
    in_keyed_stream: bool = False
    reason: str | None = None
    batch_id: str | None = None


class Problem(msgspec.Struct, frozen=True, gc=False):
    """Why one event was rejected."""

    code: str
    message: str
    field: str | None = None


class Unreadable(msgspec.Struct, frozen=True, gc=False):
    """Why an event is returned without its data. Such events were recorded before they were refused."""

    code: Literal["unreadable"]
    message: str


class Recorded(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """An event of the ledger, in the one flat shape that every reader outside gets."""

    ingress_sequence: int
    commit_id: int
    #: nanoseconds as a string: larger than a JSON number carries safely
    source_timestamp: str
    received_at: str
    occurred_at: str
    tenant_id: str
    stream: str
    customer_ref: str | None
    resource_id: str | None
    quantity: str | None
    data: msgspec.Raw
    op: Op
    causality_key: str | None
    correlation_id: str | None
    causation_id: str | None
    idempotency_key: str | None
    key_source: KeySource
    source: str | None
    #: key and sequence of the event that it corrects
    target: str | None
    target_sequence: int | None
    reason: str | None
    batch_id: str | None
    #: present only if its data has a number too long for readers: `data` is then null, or its text in exports
    error: Unreadable | msgspec.UnsetType = msgspec.UNSET


class Accepted(msgspec.Struct, frozen=True, gc=False, rename="camel", tag_field="status", tag="accepted"):
    """Recorded now; `retry_safe` is present, and false, if a retry would be recorded again."""

    ingress_sequence: int
    idempotency_key: str | None
    key_source: KeySource
    received_at: str
    source_timestamp: str
    retry_safe: bool | msgspec.UnsetType = msgspec.UNSET


class Duplicate(msgspec.Struct, frozen=True, gc=False, rename="camel", tag_field="status", tag="duplicate"):
    """Recorded before with the same content; the fields are the original's."""

    ingress_sequence: int
    idempotency_key: str
    key_source: KeySource


class Conflict(msgspec.Struct, frozen=True, gc=False, rename="camel", tag_field="status", tag="conflict"):
    """The key is recorded with other content, which the ledger keeps; the fields are the original's."""

    ingress_sequence: int
    idempotency_key: str
    key_source: KeySource


class Rejected(msgspec.Struct, frozen=True, gc=False, tag_field="status", tag="rejected"):
    """Rejected; nothing of this event was recorded."""

    error: Problem


Verdict = Accepted | Duplicate | Conflict | Rejected


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The answer to one request: counts, and one verdict per event in the order they were sent."""

    accepted: int
    duplicates: int
    conflicts: int
    rejected: int
    results: list[Verdict]

    @classmethod
    def of(cls, verdicts: list[Verdict]) -> Answer:
        counts = {Accepted: 0, Duplicate: 0, Conflict: 0, Rejected: 0}
        for verdict in verdicts:
            counts[type(verdict)] += 1
        return cls(counts[Accepted], counts[Duplicate], counts[Conflict], counts[Rejected], verdicts)


class Head(msgspec.Struct, frozen=True, gc=False):
    """The head of the ledger: the last commit, and what the next one chains to."""

    ingress_sequence: int
    commit_id: int
    source_timestamp: int
    digest: bytes
    salts_version: int
    #: sequences without an event, because a sequence database gave them to others
    skipped: int = 0
