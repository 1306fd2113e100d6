"""The cluster: the brokers by their client, its configuration, and the topics that the mirror makes there.

A topic's name encodes its stream: characters that Kafka does not allow become `_xHH`, byte by byte, and so does an
underscore that would look like the beginning of one.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tidelock.errors import SettingsError, Unreachable
from tidelock.instants import MILLISECOND
from tidelock.settings.groups import KafkaSettings

logger = logging.getLogger(__name__)
# librdkafka logs every attempt to connect. We report it once; the rest is for debugging.
_library = logging.getLogger(f"{__name__}.library")

C = TypeVar("C")

#: how long brokers may take to respond
ANSWER_S = 10.0
_PAUSE_S = 0.05
#: bytes of small messages sent as one batch, which a topic must have room for
BATCH_BYTES = 1_000_000
#: room for everything around an event's data
_ENVELOPE_BYTES = 64 << 10
#: properties set by our settings, or required by the mirror's guarantees
_OWN = {"bootstrap.servers": "kafka.brokers", "metadata.broker.list": "kafka.brokers"}
_FIXED = frozenset(
    {
        "acks", "request.required.acks", "batch.size", "delivery.timeout.ms", "message.timeout.ms",
        "enable.gapless.guarantee", "enable.idempotence", "isolation.level", "max.in.flight",
        "max.in.flight.requests.per.connection", "transactional.id",
    }
)  # fmt: skip

#: longest name that Kafka takes
LENGTH_MAX = 249

_ALLOWED = re.compile(rb"[A-Za-z0-9.-]|_(?!x[0-9A-F]{2})")
# Kafka accepts only one of two names that differ in these alone: its metrics treat them as one character.
_ALLOWED_APART = re.compile(rb"[A-Za-z0-9-]")
_DIGEST = 32


_library.addFilter(lambda _: logger.isEnabledFor(logging.DEBUG))


def check(kafka: KafkaSettings) -> None:
    """Raise SettingsError for what cannot work."""
    for name in kafka.options:
        if name in _OWN:
            raise SettingsError(f"`{name}` in `kafka.options` must be set as `{_OWN[name]}`.", field="kafka.options")
        if name in _FIXED:
            raise SettingsError(f"`{name}` in `kafka.options` cannot be changed.", field="kafka.options")
    # A client that is made, and connects when it has something to ask, says which names it does not know.
    open_client(AdminClient, kafka, {})


def brokers_of(kafka: KafkaSettings) -> str:
    """Their names for people."""
    return ", ".join(kafka.brokers)


def open_client(make: Callable[[dict[str, Any]], C], kafka: KafkaSettings, own: Mapping[str, Any]) -> C:
    """A client of librdkafka. Raises SettingsError for options that it does not know."""
    pause_ms = max(100, kafka.pause_max // MILLISECOND)
    config: dict[str, Any] = {
        "bootstrap.servers": ",".join(kafka.brokers),
        "client.id": "tidelock",
        "reconnect.backoff.max.ms": min(pause_ms, 3_600_000),
        "logger": _library,
        **kafka.options,
        **own,
    }
    try:
        return make(config)
    except KafkaException as error:
        raise SettingsError(f"`kafka.options`: {reason(error)}", field="kafka.options") from None


def reason(error: BaseException) -> str:
    """The error, in the client's words."""
    found = error.args[0] if error.args else error
    return str(found.str()) if isinstance(found, KafkaError) else str(found)


def topic_name(prefix: str, stream: str) -> str:
    return _named(prefix, stream, _ALLOWED)


def topic_name_apart(prefix: str, stream: str) -> str:
    """The name of a stream whose own is too much like that of another: `a.b` where there is `a_b`."""
    return _named(prefix, stream, _ALLOWED_APART)


class KafkaCluster:
    """Topics: which there are, with how many partitions, and those of streams that have none yet."""

    def __init__(self, kafka: KafkaSettings, event_bytes_max: int) -> None:
        self._kafka = kafka
        self._event_bytes_max = event_bytes_max
        self._admin: AdminClient = open_client(AdminClient, kafka, {"error_cb": self._complain})
        #: the last error of the brokers
        self._complaint: str | None = None
        #: topic and number of partitions of a stream
        self._known: dict[str, tuple[str, int]] = {}

    def topics(self, streams: Iterable[str]) -> Mapping[str, tuple[str, int]]:
        """Topic and number of partitions of every stream seen so far, made where they are not there. Raises
        Unreachable."""
        new = {stream for stream in streams if stream not in self._known}
        if new:
            there = self.look()
            for stream in sorted(new):
                self._known[stream] = self._topic(stream, there)
        return self._known

    def look(self) -> dict[str, int]:
        """Topics that are there, with their partitions. Raises Unreachable."""
        try:
            # All of them: requesting one by name would create it, without our settings.
            found = self._admin.list_topics(timeout=ANSWER_S)
        except KafkaException as error:
            # For a refused password the call itself only reports that no broker was available in time.
            self._admin.poll(0)
            said = self._complaint or reason(error)
            raise Unreachable(f"Cannot reach Kafka at {brokers_of(self._kafka)}: {said}") from None
        return {name: len(known.partitions) for name, known in found.topics.items() if known.error is None}

    def _complain(self, error: KafkaError) -> None:
        # "All brokers down" comes after the last broker's error, and says less.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._complaint = str(error.str())

    def _topic(self, stream: str, there: Mapping[str, int]) -> tuple[str, int]:
        names = [name(self._kafka.topic_prefix, stream) for name in (topic_name, topic_name_apart)]
        for topic in names:
            if topic in there:
                return topic, there[topic]
        made = next((topic for topic in names if self._make(topic)), None)
        if made is None:
            raise Unreachable(f"Kafka accepts neither {names[0]} nor {names[1]} as a topic name")
        deadline = time.monotonic() + ANSWER_S
        while made not in (there := self.look()):
            if time.monotonic() > deadline:
                raise Unreachable(f"topic {made} was created, but brokers do not know it yet")
            time.sleep(_PAUSE_S)
        return made, there[made]

    def _make(self, topic: str) -> bool:
        """False: it is too much like another topic."""
        retention = -1 if self._kafka.retention is None else self._kafka.retention // MILLISECOND
        # By default brokers delete messages after a week, by their own timestamps: an import of last year at once.
        config = {
            "retention.ms": str(retention),
            "retention.bytes": "-1",
            "cleanup.policy": "delete",
            "max.message.bytes": str(max(self._event_bytes_max, BATCH_BYTES) + _ENVELOPE_BYTES),
            # A message's time is the event's, whatever brokers do by default.
            "message.timestamp.type": "CreateTime",
        }
        replication = -1 if self._kafka.replication is None else self._kafka.replication
        wanted = NewTopic(topic, self._kafka.partitions, replication, config=config)
        try:
            self._admin.create_topics([wanted], request_timeout=ANSWER_S)[topic].result()
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_EXCEPTION:
                return False
            if code != KafkaError.TOPIC_ALREADY_EXISTS:
                raise Unreachable(f"topic {topic} could not be created: {reason(error)}") from None
        return True


def _named(prefix: str, stream: str, allowed: re.Pattern[bytes]) -> str:
    raw = stream.encode()
    escaped = "".join(
        chr(byte) if allowed.match(raw, position) else f"_x{byte:02X}" for position, byte in enumerate(raw)
    )
    name = prefix + escaped
    if len(name) <= LENGTH_MAX:
        return name
    # Truncated, but still unique for each stream.
    digest = hashlib.sha256(raw).hexdigest()[:_DIGEST]
    return f"{name[: LENGTH_MAX - _DIGEST - 1]}-{digest}"
