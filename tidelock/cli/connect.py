"""The commands `connect ...`: follow views of other systems into the ledger."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tidelock.cli import terminal
from tidelock.cli.flags import Config, Data, DatabaseUrl, Json, read_settings
from tidelock.cli.session import recording_ledger, set_on_signals
from tidelock.errors import SettingsError
from tidelock.model import DEFAULT_TENANT
from tidelock.sections import number_of
from tidelock.settings import Settings

if TYPE_CHECKING:
    from tidelock.definitions import Stream
    from tidelock.sources.connect.connecting import Connected
    from tidelock.sources.connect.connector import Connector

app = typer.Typer(no_args_is_help=True, help="Follow views of other systems.")


@app.callback()
def connect() -> None:
    """Follow views of other systems: their rows become events of a keyed stream."""


@app.command("materialize")
def materialize(
    url: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="URL",
            help="URL of the Materialize instance that has the view; also TIDELOCK_CONNECT_MATERIALIZE_URL.",
        ),
    ] = None,
    view: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the view, as in SQL.")] = None,
    stream: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Stream to record into; it must have a key.", show_default="the view's name"),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="Key column of the view, checked against the stream's key; repeat it for each column.",
        ),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Tenant of the rows.", show_default=DEFAULT_TENANT)
    ] = None,
    restart: Annotated[
        bool,
        typer.Option("--restart", help="Compare the whole view with what is recorded, even if it could resume."),
    ] = False,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt", help="Delete rows of the stream that other producers recorded and that are not in the view."
        ),
    ] = False,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Follow a Materialize view: record its rows and every change as events of a keyed stream.

    All changes at one mz_timestamp form one collection; mz_timestamp becomes the events' occurredAt.

    You can stop it at any time. Run it again to resume where it stopped. Changes received twice are recorded once.

    [dim]tidelock connect materialize --from postgresql://tidelock@materialize.example:6875/materialize --view trades[/]
    """
    if "" in (url, view, stream, tenant):
        raise SettingsError("--from, --view, --stream and --tenant must not be empty")
    given = {"url": url, "view": view, "stream": stream, "tenant": tenant}
    flags = {f"connect.materialize.{name}": value for name, value in given.items()}
    settings = read_settings(config, data=data, database_url=database_url, **flags)
    wanted = settings.connect.materialize
    if wanted.url is None or wanted.view is None:
        what = "--from URL" if wanted.url is None else "--view NAME"
        raise SettingsError(f"{what} is missing; pass it or set it in [connect.materialize] of tidelock.toml")
    from tidelock.sources.connect.materialize import Materialize

    connector = Materialize(
        wanted.url,
        wanted.view,
        connect_timeout_s=settings.connect_timeout_s,
        part_rows_max=settings.connect.part_rows_max,
    )
    feeding = _stream(settings, wanted.stream or connector.name, key)
    tenant_id = wanted.tenant or DEFAULT_TENANT
    result = asyncio.run(_run(settings, connector, feeding, tenant_id, restart=restart, adopt=adopt))
    if json:
        terminal.write_json(asdict(result))
    else:
        _show(result)


def _stream(settings: Settings, name: str, key: list[str] | None) -> Stream:
    """The declared stream. One that is not declared is refused, with the view's columns in the message."""
    from tidelock.definitions import Stream

    stream = settings.definitions.stream(name) or Stream(name)
    named = tuple(column.strip() for text in key or () for column in text.split(","))
    if named and stream.key and named != stream.key:
        raise SettingsError(
            f'--key {",".join(named)} is not the key of stream "{name}", which is {",".join(stream.key)}; leave it '
            f"out, or change [streams.{name}] key",
            field="key",
        )
    # A stream without a key is refused later, with a declaration that would work.
    return stream if stream.key else Stream(name, key=named)


async def _run(
    settings: Settings,
    connector: Connector,
    stream: Stream,
    tenant_id: str,
    *,
    restart: bool,
    adopt: bool,
) -> Connected:
    from tidelock.sources.connect.connecting import Connecting
    from tidelock.sources.connect.memory import Memory, ViewFeed
    from tidelock.sources.sender import Sender

    # Checked before a ledger is opened, so that a mistyped name fails at once.
    try:
        await connector.open(stream)
    finally:
        await connector.close()
    async with recording_ledger(settings) as ledger:
        sender = Sender(ledger.sequencer, settings, streams_open=True)
        feed = ViewFeed.of(connector, stream, tenant_id)
        connecting = Connecting(
            connector,
            feed,
            Memory(ledger.database, feed),
            sender,
            settings.connect,
            tell=lambda text: terminal.say(escape(text)),
        )
        set_on_signals(connecting.stop)
        return await connecting.run(restart=restart, adopt=adopt)


def _show(result: Connected) -> None:
    through = f" Complete through {result.position}." if result.position is not None else ""
    terminal.show(
        f"[green]{number_of(result.accepted, 'change')}[/] recorded, {number_of(result.deletes, 'delete')} among them; "
        f"{result.duplicates:,} already recorded.{through} Run the command again to continue."
    )
