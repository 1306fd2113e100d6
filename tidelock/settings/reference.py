"""Reference: the page of settings, made from the table that checks them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelock.definitions.meters import METER_KEYS
from tidelock.definitions.streams import STREAM_KEYS
from tidelock.definitions.windows import WINDOW_KEYS
from tidelock.settings import TABLE, Settings
from tidelock.settings.kinds import PATH, TEXT
from tidelock.settings.options import Option, sections

_INTRODUCTION = """\
# Settings

<!-- Made by `make docs` from tidelock/settings.py. Change it there. -->

A setting is taken from a command's flag, else from the environment, else from `tidelock.toml`, else it has its default.
The file is `./tidelock.toml`, or the one named by `--config`. In the environment, a setting's name is `TIDELOCK_` plus
its path in capitals: `postgres.shared_buffers` is `TIDELOCK_POSTGRES_SHARED_BUFFERS`. Relative paths are relative to
the directory in which the command is started. An unknown key is an error.
"""

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
    top = [option for path, option in TABLE.items() if "." not in path]
    parts = [_INTRODUCTION, _settings_table(top)]
    for name, section in sections(Settings).items():
        inside = [option for path, option in TABLE.items() if path.startswith(f"{name}.")]
        parts.append(f"## `[{name}]`\n\n{section.__doc__}\n\n{_settings_table(inside)}")
    parts.append(_DEFINITIONS)
    for name, keys in (("streams", STREAM_KEYS), ("meters", METER_KEYS), ("windows", WINDOW_KEYS)):
        parts.append(f"### `[{name}.NAME]`\n\n{_keys_table(keys)}")
    return "\n".join(parts)


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
