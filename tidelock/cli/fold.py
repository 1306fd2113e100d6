"""Commands that build tables and check them: `fold`, `replay`, `recompute`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tidelock.cli import terminal
from tidelock.cli.flags import Config, Data, DatabaseUrl, Json, LogLevel, Told, read_settings
from tidelock.cli.session import found_ledger, log_to_stderr, stop_on_signals, stop_with_parent, teller
from tidelock.errors import Difference
from tidelock.settings import Settings

if TYPE_CHECKING:
    from tidelock.fold.redefine.recomputation import Recomputation
    from tidelock.postgres.database import Database

app = typer.Typer()


class Origin(StrEnum):
    """Where a replay reads the ledger from."""

    ledger = "ledger"
    lake = "lake"


@app.command(rich_help_panel="Run")
def fold(
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    log_level: LogLevel = None,
    once: Annotated[bool, typer.Option("--once", help="Fold what is recorded, then stop.")] = False,
    supervised: Annotated[bool, typer.Option(hidden=True)] = False,
    json: Told = False,
) -> None:
    """Fold the ledger into counters, adjustments and latest rows, on Spark. `up` does this automatically.

    One process folds a ledger at a time; others are on standby. It refuses to start if definitions changed since the
    tables were built: see `tidelock replay`.

    [dim]DATABASE_URL=postgresql://tidelock@db.example/tidelock tidelock fold[/]
    """
    settings = read_settings(config, data=data, database_url=database_url, log_level=log_level)
    log_to_stderr(settings.log_level)
    stop = stop_on_signals()
    if supervised:
        stop_with_parent(stop)
    from tidelock import app as composition

    composition.fold(settings, stop=stop, rebuild=supervised, once=once, tell=teller("fold", json))


@app.command(rich_help_panel="Run")
def replay(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Meters or streams; default: those whose definitions changed."),
    ] = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    log_level: LogLevel = None,
    source: Annotated[
        Origin, typer.Option("--from", help="Where to read events from; an up-to-date lake spares the database.")
    ] = Origin.ledger,
    json: Told = False,
) -> None:
    """Rebuild tables from the first event, then swap the new tables in.

    Readers see the old rows until the swap and the new ones after it; only rows that differ are published as changes.
    A running fold continues meanwhile.

    [dim]tidelock replay api_calls --from lake[/]
    """
    settings = read_settings(config, data=data, database_url=database_url, log_level=log_level)
    log_to_stderr(settings.log_level)
    stop = stop_on_signals()
    from tidelock import app as composition

    with terminal.Work("replay", "events") as work:

        def progress(done: int, end: int) -> None:
            work.told(done, done / end if end else 1.0)

        composition.replay(
            settings, names or [], lake=source is Origin.lake, stop=stop, tell=teller("replay", json), progress=progress
        )


@app.command(rich_help_panel="Operations")
def recompute(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Meters or streams; default: every row of every table."),
    ] = None,
    _check: Annotated[
        bool,
        typer.Option("--check", help="Only compare, change nothing. This is the default, so the flag may be omitted."),
    ] = False,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Fold the whole ledger again, separately from the tables, and compare every column of every row.

    Exits with 1 and shows the first differences, if any. Nothing is repaired: `tidelock replay NAME` does that. A
    running fold continues meanwhile.

    [dim]tidelock recompute --check api_calls[/]
    """
    settings = read_settings(config, data=data, database_url=database_url)
    log_to_stderr(settings.log_level)
    stop = stop_on_signals()
    with found_ledger(settings) as database:
        found = recomputed(settings, database, names or [], stop)
    if json:
        terminal.write_json(found)
    elif found.ok:
        terminal.show(f"[green]equal[/]  {found.summary()}")
    else:
        shown = [(d.table, d.tenant_id, d.key, d.column or "(row)", d.stored, d.recomputed) for d in found.differences]
        terminal.show_table(
            ["table", "tenant", "key", "column", "stored", "recomputed"],
            [["[dim]-[/]" if cell is None else escape(cell) for cell in row] for row in shown],
        )
    if not found.ok:
        repair = f"tidelock replay {' '.join(names)}" if names else "tidelock replay NAME"
        raise Difference(f"the tables differ from what the ledger gives: {found.summary()}; `{repair}` rebuilds them")


def recomputed(settings: Settings, database: Database, names: Sequence[str], stop: threading.Event) -> Recomputation:
    """Tables folded again and compared, with a progress bar."""
    from tidelock import app as composition

    with terminal.Work("recomputing", "events") as work:

        def progress(done: int, end: int) -> None:
            work.told(done, done / end if end else 1.0)

        found = composition.recompute(
            settings, database, names, stop=stop, tell=teller("recompute", False), progress=progress
        )
    if found is None:
        terminal.say("[bold]recompute[/]  stopped; nothing was compared")
        raise typer.Exit(128 + signal.SIGINT)
    return found
