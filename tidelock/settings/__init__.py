"""Settings: one table that feeds tidelock.toml, the environment, the flags and the reference page.

A setting is one field below. A flag takes precedence over the environment, the environment over the file, the file over
the default. `python -m tidelock.settings` prints the reference page.
"""

# ruff: noqa: RUF009  (the calls in the classes make fields, not defaults)
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tidelock.definitions import Definitions, parse_definitions
from tidelock.definitions.eventtimes import EVENTTIME_TYPES
from tidelock.sections import Section
from tidelock.settings import options
from tidelock.settings.groups import (
    BackfillSettings,
    ClickHouseSettings,
    ConnectionLimits,
    ConnectSettings,
    FoldSettings,
    KafkaSettings,
    LakeSettings,
    LoadSettings,
    MeterDefaults,
    PostgresSettings,
    SparkSettings,
)
from tidelock.settings.layers import build, from_environment, from_file, from_flags, read_toml
from tidelock.settings.options import Option

DEFAULT_FILE = Path("tidelock.toml")
LOG_LEVELS = ("debug", "info", "warning", "error")
#: tables of the file that hold definitions
DEFINITIONS = ("streams", "meters", "windows")


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, checked. Durations are nanoseconds, sizes are bytes."""

    data: Path = options.path("./.tidelock", "Directory for everything kept on disk, including the embedded database.")
    host: str = options.text("127.0.0.1", "Address to listen on. Anything but a loopback address requires API keys.")
    port: int = options.integer(8080, "Port to listen on; 0 picks a free one.", minimum=0, maximum=65_535)
    database_url: str | None = options.text(
        None,
        "Postgres that holds the ledger.",
        unset="the embedded one in `data`",
        example="postgresql://tidelock@db.example/tidelock",
        secret=True,
        also_env="DATABASE_URL",
    )
    event_sequence_database_url: str | None = options.text(
        None,
        "Postgres with a sequence that numbers the events of this and other ledgers. While it is unreachable, the "
        "ledger assigns the numbers itself.",
        unset="the ledger assigns the numbers itself",
        example="postgresql://tidelock@sequence.example/sequence",
        secret=True,
    )
    event_sequence_timeout: int = options.duration(
        "200ms", "How long a commit waits for numbers from the sequence database.", minimum="1ms"
    )
    event_sequence_failures_max: int = options.integer(
        3, "Consecutive failures after which the sequence database is not asked for a while.", maximum=1_000
    )
    event_sequence_pause: int = options.duration(
        "5s", "How long to wait after failures before a commit asks the sequence database again.", minimum="10ms"
    )
    salt: str | None = options.text(
        None,
        "Secret for deriving the idempotency keys of events without one. It must be one of the salts recorded in "
        "the ledger.",
        unset="generated at the first start and kept in the ledger",
        secret=True,
    )
    streams_open: bool | None = options.flag(
        None,
        "Accept events of any stream, not only of streams that are declared or named by a meter or window.",
        unset="true, but false in `serve`",
    )
    future_tolerance: int = options.duration(
        "1h", "How far ahead of the server's clock an event's time may be. Events beyond that are rejected."
    )
    cors_origins: tuple[str, ...] = options.origins(
        "Web origins whose pages may call the API with an API key: REST, GraphQL, server-sent events and WebSockets. "
        "Their cookies are ignored. Without API keys, requests from pages of other origins are refused.",
        example='["https://app.example.com"]',
    )
    request_events_max: int = options.integer(10_000, "Maximum number of events in one request.", maximum=10_000)
    request_bytes_max: int = options.size(
        "16MiB", "Maximum size of a request body, after decompression.", minimum="1KiB", maximum="1GiB"
    )
    event_bytes_max: int = options.size(
        "1MiB",
        "Maximum size of one event's `data`. A larger event is rejected; others in the request are not.",
        minimum="1KiB",
        maximum="1GiB",
    )
    commit_events_max: int = options.integer(
        10_000, "Maximum number of events per commit; requests are grouped into commits.", maximum=10_000
    )
    commit_bytes_max: int = options.size(
        "32MiB",
        "Maximum number of bytes per commit; requests are grouped into commits.",
        minimum="1KiB",
        maximum="1GiB",
    )
    queue_events_max: int = options.integer(
        100_000, "Maximum number of events waiting to be recorded. Further requests are answered 429."
    )
    queue_bytes_max: int = options.size(
        "256MiB",
        "Maximum number of bytes of requests being read or waiting to be recorded. Further requests are answered 429.",
        minimum="1KiB",
        maximum="64GiB",
    )
    queue_requests_max: int = options.integer(
        10_000, "Maximum number of requests waiting to be recorded. Further requests are answered 429."
    )
    data_depth_max: int = options.integer(64, "Maximum nesting depth of an event's `data`.", maximum=500)
    retry_after_s: int = options.integer(1, "`Retry-After` of responses with 429 or 503, in seconds.", maximum=3_600)
    page_rows: int = options.integer(100, "Page size of lists if the request sets no limit.", maximum=1_000)
    page_rows_max: int = options.integer(1_000, "Maximum page size of lists.", maximum=1_000)
    page_bytes_max: int = options.size(
        "16MiB",
        "Maximum number of bytes of event data in a page of a list, and in a GraphQL response. A page has at least "
        "one row, whatever its size.",
        minimum="1KiB",
        maximum="1GiB",
    )
    graphql_document_bytes_max: int = options.size(
        "64KiB",
        "Maximum size of a GraphQL document, without its variables.",
        minimum="1KiB",
        maximum="1MiB",
    )
    usage_items_max: int = options.integer(
        10_000, "Maximum number of items in a response of `/v1/usage`. A request for more is refused.", maximum=100_000
    )
    explain_timeout: int = options.duration(
        "30s",
        "How long a request may read events to explain a counter or to compute usage as of a sequence.",
        minimum="10ms",
    )
    windows_told_max: int = options.integer(
        1_000,
        "Maximum number of windows, counted per tenant, that `/admin/event-health`, `/metrics` and `tidelock "
        "status` report. They say if there are more.",
        maximum=100_000,
    )
    changes_retention: int = options.duration(
        "24h", "How long changes of tables are retained. Changes that a trigger has not read yet are always retained."
    )
    ws_queue_events_max: int = options.integer(
        1_000,
        "Maximum number of events queued for one `/ws` client. A client that lags further continues from the ledger.",
    )
    ws_connections_max: int = options.integer(1_000, "Maximum number of `/ws` clients.")
    ws_ping_s: float = options.seconds(
        20, "Interval of pings to WebSocket clients, in seconds.", minimum=0.1, maximum=3_600
    )
    live_subscriptions_max: int = options.integer(
        100,
        "Maximum number of operations of one GraphQL connection: subscriptions and running queries.",
        maximum=10_000,
    )
    live_connections_max: int = options.integer(
        10_000,
        "Maximum number of GraphQL clients of one tenant that stay connected, over WebSocket or server-sent events.",
    )
    live_keep_alive: int = options.duration(
        "12s",
        "Interval of keep-alive messages to an idle GraphQL client. A client that reads nothing for twice as long "
        "is closed with 4499.",
        minimum="100ms",
    )
    live_queue_rows_max: int = options.integer(
        10_000,
        "Maximum number of changes queued for one subscriber. Beyond it, changes of the same row are merged; if "
        "more rows than this are queued, the subscription is closed.",
    )
    live_snapshots_max: int = options.integer(
        4,
        "Maximum number of subscriptions that read their snapshot or past changes from the database at a time.",
        maximum=100,
    )
    live_snapshot_rows_max: int = options.integer(
        100_000,
        "Maximum number of rows in the snapshot of a subscription. A subscription with more is refused.",
        maximum=10_000_000,
    )
    webhook_allow_private: bool = options.flag(
        False, "Allow webhooks to private, loopback and link-local addresses. For development only."
    )
    webhook_timeout_s: float = options.seconds(
        15, "Timeout of a webhook request, in seconds.", minimum=0.1, maximum=300
    )
    webhook_retries: tuple[int, ...] = options.durations(
        ("5s", "5m", "30m", "2h", "5h", "10h", "14h", "20h", "24h"),
        "Delay before each retry of a webhook, with jitter. After the last retry, the webhook is dead.",
    )
    webhook_retry_after_max: int = options.duration("24h", "Longest `Retry-After` of a receiver that is honoured.")
    webhook_concurrency: int = options.integer(
        16,
        "Maximum number of concurrent requests to one URL, per process. A failing receiver gets fewer.",
        maximum=1_000,
    )
    webhook_requests_max: int = options.integer(
        1_000, "Maximum number of concurrent webhook requests, per process.", maximum=100_000
    )
    webhook_queue_rows_max: int = options.integer(
        1_000, "Maximum number of events of one trigger queued in memory. The others wait in the database.", minimum=2
    )
    webhook_failures_max: int = options.integer(
        5, "Consecutive failures after which a receiver is not called for a while.", maximum=1_000
    )
    webhook_pause_max: int = options.duration(
        "5m", "Longest pause before a failing receiver is tried again with one webhook.", minimum="1s"
    )
    webhook_response_bytes_max: int = options.size(
        "1KiB", "How much of a receiver's response is stored with each attempt.", minimum="0B", maximum="64KiB"
    )
    webhook_retention: int = options.duration(
        "14d", "How long delivered and dead webhooks are kept, with their attempts."
    )
    reader_lag_max: int | None = options.duration(
        None,
        "How far a reader (fold, triggers, Kafka, ...) may lag behind the ledger before `/readyz` answers 503.",
        unset="any time",
        minimum="1s",
    )
    console: bool = options.flag(True, "Serve the console at `/`, if the extra `console` is installed.")
    console_visitors_max: int = options.integer(
        100, "Maximum number of open console pages. Further visitors are asked to try again later.", maximum=10_000
    )
    console_sessions_max: int = options.integer(
        1_000,
        "Maximum number of visitors signed in to the console. Beyond it, the visitor inactive for longest is "
        "signed out.",
    )
    console_session_lifetime: int = options.duration(
        "12h", "How long a visitor stays signed in to the console without opening a page.", minimum="1m"
    )
    read_connections_max: int = options.integer(
        8, "Maximum number of database connections for reading lists. Further requests wait.", maximum=1_000
    )
    explain_connections_max: int = options.integer(
        2,
        "Maximum number of database connections for explaining counters and computing usage as of a sequence. "
        "Further requests wait.",
        maximum=1_000,
    )
    connect_timeout_s: float = options.seconds(
        5, "Timeout of a connection to the database, in seconds.", minimum=0.1, maximum=3_600
    )
    lock_timeout_s: float = options.seconds(
        10, "How long a commit waits for the lock on the ledger's head, in seconds.", minimum=0.1, maximum=3_600
    )
    commit_timeout_s: float = options.seconds(
        30,
        "How long a commit may take before its requests are answered 503. Retries of them are safe.",
        minimum=0.1,
        maximum=3_600,
    )
    outage_patience: int = options.duration("15s", "How long a command waits for a lost database to return.")
    key_cache_s: float = options.seconds(5, "How long an API key is cached, in seconds.", minimum=0, maximum=3_600)
    import_chunk_events: int = options.integer(
        1_000, "Number of events that `tidelock import` records per request.", maximum=1_000
    )
    import_sort_memory: int = options.size(
        "256MiB",
        "Memory that sorting a file for `tidelock import` takes. What does not fit is sorted on disk.",
        minimum="1MiB",
        maximum="4GiB",
    )
    import_sort_directory: Path | None = options.path(
        None,
        "Directory for the parts of a file that is sorted on disk.",
        unset="`data` where the database is the embedded one, else the system's directory for temporary files",
    )
    anchor: Path | None = options.path(
        None,
        "File to which the ledger's head is written regularly. Kept apart from the database, it proves whether the "
        "tail was cut off.",
        unset="`anchor.jsonl` in `data`",
    )
    anchor_interval: int = options.duration(
        "10s", "Interval at which the head is written to the anchor file.", minimum="1ms"
    )
    partition_events: int = options.integer(
        10_000_000, "Number of events per partition of the ledger's table.", minimum=1_000
    )
    log_level: str = options.choice("info", LOG_LEVELS, "Minimum level of messages that are logged.")
    plugins: tuple[str, ...] = options.names(
        "Python modules to import; they register event-time types.", example='["shop.eventtime"]'
    )
    postgres: PostgresSettings = options.section(PostgresSettings)
    spark: SparkSettings = options.section(SparkSettings)
    fold: FoldSettings = options.section(FoldSettings)
    meters: MeterDefaults = options.section(MeterDefaults)
    backfill: BackfillSettings = options.section(BackfillSettings)
    connect: ConnectSettings = options.section(ConnectSettings)
    connections: ConnectionLimits = options.section(ConnectionLimits)
    kafka: KafkaSettings = options.section(KafkaSettings)
    load: LoadSettings = options.section(LoadSettings)
    lake: LakeSettings = options.section(LakeSettings)
    clickhouse: ClickHouseSettings = options.section(ClickHouseSettings)
    #: streams, meters and windows of the file
    definitions: Definitions = field(default_factory=Definitions)

    @property
    def anchor_path(self) -> Path:
        return self.data / "anchor.jsonl" if self.anchor is None else self.anchor


#: every setting there is, in the order of the reference page
TABLE: Mapping[str, Option] = {option.path: option for option in options.options(Settings)}


def load(config: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Settings:
    """The settings from file, environment and flags. Raises SettingsError for any invalid value.

    `config` None: `./tidelock.toml`, if it exists. `flags` are named by path (`postgres.binaries`); None means not
    given.
    """
    file = _file(config)
    given = {
        **from_file(file, TABLE, definitions=DEFINITIONS),
        **from_environment(environ, TABLE),
        **from_flags(flags, TABLE),
    }
    settings = build(Settings, {path: item.read() for path, item in given.items()})
    definitions = parse_definitions(
        file.values,
        lateness_ns=settings.meters.lateness,
        # Plugins may add types; the fold checks again after importing them.
        eventtime_types=None if settings.plugins else EVENTTIME_TYPES,
        file=file.file,
    )
    return replace(settings, definitions=definitions)


def _file(config: Path | None) -> Section:
    if config is None and not DEFAULT_FILE.exists():
        return Section("", {}, str(DEFAULT_FILE))
    path = config or DEFAULT_FILE
    return Section("", read_toml(path), str(path))
