"""Messages: what Kafka gets of an event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from tidelock.instants import MILLISECOND
from tidelock.ledger.reader import recorded

SEQUENCE, KEY, DIGEST = "ingress-sequence", "idempotency-key", "commit-digest"

_encode = msgspec.json.Encoder().encode
#: columns that make an event; the row key comes after them
_EVENT = slice(0, 18)
_RECEIVED, _CAUSALITY, _ROW_KEY = 3, 12, 18

Headers = list[tuple[str, str | bytes | None]]


class Message(NamedTuple):
    """An event as it is sent. Two that are equal were made of the same event of the same commit."""

    sequence: int
    stream: str
    #: what belongs together lies in one partition: a run's events, a row's, else each on its own
    key: bytes
    #: the flat shape that every reader outside gets, as JSON
    value: bytes
    #: when it was received, in milliseconds
    timestamp: int
    #: None: it has none
    idempotency_key: str | None
    #: of its commit, in hexadecimal digits
    digest: bytes

    # Made when they are needed: kept, they would be four more things for the collector to look at, a message.
    @property
    def headers(self) -> Headers:
        identity = self.idempotency_key
        return [
            (SEQUENCE, b"%d" % self.sequence),
            (KEY, None if identity is None else identity.encode()),
            (DIGEST, self.digest),
        ]


def message(row: Sequence[Any], digests: Mapping[int, bytes]) -> Message:
    """The message of a row of `source`; `digests` are those of commits, as hexadecimal digits."""
    event = recorded(row[_EVENT])
    key = row[_CAUSALITY] if row[_CAUSALITY] is not None else row[_ROW_KEY]
    return Message(
        event.ingress_sequence,
        event.stream,
        key.encode() if key is not None else b"%d" % event.ingress_sequence,
        _encode(event),
        row[_RECEIVED] // MILLISECOND,
        event.idempotency_key,
        digests[event.commit_id],
    )
