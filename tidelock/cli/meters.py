"""Commands about meters before they are in force: `meters try`, `meters diff`."""

from __future__ import annotations

import asyncio
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.markup import escape

from tidelock.cli import terminal
from tidelock.cli.flags import Config, Data, DatabaseUrl, Json, read_settings
from tidelock.cli.session import found_ledger, log_to_stderr, stop_on_signals, teller
from tidelock.errors import SettingsError

if TYPE_CHECKING:
    from tidelock.definitions import Definitions
    from tidelock.fold.redefine.comparison import Comparison
    from tidelock.fold.redefine.differences import Differing
    from tidelock.postgres.database import Database
    from tidelock.settings import Settings
    from tidelock.usage.trying import MeterTried, Tried

app = typer.Typer(no_args_is_help=True, help="Try meters on an event, or compare other meters with those in force.")

#: rows that a terminal is shown
_SHOWN_MAX = 1_000
_OUTCOMES = {"folded": "[green]counts[/]", "adjusted": "adjustment", "error": "[red]error[/]"}


@app.command("try")
def try_(
    event: Annotated[str, typer.Option("--event", metavar="JSON", help="An event as it would be sent; - reads stdin.")],
    definitions: Annotated[
        Path | None,
        typer.Option(
            "--definitions", metavar="FILE", help="A tidelock.toml with other meters.", show_default="those in force"
        ),
    ] = None,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Show which meters would count an event, for which period and with what, or why not. Nothing is recorded.

    [dim]tidelock meters try --event '{"stream": "api_calls", "customerRef": "ada", "quantity": 2}'[/]
    """
    settings = read_settings(config, data=data, database_url=database_url)
    other = None if definitions is None else _definitions(definitions)
    text = sys.stdin.read() if event == "-" else event
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise SettingsError(f"--event is not JSON: {error}") from None
    with found_ledger(settings) as database:
        found = asyncio.run(_tried(settings, database, text, other))
    if json:
        terminal.write_json(found)
        return
    _say_verdict(found)
    rows = sorted(found.items, key=lambda item: item.reason == "other_stream")
    terminal.show_table(["meter", "", "period", "group", "quantity#", "why"], map(_row, rows))


@app.command("diff")
def diff(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A tidelock.toml with other meters.", show_default=False)
    ],
    metric: Annotated[
        str | None, typer.Option("--metric", help="Only this meter.", show_default="all that differ")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    config: Config = None,
    data: Data = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Fold the ledger by other definitions beside the current ones, and show each counter that would differ.

    The greatest difference of `value` comes first. Nothing changes; to put the file in force, run `tidelock replay`.

    [dim]tidelock meters diff new.toml --csv[/]
    """
    from tidelock import app as composition

    settings = read_settings(config, data=data, database_url=database_url)
    if as_csv and json:
        raise SettingsError("give either --csv or --json")
    wanted = _definitions(file)
    log_to_stderr(settings.log_level)
    stop = stop_on_signals()
    with found_ledger(settings) as database, terminal.Work("folding", "events") as work:
        comparing = composition.meters_compared(
            settings, database, wanted, metric=metric, stop=stop, tell=teller("meters", False),
            progress=lambda done, end: work.told(done, done / max(end, 1)),
        )  # fmt: skip
        with comparing as found:
            if found is None:
                raise typer.Exit(130)
            _show_differing(found, file, as_csv=as_csv, json=json)


def _definitions(file: Path) -> Definitions:
    from tidelock.settings import load

    return load(file, {}, {}).definitions


async def _tried(settings: Settings, database: Database, text: str, definitions: Definitions | None) -> Tried:
    from tidelock.usage.trying import Trial, try_event
    from tidelock.views.catalog import CatalogReader

    trial = Trial(text.encode(), definitions=definitions, streams_open=settings.streams_open is not False)
    async with await database.connect(name="tidelock meters") as connection:
        return await try_event(connection, CatalogReader(settings.definitions), trial, settings)


def _say_verdict(found: Tried) -> None:
    if found.error is not None:
        terminal.show(f"[bold]rejected[/]: {escape(found.error.code)}: {escape(found.error.message)}")
    elif found.ingress_sequence is not None:
        terminal.show(f"[bold]{found.verdict}[/] of sequence {found.ingress_sequence:,}: it would not count again")
    else:
        terminal.show(f"[bold]accepted[/], as of sequence {found.through_sequence:,}. Nothing was recorded.")


def _row(item: MeterTried) -> tuple[str, ...]:
    outcome = _OUTCOMES.get(item.outcome, "[dim]not counted[/]")
    cells = (item.period_start, item.group, item.quantity, item.why)
    return (escape(item.metric), outcome, *("" if cell is None else escape(cell) for cell in cells))


def _show_differing(found: Comparison, file: Path, *, as_csv: bool, json: bool) -> None:
    if json:
        for row in found.rows():
            terminal.write_json(row)
        return
    if as_csv:
        from tidelock.api.comparison import differing_csv

        with terminal.output() as out:
            out.writelines(line.encode() for line in differing_csv(found.rows()))
        return
    if not found.meters:
        terminal.show("The meters are the ones in force: nothing would differ.")
        return
    rows = found.rows()
    shown = list(islice(rows, _SHOWN_MAX))
    more = sum(1 for _ in rows)
    terminal.show(
        f"{', '.join(map(escape, found.meters))}: [bold]{len(shown) + more:,}[/] counters would differ, through "
        f"sequence {found.through_sequence:,}."
    )
    columns = ["meter", "tenant", "customer", "period", "value#", "would be#", "total#", "would be#", "difference#"]
    terminal.show_table(columns, map(_differing_cells, shown))
    if more:
        terminal.say(f"and {more:,} more counters; --csv shows all of them")
    terminal.say(f"Nothing has changed. To put it in force: tidelock replay --config {escape(str(file))}")


def _differing_cells(row: Differing) -> tuple[str, ...]:
    return tuple(
        escape(cell or "")
        for cell in (
            row.metric, row.tenant_id, row.customer_ref, row.period_start, row.value_before, row.value_after,
            row.total_before, row.total_after, row.difference,
        )
    )  # fmt: skip
