"""Kafka against the ledger: the proof that it holds all events, in the ledger's order, byte by byte, and the repair.

Every message is compared with its event. Only messages in recorded ranges count as present; outside there are only
repeats after a crash, which must be right as well, and messages replaced by a repair, which need not be. Messages of an
accepted lost tail are counted, not differences. A repair mirrors again from a sequence on.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from tidelock.errors import SettingsError, Unreachable
from tidelock.ledger.findings import Check, Findings
from tidelock.ledger.losttail import Loss, held_of, loss_with, read_losses
from tidelock.mirror.cluster import KafkaCluster, brokers_of, open_client, reason, topic_name, topic_name_apart
from tidelock.mirror.messages import DIGEST, SEQUENCE, Message, read_some
from tidelock.mirror.ranges import QUERIES as RANGES
from tidelock.mirror.ranges import Partition, read_position
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load
from tidelock.postgres.reconnect import database_errors
from tidelock.sections import number_of
from tidelock.settings import Settings
from tidelock.settings.groups import KafkaSettings

QUERIES = load("tidelock.mirror", "sql/proof.sql")

_PAGE = 100_000

#: called with the work done and the total
Progress = Callable[[int, int], None]

_ANSWER_S = 10.0
_SILENCE_S = 30.0
_WAIT_S = 0.2
_CHUNK_MESSAGES = 5_000

_SEEN_BLOCK = 1 << 16


class MirrorProof:
    """Compares Kafka with the ledger."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.findings = Findings("kafka")
        self._database = database
        self._settings = settings
        self._prefix = settings.kafka.topic_prefix
        self._position = 0
        self._seen = Seen()
        self._ranges = _Ranges([], [])
        #: the last sequence that each partition had for the first time
        self._before: dict[Partition, int] = {}
        #: the sequence through which topics may lack messages because of `kafka.retention`
        self._forgotten: Mapping[str, int] = {}
        #: tails of the ledger whose loss was accepted, and what Kafka has of them
        self._losses: list[Loss] = []
        self._lost = Seen()
        #: from here on nothing has expired
        self._complete_from = 1

    def compare(self, progress: Progress) -> None:
        with database_errors("verify"), self._database.connect_sync(name="tidelock verify kafka") as connection:
            # The cursor first: everything up to it stays there.
            self._position = read_position(connection)
            self._losses = read_losses(connection)
            self._ranges = _Ranges(
                connection.execute(QUERIES["ranges"]).fetchall(), connection.execute(RANGES["repairs"]).fetchall()
            )
            with closing(Readback(self._settings.kafka)) as readback:
                topics = self._topics()
                ends = readback.ends(topics)
                done, total = 0, sum(ends.values())
                for chunk in readback.chunks(ends):
                    self._compare(connection, chunk)
                    done += len(chunk)
                    progress(done, total)
                if self._settings.kafka.retention is not None:
                    # Read later than the messages: brokers continue to delete meanwhile.
                    self._forgotten = self._ranges.reached(readback.begins(topics))
            self._find_missing(connection)

    def check(self) -> Check:
        since = f", all of them from sequence {self._complete_from:,} on" if self._complete_from > 1 else ""
        return self.findings.check(
            f"the same {number_of(len(self._seen), 'event')} in the same order, with the same commit digests, "
            f"through sequence {self._position:,}{since}{held_of(self._losses, len(self._lost))}"
        )

    def _topics(self) -> Mapping[str, int]:
        """Those that something was mirrored to, with their partitions."""
        there = KafkaCluster(self._settings.kafka, self._settings.event_bytes_max).look()
        for topic, sequence in self._ranges.topics.items():
            if topic not in there:
                self._differ(sequence, f"topic {topic} does not exist")
        return {topic: there[topic] for topic in self._ranges.topics if topic in there}

    def _compare(self, connection: psycopg.Connection[Any], chunk: Iterable[Any]) -> None:
        numbered = [(_sequence(received), received) for received in chunk]
        events = {event.sequence: event for event in read_some(connection, [n for n, _ in numbered if n is not None])}
        # Later than the messages: one that is beyond it is beyond the ledger.
        head = connection.execute(QUERIES["head"]).fetchone()
        assert head is not None, "the head is always there"
        for sequence, received in numbered:
            place, offset = Partition(received.topic(), received.partition()), received.offset()
            first = self._ranges.first_sequence(place, offset)
            if first is None and offset < self._ranges.repaired.get(place, 0):
                continue
            at = f"offset {offset} of {place.topic}, partition {place.partition},"
            if sequence is None:
                what = f"{at} was not written by the mirror: consumers should ignore it"
                self._differ(max(1, self._position) if first is None else first, what)
            elif loss_with(self._losses, sequence) is not None:
                self._lost.add(sequence)
            elif sequence not in events:
                self._name_unknown(sequence, at, head)
            elif (difference := self._difference(received, events[sequence])) is not None:
                self._differ(sequence, f"sequence {sequence}: {at} has {difference}", first)
            elif first is not None and sequence <= self._position:
                self._take(sequence, place, at)

    def _take(self, sequence: int, place: Partition, at: str) -> None:
        if sequence in self._seen:
            return
        self._seen.add(sequence)
        before = self._before.get(place, 0)
        if sequence < before:
            self._differ(sequence, f"sequence {sequence}: {at} comes after sequence {before}")
        self._before[place] = max(before, sequence)

    def _difference(self, received: Any, event: Message) -> str | None:
        if received.topic() not in (
            topic_name(self._prefix, event.stream),
            topic_name_apart(self._prefix, event.stream),
        ):
            return f"an event of the stream {event.stream}"
        if received.value() not in (event.value, event.earlier_value):
            return "a different event than the ledger"
        headers, expected = dict(received.headers() or []), dict(event.headers)
        if headers.get(DIGEST) != expected[DIGEST]:
            return "the digest of another commit: this is not the ledger that was mirrored"
        if (received.key(), received.timestamp()[1], headers) != (event.key, event.timestamp, expected):
            return "a key, time or headers that differ from what the mirror writes"
        return None

    def _name_unknown(self, sequence: int, at: str, head: tuple[Any, ...]) -> None:
        if sequence > head[0]:
            ends = f"the ledger ends at commit {head[1]}, sequence {head[0]}"
            self.findings.differ(head[0] + 1, f"the ledger's tail was cut off: {at} has sequence {sequence}; {ends}")
        else:
            self.findings.differ(sequence, f"sequence {sequence} is not in the ledger, but {at} has it")

    def _find_missing(self, connection: psycopg.Connection[Any]) -> None:
        row = connection.execute(QUERIES["events"], (self._position,)).fetchone()
        if row is not None and row[0] == len(self._seen):
            return
        forgotten: dict[str, int] = {}
        after = 0
        while page := connection.execute(QUERIES["sequences"], (after, self._position, _PAGE)).fetchall():
            for sequence, stream in page:
                if sequence in self._seen:
                    continue
                if stream not in forgotten:
                    forgotten[stream] = self._forgotten_through(stream)
                if sequence <= forgotten[stream]:
                    self._complete_from = sequence + 1
                else:
                    topic = topic_name(self._prefix, stream)
                    self._differ(sequence, f"sequence {sequence} is missing from {topic}")
            after = page[-1][0]

    def _forgotten_through(self, stream: str) -> int:
        names = (topic_name(self._prefix, stream), topic_name_apart(self._prefix, stream))
        return max(self._forgotten.get(name, 0) for name in names)

    def _differ(self, sequence: int, what: str, first: int | None = None) -> None:
        """`first`: of the range that it lies in, which counts no more when mirroring begins there again."""
        since = sequence if first is None else min(first, sequence)
        self.findings.differ(sequence, f"{what}; `tidelock mirror --from {since}` repairs it")


class _Ranges:
    """The offsets that are recorded."""

    def __init__(self, rows: Iterable[tuple[Any, ...]], repairs: Iterable[tuple[Any, ...]]) -> None:
        #: every topic, and the first sequence that it has
        self.topics: dict[str, int] = {}
        #: offsets from which on what is in no range counts again
        self.repaired = {Partition(topic, partition): end for topic, partition, end in repairs}
        self._firsts: dict[Partition, list[int]] = {}
        self._lasts: dict[Partition, list[int]] = {}
        self._sequences: dict[Partition, list[tuple[int, int]]] = {}
        for topic, partition, first_offset, last_offset, first_sequence, last_sequence in rows:
            place = Partition(topic, partition)
            self.topics[topic] = min(first_sequence, self.topics.get(topic, first_sequence))
            self._firsts.setdefault(place, []).append(first_offset)
            self._lasts.setdefault(place, []).append(last_offset)
            self._sequences.setdefault(place, []).append((first_sequence, last_sequence))

    def first_sequence(self, place: Partition, offset: int) -> int | None:
        """Of the range that an offset lies in. None: it lies in none."""
        number = bisect_right(self._firsts.get(place, ()), offset) - 1
        return self._sequences[place][number][0] if number >= 0 and offset <= self._lasts[place][number] else None

    def reached(self, offsets: Mapping[Partition, int]) -> dict[str, int]:
        """For each topic the last sequence of the ranges that begin below these offsets."""
        found: dict[str, int] = {}
        for place, offset in offsets.items():
            if number := bisect_left(self._firsts.get(place, ()), offset):
                last = self._sequences[place][number - 1][1]
                found[place.topic] = max(last, found.get(place.topic, 0))
        return found


def _sequence(received: Any) -> int | None:
    """The one that its header names."""
    value = dict(received.headers() or []).get(SEQUENCE)
    return int(value) if value is not None and value.isdigit() and len(value) < 19 else None


class Readback:
    """A consumer of whole partitions without side effects: it joins no group and commits nothing."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._brokers = brokers_of(kafka)
        own = {
            # Needed by the client, though this one joins no group and commits nothing.
            "group.id": "tidelock",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "check.crcs": True,
        }
        self._consumer: Consumer = open_client(Consumer, kafka, own)

    def close(self) -> None:
        self._consumer.close()

    def ends(self, topics: Mapping[str, int]) -> dict[Partition, int]:
        """Where the partitions of topics end now: the offset behind the last."""
        return {place: end for place, (_, end) in self._bounds(topics).items()}

    def begins(self, topics: Mapping[str, int]) -> dict[Partition, int]:
        """Where they begin now: the first offset that was not removed."""
        return {place: begin for place, (begin, _) in self._bounds(topics).items()}

    def chunks(self, ends: Mapping[Partition, int]) -> Iterator[list[Any]]:
        """All messages of partitions from the first that there is to these ends, each partition in its order."""
        left = {place for place, end in ends.items() if end > 0}
        self._consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in left])
        heard_at = time.monotonic()
        while left:
            chunk = []
            # It waits until it has the requested number, or for the timeout.
            found = self._consumer.consume(_CHUNK_MESSAGES, timeout=_WAIT_S)
            if found:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > _SILENCE_S:
                raise Unreachable(
                    f"Kafka at {self._brokers} returned nothing of {min(left).topic} for {_SILENCE_S:.0f} s"
                )
            for message in found:
                place = Partition(message.topic() or "", message.partition() or 0)
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise Unreachable(f"{place.topic} cannot be read: {error.str()}")
                at = message.offset() or 0
                if error is None and at < ends[place]:
                    chunk.append(message)
                if at >= ends[place] - 1 and place in left:
                    left.discard(place)
                    self._consumer.pause([TopicPartition(*place)])
            yield chunk

    def _bounds(self, topics: Mapping[str, int]) -> dict[Partition, tuple[int, int]]:
        places = [Partition(topic, partition) for topic, count in topics.items() for partition in range(count)]
        found = {}
        try:
            for place in places:
                bounds = self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=_ANSWER_S)
                if bounds is None:
                    raise Unreachable(f"Kafka at {self._brokers} does not report where {place.topic} ends")
                found[place] = bounds
        except KafkaException as error:
            raise Unreachable(f"Cannot reach Kafka at {self._brokers}: {reason(error)}") from None
        return found


class Seen:
    """A set of sequences that takes a bit for each, in blocks, for ledgers of any length."""

    def __init__(self) -> None:
        self._blocks: dict[int, bytearray] = {}
        self._count = 0

    def add(self, sequence: int) -> None:
        block, bit = divmod(sequence, _SEEN_BLOCK)
        bits = self._blocks.get(block)
        if bits is None:
            bits = self._blocks[block] = bytearray(_SEEN_BLOCK >> 3)
        if not bits[bit >> 3] >> (bit & 7) & 1:
            bits[bit >> 3] |= 1 << (bit & 7)
            self._count += 1

    def __contains__(self, sequence: int) -> bool:
        block, bit = divmod(sequence, _SEEN_BLOCK)
        bits = self._blocks.get(block)
        return bits is not None and bool(bits[bit >> 3] >> (bit & 7) & 1)

    def __len__(self) -> int:
        return self._count


def restart_from(connection: psycopg.Connection[Any], settings: Settings, first: int) -> int:
    """Move the cursor back so that a sequence and all after it are sent again; returns its new position.

    A running mirror notices that its cursor was moved, and continues from there.
    """
    position = read_position(connection)
    if not 1 <= first <= position:
        mirrored = f"sequences 1 to {position} are mirrored" if position else "nothing is mirrored yet"
        raise SettingsError(f"--from {first}: {mirrored}; choose a sequence among them")
    there = KafkaCluster(settings.kafka, settings.event_bytes_max).look()
    topics = {name: count for name, count in there.items() if name.startswith(settings.kafka.topic_prefix)}
    with closing(Readback(settings.kafka)) as readback:
        ends = readback.ends(topics)
    with connection.transaction():
        row = connection.execute(RANGES["restart"], {"first": first}).fetchone()
        connection.execute(RANGES["forget_from"], (first,))
        connection.cursor().executemany(RANGES["repaired"], [(*place, end) for place, end in ends.items()])
        connection.execute(RANGES["wake"])
    assert row is not None, "a position implies a cursor"
    return int(row[0])
