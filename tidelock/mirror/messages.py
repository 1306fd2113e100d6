"""Messages: what Kafka gets of an event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tidelock.instants import MILLISECOND, format_instant

SEQUENCE, KEY, DIGEST = "ingress-sequence", "idempotency-key", "commit-digest"

Headers = dict[str, str | bytes | None]


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
        return {
            SEQUENCE: b"%d" % self.sequence,
            KEY: None if identity is None else identity.encode(),
            DIGEST: self.digest,
        }


def messages_of(rows: Iterable[Sequence[Any]], digests: Mapping[int, bytes]) -> list[Message]:
    """The messages of rows of `messages`; `digests` are those of commits, as hexadecimal digits."""
    found = []
    before, received = None, ""
    for sequence, commit_id, source_timestamp, received_at, occurred_at, stream, key, identity, members in rows:
        # The events of a request were received at one moment, and many occurred at it.
        if received_at != before:
            before, received = received_at, format_instant(received_at)
        occurred = received if occurred_at == received_at else format_instant(occurred_at)
        first = (
            f'{{"ingressSequence":{sequence},"commitId":{commit_id},"sourceTimestamp":"{source_timestamp}",'
            f'"receivedAt":"{received}","occurredAt":"{occurred}",'
        )
        found.append(
            Message(
                sequence,
                stream,
                b"%d" % sequence if key is None else key.encode(),
                # It goes on behind the brace that the others begin with.
                first.encode() + members[1:],
                # Kafka's client takes 0 for now.
                received_at // MILLISECOND or 1,
                identity,
                digests[commit_id],
            )
        )
    return found
