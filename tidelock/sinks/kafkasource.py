"""The mirror as a source: events in Kafka, with partition and offset, read by Spark's Kafka source.

It reads the ranges that the mirror recorded: of each partition the offsets of the ranges with the wanted sequences, and
no other messages. Repeats after a crash are dropped, keeping the first offset; messages of other writers are skipped.
Columns that messages do not carry come from the ledger, which also says which sequences must be there.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from tidelock.errors import SettingsError, TidelockError
from tidelock.fold.source import SMALL_EVENTS
from tidelock.fold.store import Store
from tidelock.postgres.database import Database
from tidelock.settings.groups import KafkaSettings, SparkSettings
from tidelock.sinks.columns import LEDGER, NAMES, SEQUENCE, StoreColumn
from tidelock.sinks.source import QUERIES, LedgerSource, Range
from tidelock.spark.java import java_home
from tidelock.spark.jvm import SUBMIT
from tidelock.spark.packages import jar_set
from tidelock.spark.runtime import Spark

#: Spark's Kafka source, and its dependencies that Spark does not include
PACKAGES = ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",)
JARS = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
NAME = "spark-kafka-4.0.0"

#: how Spark reports a missing message
_ABSENT = "not in Kafka: sequence"

_OWN = tuple(column for column in LEDGER if column.name in (SEQUENCE, "row_key", "content_hash", "row_digest"))
#: by its values Spark cuts a step into files
_PART = "part"
_FIELDS = (
    "ingressSequence BIGINT, commitId BIGINT, sourceTimestamp STRING, receivedAt STRING, occurredAt STRING, "
    "tenantId STRING, stream STRING, customerRef STRING, resourceId STRING, quantity STRING, op STRING, "
    "causalityKey STRING, correlationId STRING, causationId STRING, idempotencyKey STRING, keySource STRING, "
    "source STRING, target STRING, targetSequence BIGINT, reason STRING, batchId STRING"
)
# No unescaped quote occurs in a string: before the data it is the first such place, after it the last.
_DATA = r"""nullif(regexp_extract(text, '(?s)^.*?,"data":(.*),"op":"', 1), 'null')"""
# Spark's parser has limits even for what it skips: digits of a number, depth. Data may have more.
_ENVELOPE = r"""regexp_replace(text, '(?s)^(.*?,"data":).*(,"op":")', '$1null$2')"""


def _nanoseconds(instant: str) -> str:
    """Spark's own timestamps have microseconds."""
    seconds = f"unix_seconds(CAST(concat(left({instant}, 19), 'Z') AS TIMESTAMP)) * 1000000000"
    return f"{seconds} + CAST(rpad(trim(TRAILING 'Z' FROM substring({instant}, 21)), 9, '0') AS BIGINT)"


_MADE = {
    "commit_id": "event.commitId",
    "source_timestamp": "CAST(event.sourceTimestamp AS BIGINT)",
    "tenant_id": "event.tenantId",
    "stream": "event.stream",
    "customer_ref": "event.customerRef",
    "resource_id": "event.resourceId",
    "op": "event.op",
    "occurred_at": _nanoseconds("event.occurredAt"),
    "ingested_at": _nanoseconds("event.receivedAt"),
    "quantity": "CAST(event.quantity AS DECIMAL(38, 9))",
    "data": _DATA,
    "causality_key": "event.causalityKey",
    "correlation_id": "event.correlationId",
    "causation_id": "event.causationId",
    "source": "event.source",
    "idempotency_key": "event.idempotencyKey",
    "key_source": "event.keySource",
    "target": "event.target",
    "target_sequence": "event.targetSequence",
    "reason": "event.reason",
    "batch_id": "event.batchId",
    "kafka_partition": "partition",
    "kafka_offset": f"coalesce(offset, raise_error(concat('{_ABSENT} ', ledger.ingress_sequence)))",
}
_EVENTS = f"""
WITH placed AS (
    SELECT CAST(value AS STRING) AS text, partition, offset, first_sequence, last_sequence,
        CAST(filter(headers, header -> header.key = 'commit-digest')[0].value AS STRING) AS commit_digest
    FROM {{messages}} JOIN {{spans}} USING (topic, partition) WHERE offset BETWEEN first_offset AND last_offset
        AND exists(headers, header -> header.key = 'ingress-sequence')
), parsed AS (
    SELECT *, from_json({_ENVELOPE}, '{_FIELDS}', map('mode', 'PERMISSIVE')) AS event FROM placed
), numbered AS (
    SELECT *, row_number() OVER (PARTITION BY event.ingressSequence ORDER BY offset, partition) AS turn FROM parsed
    WHERE event.ingressSequence BETWEEN first_sequence AND last_sequence
        AND event.ingressSequence > $lo AND event.ingressSequence <= $hi
)
SELECT {_PART}, ledger.{SEQUENCE},
    {", ".join(f"{_MADE.get(name, name)} AS {name}" for name in NAMES if name != SEQUENCE)}
FROM {{ledger}} AS ledger LEFT JOIN numbered ON turn = 1 AND event.ingressSequence = ledger.ingress_sequence"""
# Options with the same name in librdkafka and Kafka's Java client; the others differ.
_SHARED = ("security.protocol", "sasl.mechanism", "client.id")
#: librdkafka's security options that are translated for Java
_TRANSLATED = {"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password", "ssl.ca.location"}
_MODULES = {"PLAIN": "plain.PlainLoginModule", "SCRAM": "scram.ScramLoginModule"}


class NotMirrored(TidelockError):
    """A message that the mirror recorded is missing."""

    exit_code = 1

    def __init__(self, sequence: int) -> None:
        repair = f"`tidelock mirror --from {sequence}` sends it again"
        super().__init__(f"sequence {sequence} is not in Kafka where the mirror recorded it; {repair}")


def not_mirrored(error: BaseException) -> NotMirrored | None:
    """What Spark's error is, where it is that."""
    found = re.search(f"{_ABSENT} ([0-9]+)", str(error))
    return NotMirrored(int(found[1])) if found else None


class KafkaSource(LedgerSource):
    """The mirror's topics, up to where the mirror is."""

    def __init__(
        self, spark: Spark, store: Store, database: Database, kafka: KafkaSettings, *, small_events: int = SMALL_EVENTS
    ) -> None:
        super().__init__(spark, store, database, small_events=small_events)
        self._options = java_options(kafka)

    def frontier(self, lo: int, events_max: int, through: int | None = None) -> int | None:
        mirrored = self.number("position", name="'kafka'") or 0
        return super().frontier(lo, events_max, mirrored if through is None else min(through, mirrored))

    def read(self, ranges: Sequence[Range]) -> DataFrame:
        """Kafka is read once, however many the ranges are."""
        count = len(ranges)
        keys = self._keys(count) if count > 1 else [0]
        rows = self._between(ranges[0][0], ranges[-1][1], _part(ranges, keys))
        placed = rows.repartition(count, _PART) if count > 1 else rows.coalesce(1)
        return placed.select(*NAMES).sortWithinPartitions(SEQUENCE)

    def _keys(self, count: int) -> list[int]:
        """For each of a number of partitions, a number that Spark's hash assigns to it alone."""
        found: dict[int, int] = {}
        size = 16
        while len(found) < count:
            size *= 2
            numbers = self._spark.session.range(0, size * count, 1, 1)
            for number, part in numbers.selectExpr("id", f"pmod(hash(id), {count})").collect():
                found.setdefault(part, number)
        return [found[part] for part in range(count)]

    def _between(self, lo: int, hi: int, part: StoreColumn) -> DataFrame:
        spans = self._store.query(QUERIES.text("mirrored").format(lo=lo, hi=hi))
        self._store.rollback()
        if not spans.num_rows:
            raise NotMirrored(lo + 1)
        session = self._spark.session
        # What Kafka has lost is named by its sequence, like a message that cannot be read: both are then absent.
        options = self._options | _offsets(spans.to_pylist()) | {"includeHeaders": "true", "failOnDataLoss": "false"}
        return session.sql(
            _EVENTS.replace("$lo", str(lo)).replace("$hi", str(hi)),
            messages=session.read.format("kafka").options(**options).load(),
            spans=session.createDataFrame(spans),
            ledger=self.read_ledger([(lo, hi)], (*_OWN, part)),
        )


def _part(ranges: Sequence[Range], keys: Sequence[int]) -> StoreColumn:
    """Which of the ranges an event is in, as the key of its partition."""
    starts = ", ".join(str(lo + 1) for lo, _ in ranges)
    place = f"width_bucket({SEQUENCE}, ARRAY[{starts}]::bigint[])"
    return StoreColumn(_PART, pa.int64(), "Int64", f"(ARRAY[{', '.join(map(str, keys))}]::bigint[])[{place}]")


def _offsets(spans: Sequence[Mapping[str, object]]) -> dict[str, str]:
    """The offsets to read from each partition."""
    starts: dict[str, dict[str, int]] = defaultdict(dict)
    ends: dict[str, dict[str, int]] = defaultdict(dict)
    for span in spans:
        topic, partition = str(span["topic"]), str(span["partition"])
        first, last = int(str(span["first_offset"])), int(str(span["last_offset"]))
        starts[topic][partition] = min(first, starts[topic].get(partition, first))
        ends[topic][partition] = max(last + 1, ends[topic].get(partition, 0))
    assigned = {topic: [int(partition) for partition in partitions] for topic, partitions in starts.items()}
    return {
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }


def kafka_jars(data: Path, spark: SparkSettings) -> list[Path]:
    """The jars Spark needs to read Kafka, downloaded once. Raises Unreachable if that fails."""
    java = java_home(spark.java, data)
    found = jar_set(data, NAME, PACKAGES, SUBMIT, java_home=java, conf=spark.conf, fetched=spark.jars)
    # The rest of them comes with Spark, in the versions that it was built with.
    return [jar for jar in found if any(part in jar.name for part in JARS)]


def java_options(kafka: KafkaSettings) -> dict[str, str]:
    """Options for Kafka's Java client to connect like librdkafka. Raises SettingsError if an option has no
    equivalent.
    """
    given = kafka.options
    for name in given:
        if name.startswith(("ssl.", "sasl.")) and name not in _TRANSLATED | set(_SHARED):
            raise SettingsError(
                f"loading from Kafka uses Spark's client, which does not support {name}: provide a listener without "
                "it, or load from the ledger, with settings without brokers",
                field=f"kafka.options.{name}",
            )
    made = {name: given[name] for name in _SHARED if name in given}
    mechanism = given.get("sasl.mechanism", given.get("sasl.mechanisms", "PLAIN"))
    if "sasl.username" in given:
        module = _MODULES["SCRAM" if mechanism.startswith("SCRAM") else "PLAIN"]
        login = " ".join(f'{name}="{_quoted(given.get(f"sasl.{name}", ""))}"' for name in ("username", "password"))
        made["sasl.mechanism"] = mechanism
        made["sasl.jaas.config"] = f"org.apache.kafka.common.security.{module} required {login};"
    if "ssl.ca.location" in given:
        made |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": given["ssl.ca.location"]}
    made["bootstrap.servers"] = ",".join(kafka.brokers)
    return {f"kafka.{name}": value for name, value in made.items()}


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
