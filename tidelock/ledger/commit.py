"""The decision about a commit: which events are recorded, under which sequences, and the verdict of each.

Pure: it gets the head, the clock's reading and the known identities, and does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import Literal, NamedTuple

from tidelock.ingest.identity import same_content
from tidelock.instants import SECOND, format_instant
from tidelock.ledger.corrections import Correctable, Targets, named_targets
from tidelock.ledger.rows import correction_row, event_row, event_tail, identity_row, tail_digest
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
_NO_TARGETS: Mapping[bytes, Correctable] = MappingProxyType({})
#: what the digest of a commit covers: see `chain_digest`
CHAIN_FORM = 2


class Collection:
    """What one request, or one import chunk, asks to record: judged events in the order they were sent."""

    def __init__(self, events: Sequence[Event | Rejected]) -> None:
        self.events = events
        self.size = len(events)
        self.tails: list[bytes] = []
        self.tail_digests: list[bytes] = []
        self.digests: list[bytes] = []
        #: corrections among the events
        self.corrections: list[Event] = []
        #: of the rows to be
        self.bytes = 0
        #: some event has more than one key, because there are several salts
        self.several_keys = False
        #: compared once per collection: each event is checked only if this is in the future
        self.latest = 0
        for event in events:
            if type(event) is not Event:
                self.tails.append(b"")
                self.tail_digests.append(b"")
                continue
            tail = event_tail(event)
            self.tails.append(tail)
            self.tail_digests.append(tail_digest(tail))
            if event.target_digest is not None:
                self.corrections.append(event)
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
    correction_rows: list[bytes] = field(default_factory=list)
    verdicts: list[list[Verdict]] = field(default_factory=list)
    #: where its numbers come from
    source: SequenceSource = "local"

    @property
    def first(self) -> int:
        return self.head.ingress_sequence - len(self.event_rows) + 1


def chain_digest(previous: bytes, commit_id: int, row_digests: Sequence[bytes]) -> bytes:
    """The digest of a commit: it covers the previous one, so that no commit can be changed, removed or moved.

    In the first form it covers whole rows instead of their digests.
    """
    digest = sha256(previous + commit_id.to_bytes(8, "big"))
    digest.update(b"".join(row_digests))
    return digest.digest()


def decide(
    collections: Sequence[Collection],
    head: Head,
    now: int,
    known: Mapping[bytes, Known],
    future_tolerance: int,
    *,
    targets: Mapping[bytes, Correctable] = _NO_TARGETS,
    carried_bytes_max: int = 1 << 62,
    first: int | None = None,
    floor: Floor = _NO_FLOOR,
) -> Commit:
    """Number new events, in order, and recognise the others. The result does not depend on how collections were
    grouped. One loop, since it runs for every event under the head's lock.

    `targets`: recorded events that corrections name; with any of those, all identities must have been looked up.
    `carried_bytes_max`: of data that amendments leave as it is. `first`: the first sequence, above head and floor; by
    default the next one.
    """
    commit = Commit(head)
    lowest = max(head.ingress_sequence, floor.ingress_sequence)
    before = lowest if first is None else first - 1
    assert before >= lowest, "no number is given twice"
    sequence, source_timestamp = before, max(head.source_timestamp, floor.source_timestamp)
    commit_id = max(head.commit_id, floor.commit_id) + 1
    # Identities recorded by this commit, in addition to those known before.
    fresh: dict[bytes, tuple[int, Event]] = {}
    row_digests: list[bytes] = []
    named = named_targets(event for collection in collections for event in collection.corrections)
    correctable = Targets(named, targets, carried_bytes_max)
    received_text = format_instant(now)
    for collection in collections:
        check_future = collection.latest > now + future_tolerance
        own_timestamp: int | None = None
        own_text = ""
        verdicts: list[Verdict] = []
        commit.verdicts.append(verdicts)
        for event, tail, hashed in zip(collection.events, collection.tails, collection.tail_digests, strict=True):
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
            target = None
            if event.target_digest is not None:
                found = correctable.find(event)
                if isinstance(found, Rejected):
                    verdicts.append(found)
                    continue
                target = found
            if own_timestamp is None:
                # Used only by a collection that records something: it is the unit of time.
                source_timestamp = own_timestamp = max(now, source_timestamp + 1)
                own_text = str(own_timestamp)
            sequence += 1
            received_at, text = now, received_text
            if event.received_at is not None:
                received_at, text = event.received_at, format_instant(event.received_at)
            occurred_at = received_at if event.occurred_at is None else event.occurred_at
            written = event
            if target is not None:
                written, occurred_at = correctable.completed(event, target), target.occurred_at
                tail = event_tail(written, target.sequence)
                hashed = tail_digest(tail)
                commit.correction_rows.append(correction_row(target.sequence, sequence))
            row, row_digest = event_row(
                sequence, commit_id, own_timestamp, received_at, occurred_at, tail=tail, tail_digest=hashed
            )
            commit.event_rows.append(row)
            row_digests.append(row_digest)
            if named:
                correctable.recorded(written, sequence, occurred_at)
            if event.keys:
                digest = event.digests[0]
                commit.identity_rows.append(identity_row(digest, sequence, event.content_hash, event.key_source))
                fresh[digest] = (sequence, event)
                verdicts.append(Accepted(sequence, event.keys[0], event.key_source, text, own_text))
            else:
                verdicts.append(Accepted(sequence, None, "none", text, own_text, retry_safe=False))
    if sequence > before:
        digest = chain_digest(head.digest, commit_id, row_digests)
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
