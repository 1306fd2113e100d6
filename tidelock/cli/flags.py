"""Flags that several commands share, and what is made of them: settings, a slice of the ledger."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelock.errors import SettingsError
from tidelock.instants import parse_instant
from tidelock.settings import TABLE, Settings, load

if TYPE_CHECKING:
    # Only when a command needs it: help must not wait for a database driver.
    from tidelock.ledger.reader import Slice

_PANEL = "Settings"
_SEQUENCE_MAX = 2**63 - 2


def setting(path: str, metavar: str) -> Any:
    """The flag for a setting, as the table of settings describes it; the value is checked there too."""
    option = TABLE[path]
    shown = option.spec.unset or ("" if option.default is None else option.spec.kind.write(option.default))
    return typer.Option(
        option.flag,
        metavar=metavar,
        help=option.spec.help,
        rich_help_panel=_PANEL,
        show_default=shown.strip('"').replace("`", "") or False,
    )


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Settings file.",
        show_default="./tidelock.toml, if it exists",
        rich_help_panel=_PANEL,
    ),
]
Data = Annotated[str | None, setting("data", "DIR")]
DatabaseUrl = Annotated[str | None, setting("database_url", "URL")]
Host = Annotated[str | None, setting("host", "HOST")]
Port = Annotated[str | None, setting("port", "PORT")]
LogLevel = Annotated[str | None, setting("log_level", "LEVEL")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs; lists are one object per line.")]
#: the `--json` of commands that keep running
Told = Annotated[bool, typer.Option("--json", help="Report start and stop as JSON on stdout, one object per line.")]

Tenant = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant.")]
Stream = Annotated[str | None, typer.Option("--stream", metavar="NAME", help="Only this stream.")]
Customer = Annotated[str | None, typer.Option("--customer", metavar="NAME", help="Only this customerRef.")]
Causality = Annotated[str | None, typer.Option("--causality", metavar="KEY", help="Only this causalityKey.")]
Batch = Annotated[str | None, typer.Option("--batch", metavar="NAME", help="Only this batch.")]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TIME",
        help="Only events that occurred at or after this time (RFC 3339 or epoch milliseconds).",
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to", metavar="TIME", help="Only events that occurred before this time (RFC 3339 or epoch milliseconds)."
    ),
]
After = Annotated[
    int | None, typer.Option("--after", metavar="SEQUENCE", help="Only events after this sequence number.")
]
Before = Annotated[
    int | None, typer.Option("--before", metavar="SEQUENCE", help="Only events before this sequence number.")
]


def read_settings(config: Path | None, **flags: object) -> Settings:
    """The settings with these flags, named like the settings; None means not given."""
    return load(config, os.environ, flags)


def slice_of(
    tenant: str | None = None,
    stream: str | None = None,
    customer: str | None = None,
    causality: str | None = None,
    *,
    batch: str | None = None,
    occurred_from: str | None = None,
    occurred_to: str | None = None,
    after: int | None = None,
    before: int | None = None,
) -> Slice:
    """The slice selected by flags. Raises SettingsError."""
    from tidelock.ledger.reader import Slice

    check_texts(tenant=tenant, stream=stream, customer=customer, causality=causality, batch=batch)
    for name, sequence in (("after", after), ("before", before)):
        if sequence is not None and not 0 <= sequence <= _SEQUENCE_MAX:
            raise SettingsError(f"--{name} must be a whole number from 0 to {_SEQUENCE_MAX}, not {sequence}")
    first, last = _instant("--from", occurred_from), _instant("--to", occurred_to)
    return Slice(
        tenant,
        stream,
        customer,
        causality,
        batch_id=batch,
        occurred_from=first,
        occurred_to=last,
        after=after,
        before=before,
    )


def check_texts(**given: str | None) -> None:
    """Raises SettingsError for text that cannot be sent to a database."""
    for name, value in given.items():
        # Python keeps bytes of an argument that are not UTF-8 as lone surrogates.
        if value is not None and any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value):
            raise SettingsError(f"{name}: {value!r} is not valid text; it must be UTF-8 without NUL")


def _instant(flag: str, text: str | None) -> int | None:
    try:
        return None if text is None else parse_instant(text)
    except ValueError as error:
        raise SettingsError(f"{flag}: {error}") from None
