"""The command that ends waiting: `drain`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tidelock.errors import SettingsError
from tidelock.ops import terminal
from tidelock.ops.commands.session import Config, Data, DatabaseUrl, Json, found_ledger, read_settings
from tidelock.sections import shown

if TYPE_CHECKING:
    from tidelock.definitions import Definitions
    from tidelock.postgres.database import Database
    from tidelock.settings import Settings

app = typer.Typer()


@app.command(rich_help_panel="Tables")
def drain(
    window: Annotated[
        str | None,
        typer.Argument(
            metavar="[WINDOW]", help="A window by event time, or STREAM_ordered; none: all of them.", show_default=False
        ),
    ] = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Close open windows and release what is held back, without waiting for later events.

    It is recorded in the ledger, so a replay closes the same windows at the same place. Events that come afterwards for
    what was closed are late, with the reason `drained`.

    [dim]tidelock drain volume_1m[/]
    """
    from tidelock.instants import format_instant
    from tidelock.ops.control import record_control

    settings = read_settings(config, data=data, database_url=database_url)
    with found_ledger(settings) as database:
        windows = drained_by(asyncio.run(_definitions(database, settings)), window)
        control = {"type": "drain"} if window is None else {"type": "drain", "window": window}
        recorded = record_control(settings, database, control)
    if json:
        terminal.write_json(
            {
                "ingressSequence": recorded.ingress_sequence,
                "sourceTimestamp": recorded.source_timestamp,
                "window": window,
                "windows": windows,
            }
        )
        return
    at = format_instant(int(recorded.source_timestamp))
    terminal.show(
        f"Recorded as sequence [bold]{recorded.ingress_sequence}[/] at {at}, "
        f"source timestamp {recorded.source_timestamp}.\n"
        f"As soon as the fold is through it, what {escape(', '.join(windows))} had open is closed and what was held "
        "back is released, with that source timestamp. `tidelock status` shows how far the fold is."
    )


def drained_by(definitions: Definitions, name: str | None) -> list[str]:
    """The windows and ordered outputs that a drain of that name, or of all, is about. Raises SettingsError."""
    windows = [window.name for window in definitions.windows.values() if window.eventtime.enabled]
    found = [*windows, *(f"{stream.name}_ordered" for stream in definitions.streams.values() if stream.ordered)]
    if name in found:
        return [name]
    if name in definitions.windows:
        raise SettingsError(
            f"{shown(name)} goes by arrival: it holds nothing back and closes by itself as time passes, so there is "
            "nothing to drain; that is for windows with eventtime.enabled and for streams with ordered = true"
        )
    if not found:
        raise SettingsError(
            "there is nothing to drain: no window has eventtime.enabled, and no stream has ordered = true"
        )
    if name is not None:
        raise SettingsError(f"there is no window {shown(name)} by event time; there are: {', '.join(found)}")
    return found


async def _definitions(database: Database, settings: Settings) -> Definitions:
    """Those the tables are made by: what the settings say may not be in effect yet."""
    from tidelock.live.shapes import Shapes

    async with await database.connect(name="tidelock drain") as connection:
        return (await Shapes(settings.definitions).read(connection)).definitions
