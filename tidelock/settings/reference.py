"""Reference: the page of settings, generated from the table that checks them and grouped by purpose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidelock.definitions.meters import METER_KEYS
from tidelock.definitions.streams import STREAM_KEYS
from tidelock.definitions.windows import WINDOW_KEYS
from tidelock.settings import TABLE
from tidelock.settings.kinds import PATH, TEXT
from tidelock.settings.options import Option

_INTRODUCTION = """\
# Settings

<!-- Made by `make docs` from tidelock/settings. Change it there. -->

A setting is taken from a command's flag, else from the environment, else from `tidelock.toml`, else it has its default.
The file is `./tidelock.toml`, or the one named by `--config`. In the environment, a setting's name is `TIDELOCK_` plus
its path in capitals: `postgres.shared_buffers` is `TIDELOCK_POSTGRES_SHARED_BUFFERS`. Relative paths are relative to
the directory in which the command is started. An unknown key is an error. A setting with a dot is in the file under its
table: `spark.master` is `master` below `[spark]`.

The settings are grouped by what you want to do:
"""


@dataclass(frozen=True, slots=True)
class _Purpose:
    """A part of the page: what one wants to do, and the settings for it."""

    heading: str
    #: when to change these settings
    about: str
    #: paths of settings; one that ends with a dot or an underscore stands for all that begin with it
    settings: str

    def has(self, path: str) -> bool:
        return any(path == name or (name[-1] in "._" and path.startswith(name)) for name in self.settings.split())


_PURPOSES = (
    _Purpose(
        "Choose where it runs and what it keeps",
        "The data directory, the address, the database and the log. Most installations change only these.",
        "data host port database_url log_level",
    ),
    _Purpose(
        "Decide which events are accepted",
        "Which streams exist, how far ahead a producer's clock may be, and how large events and requests may be.",
        "streams_open future_tolerance request_events_max request_bytes_max event_bytes_max data_depth_max plugins",
    ),
    _Purpose(
        "Control access",
        "API keys themselves are not settings: create them with `tidelock keys`. See [security](security.md).",
        "cors_origins key_cache_s salt",
    ),
    _Purpose(
        "Protect the server from overload",
        "Everything that waits has a limit. Raise one if the server refuses work it could do, or lower one to save "
        "memory.",
        "commit_events_max commit_bytes_max queue_ retry_after_s connections.",
    ),
    _Purpose(
        "Wait for the database, or give up",
        "How long requests and commands wait for the database before they fail.",
        "connect_timeout_s lock_timeout_s commit_timeout_s outage_patience",
    ),
    _Purpose(
        "Prove that nothing is lost",
        "The anchor file proves the end of the ledger. Keep it on another disk or machine than the database. "
        "See [operations](operations.md).",
        "anchor anchor_interval",
    ),
    _Purpose(
        "Read over HTTP",
        "Page sizes, limits of expensive requests, and what health and metrics report.",
        "page_ usage_items_max explain_timeout graphql_document_bytes_max read_connections_max explain_connections_max "
        "reader_lag_max windows_told_max",
    ),
    _Purpose(
        "Follow events and tables live",
        "Limits of `/ws` and of GraphQL subscriptions, and how far back a client can resume. "
        "See [subscriptions](subscriptions.md).",
        "changes_retention ws_ live_",
    ),
    _Purpose(
        "Send webhooks",
        "Timeouts, retries and limits of webhook delivery. See [webhooks](webhooks.md).",
        "webhook_",
    ),
    _Purpose(
        "Offer the console",
        "The web pages for people. See [the console](console.md).",
        "console console_",
    ),
    _Purpose(
        "Tune the fold",
        "How Spark turns events into tables, and how late an event may be for its counter. See [Spark](spark.md).",
        "fold. spark. meters.",
    ),
    _Purpose(
        "Tune the database",
        "The embedded Postgres, and how the ledger's table is partitioned.",
        "postgres. partition_events",
    ),
    _Purpose(
        "Number events across several ledgers",
        "One sequence for the events of several ledgers. See [sequence database](sequence-database.md).",
        "event_sequence_",
    ),
    _Purpose(
        "Import and backfill",
        "Recording files with `tidelock import`, and rows of an older Postgres table with `tidelock backfill`. "
        "See [migrating](migrating.md).",
        "import_ backfill.",
    ),
    _Purpose(
        "Follow a Materialize view",
        "Recording the changes of a view with `tidelock connect materialize`. See [Materialize](materialize.md).",
        "connect.",
    ),
    _Purpose(
        "Mirror to Kafka",
        "Copying the ledger to Kafka. Setting `kafka.brokers` turns it on. See [Kafka](kafka.md).",
        "kafka.",
    ),
    _Purpose(
        "Load a lake or ClickHouse",
        "Copying the ledger to Parquet files and to ClickHouse. Setting `lake.path` or `clickhouse.url` turns it on. "
        "See [lake](lake.md) and [ClickHouse](clickhouse.md).",
        "load. lake. clickhouse.",
    ),
)

_EXAMPLE = """\
```toml
[streams.trades]
key = "trade_id"
columns = { trade_id = "bigint", symbol = "string", quantity = "int", price = "decimal(18,4)", ts = "bigint" }
eventtime = { column = "ts", type = "unixtimestamp_ms" }

[meters.api_calls]
aggregation = "sum"
period = "month"
lateness = "48h"

[windows.volume_1m]
stream = "trades"
window = { tumbling = "1m" }
eventtime = { enabled = true, late_tolerance = "5s" }
group_by = ["symbol"]
select = { volume = "sum(quantity)", trades = "count(*)" }
```
"""

_DEFINITIONS = f"""\
## Definitions

Streams, meters and windows can be declared only in the file. Durations are a whole number with its unit:
`ns us ms s m h d`. Columns are the declared ones and those of every event (`customer_ref`, `quantity`, ...); in a
stream without declared columns `data.a.b` is a path into `data`.

{_EXAMPLE}"""


def settings_page() -> str:
    """The whole page, in Markdown."""
    parts = [_INTRODUCTION, _contents()]
    for purpose, options in settings_by_purpose():
        parts.append(f"## {purpose.heading}\n\n{purpose.about}\n\n{_settings_table(options)}")
    parts.append(_DEFINITIONS)
    for name, keys in (("streams", STREAM_KEYS), ("meters", METER_KEYS), ("windows", WINDOW_KEYS)):
        parts.append(f"### `[{name}.NAME]`\n\n{_keys_table(keys)}")
    return "\n".join(parts)


def settings_by_purpose() -> list[tuple[_Purpose, list[Option]]]:
    """Every setting under what it is for. Raises ValueError for one that has no place, or several."""
    for path in TABLE:
        if (places := sum(purpose.has(path) for purpose in _PURPOSES)) != 1:
            raise ValueError(f"the setting {path} must have one place in `_PURPOSES`, not {places}")
    return [(purpose, [option for path, option in TABLE.items() if purpose.has(path)]) for purpose in _PURPOSES]


def _contents() -> str:
    headings = [*(purpose.heading for purpose in _PURPOSES), "Definitions"]
    return "\n".join([*(f"- [{heading}](#{_anchor(heading)})" for heading in headings), ""])


def _anchor(heading: str) -> str:
    return heading.lower().replace(",", "").replace(" ", "-")


def _settings_table(options: Iterable[Option]) -> str:
    lines = [_line(option.path, option.env, _default(option), _about(option)) for option in options]
    return "\n".join(["| setting | environment | default | |", "|---|---|---|---|", *lines, ""])


def _keys_table(keys: Mapping[str, str]) -> str:
    return "\n".join(["| key | |", "|---|---|", *(f"| `{key}` | {_cell(about)} |" for key, about in keys.items()), ""])


def _line(path: str, env: str, default: str, about: str) -> str:
    return f"| `{path}` | `{env}` | {default} | {about} |"


def _default(option: Option) -> str:
    if option.spec.unset is not None:
        return _cell(option.spec.unset)
    return f"`{option.spec.kind.write(option.default)}`"


def _about(option: Option) -> str:
    spec = option.spec
    also = f" The variable `{spec.also_env}` is also read." if spec.also_env else ""
    secret = " The value is never shown." if spec.secret else ""
    example = f" Example: `{spec.example}`." if spec.example else ""
    allowed = "" if spec.kind in (TEXT, PATH) else f" Allowed: {spec.kind.allowed}."
    return _cell(f"{spec.help}{also}{secret}{allowed}{example}")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
