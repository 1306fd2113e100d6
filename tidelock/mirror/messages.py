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
_CAUSALITY, _IDEMPOTENCY, _ROW_KEY = 12, 15, 18

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
    headers: Headers


def message(row: Sequence[Any], digests: Mapping[int, bytes]) -> Message:
    """The message of a row of `source`; `digests` are those of commits, as hexadecimal digits."""
    event = recorded(row[_EVENT])
    sequence = event.ingress_sequence
    number = b"%d" % sequence
    key = row[_CAUSALITY] if row[_CAUSALITY] is not None else row[_ROW_KEY]
    identity = row[_IDEMPOTENCY]
    return Message(
        sequence,
        event.stream,
        key.encode() if key is not None else number,
        _encode(event),
        row[3] // MILLISECOND,
        [
            (SEQUENCE, number),
            (KEY, identity.encode() if identity is not None else None),
            (DIGEST, digests[event.commit_id]),
        ],
    )
