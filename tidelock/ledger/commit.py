"""The decision about a commit: which events are recorded, under which sequences, and the verdict of each.

Pure: it gets the head, the clock's reading and the known identities, and does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal, NamedTuple

from tidelock.ingest.identity import same_content
from tidelock.instants import SECOND, format_instant
from tidelock.ledger.rows import event_row, event_tail, identity_row
from tidelock.model import Accepted, Conflict, Duplicate, Event, Head, KeySource, Problem, Rejected, Verdict

#: `local`: numbers follow the head; `remote`: a sequence database gave them
SequenceSource = Literal["local", "remote"]


class Known(NamedTuple):
    """The original of an identity."""

    sequence: int
    content_hash: bytes
    key_source: KeySource
    #: hashes of other texts found to have the same content
    same: frozenset[bytes] = frozenset()

    def says(self, event: Event) -> bool:
        return event.content_hash == self.content_hash or event.content_hash in self.same


class Floor(NamedTuple):
    """What may have been issued although the ledger lacks it: a commit must be above all of it."""

    ingress_sequence: int
    commit_id: int
    source_timestamp: int


_NO_FLOOR = Floor(0, 0, 0)


class Collection:
    """What one request, or one import chunk, asks to record: judged events in the order they were sent."""

    def __init__(self, events: Sequence[Event | Rejected]) -> None:
        self.events = events
        self.size = len(events)
        self.tails: list[bytes] = []
        self.digests: list[bytes] = []
        #: of the rows to be
        self.bytes = 0
        #: some event has more than one key, because there are several salts
        self.several_keys = False
        #: compared once per collection: each event is checked only if this is in the future
        self.latest = 0
        for event in events:
            if type(event) is not Event:
                self.tails.append(b"")
                continue
            tail = event_tail(event)
            self.tails.append(tail)
            self.bytes += len(tail)
            self.digests += event.digests
            if len(event.digests) > 1:
                self.several_keys = True
            if event.occurred_at is not None and event.occurred_at > self.latest:
                self.latest = event.occurred_at
            if event.received_at is not None and event.received_at > self.latest:
                self.latest = event.received_at


@dataclass(slots=True)
class Commit:
    """What to write, and the verdicts to return once it is durable."""

    head: Head
    event_rows: list[bytes] = field(default_factory=list)
    identity_rows: list[bytes] = field(default_factory=list)
    verdicts: list[list[Verdict]] = field(default_factory=list)
    #: where its numbers come from
    source: SequenceSource = "local"

    @property
    def first(self) -> int:
        return self.head.ingress_sequence - len(self.event_rows) + 1


def chain_digest(previous: bytes, commit_id: int, event_rows: Sequence[bytes]) -> bytes:
    """The digest of a commit: it covers the previous one, so that no commit can be changed, removed or moved."""
    digest = sha256(previous + commit_id.to_bytes(8, "big"))
    digest.update(b"".join(event_rows))
    return digest.digest()


def decide(
    collections: Sequence[Collection],
    head: Head,
    now: int,
    known: Mapping[bytes, Known],
    future_tolerance: int,
    *,
    first: int | None = None,
    floor: Floor = _NO_FLOOR,
) -> Commit:
    """Number new events, in order, and recognise the others. The result does not depend on how collections were
    grouped.

    `first`: the first sequence, above head and floor; by default the next one.
    """
    commit = Commit(head)
    lowest = max(head.ingress_sequence, floor.ingress_sequence)
    before = lowest if first is None else first - 1
    assert before >= lowest, "no number is given twice"
    sequence, source_timestamp = before, max(head.source_timestamp, floor.source_timestamp)
    commit_id = max(head.commit_id, floor.commit_id) + 1
    # Identities recorded by this commit, in addition to those known before.
    fresh: dict[bytes, tuple[int, Event]] = {}
    received_text = format_instant(now)
    for collection in collections:
        check_future = collection.latest > now + future_tolerance
        own_timestamp: int | None = None
        own_text = ""
        verdicts: list[Verdict] = []
        commit.verdicts.append(verdicts)
        for event, tail in zip(collection.events, collection.tails, strict=True):
            if type(event) is not Event:
                verdicts.append(event)  # type: ignore[arg-type]  # what is not an event is a rejection
                continue
            for digest in event.digests:
                if digest in fresh or digest in known:
                    break
            else:
                digest = b""
            if digest:
                verdicts.append(_repeated(event, digest, known.get(digest), fresh.get(digest)))
                continue
            if check_future and _latest(event) > now + future_tolerance:
                verdicts.append(_from_the_future(event, now, future_tolerance))
                continue
            if own_timestamp is None:
                # Used only by a collection that records something: it is the unit of time.
                source_timestamp = own_timestamp = max(now, source_timestamp + 1)
                own_text = str(own_timestamp)
            sequence += 1
            received_at, text = now, received_text
            if event.received_at is not None:
                received_at, text = event.received_at, format_instant(event.received_at)
            occurred_at = received_at if event.occurred_at is None else event.occurred_at
            commit.event_rows.append(event_row(sequence, commit_id, own_timestamp, received_at, occurred_at, tail=tail))
            if event.keys:
                digest = event.digests[0]
                commit.identity_rows.append(identity_row(digest, sequence, event.content_hash, event.key_source))
                fresh[digest] = (sequence, event)
                verdicts.append(Accepted(sequence, event.keys[0], event.key_source, text, own_text))
            else:
                verdicts.append(Accepted(sequence, None, "none", text, own_text, retry_safe=False))
    if sequence > before:
        digest = chain_digest(head.digest, commit_id, commit.event_rows)
        skipped = head.skipped + before - head.ingress_sequence
        commit.head = Head(
            sequence, commit_id, source_timestamp, digest, salts_version=head.salts_version, skipped=skipped
        )
    return commit


def _repeated(
    event: Event, digest: bytes, known: Known | None, fresh: tuple[int, Event] | None
) -> Duplicate | Conflict:
    key = event.keys[event.digests.index(digest)]
    if fresh is not None:
        sequence, first = fresh
        return (Duplicate if same_content(first, event) else Conflict)(sequence, key, first.key_source)
    assert known is not None, "a repeated event has an original"
    return (Duplicate if known.says(event) else Conflict)(known.sequence, key, known.key_source)


def _latest(event: Event) -> int:
    return max(event.occurred_at or 0, event.received_at or 0)


def _from_the_future(event: Event, now: int, tolerance: int) -> Rejected:
    message = (
        f"{format_instant(_latest(event))} is more than {tolerance // SECOND} s ahead of the ledger's clock, "
        f"{format_instant(now)}; check the producer's clock"
    )
    return Rejected(Problem("future_timestamp", message, "ts"))
