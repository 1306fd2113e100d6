"""Settings: one table that feeds tidelock.toml, the environment, the flags and the reference page.

A setting is one field below. A flag goes before the environment, that before the file, that before the default.
`python -m tidelock.settings` prints the reference page.
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

    data: Path = options.path("./.tidelock", "Directory of the embedded database and of everything else kept on disk.")
    host: str = options.text("127.0.0.1", "Address to listen on. Any but a loopback address needs API keys.")
    port: int = options.integer(8080, "Port to listen on; 0 takes any free one.", minimum=0, maximum=65_535)
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
        "Postgres whose sequence numbers the events, of this ledger and of others. While it is away the ledger numbers "
        "by itself.",
        unset="the ledger numbers by itself",
        example="postgresql://tidelock@sequence.example/sequence",
        secret=True,
    )
    event_sequence_timeout: int = options.duration(
        "200ms", "How long a commit waits for numbers from the sequence database.", minimum="1ms"
    )
    event_sequence_failures_max: int = options.integer(
        3, "Failures in a row after which the sequence database is left alone for a while.", maximum=1_000
    )
    event_sequence_pause: int = options.duration(
        "5s", "How long a sequence database that failed is left alone before one commit asks it again.", minimum="10ms"
    )
    salt: str | None = options.text(
        None,
        "Secret from which the keys of events without one are derived. It must be one of those recorded in the ledger.",
        unset="generated at the first start and kept in the ledger",
        secret=True,
    )
    streams_open: bool | None = options.flag(
        None,
        "Take events of any stream, not only of those that are declared or named by a meter or window.",
        unset="true, but false in `serve`",
    )
    future_tolerance: int = options.duration(
        "1h", "How far ahead of the server's clock an event's time may be. Beyond it the event is rejected."
    )
    cors_origins: tuple[str, ...] = options.origins(
        "Web origins whose pages may call the API with an API key: REST, GraphQL, server-sent events and WebSockets. "
        "Cookies are never taken from them. Without API keys no page of another origin is answered.",
        example='["https://app.example.com"]',
    )
    request_events_max: int = options.integer(10_000, "Most events in one request.", maximum=10_000)
    request_bytes_max: int = options.size(
        "16MiB", "Largest body of a request, after decompression.", minimum="1KiB", maximum="1GiB"
    )
    event_bytes_max: int = options.size(
        "1MiB",
        "Largest data of one event. A larger event is rejected, its neighbours are not.",
        minimum="1KiB",
        maximum="1GiB",
    )
    commit_events_max: int = options.integer(
        10_000, "Most events that requests are grouped into for one database transaction.", maximum=10_000
    )
    commit_bytes_max: int = options.size(
        "32MiB", "Most bytes that requests are grouped into for one transaction.", minimum="1KiB", maximum="1GiB"
    )
    queue_events_max: int = options.integer(
        100_000, "Most events that wait for the ledger. Requests beyond it are answered 429."
    )
    queue_bytes_max: int = options.size(
        "256MiB",
        "Most bytes of requests that are read or wait for the ledger. Requests beyond it are answered 429.",
        minimum="1KiB",
        maximum="64GiB",
    )
    queue_requests_max: int = options.integer(
        10_000, "Most requests that wait for the ledger. Requests beyond it are answered 429."
    )
    data_depth_max: int = options.integer(64, "Deepest nesting of an event's `data`.", maximum=500)
    retry_after_s: int = options.integer(
        1, "What `Retry-After` says when a request is answered 429 or 503, in seconds.", maximum=3_600
    )
    page_rows: int = options.integer(100, "Rows of a list's page when the request names no limit.", maximum=1_000)
    page_rows_max: int = options.integer(1_000, "Most rows of a list's page, whatever the request asks.", maximum=1_000)
    page_bytes_max: int = options.size(
        "16MiB",
        "Most bytes of events' data in a list's page, and of a GraphQL answer. One row is in it whatever its size.",
        minimum="1KiB",
        maximum="1GiB",
    )
    graphql_document_bytes_max: int = options.size(
        "64KiB",
        "Most bytes of a GraphQL document, without its variables.",
        minimum="1KiB",
        maximum="1MiB",
    )
    usage_items_max: int = options.integer(
        10_000, "Most items in an answer of `/v1/usage`. A request for more is refused.", maximum=100_000
    )
    explain_timeout: int = options.duration(
        "30s",
        "How long a request may read that explains a counter from its events, or tells usage as of a sequence.",
        minimum="10ms",
    )
    windows_told_max: int = options.integer(
        1_000,
        "Most windows, counted per tenant, that `/admin/event-health`, `/metrics` and `tidelock status` tell of. It is "
        "told where there are more.",
        maximum=100_000,
    )
    changes_retention: int = options.duration(
        "24h", "How long the changes of tables are kept. What a trigger has not read yet is kept in any case."
    )
    ws_queue_events_max: int = options.integer(
        1_000, "Most events that wait for one WebSocket client. A client further behind reads on from the ledger."
    )
    ws_connections_max: int = options.integer(1_000, "Most WebSocket clients at a time.")
    ws_ping_s: float = options.seconds(
        20, "How often a WebSocket client is pinged, in seconds.", minimum=0.1, maximum=3_600
    )
    live_subscriptions_max: int = options.integer(
        100, "Most subscriptions of one GraphQL connection, queries under way counted too.", maximum=10_000
    )
    live_connections_max: int = options.integer(
        10_000, "Most GraphQL clients of one tenant that stay, by WebSocket or by server-sent events."
    )
    live_keep_alive: int = options.duration(
        "12s",
        "How often a GraphQL client that nothing is sent to hears that the server is there. A client that takes "
        "nothing for twice as long is closed with 4499.",
        minimum="100ms",
    )
    live_queue_rows_max: int = options.integer(
        10_000,
        "Most changes that wait for one subscriber. Beyond it they are one for each row, and a subscriber for whom "
        "more rows wait is closed.",
    )
    live_snapshots_max: int = options.integer(
        4, "Most subscriptions whose rows, or past changes, are read from the database at a time.", maximum=100
    )
    live_snapshot_rows_max: int = options.integer(
        100_000, "Most rows that a subscription may begin with. One with more is refused.", maximum=10_000_000
    )
    webhook_allow_private: bool = options.flag(
        False, "Let webhooks go to private, loopback and link-local addresses. For development only."
    )
    webhook_timeout_s: float = options.seconds(
        15, "How long a receiver of webhooks has to answer, in seconds.", minimum=0.1, maximum=300
    )
    webhook_retries: tuple[int, ...] = options.durations(
        ("5s", "5m", "30m", "2h", "5h", "10h", "14h", "20h", "24h"),
        "How long after each failure a webhook is sent again, more or less. After the last it is dead.",
    )
    webhook_retry_after_max: int = options.duration(
        "24h", "Most that a receiver's `Retry-After` can put off what is sent to it."
    )
    webhook_concurrency: int = options.integer(
        16, "Most requests to one URL at a time, by one process. A receiver that fails gets fewer.", maximum=1_000
    )
    webhook_requests_max: int = options.integer(
        1_000, "Most webhooks that one process sends at a time.", maximum=100_000
    )
    webhook_queue_rows_max: int = options.integer(
        1_000, "Most events of one trigger that wait in memory to be sent. The others wait in the database.", minimum=2
    )
    webhook_failures_max: int = options.integer(
        5, "Failures in a row after which a receiver is left alone for a while.", maximum=1_000
    )
    webhook_pause_max: int = options.duration(
        "5m", "Longest time that a receiver which fails is left alone before one webhook is sent to see.", minimum="1s"
    )
    webhook_response_bytes_max: int = options.size(
        "1KiB", "How much of a receiver's answer is kept with each attempt.", minimum="0B", maximum="64KiB"
    )
    webhook_retention: int = options.duration(
        "14d", "How long webhooks that were delivered or given up are kept, with their attempts."
    )
    reader_lag_max: int | None = options.duration(
        None,
        "How far behind the ledger a reader (fold, triggers, Kafka, ...) may be before `/readyz` answers 503.",
        unset="any time",
        minimum="1s",
    )
    console: bool = options.flag(True, "Serve the console at `/`, where the extra `console` is installed.")
    console_visitors_max: int = options.integer(
        100, "Most pages of the console that are open at a time. Further ones are put off.", maximum=10_000
    )
    console_sessions_max: int = options.integer(
        1_000, "Most visitors who stay signed in to the console. Beyond it the one who was away longest signs in again."
    )
    console_session_lifetime: int = options.duration(
        "12h", "How long a visitor of the console stays signed in without opening a page.", minimum="1m"
    )
    read_connections_max: int = options.integer(
        8, "Most database connections that lists are read with at a time. Requests beyond it wait.", maximum=1_000
    )
    explain_connections_max: int = options.integer(
        2,
        "Most database connections that counters are explained with, and usage told as of a sequence, at a time. "
        "Requests beyond it wait.",
        maximum=1_000,
    )
    connect_timeout_s: float = options.seconds(
        5, "How long connecting to the database may take, in seconds.", minimum=0.1, maximum=3_600
    )
    lock_timeout_s: float = options.seconds(
        10, "How long a commit waits for the ledger's head, in seconds.", minimum=0.1, maximum=3_600
    )
    commit_timeout_s: float = options.seconds(
        30,
        "How long a commit may take before its requests are answered 503. Sent again, they are settled.",
        minimum=0.1,
        maximum=3_600,
    )
    outage_patience: int = options.duration("15s", "How long a command waits for a database that went away.")
    key_cache_s: float = options.seconds(
        5, "How long an API key that was looked up is remembered, in seconds.", minimum=0, maximum=3_600
    )
    import_chunk_events: int = options.integer(1_000, "Events that `tidelock import` records at a time.", maximum=1_000)
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
        "File that the ledger's head is written to regularly. Kept away from the database it proves a cut tail.",
        unset="`anchor.jsonl` in `data`",
    )
    anchor_interval: int = options.duration("10s", "How often the head is written to the anchor file.", minimum="1ms")
    partition_events: int = options.integer(10_000_000, "Events of one partition of the ledger's table.", minimum=1_000)
    log_level: str = options.choice("info", LOG_LEVELS, "Least severe messages that are logged.")
    plugins: tuple[str, ...] = options.names(
        "Python modules to import, which register event-time types.", example='["shop.eventtime"]'
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
    """The settings from file, environment and flags. Raises SettingsError for whatever is not as it must be.

    `config` None: `./tidelock.toml` if there is one. `flags` go by path (`postgres.binaries`); None is not given.
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
        # Plugins may bring types of their own; the fold checks again when it has imported them.
        eventtime_types=None if settings.plugins else EVENTTIME_TYPES,
        file=file.file,
    )
    return replace(settings, definitions=definitions)


def _file(config: Path | None) -> Section:
    if config is None and not DEFAULT_FILE.exists():
        return Section("", {}, str(DEFAULT_FILE))
    path = config or DEFAULT_FILE
    return Section("", read_toml(path), str(path))
