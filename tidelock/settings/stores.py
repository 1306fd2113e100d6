"""Settings of the stores that the ledger is loaded into, and of what loads them."""

from __future__ import annotations

from dataclasses import dataclass

import tidelock.settings.options as fields


@dataclass(frozen=True, slots=True)
class Load:
    """The loader, which copies the ledger to the lake and to ClickHouse, on a Spark of its own."""

    enabled: bool = fields.flag(
        True, "Load the stores that are set in `up`. Without it, run `tidelock load` beside it."
    )
    batch_events_max: int = fields.integer(
        250_000, "Most events that are loaded at a time.", minimum=1_000, maximum=10_000_000
    )
    interval: int = fields.duration(
        "5s",
        "How long events are gathered before they are loaded, where there are fewer than a batch. Longer costs less.",
        minimum="1ms",
    )
    driver_memory: int = fields.size(
        "1GiB", "Memory of the loader's Spark driver.", minimum="512MiB", maximum="1024GiB"
    )
    pause_max: int = fields.duration(
        "30s",
        "Longest pause before a store that failed is tried again; the first is a tenth of a second.",
        minimum="100ms",
    )


@dataclass(frozen=True, slots=True)
class Lake:
    """The lake: the ledger as Parquet files, in one order."""

    path: str | None = fields.text(
        None,
        "Directory or URL of the lake; the events are in `events/*.parquet` below. Spark writes it.",
        unset="none, and no lake",
        example="/srv/lake",
    )
    file_events: int = fields.integer(
        250_000,
        "Sequences of one file. The last file is written anew as it fills, so there are no small ones to join later.",
        minimum=1_000,
        maximum=100_000_000,
    )


@dataclass(frozen=True, slots=True)
class ClickHouse:
    """ClickHouse: the ledger as one table, a server's or an embedded one's."""

    url: str | None = fields.text(
        None,
        "ClickHouse to load: `clickhouse://user:password@host:8123/database` (`clickhouses://` by TLS), or "
        "`chdb:PATH`, which is embedded.",
        unset="none, and no ClickHouse",
        example="chdb:/srv/clickhouse",
        secret=True,
    )
    timeout_s: float = fields.seconds(
        30, "How long connecting to ClickHouse, or waiting for a chDB path, may take.", minimum=0.1, maximum=3_600
    )
